//! The hybrid-log engine: a log for each block, undo or redo, and epochs (the Libnvmmio paper, §3).
//!
//! The file is divided into blocks of 4 KiB. A write gets one log entry for each aligned power of two of blocks that it
//! touches (a *cover*, as large as the write). Under *redo* the entry holds the new bytes. Reads lay it over the file,
//! and a checkpoint writes it to the file (its *home*) once its epoch has committed. Under *undo* the entry holds the
//! old bytes, and the new ones go to the file at once. A commit advances the file's epoch by storing one record: its
//! cost does not depend on how much was written.
//!
//! # Invariants
//!
//! 1. An entry belongs to one epoch. Its header proves by checksums that header and bytes arrived; the epoch's record
//!    has a digest of the epoch's headers. So entries and record need one fence together, by the committing thread;
//!    every other thread has ordered its own stores before it released its lane. If an entry was written twice within
//!    an epoch on persistent memory, its checksum is void: the epoch is *uncertain*, and has a fence before the record
//!    instead.
//! 2. Recovery believes an epoch if a store after its fence exists, if its record says that everything else was durable
//!    before, or if all checksums match. It takes the longest run of epochs that it believes, and no later one.
//! 3. An epoch's entries are checkpointed only when it is durable. A chunk of the log is reused only when a durable
//!    *cut* says that none of its entries is needed any more. A crash before the cut repeats the checkpoint; a crash
//!    after it does not need the entries.
//! 4. A write to a block whose entry is committed, but not in the file yet, first writes that entry to the file. So a
//!    block never has two entries that a reader or a checkpoint would have to order. A thread that writes an entry to
//!    the file *claims* it first, and all others wait until it is done: old bytes never overwrite new ones.
//! 5. Undo: the bytes that a write replaces are durable in the log before the first store to the file, once in an
//!    epoch. It needs persistent memory: on a block medium the kernel could write the page back before the entry.
//! 6. Before any new write after a crash, recovery makes the outcome durable, and a new session number, which no older
//!    header or record is sealed with, retires everything in one step.
//! 7. The length belongs to the epoch: its record has it.
//! 8. The bytes of an entry have their space in the data file before the entry is stored, and durably before the record
//!    of its epoch (`format::sidecar::space`). So a checkpoint and a recovery take no space of the disk.
//! 9. A block is *clean* only while the file has all of it, none of it belongs to the open epoch, and no thread
//!    stores there. So a reader need look no further (`sync::clean_bits`). Every write marks all blocks of its ranges
//!    dirty, under their locks, before it links an entry or stores to the file. A block becomes clean again under the
//!    lock of its range, when its link names no entry that a reader, a checkpoint or the open epoch needs.
//!
//! # Lock order
//!
//! 1. The gate of a resize.
//! 2. A lane (all lanes: commit, resize).
//! 3. The cut gate.
//! 4. Slots, ascending. A slot's value changes only under its own lock.
//!
//! Reads take no lane: a commit waits for all lanes, and must not wait for a read that waits for other writers. A
//! thread that locks a slot whose value names an entry of a cover that begins elsewhere unlocks it and locks the first
//! slot of that cover, which stands for the whole cover.

mod block_range;
mod capture;
mod checkpoint;
mod chunk_space;
mod chunks;
mod commit;
mod format;
mod index;
mod inline;
mod lanes;
mod locked;
mod meta;
mod open;
mod read;
mod recovery;
mod redo;
mod resize;
mod single;
mod undo;
mod view;
mod workers;
mod write;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use self::chunks::Chunks;
use self::index::Index;
use self::lanes::{LaneState, ReadCount};
use self::recovery::Found;
use self::view::View;
use self::workers::Workers;
use crate::engine::handle_state::HandleState;
use crate::engine::snapshot::{Capture, Captured, PAGE};
use crate::engine::{Close, Engine, EngineKind, Info, Piece, Recovery, Seen, check_range, time_of};
use crate::error::Result;
use crate::format::record::ChecksumSeed;
use crate::format::sidecar::attach::disturbed;
use crate::format::sidecar::data::Pair;
use crate::format::sidecar::data::{grown, take_growth};
use crate::format::sidecar::number::Stamped;
use crate::format::sidecar::space::Space;
use crate::format::sidecar::state::SidecarState;
use crate::options::{Durability, LogPolicy, Options, Order};
use crate::storage::{Barrier, Identity, Medium, MediumClass, MediumFile, SHORT_READ};
use crate::sync::clean_bits::{CleanBits, SequenceCounter};
use crate::sync::group_commit::GroupFlush;
use crate::sync::slots::{ThreadSlot, ThreadSlots};
use crate::sync::word_lock::{WordLock, lock};
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedBox, thread_number};

