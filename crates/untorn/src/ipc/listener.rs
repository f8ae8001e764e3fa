//! The listening socket of the process that serves.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::rendezvous::Rendezvous;
use crate::error::Result;
use crate::sys::socket;

/// A socket that listens at a place. Dropping it ends that also where a forked child still has the descriptor, and
/// ends the connections that nobody has accepted.
pub(crate) struct Listener {
    rendezvous: Arc<Rendezvous>,
    socket: OwnedFd,
}

impl Listener {
    /// The place says that this process may serve.
    ///
    /// # Errors
    /// [`Error::Io`](crate::error::Error::Io).
    pub(crate) fn new(rendezvous: &Arc<Rendezvous>) -> Result<Self> {
        Ok(Listener { socket: rendezvous.listen()?, rendezvous: Arc::clone(rendezvous) })
    }

    pub(crate) fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    /// The next one that connected, if one did.
    ///
    /// # Errors
    /// Those of `accept(2)`; a connection that could not be accepted keeps the descriptor readable.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        socket::accept(self.socket.as_fd())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // In this order: nobody new finds it, nobody new is let in, and those who wait look for the next one, which
        // listens at the same name.
        self.rendezvous.unlink();
        socket::shut_down(self.socket.as_fd());
        while let Ok(Some(waiting)) = self.accept() {
            socket::shut_down(waiting.as_fd());
        }
    }
}
