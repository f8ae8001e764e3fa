//! Locks on a whole file that belong to an open file description (`F_OFD_SETLK`): they end with the description, and no
//! other descriptor's close takes them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

fn set(file: &File, kind: libc::c_int, wait: bool) -> io::Result<()> {
    let lock = libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 };
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    loop {
        // SAFETY: the descriptor is open, and the kernel only reads the struct.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Locks a file for this one and other sharers, and waits for it.
pub(crate) fn share(file: &File) -> io::Result<()> {
    set(file, libc::F_RDLCK, true)
}

/// A file that is locked for this one alone, until this is dropped.
pub(crate) struct Alone(File);

/// Locks a file for this one alone, and waits for it.
pub(crate) fn alone(file: File) -> io::Result<Alone> {
    set(&file, libc::F_WRLCK, true).map(|()| Alone(file))
}

impl Drop for Alone {
    fn drop(&mut self) {
        // A process that another thread has forked meanwhile has the open file, too, and the lock would stay with it
        // when this descriptor is closed. This cannot fail: the descriptor is valid.
        let _ = unlock(&self.0);
    }
}

/// Locks a file for this one alone. False if another has it; then the lock stays as it was.
pub(crate) fn try_alone(file: &File) -> io::Result<bool> {
    match set(file, libc::F_WRLCK, false) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn unlock(file: &File) -> io::Result<()> {
    set(file, libc::F_UNLCK, false)
}
