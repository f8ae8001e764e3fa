//! Joining the processes that share a working copy, and rejoining when another process takes over.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::backing::Opener;
use super::control::{Control, PAGE, VERSION};
use super::owner::{Serving, begin};
use super::server::name;
use crate::error::{Error, Result};
use crate::ipc::connection::{Connection, SHORTAGE, Trouble, ask, connect, with_handle};
use crate::ipc::message::{Kind, Message};
use crate::ipc::rendezvous::Place;
use crate::sys::shared::SharedPages;
use crate::sys::userfault::Userfault;

/// How long to look for a server when there seems to be one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts.
const PAUSE: Duration = Duration::from_micros(500);

/// What a process that takes part has.
pub(super) struct Joined {
    pub(super) control: Arc<Control>,
    pub(super) pages: SharedPages,
    pub(super) tracker: Userfault,
    pub(super) connection: Connection,
    /// If it is the one that serves.
    pub(super) serving: Option<Serving>,
}

/// Joins the processes at a place, or begins a working copy if there are none.
///
/// # Errors
/// [`Error::InUse`] if the processes there cannot be joined; those of the opener; [`Error::Io`].
pub(super) fn join(place: &Arc<Place>, opener: &Arc<dyn Opener>, reserve: u64) -> Result<Joined> {
    let in_use = |why: String| {
        let number = place.server();
        let process = if number == 0 { "another process".to_owned() } else { format!("process {number}") };
        Error::InUse {
            path: place.path().to_owned(),
            holder: format!(
                "{process}, and this process cannot join it \
                                                                       ({why})"
            ),
        }
    };
    let (since, mut serving) = (Instant::now(), None);
    loop {
        if serving.is_none() && place.try_serve()? {
            // Others who take part have the stores since the last commit: one of them will serve.
            let others = place.has_others();
            let begun = if others { None } else { Some(begin(place, opener, reserve)) };
            match begun {
                Some(Ok(begun)) => serving = Some(begun),
                Some(Err(error)) => {
                    place.serve_no_more();
                    return Err(error);
                }
                None => place.serve_no_more(),
            }
        }
        match attempt(place, &opener.part()) {
            Ok((control, pages, tracker, connection)) => {
                return Ok(Joined { control, pages, tracker, connection, serving });
            }
            Err(Trouble::Again(_)) if since.elapsed() < PATIENCE => thread::sleep(PAUSE),
            Err(Trouble::Short(_)) if since.elapsed() < PATIENCE => thread::sleep(SHORTAGE),
            Err(Trouble::Again(why) | Trouble::Short(why) | Trouble::Never(why)) => return Err(in_use(why)),
        }
    }
}

type Parts = (Arc<Control>, SharedPages, Userfault, Connection);

fn attempt(place: &Place, part: &str) -> std::result::Result<Parts, Trouble> {
    let socket = connect(place)?;
    let hello = Message::new(Kind::Hello, place.slot() as u64, VERSION, 0).text(part);
    let (welcome, fds) = ask(&socket, &hello, &[], Kind::Welcome, None)?;
    let fatal = |error: io::Error| Trouble::here(error.to_string(), &error);
    let missing = || Trouble::Never("the process that serves it sent no shared memory".to_owned());
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
    // From here on nobody begins another working copy, even if this server dies before it has answered.
    place.attach().map_err(|error| Trouble::Never(error.to_string()))?;
    let attach = Message::new(Kind::Attach, place.slot() as u64, pages.address() as u64, count).text(name(&control));
    let ready = ask(&socket, &attach, &[tracker.fd()], Kind::Ready, None).and_then(|ready| with_handle(socket, ready));
    match ready {
        Ok(connection) => Ok((Arc::new(control), pages, tracker, connection)),
        Err(trouble) => {
            // Nothing of it was used.
            place.detach();
            Err(trouble)
        }
    }
}

/// Takes part again, under another server. `stop` ends the waiting.
///
/// # Errors
/// Why that did not succeed.
pub(super) fn come_back(
    place: &Place,
    control: &Control,
    base: usize,
    tracker: &Userfault,
    stop: BorrowedFd<'_>,
) -> std::result::Result<Connection, Trouble> {
    let socket = connect(place)?;
    let back = Message::new(Kind::Return, place.slot() as u64, base as u64, 0).text(name(control));
    let ready = ask(&socket, &back, &[tracker.fd()], Kind::Ready, Some(stop))?;
    with_handle(socket, ready)
}
