//! Hooks of tests: a server that lets nobody in, or leaks its sockets. Tests set them in child processes only.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use super::lock;

/// When a connection could not be accepted, in this process.
pub(crate) static SHORTAGES: Mutex<Vec<Instant>> = Mutex::new(Vec::new());
/// How many connections this process accepts: for the others it has no descriptors.
pub(crate) static ACCEPTS: AtomicU32 = AtomicU32::new(u32::MAX);
/// A child of this process inherits the sockets that it serves with.
pub(crate) static LEAKS_SOCKETS: AtomicBool = AtomicBool::new(false);

/// A connection, unless this process is to have no descriptor for it.
pub(super) fn as_far_as_allowed(
    accepted: io::Result<Option<OwnedFd>>,
    listener: &impl AsFd,
) -> io::Result<Option<OwnedFd>> {
    let fewer = |left: u32| left.checked_sub(u32::from(left != u32::MAX));
    let accepted = match accepted {
        Ok(Some(_)) if ACCEPTS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_err() => {
            Err(rustix::io::Errno::MFILE.into())
        }
        accepted => accepted,
    };
    match &accepted {
        Ok(Some(socket)) if LEAKS_SOCKETS.load(Ordering::SeqCst) => {
            // Without close-on-exec.
            std::mem::forget((rustix::io::dup(socket), rustix::io::dup(listener)));
        }
        Ok(_) => {}
        Err(_) => lock(&SHORTAGES).push(Instant::now()),
    }
    accepted
}
