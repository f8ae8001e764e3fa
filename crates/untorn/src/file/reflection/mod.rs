//! The reflection engine: atomic but lazy updating (the Acumen paper, §IV).
//!
//! Beside each page of the data file stands a *reflection page* in the sidecar, and a bitmap says for each 64-byte
//! slice which of the two holds it. A write goes to the copy that is invalid now, so it destroys nothing; flipping
//! the bits commits it. Data is written once. The engine `shadow`, which copies whole pages, is the same code with
//! another [unit].
//!
//! # What makes it sound
//! The paper orders data before bitmap with a fence and uses hardware transactional memory for several pages. Here each
//! commit instead stores a self-certifying record ([`crate::format::record`]) and needs one fence, on any CPU, over any
//! number of pages:
//! 1. Under a lane and the locks of its pages (ascending), a write takes a number above those of its lane and pages,
//!    fills the invalid copies, stores the record, fences, and only then publishes the bitmaps: durable before visible.
//! 2. Recovery takes a record for *certain* if a later record of its lane or of one of its pages exists (that one was
//!    stored after this one's fence), and verifies any other against its data; what fails is dropped whole.
//! 3. Before anything new is written after a crash, the outcome is made durable and all older records are retired in
//!    one step, by a new session number that their seals do not match.
//! 4. Records are given up by a *cut* of all lanes together, after every bitmap they changed is durable.
//! 5. Deploying slices into the data file is a write like any other.
//! 6. In per-commit mode a page has two bitmaps, of the last commit and of now; slices written since the commit stay in
//!    the copy that is invalid in the last commit.

mod ahead;
pub(crate) mod background;
mod capture;
mod checkpoint;
mod commit;
mod deploy;
mod epoch;
mod finish;
mod layout;
mod open;
mod read;
mod recovery;
mod resize;
mod single;
mod slices;
mod state;
mod store;
mod unit;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::ahead::Ahead;
use self::layout::Places;
use self::state::State;
use self::unit::CopyUnit;
use crate::engine::handle_state::HandleState;
use crate::engine::{Close, Engine, EngineKind, Info, Piece, Recovery, Seen, check_range, time_of};
use crate::error::{Error, Result};
use crate::format::lane::{Lane, Lanes};
use crate::format::record::ChecksumSeed;
use crate::format::sidecar::Geometry;
use crate::format::sidecar::attach::disturbed;
use crate::format::sidecar::data::{Pair, grown, take_growth};
use crate::format::sidecar::number::Stamped;
use crate::format::sidecar::space::Space;
use crate::format::sidecar::state::SidecarState;
use crate::options::{Durability, Layout, Options, Order, ReadPolicy};
use crate::storage::{Barrier, Identity, Medium, MediumClass, MediumFile, SHORT_READ};
use crate::sync::word_lock::lock;

/// The barriers of this engine.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// One-fence order: data and record are durable before the write is visible or acknowledged.
        WRITE = "reflection.write";
        /// Two-fence order: the data is durable before a record covers it without a checksum.
        WRITE_DATA = "reflection.write.data";
        /// Two-fence order: the record is durable before the write is visible or acknowledged.
        WRITE_RECORD = "reflection.write.record";
        /// An epoch's data is durable before a record covers it without a checksum.
        EPOCH_DATA = "reflection.epoch.data";
        /// An epoch's record (on a block medium, its data too) is durable before the commit is acknowledged.
        EPOCH_RECORD = "reflection.epoch.record";
        /// The space for an epoch's slices at home, and for their bitmaps, is durable before the epoch's record is
        /// stored: recovery and deploying take no space that another file could have taken.
        EPOCH_SPACE = "reflection.epoch.space";
        /// The same for a write that is a commit by itself.
        WRITE_SPACE = "reflection.write.space";
        /// The bitmaps are durable before the records that changed them are dropped.
        CUT_BITMAPS = "reflection.cut.bitmaps";
        /// The checkpoint is durable before the slots of retired records are used again.
        CUT_LINE = "reflection.cut.line";
        /// The result of recovery is durable before the records it came from are retired.
        RECOVER_BITMAPS = "reflection.recover.bitmaps";
        /// A longer data file and sidecar are durable before a record has the new length.
        RESIZE_GROW = "reflection.resize.grow";
        /// A longer sparse sidecar is durable before a record names a slot in it.
        SPARSE_GROW = "reflection.sparse.grow";
        /// A slot's old entry is gone before the slot, or the page, is reused: otherwise two slots could name one page.
        SPARSE_ERASE = "reflection.sparse.erase";
        /// The spill file's name and length are durable before a record refers to it.
        SPILL_NAME = "reflection.spill.name";
        /// A check: only a page goes home ahead whose bitmap is the committed one. Of any other page the copies at home
        /// that are stored to may be those of the last commit.
        AHEAD_COMMITTED = "reflection.ahead.committed";
        /// A check: closing leaves out only a page that still has the version at which it went home ahead. Any other
        /// page has slices in the sidecar alone, which is about to be removed.
        AHEAD_CURRENT = "reflection.ahead.current";
        /// A sidecar that stays and holds nothing: its bitmaps are 0 before the superblock says "closed cleanly" with
        /// the digest of no slice. A crash in between would leave one that contradicts itself.
        CLOSE_BITMAPS = "reflection.close.bitmaps";
        /// The data file is whole and keeps its times before the superblock says how it was left.
        CLOSE_DATA = "reflection.close.data";
        /// The state "closed cleanly" is durable when close returns.
        CLOSE_STATE = "reflection.close.state";
        /// Everything is in the data file before the sidecar says so.
        SETTLE_DATA = "reflection.settle.data";
        /// The sidecar says that it is not needed before the data file loses its mark.
        SETTLE_STATE = "reflection.settle.state";
    }
}

