//! Membership: how processes that share something find the one that serves them, and how another one takes its place.
//!
//! A remote file (`shared::file`) and shared memory ([`memory`](super::memory)) differ in what a process serves, and
//! in what it tells the others. They share everything here: each implements [`Member`] for a process's own part, and
//! [`Host`] for the process that serves.
//!
//! # States of a process
//!
//! ```text
//!  outside ─── nobody takes part: begin ──► serving ─── leaves ──► outside
//!     │                                      ▲   │
//!     │ Hello, Attach                        │   └── resigns ──────┐
//!     ▼                                      │                    ▼
//!  watching ─── the server ends ──► searching ─── ownership: take over
//!     ▲                              │     │
//!     └───────────── Return ─────────┘     └── fails for too long ──► evicted
//! ```
//!
//! - *Outside* ([`join`]): it owns a slot of the rendezvous. It begins only if it gets the ownership and no other
//!   process takes part. Otherwise it says Hello, sets the lock that says that it takes part, and attaches.
//! - *Watching* ([`Member::watch`]): another process serves it. The end of that process, or of the connection, makes
//!   it search.
//! - *Searching* ([`Member::find_server`]): in turn, it tries to get the ownership and to take over, and to return to
//!   the process that did. It may leave at any time.
//! - *Serving*: it has the ownership. The kernel releases that when the process ends, however it ends.
//! - *Evicted*: its calls fail, and it releases the lock that says that it takes part. It never serves again.
//!
//! [`Search`] decides about eviction and pauses. Each failure says how long it is worth another attempt. A process
//! that another one keeps out *for now* searches on for ever, because that says nothing against the process.
//!
//! # Invariants
//!
//! 1. One process at most serves: ownership is one lock of the kernel's.
//! 2. No process begins anew while another one takes part: a process sets the lock that says so before it attaches.
//! 3. An eviction ends every claim of the process before it ends the lock that says that it takes part.
//! 4. A server ends its listener before its connections. A process whose connection ends therefore finds the next
//!    server at the same name, or none yet.
//!
//! # Lock order
//!
//! 1. The ownership of the rendezvous.
//! 2. One mutex of the member at a time. No function here holds one when it calls a method of [`Member`].

mod host;
mod search;
#[cfg(test)]
pub(crate) mod tests;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

pub(crate) use self::host::{Connections, Host, Ready};
pub(crate) use self::search::Failure;
use self::search::{Search, Verdict};
use super::connection::{ConnectError, Connection, SHORTAGE, ask, connect, timespec, with_handle};
use super::message::{Kind, Message};
use super::rendezvous::Rendezvous;
use crate::error::{Error, Result};

/// How long a process that joins looks for a server when there seems to be one.
const SERVER_SEARCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts to join, to take over, or to return.
const RETRY_PAUSE: Duration = Duration::from_micros(500);
/// The longest pause between two attempts of a process that fails where another one may not.
pub(crate) const LONGEST_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a member goes on trying what fails, and how often at least, before it is evicted: a shortage may pass, and
/// one attempt may take long on a machine that has much else to do.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(1);
const EVICTION_ATTEMPTS: u32 = 10;
/// How long a process that was killed may keep its files: until it next gets a CPU, and the flushes that it had under
/// way have ended.
pub(crate) const KILLED_OWNER_TIMEOUT: Duration = Duration::from_secs(30);

