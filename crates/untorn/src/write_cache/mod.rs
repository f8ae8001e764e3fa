//! [`WriteCache`] and [`CachedFile`]: a log on a fast medium in front of ordinary files.

pub(crate) mod backing;
pub(crate) mod engine;
mod file;
mod multi_process;
pub(crate) mod on_medium;
mod options;
mod trust;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::backing::{BackingDir, BackingFile, Descriptor, Kernel, Named};
use self::engine::{AnyCache, Attach, Mode};
pub use self::engine::{CacheInfo, Keep, Replay, ReplayOutcome, ReplayedFile};
pub use self::file::CachedFile;
pub use self::multi_process::{SharedLog, Step};
pub use self::options::CacheOptions;
use crate::engine::commits;
use crate::error::Result;
use crate::options::{CommitLog, ProgressFn};
pub use crate::storage::CreateAttrs;
use crate::storage::{self, Dax, Latched, Medium, MediumKind, PageCache};
#[cfg(doc)]
use crate::{error::Error, options::Durability};

/// A log on a fast medium in front of any number of files on slower ones.
///
/// A write to a [`CachedFile`] goes to the log. It is durable when the call returns ([`Durability::PerWrite`], the
/// default on persistent memory), or when [`sync`](CachedFile::sync) returns ([`Durability::PerCommit`], the default
/// elsewhere). A thread brings it to the file later. One log has one owner at a time. The next open, or [`replay`],
/// brings the entries of a dead owner to their files.
///
/// Many threads may make calls at the same time. Closing or dropping a cache leaves undrained entries in the log, which
/// is as safe as having them in the file; [`drain`](WriteCache::drain) leaves none.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let (log, path) = (dir.path().join("log"), dir.path().join("shared state"));
/// use std::os::fd::AsFd;
/// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
/// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
/// let plain = std::fs::File::create_new(&path).map_err(io)?;
/// let file = cache.attach(plain.as_fd(), &path)?;
/// file.write_at(b"paid: 100", 0)?;
/// file.append(b", owed: 7")?;
/// file.sync()?;
/// let mut bytes = [0; 18];
/// assert_eq!(file.read_at(&mut bytes, 0)?, 18);
/// assert_eq!(&bytes, b"paid: 100, owed: 7");
/// cache.drain()?; // now in the file itself
/// assert_eq!(std::fs::read(&path).map_err(io)?, bytes);
/// # Ok(()) }
/// ```
///
/// Source: the NVCache paper, §II and III.
#[derive(Clone)]
pub struct WriteCache {
    cache: Arc<dyn AnyCache>,
    replay: Arc<Replay>,
}

impl WriteCache {
    /// The engine that keeps the log.
    fn engine(&self) -> &dyn AnyCache {
        &*self.cache
    }

    /// The path of the log.
    pub fn path(&self) -> &Path {
        self.cache.path()
    }

    /// The replay that was done when the log was opened.
    pub fn replayed(&self) -> &Replay {
        &self.replay
    }

    /// Puts the log in front of an open file. `path` is its path: only a hint for a replay, which identifies the file
    /// by inode.
    ///
    /// The call opens the file again for reading and writing, so the descriptor may be open for either. It ignores
    /// the descriptor's offset. From now on all readers and writers of the file must use this cache, or wait for
    /// [`demote`](CachedFile::demote). A program that renames or removes the file tells the log first
    /// ([`begin_rename`](CachedFile::begin_rename), [`prepare_unlink`](CachedFile::prepare_unlink)), or demotes it: a
    /// replay looks for the file at `path` and in its directory, and keeps the entries of a file that it does not
    /// find. The first write makes the file's name and contents durable.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened for reading and writing; [`Error::NotAFile`]; [`Error::Invalid`] if
    /// `path` is longer than 3904 bytes or does not name the file.
    pub fn attach(&self, file: BorrowedFd<'_>, path: &Path) -> Result<CachedFile> {
        // It is the directory with the file itself that is flushed and searched, and not that with a link to it.
        let path = &storage::resolve(path)?;
        self.attach_backing(Arc::new(Descriptor::reopen(file, path)?), path)
    }

