//! Locks on bytes of a file that belong to a process: the kernel releases them when the process ends, however it
//! ends, and a forked child does not have them. Source: `fcntl(2)`, "Advisory record locking".
//!
//! The price: closing *any* descriptor of the same file in the process releases them as well. Whoever uses them opens
//! the file once a process.
//!
//! # Safety
//! Requests that read, and some that fill, a structure on the stack.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

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

/// The byte whose lock says that somebody waits for the lock of a whole file. No file reaches there.
const WAITING: u64 = 1 << 62;

/// Says on an open file that somebody waits for its exclusive lock, until this is dropped or the file is closed. The
/// lock belongs to the open file, not to the process. Source: `fcntl(2)`, "Open file description locks".
pub(crate) struct Waiting<'a>(BorrowedFd<'a>);

impl<'a> Waiting<'a> {
    /// `None` if another one waits already, or where the file system has no such locks. The file is open for writing.
    pub(crate) fn announce(file: BorrowedFd<'a>) -> Option<Self> {
        request(file, libc::F_OFD_SETLK, libc::F_WRLCK, WAITING, 1).ok().map(|_| Waiting(file))
    }

    /// Whether somebody waits, by another open file than this one.
    pub(crate) fn is_announced(file: BorrowedFd<'_>) -> bool {
        request(file, libc::F_OFD_GETLK, libc::F_WRLCK, WAITING, 1)
            .is_ok_and(|found| found.l_type != libc::F_UNLCK as libc::c_short)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // As for `unlock_byte`.
        let _ = request(self.0, libc::F_OFD_SETLK, libc::F_UNLCK, WAITING, 1);
    }
}

fn request(file: BorrowedFd<'_>, request: i32, kind: i32, at: u64, count: u64) -> io::Result<libc::flock> {
    // SAFETY: a structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (at as libc::off_t, count as libc::off_t);
    // SAFETY: the requests used here read the structure, and two of them fill it.
    if unsafe { libc::fcntl(file.as_raw_fd(), request, &mut lock) } == 0 {
        return Ok(lock);
    }
    Err(io::Error::last_os_error())
}

/// The process that has the advisory lock of `flock(2)` on an open file, if the kernel tells. Source: `proc_locks(5)`.
///
/// # Errors
/// Errors of looking at the file.
pub(crate) fn flock_holder(file: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    holder_by(file, |_| true)
}

/// The same if that lock is exclusive.
///
/// # Errors
/// Errors of looking at the file.
pub(crate) fn flock_writer(file: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    holder_by(file, |line| line.split_whitespace().any(|word| word == "WRITE"))
}

fn holder_by(file: BorrowedFd<'_>, counts: impl Fn(&str) -> bool) -> io::Result<Option<u32>> {
    let file = rustix::fs::fstat(file)?;
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return Ok(None) };
    let device = format!("{:02x}:{:02x}", rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev));
    // A file system with several devices, such as btrfs, gives the kernel another device than it tells programs. The
    // descriptors of the process say then whether it has the file.
    let has_it = |process: u32| {
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        open.filter_map(|open| rustix::fs::stat(open.path()).ok())
            .any(|open| (open.st_dev, open.st_ino) == (file.st_dev, file.st_ino))
    };
    Ok(locks.lines().filter(|line| counts(line)).filter_map(|line| flock_of(line, file.st_ino)).find_map(
        |(process, on)| {
            // A process that has ended may have left its lock to a child, which has another number.
            let alive = Path::new("/proc").join(process.to_string()).exists();
            (alive && (on == device || has_it(process))).then_some(process)
        },
    ))
}

/// The process and the device of a line of `/proc/locks` that has a lock of `flock(2)` on the file with this inode.
fn flock_of(line: &str, inode: u64) -> Option<(u32, &str)> {
    // 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF
    let mut fields = line.split_whitespace().skip(1);
    let (kind, process) = (fields.next()?, fields.nth(2)?.parse().ok()?);
    let (device, of) = fields.next()?.rsplit_once(':')?;
    (kind == "FLOCK" && of.parse() == Ok(inode)).then_some((process, device))
}

/// A process as errors name it: by its number, and by its program if the kernel tells.
pub(crate) fn process_name(process: u32) -> String {
    if process == std::process::id() {
        return "this process".to_owned();
    }
    match std::fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(program) => format!("process {process} ({})", program.trim_end()),
        Err(_) => format!("process {process}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_named() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(flock_holder(file.as_fd()).unwrap(), None);
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let holder = flock_holder(file.as_fd()).unwrap();
        assert!(holder.is_none_or(|holder| holder == std::process::id()), "{holder:?}");
        assert_eq!(flock_writer(file.as_fd()).unwrap(), holder);
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).unwrap();
        assert_eq!((flock_holder(file.as_fd()).unwrap(), flock_writer(file.as_fd()).unwrap()), (holder, None));
        assert_eq!(process_name(std::process::id()), "this process");
        assert!(process_name(1).starts_with("process 1"));
    }

    #[test]
    fn one_waits_at_a_time_until_it_is_dropped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = std::fs::File::open(file.path()).unwrap();
        let other = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        assert!(!Waiting::is_announced(reader.as_fd()));
        let waiting = Waiting::announce(file.as_file().as_fd()).unwrap();
        assert!(Waiting::is_announced(reader.as_fd()));
        assert!(!Waiting::is_announced(file.as_file().as_fd()), "its own");
        assert!(Waiting::announce(other.as_fd()).is_none());
        drop(waiting);
        assert!(!Waiting::is_announced(reader.as_fd()));
        let waiting = Waiting::announce(other.as_fd()).unwrap();
        std::mem::forget(waiting);
        drop(other);
        assert!(!Waiting::is_announced(reader.as_fd()), "the file was closed");
    }

    #[test]
    fn lines_of_other_locks_are_skipped() {
        let of = |line| flock_of(line, 1234);
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF"), Some((4711, "08:01")));
        assert_eq!(of("2: POSIX  ADVISORY  WRITE 4711 08:01:1234 0 EOF"), None);
        assert_eq!(of("3: FLOCK  ADVISORY  WRITE 4711 08:01:1235 0 EOF"), None);
        assert_eq!(of("3: -> FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF"), None, "it waits for the lock");
        assert_eq!(of("garbage"), None);
        assert_eq!(of(""), None);
    }
}
