//! The draining thread: it sleeps while there is nothing to drain, and wakes when a batch is complete or the oldest
//! entry has waited long enough.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use untorn_ring::Phase;

use super::{Cache, locked};
use crate::storage::Medium;

/// How long it sleeps where other processes append: one that was killed, or stopped, when it was about to wake it has
/// everybody believe that it is awake.
const LOOK: Duration = Duration::from_secs(1);

/// How the thread is waked. What it does is said in the shared state, where other processes see it too.
pub(super) struct Worker {
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
        Worker { batch, max_age, stop: Mutex::new(false), wake: Condvar::new(), thread: Mutex::default() }
    }

    /// Wakes the thread, which does not sleep by what it said last.
    pub(super) fn wake(&self) {
        // With the lock, so that the thread is not between looking and falling asleep.
        drop(locked(&self.stop));
        self.wake.notify_all();
    }

    /// Waits for a batch, or until the oldest entry has waited long enough. Nobody's notification ends the wait by
    /// itself: one that was on its way while the thread was awake comes too late, and a wait can end without any.
    fn gather<'a>(&self, stop: MutexGuard<'a, bool>, is_incomplete: impl Fn() -> bool) -> MutexGuard<'a, bool> {
        let gathers = |stop: &mut bool| !*stop && is_incomplete();
        let waited = self.wake.wait_timeout_while(stop, self.max_age, gathers);
        waited.unwrap_or_else(PoisonError::into_inner).0
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
        let (worker, shared_state) = (&self.worker, self.ring.shared_state());
        // Whether there was nothing to be done: what waits is not complete, and when it will be is for others to say.
        let mut in_vain = false;
        loop {
            let mut stop = locked(&worker.stop);
            shared_state.set_phase(Phase::Idle);
            while !*stop && self.waiting() == 0 {
                stop = if self.ring.shared().is_some() {
                    let waited = worker.wake.wait_timeout(stop, LOOK).unwrap_or_else(PoisonError::into_inner);
                    waited.0
                } else {
                    worker.wake.wait(stop).unwrap_or_else(PoisonError::into_inner)
                };
                shared_state.set_phase(Phase::Idle);
            }
            shared_state.set_phase(Phase::Gathering);
            stop = worker.gather(stop, || !shared_state.is_roused() && (in_vain || self.waiting() < worker.batch));
            shared_state.set_phase(Phase::Awake);
            if *stop {
                return;
            }
            drop(stop);
            let before = shared_state.settled();
            let drained = self.drain_some();
            in_vain = shared_state.settled() == before;
            if let Err(error) = drained {
                // Poisoned: every call says so, and the log is left to a replay.
                let path = self.handle_state.path().display();
                let what = "draining failed and has ended; the log keeps its writes until a replay";
                tracing::error!(%path, %error, "{what}");
                return;
            }
        }
    }

    /// Entries that are not in their files yet, and are not stuck.
    pub(super) fn waiting(&self) -> u64 {
        // In this order: others write and drain between the two, and what is settled never goes beyond a later head.
        let settled = self.ring.shared_state().settled();
        self.ring.head().saturating_sub(settled)
    }

    /// Wakes the thread if there is enough for it.
    pub(super) fn note(&self) {
        if self.ring.shared_state().rouses(self.worker.batch) {
            self.worker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_notification_alone_drains_nothing() {
        let max_age = Duration::from_millis(100);
        let (worker, is_done) = (Worker::new(1000, max_age), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    worker.wake();
                    std::thread::yield_now();
                }
            });
            let begun = Instant::now();
            drop(worker.gather(locked(&worker.stop), || true));
            assert!(begun.elapsed() >= max_age, "{:?}", begun.elapsed());
            is_done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_batch_and_the_end_do_not_wait() {
        let worker = Worker::new(1000, Duration::from_secs(600));
        drop(worker.gather(locked(&worker.stop), || false));
        worker.stop();
        drop(worker.gather(locked(&worker.stop), || true));
    }
}