    /// Like [`attach`](WriteCache::attach), for a custom [`BackingFile`].
    ///
    /// # Errors
    /// As for [`attach`](WriteCache::attach).
    pub fn attach_backing(&self, file: Arc<dyn BackingFile>, path: &Path) -> Result<CachedFile> {
        self.attach_as(file, path, Mode::Cached, None)
    }

    fn attach_as(
        &self,
        file: Arc<dyn BackingFile>,
        path: &Path,
        mode: Mode,
        commit_log: Option<CommitLog>,
    ) -> Result<CachedFile> {
        let file = self.cache.attach(file, path, Attach { mode, commit_log })?;
        Ok(CachedFile { cache: Arc::clone(&self.cache), file })
    }

    /// Like [`attach_backing`](WriteCache::attach_backing), for a file that is written *through*: when a write
    /// returns, the log has it and then the file too, so others may read the file without the log. Such a file has
    /// the log's durability and the file's own read speed, but a write takes the time of both. The file decides how
    /// much is written ([`CachedFile::write_some`]).
    ///
    /// An empty file is *new*: the first write does not wait until its name is durable. That becomes durable no later
    /// than the write itself reaches the file's device. Until then, a replay that does not find the file creates one
    /// like it ([`BackingFile::create_attrs`]), and a replay that finds it first truncates it to zero.
    ///
    /// Others must not write to the file, since a replay would overwrite that. Under [`Durability::PerCommit`] a crash
    /// may leave a part of an unsynced write, as for any file.
    ///
    /// # Errors
    /// As for [`attach`](WriteCache::attach); [`Error::Invalid`] for a file that is already attached and not written
    /// through.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("shared state"));
    /// use std::sync::Arc;
    /// use untorn::write_cache::Descriptor;
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_write_through(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// file.write_at(b"paid: 100", 0)?;
    /// assert_eq!(std::fs::read(&path).map_err(io)?, b"paid: 100");
    /// # Ok(()) }
    /// ```
    pub fn attach_write_through(&self, file: Arc<dyn BackingFile>, path: &Path) -> Result<CachedFile> {
        self.attach_as(file, path, Mode::Through, None)
    }

    /// Like [`attach_backing`](WriteCache::attach_backing), for an *atomic* file: its changes count only together, in
    /// epochs. [`commit`](CachedFile::commit) closes an epoch. After a crash the file is as a commit left it: the last
    /// one that returned, or a later one. Reads through this cache see uncommitted changes too; the file itself, which
    /// other programs read, never has a part of an epoch while nothing goes wrong, except while the drain writes it.
    ///
    /// [`sync`](CachedFile::sync) commits, and so does [`WriteCache::sync`]. Uncommitted changes are dropped by
    /// [`abandon`](CachedFile::abandon), and with the last handle of the file. A change for which the log has no room
    /// fails with ENOSPC, and from then on every commit of the file does, until the epoch is abandoned or the last
    /// handle is dropped. The bytes of a large write ([`CacheOptions::spill_from`]) wait in a file beside the log.
    /// Smaller changes go there too when uncommitted ones take much of the log, so only the disk limits an epoch. Each
    /// file with uncommitted changes takes three entries of the log at least.
    ///
    /// An empty file is *new*, as a file that is [written through](WriteCache::attach_write_through). Others must not
    /// write to the file. The log of an older untorn takes no atomic files' commits for its own: it refuses the log
    /// until the log was replayed.
    ///
    /// # Errors
    /// As for [`attach`](WriteCache::attach); [`Error::Invalid`] for a file that is already attached in another mode,
    /// and for a log that is [shared](CacheOptions::shared).
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("accounts"));
    /// use std::sync::Arc;
    /// use untorn::write_cache::Descriptor;
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_atomic(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// file.write_at(b"from: -100", 0)?;
    /// file.write_at(b", to: +100", 10)?;
    /// file.commit()?; // both or neither, whenever the machine stops
    /// file.write_at(b"oops", 0)?;
    /// file.abandon()?;
    /// let mut bytes = [0; 20];
    /// assert_eq!(file.read_at(&mut bytes, 0)?, 20);
    /// assert_eq!(&bytes, b"from: -100, to: +100");
    /// # Ok(()) }
    /// ```
    pub fn attach_atomic(&self, file: Arc<dyn BackingFile>, path: &Path) -> Result<CachedFile> {
        self.attach_as(file, path, Mode::Atomic, None)
    }

    /// Like [`attach_atomic`](WriteCache::attach_atomic), for a file that has, or gets, a commit log of so many bytes,
    /// so that its commits can be read in order by [`CommitStream`](crate::commits::CommitStream), in any process. A
    /// file that has one keeps it up at every `attach_atomic`, too.
    ///
    /// Readers are given a commit when the background thread brings it to the file, within
    /// [`max_age`](CacheOptions::max_age), each commit exactly once and in order, also through crashes. The flush of a
    /// commit takes no longer for that; the thread flushes the commit log, too. A log that cannot be written to, on a
    /// full disk for instance, begins anew behind the commit that it lacks: readers are told so
    /// ([`Error::CommitsMissing`]), and no write fails. If the log [blocks](CommitLog::block), a commit fails with
    /// [`Error::ConsumerBehind`] while a consumer leaves no room; the open epoch stays.
    ///
    /// # Errors
    /// As for [`attach_atomic`](WriteCache::attach_atomic); [`Error::InUse`] while another process writes to the commit
    /// log; those of making it.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("accounts"));
    /// use std::sync::Arc;
    /// use untorn::{commits::CommitStream, write_cache::Descriptor};
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = Arc::new(Descriptor::new(plain.into(), &path)?);
    /// let file = cache.attach_atomic_with_commit_log(file, &path, 1 << 20)?;
    /// file.write_at(b"from: -100, to: +100", 0)?;
    /// file.commit()?;
    /// cache.drain()?; // now, and not when the thread comes to it
    /// let mut stream = CommitStream::open(&path, 0)?; // any process
    /// let commit = stream.next()?.unwrap();
    /// assert_eq!(&commit.changes[0].bytes, b"from: -100, to: +100");
    /// # Ok(()) }
    /// ```
    pub fn attach_atomic_with_commit_log(
        &self,
        file: Arc<dyn BackingFile>,
        path: &Path,
        commit_log: impl Into<CommitLog>,
    ) -> Result<CachedFile> {
        self.attach_as(file, path, Mode::Atomic, Some(commit_log.into()))
    }

    /// Whether each of these names in a directory (given by its absolute path) means the same after a crash and a
    /// replay as it does now. If so, this is durable when the call returns, as if the directory had been synced. It is
    /// true if each name belongs to a file that the log has an entry of and may write through, or was given up by an
    /// announced rename ([`CachedFile::begin_rename`]). The caller must know which names may have changed since the
    /// directory was synced.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("shared state"));
    /// use std::sync::Arc;
    /// use untorn::write_cache::Descriptor;
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_write_through(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// assert!(!cache.dir_is_durable(dir.path(), &["shared state".into()])?); // a directory to sync
    /// file.write_at(b"paid: 100", 0)?;
    /// assert!(cache.dir_is_durable(dir.path(), &["shared state".into()])?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Errors of examining the names; [`Error::Poisoned`] after a failed flush of the log.
    pub fn dir_is_durable(&self, dir: &Path, names: &[OsString]) -> Result<bool> {
        self.cache.dir_is_durable(dir, names)
    }

    /// Makes all writes to all of the files so far durable. It commits every open epoch.
    ///
    /// # Errors
    /// The failure of a file that failed, or whose epoch was refused; [`Error::Poisoned`] after a failed flush of the
    /// log.
    pub fn sync(&self) -> Result<()> {
        self.cache.sync_all()
    }

    /// Brings all entries of the log to their files, durably, except uncommitted changes of atomic files.
    ///
    /// # Errors
    /// The failure of a file that failed; its writes stay in the log.
    pub fn drain(&self) -> Result<()> {
        self.cache.drain()
    }

    /// Drains one batch, if there is anything to drain, as the background thread does.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed flush of the log. A file that fails reports it on its own calls.
    pub fn drain_some(&self) -> Result<()> {
        self.cache.drain_some()
    }

    /// Removes the log and its spill file, and the directory `.untorn` around them if it is empty then. Returns false
    /// if the log is still needed, and leaves it as it was: a file is attached or has entries, or other processes may
    /// append to it. After a removal every call that would change a file fails.
    ///
    /// A process that opens the log meanwhile finds no log, or a new one.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let log = dir.path().join("log");
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// cache.drain()?;
    /// assert!(cache.remove()? && !log.exists());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed flush, and after a removal; those of `unlink(2)` and `rmdir(2)`.
    pub fn remove(&self) -> Result<bool> {
        self.cache.remove()
    }

    /// The current state of the log.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn info(&self) -> Result<CacheInfo> {
        self.cache.info()
    }
}

impl fmt::Debug for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteCache").field("path", &self.path()).finish()
    }
}