/// A file under the reflection engine.
pub(crate) struct Reflection<M: Medium> {
    medium: Arc<M>,
    class: MediumClass,
    path: PathBuf,
    sidecar: PathBuf,
    data: M::File,
    side: M::File,
    layout: Layout,
    unit: CopyUnit,
    geometry: Geometry,
    lanes: Lanes,
    places: Places,
    /// Pages of the data file and of the sidecar known to have space.
    data_space: Space,
    side_space: Space,
    state: State,
    ahead: Ahead,
    durability: Durability,
    order: Order,
    read_policy: ReadPolicy,
    handle_state: HandleState,
    max_len: u64,
    checksum_seed: ChecksumSeed,
    /// What is written back at cuts and at close.
    sidecar_state: std::sync::Mutex<SidecarState>,
    recovery: Recovery,
    /// When the last commit was made before the file was opened, in nanoseconds since 1970. After a crash it is the
    /// time when the sidecar was last changed, for records have none.
    recovered_time: u64,
    /// Pages whose bitmaps recovery changed in memory and has yet to make durable.
    changed: Vec<u64>,
    options: Options,
}

/// Replays the records of a file in memory only.
pub(super) fn look<M: Medium>(medium: Arc<M>, path: &Path, pair: Pair<M::File>, options: &Options) -> Result<Seen> {
    let engine = Reflection::build(medium, path, pair, options)?;
    engine.check_recovered()?;
    let (commit, info) = (engine.commit_number(), engine.info());
    // Slices go home without a note of the commits that they were of.
    let held = if info.reflected_pages == 0 { 0 } else { commit };
    Ok(Seen { len: info.len, commit, time: engine.commit_time(), recovery: engine.recovery, held })
}

impl<M: Medium> Reflection<M> {
    fn relax(&self) -> impl FnMut(u32) + '_ {
        |round| self.medium.relax(round)
    }

    /// A lane with room for a record of this many lines, cutting if there is none.
    #[inline]
    fn lane(&self, lines: u64) -> Result<Lane<'_>> {
        let lane = self.lanes.acquire(self.relax());
        if self.lanes.free(&lane) >= lines { Ok(lane) } else { self.lane_after_checkpoint(lane, lines) }
    }

    #[cold]
    fn lane_after_checkpoint<'a>(&'a self, mut lane: Lane<'a>, lines: u64) -> Result<Lane<'a>> {
        while self.lanes.free(&lane) < lines {
            drop(lane);
            self.checkpoint()?;
            lane = self.lanes.acquire(self.relax());
        }
        Ok(lane)
    }

    /// Whether pages may go home ahead.
    pub(crate) fn deploys_ahead(&self) -> bool {
        self.ahead.is_wanted()
    }

    /// Makes all stores so far durable; on a block medium in a flush round shared by the threads that wait for one.
    #[inline]
    fn fence(&self, barrier: Barrier) -> Result<()> {
        let fence = || self.medium.fence(barrier, &[&self.data, &self.side]);
        match self.class {
            MediumClass::PersistentMemory => fence(),
            MediumClass::Block => self.state.head().group.flush(self.relax(), fence),
        }
    }

    /// Whether an epoch's record carries a checksum over its data instead of following it behind a fence.
    fn certifies_epochs(&self) -> bool {
        self.class == MediumClass::Block && self.order == Order::OneFence
    }

    #[inline]
    fn writable(&self) -> Result<()> {
        self.handle_state.writable()
    }

    /// Ends all promises; see [`HandleState::poison`].
    #[cold]
    fn poison(&self, error: Error) -> Error {
        self.handle_state.poison(error)
    }

    /// The error of a call, which ends all promises if it comes from a lost page. Reads and writes ask where they fail,
    /// so that those which do not fail need not wait for the answer.
    #[cold]
    fn unless_lost(&self, error: Error) -> Error {
        self.handle_state.unless_lost(error)
    }

    /// Refuses to go on if another program has changed the data file. Both versions stay until the user chooses.
    fn undisturbed(&self) -> Result<()> {
        if !self.options.notice_changes || self.writable().is_err() || !self.data.is_disturbed()? {
            return Ok(());
        }
        if self.options.grow_with_file && grown(&self.data)?.is_some() {
            return self.data.begin_own_changes();
        }
        let error = self.poison(disturbed(&self.path));
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        if let Err(failed) = sidecar_state.write_disputed(&*self.medium, &self.side, barriers::CLOSE_STATE) {
            tracing::error!(path = %self.path.display(), error = %failed, "cannot note that the file is in dispute; \
                                                                          the next open takes the last commit");
        }
        Err(error)
    }

    /// The bitmap of a page at the last commit. Stable while no commit of the page is under way.
    fn committed_bitmap(&self, page: u64) -> u64 {
        match self.durability {
            Durability::PerWrite => self.state.pages[page as usize].bitmap(),
            Durability::PerCommit => self.state.epochs[page as usize].committed.load(Ordering::Acquire),
        }
    }

    fn commit_number(&self) -> u64 {
        self.lanes.last().max(self.state.head().floor.load(Ordering::Acquire))
    }

    /// When the last commit was made, in nanoseconds since 1970; 0 if that is not known.
    fn commit_time(&self) -> u64 {
        self.lanes.last_time().max(self.recovered_time)
    }
}

