//! The serving thread: exactly one of the processes that share a working copy has it. It fills pages, makes cuts, and
//! hands them to the backing. A second thread calls the backing, so that no process waits for a device. This file has
//! its state, its loop and its connections; [`requests`] has the requests, [`members`] the members.

mod members;
mod requests;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use self::members::MemberSlot;
use self::requests::Request;
use super::backing::{Backing, Cut};
use super::committer::Committer;
use super::control::Control;
use crate::error::{Error, Result};
use crate::ipc::connection::{SHORTAGE, wait, was_notified};
use crate::ipc::listener::Listener;
use crate::ipc::message::{Incoming, Kind, Message, is_shortage, is_shortage_number, receive};
use crate::ipc::rendezvous::{MEMBERS, Rendezvous};
use crate::sys::shared::SharedPages;
use crate::sys::socket;
use crate::sys::userfault::Userfault;

/// How long others may wait for a process that serves and has no descriptors to let them in again: then another one
/// tries.
const STRANDED: Duration = Duration::from_secs(1);

/// A want of descriptors that others wait for.
#[derive(Clone, Copy)]
struct Stranded {
    since: Instant,
    /// When it was felt last.
    last: Instant,
}

/// A connection. Dropping it ends it also where a forked child still has the descriptor.
struct Peer {
    socket: OwnedFd,
    /// Told apart from later ones.
    token: u64,
    ended: bool,
}

