//! The lock for draining: one thread drains at a time. A thread that only needs room in the log waits for the end of
//! any drain, not for the lock: a thread that goes on to its next batch often gets the lock back before the sleeping
//! one.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use super::drain::Drain;
use super::locked;

#[derive(Default)]
pub(super) struct Draining {
    drain: Mutex<Drain>,
    /// How often somebody has let go of it.
    ends: Mutex<u64>,
    ended: Condvar,
}

/// The drain, in the hands of one thread.
pub(super) struct Held<'a> {
    /// Given back first: who is told that it has ended may want it.
    drain: MutexGuard<'a, Drain>,
    _end: End<'a>,
}

struct End<'a>(&'a Draining);

impl Draining {
    /// To drain, or to keep others from it.
    pub(super) fn hold(&self) -> Held<'_> {
        Held { drain: locked(&self.drain), _end: End(self) }
    }

    /// The same at once, or not: `None` while somebody else has it.
    pub(super) fn try_hold(&self) -> Option<Held<'_>> {
        let drain = match self.drain.try_lock() {
            Ok(drain) => drain,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Held { drain, _end: End(self) })
    }

    /// How often somebody has let go of it.
    pub(super) fn ends(&self) -> u64 {
        *locked(&self.ends)
    }

    /// Returns when it was let go of more often than that. For whoever found, after he had counted them, that
    /// somebody has it.
    pub(super) fn await_end(&self, ends: u64) {
        let seen = locked(&self.ends);
        drop(self.ended.wait_while(seen, |now| *now == ends).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        *locked(&self.0.ends) += 1;
        self.0.ended.notify_all();
    }
}

impl Deref for Held<'_> {
    type Target = Drain;

    fn deref(&self) -> &Drain {
        &self.drain
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Drain {
        &mut self.drain
    }
}
