//! One managed file.
//!
//! # Invariants
//!
//! 1. Writers hold the state shared. An operation that goes past the log, or that changes the file's names, holds it
//!    exclusively, and brings everything that the log has of the file to the source first. So a replay never writes
//!    over the bytes that such an operation left.
//! 2. `unsynced` says that the source may have bytes or attributes that are not durable and that the log does not know:
//!    from before the attach, or attributes set since. The log syncs the file when it gets the first entry of it; any
//!    later change is made durable by the next sync. The flag is taken back before that sync begins, never after it.
//! 3. A file that the globs did not choose is in the table all the same while it has writers: it may get a name that
//!    they do choose, and from then on all its writers go through the log. No other file comes from plain to the log
//!    but one that was settled for a change of its names.
//! 4. A file that programs have open and did not change is *fresh*: the log knows nothing of it until its first change.
//! 5. A file whose bytes could not be brought to the source has failed: every later write and sync fails, until the
//!    server ends. Its bytes stay in the log.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;
use untorn::Result;
use untorn::write_cache::{CachedFile, Descriptor};

use super::timed::{Modified, Timed};
use super::{Managing, errno};
use crate::serve::lock;
use crate::serve::nodes::{Key, key_of};

/// Further names of a file that are remembered.
const MOST_OTHERS: usize = 8;

/// The server of a file's bytes.
#[derive(Debug)]
pub(super) enum Served {
    /// The source, until the first change.
    Fresh,
    /// The log, and then the source.
    Logged(CachedFile),
    /// The source alone.
    Plain,
    /// Nobody.
    Failed(Errno),
}

/// The part of a file that changes as one.
#[derive(Debug)]
pub(super) struct State {
    pub(super) served: Served,
    pub(super) path: PathBuf,
}

impl State {
    pub(super) fn file(&self) -> Option<&CachedFile> {
        match &self.served {
            Served::Logged(file) => Some(file),
            _ => None,
        }
    }
}

/// A file behind the log, shared by all who write to it.
pub(in crate::serve) struct Managed {
    pub(super) key: Key,
    /// Whether changes count in epochs. It changes while the state is held exclusively.
    atomic: AtomicBool,
    /// Whether the globs chose a name of it. It changes while the state is held exclusively.
    chosen: AtomicBool,
    /// Open for reading and writing.
    pub(super) descriptor: Arc<OwnedFd>,
    pub(super) modified: Arc<Modified>,
    /// Whether a program stored to a shared mapping of it.
    pub(super) mapped: AtomicBool,
    /// Whether the puller has an opening of it.
    pub(super) pulled: AtomicBool,
    /// Whether its last name was removed in the mount.
    gone: AtomicBool,
    /// Names that it got by `link`, the last one last. Each may be another file's by now.
    others: Mutex<Vec<PathBuf>>,
    /// The name that it lost last, if the log records that as a rename.
    given_up: Mutex<Option<PathBuf>>,
    state: RwLock<State>,
    /// Whether the log has had an entry of it.
    logged: AtomicBool,
    unsynced: AtomicBool,
    /// One flush of the source at a time: the second waits for the first.
    syncing: Mutex<()>,
    /// Changed under the lock of the table.
    writers: AtomicUsize,
    /// Writers that pass the kernel's pages.
    passing: AtomicUsize,
}

impl Managed {
    /// A file with one writer: plain, or fresh if it is chosen. The log can be put in front of it if the descriptor is
    /// open for reading and writing, and does not append.
    pub(super) fn new(
        atomic: bool,
        modified: Arc<Modified>,
        key: Key,
        (path, is_chosen): (&Path, bool),
        descriptor: Arc<OwnedFd>,
    ) -> Self {
        let served = if is_chosen { Served::Fresh } else { Served::Plain };
        Managed {
            key,
            atomic: AtomicBool::new(atomic),
            chosen: AtomicBool::new(is_chosen),
            descriptor,
            modified,
            mapped: AtomicBool::new(false),
            pulled: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            others: Mutex::default(),
            given_up: Mutex::default(),
            state: RwLock::new(State { served, path: path.to_owned() }),
            logged: AtomicBool::new(false),
            unsynced: AtomicBool::new(true),
            syncing: Mutex::default(),
            writers: AtomicUsize::new(1),
            passing: AtomicUsize::new(0),
        }
    }

