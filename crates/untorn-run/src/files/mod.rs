//! The managed files: which there are, and when one becomes a plain file again.
//!
//! Locks, in the order in which they are taken: that of opening, a file's, those of its places, the table's, the
//! board's.

mod calls;
mod leftovers;
mod mapped;
mod mapping;
mod places;
mod service;
mod state;
mod twin;

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno as Sys;

use self::places::Places;
use self::state::State;
use crate::board::Board;
use crate::holders::{self, Keys};
use crate::managed::{Errno, Mode, io_errno, libc_errno};
use crate::processes::Processes;
use crate::report::Ledger;

/// A file by device and inode.
pub(crate) type Key = (u64, u64);

/// The files of a run.
pub(crate) struct Files {
    /// For the threads that hear of stores.
    me: Weak<Files>,
    mode: Box<dyn Mode>,
    pub(crate) processes: Processes,
    /// Held while a file is looked at that is not in the table yet: whoever else opens it must not find it in use by
    /// us.
    opening: Mutex<()>,
    table: Mutex<HashMap<Key, Arc<Mutex<State>>>>,
    board: Mutex<Board>,
    places: Places,
    /// The run is over.
    closed: AtomicBool,
    pub(crate) ledger: Ledger,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while one was held ended one connection; what it changed, the engine had committed to or not.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    pub(crate) fn new(mode: Box<dyn Mode>, board: Board) -> Arc<Self> {
        Arc::new_cyclic(|me| Files {
            me: me.clone(),
            mode,
            processes: Processes::default(),
            opening: Mutex::default(),
            table: Mutex::default(),
            board: Mutex::new(board),
            places: Places::default(),
            closed: AtomicBool::new(false),
            ledger: Ledger::default(),
        })
    }

    fn find(&self, key: Key) -> Option<Arc<Mutex<State>>> {
        lock(&self.table).get(&key).cloned()
    }

    /// The file that a descriptor stands for, which is managed from now on if it was not.
    ///
    /// # Errors
    /// EINVAL for what is no regular file; that of opening it a second time; EBUSY while another run, or another
    /// program that uses untorn, has it.
    fn of_descriptor(&self, descriptor: &OwnedFd) -> Result<Arc<Mutex<State>>, Errno> {
        let status = rustix::fs::fstat(descriptor).map_err(libc_errno)?;
        let key = (status.st_dev, status.st_ino);
        if let Some(state) = self.find(key) {
            return Ok(state);
        }
        if !rustix::fs::FileType::from_raw_mode(status.st_mode).is_file() {
            return Err(libc_errno(Sys::INVAL));
        }
        let _opening = lock(&self.opening);
        // Another thread may have been faster.
        if let Some(state) = self.find(key) {
            return Ok(state);
        }
        let state = State::new(&*self.mode, descriptor).inspect_err(|errno| self.told_no(descriptor, *errno))?;
        let mut table = lock(&self.table);
        lock(&self.board).add(key).map_err(|error| io_errno(&error))?;
        let state = Arc::new(Mutex::new(state));
        table.insert(key, state.clone());
        Ok(state)
    }

    /// Reports a file that cannot be managed.
    fn told_no(&self, descriptor: &OwnedFd, errno: Errno) {
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let why = format!("cannot manage the file: {}", std::io::Error::from_raw_os_error(errno));
        self.ledger.refused("open", &why, &std::fs::read_link(link).unwrap_or_default());
    }

    /// Runs `call` of a process on the file that a descriptor stands for, under its lock.
    fn with<T>(
        &self,
        descriptor: &OwnedFd,
        process: u32,
        call: impl FnOnce(&mut State) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            // What a process asked for that has died meanwhile.
            if self.closed.load(Ordering::SeqCst) {
                return Err(libc_errno(Sys::IO));
            }
            let state = self.of_descriptor(descriptor)?;
            let mut state = lock(&state);
            // It may have become plain while we waited; then it is managed anew.
            if !state.is_over() {
                state.bury(&*self.mode, &self.processes, &self.ledger, Some(process));
                return call(&mut state);
            }
        }
    }

    /// A process died without saying that it wants to end: nothing that it wrote and did not sync may ever be
    /// committed.
    fn forsake(&self, process: u32) {
        for state in self.all() {
            lock(&state).forsake(&*self.mode, process, &self.processes, &self.ledger);
        }
    }

    fn all(&self) -> Vec<Arc<Mutex<State>>> {
        lock(&self.table).values().cloned().collect()
    }

    fn entries(&self) -> Vec<(Key, Arc<Mutex<State>>)> {
        lock(&self.table).iter().map(|(key, state)| (*key, state.clone())).collect()
    }

    /// Whoever opens a file that is over has it anew.
    fn forget(&self, key: Key) {
        lock(&self.table).remove(&key);
        lock(&self.board).remove(key);
    }

    /// The run is over: nothing is managed any more, and all files are let go of.
    fn end(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.let_go_of_unheld();
    }

    /// Lets go of every file that no process of the run holds any more.
    fn let_go_of_unheld(&self) {
        let keys: Keys = lock(&self.table).keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let held = holders::held(&keys);
        for key in keys.difference(&held) {
            if let Err(errno) = self.let_go(*key) {
                tracing::warn!(errno, "the commit at a file's last close failed");
            }
        }
    }

    /// Makes a file a plain one if nobody holds it: commits what was written to it, and settles it.
    ///
    /// # Errors
    /// That of the commit. It is in the report too, since there may be nobody to be told.
    pub(crate) fn let_go(&self, key: Key) -> Result<(), Errno> {
        let Some(state) = self.find(key) else { return Ok(()) };
        let mut state = lock(&state);
        // Asked again under the file's lock: whoever opened it meanwhile waits for this lock, and holds it already.
        if state.is_over() || !holders::held(&Keys::from([key])).is_empty() {
            return Ok(());
        }
        // After the descriptors: who maps it has one until then.
        if let Some(twin) = state.present_twin() {
            twin.look_again(None);
            // One that is being moved may be in neither place for who reads meanwhile.
            if !twin.mappings.is_empty() || holders::maps(twin.inode) {
                return Ok(());
            }
            // Before it goes, and another one has its number.
            self.places.forget_twin(twin.inode);
        }
        // One of them may be dying, and hold nothing any more.
        state.bury(&*self.mode, &self.processes, &self.ledger, None);
        let outcome = state.finish(&self.ledger);
        self.forget(key);
        if let Err(errno) = outcome {
            let error = std::io::Error::from_raw_os_error(errno);
            self.ledger.failure(format!(
                "{}: the writes since the last sync could not be committed: {error}; `untorn info` shows its state",
                state.path().display()
            ));
        }
        outcome
    }
}
