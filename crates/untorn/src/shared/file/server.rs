//! The process that serves: it accepts the others' connections, and has a thread for each channel of each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::service::{Service, serve};
use crate::ipc::connection::{SHORTAGE, wait, was_notified};
use crate::ipc::listener::Listener;
use crate::ipc::message::{Incoming, Kind, Message, is_shortage_number, receive};
use crate::ipc::rendezvous::{MEMBERS, Rendezvous};
use crate::ipc::rpc::{EXECUTING, REQUEST_SLOTS, RpcArea, VERSION};
use crate::sys::socket;

/// How often to look whether those are alive that take part and have no connection.
const ROUND: Duration = Duration::from_secs(1);

/// A connection. Dropping it ends it also where a forked child still has the descriptor.
struct Peer {
    socket: OwnedFd,
    /// Told apart from later ones.
    token: u64,
    /// The slot of the process behind it, once it takes part.
    slot: Option<usize>,
    ended: bool,
}

impl Drop for Peer {
    fn drop(&mut self) {
        socket::shut_down(self.socket.as_fd());
    }
}

/// The threads that do the calls of one process. Dropping it waits for the calls under way.
struct WorkerPool {
    rpc_area: Arc<RpcArea>,
    slot: usize,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    fn new(rpc_area: &Arc<RpcArea>, slot: usize) -> Self {
        WorkerPool { rpc_area: Arc::clone(rpc_area), slot, stop: Arc::default(), threads: Vec::new() }
    }

    /// Sees to it that there is a thread for each of the first `count` request slots.
    fn grow(&mut self, service: &Arc<Service>, count: usize) -> io::Result<()> {
        for index in self.threads.len()..count.min(REQUEST_SLOTS) {
            let (rpc_area, slot, stop) = (Arc::clone(&self.rpc_area), self.slot, Arc::clone(&self.stop));
            let service = Arc::clone(service);
            let work = move || {
                let request_slot = rpc_area.request_slot(slot, index);
                let mut bytes = Vec::new();
                while request_slot.await_call(|| stop.load(Ordering::SeqCst)) {
                    #[cfg(test)]
                    super::tests::dawdle(&stop);
                    serve(&service, &rpc_area, request_slot, &mut bytes);
                }
            };
            self.threads.push(thread::Builder::new().name("untorn-worker".to_owned()).spawn(work)?);
        }
        Ok(())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        (0..self.threads.len()).for_each(|index| self.rpc_area.request_slot(self.slot, index).notify());
        for thread in self.threads.drain(..) {
            // A panic in a call was caught there.
            let _ = thread.join();
        }
    }
}

/// The serving thread's state. When it is dropped, nobody has the service but the process itself.
pub(super) struct Server {
    rendezvous: Arc<Rendezvous>,
    rpc_area: Arc<RpcArea>,
    service: Arc<Service>,
    listener: Listener,
    /// A connection could not be accepted just now.
    deaf: bool,
    peers: Vec<Peer>,
    next_token: u64,
    /// By slot.
    crews: Vec<Option<WorkerPool>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The calls under way are done and answered. Then the listener goes, and last the connections: those whose
        // connection ends look for the next server, which listens at the same name.
        self.crews.clear();
    }
}

impl Server {
    /// Nobody is served before [`attend`](Server::attend) and [`run`](Server::run). The place says that this process
    /// may.
    pub(super) fn new(
        listener: Listener,
        rendezvous: &Arc<Rendezvous>,
        rpc_area: &Arc<RpcArea>,
        service: Arc<Service>,
    ) -> Self {
        Server {
            rendezvous: Arc::clone(rendezvous),
            rpc_area: Arc::clone(rpc_area),
            service,
            listener,
            deaf: false,
            peers: Vec::new(),
            next_token: 0,
            crews: (0..MEMBERS).map(|_| None).collect(),
        }
    }

    /// Does again what a server that was killed may have done without saying so, before anybody can look. What it had
    /// begun were changes of different pages, so their order does not matter.
    pub(super) fn finish_begun(&self) {
        let mut bytes = Vec::new();
        for slot in (0..MEMBERS).filter(|slot| self.rpc_area.is_attached(*slot)) {
            if !self.rendezvous.is_alive(slot) {
                self.rpc_area.clear(slot);
                continue;
            }
            for request_slot in (0..REQUEST_SLOTS).map(|index| self.rpc_area.request_slot(slot, index)) {
                if request_slot.state() == EXECUTING {
                    serve(&self.service, &self.rpc_area, request_slot, &mut bytes);
                }
            }
        }
    }