/// Gives a file a commit log, as [`attach_atomic_with_commit_log`](WriteCache::attach_atomic_with_commit_log) does when
/// the file is attached, or takes it away (`None`). Returns whether the file had one. No write cache may have the file
/// attached.
///
/// # Errors
/// [`Error::InUse`] while another process writes to the commit log; those of opening and making it.
pub fn set_commit_log(path: impl AsRef<Path>, log: Option<CommitLog>) -> Result<bool> {
    let path = storage::resolve(path.as_ref())?;
    let had = commits::state::look(&PageCache::reading_by_call(), &path, commits::LogOf::File)?.is_some();
    if let Some(mut records) = Kernel.commit_log(&path, log, false)? {
        if log.is_some() {
            records.close();
        } else {
            records.remove();
        }
    }
    Ok(had)
}

/// Brings the commit log of a file along that was renamed from `from` to `to`, if it has one.
///
/// # Errors
/// Those of renaming it.
pub fn carry_commit_log(from: &Path, to: &Path) -> Result<()> {
    Kernel.carry_commit_log(from, to)
}

/// Removes the commit log of a file that was removed: its path, and the inode number that it had.
///
/// # Errors
/// Those of removing it.
pub fn remove_commit_log(path: &Path, inode: u64) -> Result<()> {
    Kernel.remove_commit_log(path, inode)
}

