//! The server: a socket that every process of the run knows, and a thread for each connection.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use tempfile::TempDir;

use crate::board::Board;
use crate::connection;
use crate::files::Files;
use crate::managed::Mode;
use crate::processes;
use crate::report::Report;

/// Serves the managed files of one run. The files are let go of by [`finish`](Server::finish).
pub struct Server {
    files: Arc<Files>,
    /// Of this user alone: who can connect can read and write the managed files.
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
    pub fn start(mode: impl Mode + 'static) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("untorn-run-").tempdir()?;
        let board = Board::create(&directory.path().join("board"))?;
        let listener = UnixListener::bind(directory.path().join("socket"))?;
        let files = Arc::new(Files::new(Box::new(mode), board));
        let server = Server { files: files.clone(), directory };
        thread::Builder::new().name("untorn-accept".to_owned()).spawn(move || {
            for socket in listener.incoming() {
                // Without a descriptor or a thread to spare the process's connection fails, and its call.
                if let Err(error) = socket.and_then(|socket| accept(&files, socket)) {
                    tracing::warn!(%error, "a connection was lost");
                }
            }
        })?;
        Ok(server)
    }

    /// The socket's path.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// The board's path.
    pub fn board(&self) -> PathBuf {
        self.directory.path().join("board")
    }

    /// A directory that lives as long as the server.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        self.files.ledger.report()
    }

    /// Lets go of every file that nobody holds any more.
    pub fn sweep(&self) {
        self.files.sweep();
    }

    /// The run is over: lets go of all files, and reports.
    pub fn finish(self) -> Report {
        self.files.close();
        self.files.ledger.report()
    }
}

fn accept(files: &Arc<Files>, socket: UnixStream) -> io::Result<()> {
    let process = rustix::net::sockopt::socket_peercred(&socket)?.pid.as_raw_nonzero().get().unsigned_abs();
    let met = files.processes.meet(process)?;
    // It asked for something before it became this program.
    let known = met.is_none();
    if let Some(handle) = met {
        let files = files.clone();
        thread::Builder::new().name("untorn-await".to_owned()).spawn(move || {
            processes::await_end(&handle);
            files.processes.ended(process, &handle);
            if files.processes.died(process) {
                files.forsaken_by(process);
            }
            files.sweep();
        })?;
    }
    let files = files.clone();
    thread::Builder::new().name("untorn-serve".to_owned()).spawn(move || {
        if let Err(error) = connection::serve(&files, socket, process, known) {
            tracing::debug!(%error, process, "a request was cut short");
        }
    })?;
    Ok(())
}