impl<M: Medium> Engine for Reflection<M> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.state.head().len.load(Ordering::Acquire)
    }

    fn identity(&self) -> Result<Identity> {
        self.data.identity()
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        // A forked child sees a length of 0; it must be told why.
        check_range(&self.path, offset, len, Engine::len(self)).map_err(|error| self.handle_state.unless_forked(error))
    }

    fn writable(&self) -> Result<()> {
        self.handle_state.writable()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.read_range(offset, dst)
    }

    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        if dst.len() <= SHORT_READ { self.read_calm(offset, dst) } else { self.read_long_calm(offset, dst) }
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.write_pieces(pieces)
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        self.deploy_range(offset, len).map_err(|error| self.unless_lost(error))
    }

    fn sync(&self) -> Result<u64> {
        if self.handle_state.is_read_only() {
            return Ok(self.commit_number());
        }
        self.writable()?;
        self.undisturbed()?;
        if self.durability == Durability::PerCommit {
            self.commit_epoch().map_err(|error| self.unless_lost(error))?;
        }
        Ok(self.commit_number())
    }

    fn resize(&self, len: u64) -> Result<()> {
        self.change_len(len).map_err(|error| self.unless_lost(error))
    }

    fn take_growth(&self) -> Result<Option<u64>> {
        if self.handle_state.is_read_only() {
            return Ok(None);
        }
        self.writable()?;
        // Not while a change of the length is under way here.
        let _committing = self.state.head().commit.lock(self.relax());
        take_growth(&self.data)
    }

    fn reclaim(&self) -> Result<u64> {
        self.reclaim_space().map_err(|error| self.unless_lost(error))
    }

    fn number_above(&self, number: u64) {
        let head = self.state.head();
        // As for a snapshot: what frees pages goes by the floor, and holds the gate.
        let _committing = head.commit.lock(self.relax());
        let lanes = self.lanes.acquire_all(self.relax());
        head.floor.fetch_max(number, Ordering::AcqRel);
        drop(lanes);
    }

    fn last_commit(&self) -> Stamped {
        Stamped { number: self.commit_number(), time: self.commit_time() }
    }

    fn info(&self) -> Info {
        let (mut reflected_pages, mut reflected_slices) = (0, 0);
        let counted = self.places.walk(&self.side, self.state.count(), |page, _| {
            let bitmap = self.state.pages[page as usize].bitmap();
            reflected_pages += u64::from(bitmap != 0);
            reflected_slices += u64::from(bitmap.count_ones());
        });
        if let Err(error) = counted {
            tracing::warn!(path = %self.path.display(), %error, "cannot count the reflected pages");
        }
        Info {
            engine: self.unit.engine(),
            len: Engine::len(self),
            commit: self.commit_number(),
            committed: time_of(self.commit_time()),
            durability: self.durability,
            layout: Some(self.layout),
            sidecar: Some(self.sidecar.clone()),
            reflected_pages,
            reflected_slices,
            recovery: self.recovery,
        }
    }

    fn in_sidecar_page(&self, page: u64) -> Option<u64> {
        let has_slices = self.state.pages.get(page as usize).is_some_and(|state| state.bitmap() != 0);
        if has_slices { self.places.reflection(page) } else { None }
    }

    fn accepts(&self, options: &Options) -> bool {
        ([EngineKind::Auto, self.unit.engine()].contains(&options.engine) || options.read_only)
            && options.engine != EngineKind::Passthrough
            && options.read_only == self.handle_state.is_read_only()
            && options.durability.is_none_or(|durability| durability == self.durability)
    }

    fn close(&self, how: Close) -> Result<()> {
        self.undisturbed()?;
        self.let_go(how)
    }

    fn settle(&self) -> Result<()> {
        self.undisturbed()?;
        self.settle_all()
    }
}

impl<M: Medium> Drop for Reflection<M> {
    fn drop(&mut self) {
        if let Err(error) = self.undisturbed().and_then(|()| self.let_go(Close::AsAsked)) {
            // Nobody is left to return it to; the next open recovers.
            tracing::warn!(path = %self.path.display(), %error, "cannot close the file cleanly; the next open recovers \
                                                                 it");
        }
    }
}