    fn file_behind(&self, managing: &Managing, path: &Path) -> Result<CachedFile> {
        let inner = || {
            let copy = self.descriptor.try_clone().map_err(|source| untorn::Error::Io {
                operation: "duplicate the descriptor of",
                path: path.to_owned(),
                offset: None,
                source,
            })?;
            Descriptor::new(copy, path)
        };
        let cache = &managing.cache;
        if !self.is_atomic() {
            return cache.attach_write_through(Arc::new(inner()?), path);
        }
        self.modified.begin_anew(&self.descriptor);
        let timed = || {
            let (descriptor, modified) = (self.descriptor.clone(), self.modified.clone());
            Ok(Arc::new(Timed { inner: inner()?, descriptor, modified, path: path.to_owned() }))
        };
        if let Some(log) = managing.commit_log_for(path) {
            match cache.attach_atomic_with_commit_log(timed()?, path, log) {
                Err(error) if !matches!(error, untorn::Error::Poisoned { .. }) => {
                    tracing::error!(path = %path.display(), %error, "the file is managed without a commit log");
                }
                attached => return attached,
            }
        }
        cache.attach_atomic(timed()?, path)
    }

    pub(super) fn is_atomic(&self) -> bool {
        self.atomic.load(Ordering::Acquire)
    }

    pub(in crate::serve) fn is_chosen(&self) -> bool {
        self.chosen.load(Ordering::Acquire)
    }

    pub(super) fn set_chosen(&self) {
        self.chosen.store(true, Ordering::Release);
    }

