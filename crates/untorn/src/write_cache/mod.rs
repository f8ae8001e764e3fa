//! [`WriteCache`] and [`CachedFile`]: a log on a fast medium in front of ordinary files.

pub(crate) mod backing;
pub(crate) mod engine;
mod file;
mod multi_process;
mod options;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::backing::{Descriptor, Kernel, Named, OnMedium, SlowFile, SlowPlace};
use self::engine::AnyCache;
pub use self::engine::{CacheInfo, Fate, Replay, ReplayedFile};
pub use self::file::CachedFile;
pub use self::multi_process::{SharedLog, Step};
pub use self::options::CacheOptions;
use crate::error::Result;
use crate::options::ProgressFn;
pub use crate::storage::MadeLike;
use crate::storage::{self, Dax, Latched, Medium, MediumKind, PageCache};
#[cfg(doc)]
use crate::{error::Error, options::Durability};

/// A log on a fast medium in front of any number of files on slower ones.
///
/// A write to a [`CachedFile`] goes to the log, and is durable when the call returns ([`Durability::PerWrite`], the default on
/// persistent memory) or when [`sync`](CachedFile::sync) does ([`Durability::PerCommit`], the default elsewhere). A thread
/// brings it to the file itself later. One log has one owner at a time; what a dead owner left in it is brought to the files
/// when it is opened next, or by [`replay`].
///
/// All calls may be made from many threads. Closing or dropping a cache leaves what is not drained yet in the log, which is as
/// safe as in the file; [`drain`](WriteCache::drain) leaves nothing.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let (log, path) = (dir.path().join("log"), dir.path().join("ledger"));
/// use std::os::fd::AsFd;
/// let cache = untorn::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
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
    /// The log's file.
    pub fn path(&self) -> &Path {
        self.cache.path()
    }

    /// What was brought to the files when the log was opened.
    pub fn replayed(&self) -> &Replay {
        &self.replay
    }

    /// Puts the log in front of an open file. `path` is where it is: a hint for a replay, which knows the file by its identity.
    ///
    /// The file is opened once more, for reading and writing, so the descriptor may be for either. Its offset is not looked at.
    /// From now on all who read or write the file have to do it through this cache, or after [`demote`](CachedFile::demote). Who
    /// renames or removes it tells the log ([`move_to`](CachedFile::move_to), [`leave`](CachedFile::leave)), or demotes it before: a replay
    /// looks for it at `path` and beside, and keeps what it finds no file for.
    /// The first write makes the file's name durable, and what it holds.
    ///
    /// # Errors
    /// [`Error::Io`] where the file may not be opened for both; [`Error::NotAFile`]; [`Error::Invalid`] for a path that is
    /// longer than 3912 bytes, or not that of the file.
    pub fn attach(&self, file: BorrowedFd<'_>, path: &Path) -> Result<CachedFile> {
        // It is the directory with the file itself that is flushed and searched, and not that with a link to it.
        let path = &storage::resolve(path)?;
        self.attach_slow(Arc::new(Descriptor::reopen(file, path)?), path)
    }

    /// The same for a file of one's own making.
    ///
    /// # Errors
    /// As there.
    pub fn attach_slow(&self, file: Arc<dyn SlowFile>, path: &Path) -> Result<CachedFile> {
        let file = self.cache.attach(file, path, false)?;
        Ok(CachedFile { cache: Arc::clone(&self.cache), file })
    }

    /// The same for a file that is written *through*: each write is in the log, and then in the file too, when the call returns, so
    /// that others may read the file without the log. It has the log's durability, and the file's own speed of reading, but takes
    /// the time of both to write. How much is written is for the file to say ([`CachedFile::write_some`]).
    ///
    /// A file with nothing in it is *new*: the first write does not wait for its name to be durable. Until that is so, which takes no
    /// longer than what was written takes to be, a replay that does not find the file makes one like it
    /// ([`SlowFile::made_like`]), and one that does begins with an empty file.
    ///
    /// Others must not write to it, for a replay would write over that. Under [`Durability::PerCommit`] a crash may leave a part of
    /// a write that was not synced, as of any file.
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] for a file that is attached already and not written through.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("ledger"));
    /// use std::sync::Arc;
    /// use untorn::storage::Descriptor;
    /// let cache = untorn::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_through(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// file.write_at(b"paid: 100", 0)?;
    /// assert_eq!(std::fs::read(&path).map_err(io)?, b"paid: 100");
    /// # Ok(()) }
    /// ```
    pub fn attach_through(&self, file: Arc<dyn SlowFile>, path: &Path) -> Result<CachedFile> {
        let file = self.cache.attach(file, path, true)?;
        Ok(CachedFile { cache: Arc::clone(&self.cache), file })
    }

    /// Whether each of these names of a directory, which is given by its absolute path, stands for the same after a crash and a replay
    /// as it does now; if so, durably when this returns, as if the directory had been synced. It is where each is the name of a file that
    /// the log has something of and may write through, or was given up by a rename that the log was told of
    /// ([`CachedFile::move_to`]). Whoever asks has to know himself which names may have changed since the directory was synced.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("ledger"));
    /// use std::sync::Arc;
    /// use untorn::storage::Descriptor;
    /// let cache = untorn::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_through(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// assert!(!cache.keeps_names(dir.path(), &["ledger".into()])?); // a directory to sync
    /// file.write_at(b"paid: 100", 0)?;
    /// assert!(cache.keeps_names(dir.path(), &["ledger".into()])?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of looking at the names; [`Error::Poisoned`] after a failed flush of the log.
    pub fn keeps_names(&self, dir: &Path, names: &[OsString]) -> Result<bool> {
        self.cache.keeps_names(dir, names)
    }

    /// Makes durable what was written to any of the files so far.
    ///
    /// # Errors
    /// Of a file that failed; [`Error::Poisoned`] after a failed flush of the log.
    pub fn sync(&self) -> Result<()> {
        self.cache.sync_all()
    }

    /// Brings everything that is in the log to the files, durably.
    ///
    /// # Errors
    /// Of a file that failed, whose writes stay in the log.
    pub fn drain(&self) -> Result<()> {
        self.cache.drain()
    }

    /// Brings one batch to the files, if there is anything: what the thread does.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed flush of the log. Files that fail say so themselves.
    pub fn drain_some(&self) -> Result<()> {
        self.cache.drain_some()
    }

    /// What is known of the log now.
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