/// The barriers of this engine.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// An epoch's bytes are durable before a record covers them without a checksum.
        EPOCH_DATA = "hybrid-log.epoch.data";
        /// An epoch's record, and with it all that the record certifies, is durable before the commit is acknowledged.
        EPOCH_RECORD = "hybrid-log.epoch.record";
        /// Bytes stored to the log through the cache are being written back before the epoch's record is stored.
        LOG_LINES = "hybrid-log.lines";
        /// Undo: the bytes that a write replaces are durable in the log before the file is stored to.
        UNDO_ENTRY = "hybrid-log.undo.entry";
        /// Checkpointed bytes are durable in the file before the cut says that the log is not needed for them.
        CHECKPOINT_HOME = "hybrid-log.checkpoint.home";
        /// The cut is durable before a chunk that it retires is overwritten.
        CHECKPOINT_CUT = "hybrid-log.checkpoint.cut";
        /// The log's new length is durable before an entry in it counts.
        LOG_GROW = "hybrid-log.grow";
        /// The space that the epoch's bytes take at home is durable before the epoch's record is stored: a recovery
        /// needs no space that another file could have taken.
        EPOCH_SPACE = "hybrid-log.epoch.space";
        /// The result of recovery is durably in the file before the log it came from is retired.
        RECOVER_HOME = "hybrid-log.recover.home";
        /// A longer data file is durable before a record gives its length.
        RESIZE_GROW = "hybrid-log.resize.grow";
        /// The data file is whole and keeps its times before the superblock says how it was left.
        CLOSE_DATA = "hybrid-log.close.data";
        /// The state "closed cleanly" is durable when close returns.
        CLOSE_STATE = "hybrid-log.close.state";
        /// The sidecar says that it is not needed before the data file loses its mark.
        SETTLE_STATE = "hybrid-log.settle.state";
    }
}

/// Lanes and read counters: more threads than this share some.
const LANES: usize = 16;

type Lane<'a> = ThreadSlot<'a, LaneState>;

/// One of a kind for each open file.
#[derive(Zeroed)]
#[repr(C, align(64))]
struct Head {
    /// Length of the file in bytes, as a program sees it.
    len: AtomicU64,
    /// What a reader of a clean block goes by.
    sequence: SequenceCounter,
    /// Odd while the length changes; grows with each change.
    resizes: AtomicU64,
    /// Held by the thread that changes the length.
    resizing: WordLock,
    /// The open epoch, from 1.
    epoch: AtomicU64,
    /// When the last epoch got its record, in nanoseconds since 1970; 0 if that is not known.
    committed_at: AtomicU64,
    /// 1 while the open epoch logs undo.
    undo: AtomicU64,
    /// Every epoch up to this one is durable.
    durable: AtomicU64,
    /// Length at the last commit.
    committed_len: AtomicU64,
    /// The longest the file was in the open epoch.
    longest: AtomicU64,
    /// 1 if something of a longer past may lie behind the committed length.
    stale_tail: AtomicU64,
    /// Every epoch up to this one is at home.
    checkpoint: AtomicU64,
    /// Held by the thread that checkpoints.
    cutting: WordLock,
    /// Reads that wait for `resizing`. As long as there are any nobody else begins to change the length: turns of
    /// somebody who does nothing else would follow each other so closely that a read finds the gate closed whenever
    /// it looks.
    reads_waiting: AtomicU64,
    /// Shares device flushes.
    group: GroupFlush,
}

/// A file under the hybrid-log engine.
pub(crate) struct HybridLog<M: Medium> {
    workers: Workers,
    core: Arc<Core<M>>,
}

