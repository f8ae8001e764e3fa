//! Managed files: those that globs choose, while a program has them open for writing or the log has bytes of them.
//!
//! # Invariants
//!
//! 1. All writers of a file share one [`Managed`], found by device and inode. It holds a descriptor, so these two mean
//!    the same file for as long.
//! 2. A file leaves the table when no program writes to it and the log has nothing of it that a replay would need: it
//!    is durable in the source, or it has no name. Until then it *rests*.
//! 3. A file is attached by the path that it has: no rename runs meanwhile ([`moves`]). The server attaches a new file
//!    at once, since the log has to know of each name that comes and goes, and any other file before its first change.
//! 4. A file that the log cannot manage is *plain*: its bytes go to the source, for all its writers, and the report
//!    names it with the reason. A log that failed refuses every write with EIO. A *strict* server opens no such file,
//!    and keeps a managed one from becoming plain where it can.

mod attach;
mod bytes;
mod file;
mod marks;
mod moves;
mod report;
mod rest;
mod streams;
mod timed;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::thread::{self, JoinHandle};

use rustix::fs::{FallocateFlags, Stat, Timespec};
use rustix::io::Errno;
use untorn::write_cache::WriteCache;
use untorn::{Durability, Error};

pub(super) use self::file::Managed;
pub(super) use self::marks::MARK;
pub(super) use self::moves::Move;
pub use self::report::Report;
use self::rest::Resting;
pub(super) use self::streams::{Beside, COMMIT_LOG, SOURCE};
use self::timed::Times;
use super::nodes::{Key, key_of};
use super::{Globs, lock};

/// Files in the table, at most, before a new one waits until the log has fewer of them.
const MANY: usize = 4096;
/// Locks for files whose times are set.
const SETTERS: usize = 64;

/// All managed files.
pub(super) struct Managing {
    cache: WriteCache,
    /// Whether changes of all files count in epochs.
    atomic: bool,
    /// Whether a file was found marked, so that its changes do ([`marks`]).
    marked: AtomicBool,
    /// Whether the kernel caches writes.
    writeback: bool,
    /// Whether a file is refused that the log cannot manage.
    strict: bool,
    globs: Globs,
    /// Files that get a commit log, if any do.
    commit_logs: Option<Globs>,
    /// Files in the table before a new one waits.
    many: usize,
    /// Whether the log makes each write durable.
    per_write: bool,
    /// Held shared while a file is attached, exclusively while one gets another name or loses its name.
    moves: RwLock<()>,
    table: Mutex<HashMap<Key, Arc<Managed>>>,
    times: Mutex<Times>,
    /// Held while a file's times are set in the source, and while it comes into the table. Otherwise its stamp could be
    /// from before a time that is set past it, and that would be taken for another program's change.
    setters: [Mutex<()>; SETTERS],
    resting: Mutex<Resting>,
    /// The first file rests, or the server ends.
    news: Condvar,
    report: Mutex<Report>,
    /// Bytes for the report.
    bytes: AtomicU64,
}

impl Managing {
    /// The thread that looks after files at rest ends with [`finish`](Managing::finish).
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn start(
        cache: WriteCache,
        (globs, commit_logs): (Globs, Option<Globs>),
        (atomic, writeback, strict): (bool, bool, bool),
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        // With more files the log would have no line left for a new one, and its writer would wait in any case.
        let info = cache.info().ok();
        let lines = info.as_ref().map_or(0, |info| info.max_files as usize);
        let managing = Arc::new(Managing {
            many: (lines / 2).clamp(16, MANY),
            per_write: info.is_some_and(|info| info.durability == Durability::PerWrite),
            cache,
            atomic,
            marked: AtomicBool::new(false),
            writeback,
            strict,
            globs,
            commit_logs,
            moves: RwLock::default(),
            table: Mutex::default(),
            times: Mutex::default(),
            setters: [const { Mutex::new(()) }; SETTERS],
            resting: Mutex::default(),
            news: Condvar::new(),
            report: Mutex::default(),
            bytes: AtomicU64::new(0),
        });
        let watched = managing.clone();
        let thread = thread::Builder::new().name("untorn-rest".to_owned()).spawn(move || watched.look_after())?;
        Ok((managing, thread))
    }

    pub(super) fn log(&self) -> WriteCache {
        self.cache.clone()
    }

    pub(super) fn find(&self, key: Key) -> Option<Arc<Managed>> {
        lock(&self.table).get(&key).cloned()
    }

    /// Whether a crash and a replay leave these names in a directory as they are now. A log that failed keeps none.
    pub(super) fn keeps_names(&self, directory: &Path, names: &[OsString]) -> bool {
        self.cache.dir_is_durable(directory, names).unwrap_or(false)
    }

    /// Whether a sync waits for no device: writes are durable already.
    pub(super) fn syncs_at_once(&self) -> bool {
        self.per_write && !self.atomic
    }

    /// Whether changes of all files count in epochs.
    pub(super) fn is_atomic(&self) -> bool {
        self.atomic
    }

    /// Whether those of some files may.
    pub(super) fn has_atomic(&self) -> bool {
        self.atomic || self.marked.load(Ordering::Acquire)
    }

    /// The managed file whose bytes and attributes the source may lack.
    pub(super) fn atomic(&self, key: Key) -> Option<Arc<Managed>> {
        if self.has_atomic() { self.find(key).filter(|managed| managed.is_atomic()) } else { None }
    }