    /// Serves the request slots that a process has opened.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn attend(&mut self, slot: usize) -> io::Result<()> {
        let workers = self.crews[slot].get_or_insert_with(|| WorkerPool::new(&self.rpc_area, slot));
        workers.grow(&self.service, self.rpc_area.request_slots(slot))
    }

    /// Serves until the bell rings.
    pub(super) fn run(mut self, stop: &OwnedFd) {
        loop {
            let (stopped, called, heard) = self.wait(stop);
            if stopped {
                return;
            }
            if called {
                self.accept();
            }
            for token in heard {
                self.recv(token);
            }
            // Ending a connection is what tells its process to come back, if it is there.
            self.peers.retain(|peer| !peer.ended);
            for slot in self.strays() {
                if !self.rendezvous.is_alive(slot) {
                    self.release(slot);
                }
            }
        }
    }

    /// Those that take part and have no connection: about to come back, about to end, or gone. A killed process may
    /// lose its connection a moment before it loses the lock that says it is alive.
    fn strays(&self) -> Vec<usize> {
        let served = (0..MEMBERS).filter(|slot| *slot != self.rendezvous.slot() && self.crews[*slot].is_some());
        served.filter(|slot| !self.peers.iter().any(|peer| peer.slot == Some(*slot))).collect()
    }

    fn wait(&self, stop: &OwnedFd) -> (bool, bool, Vec<u64>) {
        // A connection that cannot be accepted keeps the listener readable: without a pause this would be a busy loop.
        let interest = if self.deaf { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.listener, interest)];
        fds.extend(self.peers.iter().map(|peer| PollFd::new(&peer.socket, PollFlags::IN)));
        let limit = match (self.deaf, self.strays().is_empty()) {
            (true, _) => Some(SHORTAGE),
            (false, false) => Some(ROUND),
            (false, true) => None,
        };
        if !wait(&mut fds, limit) {
            // None of these waits.
            return (was_notified(stop.as_fd()), true, self.peers.iter().map(|peer| peer.token).collect());
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let heard = self.peers.iter().zip(&ready[2..]).filter(|(_, ready)| **ready).map(|(peer, _)| peer.token);
        (ready[0], self.deaf || ready[1], heard.collect())
    }

    fn accept(&mut self) {
        loop {
            let accepted = self.listener.accept();
            self.deaf = accepted.is_err();
            let Ok(Some(socket)) = accepted else { return };
            self.next_token += 1;
            let mine = rustix::process::geteuid().as_raw();
            match socket::peer(socket.as_fd()) {
                Ok((user, _)) if user == mine => {
                    self.peers.push(Peer { socket, token: self.next_token, slot: None, ended: false });
                }
                _ => {
                    let why = format!("user {mine} shares it, and only processes of that user can join");
                    let _ = refusal(why).send(socket.as_fd(), &[]);
                }
            }
        }
    }

    fn peer(&mut self, token: u64) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.token == token && !peer.ended)
    }

    /// Takes all messages of a connection.
    fn recv(&mut self, token: u64) {
        while let Some(peer) = self.peer(token) {
            match receive(peer.socket.as_fd()) {
                Incoming::Nothing => return,
                Incoming::End | Incoming::Short(_) => peer.ended = true,
                Incoming::Message(message, _) => self.handle(token, &message),
            }
        }
    }

    fn handle(&mut self, token: u64, message: &Message) {
        let slot = usize::try_from(message.id).ok().filter(|slot| *slot < MEMBERS);
        match (message.kind, slot) {
            (Kind::Hello, Some(slot)) => self.welcome(token, message, slot),
            (Kind::Attach | Kind::Return, Some(slot)) => match self.admit_member(token, message, slot) {
                Ok(()) => self.send_to(token, &Message::new(Kind::Ready, 0, 0, 0), true),
                Err(why) => self.send_to(token, &refusal(why), false),
            },
            (Kind::RequestSlot, Some(slot)) if self.attend(slot).is_ok() => {}
            // Nobody says anything else to a server; and a process that cannot be served comes back and is told so.
            _ => self.end(token),
        }
    }

    fn end(&mut self, token: u64) {
        if let Some(peer) = self.peer(token) {
            peer.ended = true;
        }
    }

    fn welcome(&mut self, token: u64, message: &Message, slot: usize) {
        let refused = if message.a == VERSION {
            self.service.engine().writable().err().map(|error| error.to_string())
        } else {
            Some(format!(
                "it is shared with protocol version {VERSION}; use the same version of untorn in every \
                          process"
            ))
        };
        if let Some(why) = refused {
            return self.send_to(token, &refusal(why), false);
        }
        // It has the slot's lock, so whoever had the slot is gone, if only since a moment ago.
        self.release(slot);
        let rpc_area = Arc::clone(&self.rpc_area);
        let sent = self
            .peer(token)
            .map(|peer| Message::new(Kind::Welcome, 0, 0, 0).send(peer.socket.as_fd(), &[rpc_area.file()]));
        if !matches!(sent, Some(Ok(()))) {
            self.end(token);
        }
    }

    /// Gives a process its member slot, or says why not.
    fn admit_member(&mut self, token: u64, message: &Message, slot: usize) -> std::result::Result<(), String> {
        if message.text != self.rpc_area.name() {
            return Err("other processes have started to share it anew".to_owned());
        }
        if message.kind == Kind::Attach {
            self.rpc_area.set_attached(slot, true);
        } else if !self.rpc_area.is_attached(slot) {
            return Err("this process was evicted".to_owned());
        }
        if let Some(peer) = self.peer(token) {
            peer.slot = Some(slot);
        }
        self.attend(slot).map_err(|error| format!("cannot start a thread for it: {error}"))
    }

    /// Gives up what a process had that is gone.
    fn release(&mut self, slot: usize) {
        self.crews[slot] = None;
        self.rpc_area.clear(slot);
    }

    /// Says something to a connection, with a handle of this process if wanted: whoever has it sees when it ends,
    /// even if a forked child keeps the connection.
    fn send_to(&mut self, token: u64, message: &Message, with_handle: bool) {
        let handle = with_handle.then(|| pidfd_open(getpid(), PidfdFlags::empty()));
        if let Some(Err(error)) = handle
            && is_shortage_number(error.raw_os_error())
        {
            // Its process tries again. That there are no handles of processes at all is told by there being none.
            return self.end(token);
        }
        let handle = handle.and_then(std::result::Result::ok);
        let handle: Vec<BorrowedFd<'_>> = handle.iter().map(AsFd::as_fd).collect();
        if let Some(peer) = self.peer(token)
            && message.send(peer.socket.as_fd(), &handle).is_err()
        {
            peer.ended = true;
        }
    }
}

fn refusal(why: String) -> Message {
    Message::new(Kind::Refused, 0, 1, 0).text(why)
}
