//! A directory under `untorn mount`, while something is measured or compared in it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// A directory to mount, and the options.
pub(crate) struct Mount<'a> {
    pub(crate) tool: &'a Path,
    pub(crate) mode: &'a str,
    pub(crate) log: &'a Path,
    pub(crate) log_size: &'a str,
    /// Treat the log's medium as persistent memory, although it is not.
    pub(crate) assumed: bool,
    /// Locks meet on the mount alone.
    pub(crate) local_locks: bool,
    pub(crate) source: &'a Path,
    pub(crate) at: &'a Path,
}

/// A mount and its server, until dropped.
pub(crate) struct Mounted {
    server: Option<Child>,
    tool: PathBuf,
    at: PathBuf,
}

impl Mount<'_> {
    /// Mounts, and waits until the file system answers.
    pub(crate) fn start(&self) -> io::Result<Mounted> {
        let mut command = Command::new(self.tool);
        if self.assumed {
            command.env("UNTORN_ASSUME_PMEM", "1");
        }
        command.args(["mount", "--foreground", "--json", "--mode", self.mode, "--log-size", self.log_size, "--log"]);
        command.arg(self.log);
        if self.local_locks {
            command.arg("--local-locks");
        }
        command.arg(self.source).arg(self.at);
        let bare = fs::metadata(self.at)?.dev();
        let server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut mounted = Mounted { server: Some(server), tool: self.tool.to_owned(), at: self.at.to_owned() };
        for _ in 0..1000 {
            if fs::metadata(self.at)?.dev() != bare {
                return Ok(mounted);
            }
            if let Some(status) = mounted.server.as_mut().map(Child::try_wait).transpose()?.flatten() {
                return Err(io::Error::other(format!("untorn mount ended: {status}; see its message above")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err(io::Error::other("untorn mount did not mount the directory within 10 s"))
    }
}

impl Mounted {
    /// Unmounts. Returns the server's report.
    pub(crate) fn end(mut self) -> io::Result<Value> {
        let unmounted = Command::new(&self.tool).arg("unmount").arg(&self.at).status()?;
        if !unmounted.success() {
            return Err(io::Error::other(format!("untorn unmount {}: {unmounted}", self.at.display())));
        }
        let Some(server) = self.server.take() else { return Ok(Value::Null) };
        let output = server.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let report = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
        report.ok_or_else(|| io::Error::other(format!("untorn mount printed no report, but {said:?}")))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // An earlier error is on its way. A mount that is left over makes the next one fail.
            let _ = Command::new(&self.tool).args(["unmount", "--lazy"]).arg(&self.at).status();
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
