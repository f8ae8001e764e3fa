//! A child process to kill: this program with a hidden verb, its reports, and SIGKILL at a chosen instant.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::exit::{Exit, Failure, Result};

/// The longest a child may take until its next report. After that it counts as hung.
const CHILD_PROGRESS_TIMEOUT: Duration = Duration::from_secs(120);

/// A running child that writes 8-byte reports to its stdout. Dropping it kills the child.
pub(crate) struct Victim {
    child: Child,
    /// The number of reports so far, sent each time some arrive.
    arrivals: Receiver<usize>,
    reports: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

/// How a child ended.
pub(crate) enum End {
    /// By our SIGKILL, after these reports.
    Killed(Vec<u64>),
    /// By itself; its message is on stderr.
    ByItself(ExitStatus),
}

impl End {
    /// The reports of a child that was expected to live until it was killed.
    pub(crate) fn expect_killed(self) -> Result<Vec<u64>> {
        match self {
            End::Killed(reports) => Ok(reports),
            End::ByItself(status) => {
                let message = format!(
                    "the writer process exited by itself ({status}) before it was killed; its message is above"
                );
                Err(Failure { exit: Exit::Io, path: None, message })
            }
        }
    }
}

impl Victim {
    /// Starts another process of this program with `arguments`.
    pub(crate) fn spawn(arguments: impl IntoIterator<Item = OsString>) -> Result<Self> {
        Victim::spawn_watched(arguments, |_| ())
    }

    /// Starts another process of this program with `arguments`. Calls `arrived` each time reports arrive, with the
    /// number of all reports so far.
    pub(crate) fn spawn_watched(
        arguments: impl IntoIterator<Item = OsString>,
        arrived: impl FnMut(usize) + Send + 'static,
    ) -> Result<Self> {
        let program =
            std::env::current_exe().map_err(|error| Failure::io("cannot find the path of this program", &error))?;
        let mut child = Command::new(&program)
            .args(arguments)
            .args(["--parent", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::io_at("start", &program, &error))?;
        let (signal, arrivals) = mpsc::channel();
        let reports = child.stdout.take().map(|stdout| thread::spawn(move || collect(stdout, &signal, arrived)));
        Ok(Victim { child, arrivals, reports })
    }

    /// Waits for the first report, or for the child to end by itself.
    pub(crate) fn wait_ready(&self) -> Result<()> {
        self.wait_reports(1)
    }

    /// Waits until `least` reports have arrived in total, or for the child to end by itself.
    pub(crate) fn wait_reports(&self, least: usize) -> Result<()> {
        loop {
            match self.arrivals.recv_timeout(CHILD_PROGRESS_TIMEOUT) {
                Ok(reports) if reports < least => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    let message = format!(
                        "the writer process made no report for {} seconds; it seems to hang",
                        CHILD_PROGRESS_TIMEOUT.as_secs()
                    );
                    return Err(Failure { exit: Exit::Io, path: None, message });
                }
            }
        }
    }

    /// Lets the child run for `time`, then kills it.
    pub(crate) fn kill_after(mut self, time: Duration) -> Result<End> {
        thread::sleep(time);
        // An error means that it has ended already; the status below shows it.
        let _ = self.child.kill();
        let status = self.child.wait().map_err(|error| Failure::io("cannot wait for the writer process", &error))?;
        let bytes = match self.reports.take().map(JoinHandle::join) {
            Some(Ok(bytes)) => bytes,
            Some(Err(_)) | None => Err(ErrorKind::BrokenPipe.into()),
        };
        let bytes = bytes.map_err(|error| Failure::io("cannot read the writer process's reports", &error))?;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            return Ok(End::ByItself(status));
        }
        // A pipe takes eight bytes whole or not at all, so only whole reports can arrive.
        let words = bytes.chunks_exact(8).filter_map(|chunk| chunk.try_into().ok()).map(u64::from_le_bytes);
        Ok(End::Killed(words.collect()))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Both fail if the child was already waited for; there is nothing to do then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut stdout: ChildStdout, signal: &Sender<usize>, mut arrived: impl FnMut(usize)) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        match stdout.read(&mut buffer) {
            Ok(0) => return Ok(all),
            Ok(n) => {
                all.extend_from_slice(&buffer[..n]);
                arrived(all.len() / 8);
                // After the kill, nothing receives it.
                let _ = signal.send(all.len() / 8);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// In the child: makes the kernel kill it when its parent dies, so that an interrupted run leaves no writer behind.
pub(crate) fn die_with_parent(parent: i32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::io("cannot set the writer process's parent-death signal", &error.into()))?;
    // The parent may have exited before the request took effect.
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(Failure::usage("this verb is internal: only `untorn demo` and `untorn torture` start it"))
    }
}

/// In the child: the stream for reports. It is unbuffered, because a buffer's contents die with the process.
pub(crate) fn reports() -> Result<File> {
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    stdout.map(File::from).map_err(|error| Failure::io("cannot duplicate standard output for reports", &error))
}