/// The write-cache logs in a directory, by name: every file that begins as one, whoever owns it. Each is opened for
/// reading only. A replay refuses those that are not trusted ([`Error::UntrustedLog`]).
///
/// # Errors
/// Errors of reading the directory.
pub fn find_logs(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for name in PageCache::new().list(dir)? {
        let unfinished = storage::is_unfinished(&name);
        let path = dir.join(name);
        // What may not be opened is no log of ours.
        if !unfinished && engine::is_log(&path).unwrap_or(false) {
            logs.push(path);
        }
    }
    logs.sort();
    Ok(logs)
}

/// Brings the entries that a dead owner left in a log to their files. If all could be replayed, the log is empty
/// afterwards. Otherwise the log is kept, and the next replay tries the rest again.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let log = dir.path().join("log");
/// # untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
/// let replay = untorn::write_cache::replay(&log, None)?;
/// assert!(replay.is_complete());
/// # Ok(()) }
/// ```
///
/// # Errors
/// As for [`CacheOptions::open`], except [`Error::ReplayIncomplete`]: unreplayed writes are in the report.
/// [`Error::Invalid`] for a file that is not a log.
pub fn replay(log: impl AsRef<Path>, progress: Option<ProgressFn>) -> Result<Replay> {
    replay_with(log.as_ref(), false, None, progress.as_ref())
}

/// Like [`replay`], for a user who has chosen which version of a file counts that another program changed
/// ([`ReplayOutcome::Changed`]).
///
/// # Errors
/// As for [`replay`].
pub fn replay_keeping(log: impl AsRef<Path>, keep: Keep, progress: Option<ProgressFn>) -> Result<Replay> {
    replay_with(log.as_ref(), false, Some(keep), progress.as_ref())
}

/// What [`replay`] would do. It changes nothing, in the log or in any file.
///
/// # Errors
/// As for [`replay`].
pub fn inspect_log(log: impl AsRef<Path>) -> Result<Replay> {
    replay_with(log.as_ref(), true, None, None)
}

fn replay_with(log: &Path, look: bool, keep: Option<Keep>, progress: Option<&ProgressFn>) -> Result<Replay> {
    let path = &trust::resolve(log)?;
    let detected = storage::detect(path)?;
    match detected.kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
            engine::replay(&Latched::new(Dax::new(detected.kind)), &Kernel, path, look, keep, progress)
        }
        MediumKind::Block | MediumKind::Volatile => {
            engine::replay(&Latched::new(PageCache::new()), &Kernel, path, look, keep, progress)
        }
    }
}
