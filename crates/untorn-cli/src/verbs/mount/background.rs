//! A mount in the background: the process that the user started returns once the mount answers, and a second one, which
//! is this program started again, serves.
//!
//! The second process has a socket as its standard input. It sends one byte over it when the mount answers. Until then
//! it has the terminal, the process group and the standard streams of the first, so that errors and Ctrl-C reach their
//! ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use crate::exit::{Exit, Failure, Result};

/// Starts the second process with the arguments of this one, and waits until its mount answers.
pub(super) fn start() -> Result<Exit> {
    let failed = |error| Failure::io("cannot start the process that serves the mount", &error);
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("untorn")
        .args(arguments(std::env::args_os()))
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .map_err(failed)?;
    // An error is an end, too: the exit code tells.
    if matches!(ours.read(&mut [0]), Ok(1)) {
        return Ok(Exit::Clean);
    }
    let status = child.wait().map_err(failed)?;
    // It has said why on standard error, and on standard output if JSON was asked for.
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// The arguments of the second process: those of this one without its name, and one that says which half it is. No
/// option precedes the verb.
fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut given = given.skip(1);
    let verb: Vec<OsString> = given.by_ref().take(1).collect();
    let rest = given.filter(|argument| argument != "--background");
    verb.into_iter().chain([OsString::from("--half")]).chain(rest).collect()
}

/// The second process's end of the socket.
#[derive(Debug)]
pub(super) struct Half(UnixStream);

impl Half {
    /// Takes it from standard input.
    pub(super) fn take() -> Result<Self> {
        let no_half = || Failure::usage("--half is for processes that `untorn mount` starts itself");
        let socket = io::stdin().as_fd().try_clone_to_owned().map_err(|_| no_half())?;
        let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(|_| no_half())?;
        match Some(peer.pid) == rustix::process::getppid() {
            true => Ok(Half(UnixStream::from(socket))),
            false => Err(no_half()),
        }
    }

    /// Leaves the first process, which then returns.
    ///
    /// # Errors
    /// I/O, if the first process is gone: the user has given up.
    pub(super) fn leave(mut self) -> Result<()> {
        let failed = |error| Failure::io("cannot leave the terminal", &error);
        rustix::process::setsid().map_err(|error| failed(error.into()))?;
        let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdin(&null).map_err(|error| failed(error.into()))?;
        rustix::stdio::dup2_stdout(&null).map_err(|error| failed(error.into()))?;
        // A log that was asked for goes on.
        if std::env::var_os("UNTORN_LOG").is_none_or(|filter| filter.is_empty()) {
            rustix::stdio::dup2_stderr(&null).map_err(|error| failed(error.into()))?;
        }
        // The directory that the user stands in may be on a disk that is to be unmounted.
        std::env::set_current_dir("/").map_err(failed)?;
        self.0.write_all(b"R").map_err(|error| Failure::io("the process that waits for the mount is gone", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_has_the_arguments_of_the_first() {
        let given = ["untorn", "mount", "--mode", "boost", "--background", "a", "b"].map(OsString::from);
        assert_eq!(arguments(given.into_iter()), ["mount", "--half", "--mode", "boost", "a", "b"].map(OsString::from));
    }
}
