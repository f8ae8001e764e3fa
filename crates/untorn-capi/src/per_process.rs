//! State of one process, under a lock.
//!
//! A forked child has a copy of its parent's, with things that mean nothing there and with locks that threads of the parent
//! may have held at that moment, for ever. So each process has its own, and of its parent's it tries the lock at most.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A state for each process that the calls of this one, and those it was forked from, have asked for.
pub(crate) struct PerProcess<T: 'static> {
    /// That of this process, or of the one it was forked from, until it is first needed. They are never dropped.
    newest: AtomicPtr<OfProcess<T>>,
}

struct OfProcess<T: 'static> {
    process: u32,
    forked_from: Option<&'static OfProcess<T>>,
    state: Mutex<T>,
}

impl<T> OfProcess<T> {
    fn had(&self, has: &impl Fn(&T) -> bool) -> bool {
        self.state.try_lock().map_or(true, |state| has(&state))
            || self.forked_from.is_some_and(|parent| parent.had(has))
    }
}

impl<T: Default + Send> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    fn ours(&self) -> &'static OfProcess<T> {
        let process = process::id();
        loop {
            let found = self.newest.load(Ordering::Acquire);
            // SAFETY: null, or leaked by this function, now or in a process that this one is descended from.
            let known: Option<&'static OfProcess<T>> = unsafe { found.as_ref() };
            if let Some(ours) = known.filter(|known| known.process == process) {
                return ours;
            }
            let ours = Box::into_raw(Box::new(OfProcess { process, forked_from: known, state: Mutex::default() }));
            if self.newest.compare_exchange(found, ours, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: from `into_raw`, and no other thread has seen it.
                drop(unsafe { Box::from_raw(ours) });
            }
        }
    }

    /// That of this process.
    pub(crate) fn lock(&self) -> MutexGuard<'static, T> {
        // What it guards is whole whenever a panic can come.
        self.ours().state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process that this one was forked from had it when it forked. If the lock was held at that moment nobody can
    /// tell, and it may have.
    pub(crate) fn was_inherited(&self, has: impl Fn(&T) -> bool) -> bool {
        self.ours().forked_from.is_some_and(|parent| parent.had(&has))
    }
}
