//! Locks on bytes of a file that belong to a process: the kernel releases them when the process ends, however it
//! ends, and a forked child does not have them. Source: `fcntl(2)`, "Advisory record locking".
//!
//! The price: closing *any* descriptor of the same file in the process releases them as well. Whoever uses them opens
//! the file once a process.
//!
//! # Safety
//! Three requests that read, and one that fills, a structure on the stack.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Takes the lock of byte `at`; false if another process has it.
///
/// # Errors
/// Those of `fcntl(2)`, as ENOLCK where the file system has no locks.
pub(crate) fn try_lock_byte(file: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    match request(file, libc::F_SETLK, libc::F_WRLCK, at, 1) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives the lock of byte `at` back.
pub(crate) fn unlock_byte(file: BorrowedFd<'_>, at: u64) {
    // It cannot fail for a lock of one's own, unless the kernel has no memory to split a range, which one byte isn't.
    let _ = request(file, libc::F_SETLK, libc::F_UNLCK, at, 1);
}

/// Whether another process has the lock of one of `count` bytes from `at`, and which process that is as far as its
/// number means something here, else 0 or less.
///
/// # Errors
/// Those of `fcntl(2)`.
pub(crate) fn holder(file: BorrowedFd<'_>, at: u64, count: u64) -> io::Result<Option<i32>> {
    let found = request(file, libc::F_GETLK, libc::F_WRLCK, at, count)?;
    Ok((found.l_type != libc::F_UNLCK as libc::c_short).then_some(found.l_pid))
}

fn request(file: BorrowedFd<'_>, request: i32, kind: i32, at: u64, count: u64) -> io::Result<libc::flock> {
    // SAFETY: a structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (at as libc::off_t, count as libc::off_t);
    // SAFETY: the three requests used here read the structure, and one of them fills it.
    if unsafe { libc::fcntl(file.as_raw_fd(), request, &mut lock) } == 0 {
        return Ok(lock);
    }
    Err(io::Error::last_os_error())
}

/// The process that has the advisory lock of `flock(2)` on the file of this name, where the kernel tells. Source:
/// `proc_locks(5)`.
///
/// # Errors
/// Those of looking at the file.
pub(crate) fn flock_holder(path: &std::path::Path) -> io::Result<Option<u32>> {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(path)?;
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return Ok(None) };
    // What the kernel calls the device of a file is not what file systems with several call it, so the process is
    // asked.
    let has_it = |process: u32| {
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        open.filter_map(|open| std::fs::metadata(open.path()).ok())
            .any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
    };
    let holders = locks.lines().filter_map(|line| {
        // 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF
        let mut fields = line.split_whitespace().skip(1);
        let (kind, process) = (fields.next()?, fields.nth(2)?.parse().ok()?);
        let inode: u64 = fields.next()?.rsplit(':').next()?.parse().ok()?;
        (kind == "FLOCK" && inode == file.ino()).then_some(process)
    });
    Ok(holders.into_iter().find(|process| has_it(*process)))
}
