//! The serving thread: exactly one of the processes that share a working copy has it. It fills pages, makes cuts, and
//! hands them to the backing. A second thread calls the backing, so that no process waits for a device. This file has
//! its state, its loop and its connections; [`requests`] has the requests, [`members`] the members.

mod members;
mod requests;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::members::MemberSlot;
use self::requests::Request;
use super::backing::{Backing, Cut};
use super::committer::Committer;
use super::control::Control;
use crate::error::{Error, Result};
use crate::ipc::listener::Listener;
use crate::ipc::membership::{Connections, Host as _, Ready};
use crate::ipc::rendezvous::{MEMBERS, Rendezvous};
use crate::sys::shared::SharedPages;
use crate::sys::userfault::Userfault;

/// How long others may wait for a process that serves and has no descriptors to let them in again: then another one
/// tries.
const STRANDED: Duration = Duration::from_secs(1);

/// How often the server looks whether somebody has died, or has come back.
const LIVENESS_CHECK_PERIOD: Duration = Duration::from_millis(2);

/// A want of descriptors that others wait for.
#[derive(Clone, Copy)]
struct Stranded {
    since: Instant,
    /// When it was felt last.
    last: Instant,
}

/// The serving thread's state.
pub(super) struct Server {
    pub(super) rendezvous: Arc<Rendezvous>,
    pub(super) control: Arc<Control>,
    /// The memory once more, where nothing is protected: for copying it, and for filling its pages.
    pub(super) view: SharedPages,
    pub(super) filler: Userfault,
    /// Or why there is none.
    pub(super) backing: std::result::Result<Arc<dyn Backing>, String>,
    /// What of the file it is.
    part: String,
    /// Bytes of the last commit.
    pub(super) committed_len: u64,
    /// Bytes that the shared memory is to have once the commit under way is durable: nobody is shown them before.
    growing: Option<u64>,
    /// The member slots, by slot.
    pub(super) seats: Vec<Option<MemberSlot>>,
    /// Buffers for the next cut.
    pub(super) spare: Cut,
    #[cfg(test)]
    pub(super) bug: Option<super::tests::Bug>,
    connections: Connections,
    /// Somebody waits to come back for whom there was no descriptor.
    stranded: Option<Stranded>,
    resigned: Arc<AtomicBool>,
    stop: Arc<OwnedFd>,
    queue: VecDeque<Request>,
    /// Pages that somebody waits for, and that no process may have before every process is back.
    pub(super) unfilled: Vec<u64>,
    /// Those who wait for the commit under way, if there is one.
    in_flight: Option<Vec<Request>>,
    committer: Option<Committer>,
}

impl Server {
    /// Nobody is served before [`serve`](Server::serve). The place says that this process may.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn new(
        rendezvous: &Arc<Rendezvous>,
        control: Arc<Control>,
        view: SharedPages,
        backing: std::result::Result<Arc<dyn Backing>, String>,
        part: String,
        (stop, resigned): (Arc<OwnedFd>, Arc<AtomicBool>),
    ) -> Result<Self> {
        let failed = |error| Error::io("serve the processes that share", rendezvous.path(), error);
        let filler = Userfault::filling().map_err(failed)?;
        filler.register_missing(view.address(), view.reserved()).map_err(failed)?;
        let committer = match &backing {
            Ok(backing) => Some(Committer::start(Arc::clone(backing)).map_err(failed)?),
            Err(_) => None,
        };
        #[cfg(test)]
        if super::tests::Bug::planted() == Some(super::tests::Bug::TakeoverCheck) {
            crate::ipc::membership::tests::LEAKS_SOCKETS.store(true, Ordering::SeqCst);
        }
        Ok(Server {
            committed_len: backing.as_ref().map_or(0, |backing| backing.len()),
            growing: None,
            connections: Connections::new(Listener::new(rendezvous)?),
            stranded: None,
            resigned,
            rendezvous: Arc::clone(rendezvous),
            control,
            view,
            filler,
            backing,
            part,
            seats: (0..MEMBERS).map(|_| None).collect(),
            spare: Cut::default(),
            #[cfg(test)]
            bug: super::tests::Bug::planted(),
            stop,
            queue: VecDeque::new(),
            unfilled: Vec::new(),
            in_flight: None,
            committer,
        })
    }

    /// Serves until the bell rings, and gives the part back.
    pub(super) fn serve(mut self) {
        let (rendezvous, control) = (Arc::clone(&self.rendezvous), Arc::clone(&self.control));
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            control.poison("the thread that serves the shared file panicked");
        }
        // It lets nobody in any more, so those who are left are all that may go on.
        let last = !rendezvous.has_others();
        if let Ok(backing) = &self.backing
            && catch_unwind(AssertUnwindSafe(|| backing.leave(last))).is_err()
        {
            control.poison("the code that closes the shared file panicked");
        }
        // In this order: who takes over listens at the same name, and opens the same backing.
        drop(self);
        rendezvous.give_up_ownership();
    }

    fn run(&mut self) {
        if let Ok(backing) = &self.backing {
            // The process that served before may have been killed between its commit and this.
            let (end, present) = (self.control.pages(), self.control.present());
            backing.tidy(&self.view, &mut backing.tidied().filter(|page| *page < end && present.get(*page)));
        }
        loop {
            let ready = self.wait();
            if ready.event {
                self.committed();
            }
            if ready.stopped {
                break;
            }
            if ready.called {
                self.connections.accept();
            }
            for token in ready.heard {
                self.recv(token);
            }
            self.remove_dead();
            for page in std::mem::take(&mut self.unfilled) {
                self.fill(page);
            }
            self.advance();
            // Before the next wait: closing a connection is what tells its process to come back.
            self.connections.remove_ended();
            if self.is_to_resign() {
                self.resigned.store(true, Ordering::SeqCst);
                break;
            }
        }
        // Whoever waits for it would ask the next server for another one, which is no harm but for the time.
        if self.in_flight.is_some() {
            let done = self.committer.as_ref().and_then(Committer::await_done);
            if let Some((cut, result)) = done {
                self.finish(cut, result);
            }
        }
    }

    /// Waits for something to do: to stop, a new connection, a commit done, connections with messages.
    fn wait(&self) -> Ready {
        // While somebody is dying, or has yet to come back, time itself is something to do.
        let waits = self.in_flight.is_none() && (!self.queue.is_empty() || self.control.rolling_back());
        let waits = waits || !self.unfilled.is_empty();
        let limit = (waits || self.strays().next().is_some()).then_some(LIVENESS_CHECK_PERIOD);
        self.connections.wait(self.stop.as_fd(), self.committer.as_ref().map(Committer::event), limit)
    }

    /// Whether others wait in vain for this process, which is not to be borne for long: nobody can commit meanwhile.
    fn is_to_resign(&mut self) -> bool {
        let short = self.connections.were_short();
        if self.all_are_back() {
            self.stranded = None;
        } else if short {
            let now = Instant::now();
            // A shortage that has not been felt for as long is over, and this one is another.
            let lasting = self.stranded.filter(|stranded| now.duration_since(stranded.last) <= STRANDED);
            let since = lasting.map_or(now, |stranded| stranded.since);
            self.stranded = Some(Stranded { since, last: now });
            return now.duration_since(since) > STRANDED;
        }
        false
    }
}
