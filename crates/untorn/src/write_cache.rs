//! [`WriteCache`] and [`CachedFile`]: a log on a fast medium in front of ordinary files.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{self, AnyCache, At, Cache, Geometry, Managed, Open, Settings};
pub use crate::cache::{CacheInfo, Fate, Replay, ReplayedFile};
use crate::error::{Error, Result};
use crate::medium::{self, Dax, Descriptor, Kernel, Latched, Medium, MediumKind, PageCache, SlowFile, SlowPlace};
use crate::options::{Durability, ProgressFn};

mod beside;

pub use self::beside::{SharedLog, Step};

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

/// A file behind a [`WriteCache`]. Handles of one inode, attached by whatever name, share one state.
pub struct CachedFile {
    cache: Arc<dyn AnyCache>,
    file: Arc<Managed>,
}

/// How a log is made and used; builds up like [`Options`](crate::Options).
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let options = untorn::CacheOptions::new().size(1 << 20).entry_size(1024).max_files(16);
/// let cache = options.create(dir.path().join("log"))?;
/// assert_eq!(cache.info()?.entry_size, 1024);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct CacheOptions {
    size: u64,
    entry: u32,
    files: u32,
    settings: Settings,
    progress: Option<ProgressFn>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        let settings = Settings {
            durability: None,
            batch_min: 1000,
            batch_max: 10_000,
            max_age: Duration::from_millis(100),
            background: true,
            shared: false,
            sync: false,
        };
        CacheOptions { size: 64 << 20, entry: 4096, files: 1024, settings, progress: None }
    }
}

