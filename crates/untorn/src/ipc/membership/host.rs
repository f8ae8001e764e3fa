//! The connections of the process that serves, and the handshake with the processes behind them.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::ipc::connection::{SHORTAGE, wait, was_notified};
use crate::ipc::listener::Listener;
use crate::ipc::message::{Incoming, Kind, Message, is_shortage, is_shortage_number, receive};
use crate::ipc::rendezvous::MEMBERS;
use crate::sys::socket;

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

/// The work that a wait found.
pub(crate) struct Ready {
    /// The process is to stop serving.
    pub(crate) stopped: bool,
    /// Somebody may have connected.
    pub(crate) called: bool,
    /// The server's own event has happened.
    pub(crate) event: bool,
    /// The connections with messages, by their tokens.
    pub(crate) heard: Vec<u64>,
}

/// The listener and the connections of a process that serves.
pub(crate) struct Connections {
    // In this order when they are dropped: nobody new is let in, and then those whose connection ends look for the
    // next server, which listens at the same name.
    listener: Listener,
    peers: Vec<Peer>,
    next_token: u64,
    /// By slot, the last connection of each process that takes part, also one that has ended.
    last: Vec<Option<u64>>,
    /// A connection could not be accepted just now.
    deaf: bool,
    /// Something was wanting to let a process in, or to hear it.
    short: bool,
}

impl Connections {
    pub(crate) fn new(listener: Listener) -> Self {
        Connections { listener, peers: Vec::new(), next_token: 0, last: vec![None; MEMBERS], deaf: false, short: false }
    }

