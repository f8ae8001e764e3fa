//! How to create and open a log.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::replay;
use super::{WriteCache, find_logs, replay_with, trust};
use crate::error::{Error, Result};
use crate::options::{Durability, ProgressFn};
use crate::storage::{self, Dax, Latched, Medium, MediumKind, PageCache};
use crate::write_cache::backing::{BackingDir, Kernel};
use crate::write_cache::engine::{self, Cache, Geometry, Open, Replay, Settings};

/// How to create and use a log; builds up like [`Options`](crate::Options).
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let options = untorn::write_cache::CacheOptions::new().size(1 << 20).entry_size(1024).max_files(16);
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
            chunk: 1 << 16,
        };
        CacheOptions { size: 64 << 20, entry: 4096, files: 1024, settings, progress: None }
    }
}

impl CacheOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of a new log in bytes; all of it is allocated at once. The default is 64 MiB.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Sets the data bytes of an entry of a new log, a multiple of 64 up to 1 MiB. A write takes as many whole entries
    /// as it needs. The default is 4096.
    #[must_use]
    pub fn entry_size(mut self, bytes: u32) -> Self {
        self.entry = bytes;
        self
    }

    /// Sets the number of files that can have writes in a new log at the same time, 1 to 65536. Each takes 8 KiB of the
    /// log. The default is 1024.
    #[must_use]
    pub fn max_files(mut self, files: u32) -> Self {
        self.files = files;
        self
    }

    /// Sets when a write is durable. The default is [`Durability::PerWrite`] on persistent memory, and
    /// [`Durability::PerCommit`] elsewhere, where each write would cost a device flush.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = Some(durability);
        self
    }

    /// Sets how many entries draining waits for, and how many it takes at most between two syncs of the files. The
    /// defaults with the log on persistent memory are 1000 and 10,000. On a disk, where draining would delay the log's
    /// own flushes, they are an eighth of the log's entries and 10,000. The first is limited to the second.
    #[must_use]
    pub fn batch(self, min: u64, max: u64) -> Self {
        self.batch_min(min).batch_max(max)
    }

    /// Sets only the first value of [`batch`](CacheOptions::batch).
    #[must_use]
    pub fn batch_min(mut self, min: u64) -> Self {
        self.settings.batch_min = Some(min.max(1));
        self
    }

    /// Sets only the second value of [`batch`](CacheOptions::batch).
    #[must_use]
    pub fn batch_max(mut self, max: u64) -> Self {
        self.settings.batch_max = max.max(1);
        self
    }

    /// Sets how long an entry waits for a batch to fill. The default is 100 ms, and one second with the log on a disk.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.settings.max_age = Some(age);
        self
    }

    /// Sets whether a thread drains. Without it, a writer that finds the log full drains, and [`WriteCache::drain`].
    /// The default is true.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.settings.background = background;
        self
    }

    /// Sets from which length on a write to an [atomic](WriteCache::attach_atomic) file goes to the *spill file* until
    /// it is drained. That is a file beside the log, with `.spill` appended to its name, which the log makes when it
    /// needs one and which grows as needed. Its chunks have this length. The default is 64 KiB.
    #[must_use]
    pub fn spill_from(mut self, bytes: u32) -> Self {
        self.settings.chunk = bytes.into();
        self
    }

    /// Sets a function to call with the progress of a replay.
    #[must_use]
    pub fn progress(mut self, progress: ProgressFn) -> Self {
        self.progress = Some(progress);
        self
    }

    fn geometry(&self, path: &Path) -> Result<Geometry> {
        Geometry::of(self.entry, self.files, self.size).ok_or_else(|| {
            let (size, entry, files) = (self.size, self.entry, self.files);
            let what = format!(
                "a log of {size} bytes cannot hold entries of {entry} bytes for {files} files; the entry size must be \
                 a multiple of 64 up to 1 MiB, files 1 to 65536 (8 KiB of log each), and at least 8 entries must fit"
            );
            Error::Invalid { path: path.to_owned(), what }
        })
    }

    /// Creates a log, which must not exist yet, and opens it. Only its owner may read it and write to it, because it
    /// holds what is written to files that others may not read.
    ///
    /// # Errors
    /// [`Error::Io`] with EEXIST if the name is taken, and with ENOSPC if there is no room for the whole log;
    /// [`Error::InUse`] if another process is creating it; otherwise as for [`open`](CacheOptions::open).
    pub fn create(&self, path: impl AsRef<Path>) -> Result<WriteCache> {
        let path = storage::absolute(path.as_ref())?;
        let geometry = self.geometry(&path)?;
        engine::create(&Latched::new(PageCache::new()), &path, geometry)?;
        self.open(path)
    }

    /// Opens a log. It first replays the entries that a dead owner left: see [`WriteCache::replayed`].
    ///
    /// # Errors
    /// - [`Error::Io`] with ENOENT if there is no log.
    /// - [`Error::InUse`] while another handle has it open.
    /// - [`Error::ReplayIncomplete`] if it has writes that could not be brought to their files.
    /// - [`Error::ChangedOutside`] if another program changed a file after the log's last write of it.
    /// - [`Error::Invalid`] for a file that is not a log; [`Error::Corrupt`] for a damaged or truncated one.
    /// - [`Error::Unsupported`] for a log of a later version.
    /// - [`Error::UntrustedLog`] for a log that neither the caller nor root owns, or that other users may write to. A
    ///   replay writes to the files that a log names, with the rights of the caller.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<WriteCache> {
        let path = &trust::resolve(path.as_ref())?;
        let detected = storage::detect(path)?;
        let place = Arc::new(Kernel);
        match detected.kind {
            MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
                self.synced(detected.kind).open_on(Dax::new(detected.kind), place, path)
            }
            MediumKind::Block | MediumKind::Volatile => self.open_on(PageCache::new(), place, path),
        }
    }

    /// Opens a log of a pool: a directory in which each process has one log. It first replays the entries of dead
    /// owners in all of them. Then it takes a log without an owner, or creates a new one.
    ///
    /// # Errors
    /// Errors of listing the directory and of [`create`](CacheOptions::create). A log that cannot be replayed, or that
    /// is not trusted, is left for `untorn replay`, with a message through `tracing`.
    pub fn open_in(&self, dir: impl AsRef<Path>) -> Result<WriteCache> {
        let dir = &storage::absolute(dir.as_ref())?;
        let logs = find_logs(dir)?;
        // All of them first: whose file this process is going to open may be in any.
        let mut free = Vec::new();
        for log in logs {
            match replay_with(&log, false, None, self.progress.as_ref()) {
                Ok(replay) if replay.is_complete() => free.push(log),
                Ok(_) | Err(Error::InUse { .. }) => {}
                Err(error) => tracing::warn!(log = %log.display(), %error, "cannot use a log of the pool"),
            }
        }
        for log in free {
            match self.open(&log) {
                Err(Error::InUse { .. } | Error::ReplayIncomplete { .. }) => {}
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
        Err(Error::Invalid {
            path: dir.clone(),
            what: "every log number in this directory is taken; remove logs that \
                                                       are no longer needed"
                .to_owned(),
        })
    }

    /// Like [`create`](CacheOptions::create), on custom media; for simulators.
    ///
    /// # Errors
    /// As for [`create`](CacheOptions::create).
    pub fn create_on<M: Medium>(
        &self,
        medium: M,
        place: Arc<dyn BackingDir>,
        path: impl AsRef<Path>,
    ) -> Result<WriteCache> {
        let path = path.as_ref();
        let medium = Arc::new(Latched::new(medium));
        engine::create(&*medium, path, self.geometry(path)?)?;
        self.open_latched(medium, place, path)
    }

    /// Like [`replay`], on custom media; for simulators.
    ///
    /// # Errors
    /// As for [`replay`].
    pub fn replay_on<M: Medium>(&self, medium: M, place: &dyn BackingDir, path: impl AsRef<Path>) -> Result<Replay> {
        engine::replay(&Latched::new(medium), place, path.as_ref(), false, None, self.progress.as_ref())
    }

    /// Like [`open`](CacheOptions::open), on custom media; for simulators.
    ///
    /// # Errors
    /// As for [`open`](CacheOptions::open).
    pub fn open_on<M: Medium>(
        &self,
        medium: M,
        place: Arc<dyn BackingDir>,
        path: impl AsRef<Path>,
    ) -> Result<WriteCache> {
        self.open_latched(Arc::new(Latched::new(medium)), place, path.as_ref())
    }

    fn open_latched<M: Medium>(
        &self,
        medium: Arc<Latched<M>>,
        place: Arc<dyn BackingDir>,
        path: &Path,
    ) -> Result<WriteCache> {
        let (cache, replay) = Cache::open(medium, place, path, &self.settings, self.progress.as_ref())?;
        Ok(WriteCache { cache: Arc::new(Open(cache)), replay: Arc::new(replay) })
    }
}
