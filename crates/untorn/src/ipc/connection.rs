//! The connection to the process that serves: connecting, sending requests, and a handle that tells when that process
//! ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::message::{Came, Kind, Message, is_shortage, receive};
use super::rendezvous::Place;
use crate::sys::socket;

/// How long a server may take to answer before it is taken for one that nobody is behind any more.
const ANSWER: Duration = Duration::from_secs(1);

/// Why an attempt did not succeed.
pub(crate) enum Trouble {
    /// Another one may.
    Again(String),
    /// Another one may, if this process finds descriptors or memory.
    Short(String),
    /// No other one will.
    Never(String),
}

impl Trouble {
    fn io(what: &str, error: &io::Error) -> Self {
        let text = format!("{what}: {error}");
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // Nobody listens, or not any more, or too many ask at once.
            Some(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::PIPE | Errno::CONNRESET | Errno::INTR) => {
                Trouble::Again(text)
            }
            _ => Trouble::here(text, error),
        }
    }

    /// What went wrong in this process.
    pub(crate) fn here(what: String, error: &io::Error) -> Self {
        if is_shortage(error) { Trouble::Short(what) } else { Trouble::Never(what) }
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

/// Waits for descriptors, not longer than the limit; false if that cannot be done just now. It cannot where a process has
/// lowered its limit of descriptors below those it waits for, and then the caller has to look at each of them.
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
pub(crate) fn ring(bell: &OwnedFd) {
    // It fails only where the count is at its limit, and then it is readable.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Whether somebody has rung, which is forgotten.
pub(crate) fn was_rung(bell: BorrowedFd<'_>) -> bool {
    rustix::io::read(bell, &mut [0_u8; 8]).is_ok()
}

/// A descriptor to [`ring`].
///
/// # Errors
/// Those of `eventfd(2)`.
pub(crate) fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A connection to the process that serves.
///
/// # Errors
/// Why there is none.
pub(crate) fn connect(place: &Place) -> std::result::Result<OwnedFd, Trouble> {
    let socket =
        place.connect().map_err(|error| Trouble::io("cannot connect to the process that serves it", &error))?;
    let (user, process) = socket::peer(socket.as_fd()).map_err(|error| {
        Trouble::io(
            "cannot ask for the user of the \
                                                                                    process that serves it",
            &error,
        )
    })?;
    if user != rustix::process::geteuid().as_raw() {
        return Err(Trouble::Never(format!("user {user} shares it, and only processes of that user can join")));
    }
    if !place.may_serve(process) {
        // A process forked from a dead server keeps the socket that nobody listens at any more.
        return Err(Trouble::Again("the process that served it has ended".to_owned()));
    }
    Ok(socket)
}

/// A connection with the handle that came with an answer.
///
/// # Errors
/// [`Trouble::Never`] if none did.
pub(crate) fn with_handle(socket: OwnedFd, ready: (Message, Vec<OwnedFd>)) -> std::result::Result<Connection, Trouble> {
    match ready.1.into_iter().next() {
        Some(server) => Ok(Connection { socket, server }),
        None => Err(Trouble::Never("this kernel has no pidfd_open(2) (Linux 5.3 has it)".to_owned())),
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
) -> std::result::Result<(Message, Vec<OwnedFd>), Trouble> {
    message.send(socket.as_fd(), fds).map_err(|error| {
        Trouble::io(
            "cannot send to the process that serves \
                                                                   it",
            &error,
        )
    })?;
    let since = Instant::now();
    loop {
        match receive(socket.as_fd()) {
            Came::Message(answer, fds) if answer.kind == wanted => return Ok((answer, fds)),
            Came::Message(answer, _) if answer.kind == Kind::Refused && answer.a != 0 => {
                return Err(Trouble::Never(answer.text));
            }
            Came::Message(answer, _) => {
                return Err(Trouble::Again(format!(
                    "the process that serves it sent the \
                                                                           unexpected answer {:?}",
                    answer.kind
                )));
            }
            Came::Short(error) => {
                return Err(Trouble::here(format!("cannot receive from the process that serves it: {error}"), &error));
            }
            Came::End => return Err(Trouble::Again("the process that serves it closed the connection".to_owned())),
            Came::Nothing if since.elapsed() > ANSWER => {
                return Err(Trouble::Again("the process that serves it does not answer".to_owned()));
            }
            Came::Nothing => {}
        }
        let mut waits = vec![PollFd::new(socket, PollFlags::IN)];
        waits.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
        let _ = poll(&mut waits, Some(&timespec(Duration::from_millis(100))));
        if waits.get(1).is_some_and(|stop| !stop.revents().is_empty()) {
            return Err(Trouble::Again("this process is leaving the shared file".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_may_pass_and_a_refusal_does_not() {
        let of = |errno: Errno| Trouble::io("asking", &errno.into());
        let short = |errno| matches!(of(errno), Trouble::Short(_));
        assert!([Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS].into_iter().all(short));
        assert!(matches!(of(Errno::CONNREFUSED), Trouble::Again(_)) && matches!(of(Errno::AGAIN), Trouble::Again(_)));
        assert!(
            [Errno::ACCESS, Errno::PERM, Errno::PROTOTYPE]
                .into_iter()
                .all(|errno| matches!(of(errno), Trouble::Never(_)))
        );
    }
}
