//! Writing: it splits pieces into covers, and logs the covers by the policy of the epoch.

use super::block_range::{BlockRange, Hindrance, Logged, class_for};
use super::meta::Extent;
use super::{Core, Lane, barriers};
use crate::engine::Piece;
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::options::Durability;
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sync::word_lock::lock;

/// The part of a piece that lies in one cover.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    /// Index of the cover.
    pub(super) block_range: usize,
    /// Where, in the cover.
    pub(super) extent: Extent,
    pub(super) bytes: &'a [u8],
}

/// Everything of one write: covers ascending, and their parts in the same order.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) block_ranges: Vec<BlockRange>,
    pub(super) parts: Vec<Part<'a>>,
}

impl<'a> Plan<'a> {
    /// The parts of a cover.
    pub(super) fn parts_of(&self, block_range: usize) -> impl Iterator<Item = &Part<'a>> {
        let first = self.parts.partition_point(|part| part.block_range < block_range);
        self.parts[first..].iter().take_while(move |part| part.block_range == block_range)
    }
}

/// How a write came out that held its locks.
enum Outcome {
    Done,
    /// It was not begun: this epoch has to become durable first.
    NotDurable(u64),
    /// It was not begun: the log is full.
    Full,
}

/// Chunks from which on a log is not made longer while a checkpoint could make room in it.
const ENOUGH_CHUNKS: u64 = 32;

/// Units from which on a log on a block medium is not made longer while a checkpoint could make room in it. A
/// checkpoint costs two flushes there, and half of so many units holds a few hundred commits.
const ENOUGH_UNITS: u64 = 2048;

/// How often a write that found no room makes room anew before it gives up. Others may take what was made.
const ATTEMPTS_TO_MAKE_ROOM: u32 = 100;

/// The same where the disk is full and something of the log is free. Each time tries to make the log longer.
const ATTEMPTS_ON_A_FULL_DISK: u32 = 8;

impl<M: Medium> Core<M> {
    pub(super) fn write_pieces(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.handle_state.writable()?;
        self.check_pieces(pieces)?;
        if pieces.iter().all(|piece| piece.bytes.is_empty()) {
            return Ok(());
        }
        let written = match self.durability {
            Durability::PerCommit => self.join_epoch(pieces),
            Durability::PerWrite => self.write_and_commit(pieces),
        };
        written.map_err(|error| self.handle_state.unless_lost(error))
    }

