//! The file behind the log of an atomic file, which keeps the modification time that programs see.
//!
//! # Invariants
//!
//! 1. The log brings bytes to the source long after the write. Each such store sets the modification time back to the
//!    one that the writers made, under one lock with the store. So `make` and `tar` find the times that they expect.
//! 2. The log asks for the modification time after a store, and finds the one that the store left.
//! 3. The *stamp* is the length and the modification time that the last own change left in the source, or those that
//!    the source had before the first one. No store is made to a source with another stamp: another program changed it,
//!    and the log keeps the store. So neither version is lost, and `untorn replay` asks which one is to stay.
//! 4. A file has one stamp. The log may go on with the file behind it that it was given first, so a file that is
//!    managed anew keeps the [`Modified`] that it had, as long as the log has that ([`Times`]).
//! 5. Nothing is at stake where the log has no change that the source lacks. If the kernel caches no writes, the stamp
//!    is taken anew then. A kernel that caches them may have pages from before the other program's change, so the stamp
//!    stays as long as programs have the file open for writing.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use untorn::testing::storage::{Barrier, Identity};
use untorn::write_cache::{BackingFile, CreateAttrs, Descriptor};
use untorn::{Error, Result};

use crate::serve::lock;
use crate::serve::nodes::Key;

/// A program that syncs a file which another program changed is told.
const BOTH: &str = "it was changed in the source, past the mount; both versions are kept: after the end of the mount, \
                    `untorn replay --trust file LOG` drops the log's, and `--trust log` writes it over the file";

/// Length and modification time of a source; `None` if they are not known.
type Stamp = Option<(i64, i64, u64)>;

fn stamp(file: &OwnedFd) -> Stamp {
    let status = rustix::fs::fstat(file).ok()?;
    #[allow(clippy::useless_conversion)] // Not of the same width everywhere.
    Some((status.st_size.into(), status.st_mtime.into(), status.st_mtime_nsec.into()))
}

/// The time that programs see.
#[derive(Debug)]
struct Seen {
    /// None before they changed the file.
    time: Option<Timespec>,
    /// Whether the source may have another one.
    differs: bool,
    /// The state of the source, as far as the log knows.
    stamp: Stamp,
    /// A sync was refused, because another program changed the source.
    refused: bool,
}

impl Seen {
    /// The time of a file. A kernel that keeps the times tells only those that differ from the file's own.
    fn new(file: &OwnedFd, by_kernel: bool) -> Self {
        let own = rustix::fs::fstat(file).ok().filter(|_| by_kernel);
        let own = own.map(|status| Timespec { tv_sec: status.st_mtime as _, tv_nsec: status.st_mtime_nsec as _ });
        Seen { time: own, differs: false, stamp: stamp(file), refused: false }
    }

    fn is_changed(&self, file: &OwnedFd) -> bool {
        self.stamp.is_some() && self.stamp != stamp(file)
    }

    /// Does what changes the source. The stamp of one that another program changed stays as it is. So does one that is
    /// not known: a store past [`Timed`] may run at this moment.
    fn changing<T>(&mut self, file: &OwnedFd, change: impl FnOnce() -> T) -> T {
        let is_known = self.stamp.is_some() && !self.is_changed(file);
        let done = change();
        if is_known {
            self.stamp = stamp(file);
        }
        done
    }
}

/// The modification time of a file as programs see it.
#[derive(Debug)]
pub(super) struct Modified {
    time: Mutex<Seen>,
    /// Whether the kernel keeps the time of writes, because it caches them, and tells it before or after them.
    by_kernel: bool,
}

impl Modified {
    fn new(file: &OwnedFd, by_kernel: bool) -> Self {
        Modified { time: Mutex::new(Seen::new(file, by_kernel)), by_kernel }
    }

    /// The file is managed anew. The log has nothing of it, unless another program changed it.
    fn renew(&self, file: &OwnedFd) {
        let mut modified = lock(&self.time);
        if !modified.refused {
            *modified = Seen::new(file, self.by_kernel);
        }
    }

    pub(super) fn get(&self) -> Option<Timespec> {
        lock(&self.time).time
    }

    /// A program changes the file now.
    pub(super) fn now(&self) {
        if !self.by_kernel {
            let mut modified = lock(&self.time);
            (modified.time, modified.differs) = (Some(clock_gettime(ClockId::Realtime)), true);
        }
    }

    /// The log has nothing that the source lacks, and a program is about to change the file.
    pub(super) fn begin(&self, file: &OwnedFd) {
        if !self.by_kernel {
            let mut modified = lock(&self.time);
            if !modified.refused {
                modified.stamp = stamp(file);
            }
        }
    }