    /// Waits for something to do, not longer than the limit.
    pub(crate) fn wait(&self, stop: BorrowedFd<'_>, event: Option<BorrowedFd<'_>>, limit: Option<Duration>) -> Ready {
        // A connection that cannot be accepted keeps the listener readable: without a pause this would be a busy loop.
        let interest = if self.deaf { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::new(&self.listener, interest),
            PollFd::from_borrowed_fd(event.unwrap_or(stop), PollFlags::IN),
        ];
        fds.extend(self.peers.iter().map(|peer| PollFd::new(&peer.socket, PollFlags::IN)));
        let limit = if self.deaf { Some(limit.map_or(SHORTAGE, |limit| limit.min(SHORTAGE))) } else { limit };
        if !wait(&mut fds, limit) {
            // None of these waits.
            let heard = self.peers.iter().map(|peer| peer.token).collect();
            return Ready { stopped: was_notified(stop), called: true, event: event.is_some(), heard };
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let heard = self.peers.iter().zip(&ready[3..]).filter(|(_, ready)| **ready).map(|(peer, _)| peer.token);
        let (called, event) = (self.deaf || ready[1], event.is_some() && ready[2]);
        Ready { stopped: ready[0], called, event, heard: heard.collect() }
    }

    /// Lets those in who have connected and are of this process's user.
    pub(crate) fn accept(&mut self) {
        loop {
            let accepted = self.listener.accept();
            #[cfg(test)]
            let accepted = super::tests::as_far_as_allowed(accepted, &self.listener);
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

    /// Takes the next message of a connection, if there is one.
    fn receive(&mut self, token: u64) -> Option<(Message, Vec<OwnedFd>)> {
        let peer = self.peer(token)?;
        match receive(peer.socket.as_fd()) {
            Incoming::Message(message, fds) => return Some((message, fds)),
            Incoming::Nothing => {}
            Incoming::End => peer.ended = true,
            Incoming::Short(_) => self.end_for_want(token),
        }
        None
    }

    /// Ends a connection, which tells its process to come back if it is there.
    pub(crate) fn end(&mut self, token: u64) {
        if let Some(peer) = self.peer(token) {
            peer.ended = true;
        }
    }

    /// Ends a connection for which there is something wanting here. Its process tries again.
    pub(crate) fn end_for_want(&mut self, token: u64) {
        self.short = true;
        self.end(token);
    }

    /// Closes the connections that have ended.
    pub(crate) fn remove_ended(&mut self) {
        self.peers.retain(|peer| !peer.ended);
    }

    /// Whether something was wanting since this was asked last.
    pub(crate) fn were_short(&mut self) -> bool {
        std::mem::take(&mut self.short) || self.deaf
    }

    /// Says something to a connection. One that does not listen is closed: its process comes back and asks again.
    /// That would help nobody where this one is short of what it takes to hand descriptors on.
    pub(crate) fn send(&mut self, token: u64, message: &Message, fds: &[BorrowedFd<'_>]) {
        if let Some(peer) = self.peer(token)
            && let Err(error) = message.send(peer.socket.as_fd(), fds)
        {
            peer.ended = true;
            self.short |= !fds.is_empty() && error.kind() != ErrorKind::WouldBlock && is_shortage(&error);
        }
    }

    /// Tells a process that it takes part, with a handle of this one: whoever has it sees when it ends, even if a
    /// forked child keeps the connection.
    fn confirm(&mut self, token: u64) {
        let ready = Message::new(Kind::Ready, 0, 0, 0);
        match pidfd_open(getpid(), PidfdFlags::empty()) {
            Ok(handle) => self.send(token, &ready, &[handle.as_fd()]),
            Err(error) if is_shortage_number(error.raw_os_error()) => self.end_for_want(token),
            // This kernel has no handles of processes: a message without one says so.
            Err(_) => self.send(token, &ready, &[]),
        }
    }

    /// The slot of the process behind a connection, if it takes part.
    pub(crate) fn slot_of(&mut self, token: u64) -> Option<usize> {
        self.peer(token)?.slot
    }

    /// Whether the process of a slot has a connection.
    pub(crate) fn is_connected(&self, slot: usize) -> bool {
        self.peers.iter().any(|peer| peer.slot == Some(slot) && !peer.ended)
    }

    /// Notes the process behind a connection. Returns the connection that it had before, which may have ended.
    fn seat(&mut self, token: u64, slot: usize) -> Option<u64> {
        self.peers.iter_mut().filter(|peer| peer.slot == Some(slot)).for_each(|peer| peer.slot = None);
        if let Some(peer) = self.peer(token) {
            peer.slot = Some(slot);
        }
        self.last[slot].replace(token)
    }

    /// Notes that the process of a slot takes part no more.
    pub(crate) fn unseat(&mut self, slot: usize) {
        self.last[slot] = None;
    }
}

/// The process that serves, as those see it that join it or return to it.
pub(crate) trait Host {
    /// The version of what is said and of what is shared.
    const VERSION: u64;

    fn connections(&self) -> &Connections;
    fn connections_mut(&mut self) -> &mut Connections;
    /// The name of what is shared, unlike anything else there ever was.
    fn name(&self) -> String;
    /// The reason why a process that wants a part cannot join, if it cannot.
    fn refuses(&self, part: &str) -> Option<String>;
    /// Sends what is shared.
    fn welcome(&mut self, token: u64);
    /// Whether the process of a slot takes part, so that it may return.
    fn is_attached(&self, slot: usize) -> bool;
    /// Whether this server has something of the process of a slot, which another one is.
    fn has(&self, slot: usize) -> bool;
    /// Gives a process its slot, or says why not.
    ///
    /// # Errors
    /// In words.
    fn admit_member(&mut self, slot: usize, message: &Message, fds: Vec<OwnedFd>) -> std::result::Result<(), String>;
    /// Gives up what a process had that is gone, and [unseats](Connections::unseat) it.
    fn release(&mut self, slot: usize);
    /// Does what a process asks for beyond the handshake.
    fn handle(&mut self, token: u64, message: Message);
    /// Forgets a connection that its process has left for another one.
    fn forget(&mut self, token: u64) {
        self.connections_mut().end(token);
    }

    /// Takes all messages of a connection.
    fn recv(&mut self, token: u64) {
        while let Some((message, fds)) = self.connections_mut().receive(token) {
            let answered = match message.kind {
                Kind::Hello => self.greet(token, &message),
                Kind::Attach | Kind::Return => {
                    self.admit(token, &message, fds).map(|()| self.connections_mut().confirm(token))
                }
                _ => {
                    self.handle(token, message);
                    Ok(())
                }
            };
            if let Err(why) = answered {
                self.connections_mut().send(token, &refusal(why), &[]);
            }
        }
    }

    /// # Errors
    /// Why the process cannot join.
    fn greet(&mut self, token: u64, message: &Message) -> std::result::Result<(), String> {
        let version = Self::VERSION;
        if message.a != version {
            return Err(format!(
                "it is shared with protocol version {version}; use the same version of untorn in every process"
            ));
        }
        let slot = slot_of(message)?;
        if let Some(why) = self.refuses(&message.text) {
            return Err(why);
        }
        // It has the slot's lock, so whoever had the slot is gone, if only since a moment ago. From now on this process
        // looks alive to those who ask.
        self.release(slot);
        self.welcome(token);
        Ok(())
    }

    /// # Errors
    /// Why the process does not take part.
    fn admit(&mut self, token: u64, message: &Message, fds: Vec<OwnedFd>) -> std::result::Result<(), String> {
        if message.text != self.name() {
            return Err("other processes have started to share it anew".to_owned());
        }
        let slot = slot_of(message)?;
        if message.kind == Kind::Return && !self.is_attached(slot) {
            return Err("this process was evicted".to_owned());
        }
        self.admit_member(slot, message, fds)?;
        if let Some(before) = self.connections_mut().seat(token, slot) {
            // Its process has left that line.
            self.forget(before);
        }
        Ok(())
    }

    /// Those that take part and have no connection: about to come back, about to end, or gone. A killed process may
    /// lose its connection a moment before it loses the lock that says it is alive.
    fn strays(&self) -> impl Iterator<Item = usize> {
        (0..MEMBERS).filter(|slot| self.has(*slot) && !self.connections().is_connected(*slot))
    }

    /// Gives up what the dead had.
    fn remove_dead(&mut self) {
        let dead: Vec<usize> =
            self.strays().filter(|slot| !self.connections().listener.rendezvous().is_alive(*slot)).collect();
        dead.into_iter().for_each(|slot| self.release(slot));
    }
}

fn slot_of(message: &Message) -> std::result::Result<usize, String> {
    let slot = usize::try_from(message.id).ok().filter(|slot| *slot < MEMBERS);
    slot.ok_or_else(|| "the message names an impossible slot".to_owned())
}

fn refusal(why: String) -> Message {
    Message::new(Kind::Refused, 0, 1, 0).text(why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ipc::rendezvous::Rendezvous;

    #[test]
    fn a_returning_process_names_its_last_connection() {
        let dir = tempfile::tempdir().unwrap();
        let rendezvous = Arc::new(Rendezvous::open(&dir.path().join("data"), dir.path(), "meeting").unwrap());
        assert!(rendezvous.try_own().unwrap());
        let mut connections = Connections::new(Listener::new(&rendezvous).unwrap());
        let clients: Vec<OwnedFd> = (0..3).map(|_| rendezvous.connect().unwrap()).collect();
        connections.accept();
        let tokens: Vec<u64> = connections.peers.iter().map(|peer| peer.token).collect();
        assert_eq!(tokens.len(), clients.len());
        assert_eq!(connections.seat(tokens[0], 5), None);
        assert_eq!(connections.seat(tokens[1], 5), Some(tokens[0]), "the process replaced its connection");
        assert_eq!((connections.slot_of(tokens[0]), connections.slot_of(tokens[1])), (None, Some(5)));
        connections.end(tokens[1]);
        connections.remove_ended();
        assert_eq!(connections.seat(tokens[2], 5), Some(tokens[1]), "the server ended the connection");
        connections.unseat(5);
        assert_eq!(connections.seat(tokens[0], 5), None, "another process has the slot");
    }
}
