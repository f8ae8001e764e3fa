//! The file behind the log of an atomic file, which keeps the modification time that programs see.
//!
//! # Invariants
//!
//! 1. The log brings bytes to the source long after the write. Each such store sets the modification time back to the
//!    one that the writers made, under one lock with the store. So `make` and `tar` find the times that they expect.
//! 2. The log asks for the modification time after a store, and finds the one that the store left.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use rustix::time::{ClockId, clock_gettime};
use untorn::Result;
use untorn::testing::storage::{Barrier, Identity};
use untorn::write_cache::{BackingFile, CreateAttrs, Descriptor};

use crate::serve::lock;

/// The time that programs see.
#[derive(Debug)]
struct Seen {
    /// None before they changed the file.
    time: Option<Timespec>,
    /// Whether the source may have another one.
    differs: bool,
}

/// The modification time of a file as programs see it.
#[derive(Debug)]
pub(super) struct Modified {
    time: Mutex<Seen>,
    /// Whether the kernel keeps the time of writes, because it caches them, and tells it before or after them.
    by_kernel: bool,
}

impl Modified {
    /// The time of a file. A kernel that keeps the times tells only those that differ from the file's own.
    pub(super) fn new(file: &OwnedFd, by_kernel: bool) -> Self {
        let own = rustix::fs::fstat(file).ok().filter(|_| by_kernel);
        let own = own.map(|status| Timespec { tv_sec: status.st_mtime as _, tv_nsec: status.st_mtime_nsec as _ });
        Modified { time: Mutex::new(Seen { time: own, differs: false }), by_kernel }
    }

    pub(super) fn get(&self) -> Option<Timespec> {
        lock(&self.time).time
    }

    /// A program changes the file now.
    pub(super) fn now(&self) {
        if !self.by_kernel {
            *lock(&self.time) = Seen { time: Some(clock_gettime(ClockId::Realtime)), differs: true };
        }
    }

    /// The source was changed otherwise than by [`Timed`].
    pub(super) fn is_stored_to(&self) {
        lock(&self.time).differs = true;
    }

    /// A program, or the kernel, sets the time. `set` does so in the source.
    pub(super) fn set<T>(&self, time: Timespec, set: impl FnOnce() -> T) -> T {
        let mut modified = lock(&self.time);
        let time = match time.tv_nsec {
            UTIME_OMIT => None,
            rustix::fs::UTIME_NOW => Some(clock_gettime(ClockId::Realtime)),
            _ => Some(time),
        };
        if time.is_some() {
            *modified = Seen { time, differs: true };
        }
        set()
    }

    /// Stores, and sets the time that programs see.
    fn storing<T>(&self, file: &OwnedFd, store: impl FnOnce() -> T) -> T {
        let mut modified = lock(&self.time);
        let stored = store();
        if let Some(last_modification) = modified.time {
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            // A writer that is not the owner may not. Its file has the time of the store.
            let _ = rustix::fs::futimens(file, &Timestamps { last_access, last_modification });
            modified.differs = false;
        }
        stored
    }

    /// Sets the time that programs see, if the source has another one.
    pub(super) fn settle(&self, file: &OwnedFd) {
        if lock(&self.time).differs {
            self.storing(file, || ());
        }
    }
}

/// The file behind the log.
pub(super) struct Timed {
    pub(super) inner: Descriptor,
    pub(super) descriptor: Arc<OwnedFd>,
    pub(super) modified: Arc<Modified>,
}

impl BackingFile for Timed {
    fn identity(&self) -> Result<Identity> {
        self.inner.identity()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn is_removed(&self) -> Result<bool> {
        self.inner.is_removed()
    }

    fn create_attrs(&self) -> Result<Option<CreateAttrs>> {
        self.inner.create_attrs()
    }

    fn modified(&self) -> Result<Option<u64>> {
        self.inner.modified()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<usize> {
        self.inner.read(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.modified.storing(&self.descriptor, || self.inner.write(offset, src))
    }

    fn write_some(&self, offset: u64, src: &[u8]) -> Result<usize> {
        self.modified.storing(&self.descriptor, || self.inner.write_some(offset, src))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.modified.storing(&self.descriptor, || self.inner.set_len(len))
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.inner.sync(barrier)
    }

    fn begin_sync(&self) {
        self.inner.begin_sync();
    }
}
