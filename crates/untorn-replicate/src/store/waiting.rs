//! Requests of asynchronous libraries, for callers that block.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tracing::subscriber::{NoSubscriber, set_default};

/// How often a waiting caller looks whether the store was closed.
const GLANCE: Duration = Duration::from_millis(50);

/// A thread that carries requests out.
pub(super) struct Waiting {
    is_closed: AtomicBool,
    /// It runs on a thread of its own, so that callers within another runtime may block. `None` once it is dropped.
    runtime: Option<Runtime>,
}

impl Waiting {
    /// # Errors
    /// Those of starting the thread.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("untorn-store").enable_all();
        // The client of NATS has a trace event with the password in it. Nothing that a library logs is passed on.
        builder.on_thread_start(|| std::mem::forget(set_default(NoSubscriber::default())));
        let runtime = builder.build()?;
        Ok(Waiting { is_closed: AtomicBool::new(false), runtime: Some(runtime) })
    }

    /// Ends requests that are under way, and later ones at once.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Runs a request to its end; `None` if the store was closed first.
    pub(super) fn run<T: Send + 'static>(&self, request: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (tell, told) = mpsc::sync_channel(1);
        let task = self.runtime.as_ref()?.spawn(async move {
            // If the store was closed, no caller waits.
            let _ = tell.send(request.await);
        });
        loop {
            if self.is_closed.load(Ordering::Acquire) {
                // The request may be carried out all the same, as one whose answer is lost.
                task.abort();
                return None;
            }
            match told.recv_timeout(GLANCE) {
                Ok(done) => return Some(done),
                Err(RecvTimeoutError::Timeout) => {}
                // The task has panicked.
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting would panic within another runtime. No request is under way: each has a caller that waits.
            runtime.shutdown_background();
        }
    }
}
