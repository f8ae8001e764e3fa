//! Serving: the process that has the file open listens for those that come, and has a thread for each channel of each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::service::{Service, serve};
use crate::error::Result;
use crate::sharing::board::{BEGUN, Board, CHANNELS, VERSION};
use crate::sharing::place::{MEMBERS, Place};
use crate::sharing::wire::{Came, Kind, Message, receive};
use crate::sys::socket;

/// The open file, or why there is none.
pub(super) type Opened = std::result::Result<Arc<Service>, String>;

/// A connection.
struct Peer {
    socket: OwnedFd,
    /// Told apart from later ones.
    token: u64,
    /// The slot of the process behind it, once it takes part.
    slot: Option<usize>,
    ended: bool,
}

/// The threads that do the calls of one process. Dropping it waits for the calls under way.
struct Crew {
    board: Arc<Board>,
    slot: usize,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    fn new(board: &Arc<Board>, slot: usize) -> Self {
        Crew { board: Arc::clone(board), slot, stop: Arc::default(), threads: Vec::new() }
    }

    /// Sees to it that there is a thread for each of the first `count` channels.
    fn grow(&mut self, service: &Opened, count: usize) -> io::Result<()> {
        for index in self.threads.len()..count.min(CHANNELS) {
            let (board, slot, stop) = (Arc::clone(&self.board), self.slot, Arc::clone(&self.stop));
            let service = service.clone();
            let work = move || {
                let channel = board.channel(slot, index);
                let mut bytes = Vec::new();
                while channel.await_call(|| stop.load(Ordering::SeqCst)) {
                    #[cfg(test)]
                    super::tests::dawdle(&stop);
                    serve(&service, &board, channel, &mut bytes);
                }
            };
            self.threads.push(thread::Builder::new().name("untorn-clerk".to_owned()).spawn(work)?);
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        (0..self.threads.len()).for_each(|index| self.board.channel(self.slot, index).ring());
        for thread in self.threads.drain(..) {
            // A panic in a call was caught there.
            let _ = thread.join();
        }
    }
}

/// The serving thread's state. When it is dropped, nobody has the service but the process itself.
pub(super) struct Server {
    place: Arc<Place>,
    board: Arc<Board>,
    service: Opened,
    listener: OwnedFd,
    peers: Vec<Peer>,
    next_token: u64,
    /// By slot.
    crews: Vec<Option<Crew>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crews.clear();
        // In this order: those whose connection ends look for the next server, which listens at the same name.
        self.place.unlink();
    }
}

impl Server {
    /// Begins to listen; nobody is served before [`run`](Server::run). The place says that this process may serve.
    ///
    /// # Errors
    /// [`Error::Io`](crate::error::Error::Io).
    pub(super) fn new(place: &Arc<Place>, board: &Arc<Board>, service: Opened) -> Result<Self> {
        Ok(Server {
            listener: place.listen()?,
            place: Arc::clone(place),
            board: Arc::clone(board),
            service,
            peers: Vec::new(),
            next_token: 0,
            crews: (0..MEMBERS).map(|_| None).collect(),
        })
    }

    /// Does again what a server that was killed may have done without saying so, before anybody can look. What it had begun
    /// were changes of different pages, so their order does not matter.
    pub(super) fn finish_begun(&self) {
        let mut bytes = Vec::new();
        for slot in (0..MEMBERS).filter(|slot| self.board.is_attached(*slot)) {
            if !self.place.is_alive(slot) {
                self.board.clear(slot);
                continue;
            }
            for channel in (0..CHANNELS).map(|index| self.board.channel(slot, index)) {
                if channel.state() == BEGUN {
                    serve(&self.service, &self.board, channel, &mut bytes);
                }
            }
        }
    }

