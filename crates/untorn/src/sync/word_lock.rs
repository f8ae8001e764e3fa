//! A lock in one word; a thread waits for it through the medium.
//!
//! A standard mutex cannot live in shared memory. Under the simulated medium's scheduler, a thread asleep in it also
//! could not pass its turn to another one. So waiting is [`Medium::relax`](crate::storage::Medium::relax), which spins,
//! then yields, then sleeps for up to a millisecond at a time.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::sys::sync::{AtomicU64, Ordering, Zeroed};

/// A lock held across operations on the medium. All zeros is the unlocked state.
#[derive(Debug, Zeroed)]
#[repr(transparent)]
pub(crate) struct WordLock(AtomicU64);

/// The holder's proof; dropping it opens the gate.
#[derive(Debug)]
pub(crate) struct WordLockGuard<'a>(&'a WordLock);

impl WordLock {
    /// Closes the gate if it is open, for whoever will [`open`](WordLock::open) it.
    #[inline]
    pub(crate) fn try_acquire(&self) -> bool {
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Closes the gate once it is open, for whoever will [`open`](WordLock::open) it.
    pub(crate) fn acquire(&self, mut relax: impl FnMut(u32)) {
        let mut round = 0;
        while self.is_locked() || !self.try_acquire() {
            relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Opens the gate. Only for the one who closed it.
    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(0, Ordering::Release);
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<WordLockGuard<'_>> {
        self.try_acquire().then(|| WordLockGuard(self))
    }

    pub(crate) fn lock(&self, relax: impl FnMut(u32)) -> WordLockGuard<'_> {
        self.acquire(relax);
        WordLockGuard(self)
    }

    /// Whether somebody holds it, for a guess only.
    #[inline]
    pub(crate) fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl Drop for WordLockGuard<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Locks a standard mutex, waiting like a [`WordLock`]: for state that is no plain word but is held across operations
/// on the medium too. What the mutex guards must be whole at every instant, for a panic does not poison it.
pub(crate) fn lock<T>(mutex: &Mutex<T>, mut relax: impl FnMut(u32)) -> MutexGuard<'_, T> {
    let mut round = 0;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => relax(round),
        }
        round = round.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::sys::sync::zeroed;

    #[test]
    fn excludes_and_reopens() {
        let word_lock: WordLock = zeroed();
        let held = word_lock.lock(|_| panic!("free gate must not wait"));
        // Twice: a failed attempt must not open the gate for the next.
        assert!(word_lock.try_lock().is_none());
        assert!(word_lock.try_lock().is_none());
        drop(held);
        assert!(word_lock.try_lock().is_some());
    }

    #[test]
    fn waiting_goes_through_relax() {
        let word_lock: WordLock = zeroed();
        let held = Cell::new(Some(word_lock.lock(|_| ())));
        let rounds = Cell::new(0);
        let again = word_lock.lock(|round| {
            rounds.set(round + 1);
            if round == 3 {
                held.take();
            }
        });
        assert_eq!(rounds.get(), 4);
        drop(again);
    }
}