    fn check_pieces(&self, pieces: &[Piece<'_>]) -> Result<()> {
        pieces.iter().try_for_each(|piece| self.check(piece.offset, piece.bytes.len() as u64))
    }

    /// A write that becomes part of the open epoch.
    fn join_epoch(&self, pieces: &[Piece<'_>]) -> Result<()> {
        if let [piece] = pieces
            && self.write_single(piece.offset, piece.bytes)?
        {
            return Ok(());
        }
        self.join_epoch_any(pieces)
    }

    #[inline(never)]
    fn join_epoch_any(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let mut attempt = 0;
        loop {
            let lane = self.lane();
            // The length may have changed on the way here.
            self.check_pieces(pieces)?;
            match self.write_in(&lane, pieces)? {
                Outcome::Done => return Ok(()),
                Outcome::NotDurable(epoch) => {
                    drop(lane);
                    self.await_durable(epoch)?;
                }
                Outcome::Full => {
                    // Others may be waiting for the chunk that this lane fills.
                    drop(lane);
                    self.make_room(pieces, attempt)?;
                    attempt += 1;
                }
            }
        }
    }

    /// A write that is a commit by itself: nobody else writes or commits meanwhile, and nobody sees it before it is
    /// durable.
    fn write_and_commit(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let mut attempt = 0;
        loop {
            let lanes = self.lanes.acquire_all(self.relax());
            self.check_pieces(pieces)?;
            let lane = &lanes[self.lanes.home()];
            let mut plan = Plan::default();
            let outcome = self.plan(pieces, &mut plan).and_then(|()| self.log(lane, &plan).map_err(Hindrance::Failed));
            let outcome = match outcome {
                Ok(Some(links)) => {
                    self.medium.order();
                    let publish = || {
                        plan.block_ranges
                            .iter()
                            .zip(&links)
                            .for_each(|(block_range, &link)| self.publish(block_range, link))
                    };
                    // Whether a write whose commit failed is in, only recovery can tell; the handle is poisoned.
                    let committed = self.commit_with(&lanes, self.len(), true, publish);
                    if committed.is_err() {
                        self.withdraw(&lanes);
                        self.unlock(&plan.block_ranges);
                    }
                    return committed;
                }
                Ok(None) => {
                    self.unlock(&plan.block_ranges);
                    Outcome::Full
                }
                Err(Hindrance::NotDurable(epoch)) => {
                    self.unlock(&plan.block_ranges);
                    Outcome::NotDurable(epoch)
                }
                Err(Hindrance::Failed(error)) => {
                    self.withdraw(&lanes);
                    self.unlock(&plan.block_ranges);
                    return Err(error);
                }
            };
            drop(lanes);
            match outcome {
                Outcome::Done => return Ok(()),
                Outcome::NotDurable(epoch) => self.await_durable(epoch)?,
                Outcome::Full => {
                    self.make_room(pieces, attempt)?;
                    attempt += 1;
                }
            }
        }
    }

    /// Under undo, takes back what a write that is a commit by itself has stored to the file already, when it failed
    /// and only recovery can tell what is in: nobody may see what that will take back. Where it cannot be taken back,
    /// nobody reads what writes have touched any more. The caller holds every lane, and has locked what the write
    /// touched.
    fn withdraw(&self, lanes: &[Lane<'_>]) {
        if self.handle_state.writable().is_ok() || !self.logs_undo() {
            return;
        }
        // Recovery goes by a record that arrived; if it has no digest, it does not look at the bytes, and would find
        // some of the old ones among the new.
        if !self.is_certified(lanes) && self.has_record(self.epoch()) {
            return self.handle_state.hide();
        }
        if let Err(error) = self.roll_back() {
            tracing::error!(path = %self.path().display(), %error, "cannot roll back a write whose commit failed");
            self.handle_state.hide();
        }
    }

    /// Writes behind the end of the file, for the holder of every lane. False if the log has no room.
    pub(super) fn write_behind_the_end(&self, lane: &Lane<'_>, piece: Piece<'_>) -> Result<bool> {
        loop {
            match self.write_in(lane, &[piece])? {
                Outcome::Done => return Ok(true),
                Outcome::Full => return Ok(false),
                Outcome::NotDurable(epoch) => self.await_durable(epoch)?,
            }
        }
    }

    /// Writes pieces, locking what they touch. The caller holds the lane.
    fn write_in(&self, lane: &Lane<'_>, pieces: &[Piece<'_>]) -> Result<Outcome> {
        let mut plan = Plan::default();
        match self.plan(pieces, &mut plan) {
            Ok(()) => {}
            Err(hindrance) => {
                self.unlock(&plan.block_ranges);
                return match hindrance {
                    Hindrance::NotDurable(epoch) => Ok(Outcome::NotDurable(epoch)),
                    Hindrance::Failed(error) => Err(error),
                };
            }
        }
        match self.log(lane, &plan) {
            Ok(Some(links)) => {
                // Non-temporal stores are not ordered with the stores that publish them.
                self.medium.order();
                plan.block_ranges.iter().zip(&links).for_each(|(block_range, &link)| self.publish(block_range, link));
                Ok(Outcome::Done)
            }
            Ok(None) => {
                self.unlock(&plan.block_ranges);
                Ok(Outcome::Full)
            }
            Err(error) => {
                self.unlock(&plan.block_ranges);
                Err(error)
            }
        }
    }

    /// Locks all covers of a write and divides its pieces among them. What is locked when it fails stands in the plan.
    fn plan<'a>(&self, pieces: &[Piece<'a>], plan: &mut Plan<'a>) -> std::result::Result<(), Hindrance> {
        for piece in pieces {
            let (mut offset, mut rest) = (piece.offset, piece.bytes);
            while !rest.is_empty() {
                if plan.block_ranges.last().is_none_or(|last| last.end() <= offset) {
                    let floor = plan.block_ranges.last().map_or(0, |last| last.end() / PAGE);
                    let block_range = self.lock_cover(offset, rest.len() as u64, floor)?;
                    plan.block_ranges.push(block_range);
                }
                let index = plan.block_ranges.len() - 1;
                let block_range = &plan.block_ranges[index];
                let here = rest.len().min((block_range.end() - offset) as usize);
                let (bytes, after) = rest.split_at(here);
                plan.parts.push(Part { block_range: index, extent: block_range.extent(offset, here), bytes });
                offset += here as u64;
                rest = after;
            }
        }
        Ok(())
    }