    /// Does what changes bytes of a plain file. `None` for any other one.
    pub(in crate::serve) fn plainly<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        let state = self.shared();
        matches!(state.served, Served::Plain).then(|| {
            self.modified.is_stored_to();
            change()
        })
    }

    /// Changes count in epochs from now on, or do no more. The log has nothing of the file.
    pub(super) fn set_atomic(&self, atomic: bool) {
        self.atomic.store(atomic, Ordering::Release);
    }

    pub(super) fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn exclusive(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.shared().path.clone()
    }

    /// Whether the log knows nothing of it yet.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(self.shared().served, Served::Fresh)
    }

    pub(super) fn is_logged(&self) -> bool {
        self.logged.load(Ordering::Acquire)
    }

    /// How many names it has.
    pub(super) fn names(&self) -> std::result::Result<u64, Errno> {
        let status = rustix::fs::fstat(&self.descriptor)?;
        #[allow(clippy::useless_conversion)] // Not of the same width everywhere.
        Ok(status.st_nlink.into())
    }

    /// One of its names is gone.
    pub(super) fn lost_a_name(&self) {
        if self.names() == Ok(0) {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// It got one more name.
    pub(super) fn has_name_too(&self, path: PathBuf) {
        let mut others = lock(&self.others);
        others.retain(|other| *other != path);
        if others.len() == MOST_OTHERS {
            others.remove(0);
        }
        others.push(path);
    }

    /// It lost a name, which the log takes for a rename.
    pub(super) fn gives_up(&self, path: PathBuf) {
        *lock(&self.given_up) = Some(path);
    }

    pub(super) fn gave_up(&self, path: &Path) -> bool {
        lock(&self.given_up).as_deref() == Some(path)
    }

    /// The last of its other names that is still its own.
    pub(super) fn other_name(&self) -> Option<PathBuf> {
        let is_own = |path: &&PathBuf| {
            let found = rustix::fs::statat(CWD, path.as_path(), AtFlags::SYMLINK_NOFOLLOW);
            found.is_ok_and(|status| key_of(&status) == self.key)
        };
        lock(&self.others).iter().rev().find(is_own).cloned()
    }

    pub(super) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// A writer passes the kernel's pages. False for an atomic file, which has no such writer.
    pub(in crate::serve) fn add_passing(&self) -> bool {
        let _state = self.shared();
        let may = !self.is_atomic();
        if may {
            self.passing.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    pub(in crate::serve) fn remove_passing(&self) {
        self.passing.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a writer does. It stays so while the state is held exclusively, unless that writer ends.
    pub(super) fn is_passed(&self) -> bool {
        self.passing.load(Ordering::Relaxed) > 0
    }

    /// Whether it was the last one.
    pub(super) fn remove_writer(&self) -> bool {
        self.writers.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub(in crate::serve) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    /// Whether the table needs it no more, once it has no writers. It waits for no writer and no rename.
    pub(super) fn is_done(&self) -> bool {
        let Ok(state) = self.state.try_read() else { return false };
        match &state.served {
            Served::Logged(file) => file.is_settled() || self.gone.load(Ordering::Relaxed),
            Served::Plain | Served::Fresh => true,
            Served::Failed(_) => false,
        }
    }

    /// Why its bytes are not in the source, if they cannot be.
    pub(super) fn failure(&self) -> Option<String> {
        match &self.shared().served {
            Served::Failed(errno) => Some(std::io::Error::from(*errno).to_string()),
            Served::Logged(file) => file.check_usable().err().map(|error| error.to_string()),
            Served::Plain | Served::Fresh => None,
        }
    }

    pub(super) fn attributes_were_set(&self) {
        self.unsynced.store(true, Ordering::Release);
    }

    /// Does what makes an entry of the log.
    fn log<T>(&self, act: impl FnOnce() -> Result<T>) -> std::result::Result<T, Errno> {
        if self.is_logged() {
            return act().map_err(errno);
        }
        // The log syncs the file before its first entry, and that has what was set until now.
        let unsynced = self.unsynced.swap(false, Ordering::AcqRel);
        match act() {
            Ok(done) => {
                self.logged.store(true, Ordering::Release);
                Ok(done)
            }
            Err(error) => {
                self.unsynced.fetch_or(unsynced, Ordering::AcqRel);
                Err(errno(error))
            }
        }
    }

    /// Has the log know the file before its first change.
    pub(super) fn take_line(&self) -> std::result::Result<(), Errno> {
        match self.shared().file() {
            Some(file) if !self.is_logged() => self.log(|| file.take_line()),
            _ => Ok(()),
        }
    }

    /// Writes to a file that is not fresh; at the end if the file grew outside and the writer appends.
    pub(super) fn write(&self, bytes: &[u8], offset: u64, appends: bool) -> std::result::Result<usize, Errno> {
        let state = self.shared();
        match &state.served {
            Served::Failed(errno) => Err(*errno),
            Served::Fresh => Err(Errno::IO),
            Served::Plain => {
                let end = || rustix::fs::fstat(&self.descriptor).map(|status| status.st_size as u64);
                let offset = if appends { end()? } else { offset };
                self.modified.is_stored_to();
                crate::serve::data::write_all(&self.descriptor, bytes, offset)
            }
            Served::Logged(file) if appends && self.len_of(file)? != offset => {
                self.log(|| file.append(bytes)).map(|_| bytes.len())
            }
            Served::Logged(file) if self.is_atomic() => {
                self.begin_change(file);
                self.modified.now();
                self.write_all(file, bytes, offset)
            }
            Served::Logged(file) => self.log(|| file.write_some(bytes, offset)),
        }
    }

    /// A program is about to change it: what another program changed before is nobody's conflict.
    fn begin_change(&self, file: &CachedFile) {
        if self.is_atomic() && file.is_settled() {
            self.modified.begin(&self.descriptor);
        }
    }

    /// An epoch takes a long write in parts.
    fn write_all(&self, file: &CachedFile, bytes: &[u8], offset: u64) -> std::result::Result<usize, Errno> {
        let mut done = 0;
        while done < bytes.len() {
            match self.log(|| file.write_some(&bytes[done..], offset + done as u64)) {
                Ok(count) => done += count,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    pub(in crate::serve) fn len(&self) -> std::result::Result<u64, Errno> {
        if self.is_atomic()
            && let Some(file) = self.shared().file()
        {
            return file.len().map_err(errno);
        }
        Ok(rustix::fs::fstat(&self.descriptor)?.st_size as u64)
    }

    /// The length, for one who holds the state.
    fn len_of(&self, file: &CachedFile) -> std::result::Result<u64, Errno> {
        if self.is_atomic() {
            file.len().map_err(errno)
        } else {
            Ok(rustix::fs::fstat(&self.descriptor)?.st_size as u64)
        }
    }

    pub(super) fn set_len(&self, len: u64) -> std::result::Result<(), Errno> {
        let state = self.shared();
        match &state.served {
            Served::Failed(errno) => Err(*errno),
            Served::Fresh => Err(Errno::IO),
            Served::Plain => {
                self.modified.is_stored_to();
                rustix::fs::ftruncate(&self.descriptor, len)
            }
            // A file that is empty anyway needs no entry: programs truncate what they just created.
            Served::Logged(file) if len == 0 && self.len_of(file)? == 0 && !self.is_atomic() => {
                rustix::fs::ftruncate(&self.descriptor, 0)
            }
            Served::Logged(file) => {
                let same = self.is_atomic() && self.len_of(file)? == len;
                self.begin_change(file);
                self.modified.now();
                if same { Ok(()) } else { self.log(|| file.set_len(len)) }
            }
        }
    }

    /// Makes everything durable.
    pub(in crate::serve) fn sync(&self) -> std::result::Result<(), Errno> {
        let state = self.shared();
        match &state.served {
            Served::Failed(errno) => Err(*errno),
            Served::Plain | Served::Fresh => rustix::fs::fsync(&self.descriptor),
            Served::Logged(file) => {
                let syncing = lock(&self.syncing);
                if self.unsynced.swap(false, Ordering::AcqRel)
                    // By the log, which must hear of a flush that fails: the kernel tells it once.
                    && let Err(error) = file.sync_file()
                {
                    self.unsynced.store(true, Ordering::Release);
                    return Err(errno(error));
                }
                drop(syncing);
                let is_open = file.has_open_epoch();
                // It closes the epoch of an atomic file.
                file.commit().map_err(errno)?;
                if !self.is_atomic() {
                    return Ok(());
                }
                // The log keeps the commit, and it is not stored over what another program wrote.
                self.modified.check_unchanged(&self.descriptor, is_open).inspect_err(|_| {
                    let path = state.path.display();
                    tracing::error!(%path, "another program changed a file past the mount; the log keeps its commit");
                })
            }
        }
    }

    /// Does what changes the file past the log. Before, the log has nothing of it any more. Afterwards it is durable,
    /// so that no entry from before is needed.
    pub(in crate::serve) fn past_the_log(
        &self,
        act: impl FnOnce() -> std::result::Result<(), Errno>,
    ) -> std::result::Result<(), Errno> {
        let state = self.exclusive();
        match &state.served {
            Served::Failed(errno) => Err(*errno),
            Served::Plain | Served::Fresh => act(),
            Served::Logged(file) => {
                file.reload_len().map_err(errno)?;
                let done = act();
                file.sync_file().and_then(|()| file.reload_len()).map_err(errno)?;
                done
            }
        }
    }

    /// Brings everything to the source, durably, and lets go of the log. The caller serves it again, or leaves it
    /// plain.
    pub(super) fn settle(&self, state: &mut State) -> std::result::Result<(), Errno> {
        match &state.served {
            Served::Failed(errno) => Err(*errno),
            Served::Plain => Ok(()),
            Served::Fresh => {
                state.served = Served::Plain;
                Ok(())
            }
            // An epoch cannot stay open without the log. It counts from now on.
            Served::Logged(file) => match file.commit_later().and_then(|()| file.demote()).map_err(errno) {
                Ok(()) => {
                    state.served = Served::Plain;
                    Ok(())
                }
                Err(errno) => {
                    state.served = Served::Failed(errno);
                    Err(errno)
                }
            },
        }
    }

    /// Leaves it to the source for as long as it has writers; its path.
    pub(super) fn become_plain(&self) -> std::result::Result<PathBuf, Errno> {
        let mut state = self.exclusive();
        self.settle(&mut state)?;
        Ok(state.path.clone())
    }

    /// Puts the log in front of it again, under a path that it has now.
    pub(super) fn serve_again(&self, state: &mut State, managing: &Managing, path: &Path) -> Result<()> {
        state.path = path.to_owned();
        if matches!(state.served, Served::Plain | Served::Fresh) {
            let file = self.file_behind(managing, path)?;
            if file.is_demoted() {
                let what = "the log no longer manages the file".to_owned();
                return Err(untorn::Error::Invalid { path: path.to_owned(), what });
            }
            state.served = Served::Logged(file);
            self.logged.store(false, Ordering::Release);
            self.unsynced.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl AsFd for Managed {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