impl CacheOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of a new log, all of them allocated at once. 64 MiB without it.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Bytes of data in an entry of a new log, a multiple of 64 up to 1 MiB. A write takes as many entries as it needs, each of
    /// them whole. 4096 without it.
    #[must_use]
    pub fn entry_size(mut self, bytes: u32) -> Self {
        self.entry = bytes;
        self
    }

    /// Files that can have writes in a new log at the same time, 1 to 65536; each takes 8 KiB of it. 1024 without it.
    #[must_use]
    pub fn max_files(mut self, files: u32) -> Self {
        self.files = files;
        self
    }

    /// When a write is durable. Without it, [`Durability::PerWrite`] on persistent memory and [`Durability::PerCommit`]
    /// elsewhere, where each write would cost a device flush.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = Some(durability);
        self
    }

    /// Entries that draining waits for, and how many it takes between two syncs of the files at most. 1000 and 10,000 without
    /// it.
    #[must_use]
    pub fn batch(mut self, min: u64, max: u64) -> Self {
        (self.settings.batch_min, self.settings.batch_max) = (min.max(1), max.max(1));
        self
    }

    /// How long an entry waits for a batch to come together. 100 ms without it.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.settings.max_age = age;
        self
    }

    /// Whether a thread drains; without one, whoever finds the log full does, and [`WriteCache::drain`]. True without it.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.settings.background = background;
        self
    }

    /// Told how far a replay is.
    #[must_use]
    pub fn progress(mut self, progress: ProgressFn) -> Self {
        self.progress = Some(progress);
        self
    }

    fn geometry(&self, path: &Path) -> Result<Geometry> {
        Geometry::of(self.entry, self.files, self.size).ok_or_else(|| {
            let (size, entry, files) = (self.size, self.entry, self.files);
            let what = format!(
                "a log of {size} bytes cannot have entries of {entry} bytes for {files} files: entries are a multiple of 64 up \
                 to 1 MiB, files 1 to 65536 of 8 KiB each, and 8 entries must fit"
            );
            Error::Invalid { path: path.to_owned(), what }
        })
    }

    /// Makes a log, which must not exist yet, and opens it.
    ///
    /// # Errors
    /// EEXIST if the name is taken, [`Error::InUse`] if another process is making it, ENOSPC if there is no room for all of
    /// it; those of [`open`](CacheOptions::open).
    pub fn create(&self, path: impl AsRef<Path>) -> Result<WriteCache> {
        let path = medium::absolute(path.as_ref())?;
        let geometry = self.geometry(&path)?;
        cache::create(&Latched::new(PageCache::new()), &path, geometry)?;
        self.open(path)
    }

    /// Opens a log. What a dead owner left in it is brought to the files first: see [`WriteCache::replayed`].
    ///
    /// # Errors
    /// ENOENT if there is none; [`Error::InUse`] while somebody has it open; [`Error::Unreplayed`] if it has writes that could
    /// not be brought to their files; [`Error::Corrupt`] for a file that is no log, or one that was cut short;
    /// [`Error::Unsupported`] for one of a later version.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<WriteCache> {
        let path = &medium::resolve(path.as_ref())?;
        let detected = medium::detect(path)?;
        let place = Arc::new(Kernel);
        match detected.kind {
            MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
                self.synced(detected.kind).open_with(Dax::new(detected.kind), place, path)
            }
            MediumKind::Block | MediumKind::Volatile => self.open_with(PageCache::new(), place, path),
        }
    }

    /// Opens a log of a pool: a directory in which each process has one. What dead owners left in any of them is replayed first.
    /// A log that nobody has is taken, or a new one is made.
    ///
    /// # Errors
    /// Those of listing the directory and of [`create`](CacheOptions::create). A log that cannot be replayed is left to
    /// `untorn replay`, and logged.
    pub fn open_in(&self, dir: impl AsRef<Path>) -> Result<WriteCache> {
        let dir = &medium::absolute(dir.as_ref())?;
        let logs = logs_in(dir)?;
        // All of them first: whose file this process is going to open may be in any.
        let mut free = Vec::new();
        for log in logs {
            match replay_with(&log, false, self.progress.as_ref()) {
                Ok(replay) if replay.is_complete() => free.push(log),
                Ok(_) | Err(Error::InUse { .. }) => {}
                Err(error) => tracing::warn!(log = %log.display(), %error, "a log of the pool is of no use"),
            }
        }
        for log in free {
            match self.open(&log) {
                Err(Error::InUse { .. } | Error::Unreplayed { .. }) => {}
                other => return other,
            }
        }
        for number in 1.. {
            match self.create(dir.join(format!("{number}.log"))) {
                Err(Error::InUse { .. }) => {}
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
                other => return other,
            }
        }
        Err(Error::Invalid { path: dir.clone(), what: "it has logs of all numbers".to_owned() })
    }

    /// [`create`](CacheOptions::create) on media of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn create_on<M: Medium>(
        &self,
        medium: M,
        place: Arc<dyn SlowPlace>,
        path: impl AsRef<Path>,
    ) -> Result<WriteCache> {
        let path = path.as_ref();
        let medium = Arc::new(Latched::new(medium));
        cache::create(&*medium, path, self.geometry(path)?)?;
        self.open_latched(medium, place, path)
    }

    /// [`replay`] on media of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn replay_on<M: Medium>(&self, medium: M, place: &dyn SlowPlace, path: impl AsRef<Path>) -> Result<Replay> {
        cache::replay(&Latched::new(medium), place, path.as_ref(), false, self.progress.as_ref())
    }

    /// [`open`](CacheOptions::open) on media of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn open_on<M: Medium>(
        &self,
        medium: M,
        place: Arc<dyn SlowPlace>,
        path: impl AsRef<Path>,
    ) -> Result<WriteCache> {
        self.open_with(medium, place, path.as_ref())
    }

    fn open_with<M: Medium>(&self, medium: M, place: Arc<dyn SlowPlace>, path: &Path) -> Result<WriteCache> {
        self.open_latched(Arc::new(Latched::new(medium)), place, path)
    }

    fn open_latched<M: Medium>(
        &self,
        medium: Arc<Latched<M>>,
        place: Arc<dyn SlowPlace>,
        path: &Path,
    ) -> Result<WriteCache> {
        let (cache, replay) = Cache::open(medium, place, path, &self.settings, self.progress.as_ref())?;
        Ok(WriteCache { cache: Arc::new(Open(cache)), replay: Arc::new(replay) })
    }
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
    /// renames or removes it demotes it before: a replay looks for it at `path` and beside, and keeps what it finds no file for.
    /// The first write makes the file's name durable, and what it holds.
    ///
    /// # Errors
    /// [`Error::Io`] where the file may not be opened for both; [`Error::NotAFile`]; [`Error::Invalid`] for a path that is
    /// longer than 4000 bytes, or not that of the file.
    pub fn attach(&self, file: BorrowedFd<'_>, path: &Path) -> Result<CachedFile> {
        // It is the directory with the file itself that is flushed and searched, and not that with a link to it.
        let path = &medium::resolve(path)?;
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
    /// use untorn::medium::Descriptor;
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

impl CachedFile {
    /// Where the file was when it was attached first.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Length in bytes, with everything written so far.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn len(&self) -> Result<u64> {
        self.cache.len(&self.file)
    }

    /// Whether the length is 0.
    ///
    /// # Errors
    /// Those of [`len`](CachedFile::len).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `dst` from `offset`, as far as the file goes, and returns how many bytes that were. Atomic towards writes: of each
    /// it has everything or nothing.
    ///
    /// # Errors
    /// Those of reading the file and the log.
    pub fn read_at(&self, dst: &mut [u8], offset: u64) -> Result<usize> {
        self.cache.read(&self.file, offset, dst)
    }

    /// Writes all of `src` at `offset`; the file grows if need be. After a crash all of it is there or nothing, unless it is longer
    /// than a quarter of the log: that goes past the log, to the file, and is there when the call has returned. (Of one that was under
    /// way when its process was killed, the kernel may show a part that a power cut still takes back.)
    ///
    /// # Errors
    /// [`Error::Poisoned`] once the file or the log has failed; [`Error::Io`] with ENFILE if the log has entries of as many
    /// files as it can.
    pub fn write_at(&self, src: &[u8], offset: u64) -> Result<()> {
        self.write_all(src, At::Offset(offset)).map(drop)
    }

    /// Writes as much of `src` at `offset` as there is room for in the file, and returns how many bytes that were. It is all of
    /// them, but for a file that is written through ([`WriteCache::attach_through`]): then it is what its file system takes. That is
    /// there as a whole after a crash, or nothing of `src`; but while the call has not returned, all of `src` may be.
    ///
    /// # Errors
    /// Those of [`write_at`](CachedFile::write_at); [`Error::Io`] if nothing was written, and the file then is as it was.
    pub fn write_some(&self, src: &[u8], offset: u64) -> Result<usize> {
        self.cache.write(&self.file, At::Offset(offset), src).map(|(_, count)| count)
    }

    /// Until all of it is written, or there is an error. Where it is.
    fn write_all(&self, src: &[u8], at: At) -> Result<u64> {
        let (offset, mut done) = self.cache.write(&self.file, at, src)?;
        while done < src.len() {
            done += self.cache.write(&self.file, At::Offset(offset + done as u64), &src[done..])?.1;
        }
        Ok(offset)
    }

    /// Writes at the end, wherever that is when the write takes place, and returns the offset.
    ///
    /// # Errors
    /// Those of [`write_at`](CachedFile::write_at).
    pub fn append(&self, src: &[u8]) -> Result<u64> {
        self.write_all(src, At::End)
    }

    /// Changes the length; what is added reads as zeros.
    ///
    /// # Errors
    /// Those of [`write_at`](CachedFile::write_at).
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.cache.set_len(&self.file, len)
    }

    /// Returns once everything written so far is durable, which under [`Durability::PerWrite`] it is already.
    ///
    /// # Errors
    /// The first failure of the file, to every call from then on; [`Error::Poisoned`] after a failed flush of the log.
    pub fn sync(&self) -> Result<()> {
        self.cache.sync(&self.file)
    }

    /// Makes durable what the kernel has of the file and the log knows nothing of: what was written to it before it was attached,
    /// and its attributes. Flushes the file on its own device. What is in the log stays there; [`sync`](CachedFile::sync) is for
    /// that.
    ///
    /// # Errors
    /// [`Error::Io`] if the flush fails, which is a failure of the file: then that, to every call from then on.
    pub fn sync_file(&self) -> Result<()> {
        self.cache.sync_file(&self.file)
    }

    /// Hands everything written so far to the kernel, where other programs see it: before a lock is released or the file is
    /// closed. It waits for no device. A file that is written through has it all already.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn hand_over(&self) -> Result<()> {
        self.cache.hand_over(&self.file)
    }

    /// Drains the file and looks at its length anew: after a lock was taken, when another program may have written to it.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn refresh(&self) -> Result<()> {
        self.cache.refresh(&self.file)
    }

    /// Drains the file and lets all further calls, through any handle, go past the log to the kernel: from then on any other
    /// program may use it too. It is for good, until the last handle is dropped.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn demote(&self) -> Result<()> {
        self.cache.demote(&self.file)
    }

    /// Notes, durably, that the last name of the file is about to be removed: then it may be removed without being demoted, and
    /// what the log has of it needs no flush of its device first. Until the removal is durable a crash may bring the file back,
    /// and a replay what was written to it; if the file is gone, a replay does without it.
    ///
    /// False if that cannot be, and the file has to be [demoted](CachedFile::demote): the log has nothing of it, it was demoted
    /// already, or its file system does not tell a file from an earlier one with the same inode number.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn leave(&self) -> Result<bool> {
        self.cache.leave(&self.file)
    }

    /// Whether the file has, durably, all that was written so far, and the log nothing of it any more.
    pub fn is_settled(&self) -> bool {
        self.cache.is_settled(&self.file)
    }

    /// Whether the file can still be written to.
    ///
    /// # Errors
    /// The failure of the file, if there was one since it was attached, or of the log.
    pub fn standing(&self) -> Result<()> {
        self.cache.standing(&self.file)
    }

    /// Whether it was [demoted](CachedFile::demote).
    pub fn is_demoted(&self) -> bool {
        self.file.is_demoted()
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile").field("path", &self.path()).finish()
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.cache.detach(&self.file);
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
        if !unfinished && cache::is_log(&path).unwrap_or(false) {
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
    let path = &medium::resolve(log)?;
    let detected = medium::detect(path)?;
    match detected.kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
            cache::replay(&Latched::new(Dax::new(detected.kind)), &Kernel, path, look, progress)
        }
        MediumKind::Block | MediumKind::Volatile => {
            cache::replay(&Latched::new(PageCache::new()), &Kernel, path, look, progress)
        }
    }
}