    /// Shows attributes as the writers of an atomic file have made them. False if the source has them all.
    pub(super) fn adjust(&self, status: &mut Stat) -> bool {
        self.find(key_of(status)).is_some_and(|managed| managed.adjust(status))
    }

    fn setter(&self, (_, inode): Key) -> &Mutex<()> {
        &self.setters[inode as usize % SETTERS]
    }

    /// A program or the kernel sets the times of a file, which may have no writer; `set` does so in the source.
    pub(super) fn set_times(
        &self,
        key: Key,
        modified: Timespec,
        set: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _alone = lock(self.setter(key));
        match self.atomic(key) {
            Some(managed) => managed.set_times(modified, set),
            None => set(),
        }
    }

    fn all(&self) -> Vec<Arc<Managed>> {
        lock(&self.table).values().cloned().collect()
    }

    /// Attributes of a file were set in the source. The next sync makes them durable.
    pub(super) fn attributes_were_set(&self, key: Key) {
        if let Some(managed) = self.find(key) {
            managed.attributes_were_set();
        }
    }

    /// The managed file of one more writer.
    fn find_for_writer(&self, key: Key) -> Option<Arc<Managed>> {
        lock(&self.table).get(&key).inspect(|known| known.add_writer()).cloned()
    }

    /// Writes to a file.
    pub(super) fn write(&self, managed: &Managed, bytes: &[u8], offset: u64, appends: bool) -> Result<usize, Errno> {
        self.engage(managed)?;
        let written = self.with_room(managed, || managed.write(bytes, offset, appends))?;
        if managed.is_logged() {
            self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        }
        Ok(written)
    }

    pub(super) fn set_len(&self, managed: &Managed, len: u64) -> Result<(), Errno> {
        self.engage(managed)?;
        self.with_room(managed, || managed.set_len(len))
    }

    /// Allocates, or makes a hole.
    pub(super) fn allocate(&self, managed: &Managed, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        self.engage(managed)?;
        managed.allocate(mode, offset, len)
    }

    /// Commits every file, durably. The first error is that of a file; the others are committed all the same.
    pub(super) fn sync_all(&self) -> Result<(), Errno> {
        // At once, with one flush. The sync of each file tells its error again.
        let _ = self.cache.sync();
        let mut result = Ok(());
        for managed in self.all() {
            result = result.and(managed.sync());
        }
        result
    }
}

/// The answer to a program for an error of the library.
fn errno(error: Error) -> Errno {
    tracing::warn!(%error, "an operation on a managed file failed");
    match error {
        // Beyond what a file's length may be.
        Error::Invalid { .. } => Errno::FBIG,
        other => Errno::from_raw_os_error(other.errno()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, Timestamps, UTIME_OMIT};
    use untorn::write_cache::CacheOptions;

    use super::*;

    /// A directory with a log, and the account of its files.
    fn managing(atomic: bool) -> (tempfile::TempDir, Arc<Managing>, JoinHandle<()>) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().canonicalize().unwrap().join("log");
        let cache = CacheOptions::new().size(1 << 20).max_files(4).background(false).create(log).unwrap();
        let (managing, rest) = Managing::start(cache, (Globs::default(), None), (atomic, false, false)).unwrap();
        (dir, managing, rest)
    }

    /// A program opens a file for writing.
    fn open(managing: &Managing, path: &Path, atomic: bool) -> Arc<Managed> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).unwrap();
        let key = key_of(&rustix::fs::fstat(&file).unwrap());
        let modified = lock(&managing.times).of(key, &file, false);
        let managed = Arc::new(Managed::new(atomic, modified, key, (path, true), Arc::new(file)));
        lock(&managing.table).insert(key, managed.clone());
        managed
    }

    /// The log has lines for four files, and those of the first four rest when a fifth is written to.
    #[test]
    fn a_write_waits_for_the_line_of_a_file_at_rest() {
        for atomic in [true, false] {
            let (dir, managing, rest) = managing(atomic);
            let dir = dir.path().canonicalize().unwrap();
            for number in 0..5 {
                let file = open(&managing, &dir.join(number.to_string()), atomic);
                assert_eq!(managing.write(&file, b"bytes", 0, false), Ok(5), "atomic {atomic}, file {number}");
                managing.released(&file);
            }
            managing.finish();
            rest.join().unwrap();
            assert!(managing.report().plain.is_empty());
            for number in 0..5 {
                assert_eq!(std::fs::read(dir.join(number.to_string())).unwrap(), b"bytes");
            }
        }
    }

    /// A request that was begun before the last close still has the file, and with it the log.
    #[test]
    fn a_file_that_the_log_still_has_open_is_managed_anew() {
        let (dir, managing, rest) = managing(true);
        let path = dir.path().canonicalize().unwrap().join("file");
        let first = open(&managing, &path, true);
        assert_eq!(managing.write(&first, b"first", 0, false), Ok(5));
        first.sync().unwrap();
        managing.cache.drain().unwrap();
        managing.released(&first);
        assert!(managing.find(first.key).is_none());

        let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omitted, last_modification: time };
        let set = || rustix::fs::futimens(&*first.descriptor, &times);
        managing.set_times(first.key, time, set).unwrap();

        let second = open(&managing, &path, true);
        assert_eq!(managing.write(&second, b"second one", 0, false), Ok(10));
        second.sync().unwrap();
        managing.cache.drain().unwrap();
        assert_eq!(second.failure(), None);
        assert_eq!(std::fs::read(&path).unwrap(), b"second one");
        managing.released(&second);
        drop((first, second));
        managing.finish();
        rest.join().unwrap();
        assert!(managing.report().failed.is_empty());
    }
}
