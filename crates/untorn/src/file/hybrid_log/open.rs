//! Opening: attach the sidecar, recover, and say "open" before the first store. Closing, and settling.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::chunk_space::{chunk_len, written_len};
use super::chunks::Chunks;
use super::index::Index;
use super::recovery::Found;
use super::view::View;
use super::workers::Workers;
use super::{Core, HybridLog, LANES, barriers};
use crate::engine::Close;
use crate::engine::handle_state::HandleState;
use crate::error::{Error, Result};
use crate::format::record::ChecksumSeed;
use crate::format::sidecar::attach::{Attached, Plan, remove};
use crate::format::sidecar::data::{Pair, open_pair, open_pair_to_read, restore_len};
use crate::format::sidecar::space::Space;
use crate::format::sidecar::state::SidecarState;
use crate::format::sidecar::superblock::Left;
use crate::format::sidecar::{Geometry, PAGE, number};
use crate::options::{Durability, EngineKind, Layout, LogPolicy, Options};
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sync::clean_bits::CleanBits;
use crate::sync::slots::ThreadSlots;
use crate::sync::word_lock::lock;
use crate::sys::sync::{Ordering, ZeroedBox};

/// The most units a chunk has, 2 MiB, and so the longest entry.
const MOST_UNITS: u32 = 512;

/// The fewest units that a chunk has on a block medium, unless an option asks for fewer.
const FEWEST_UNITS: u32 = 32;

/// The units of a chunk in the log of a file of `len` bytes. On a block medium, where the pages of a chunk are written
/// with zeros before their first use, they are as many as the file has pages: the first commit to a small file writes
/// little.
fn units_for(class: MediumClass, len: u64) -> u32 {
    match class {
        MediumClass::PersistentMemory => MOST_UNITS,
        MediumClass::Block => {
            let pages = len.div_ceil(PAGE).clamp(u64::from(FEWEST_UNITS), u64::from(MOST_UNITS));
            (pages as u32).next_power_of_two()
        }
    }
}

/// Where the chunks begin at the latest.
const MAX_RECORD_AREA: u64 = 64 << 10;

/// Blocks of a file of `len` bytes, to the end of the last leaf: no block range goes beyond that.
fn blocks_of(len: u64) -> u64 {
    len.div_ceil(PAGE).next_multiple_of(Index::FAN)
}

impl<M: Medium> HybridLog<M> {
    pub(crate) fn open(medium: Arc<M>, path: &Path, options: &Options) -> Result<Self> {
        if medium.class() == MediumClass::Block && options.log_policy == LogPolicy::Undo {
            let what = "undo logging needs persistent memory: on a block medium the kernel may write pages of the file \
                        back before the log that undoes them; use the logging policy redo or hybrid";
            return Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() });
        }
        let plan = |len| {
            // One lane's worth of lines is one chunk's worth of headers: the same record area, read in another way.
            let geometry = Geometry { lanes: 1, slots: options.slots.min(units_for(medium.class(), len)) };
            Plan {
                engine: EngineKind::HybridLog,
                layout: Layout::Dense,
                durability: options.durability.unwrap_or(Durability::PerCommit),
                geometry,
                inline: medium.class() == MediumClass::Block,
                len: geometry.chunks_at(),
                // The last chunk may go beyond the size of the log, and there are at least two; how large those of an
                // existing sidecar are is not known yet.
                reserve: MAX_RECORD_AREA + options.log_size + 2 * chunk_len(u64::from(MOST_UNITS)),
            }
        };
        let pair = open_pair(&*medium, path, options, plan)?;
        // Before anything of the log goes home.
        let next = options.exclusion.as_ref().map_or(Ok(1), |exclusion| {
            exclusion.take_over_session(&pair.1.superblock.uuid, pair.1.retirement.session)
        })?;
        let mut core = Core::build(medium, path, pair, options)?;
        let found = Found::read(&core)?;
        core.recover(&found, next)?;
        // Only now: a file whose opening fails must not be closed "cleanly" on the way out.
        core.handle_state.accept_writes();
        Ok(HybridLog { workers: Workers::new(options.checkpoint_threads), core: Arc::new(core) })
    }

    /// Opens a file at its last commit, changing nothing, however it was left; `None` if it is a plain file.
    pub(crate) fn open_for_reading(medium: Arc<M>, path: &Path, options: &Options) -> Result<Option<Self>> {
        let Some(pair) = open_pair_to_read(&*medium, path, options)? else { return Ok(None) };
        let was_closed = pair.1.superblock.left == Left::Clean;
        let mut core = Core::build(medium, path, pair, options)?;
        if !was_closed {
            Self::view_last_commit(&mut core)?;
        }
        Ok(Some(HybridLog { workers: Workers::new(0), core: Arc::new(core) }))
    }
}