    /// Stores a planned write, and counts it in. Returns the covers' links, to be published; `None`, with nothing
    /// stored, if the log has no room.
    fn log(&self, lane: &Lane<'_>, plan: &Plan<'_>) -> Result<Option<Vec<super::block_range::Link>>> {
        self.make_space(plan)?;
        // All of them before the first is published, or a reader could see one part of the write and then miss another.
        plan.block_ranges.iter().for_each(|block_range| self.clean.mark_all_dirty(block_range.blocks()));
        let links = if self.logs_undo() { self.log_undo(lane, plan)? } else { self.log_redo(lane, plan)? };
        if links.is_some() {
            lane.state.count_write();
        }
        Ok(links)
    }

    /// Space in the data file for all that is or will be stored there. A full disk refuses the write, and not the
    /// checkpoint of a commit that was acknowledged.
    fn make_space(&self, plan: &Plan<'_>) -> Result<()> {
        for (index, block_range) in plan.block_ranges.iter().enumerate() {
            let parts = plan.parts_of(index).map(|part| part.extent).reduce(Extent::with);
            let hull = match block_range.logged {
                Logged::Nothing => parts,
                Logged::Open(link) => parts.map(|parts| parts.with(self.meta(link).delta())),
            };
            let Some(hull) = hull else { continue };
            let (from, to) = (block_range.start() + u64::from(hull.offset), block_range.start() + u64::from(hull.end));
            let pages = from / PAGE..to.div_ceil(PAGE);
            if self.logs_undo() {
                // The file is stored to before the epoch commits, and a crash brings the old bytes back.
                let sync = || self.data.sync(barriers::EPOCH_SPACE).map_err(|error| self.handle_state.poison(error));
                self.space.claim_durably(&self.data, pages, self.class, sync)?;
            } else {
                self.space.claim(&self.data, pages, self.class)?;
            }
        }
        Ok(())
    }

    /// So many units for a new entry, which is `inline` or has its bytes in them; `None` if the log has no room.
    pub(super) fn take_entry(&self, lane: &Lane<'_>, units: u64, inline: bool) -> Result<Option<u64>> {
        let unit = self.chunks.take(lane.state, &self.side, units, !inline, self.epoch(), self.relax())?;
        // Nothing is said of it until it is whole.
        debug_assert!(unit.is_none_or(|unit| self.chunks.metas[unit as usize].what().is_none()));
        Ok(unit)
    }

