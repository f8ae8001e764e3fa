//! The connection to the process that serves: connecting, sending requests, and a handle that tells when that process
//! ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::message::{Incoming, Kind, Message, is_shortage, receive};
use super::rendezvous::Rendezvous;
use crate::sys::socket;

/// How long a server may take to answer before it is taken for one that nobody is behind any more.
const ANSWER: Duration = Duration::from_secs(1);

/// Why an attempt did not succeed.
pub(crate) enum ConnectError {
    /// Another one may.
    Again(String),
    /// Another one may, if this process finds descriptors or memory.
    Short(String),
    /// No other one will.
    Never(String),
}

impl ConnectError {
    fn io(what: &str, error: &io::Error) -> Self {
        let text = format!("{what}: {error}");
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // Nobody listens, or not any more, or too many ask at once.
            Some(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::PIPE | Errno::CONNRESET | Errno::INTR) => {
                ConnectError::Again(text)
            }
            _ => ConnectError::here(text, error),
        }
    }

    /// Why, whatever becomes of another attempt.
    pub(crate) fn why(self) -> String {
        let (ConnectError::Again(why) | ConnectError::Short(why) | ConnectError::Never(why)) = self;
        why
    }

    /// What went wrong in this process.
    pub(crate) fn here(what: String, error: &io::Error) -> Self {
        if is_shortage(error) { ConnectError::Short(what) } else { ConnectError::Never(what) }
    }
}

/// A connection to the process that serves, and a handle of that process.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) server: OwnedFd,
}

/// A time as `poll(2)` takes it.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

/// Waits for descriptors, not longer than the limit; false if that cannot be done just now. It cannot where a process
/// has lowered its limit of descriptors below those it waits for, and then the caller has to look at each of them.
pub(crate) fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> bool {
    match poll(fds, limit.map(timespec).as_ref()) {
        // An interruption is a turn with nothing to do.
        Ok(_) | Err(Errno::INTR) => true,
        Err(_) => {
            std::thread::sleep(SHORTAGE);
            false
        }
    }
}

/// How long to leave alone what failed for want of something.
pub(crate) const SHORTAGE: Duration = Duration::from_millis(10);

/// Makes a descriptor readable.
pub(crate) fn notify(event: &OwnedFd) {
    // It fails only where the count is at its limit, and then it is readable.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Whether somebody has rung, which is forgotten.
pub(crate) fn was_notified(event: BorrowedFd<'_>) -> bool {
    rustix::io::read(event, &mut [0_u8; 8]).is_ok()
}

/// A descriptor to [`ring`].
///
/// # Errors
/// Those of `eventfd(2)`.
pub(crate) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A connection to the process that serves.
///
/// # Errors
/// Why there is none.
pub(crate) fn connect(rendezvous: &Rendezvous) -> std::result::Result<OwnedFd, ConnectError> {
    let socket = rendezvous
        .connect()
        .map_err(|error| ConnectError::io("cannot connect to the process that serves it", &error))?;
    let (user, process) = socket::peer(socket.as_fd())
        .map_err(|error| ConnectError::io("cannot ask for the user of the process that serves it", &error))?;
    if user != rustix::process::geteuid().as_raw() {
        return Err(ConnectError::Never(format!("user {user} shares it, and only processes of that user can join")));
    }
    if !rendezvous.may_own(process) {
        // A process forked from a dead server keeps the socket that nobody listens at any more.
        return Err(ConnectError::Again("the process that served it has ended".to_owned()));
    }
    Ok(socket)
}

/// A connection with the handle that came with an answer.
///
/// # Errors
/// [`ConnectError::Never`] if none did.
pub(crate) fn with_handle(
    socket: OwnedFd,
    ready: (Message, Vec<OwnedFd>),
) -> std::result::Result<Connection, ConnectError> {
    match ready.1.into_iter().next() {
        Some(server) => Ok(Connection { socket, server }),
        None => Err(ConnectError::Never("this kernel has no pidfd_open(2) (Linux 5.3 has it)".to_owned())),
    }
}

/// Asks, and waits for the answer, or for `stop`.
///
/// # Errors
/// Why there is none.
pub(crate) fn ask(
    socket: &OwnedFd,
    message: &Message,
    fds: &[BorrowedFd<'_>],
    wanted: Kind,
    stop: Option<BorrowedFd<'_>>,
) -> std::result::Result<(Message, Vec<OwnedFd>), ConnectError> {
    message
        .send(socket.as_fd(), fds)
        .map_err(|error| ConnectError::io("cannot send to the process that serves it", &error))?;
    let since = Instant::now();
    loop {
        match receive(socket.as_fd()) {
            Incoming::Message(answer, fds) if answer.kind == wanted => return Ok((answer, fds)),
            Incoming::Message(answer, _) if answer.kind == Kind::Refused && answer.a != 0 => {
                return Err(ConnectError::Never(answer.text));
            }
            Incoming::Message(answer, _) => {
                let what = format!("the process that serves it sent the unexpected answer {:?}", answer.kind);
                return Err(ConnectError::Again(what));
            }
            Incoming::Short(error) => {
                return Err(ConnectError::here(
                    format!("cannot receive from the process that serves it: {error}"),
                    &error,
                ));
            }
            Incoming::End => {
                return Err(ConnectError::Again("the process that serves it closed the connection".to_owned()));
            }
            Incoming::Nothing if since.elapsed() > ANSWER => {
                return Err(ConnectError::Again("the process that serves it does not answer".to_owned()));
            }
            Incoming::Nothing => {}
        }
        let mut waits = vec![PollFd::new(socket, PollFlags::IN)];
        waits.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
        let _ = poll(&mut waits, Some(&timespec(Duration::from_millis(100))));
        if waits.get(1).is_some_and(|stop| !stop.revents().is_empty()) {
            return Err(ConnectError::Again("this process is leaving the shared file".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_may_pass_and_a_refusal_does_not() {
        let of = |errno: Errno| ConnectError::io("asking", &errno.into());
        let short = |errno| matches!(of(errno), ConnectError::Short(_));
        assert!([Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS].into_iter().all(short));
        assert!(
            matches!(of(Errno::CONNREFUSED), ConnectError::Again(_))
                && matches!(of(Errno::AGAIN), ConnectError::Again(_))
        );
        assert!(
            [Errno::ACCESS, Errno::PERM, Errno::PROTOTYPE]
                .into_iter()
                .all(|errno| matches!(of(errno), ConnectError::Never(_)))
        );
    }
}
