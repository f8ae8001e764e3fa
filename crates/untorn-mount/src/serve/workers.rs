//! Threads for requests that wait long, so that those that serve stay free.
//!
//! # Invariants
//!
//! 1. A job begins at once: by a thread that is idle, or else by a new one. So no job waits for another one.
//! 2. An idle thread ends after [`IDLE`].

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::lock;

/// How long a thread waits for its next job.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait, less jobs that they have not begun.
    idle: usize,
}

/// The threads.
#[derive(Clone, Default)]
pub(super) struct Workers(Arc<(Mutex<Queue>, Condvar)>);

impl Workers {
    /// Does a job in another thread.
    ///
    /// # Errors
    /// Those of starting a thread; the job is dropped then.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut queue = lock(&self.0.0);
        if queue.idle > 0 {
            queue.idle -= 1;
            queue.jobs.push_back(Box::new(job));
            self.0.1.notify_one();
            return Ok(());
        }
        drop(queue);
        let own = self.clone();
        let work = move || {
            job();
            while let Some(job) = own.next() {
                job();
            }
        };
        thread::Builder::new().name("untorn-wait".to_owned()).spawn(work).map(drop)
    }

    /// The next job; `None` if there is none for a long time.
    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.0.0);
        queue.idle += 1;
        let waited = self.0.1.wait_timeout_while(queue, IDLE, |queue| queue.jobs.is_empty());
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        let job = queue.jobs.pop_front();
        if job.is_none() {
            queue.idle -= 1;
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_run_beside_each_other_and_threads_are_used_again() {
        let workers = Workers::default();
        for _ in 0..3 {
            let (told, tells) = channel();
            // Each goes on only when all have begun.
            let all = Arc::new(std::sync::Barrier::new(9));
            for _ in 0..8 {
                let (told, all) = (told.clone(), all.clone());
                workers
                    .run(move || {
                        all.wait();
                        told.send(thread::current().id()).unwrap();
                    })
                    .unwrap();
            }
            drop(told);
            all.wait();
            assert_eq!(tells.iter().collect::<std::collections::HashSet<_>>().len(), 8);
            let idle = || lock(&workers.0.0).idle;
            while idle() < 8 {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(idle(), 8);
        }
    }
}
