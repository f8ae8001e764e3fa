//! Waiting for a signal that all threads of the process block.
//!
//! A signal has one action for the whole process, and that belongs to the program. A signal that every thread blocks
//! has none: it stays pending until somebody takes it. So a library may take it without a handler. If one thread does
//! not block it, the kernel gives the signal to that thread, and its action is carried out.
//!
//! Source: `signalfd(2)`, `signal(7)`, and of `proc(5)` the field `SigBlk`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// A signal that is waited for.
pub(crate) struct BlockedSignal {
    signals: OwnedFd,
    /// Readable once nobody is to wait any more.
    end: OwnedFd,
}

impl BlockedSignal {
    /// A way to wait for this signal.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is no signal, or not one that can be blocked, and for a signal that a thread of
    /// the process does not block; those of the system.
    #[allow(unsafe_code)]
    pub(crate) fn new(signal: i32) -> io::Result<Self> {
        let refused = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !(1..=64).contains(&signal) || matches!(signal, libc::SIGKILL | libc::SIGSTOP) {
            return Err(refused(format!("{signal} is not a signal that can be blocked")));
        }
        if let Some(thread) = thread_that_takes(signal)? {
            return Err(refused(format!(
                "thread {thread} of this process does not block signal {signal}; block it in the main thread before \
                 any other thread starts"
            )));
        }
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a place for one set, which the call fills.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: a set that was filled.
        if unsafe { libc::sigaddset(set.as_mut_ptr(), signal) } != 0 {
            return Err(refused(format!("the C library keeps signal {signal} for itself")));
        }
        // SAFETY: a new descriptor, for a set that was filled.
        let signals = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if signals < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and that nobody else has.
        let signals = unsafe { OwnedFd::from_raw_fd(signals) };
        Ok(BlockedSignal { signals, end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Waits for the signal, and takes it; false if [`end`](BlockedSignal::end) was called.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn wait(&self) -> io::Result<bool> {
        loop {
            let mut both = [PollFd::new(&self.end, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut both, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            if !both[0].revents().is_empty() {
                return Ok(false);
            }
            // More of them that have come meanwhile ask for the same.
            let mut taken = [0; 4 * size_of::<libc::signalfd_siginfo>()];
            match rustix::io::read(self.signals.as_fd(), &mut taken) {
                Ok(0) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Has all waits end.
    pub(crate) fn end(&self) {
        // It fails only if it has been called very often.
        let _ = rustix::io::write(self.end.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// A thread of this process that does not block the signal.
fn thread_that_takes(signal: i32) -> io::Result<Option<String>> {
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?;
        // One that has ended takes no signal.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        if blocked >> (signal - 1) & 1 == 0 {
            return Ok(Some(thread.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}
