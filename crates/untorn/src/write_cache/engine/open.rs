//! Creating a log and opening one; each open begins with a replay.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use untorn_ring::Way;

use super::changed::{CHANGED, doubt_times};
use super::draining::Draining;
use super::format::{self, Geometry, Superblock};
use super::replay::{Replay, Replayer};
use super::ring::Ring;
use super::scan::{Scan, scan};
use super::spill::{self, Spill};
use super::table::Registry;
use super::wakeup::Wakeup;
use super::wipe::wipe;
use super::worker::Worker;
use super::{Cache, Settings, barriers};
use crate::engine::handle_state::HandleState;
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::format::sidecar::parent;
use crate::options::{Durability, ProgressFn};
use crate::storage::{self, Access, LockKind, Medium, MediumClass, MediumFile};
use crate::write_cache::backing::BackingDir;
use crate::write_cache::trust;

/// Makes an empty log. The name must be free.
///
/// # Errors
/// EEXIST if the name is taken, [`Error::InUse`] if another process is making it; those of the medium.
pub(crate) fn create<M: Medium>(medium: &M, path: &Path, geometry: Geometry) -> Result<()> {
    let len = geometry.len().unwrap_or(u64::MAX);
    storage::create_private(medium, path, len, |file| {
        file.set_len(len)?;
        // Also on a disk: a log that finds no space later would be of no help to anybody.
        file.allocate(0, len)?;
        if medium.class() == MediumClass::Block {
            // A block that was never written to costs the file system a commit of its own when it is flushed.
            let zeros = vec![0; 1 << 20];
            let mut at = 0;
            while at < len {
                let bytes = (len - at).min(zeros.len() as u64);
                file.write(at, &zeros[..bytes as usize])?;
                at += bytes;
            }
        }
        let mut superblock = Superblock {
            uuid: medium.unique()?,
            seq: 0,
            session: 0,
            per_write: true,
            epochs: false,
            packs: false,
            numbered: false,
            geometry,
        };
        superblock.write(file)?;
        superblock.write(file)?;
        file.sync(barriers::CREATE)
    })
}

impl Settings {
    /// How many entries draining waits for, and how long. What is in the log is as safe as in the files, and on a
    /// disk each sync of a file is in the way of those that programs wait for: there it waits for longer, and as long
    /// as there is room enough for all, of whom this process may have no more than a quarter of the log, where others
    /// append too.
    fn patience(&self, class: MediumClass, geometry: Geometry) -> (u64, Duration) {
        let (batch, age) = match class {
            MediumClass::PersistentMemory => (1000, Duration::from_millis(100)),
            MediumClass::Block => ((geometry.slots / 8).max(1000), Duration::from_secs(1)),
        };
        (self.batch_min.unwrap_or(batch), self.max_age.unwrap_or(age))
    }
}

/// Entries of a log that other processes append to, below this: the memory of its shared state is allocated at once.
const MOST_SHARED: u64 = 1 << 26;

/// A log, locked, and what is in it.
pub(super) struct Found<M: Medium> {
    pub(super) file: M::File,
    pub(super) superblock: Superblock,
    pub(super) scan: Scan<M::File>,
}

/// How often an open begins anew because the log was removed under its hands.
const TRIES: usize = 16;

/// Opens a log that is one, is [trusted](trust), and that nobody else has open. Nothing is stored to the file, and
/// nothing in it believed, before all of this is known: any file may have the name.
///
/// An owner may [remove](super::remove) its log, under its lock. A log that has lost its name by the time that it is
/// locked is nobody's, so the open begins anew; a locked one keeps its name.
fn open<M: Medium>(medium: &M, path: &Path, access: Access, lock: LockKind) -> Result<M::File> {
    let mut holder = String::new();
    for _ in 0..TRIES {
        let file = medium.open(path, access, 0)?;
        let locked = Superblock::read(&file, path)
            .map_err(|error| not_damaged(&file, path, error))
            .and_then(|_| trust::check(file.descriptor(), path))
            .and_then(|()| file.try_lock(lock));
        holder = storage::lock_holder(&file);
        if !file.is_removed()? {
            return if locked? { Ok(file) } else { Err(Error::InUse { path: path.to_owned(), holder }) };
        }
    }
    Err(Error::InUse { path: path.to_owned(), holder })
}