/// The write-cache logs in a directory, by name: every file with the first bytes of one.
///
/// # Errors
/// Those of reading the directory.
pub fn logs_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for name in PageCache::new().list(dir)? {
        let path = dir.join(name);
        let unfinished = path.extension().is_some_and(|extension| extension == "new");
        // What may not be opened is no log of ours.
        if !unfinished && engine::is_log(&path).unwrap_or(false) {
            logs.push(path);
        }
    }
    logs.sort();
    Ok(logs)
}

/// Brings what a dead owner left in a log to the files. If all of it was, the log is empty afterwards; otherwise it is kept, and
/// replaying it again tries what is left.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let log = dir.path().join("log");
/// # untorn::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
/// let replay = untorn::replay(&log, None)?;
/// assert!(replay.is_complete());
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of [`CacheOptions::open`], but [`Error::Unreplayed`]: that is in the report.
pub fn replay(log: impl AsRef<Path>, progress: Option<ProgressFn>) -> Result<Replay> {
    replay_with(log.as_ref(), false, progress.as_ref())
}

/// What [`replay`] would do. Nothing is changed, in the log or in any file.
///
/// # Errors
/// As there.
pub fn look_into_log(log: impl AsRef<Path>) -> Result<Replay> {
    replay_with(log.as_ref(), true, None)
}

fn replay_with(log: &Path, look: bool, progress: Option<&ProgressFn>) -> Result<Replay> {
    let path = &storage::resolve(log)?;
    let detected = storage::detect(path)?;
    match detected.kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
            engine::replay(&Latched::new(Dax::new(detected.kind)), &Kernel, path, look, progress)
        }
        MediumKind::Block | MediumKind::Volatile => {
            engine::replay(&Latched::new(PageCache::new()), &Kernel, path, look, progress)
        }
    }
}
