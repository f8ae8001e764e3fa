//! Checkpoints: they write committed bytes to the data file, and free the log.

use super::block_range::Link;
use super::format::Kind;
use super::index::Index;
use super::meta::{Claim, Extent};
use super::{Core, Lane, barriers};
use crate::error::Result;
use crate::format::record::LINE;
use crate::format::sidecar::PAGE;
use crate::format::sidecar::state::SidecarState;
use crate::storage::{Medium, MediumFile};
use crate::sync::word_lock::lock;
use crate::sys::sync::Ordering;

/// Covers whose bytes are on their way home at once: what they stored is ordered once for all of them.
const BATCH: usize = 32;

/// Bytes carried home in one piece.
const PIECE: usize = 64 << 10;

/// Lines of an entry that are fetched before the entries ahead of it are done with.
const AHEAD: u32 = 16;

/// What bytes are carried in.
pub(super) struct Image(Vec<u8>);

impl Image {
    pub(super) fn new() -> Self {
        Image(vec![0; PIECE])
    }
}

impl<M: Medium> Core<M> {
    /// Copies the bytes of an entry to where they belong. The caller has claimed it, and its epoch is durable.
    pub(super) fn carry_home(&self, link: Link) -> Result<()> {
        let delta = self.meta(link).delta();
        let mut image = vec![0; (delta.len() as usize).min(PIECE)];
        self.carry(link, &mut image)
    }

    /// The same, by way of a buffer that is not empty.
    fn carry(&self, link: Link, image: &mut [u8]) -> Result<()> {
        let meta = self.meta(link);
        let delta = meta.delta();
        let inline = meta.is_inline();
        let to = meta.block.load(Ordering::Acquire) * PAGE + u64::from(delta.offset);
        // What lies behind the end of the file was cut off, and is nobody's.
        let len = u64::from(delta.len()).min(self.data.len().saturating_sub(to));
        let mut done = 0;
        while done < len {
            let here = (len - done).min(image.len() as u64);
            let piece = &mut image[..here as usize];
            self.read_logged(link.unit(), inline, delta, done, piece)?;
            self.data.write(to + done, piece)?;
            done += here;
        }
        Ok(())
    }

    /// Takes everything home that is durable, and gives its space in the log free, that of chunks which lanes have
    /// begun to fill too. The caller holds no lane.
    pub(super) fn checkpoint_all_chunks(&self) -> Result<()> {
        self.lanes.acquire_all(self.relax()).iter().for_each(|lane: &Lane<'_>| self.chunks.let_go(lane.state));
        self.checkpoint()
    }

    /// Takes everything home that is durable, and gives its space in the log free.
    pub(super) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_telling(|_, _| ())
    }

    /// The same, and calls `tell` with the number of chunks that are done, and of all.
    pub(super) fn checkpoint_telling(&self, tell: impl Fn(u64, u64)) -> Result<()> {
        let _cutting = self.head.cutting.lock(self.relax());
        self.handle_state.writable()?;
        let upto = self.durable();
        if upto == self.head.checkpoint.load(Ordering::Relaxed) {
            // Chunks that lanes filled at the last cut, and that they have let go of since, are free by that cut.
            self.chunks.free_below(upto, self.relax());
            return Ok(());
        }
        let mut image = Image::new();
        let used: Vec<u64> = (0..self.chunks.total()).filter(|&chunk| self.chunks.used(chunk) > 0).collect();
        for (done, &chunk) in (0..).zip(&used) {
            tell(done, used.len() as u64);
            self.carry_chunk_home(chunk, upto, &mut image)?;
        }
        tell(used.len() as u64, used.len() as u64);
        self.retire(upto)
    }

    /// Takes home the entries of a chunk whose epoch is `upto` or before. No lock is taken but a claim on each entry,
    /// and no slot is looked at.
    pub(super) fn carry_chunk_home(&self, chunk: u64, upto: u64, image: &mut Image) -> Result<()> {
        let mut batch: Vec<Link> = Vec::with_capacity(BATCH);
        let mut others: Vec<Link> = Vec::new();
        let first = chunk * self.chunks.units;
        let mut unit = first;
        while unit < first + self.chunks.used(chunk) {
            let meta = &self.chunks.metas[unit as usize];
            let here = unit;
            let Some((kind, class)) = meta.what() else {
                unit += 1;
                continue;
            };
            unit += 1 << class;
            if kind == Kind::Undo || meta.epoch.load(Ordering::Acquire) > upto {
                continue;
            }
            let link = self.redo_link(here, class);
            match meta.claim(link) {
                Claim::Mine => batch.push(link),
                Claim::Others => others.push(link),
                Claim::Done => {}
            }
            if batch.len() == BATCH {
                self.carry_batch(&mut batch, image)?;
            }
        }
        self.carry_batch(&mut batch, image)?;
        // Those that a writer has in hand, who needs nothing of this thread.
        others.into_iter().try_for_each(|link| self.take_home(link))
    }