/// The error of a file without a valid superblock. A damaged log begins as one in one of its two copies at least; any
/// other file was named by mistake.
fn not_damaged<F: MediumFile>(file: &F, path: &Path, error: Error) -> Error {
    let mut start = vec![0; (format::PAGE + 8).min(file.len()) as usize];
    match file.read(0, &mut start) {
        Ok(()) if matches!(error, Error::Corrupt { .. }) && !format::is_log(&start) => {
            let what =
                "this is not a write-cache log: neither of its first two pages begins as a superblock".to_owned();
            Error::Invalid { path: path.to_owned(), what }
        }
        _ => error,
    }
}

/// Looks at a log, which nobody may be about to change meanwhile. Nothing is stored to it.
pub(super) fn look<M: Medium>(medium: &M, path: &Path) -> Result<Found<M>> {
    let file = open(medium, path, Access::Read, LockKind::Shared)?;
    let superblock = Superblock::read_whole(&file, path)?;
    let scan = scan(&file, path, &superblock, || open_spill(medium, path, Access::Read))?;
    Ok(Found { file, superblock, scan })
}

/// Opens the spill file of a log that needs it. Whatever it is, it is only read; `None` if it is not there. For a
/// replay that stores to files its bytes are durable, as those of the log.
fn open_spill<M: Medium>(medium: &M, log: &Path, access: Access) -> Result<Option<M::File>> {
    let path = spill::path_of(log);
    if !medium.exists(&path)? {
        return Ok(None);
    }
    let file = medium.open(&path, access, 0)?;
    if access == Access::ReadWrite {
        file.sync(barriers::ATTACH_LOG)?;
        file.distrust_cache(barriers::ATTACH_CACHE, 0, file.len())?;
    }
    Ok(Some(file))
}

/// Takes a log over, and reads it as it is on the medium. Nobody else may have it open.
pub(super) fn find<M: Medium>(medium: &M, path: &Path) -> Result<Found<M>> {
    let file = open(medium, path, Access::ReadWrite, LockKind::Exclusive)?;
    trust::keep_private(file.descriptor(), path)?;
    file.sync(barriers::ATTACH_LOG).inspect_err(|_| {
        if let Ok(superblock) = Superblock::read_whole(&file, path) {
            doubt_times(&file, superblock.checksum_seed(), superblock.geometry.files);
        }
    })?;
    let directory = parent(path);
    medium.sync_dir(barriers::ATTACH_NAME, &directory)?;
    if storage::is_companion_directory(&directory) {
        // This one comes and goes with the log.
        medium.sync_dir(barriers::ATTACH_DIRECTORY, &parent(&directory))?;
    }
    file.distrust_cache(barriers::ATTACH_CACHE, 0, file.len())?;
    if medium.class() == MediumClass::PersistentMemory {
        // A copy that left out zeros has holes, where a store could be lost.
        file.allocate(0, file.len())?;
    }
    let superblock = Superblock::read_whole(&file, path)?;
    let scan = scan(&file, path, &superblock, || open_spill(medium, path, Access::ReadWrite))?;
    Ok(Found { file, superblock, scan })
}

impl Superblock {
    /// Begins a session: nothing that the log has counts any more.
    pub(super) fn begin<M: Medium>(&mut self, medium: &M, file: &M::File) -> Result<()> {
        self.session += 1;
        (self.epochs, self.packs, self.numbered) = (false, false, false);
        self.write(file)?;
        medium.fence(barriers::SESSION, &[file])?;
        // The other copy is there for the day when this one is damaged; it may become durable whenever it does.
        self.write(file)?;
        medium.order();
        Ok(())
    }
}