    /// Makes room in the log for a write of these pieces: by a checkpoint where one can help, else by a longer log. The
    /// caller holds no lane and no lock.
    #[cold]
    pub(super) fn make_room(&self, pieces: &[Piece<'_>], attempt: u32) -> Result<()> {
        let chunk = self.chunks.units * PAGE;
        // Whatever else the log holds, it can never hold this: it is not made longer for it.
        if pieces.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>() > self.chunks.most() * chunk {
            return Err(self.chunks.full(self.path()));
        }
        // The longest entries fill a chunk each. A shorter piece may lie across two covers of its size, rounded up;
        // and of a chunk with such entries more than half is filled before the next one is begun.
        let (mut whole, mut short) = (0, 0);
        for piece in pieces {
            let len = piece.bytes.len() as u64;
            if len < chunk {
                short += 2 * (PAGE << class_for(len));
            } else {
                whole += (piece.offset + len).div_ceil(chunk) - piece.offset / chunk;
            }
        }
        // Under undo a cover may need more, and others may take what is made: who comes again asks for more.
        let wanted = whole + (2 * short).div_ceil(chunk) + 1 + u64::from(attempt);
        // With fewer chunks than lanes, each would take the others' away.
        let enough = (2 * wanted).max(2 * self.lanes.reach()).min(ENOUGH_CHUNKS);
        let enough = match self.class {
            MediumClass::PersistentMemory => enough,
            MediumClass::Block => enough.max(ENOUGH_UNITS / self.chunks.units),
        };
        let grows_first = self.chunks.total() < enough && !self.chunks.is_at_its_most() && attempt == 0;
        if !grows_first {
            self.free_what_is_durable()?;
        }
        match self.lengthen(wanted) {
            Ok(false) if attempt >= ATTEMPTS_TO_MAKE_ROOM => Err(self.chunks.full(self.path())),
            Ok(_) => Ok(()),
            // On a full disk a checkpoint may make room all the same, and what it made somebody else may have taken.
            // Of a longer log whose flush failed nothing is to be hoped for.
            Err(error) if error.is_for_want_of_space() && self.handle_state.writable().is_ok() => {
                if grows_first {
                    return self.free_what_is_durable();
                }
                let free = self.chunks.ready(self.relax());
                if free > 0 && attempt < ATTEMPTS_ON_A_FULL_DISK { Ok(()) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    /// Frees all of the log that the open epoch does not need.
    fn free_what_is_durable(&self) -> Result<()> {
        // What is committed and not durable yet, because its flush is under way, cannot be taken home.
        self.await_durable(self.epoch() - 1)?;
        // Chunks that other lanes began to fill in earlier epochs become free too.
        self.checkpoint_all_chunks()
    }

    /// Makes the log longer until so many chunks are free, once those that are have their space. False if it may not
    /// become so long.
    fn lengthen(&self, wanted: u64) -> Result<bool> {
        // A cut meanwhile would write a length down that is not durable yet. Of several threads that find no room,
        // one at a time looks again and makes some.
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        while self.chunks.ready(self.relax()) < wanted {
            if self.chunks.furnish_one(&self.side, self.relax())? {
                continue;
            }
            // If it fails, nobody knows what became of the open epoch's bytes, which were to be flushed with it.
            let sync = || self.side.sync(barriers::LOG_GROW).map_err(|error| self.handle_state.poison(error));
            let before = self.side.len();
            match self.chunks.grow(&self.side, &self.sidecar, sync, self.relax()) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.as_long_as(before, error)),
            }
            self.note_log_length(&mut sidecar_state)?;
        }
        Ok(true)
    }

    /// After a growth that failed: no cut may write down a length that nobody has made durable, and what the log got
    /// of the disk is for others. Passes its error on.
    #[cold]
    fn as_long_as(&self, before: u64, error: Error) -> Error {
        if self.side.len() > before
            && self.handle_state.writable().is_ok()
            && let Err(stays) = self.side.set_len(before)
        {
            return self.handle_state.poison(stays);
        }
        error
    }

    /// Reads bytes of a cover as they stand at home; behind the end of the file they are zeros.
    pub(super) fn read_home(&self, block_range: &BlockRange, extent: Extent, dst: &mut [u8]) -> Result<()> {
        let offset = block_range.start() + u64::from(extent.offset);
        let within = (self.data.len().saturating_sub(offset) as usize).min(dst.len());
        let (inside, beyond) = dst.split_at_mut(within);
        beyond.fill(0);
        if inside.is_empty() { Ok(()) } else { self.data.read(offset, inside) }
    }
}