/// What the threads that checkpoint share with the handles.
struct Core<M: Medium> {
    handle_state: HandleState,
    medium: Arc<M>,
    class: MediumClass,
    sidecar: PathBuf,
    data: M::File,
    side: M::File,
    head: ZeroedBox<Head>,
    clean: CleanBits,
    index: Index,
    chunks: Chunks,
    lanes: ThreadSlots<LaneState>,
    reads: ZeroedBox<[ReadCount; LANES]>,
    /// Pages of the data file known to have space.
    space: Space,
    durability: Durability,
    order: Order,
    policy: LogPolicy,
    max_len: u64,
    checksum_seed: ChecksumSeed,
    /// The log may have inline entries, and records among its headers.
    inline: bool,
    /// What is written back at cuts and at close.
    sidecar_state: Mutex<SidecarState>,
    recovery: Recovery,
    /// What a reader finds laid over a file that was not recovered; empty in every other.
    view: View,
    options: Options,
}

/// Reads the log of a file without changing anything.
pub(super) fn look<M: Medium>(medium: Arc<M>, path: &Path, pair: Pair<M::File>, options: &Options) -> Result<Seen> {
    let checkpoint = pair.1.retirement.checkpoint;
    let core = Core::build(medium, path, pair, options)?;
    let found = Found::read(&core)?;
    let held = found.committed.saturating_sub(checkpoint);
    Ok(Seen { len: found.len, commit: found.committed, time: found.time, recovery: found.summary(), held })
}

impl<M: Medium> Core<M> {
    fn relax(&self) -> impl FnMut(u32) + '_ {
        |round| self.medium.relax(round)
    }

    fn path(&self) -> &Path {
        self.handle_state.path()
    }

    fn lane(&self) -> Lane<'_> {
        self.lanes.acquire(self.relax())
    }

    fn len(&self) -> u64 {
        self.head.len.load(Ordering::Acquire)
    }

    fn epoch(&self) -> u64 {
        self.head.epoch.load(Ordering::Acquire)
    }

    fn durable(&self) -> u64 {
        self.head.durable.load(Ordering::Acquire)
    }

    /// The last durable epoch. The time may be that of one which is becoming so.
    fn last_commit(&self) -> Stamped {
        Stamped { number: self.durable(), time: self.head.committed_at.load(Ordering::Relaxed) }
    }

    /// Whether the open epoch logs undo.
    fn logs_undo(&self) -> bool {
        self.head.undo.load(Ordering::Acquire) != 0
    }

    /// Whether entries carry checksums, so that data and record need no fence between them.
    fn certifies(&self) -> bool {
        self.order == Order::OneFence
    }

    /// Counts a read, where the policy depends on it.
    #[inline(always)]
    fn count_read(&self) {
        if self.policy == LogPolicy::Hybrid {
            self.reads[thread_number() % LANES].add();
        }
    }

    /// Makes this thread's stores to the sidecar durable; a failure ends all promises.
    fn fence(&self, barrier: Barrier, files: &[&M::File]) -> Result<()> {
        self.medium.fence(barrier, files).map_err(|error| self.handle_state.poison(error))
    }

    /// Refuses to go on if another program has changed the data file. Both versions stay until the user chooses.
    fn undisturbed(&self) -> Result<()> {
        if !self.options.notice_changes || self.handle_state.writable().is_err() || !self.data.is_disturbed()? {
            return Ok(());
        }
        if self.options.grow_with_file && grown(&self.data)?.is_some() {
            return self.data.begin_own_changes();
        }
        let error = self.handle_state.poison(disturbed(self.path()));
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        if let Err(failed) = sidecar_state.write_disputed(&*self.medium, &self.side, barriers::CLOSE_STATE) {
            tracing::error!(path = %self.path().display(), error = %failed, "cannot note that the file is in dispute; \
                                                                            the next open takes the last commit");
        }
        Err(error)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self.path(), offset, len, self.len()).map_err(|error| self.handle_state.unless_forked(error))
    }
}

impl<M: Medium> Capture for HybridLog<M> {
    fn capture(&self, keep: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<Captured> {
        self.core.capture(keep)
    }

    fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        self.core.data_from(offset)
    }

    fn elsewhere(&self, pages: Range<u64>) -> Option<Range<u64>> {
        self.core.elsewhere(pages)
    }
}

