//! Joining the processes that share a working copy, and rejoining when another process takes over.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::backing::Opener;
use super::control::{Control, PAGE, VERSION};
use super::owner::{Owner, begin};
use super::server::name;
use crate::error::{Error, Result};
use crate::ipc::connection::{ConnectError, Connection, SHORTAGE, ask, connect, with_handle};
use crate::ipc::message::{Kind, Message};
use crate::ipc::rendezvous::Rendezvous;
use crate::sys::shared::SharedPages;
use crate::sys::userfault::Userfault;

/// How long to look for a server when there seems to be one.
const SERVER_SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two attempts.
const PAUSE: Duration = Duration::from_micros(500);

/// What a process that takes part has.
pub(super) struct Joined {
    pub(super) control: Arc<Control>,
    pub(super) pages: SharedPages,
    pub(super) tracker: Userfault,
    pub(super) connection: Connection,
    /// If it is the one that serves.
    pub(super) owner: Option<Owner>,
}

/// Joins the processes at a place, or begins shared memory if there are none.
///
/// # Errors
/// [`Error::InUse`] if the processes there cannot be joined; those of the opener; [`Error::Io`].
pub(super) fn join(rendezvous: &Arc<Rendezvous>, opener: &Arc<dyn Opener>, reserve: u64) -> Result<Joined> {
    let in_use = |why: String| {
        let number = rendezvous.server();
        let process = if number == 0 { "another process".to_owned() } else { format!("process {number}") };
        Error::InUse {
            path: rendezvous.path().to_owned(),
            holder: format!("{process}, and this process cannot join it ({why})"),
        }
    };
    let (since, mut owner) = (Instant::now(), None);
    loop {
        if owner.is_none() && rendezvous.try_own()? {
            // Others who take part have the stores since the last commit: one of them will serve.
            let others = rendezvous.has_others();
            let begun = if others { None } else { Some(begin(rendezvous, opener, reserve)) };
            match begun {
                Some(Ok(begun)) => owner = Some(begun),
                Some(Err(error)) => {
                    rendezvous.give_up_ownership();
                    return Err(error);
                }
                None => rendezvous.give_up_ownership(),
            }
        }
        match attempt(rendezvous, &opener.part()) {
            Ok((control, pages, tracker, connection)) => {
                return Ok(Joined { control, pages, tracker, connection, owner });
            }
            Err(ConnectError::Again(_)) if since.elapsed() < SERVER_SEARCH_TIMEOUT => thread::sleep(PAUSE),
            Err(ConnectError::Short(_)) if since.elapsed() < SERVER_SEARCH_TIMEOUT => thread::sleep(SHORTAGE),
            Err(ConnectError::Again(why) | ConnectError::Short(why) | ConnectError::Never(why)) => {
                return Err(in_use(why));
            }
        }
    }
}

type Parts = (Arc<Control>, SharedPages, Userfault, Connection);

fn attempt(rendezvous: &Rendezvous, part: &str) -> std::result::Result<Parts, ConnectError> {
    let socket = connect(rendezvous)?;
    let hello = Message::new(Kind::Hello, rendezvous.slot() as u64, VERSION, 0).text(part);
    let (welcome, fds) = ask(&socket, &hello, &[], Kind::Welcome, None)?;
    let fatal = |error: io::Error| ConnectError::here(error.to_string(), &error);
    let missing = || ConnectError::Never("the process that serves it sent no shared memory".to_owned());
    let mut fds = fds.into_iter();
    let control = Control::join(fds.next().ok_or_else(missing)?, welcome.a).map_err(fatal)?;
    // What there is room for fits an address, or the control block would not have been taken.
    let bytes = usize::try_from(control.reserved()).ok().and_then(|pages| pages.checked_mul(PAGE));
    let pages = SharedPages::map(fds.next().ok_or_else(missing)?, bytes.ok_or_else(missing)?).map_err(fatal)?;
    let tracker = Userfault::signalling().map_err(fatal)?;
    tracker.register(pages.address(), pages.reserved()).map_err(fatal)?;
    let count = control.pages();
    if count > 0 {
        tracker.protect(pages.address(), count as usize * PAGE, true).map_err(fatal)?;
    }
    // From here on nobody begins another shared memory, even if this server dies before it has answered.
    rendezvous.attach().map_err(|error| ConnectError::Never(error.to_string()))?;
    let attach =
        Message::new(Kind::Attach, rendezvous.slot() as u64, pages.address() as u64, count).text(name(&control));
    let ready = ask(&socket, &attach, &[tracker.fd()], Kind::Ready, None).and_then(|ready| with_handle(socket, ready));
    match ready {
        Ok(connection) => Ok((Arc::new(control), pages, tracker, connection)),
        Err(trouble) => {
            // Nothing of it was used.
            rendezvous.detach();
            Err(trouble)
        }
    }
}

/// Takes part again, under another server. `stop` ends the waiting.
///
/// # Errors
/// Why that did not succeed.
pub(super) fn come_back(
    rendezvous: &Rendezvous,
    control: &Control,
    base: usize,
    tracker: &Userfault,
    stop: BorrowedFd<'_>,
) -> std::result::Result<Connection, ConnectError> {
    let socket = connect(rendezvous)?;
    let back = Message::new(Kind::Return, rendezvous.slot() as u64, base as u64, 0).text(name(control));
    let ready = ask(&socket, &back, &[tracker.fd()], Kind::Ready, Some(stop))?;
    with_handle(socket, ready)
}
