//! The thread that calls the backing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::backing::{Backing, Cut};
use crate::error::{Error, Result};
use crate::ipc::connection::{event, notify};

/// The thread that calls the backing. It ends with this value, and the backing is nobody's then.
pub(super) struct Committer {
    cuts: Option<Sender<Cut>>,
    done: Receiver<(Cut, Result<u64>)>,
    event: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Committer {
    fn drop(&mut self) {
        // What it waits for.
        self.cuts = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the backing was caught there.
            let _ = thread.join();
        }
    }
}

impl Committer {
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn start(backing: Arc<dyn Backing>) -> io::Result<Self> {
        let (cuts, to_commit) = channel::<Cut>();
        let (committed, done) = channel();
        let event = Arc::new(event()?);
        let ours = Arc::clone(&event);
        let thread = thread::Builder::new().name("untorn-committer".to_owned()).spawn(move || {
            for cut in to_commit {
                #[cfg(test)]
                super::tests::reach(super::tests::Point::Committing);
                let result = catch_unwind(AssertUnwindSafe(|| backing.commit(&cut)));
                #[cfg(test)]
                super::tests::reach(super::tests::Point::Committed);
                let result = result.unwrap_or_else(|_| {
                    let cause = "the code that commits it panicked".to_owned();
                    Err(Error::Poisoned { path: Default::default(), cause })
                });
                if committed.send((cut, result)).is_err() {
                    return;
                }
                notify(&ours);
            }
        })?;
        Ok(Committer { cuts: Some(cuts), done, event, thread: Some(thread) })
    }

    /// Readable when a commit is done.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Hands a cut over; false if the thread is gone.
    pub(super) fn commit(&self, cut: Cut) -> bool {
        self.cuts.as_ref().is_some_and(|cuts| cuts.send(cut).is_ok())
    }

    /// The commit that is done, if one is, with its cut.
    pub(super) fn done(&self) -> Option<(Cut, Result<u64>)> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        self.done.try_recv().ok()
    }

    /// The same, once it is done.
    pub(super) fn await_done(&self) -> Option<(Cut, Result<u64>)> {
        self.done.recv().ok()
    }
}
