//! Deploying [ahead](super::ahead) in the background, as jobs of the [pool](crate::sync::pool) that all files of the
//! process share.
//!
//! # Invariants
//! 1. At most one job of a file is in line or runs: the call that raised the flag `scheduled` submitted it, and it
//!    takes the flag down before it looks for a backlog the last time.
//! 2. A job refers to the file weakly. `running` counts jobs that have begun, and none begins once `stop` is set. So
//!    closing has the file for itself when `running` is 0.
//! 3. A job is one batch. Then it rests [`REST`] times as long as it worked, so it takes a small share of one core.
//! 4. A file below the bound has no job and no thread. A forked child has none of its parent's jobs and starts none:
//!    its handle makes no cut.
//! 5. After an error no job comes again. A close of the file meets the same error and returns it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Reflection;
use super::ahead::{Next, Sweep};
use crate::engine::layer::Layer;
use crate::engine::snapshot::{Capture, Captured, PAGE};
use crate::engine::{Close, Engine};
use crate::error::Result;
use crate::storage::Medium;
use crate::sync::pool::{Length, Pool, Submitter};
use crate::sys::incarnation;

/// How long a job rests, in multiples of the time that it worked.
const REST: u32 = 7;

/// The shortest rest between two batches, and between two sweeps.
const SHORT_REST: Duration = Duration::from_millis(1);
const LONG_REST: Duration = Duration::from_secs(1);

/// A file under the reflection engine, with its background work.
pub(crate) struct Deploying<M: Medium> {
    engine: Arc<Reflection<M>>,
    jobs: Arc<Jobs>,
}

struct Jobs {
    state: Mutex<State>,
    /// A job has ended.
    done: Condvar,
    scheduled: AtomicBool,
    /// The process whose threads they are.
    process: u64,
}

#[derive(Default)]
struct State {
    stop: bool,
    running: usize,
}

/// A job that has begun. It lets go of the file before this is dropped.
struct Running<'a>(&'a Jobs);

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Option<Running<'_>> {
        let mut state = self.lock();
        if state.stop {
            return None;
        }
        state.running += 1;
        Some(Running(self))
    }

    /// Has no further job begin, and waits for the one that has.
    fn stop(&self) {
        // A forked child has no such threads, and perhaps locks that they held.
        if self.process != incarnation() {
            return;
        }
        let mut state = self.lock();
        state.stop = true;
        while state.running > 0 {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.done.notify_all();
    }
}

/// A job's references, and the rest of its work.
struct Job<M: Medium> {
    jobs: Weak<Jobs>,
    engine: Weak<Reflection<M>>,
    submitter: Submitter,
    sweep: Sweep,
}

impl<M: Medium> Job<M> {
    fn submit(self, pause: Duration) {
        let submitter = self.submitter.clone();
        // Without a thread the file is deployed when it is closed.
        if let Err(error) = submitter.submit_after(pause, Length::Short, move || self.run()) {
            tracing::debug!(%error, "cannot start a thread that deploys in the background");
        }
    }

    fn run(mut self) {
        let Some(jobs) = self.jobs.upgrade() else { return };
        let Some(running) = jobs.begin() else { return };
        let Some(engine) = self.engine.upgrade() else { return };
        let began = Instant::now();
        let pause = loop {
            match engine.go_ahead(&mut self.sweep) {
                Ok(Next::Soon) => break SHORT_REST,
                Ok(Next::Later) => break LONG_REST,
                Ok(Next::Idle) => {
                    jobs.scheduled.store(false, Ordering::SeqCst);
                    // A cut that found it due meanwhile relied on this job, unless it has raised the flag.
                    if !engine.ahead.is_due() || jobs.scheduled.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(path = %engine.path().display(), %error, "cannot deploy in the background");
                    return;
                }
            }
        };
        let pause = pause.max(began.elapsed() * REST);
        drop(engine);
        drop(running);
        self.submit(pause);
    }
}

impl<M: Medium> Deploying<M> {
    /// A file that was just opened.
    pub(crate) fn new(engine: Reflection<M>) -> Self {
        let engine = Arc::new(engine);
        let jobs = Arc::new(Jobs {
            state: Mutex::default(),
            done: Condvar::new(),
            scheduled: AtomicBool::new(false),
            process: incarnation(),
        });
        let (weak_jobs, weak_engine) = (Arc::downgrade(&jobs), Arc::downgrade(&engine));
        // From the first job on. It goes with the file, never with a job: the last of a pool waits for its threads.
        let pool = OnceLock::new();
        engine.ahead.on_backlog(move || {
            let Some(jobs) = weak_jobs.upgrade() else { return };
            if jobs.scheduled.swap(true, Ordering::SeqCst) {
                return;
            }
            let submitter = pool.get_or_init(Pool::shared).submitter();
            let (jobs, engine) = (weak_jobs.clone(), weak_engine.clone());
            Job { jobs, engine, submitter, sweep: Sweep::default() }.submit(SHORT_REST);
        });
        // The sidecar may have been kept at the last close.
        engine.ahead.note_backlog(engine.state.restored());
        Deploying { engine, jobs }
    }
}

impl<M: Medium> Drop for Deploying<M> {
    fn drop(&mut self) {
        self.jobs.stop();
    }
}

impl<M: Medium> Layer for Deploying<M> {
    type Within = Reflection<M>;

    fn within(&self) -> &Reflection<M> {
        &self.engine
    }

    fn deploy_ahead(&self) -> Result<u64> {
        self.engine.go_ahead_at_once()
    }

    fn close(&self, how: Close) -> Result<()> {
        self.jobs.stop();
        self.engine.close(how)
    }

    fn settle(&self) -> Result<()> {
        self.jobs.stop();
        self.engine.settle()
    }
}

impl<M: Medium> Capture for Deploying<M> {
    fn capture(&self, keep: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<Captured> {
        self.engine.capture(keep)
    }

    fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        Capture::data_from(&*self.engine, offset)
    }

    fn elsewhere(&self, pages: Range<u64>) -> Option<Range<u64>> {
        Capture::elsewhere(&*self.engine, pages)
    }
}
