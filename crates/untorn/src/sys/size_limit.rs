//! The limit on the size of files (RLIMIT_FSIZE, `ulimit -f`) as an error: a call beyond it fails with EFBIG, and the
//! signal that the kernel sends besides (SIGXFSZ), which kills by default, reaches nobody.
//!
//! A library must not change what a signal does in its process. So the thread that makes such a call blocks the signal
//! around it, takes it back if the call raised it, and restores its mask: up to seven system calls more, and only for a
//! call that may reach beyond the limit as it was last read. The limit is read whenever a file is opened for writing,
//! created or made longer, and by every call that would reach beyond it.
//!
//! # Safety
//! Calls that change the calling thread's signal mask, which is restored before the function returns, also by a panic.
//! The sets of signals are filled before they are read.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// The limit as it was last read; 0 before that, so that the first call reads it.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// Reads the limit: for calls that open a file to write to it, which take long anyway.
pub(crate) fn read_limit() -> u64 {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    LIMIT.store(limit, Ordering::Relaxed);
    limit
}

/// Makes a call that writes to a file up to byte `end`.
#[inline]
pub(crate) fn writing<T>(end: u64, call: impl FnOnce() -> T) -> T {
    if end <= LIMIT.load(Ordering::Relaxed) { call() } else { growing(end, call) }
}

/// Makes a call that sets the length of a file to `end`.
#[cold]
pub(crate) fn growing<T>(end: u64, call: impl FnOnce() -> T) -> T {
    if end <= read_limit() {
        return call();
    }
    let _blocked = Blocked::new();
    call()
}

/// SIGXFSZ, blocked in this thread.
struct Blocked {
    before: libc::sigset_t,
    was_pending: bool,
}

impl Blocked {
    fn new() -> Self {
        let mut before = empty();
        // SAFETY: both sets are good for the call.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &the_signal(), &mut before) };
        Blocked { before, was_pending: is_pending() }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // One that was pending before is not this call's, and the two are one by now.
        while !self.was_pending && is_pending() {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the set and the time are good for the call, which is told nothing of the signal.
            unsafe { libc::sigtimedwait(&the_signal(), ptr::null_mut(), &at_once) };
        }
        // SAFETY: the set is the one that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set, and cannot fail for a set that is there.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: filled just now.
    unsafe { set.assume_init() }
}

fn the_signal() -> libc::sigset_t {
    let mut set = empty();
    // SAFETY: a set of the stack's, and a signal that exists.
    unsafe { libc::sigaddset(&mut set, libc::SIGXFSZ) };
    set
}

/// Whether the signal waits for this thread, or for the process.
fn is_pending() -> bool {
    let mut pending = empty();
    // SAFETY: a set of the stack's.
    unsafe { libc::sigpending(&mut pending) };
    // SAFETY: as above.
    unsafe { libc::sigismember(&pending, libc::SIGXFSZ) == 1 }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::process::{Rlimit, setrlimit};
    use untorn_testing::{again, test_name};

    use super::*;

    /// Whether this is a process that a test has for itself: the limit and the mask are a process's own. If not, it
    /// runs the test in one.
    fn is_alone(test: &str) -> bool {
        const ALONE: &str = "UNTORN_TEST_OF_LIMITS";
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        // Its output goes to a pipe: a file may be longer than the limit.
        let output = again(test).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{test}, alone: {}\n{said}", output.status);
        false
    }

    /// A signal that reached the process would end it.
    #[test]
    fn a_call_beyond_the_limit_is_efbig_and_leaves_no_signal() {
        if !is_alone(test_name!()) {
            return;
        }
        let file = tempfile::tempfile().unwrap();
        let before = getrlimit(Resource::Fsize);
        growing(1 << 20, || rustix::fs::ftruncate(&file, 1 << 20)).unwrap();
        setrlimit(Resource::Fsize, Rlimit { current: Some(8192), ..before }).unwrap();
        let too_large = Some(libc::EFBIG);
        let grown = growing(2 << 20, || rustix::fs::ftruncate(&file, 2 << 20));
        assert_eq!(grown.unwrap_err().raw_os_error(), libc::EFBIG);
        // The kernel takes the part below the limit, and refuses the rest.
        let (done, error) = crate::sys::file::write_all(file.as_fd(), &[7; 8192], 4096).unwrap_err();
        assert_eq!((done, error.raw_os_error()), (4096, too_large));
        let (done, error) =
            crate::sys::file::write_all_parts(file.as_fd(), &[&[7; 4096], &[7; 4096]], 8192).unwrap_err();
        assert_eq!((done, error.raw_os_error()), (0, too_large));
        assert!(!is_pending());
        let mut mask = empty();
        // SAFETY: the set is good for the call, which reads the mask of this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask) };
        // SAFETY: filled just now.
        assert_eq!(unsafe { libc::sigismember(&mask, libc::SIGXFSZ) }, 0, "the mask is as it was");
        assert_eq!(LIMIT.load(Ordering::Relaxed), 8192);
    }

    /// A caller that has blocked the signal, and waits for one of its own, still gets it.
    #[test]
    fn a_signal_that_was_pending_stays_so() {
        if !is_alone(test_name!()) {
            return;
        }
        let outer = Blocked::new();
        // SAFETY: a signal that exists, to this thread, which has it blocked.
        unsafe { libc::raise(libc::SIGXFSZ) };
        drop(Blocked::new());
        assert!(is_pending());
        drop(outer);
    }
}
