//! What the server of a run asks of a mode: the seam between connections and files.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use untorn_wire::Request;

use crate::connection::{Answer, Call};
use crate::descriptor::path_of;
use crate::managed::Errno;
use crate::processes::Processes;
use crate::report::Ledger;

/// The managed files of a run under one mode.
pub(crate) trait Service: Send + Sync {
    /// The processes of the run.
    fn processes(&self) -> &Processes;

    /// What is counted.
    fn ledger(&self) -> &Ledger;

    /// Serves a call on a file.
    ///
    /// # Errors
    /// The errno that the program is to see.
    fn answer(&self, request: Request, call: &Call<'_>) -> Result<Answer, Errno>;

    /// What to call the file of a descriptor.
    fn path(&self, descriptor: &OwnedFd) -> PathBuf {
        path_of(descriptor).unwrap_or_default()
    }

    /// A process became another program: what is closed and unmapped by `exec` it has no more.
    fn became(&self, _process: u32) {}

    /// A process died without saying that it wants to end.
    fn forsaken_by(&self, process: u32);

    /// Lets go of every file that nobody holds any more.
    fn sweep(&self);

    /// The run is over: lets go of all files.
    fn close(&self);
}