/// Locks what a member's threads share.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread was doing under any of these locks is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the processes at a place, or begins if there are none. `begin` gives what the process has then, or nothing if
/// the process is to join itself; `attempt` joins.
///
/// # Errors
/// [`Error::InUse`] if the processes there cannot be joined; those of `begin`; [`Error::Io`].
pub(crate) fn join<M>(
    rendezvous: &Rendezvous,
    mut begin: impl FnMut() -> Result<Option<M>>,
    mut attempt: impl FnMut() -> std::result::Result<M, ConnectError>,
) -> Result<M> {
    let (since, mut serves) = (Instant::now(), false);
    loop {
        if !serves && rendezvous.try_own()? {
            // Others who take part have what no file has yet: one of them will serve.
            let begun = if rendezvous.has_others() { None } else { Some(begin()) };
            match begun {
                Some(Ok(Some(member))) => return Ok(member),
                Some(Ok(None)) => serves = true,
                Some(Err(error)) => {
                    rendezvous.give_up_ownership();
                    return Err(error);
                }
                None => rendezvous.give_up_ownership(),
            }
        }
        match attempt() {
            Ok(member) => return Ok(member),
            Err(ConnectError::Again(_)) if since.elapsed() < SERVER_SEARCH_TIMEOUT => thread::sleep(RETRY_PAUSE),
            Err(ConnectError::Short(_)) if since.elapsed() < SERVER_SEARCH_TIMEOUT => thread::sleep(SHORTAGE),
            Err(error) => {
                let number = rendezvous.server();
                let process = if number == 0 { "another process".to_owned() } else { format!("process {number}") };
                let holder = format!("{process}, and this process cannot join it ({})", error.why());
                return Err(Error::InUse { path: rendezvous.path().to_owned(), holder });
            }
        }
    }
}

/// The server's answer to Hello.
pub(crate) struct Invitation {
    socket: OwnedFd,
    /// How much there is room for.
    pub(crate) room: u64,
    fds: std::vec::IntoIter<OwnedFd>,
}

/// Says Hello: this process is of a version, and wants to share a part.
///
/// # Errors
/// Why it is not invited.
pub(crate) fn hello(
    rendezvous: &Rendezvous,
    version: u64,
    part: &str,
) -> std::result::Result<Invitation, ConnectError> {
    let socket = connect(rendezvous)?;
    let hello = Message::new(Kind::Hello, rendezvous.slot() as u64, version, 0).text(part);
    let (welcome, fds) = ask(&socket, &hello, &[], Kind::Welcome, None)?;
    Ok(Invitation { socket, room: welcome.a, fds: fds.into_iter() })
}

impl Invitation {
    /// The next descriptor of shared memory that came with it.
    ///
    /// # Errors
    /// [`ConnectError::Never`] if there is none.
    pub(crate) fn memory(&mut self) -> std::result::Result<OwnedFd, ConnectError> {
        let missing = || ConnectError::Never("the process that serves it sent no shared memory".to_owned());
        self.fds.next().ok_or_else(missing)
    }

    /// Takes part in what has a name. If that fails, or `used` does with the connection, nothing of it was used.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn attach<T>(
        self,
        rendezvous: &Rendezvous,
        name: String,
        (a, b): (u64, u64),
        fds: &[BorrowedFd<'_>],
        used: impl FnOnce(Connection) -> std::result::Result<T, ConnectError>,
    ) -> std::result::Result<T, ConnectError> {
        // From here on nobody begins anew, even if this server dies before it has answered.
        rendezvous.attach().map_err(|error| ConnectError::Never(error.to_string()))?;
        let attach = Message::new(Kind::Attach, rendezvous.slot() as u64, a, b).text(name);
        let ready = ask(&self.socket, &attach, fds, Kind::Ready, None);
        let joined = ready.and_then(|ready| with_handle(self.socket, ready)).and_then(used);
        joined.inspect_err(|_| rendezvous.detach())
    }
}

/// A process's own part, which its thread lives through from the joining on.
pub(crate) trait Member {
    /// The part that a process takes: a connection that it watches, or the serving itself.
    type Part;

