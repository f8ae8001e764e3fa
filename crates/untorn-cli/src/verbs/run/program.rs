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
use std::sync::atomic::{AtomicBool, Ordering};
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
    signals: Signals,
    handle: Handle,
}

/// The thread that passes signals on.
pub(super) struct Passing {
    handle: Handle,
    thread: JoinHandle<()>,
    over: Arc<AtomicBool>,
}

impl Watch {
    /// From here on, a signal does not end this process.
    pub(super) fn start() -> Result<Self> {
        let failed = |error| Failure::io("cannot install signal handlers", &error);
        // If this process was started to ignore SIGCHLD, the kernel would not keep the program's status. A handler has
        // it kept, and is no handler of the program.
        signal_hook::flag::register(SIGCHLD, Arc::default()).map_err(failed)?;
        let signals = Signals::new(handled(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM])).map_err(failed)?;
        let handle = signals.handle();
        Ok(Watch { signals, handle })
    }

    /// Passes signals on to the program. A terminal's signals reach the program without that.
    pub(super) fn pass_to(mut self, program: Option<Pid>) -> Passing {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = thread::spawn(move || {
            for signal in &mut self.signals {
                if is_over.load(Ordering::Acquire) {
                    say("untorn: a process outside of the run still uses its files; it gets errors from now on\n");
                    // The kernel ends the mounts of a server that is gone; the log has what was durable.
                    std::process::exit(Exit::Io as i32);
                }
                let passed = match signal {
                    SIGTERM => Signal::TERM,
                    SIGHUP => Signal::HUP,
                    _ => continue,
                };
                if let Some(program) = program {
                    // It may have ended.
                    let _ = kill_process(program, passed);
                }
            }
        });
        Passing { handle: self.handle, thread, over }
    }
}

impl Passing {
    /// All processes of the run have ended. A signal now ends the wait for other users of its files.
    pub(super) fn program_is_over(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Ends the thread.
    pub(super) fn end(self) {
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
    fn a_signal_counts_from_128() {
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}
