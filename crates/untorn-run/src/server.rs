//! The server: a socket that every process of the run knows, and a thread for each connection.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Uid, geteuid};
use tempfile::TempDir;

use crate::board::Board;
use crate::connection::{self, Caller};
use crate::holders;
use crate::processes;
use crate::report::Report;
use crate::service::Service;

/// Serves the managed files of one run. The files are let go of by [`finish`](Server::finish).
pub(crate) struct Server {
    files: Arc<dyn Service>,
    /// Of this user alone; of root's runs the processes may take other rights, so anybody may connect, and is asked
    /// who it is.
    directory: TempDir,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("directory", &self.directory.path()).finish()
    }
}

impl Server {
    /// Starts to serve.
    ///
    /// # Errors
    /// Those of making a directory and a socket.
    pub(crate) fn start(mode: impl FnOnce(Board) -> io::Result<Arc<dyn Service>>) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("untorn-run-").tempdir()?;
        let board = Board::create(&directory.path().join("board"))?;
        let listener = UnixListener::bind(directory.path().join("socket"))?;
        if geteuid().is_root() {
            for (name, mode) in [("", 0o711), ("board", 0o644), ("socket", 0o666)] {
                fs::set_permissions(directory.path().join(name), Permissions::from_mode(mode))?;
            }
        }
        let files = mode(board)?;
        let server = Server { files: files.clone(), directory };
        thread::Builder::new().name("untorn-accept".to_owned()).spawn(move || {
            for socket in listener.incoming() {
                if socket.as_ref().is_err_and(is_short_of_descriptors) {
                    // The process waits to be accepted until another one has ended.
                    thread::sleep(MOMENT);
                    continue;
                }
                // Without a thread to spare the process's connection fails, and its call.
                if let Err(error) = socket.and_then(|socket| accept(&files, socket)) {
                    tracing::warn!(%error, "cannot accept a connection");
                }
            }
        })?;
        Ok(server)
    }

    /// The socket's path.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// The board's path.
    pub(crate) fn board(&self) -> PathBuf {
        self.directory.path().join("board")
    }

    /// The run is over: lets go of all files, and reports.
    pub(crate) fn finish(self) -> Report {
        self.files.close();
        self.files.ledger().report()
    }
}

/// Between two looks for a descriptor to spare.
const MOMENT: Duration = Duration::from_millis(1);
/// So often a process's connection is tried for that lack before it fails, and its call.
const MOMENTS: u32 = 60_000;

fn is_short_of_descriptors(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Notes a process. Where there is no descriptor for it, those of processes that have ended are about to be free.
fn meet(files: &dyn Service, process: u32) -> io::Result<Option<Arc<OwnedFd>>> {
    for _ in 1..MOMENTS {
        match files.processes().meet(process) {
            Err(error) if is_short_of_descriptors(&error) => thread::sleep(MOMENT),
            met => return met,
        }
    }
    files.processes().meet(process)
}

/// Whether a process of another user is one of the run, and not one that has its number since.
fn is_below(process: u32, user: Uid) -> bool {
    let owner = fs::metadata(format!("/proc/{process}")).map(|found| found.uid());
    owner.is_ok_and(|owner| owner == user.as_raw()) && holders::descendants().contains(&process)
}

fn accept(files: &Arc<dyn Service>, socket: UnixStream) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    let process = peer.pid.as_raw_nonzero().get().unsigned_abs();
    let is_other = peer.uid != geteuid();
    if is_other && !is_below(process, peer.uid) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "a process of another user connected that does not belong to the run",
        ));
    }
    let met = meet(&**files, process)?;
    // It asked for something before it became this program.
    let known = met.is_none();
    // Whatever the program before connected with has been accepted by now, and whatever a later one does has not.
    let caller = Caller { process, program: files.processes().program(process), known, is_other };
    if let Some(handle) = met {
        let files = files.clone();
        thread::Builder::new().name("untorn-await".to_owned()).spawn(move || {
            processes::await_end(&handle);
            files.processes().ended(process, &handle);
            // Before files are looked after, which takes its time: descriptors are few.
            drop(handle);
            if files.processes().died(process) {
                files.forsaken_by(process);
            }
            files.sweep();
        })?;
    }
    let files = files.clone();
    thread::Builder::new().name("untorn-serve".to_owned()).spawn(move || {
        match connection::serve(&*files, socket, caller) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, process, "closed a connection");
            }
            Err(error) => tracing::debug!(%error, process, "a connection ended within a request"),
            Ok(()) => {}
        }
        // Its connections are closed by `exec`, as its descriptors are; of a program without the layer nobody hears
        // more.
        if files.processes().has_become(process) {
            files.became(process);
        }
    })?;
    Ok(())
}