    fn rendezvous(&self) -> &Rendezvous;
    /// Readable when the process is to leave.
    fn stop(&self) -> BorrowedFd<'_>;
    /// Lives until the server ends; true if the process is to leave instead.
    fn live(&self, part: Self::Part) -> bool;
    /// Lets go of what the process had of the server that has ended.
    fn lose_server(&self);
    /// Whether the process is to serve if nobody does.
    fn may_serve(&self) -> bool;
    /// Takes the place of the process that served; this one has the ownership. Nothing if it is to return to itself.
    ///
    /// # Errors
    /// Why it cannot.
    fn take_over(&self) -> std::result::Result<Option<Self::Part>, Failure>;
    /// Takes part again, under another server.
    ///
    /// # Errors
    /// Why it does not.
    fn come_back(&self) -> std::result::Result<Self::Part, ConnectError>;
    /// Ends this process's part: its calls fail, it gives the ownership up, and last it releases the lock that says
    /// that it takes part. A process that is leaving may keep that lock until it has left.
    fn evict(&self, why: String);

    /// What the thread of a process does until the process leaves, or is evicted.
    fn take_part(&self, mut part: Self::Part) {
        while !self.live(part) {
            match self.find_server() {
                Some(next) => part = next,
                None => return,
            }
        }
    }

    /// Serves, if nobody does, or comes back to the process that does; `None` if the process is leaving, or is
    /// evicted.
    fn find_server(&self) -> Option<Self::Part> {
        self.lose_server();
        let mut search = Search::default();
        loop {
            let mut rest = RETRY_PAUSE;
            if self.may_serve() && self.rendezvous().try_own().unwrap_or(false) {
                match self.take_over() {
                    Ok(Some(part)) => return Some(part),
                    Ok(None) => {}
                    Err(failure) => match search.cannot_take_over(failure.patience, Instant::now()) {
                        Verdict::Evict => {
                            self.evict(format!(
                                "the process that served it ended, and this process cannot take over: {}",
                                failure.why
                            ));
                            return None;
                        }
                        Verdict::Retry(pause) => {
                            self.rendezvous().give_up_ownership();
                            rest = pause;
                        }
                    },
                }
            }
            match self.come_back() {
                Ok(part) => return Some(part),
                Err(error) => match search.cannot_return(&error, Instant::now()) {
                    Verdict::Retry(pause) => rest = rest.max(pause),
                    Verdict::Evict => {
                        self.evict(error.why());
                        return None;
                    }
                },
            }
            if self.is_leaving(rest) {
                return None;
            }
        }
    }

    /// Comes back to another server: the message has the name of what is shared, and where this process has it.
    ///
    /// # Errors
    /// Why it does not.
    fn reconnect(&self, name: String, a: u64, fds: &[BorrowedFd<'_>]) -> std::result::Result<Connection, ConnectError> {
        let socket = connect(self.rendezvous())?;
        let back = Message::new(Kind::Return, self.rendezvous().slot() as u64, a, 0).text(name);
        let ready = ask(&socket, &back, fds, Kind::Ready, Some(self.stop()))?;
        with_handle(socket, ready)
    }

    /// Waits for the end of the process that serves, or of its serving; true if this process is to leave. `hear` takes
    /// what the server said, and tells whether the connection has ended.
    fn watch(&self, line: BorrowedFd<'_>, server: &OwnedFd, mut hear: impl FnMut() -> bool) -> bool {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.stop(), PollFlags::IN),
                PollFd::from_borrowed_fd(line, PollFlags::IN),
                // Readable when the process has ended, even if a forked child still has the other end of the line.
                PollFd::new(server, PollFlags::IN),
            ];
            let _ = poll(&mut fds, None);
            let [stop, heard, dead] = fds.map(|fd| !fd.revents().is_empty());
            if stop {
                return true;
            }
            // What it said before it went is still to be heard.
            let gone = heard && hear();
            if gone || dead {
                return false;
            }
        }
    }

    /// Waits; whether this process is leaving.
    fn is_leaving(&self, pause: Duration) -> bool {
        let mut stop = [PollFd::from_borrowed_fd(self.stop(), PollFlags::IN)];
        poll(&mut stop, Some(&timespec(pause))).is_ok_and(|ready| ready > 0)
    }
}