    /// Carries claimed entries home, one after the other with no locked instruction in between.
    fn carry_batch(&self, batch: &mut Vec<Link>, image: &mut Image) -> Result<()> {
        for &link in &*batch {
            let meta = self.meta(link);
            let delta = meta.delta();
            let offset = u64::from(delta.offset);
            for line in 0..delta.len().div_ceil(LINE as u32).min(AHEAD) {
                self.side.prefetch(self.chunks.bytes_at(link.unit()) + offset + u64::from(line) * LINE);
            }
            // Another line of the page: a streaming store over a cached line takes longer.
            self.data.prefetch(meta.block.load(Ordering::Relaxed) * PAGE + (offset + PAGE / 2) % PAGE);
        }
        let mut outcome = Ok(());
        let mut carried = 0;
        while carried < batch.len() && outcome.is_ok() {
            outcome = self.carry(batch[carried], &mut image.0);
            carried += usize::from(outcome.is_ok());
        }
        // The bytes are visible at home before anybody can find that they are there.
        self.medium.order();
        for (index, link) in batch.drain(..).enumerate() {
            self.meta(link).settle(index < carried);
        }
        outcome
    }

    /// Says, durably, that everything up to an epoch is at home, and frees the chunks that need not be kept for it. The
    /// caller holds the cut gate.
    pub(super) fn retire(&self, upto: u64) -> Result<()> {
        self.fence(barriers::CHECKPOINT_HOME, &[&self.data])?;
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        sidecar_state.retirement.checkpoint = upto;
        sidecar_state.retirement.time = self.head.committed_at.load(Ordering::Relaxed);
        // That of an epoch up to the cut, or of one behind it whose record then gives it again.
        sidecar_state.retirement.len = self.head.committed_len.load(Ordering::Acquire);
        sidecar_state.write_checkpoint(&self.side).map_err(|error| self.handle_state.poison(error))?;
        // Nobody writes the other copy before this one is durable: a power cut could tear both.
        self.fence(barriers::CHECKPOINT_CUT, &[&self.side])?;
        drop(sidecar_state);
        self.head.checkpoint.store(upto, Ordering::Release);
        self.chunks.free_below(upto, self.relax());
        Ok(())
    }

    /// Writes down, durably, how long the log is now, so that one that was cut off is noticed. Its new length is
    /// durable.
    pub(super) fn note_log_length(&self, sidecar_state: &mut SidecarState) -> Result<()> {
        sidecar_state.write_checkpoint(&self.side).map_err(|error| self.handle_state.poison(error))?;
        self.fence(barriers::LOG_GROW, &[&self.side])
    }

    /// Takes home what is durable of a range, and lets what is home count as clean.
    pub(super) fn checkpoint_range(&self, offset: u64, len: u64) -> Result<()> {
        let (mut block, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
        while block < end {
            let Some(slot) = self.index.get(block) else {
                block = Index::leaf_end(block);
                continue;
            };
            let link = Link(slot.bitmap());
            let head = link.head(block);
            if link.is_redo() {
                self.checkpoint_block_range(head, link)?;
                block = head + (1 << link.class());
            } else {
                // Undo has left it at home already; without this its next read would pay for finding out.
                self.try_to_calm(block, self.slot(head)?, link);
                block += 1;
            }
        }
        Ok(())
    }

    fn checkpoint_block_range(&self, head: u64, link: Link) -> Result<()> {
        // Until it is unlinked the entry stays what it is, and a lane keeps its epoch from ending.
        let lane = self.lane();
        let slot = self.slot(head)?;
        slot.lock(false, self.relax());
        let live = self.live(link, head);
        if slot.bitmap() != link.0 || live.is_some_and(|(_, epoch)| epoch > self.durable()) {
            slot.unlock();
            return Ok(());
        }
        let at_home = if live.is_some() { self.take_home(link) } else { Ok(()) };
        // A write that failed may have left there what nobody is to see.
        if let Err(error) = at_home.and_then(|()| self.handle_state.readable()) {
            slot.unlock();
            return Err(error);
        }
        // So that reads look no further than the bit, and writes no further than the slot.
        self.clean.mark_clean(head..head + (1 << link.class()), &self.head.sequence);
        self.dissolve(head, link)?;
        drop(lane);
        Ok(())
    }

    /// Calls `each` with the bytes of every entry that reads must look at.
    pub(super) fn each_linked(&self, mut each: impl FnMut(Extent)) {
        for chunk in 0..self.chunks.total() {
            let first = chunk * self.chunks.units;
            for unit in first..first + self.chunks.used(chunk) {
                let meta = &self.chunks.metas[unit as usize];
                if meta.is_live() {
                    each(meta.delta());
                }
            }
        }
    }
}
