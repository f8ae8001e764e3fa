//! Joining the processes that share a working copy.

use std::io;
use std::sync::Arc;

use super::backing::Opener;
use super::control::{Control, PAGE, VERSION};
use super::owner::{Owner, begin};
use crate::error::Result;
use crate::ipc::connection::{ConnectError, Connection};
use crate::ipc::membership;
use crate::ipc::rendezvous::Rendezvous;
use crate::sys::shared::SharedPages;
use crate::sys::userfault::Userfault;

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
    let mut owner = None;
    let begin = || begin(rendezvous, opener, reserve).map(|begun| owner = Some(begun)).map(|()| None);
    let joined = membership::join(rendezvous, begin, || attempt(rendezvous, &opener.part()));
    joined.map(|joined| Joined { owner, ..joined })
}

fn attempt(rendezvous: &Rendezvous, part: &str) -> std::result::Result<Joined, ConnectError> {
    let mut invitation = membership::hello(rendezvous, VERSION, part)?;
    let fatal = |error: io::Error| ConnectError::here(error.to_string(), &error);
    let control = Control::join(invitation.memory()?, invitation.room).map_err(fatal)?;
    // What there is room for fits an address, or the control block would not have been taken.
    let bytes = usize::try_from(control.reserved()).ok().and_then(|pages| pages.checked_mul(PAGE));
    let missing = || ConnectError::Never("the process that serves it has more memory than fits an address".to_owned());
    let pages = SharedPages::map(invitation.memory()?, bytes.ok_or_else(missing)?).map_err(fatal)?;
    let tracker = Userfault::signalling().map_err(fatal)?;
    tracker.register(pages.address(), pages.reserved()).map_err(fatal)?;
    // Nothing is protected yet. The server does that for pages that are there before it lets this process in, and for
    // others before they are.
    let place = (pages.address() as u64, 0);
    let connection = invitation.attach(rendezvous, control.name(), place, &[tracker.fd()], Ok)?;
    Ok(Joined { control: Arc::new(control), pages, tracker, connection, owner: None })
}
