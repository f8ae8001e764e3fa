//! How a log is made and opened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::replay;
use super::{WriteCache, logs_in, replay_with};
use crate::error::{Error, Result};
use crate::options::{Durability, ProgressFn};
use crate::storage::{self, Dax, Latched, Medium, MediumKind, PageCache};
use crate::write_cache::backing::{Kernel, SlowPlace};
use crate::write_cache::engine::{self, Cache, Geometry, Open, Replay, Settings};

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
    pub(super) settings: Settings,
    progress: Option<ProgressFn>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        let settings = Settings {
            durability: None,
            batch_min: None,
            batch_max: 10_000,
            max_age: None,
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

    /// Entries that draining waits for, and how many it takes between two syncs of the files at most. Without it 1000 and 10,000 with the
    /// log on persistent memory; on a disk, where it would be in the way of the log's own flushes, an eighth of the log's entries, and
    /// 10,000. What is waited for is no more than what is taken.
    #[must_use]
    pub fn batch(self, min: u64, max: u64) -> Self {
        self.batch_min(min).batch_max(max)
    }

    /// The first of [`batch`](CacheOptions::batch) alone.
    #[must_use]
    pub fn batch_min(mut self, min: u64) -> Self {
        self.settings.batch_min = Some(min.max(1));
        self
    }

    /// The second of [`batch`](CacheOptions::batch) alone.
    #[must_use]
    pub fn batch_max(mut self, max: u64) -> Self {
        self.settings.batch_max = max.max(1);
        self
    }

    /// How long an entry waits for a batch to come together. Without it 100 ms, and a second with the log on a disk.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.settings.max_age = Some(age);
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
        let path = storage::absolute(path.as_ref())?;
        let geometry = self.geometry(&path)?;
        engine::create(&Latched::new(PageCache::new()), &path, geometry)?;
        self.open(path)
    }

    /// Opens a log. What a dead owner left in it is brought to the files first: see [`WriteCache::replayed`].
    ///
    /// # Errors
    /// ENOENT if there is none; [`Error::InUse`] while somebody has it open; [`Error::Unreplayed`] if it has writes that could
    /// not be brought to their files; [`Error::Corrupt`] for a file that is no log, or one that was cut short;
    /// [`Error::Unsupported`] for one of a later version.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<WriteCache> {
        let path = &storage::resolve(path.as_ref())?;
        let detected = storage::detect(path)?;
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
        let dir = &storage::absolute(dir.as_ref())?;
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
        engine::create(&*medium, path, self.geometry(path)?)?;
        self.open_latched(medium, place, path)
    }

    /// [`replay`] on media of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn replay_on<M: Medium>(&self, medium: M, place: &dyn SlowPlace, path: impl AsRef<Path>) -> Result<Replay> {
        engine::replay(&Latched::new(medium), place, path.as_ref(), false, self.progress.as_ref())
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
