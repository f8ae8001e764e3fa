//! Other processes that append to a log themselves: the descriptors they need, and the files they may write.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

pub use untorn_ring::Step;
use untorn_ring::{Change, Write};

use super::{CacheOptions, CachedFile, WriteCache};
use crate::error::{Error, Result};
use crate::storage::MediumKind;

/// The descriptors that another process needs to append to a log: see [`WriteCache::shared`].
#[derive(Clone, Copy, Debug)]
pub struct SharedLog<'a> {
    /// The memory with the log's [ledger](untorn_ring::SharedState), to be mapped from its first byte.
    pub shared_state: BorrowedFd<'a>,
    /// The log's descriptor in this process. A process that has the log mapped keeps others from opening it.
    pub log: BorrowedFd<'a>,
}

impl CacheOptions {
    /// Sets whether other processes may append to the log themselves, for write-through files, as under `untorn run`.
    /// Half of the log's entries are for them. It has no effect for a log on persistent memory with durability per
    /// commit, nor for a log on a disk with durability per write. The default is false.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.settings.shared = shared;
        self
    }

    /// With what has to be known of the medium to map the log.
    pub(super) fn synced(&self, kind: MediumKind) -> Self {
        let mut options = self.clone();
        options.settings.sync = kind == MediumKind::PersistentMemory;
        options
    }
}

impl WriteCache {
    /// The descriptors that another process needs to append to the log, by the rules of the crate `untorn-ring`; `None`
    /// if the log is not shared.
    ///
    /// A process that has them can write to the log, and so to every file behind it. Give them only to processes of the
    /// same user that are trusted as much as this one.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let options = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16);
    /// let cache = options.create(dir.path().join("log"))?;
    /// assert!(cache.shared().is_none(), "nobody asked for it");
    /// # Ok(()) }
    /// ```
    pub fn shared(&self) -> Option<SharedLog<'_>> {
        self.engine().shared().map(|(shared_state, log)| SharedLog { shared_state, log })
    }

    /// Opens the log again and flushes it, for a process that [writes](untorn_ring::Way::Written) to it and flushes it.
    /// The kernel reports a failed write once per open file description, so each process needs its own. Earlier
    /// failures must be known to this process.
    ///
    /// # Errors
    /// Errors of opening a file by `/proc/self/fd`. [`Error::Poisoned`] if a flush of the log
    /// failed, now or before. [`Error::Io`] with EINVAL if the log is not shared.
    pub fn open_shared(&self) -> Result<OwnedFd> {
        let failed = |error| Error::io("reopen", self.engine().path(), error);
        let log = self.shared().ok_or_else(|| failed(Errno::INVAL.into()))?.log.as_raw_fd();
        let opened = File::options().read(true).write(true).open(format!("/proc/self/fd/{log}")).map_err(failed)?;
        self.engine().flush_log()?;
        Ok(opened.into())
    }
}

impl CachedFile {
    /// Allows other processes to write to the file through the log from now on, if the log is
    /// [shared](CacheOptions::shared) and already has an entry of the file. With `durable` they treat a finished write
    /// as durable and request no sync; without it they request one. The permission ends when the file is demoted or
    /// fails, and with its last handle.
    pub fn allow_writers(&self, durable: bool) {
        self.cache.allow_writers(&self.file, durable);
    }

    /// Revokes that permission until the next call of [`allow_writers`](CachedFile::allow_writers). When this
    /// returns, no process writes to the file.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the log failed while the write of a killed process was being
    /// completed.
    pub fn revoke_writers(&self) -> Result<()> {
        self.cache.revoke_writers(&self.file)
    }

    /// Completes the unfinished write of a process that died, if there is one. A sync does this too, and so does the
    /// next write.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the log or the file failed meanwhile.
    pub fn recover_writers(&self) -> Result<()> {
        self.cache.mend_left(&self.file)
    }

    /// The writes, bytes and syncs of other processes since the last call.
    pub fn counts_shared(&self) -> [u64; 3] {
        self.cache.counts_shared(&self.file)
    }

    /// Writes to the file as another process does, and dies at a step if one is given; for simulators. Returns the
    /// number of bytes that the file took; `None` if the process would ask the server to write instead.
    ///
    /// # Errors
    /// Those of [`write_some`](CachedFile::write_some).
    pub fn write_shared(&self, src: &[u8], offset: u64, until: Option<Step>) -> Result<Option<usize>> {
        let write = Write { offset, len: src.len(), at_end: false };
        self.cache.change_shared(&self.file, write.into(), src, until)
    }

    /// Like [`write_shared`](CachedFile::write_shared), at the end of the file, through an `O_APPEND` description.
    ///
    /// # Errors
    /// Those of [`write_some`](CachedFile::write_some).
    pub fn append_shared(&self, src: &[u8], until: Option<Step>) -> Result<Option<usize>> {
        // Where that is is known when it is this one's turn.
        let write = Write { offset: 0, len: src.len(), at_end: true };
        self.cache.change_shared(&self.file, write.into(), src, until)
    }

    /// Changes the length as another process does, and dies at a step if one is given; for simulators. `None` if the
    /// process would ask the server instead.
    ///
    /// # Errors
    /// Those of [`set_len`](CachedFile::set_len).
    pub fn set_len_shared(&self, len: u64, until: Option<Step>) -> Result<Option<()>> {
        Ok(self.cache.change_shared(&self.file, Change::Length(len), &[], until)?.map(drop))
    }

    /// Syncs the file as another process does; for simulators. False if the process would ask the server to sync.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the log could not be flushed.
    pub fn sync_shared(&self) -> Result<bool> {
        self.cache.sync_shared(&self.file)
    }
}
