//! Other processes that append to a log themselves: what they are given, and for which files.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

pub use untorn_ring::Step;
use untorn_ring::{Change, Write};

use super::{CacheOptions, CachedFile, WriteCache};
use crate::error::{Error, Result};
use crate::storage::MediumKind;

/// What another process needs to append to a log, both as descriptors to hand over: see [`WriteCache::shared`].
#[derive(Clone, Copy, Debug)]
pub struct SharedLog<'a> {
    /// The memory with the [ledger](untorn_ring::Ledger) of the log, to be mapped from its first byte.
    pub ledger: BorrowedFd<'a>,
    /// The log, as this process has it open: whoever has it mapped keeps others from opening it.
    pub log: BorrowedFd<'a>,
}

impl CacheOptions {
    /// Lets other processes append to the log themselves, for files that are written through, as `untorn run` does: of the log's
    /// entries one half is for them. Nothing for a log on persistent memory that is used per commit, nor for one on a disk that is used
    /// per write. False without it.
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
    /// What another process needs to append to the log, by the rules of the crate `untorn-ring`; `None` if it may not.
    ///
    /// Whoever gets it can write to the log, and so to every file that is behind it: it is for processes of the same user that are
    /// trusted as much as this one.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let options = untorn::CacheOptions::new().size(1 << 20).max_files(16);
    /// let cache = options.create(dir.path().join("log"))?;
    /// assert!(cache.shared().is_none(), "nobody asked for it");
    /// # Ok(()) }
    /// ```
    pub fn shared(&self) -> Option<SharedLog<'_>> {
        self.cache.shared().map(|(ledger, log)| SharedLog { ledger, log })
    }

    /// The log, opened anew and then flushed: for a process that [writes](untorn_ring::Way::Written) to it and flushes it. The
    /// kernel tells of a write that failed once by each description, so each process needs its own, and of what failed before it was
    /// opened this one has to know.
    ///
    /// # Errors
    /// Those of opening a file by `/proc/self/fd`; [`Error::Poisoned`](crate::Error::Poisoned) if the log could not be flushed, now or
    /// before; EINVAL if the log is not shared.
    pub fn open_shared(&self) -> Result<OwnedFd> {
        let failed = |error| Error::io("open once more", self.cache.path(), error);
        let log = self.shared().ok_or_else(|| failed(Errno::INVAL.into()))?.log.as_raw_fd();
        let opened = File::options().read(true).write(true).open(format!("/proc/self/fd/{log}")).map_err(failed)?;
        self.cache.flush_log()?;
        Ok(opened.into())
    }
}

impl CachedFile {
    /// Lets other processes write to the file from now on, by way of the log, if that is [shared](CacheOptions::shared) and has
    /// something of the file already. With `durable` they take what was written for durable, and ask for no sync; without it, they ask.
    /// It ends when the file is demoted or fails, or with its last handle.
    pub fn let_in(&self, durable: bool) {
        self.cache.let_in(&self.file, durable);
    }

    /// Ends that until it is called again. No process is writing to the file when this returns.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) if the log failed while a write of a process that was killed was brought to its end.
    pub fn keep_out(&self) -> Result<()> {
        self.cache.keep_out(&self.file)
    }

    /// Brings to an end what a process that died was writing to the file, if there is such. A sync does it too, and whoever writes next.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) if the log or the file failed meanwhile.
    pub fn mend(&self) -> Result<()> {
        self.cache.mend_left(&self.file)
    }

    /// Writes, bytes and syncs of other processes since the last call.
    pub fn counts_beside(&self) -> [u64; 3] {
        self.cache.counts_beside(&self.file)
    }

    /// Writes to the file as another process does, and dies at a step if one is given: for simulators. How many bytes the file took;
    /// `None` if the process would ask for it to be written instead.
    ///
    /// # Errors
    /// Those of [`write_some`](CachedFile::write_some).
    pub fn write_beside(&self, src: &[u8], offset: u64, until: Option<Step>) -> Result<Option<usize>> {
        let write = Write { offset, len: src.len(), at_end: false };
        self.cache.change_beside(&self.file, write.into(), src, until)
    }

    /// The same to its end, by a description that the kernel appends for.
    ///
    /// # Errors
    /// Those of [`write_some`](CachedFile::write_some).
    pub fn append_beside(&self, src: &[u8], until: Option<Step>) -> Result<Option<usize>> {
        // Where that is is known when it is this one's turn.
        let write = Write { offset: 0, len: src.len(), at_end: true };
        self.cache.change_beside(&self.file, write.into(), src, until)
    }

    /// Changes the length as another process does, and dies at a step if one is given: for simulators. `None` if the process would ask
    /// for it.
    ///
    /// # Errors
    /// Those of [`set_len`](CachedFile::set_len).
    pub fn set_len_beside(&self, len: u64, until: Option<Step>) -> Result<Option<()>> {
        Ok(self.cache.change_beside(&self.file, Change::Length(len), &[], until)?.map(drop))
    }

    /// Syncs the file as another process does: for simulators. False if the process would ask for it to be synced.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) if the log could not be flushed.
    pub fn sync_beside(&self) -> Result<bool> {
        self.cache.sync_beside(&self.file)
    }
}
