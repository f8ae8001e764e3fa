//! The program of a run: found before anything is mounted, and waited for together with all that it starts.
//!
//! The kernel makes processes that lose their parent children of this process (a *subreaper*): of its first thread. The
//! pullers are children of another thread ([`serving`](super::serving)), so this one waits for the program's processes
//! alone. Source: `waitid(2)`, `__WNOTHREAD`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::say;
use crate::exit::{Exit, Failure, Result};
use crate::signals::handled;

/// `__WNOTHREAD` of the kernel, which rustix does not name.
const CHILDREN_OF_THIS_THREAD: WaitOptions = WaitOptions::from_bits_retain(0x2000_0000);

/// Refuses a program that cannot be found, before anything is made. `exec` tells later of all else that it refuses.
pub(in crate::verbs) fn check(program: &OsStr) -> Result<()> {
    let refused = |why: &dyn std::fmt::Display| Failure::usage(format!("cannot run {}: {why}", program.display()));
    if program.as_bytes().contains(&b'/') {
        return fs::metadata(Path::new(program)).map(drop).map_err(|error| refused(&error));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).any(|candidate: PathBuf| {
        fs::metadata(&candidate).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    });
    if found { Ok(()) } else { Err(refused(&"not found in PATH")) }
}

/// Handlers of the signals that a terminal or a service manager sends, for as long as a run lasts.
pub(super) struct Watch {
    during: Signals,
    /// Signals are also collected here from the start, so that none is missed between the two.
    after: Signals,
}

/// A signal is passed on to the program.
pub(super) struct Passing {
    thread: SignalThread,
    after: Signals,
}

/// A signal ends the wait for other users of the files.
pub(super) struct Waiting(SignalThread);

/// A thread that acts on signals until its handle is closed.
struct SignalThread {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Watch {
    /// From here on, a signal does not end this process.
    pub(super) fn start() -> Result<Self> {
        let failed = |error| Failure::io("cannot install signal handlers", &error);
        // If this process was started to ignore SIGCHLD, the kernel would not keep the program's status. A handler has
        // it kept, and is no handler of the program.
        signal_hook::flag::register(SIGCHLD, Arc::default()).map_err(failed)?;
        let signals = handled(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
        let during = Signals::new(&signals).map_err(failed)?;
        let after = Signals::new(&signals).map_err(failed)?;
        Ok(Watch { during, after })
    }

    /// Passes signals on to the program. A terminal's signals reach the program without that.
    pub(super) fn pass_to(self, program: Option<Pid>) -> Passing {
        let thread = SignalThread::start(self.during, move |signal| {
            let passed = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => return,
            };
            if let Some(program) = program {
                // It may have ended.
                let _ = kill_process(program, passed);
            }
        });
        Passing { thread, after: self.after }
    }
}

impl Passing {
    /// All processes of the run have ended: a signal from here on ends the wait for other users of its files. One that
    /// came before was for the program, though this process may not have looked at it yet: the program that a signal
    /// of the terminal ends can be gone before a thread of this process runs.
    pub(super) fn program_is_over(mut self) -> Waiting {
        self.thread.end();
        // The handlers of earlier signals have run: the kernel gives a process's signals to its first thread, which is
        // this one, and runs their handlers before the call that it waits in returns. Source: `signal(7)`.
        self.after.pending().for_each(drop);
        Waiting(SignalThread::start(self.after, |_| {
            say("untorn: a process outside of the run still uses its files; it gets errors from now on\n");
            // The kernel ends the mounts of a server that is gone; the log has what was durable.
            std::process::exit(Exit::Io as i32);
        }))
    }
}

impl Waiting {
    /// The wait is over.
    pub(super) fn end(self) {
        self.0.end();
    }
}

impl SignalThread {
    fn start(mut signals: Signals, act: impl Fn(i32) + Send + 'static) -> Self {
        let handle = signals.handle();
        let thread = thread::spawn(move || signals.forever().for_each(act));
        SignalThread { handle, thread }
    }

    fn end(self) {
        self.handle.close();
        // A thread that panicked has nothing left to do.
        let _ = self.thread.join();
    }
}

/// Makes this process the parent of all of the program's processes that lose theirs.
pub(super) fn adopt() -> Result<()> {
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| Failure::io("cannot become the subreaper of the program's processes", &error.into()))
}

/// Waits until the program and all that it started have ended. The program's status. It must be called on the thread
/// that started the program, which is the first one.
pub(super) fn await_all(program: Option<Pid>) -> Result<ExitStatus> {
    let mut of_program = None;
    loop {
        match wait(CHILDREN_OF_THIS_THREAD) {
            Ok(Some((child, status))) if Some(child) == program => {
                of_program = Some(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    of_program.ok_or_else(|| Failure::io("cannot wait for the program", &io::ErrorKind::NotFound.into()))
}

/// The exit code as a shell reports it: the program's own code, or 128 plus the signal number.
pub(in crate::verbs) fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_path_or_in_the_search_path() {
        assert!(check(OsStr::new("sh")).is_ok() && check(OsStr::new("/bin/sh")).is_ok());
        let refused = check(OsStr::new("no-such-program")).unwrap_err();
        assert_eq!(
            (refused.exit, refused.to_string().as_str()),
            (Exit::Usage, "cannot run no-such-program: not found in PATH")
        );
        assert!(check(OsStr::new("/no/such/program")).is_err());
    }

    #[test]
    fn a_signal_that_came_before_the_end_does_not_end_the_wait() {
        let watch = Watch::start().unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        // A thread of `waiting` that took the signal for a later one would end this process.
        let waiting = watch.pass_to(None).program_is_over();
        thread::sleep(std::time::Duration::from_millis(20));
        waiting.end();
    }

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}