    /// Serves the channels that a process has opened.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn attend(&mut self, slot: usize) -> io::Result<()> {
        let crew = self.crews[slot].get_or_insert_with(|| Crew::new(&self.board, slot));
        crew.grow(&self.service, self.board.channels(slot))
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
                self.hear(token);
            }
            // Closing a connection is what tells its process to come back, if it is there.
            for peer in self.peers.extract_if(.., |peer| peer.ended).collect::<Vec<_>>() {
                let Some(slot) = peer.slot else { continue };
                if !self.place.is_alive(slot) && !self.peers.iter().any(|other| other.slot == Some(slot)) {
                    self.release(slot);
                }
            }
        }
    }

    fn wait(&self, stop: &OwnedFd) -> (bool, bool, Vec<u64>) {
        let mut fds: Vec<PollFd<'_>> = [stop.as_fd(), self.listener.as_fd()]
            .into_iter()
            .chain(self.peers.iter().map(|peer| peer.socket.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // An interruption is a turn with nothing to do.
        let _ = poll(&mut fds, None);
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let heard = self.peers.iter().zip(&ready[2..]).filter(|(_, ready)| **ready).map(|(peer, _)| peer.token);
        (ready[0], ready[1], heard.collect())
    }

    fn accept(&mut self) {
        while let Ok(Some(socket)) = socket::accept(self.listener.as_fd()) {
            self.next_token += 1;
            let mine = rustix::process::geteuid().as_raw();
            match socket::peer(socket.as_fd()) {
                Ok((user, _)) if user == mine => {
                    self.peers.push(Peer { socket, token: self.next_token, slot: None, ended: false });
                }
                _ => {
                    let why = format!("it is shared by processes of user {mine}, and only of that user");
                    let _ = refusal(why).send(socket.as_fd(), &[]);
                }
            }
        }
    }

    fn peer(&mut self, token: u64) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.token == token && !peer.ended)
    }

    /// Takes all messages of a connection.
    fn hear(&mut self, token: u64) {
        while let Some(peer) = self.peer(token) {
            match receive(peer.socket.as_fd()) {
                Came::Nothing => return,
                Came::End => peer.ended = true,
                Came::Message(message, _) => self.handle(token, &message),
            }
        }
    }

    fn handle(&mut self, token: u64, message: &Message) {
        let slot = usize::try_from(message.id).ok().filter(|slot| *slot < MEMBERS);
        match (message.kind, slot) {
            (Kind::Hello, Some(slot)) => self.welcome(token, message, slot),
            (Kind::Attach | Kind::Return, Some(slot)) => match self.seat(token, message, slot) {
                Ok(()) => self.say(token, &Message::new(Kind::Ready, 0, 0, 0), true),
                Err(why) => self.say(token, &refusal(why), false),
            },
            (Kind::Channel, Some(slot)) if self.attend(slot).is_ok() => {}
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
        let refused = match &self.service {
            _ if message.a != VERSION => Some(format!("it is shared by processes with version {VERSION} of sharing")),
            Err(cause) => Some(cause.clone()),
            Ok(service) => service.engine().writable().err().map(|error| error.to_string()),
        };
        if let Some(why) = refused {
            return self.say(token, &refusal(why), false);
        }
        // It has the slot's lock, so whoever had the slot is gone, if only since a moment ago.
        self.release(slot);
        let board = Arc::clone(&self.board);
        let sent = self
            .peer(token)
            .map(|peer| Message::new(Kind::Welcome, 0, 0, 0).send(peer.socket.as_fd(), &[board.file()]));
        if !matches!(sent, Some(Ok(()))) {
            self.end(token);
        }
    }

    /// Gives a process its seat, or says why not.
    fn seat(&mut self, token: u64, message: &Message, slot: usize) -> std::result::Result<(), String> {
        if message.text != self.board.name() {
            return Err("others have begun to share it meanwhile".to_owned());
        }
        if message.kind == Kind::Attach {
            self.board.set_attached(slot, true);
        } else if !self.board.is_attached(slot) {
            return Err("it was given up".to_owned());
        }
        if let Some(peer) = self.peer(token) {
            peer.slot = Some(slot);
        }
        self.attend(slot).map_err(|error| format!("no thread can be started for it: {error}"))
    }

    /// Gives up what a process had that is gone.
    fn release(&mut self, slot: usize) {
        self.crews[slot] = None;
        self.board.clear(slot);
    }

    /// Says something to a connection, with a handle of this process if wanted: whoever has it sees when it ends, even if a
    /// forked child keeps the connection.
    fn say(&mut self, token: u64, message: &Message, with_handle: bool) {
        let handle = with_handle.then(|| pidfd_open(getpid(), PidfdFlags::empty()).ok()).flatten();
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