impl<M: Medium> Engine for HybridLog<M> {
    fn path(&self) -> &Path {
        self.core.path()
    }

    fn len(&self) -> u64 {
        self.core.len()
    }

    fn identity(&self) -> Result<Identity> {
        self.core.data.identity()
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        self.core.check(offset, len)
    }

    fn writable(&self) -> Result<()> {
        self.core.handle_state.writable()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.core.read_range(offset, dst)?;
        self.workers.wake_if_due(&self.core);
        Ok(())
    }

    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        let core = &*self.core;
        if dst.len() <= SHORT_READ { core.read_calm(offset, dst) } else { core.read_long_calm(offset, dst) }
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.core.write_pieces(pieces)?;
        self.workers.wake_if_due(&self.core);
        Ok(())
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        self.core.handle_state.writable()?;
        self.core.check(offset, len)?;
        self.core.checkpoint_range(offset, len).map_err(|error| self.core.handle_state.unless_lost(error))
    }

    fn sync(&self) -> Result<u64> {
        if self.core.handle_state.is_read_only() {
            return Ok(self.core.durable());
        }
        self.core.handle_state.writable()?;
        self.core.undisturbed()?;
        // What is due now the next call finds out: to wake a thread would take longer than the commit.
        self.core.commit().map_err(|error| self.core.handle_state.unless_lost(error))?;
        Ok(self.core.durable())
    }

    fn resize(&self, len: u64) -> Result<()> {
        self.core.change_len(len).map_err(|error| self.core.handle_state.unless_lost(error))
    }

    fn take_growth(&self) -> Result<Option<u64>> {
        if self.core.handle_state.is_read_only() {
            return Ok(None);
        }
        self.core.handle_state.writable()?;
        // Not while a change of the length is under way here.
        let _resizing = self.core.lock_resizing();
        take_growth(&self.core.data)
    }

    fn reclaim(&self) -> Result<u64> {
        self.core.handle_state.writable()?;
        let core = &self.core;
        let reclaimed = core.checkpoint_all_chunks().and_then(|()| core.chunks.punched(&core.side, core.relax()));
        reclaimed.map_err(|error| core.handle_state.unless_lost(error))
    }

    fn resize_commits(&self) -> bool {
        false
    }

    fn last_commit(&self) -> Stamped {
        self.core.last_commit()
    }

    fn info(&self) -> Info {
        let core = &self.core;
        let (mut reflected_pages, mut reflected_slices) = core.view.extent();
        core.each_linked(|extent| {
            let pages = u64::from(extent.end).div_ceil(4096) - u64::from(extent.offset) / 4096;
            reflected_pages += pages;
            reflected_slices += u64::from(extent.end).div_ceil(64) - u64::from(extent.offset) / 64;
        });
        Info {
            engine: EngineKind::HybridLog,
            len: core.len(),
            commit: core.durable(),
            committed: time_of(core.last_commit().time),
            durability: core.durability,
            layout: None,
            sidecar: Some(core.sidecar.clone()),
            reflected_pages,
            reflected_slices,
            recovery: core.recovery,
        }
    }

    fn accepts(&self, options: &Options) -> bool {
        let core = &self.core;
        matches!(options.engine, EngineKind::Auto | EngineKind::HybridLog)
            && options.read_only == core.handle_state.is_read_only()
            && options.durability.is_none_or(|durability| durability == core.durability)
    }

    fn close(&self, how: Close) -> Result<()> {
        self.workers.stop();
        if !self.core.handle_state.is_read_only() {
            // A checkpoint in the background may have come upon a flush that failed since the last sync.
            self.core.handle_state.writable()?;
        }
        self.core.undisturbed()?;
        self.core.let_go(how)
    }

    fn settle(&self) -> Result<()> {
        self.workers.stop();
        self.core.undisturbed()?;
        self.core.settle_all()
    }
}

impl<M: Medium> Drop for HybridLog<M> {
    fn drop(&mut self) {
        self.workers.stop();
        if let Err(error) = self.core.undisturbed().and_then(|()| self.core.let_go(Close::AsAsked)) {
            // Nobody is left to return it to; the next open recovers.
            tracing::warn!(path = %self.core.path().display(), %error, "cannot close the file cleanly; the next open \
                                                                        recovers it");
        }
    }
}