impl<M: Medium> Cache<M> {
    /// Opens a log, and brings what a dead owner left in it to the files first.
    ///
    /// # Errors
    /// [`Error::InUse`] while somebody has it; [`Error::ReplayIncomplete`] if not all of it could be brought to its
    /// file, and the log is kept; [`Error::Corrupt`] and [`Error::Unsupported`] for what is no log that this code
    /// knows.
    pub(crate) fn open(
        medium: Arc<M>,
        place: Arc<dyn BackingDir>,
        path: &Path,
        settings: &Settings,
        progress: Option<&ProgressFn>,
    ) -> Result<(Arc<Self>, Replay)> {
        let Found { file, mut superblock, scan } = find(&*medium, path)?;
        let is_blank = scan.is_blank;
        let replay = Replayer::new(&*medium, &file, path, scan, &*place, false).run(progress)?;
        if let Some(changed) = replay.changed() {
            return Err(Error::ChangedOutside {
                path: changed.path.clone(),
                what: format!("the log {} has {} operations of it: {CHANGED}", path.display(), changed.operations),
            });
        }
        if !replay.is_complete() {
            return Err(Error::ReplayIncomplete { path: path.to_owned(), what: replay.left() });
        }
        let durability = settings.durability.unwrap_or(match medium.class() {
            MediumClass::PersistentMemory => Durability::PerWrite,
            MediumClass::Block => Durability::PerCommit,
        });
        superblock.per_write = durability == Durability::PerWrite;
        superblock.begin(&*medium, &file)?;
        if !is_blank {
            wipe(&file, superblock.geometry, 0..superblock.geometry.slots)?;
            medium.order();
        }
        let failed = |error| Error::io("prepare to open", path, error);
        let handle_state = HandleState::new(path, false).map_err(failed)?;
        handle_state.accept_writes();
        let identity = file.identity()?;
        let geometry = superblock.geometry;
        // Other processes promise for each write, or each sync, what this one does.
        let way = match (medium.class(), durability) {
            (MediumClass::PersistentMemory, Durability::PerWrite) if settings.sync => Some(Way::MappedSync),
            (MediumClass::PersistentMemory, Durability::PerWrite) => Some(Way::Mapped),
            (MediumClass::Block, Durability::PerCommit) => Some(Way::Written),
            // A flush for each write is for whoever can share it with all other writes.
            _ => None,
        };
        let way = way.filter(|_| settings.shared && geometry.slots < MOST_SHARED);
        let checksum_seed = superblock.checksum_seed();
        let spill = Spill::new(path, settings.chunk);
        let ring = Ring::new(medium, file, path, geometry, checksum_seed, durability, way.is_some()).map_err(failed)?;
        let (batch, max_age) = settings.patience(ring.medium.class(), geometry);
        // What one batch leaves is as old as it was.
        let batch = batch.clamp(1, ring.for_writers()).min(settings.batch_max);
        if let Some(way) = way {
            // Before the thread says there what it does.
            ring.shared_state().prepare(way, batch).map_err(failed)?;
        }
        let cache = Arc::new(Cache {
            handle_state,
            identity,
            place,
            settings: *settings,
            durability,
            registry: Mutex::new(Registry::new(geometry.files)),
            drain: Draining::default(),
            worker: Worker::new(batch, max_age),
            bell: Wakeup::default(),
            wiped: AtomicU64::new(0),
            superblock: Mutex::new(superblock),
            spill,
            open_claims: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            durable_commits: AtomicU64::new(0),
            ring,
        });
        // The files have all that the log had there.
        spill::remove(&*cache.place, &spill::path_of(path));
        if settings.background {
            Worker::start(&cache).map_err(failed)?;
        }
        if way.is_some()
            && let Err(error) = Wakeup::start(&cache)
        {
            // Else it would have the log for as long as this process lives.
            cache.worker.stop();
            return Err(failed(error));
        }
        Ok((cache, replay))
    }
}