impl Drop for Peer {
    fn drop(&mut self) {
        socket::shut_down(self.socket.as_fd());
    }
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
    // In this order when the server is dropped: nobody new is let in, and then those whose connection ends look for
    // the next server, which listens at the same name.
    listener: Listener,
    /// A connection could not be accepted just now.
    deaf: bool,
    /// Somebody waits to come back for whom there was no descriptor.
    stranded: Option<Stranded>,
    short: bool,
    resigned: Arc<AtomicBool>,
    stop: Arc<OwnedFd>,
    peers: Vec<Peer>,
    next_token: u64,
    queue: VecDeque<Request>,
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
        Ok(Server {
            committed_len: backing.as_ref().map_or(0, |backing| backing.len()),
            growing: None,
            listener: Listener::new(rendezvous)?,
            deaf: false,
            stranded: None,
            short: false,
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
            peers: Vec::new(),
            next_token: 0,
            queue: VecDeque::new(),
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
            let (stopped, called, committed, heard) = self.wait();
            if committed {
                self.committed();
            }
            if stopped {
                break;
            }
            if called {
                self.accept();
            }
            for token in heard {
                self.recv(token);
            }
            self.remove_dead();
            self.advance();
            // Before the next wait: closing a connection is what tells its process to come back.
            self.peers.retain(|peer| !peer.ended);
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
    fn wait(&self) -> (bool, bool, bool, Vec<u64>) {
        let event = self.committer.as_ref().map_or(self.stop.as_fd(), Committer::event);
        let mut fds: Vec<PollFd<'_>> = [self.stop.as_fd(), self.listener.as_fd(), event]
            .into_iter()
            .chain(self.peers.iter().map(|peer| peer.socket.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if self.deaf {
            // A connection that cannot be accepted keeps the listener readable: without a pause this would be a busy
            // loop.
            fds[1] = PollFd::new(&self.listener, PollFlags::empty());
        }
        // While somebody is dying, or has yet to come back, time itself is something to do.
        let waits = self.seats.iter().flatten().any(|admit_member| self.is_lonely(admit_member));
        let waits = waits || (self.in_flight.is_none() && (!self.queue.is_empty() || self.control.rolling_back()));
        let limit = if waits { Some(Duration::from_millis(2)) } else { self.deaf.then_some(SHORTAGE) };
        if !wait(&mut fds, limit) {
            // None of these waits.
            let heard = self.peers.iter().map(|peer| peer.token).collect();
            return (was_notified(self.stop.as_fd()), true, self.committer.is_some(), heard);
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let heard = self.peers.iter().zip(&ready[3..]).filter(|(_, ready)| **ready).map(|(peer, _)| peer.token);
        (ready[0], self.deaf || ready[1], ready[2] && self.committer.is_some(), heard.collect())
    }

    fn accept(&mut self) {
        loop {
            let accepted = self.listener.accept();
            #[cfg(test)]
            let accepted = super::tests::as_far_as_allowed(accepted);
            self.deaf = accepted.is_err();
            #[cfg(test)]
            if self.deaf {
                super::member::lock(&super::tests::SHORTAGES).push(std::time::Instant::now());
            }
            let Ok(Some(socket)) = accepted else { return };
            self.next_token += 1;
            let mine = rustix::process::geteuid().as_raw();
            #[cfg(test)]
            if self.bug == Some(super::tests::Bug::TakeoverCheck) {
                // Without close-on-exec.
                std::mem::forget((rustix::io::dup(&socket), rustix::io::dup(&self.listener)));
            }
            match socket::peer(socket.as_fd()) {
                Ok((user, _)) if user == mine => self.peers.push(Peer { socket, token: self.next_token, ended: false }),
                _ => {
                    let why = format!("user {mine} shares it, and only processes of that user can join");
                    let _ = Message::new(Kind::Refused, 0, 1, 0).text(why).send(socket.as_fd(), &[]);
                }
            }
        }
    }

    /// Whether others wait in vain for this process, which is not to be borne for long: nobody can commit meanwhile.
    fn is_to_resign(&mut self) -> bool {
        let short = std::mem::take(&mut self.short) || self.deaf;
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

    fn peer(&mut self, token: u64) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.token == token && !peer.ended)
    }

    /// Takes all messages of a connection.
    fn recv(&mut self, token: u64) {
        while let Some(peer) = self.peer(token) {
            match receive(peer.socket.as_fd()) {
                Incoming::Nothing => return,
                Incoming::End => peer.ended = true,
                Incoming::Short(_) => (peer.ended, self.short) = (true, true),
                Incoming::Message(message, fds) => self.handle(token, message, fds),
            }
        }
    }

    fn handle(&mut self, token: u64, message: Message, fds: Vec<OwnedFd>) {
        match message.kind {
            Kind::Fill => self.fill(message.a),
            Kind::Commit | Kind::RollBack | Kind::Grow => self.queue.push_back(Request { token, message }),
            Kind::Leave => {
                let slot = self.seats.iter().position(|admit_member| {
                    admit_member.as_ref().is_some_and(|admit_member| admit_member.token == token)
                });
                if let Some(slot) = slot {
                    self.release(slot);
                }
                self.answer(&Request { token, message }, &Ok(self.control.commit()));
            }
            Kind::Hello => self.welcome(token, &message),
            Kind::Attach | Kind::Return => match self.admit_member(token, &message, fds) {
                Ok(()) => {
                    // Of this process: whoever has it sees when it ends, even if a forked child keeps the connection.
                    match pidfd_open(getpid(), PidfdFlags::empty()) {
                        Ok(handle) => self.send_to(token, &Message::new(Kind::Ready, 0, 0, 0), &[handle.as_fd()]),
                        Err(error) if is_shortage_number(error.raw_os_error()) => self.end_for_want(token),
                        // It is told by there being none.
                        Err(_) => self.send_to(token, &Message::new(Kind::Ready, 0, 0, 0), &[]),
                    }
                }
                Err(why) => self.send_to(token, &Message::new(Kind::Refused, 0, 1, 0).text(why), &[]),
            },
            // Nobody says these to a server.
            Kind::Welcome | Kind::Ready | Kind::Refused | Kind::Done | Kind::Failed | Kind::RequestSlot => {
                if let Some(peer) = self.peer(token) {
                    peer.ended = true;
                }
            }
        }
    }

    /// Ends a connection for which there is something wanting here. Its process tries again.
    fn end_for_want(&mut self, token: u64) {
        self.short = true;
        if let Some(peer) = self.peer(token) {
            peer.ended = true;
        }
    }

    /// Ends a connection, with what was asked on it and is not begun.
    fn forget(&mut self, token: u64) {
        self.queue.retain(|request| request.token != token);
        if let Some(peer) = self.peer(token) {
            peer.ended = true;
        }
    }

    /// Says something to a connection. One that does not listen is closed: its process comes back and asks again.
    /// That would help nobody where this one is short of what it takes to hand descriptors on.
    fn send_to(&mut self, token: u64, message: &Message, fds: &[BorrowedFd<'_>]) {
        if let Some(peer) = self.peer(token)
            && let Err(error) = message.send(peer.socket.as_fd(), fds)
        {
            peer.ended = true;
            let is_full = error.kind() == std::io::ErrorKind::WouldBlock;
            self.short |= !fds.is_empty() && !is_full && is_shortage(&error);
        }
    }
}

/// What a process calls the shared memory it takes part in.
pub(super) fn name(control: &Control) -> String {
    let (high, low) = control.id();
    format!("{high:016x}{low:016x}")
}
