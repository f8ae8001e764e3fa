//! Leases: the kernel tells of whoever else is about to open a file, and lets it wait.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `fcntl`: sets the signal that a description sends.
const F_SETSIG: libc::c_int = 10;

fn command(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: none of the commands used here takes a pointer, and the descriptor is borrowed.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes a write lease on a file for this process. The kernel sends this process `signal` when another process is about
/// to open the file. It grants the lease only if `file` is the only open description of the file in the whole system.
///
/// # Errors
/// EAGAIN if the file is open elsewhere, EACCES if it belongs to another user, EINVAL if the file system has no leases.
pub fn take_lease(file: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // The kernel would send it to the thread that takes the lease, which may not live as long.
    let process = libc::c_int::try_from(std::process::id()).map_err(io::Error::other)?;
    command(file, libc::F_SETOWN, process)?;
    mark_description(file, signal)?;
    command(file, libc::F_SETLEASE, libc::F_WRLCK).map(drop).inspect_err(|_| {
        // It was no more than the signal of a lease that there is not.
        let _ = mark_description(file, 0);
    })
}

/// Unblocks a signal in the calling thread, so that it reaches this process: the parent may have had it blocked, and
/// the thread that handles lease breaks would never get it.
///
/// # Errors
/// EINVAL for an invalid signal.
pub fn unblock(signal: i32) -> io::Result<()> {
    let mut signals = std::mem::MaybeUninit::uninit();
    // SAFETY: it makes the set an empty one.
    unsafe { libc::sigemptyset(signals.as_mut_ptr()) };
    // SAFETY: the set was made just now.
    if unsafe { libc::sigaddset(signals.as_mut_ptr(), signal) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the set was made just now, and the old one is not asked for.
    let errno = unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, signals.as_ptr(), std::ptr::null_mut()) };
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// Whether no process has tried to open the file since the lease was taken.
pub fn has_lease(file: BorrowedFd<'_>) -> bool {
    command(file, libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_WRLCK)
}

/// Gives a lease back: a process that waits to open the file continues. The kernel also forgets the signal of the
/// description.
///
/// # Errors
/// Errors of `fcntl(2)`; none if the kernel already took the lease back.
pub fn give_lease_back(file: BorrowedFd<'_>) -> io::Result<()> {
    match command(file, libc::F_SETLEASE, libc::F_UNLCK) {
        // The kernel waits for so long and no longer (/proc/sys/fs/lease-break-time).
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => mark_description(file, 0),
        other => other.map(drop),
    }
}

/// Sets the signal that a description sends; 0 is the initial value.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn mark_description(file: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    command(file, F_SETSIG, signal).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// What a real-time signal would do that nobody waits for: nothing comes of it here, for no lease is broken.
    const SIGNAL: i32 = 61;

    fn signal_of(file: &File) -> i32 {
        command(file.as_fd(), 11, 0).unwrap()
    }

    #[test]
    fn a_lease_needs_the_only_description_and_sets_its_signal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = File::create_new(&path).unwrap();
        let other = File::open(&path).unwrap();
        let refused = take_lease(file.as_fd(), SIGNAL).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        assert_eq!((signal_of(&file), has_lease(file.as_fd())), (0, false));
        drop(other);
        // A process that another test is starting may have inherited the other description, until it is another
        // program.
        let start = Instant::now();
        while let Err(error) = take_lease(file.as_fd(), SIGNAL) {
            assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
            assert!(start.elapsed() < Duration::from_secs(60), "somebody has the file open for ever");
            thread::sleep(Duration::from_millis(1));
        }
        let copy = file.try_clone().unwrap();
        assert!(has_lease(copy.as_fd()) && signal_of(&copy) == SIGNAL);
        give_lease_back(copy.as_fd()).unwrap();
        assert!(!has_lease(file.as_fd()) && signal_of(&file) == 0);
    }
}