    /// The log is put in front of the source, which may have had other own changes meanwhile.
    pub(super) fn begin_anew(&self, file: &OwnedFd) {
        let mut modified = lock(&self.time);
        if modified.stamp.is_none() {
            modified.stamp = stamp(file);
        }
    }

    /// A program syncs. If that closes an epoch, there is something at stake.
    ///
    /// # Errors
    /// If another program changed the source; from then on always.
    pub(super) fn check_unchanged(&self, file: &OwnedFd, at_stake: bool) -> std::result::Result<(), Errno> {
        let mut modified = lock(&self.time);
        modified.refused |= at_stake && modified.is_changed(file);
        if modified.refused { Err(Errno::STALE) } else { Ok(()) }
    }

    /// Does what changes the source, and is no store.
    pub(super) fn changing<T>(&self, file: &OwnedFd, change: impl FnOnce() -> T) -> T {
        lock(&self.time).changing(file, change)
    }

    /// The source may have another time than programs see.
    pub(super) fn has_other_time(&self) {
        lock(&self.time).differs = true;
    }

    /// The source was changed otherwise than by [`Timed`].
    pub(super) fn is_stored_to(&self) {
        let mut modified = lock(&self.time);
        (modified.differs, modified.stamp) = (true, None);
    }

    /// A program, or the kernel, sets the time. `set` does so in the source.
    pub(super) fn set<T>(&self, file: &OwnedFd, time: Timespec, set: impl FnOnce() -> T) -> T {
        let mut modified = lock(&self.time);
        let time = match time.tv_nsec {
            UTIME_OMIT => None,
            rustix::fs::UTIME_NOW => Some(clock_gettime(ClockId::Realtime)),
            _ => Some(time),
        };
        if time.is_some() {
            (modified.time, modified.differs) = (time, true);
        }
        modified.changing(file, set)
    }

    /// Stores, and sets the time that programs see. `None` if another program changed the source.
    fn storing<T>(&self, file: &OwnedFd, store: impl FnOnce() -> T) -> Option<T> {
        let mut modified = lock(&self.time);
        if modified.is_changed(file) {
            return None;
        }
        let time = modified.time;
        let stored = modified.changing(file, || {
            let stored = store();
            if let Some(last_modification) = time {
                let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
                // A writer that is not the owner may not. Its file has the time of the store.
                let _ = rustix::fs::futimens(file, &Timestamps { last_access, last_modification });
            }
            stored
        });
        modified.differs &= time.is_none();
        Some(stored)
    }

    /// Sets the time that programs see, if the source has another one.
    pub(super) fn settle(&self, file: &OwnedFd) {
        if lock(&self.time).differs {
            // Not over the time of another program's change.
            let _ = self.storing(file, || ());
        }
    }
}

/// The times of all files that are managed, or that the log still has open.
#[derive(Debug, Default)]
pub(super) struct Times {
    known: HashMap<Key, Weak<Modified>>,
    /// Entries after which those of files that are gone are dropped.
    most: usize,
}

impl Times {
    /// The times of a file that is managed from now on.
    pub(super) fn of(&mut self, key: Key, file: &OwnedFd, by_kernel: bool) -> Arc<Modified> {
        if let Some(known) = self.known.get(&key).and_then(Weak::upgrade) {
            known.renew(file);
            return known;
        }
        if self.known.len() >= self.most {
            self.known.retain(|_, modified| modified.strong_count() > 0);
            self.most = self.known.len() * 2 + 64;
        }
        let modified = Arc::new(Modified::new(file, by_kernel));
        self.known.insert(key, Arc::downgrade(&modified));
        modified
    }
}

/// The file behind the log.
pub(super) struct Timed {
    pub(super) inner: Descriptor,
    pub(super) descriptor: Arc<OwnedFd>,
    pub(super) modified: Arc<Modified>,
    /// Its path when the log was put in front of it, for errors.
    pub(super) path: PathBuf,
}

impl Timed {
    fn changed(&self) -> Error {
        Error::ChangedOutside { path: self.path.clone(), what: BOTH.to_owned() }
    }

    fn storing<T>(&self, store: impl FnOnce() -> Result<T>) -> Result<T> {
        self.modified.storing(&self.descriptor, store).unwrap_or_else(|| Err(self.changed()))
    }
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

    fn check_unchanged(&self) -> Result<()> {
        self.modified.check_unchanged(&self.descriptor, true).map_err(|_| self.changed())
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<usize> {
        self.inner.read(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.storing(|| self.inner.write(offset, src))
    }

    fn write_some(&self, offset: u64, src: &[u8]) -> Result<usize> {
        self.storing(|| self.inner.write_some(offset, src))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.storing(|| self.inner.set_len(len))
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.inner.sync(barrier)
    }

    fn begin_sync(&self) {
        self.inner.begin_sync();
    }
}
