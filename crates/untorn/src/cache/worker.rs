//! The thread that drains: asleep while there is nothing to drain, awake when a batch has come together or the oldest entry
//! has waited long enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Cache, locked};
use crate::medium::Medium;

/// Waits for the first entry.
const IDLE: u64 = 0;
/// Waits for a batch, or for time to pass.
const GATHERING: u64 = 1;
const AWAKE: u64 = 2;

/// How the thread is waked.
pub(super) struct Worker {
    phase: AtomicU64,
    /// Entries that are worth a batch.
    batch: u64,
    max_age: Duration,
    /// Whether it is to end.
    stop: Mutex<bool>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    pub(super) fn new(batch: u64, max_age: Duration) -> Self {
        Worker {
            phase: AtomicU64::new(AWAKE),
            batch,
            max_age,
            stop: Mutex::new(false),
            wake: Condvar::new(),
            thread: Mutex::default(),
        }
    }

    /// Tells how many entries wait.
    pub(super) fn note(&self, waiting: u64) {
        // The entry was placed before this load, and the thread looks for entries after it has stored its phase: one of the
        // two sees the other.
        let phase = self.phase.load(Ordering::SeqCst);
        if phase == IDLE || phase == GATHERING && waiting >= self.batch {
            self.rouse(phase);
        }
    }

    #[cold]
    fn rouse(&self, phase: u64) {
        if self.phase.compare_exchange(phase, AWAKE, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            // With the lock, so that the thread is not between looking and falling asleep.
            drop(locked(&self.stop));
            self.wake.notify_all();
        }
    }

    pub(super) fn start<M: Medium>(cache: &Arc<Cache<M>>) -> std::io::Result<()> {
        let theirs = Arc::clone(cache);
        let thread = std::thread::Builder::new().name("untorn-drain".to_owned()).spawn(move || theirs.work())?;
        *locked(&cache.worker.thread) = Some(thread);
        Ok(())
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        *locked(&self.stop) = true;
        self.wake.notify_all();
        if let Some(thread) = locked(&self.thread).take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

impl<M: Medium> Cache<M> {
    fn work(&self) {
        let worker = &self.worker;
        loop {
            let mut stop = locked(&worker.stop);
            worker.phase.store(IDLE, Ordering::SeqCst);
            while !*stop && self.waiting() == 0 {
                stop = worker.wake.wait(stop).unwrap_or_else(PoisonError::into_inner);
                worker.phase.store(IDLE, Ordering::SeqCst);
            }
            worker.phase.store(GATHERING, Ordering::SeqCst);
            if !*stop && self.waiting() < worker.batch {
                let waited = worker.wake.wait_timeout(stop, worker.max_age).unwrap_or_else(PoisonError::into_inner);
                stop = waited.0;
            }
            worker.phase.store(AWAKE, Ordering::SeqCst);
            if *stop {
                return;
            }
            drop(stop);
            if let Err(error) = self.drain_some() {
                // Poisoned: every call says so, and the log is left to a replay.
                tracing::error!(path = %self.standing.path().display(), %error, "draining ended");
                return;
            }
        }
    }

    /// Entries that are not in their files yet, and are not stuck.
    pub(super) fn waiting(&self) -> u64 {
        // In this order: others write and drain between the two, and what is settled never goes beyond a later head.
        let settled = self.settled.load(Ordering::Acquire);
        self.ring.head() - settled
    }
}