impl<M: Medium> Core<M> {
    /// Puts the engine together, with nothing in the log. Writes nothing.
    pub(super) fn build(medium: Arc<M>, path: &Path, pair: Pair<M::File>, options: &Options) -> Result<Self> {
        let (data, attached) = pair;
        let Attached { side, path: sidecar, superblock, retirement } = attached.with_length(&data)?;
        let at = superblock.geometry.chunks_at();
        let Geometry { lanes, slots } = superblock.geometry;
        if lanes != 1 || slots > MOST_UNITS {
            let must = format!("it must be one area of at most {MOST_UNITS} units");
            let what = format!("the superblock names {lanes} chunk areas of {slots} units; {must}");
            return Err(Error::Corrupt { path: sidecar, offset: None, what });
        }
        let (class, units) = (medium.class(), u64::from(superblock.geometry.slots));
        let max_len = options.reserve(retirement.len.max(data.len()));
        let out_of_memory = |error| Error::io("reserve memory for", path, error);
        let head: ZeroedBox<super::Head> = ZeroedBox::new().map_err(out_of_memory)?;
        head.len.store(retirement.len, Ordering::Relaxed);
        head.committed_len.store(retirement.len, Ordering::Relaxed);
        head.longest.store(retirement.len, Ordering::Relaxed);
        head.durable.store(retirement.checkpoint, Ordering::Relaxed);
        head.checkpoint.store(retirement.checkpoint, Ordering::Relaxed);
        head.epoch.store(retirement.checkpoint + 1, Ordering::Relaxed);
        head.committed_at.store(retirement.time, Ordering::Relaxed);
        let undo = class == MediumClass::PersistentMemory && options.log_policy != LogPolicy::Redo;
        head.undo.store(u64::from(undo), Ordering::Relaxed);
        let blocks = blocks_of(retirement.len.max(data.len()));
        Ok(Core {
            handle_state: HandleState::new(path, options.read_only).map_err(out_of_memory)?,
            clean: CleanBits::new(blocks).map_err(out_of_memory)?,
            index: Index::new(blocks).map_err(out_of_memory)?,
            chunks: Chunks::new(class, at, units, written_len(&side, at, units), options.log_size)
                .map_err(out_of_memory)?,
            lanes: ThreadSlots::new(LANES).map_err(out_of_memory)?,
            reads: ZeroedBox::new().map_err(out_of_memory)?,
            space: Space::new(blocks).map_err(out_of_memory)?,
            durability: options.durability.unwrap_or(superblock.durability),
            order: options.order,
            policy: options.log_policy,
            checksum_seed: ChecksumSeed::new(&superblock.uuid, retirement.session),
            inline: superblock.inline,
            sidecar_state: Mutex::new(SidecarState { superblock, retirement, closed: false }),
            recovery: crate::engine::Recovery::default(),
            view: View::default(),
            options: options.clone(),
            medium,
            class,
            sidecar,
            data,
            side,
            head,
            max_len,
        })
    }

    /// Brings the file to the last epoch that is whole, durably, retires everything else in one step, and says "open":
    /// from here on stores may follow. The number of the new session is higher by `next`.
    fn recover(&mut self, found: &Found, next: u64) -> Result<()> {
        self.recovery = found.summary();
        let len = found.len;
        // Before the first store: a file that is refused stays as it is.
        restore_len(&self.data, self.path(), len, &self.options)?;
        self.fit(len)?;
        self.apply(found)?;
        self.medium.fence(barriers::RECOVER_HOME, &[&self.data])?;
        let sidecar_state = self.sidecar_state.get_mut().unwrap_or_else(PoisonError::into_inner);
        sidecar_state.retirement.len = len;
        sidecar_state.retirement.checkpoint = found.committed;
        sidecar_state.retirement.time = found.time;
        sidecar_state.retirement.session += next - 1;
        self.checksum_seed = sidecar_state.start_session(&*self.medium, &self.data, &self.side)?;
        if self.data.len() > len {
            // A growth that did not commit, or a shrink that did. Not before the log is retired: under undo what is
            // cut off may be what proves that the epoch is whole. Until the next sync of the file a crash may bring
            // the old length back, and the next recovery comes by here again.
            let pages = len.div_ceil(PAGE)..self.data.len().div_ceil(PAGE);
            self.data.set_len(len)?;
            // What was allocated there to be recovered into is gone.
            pages.for_each(|page| self.space.forget(page * PAGE));
        }
        for (word, value) in [
            (&self.head.len, len),
            (&self.head.committed_len, len),
            (&self.head.longest, len),
            (&self.head.durable, found.committed),
            (&self.head.checkpoint, found.committed),
            (&self.head.epoch, found.committed + 1),
            (&self.head.committed_at, found.time),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes room in every table for a file of `len` bytes, before anybody can see that length.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOMEM.
    pub(super) fn fit(&self, len: u64) -> Result<()> {
        let blocks = blocks_of(len);
        let fitted = self.clean.fit(blocks).and_then(|()| self.space.fit(blocks)).and_then(|()| self.index.fit(blocks));
        fitted.map_err(|error| Error::io("reserve memory for", self.path(), error))
    }

    /// Closes. Does nothing if the file was let go already, was opened for reading,
    /// belongs to the parent process, or is poisoned: then only recovery can tell. If the sidecar cannot go it is left
    /// as well as may be: closed cleanly, or for recovery.
    pub(super) fn let_go(&self, how: Close) -> Result<()> {
        if how.keeps_sidecar(&self.options) {
            return self.close_clean();
        }
        if self.handle_state.writable().is_err() || lock(&self.sidecar_state, self.relax()).closed {
            return Ok(());
        }
        self.settle_all().inspect_err(|_| {
            // Of what failed the caller learns.
            let _ = self.close_clean();
        })
    }

    /// Leaves the last commit at home, where the next open need not recover it. Does nothing if the file was let go
    /// already, was opened for reading, belongs to the parent process, or is poisoned: then only recovery can tell.
    pub(super) fn close_clean(&self) -> Result<()> {
        if self.handle_state.writable().is_err()
            || std::mem::replace(&mut lock(&self.sidecar_state, self.relax()).closed, true)
        {
            return Ok(());
        }
        self.bring_home()?;
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        sidecar_state.write_clean(&*self.medium, &self.side, self.data.stamp()?, barriers::CLOSE_STATE)
    }

    /// Leaves the last commit at home and removes the sidecar. A crash on the way leaves the sidecar valid.
    pub(super) fn settle_all(&self) -> Result<()> {
        self.handle_state.writable()?;
        self.await_durable(self.epoch() - 1)?;
        // Durable with the file, and so before the sidecar says that it is not needed.
        number::keep(&*self.medium, &self.data, self.last_commit())?;
        self.bring_home()?;
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        sidecar_state.write_settled(&*self.medium, &self.side, barriers::SETTLE_STATE)?;
        remove(&*self.medium, self.path(), &self.data, &self.sidecar)
    }

    /// Makes the data file what the last commit is, durably; the open epoch is dropped.
    fn bring_home(&self) -> Result<()> {
        self.await_durable(self.epoch() - 1)?;
        if self.logs_undo() {
            self.roll_back()?;
        }
        self.checkpoint_telling(|done, total| self.options.report("emptying the log", done, total))?;
        let len = self.head.committed_len.load(Ordering::Relaxed);
        if self.data.len() != len {
            self.data.set_len(len)?;
        }
        self.options.report("flushing the file", 0, 1);
        self.data.sync(barriers::CLOSE_DATA)?;
        self.options.report("flushing the file", 1, 1);
        Ok(())
    }
}
