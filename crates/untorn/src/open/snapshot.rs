//! Snapshots of a file that this process need not have open.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::open;
use crate::engine::registry;
use crate::engine::snapshot::Snapshot;
use crate::engine::snapshot::remote::client::{Asked, process_with, take};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::storage;
use crate::sys::locks::{flock_writer, process_name};

/// How long to try again while the file is being opened or closed by another process.
const PATIENCE: Duration = Duration::from_secs(2);

impl Snapshot {
    /// Takes a snapshot of a file that this process, another one, or none has open.
    ///
    /// Another process that has the file open for writing keeps the snapshot, as it keeps its own; it must be of the
    /// same user, or the caller root. The snapshot ends when that process ends or closes the file
    /// ([`Error::SnapshotEnded`]). If no process has the file open, the snapshot opens it read-only, and serves the
    /// last commit also after a crash.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("accounts");
    /// # untorn::AtomicFile::create(&path, 4096)?.close()?;
    /// use untorn::Snapshot;
    /// let snapshot = Snapshot::open(&path)?; // whichever process has it open
    /// let mut bytes = vec![0; snapshot.len() as usize];
    /// snapshot.read_at(&mut bytes, 0)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InUse`] if the process that has the file open serves no snapshots, for example because it runs in
    /// another container; otherwise as for [`Options::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Snapshot> {
        let path = &storage::resolve(path.as_ref())?;
        let since = Instant::now();
        loop {
            let identity = storage::detect(path)?.identity;
            // One that may end is asked as by another process.
            if let Some(shared) = registry::find(identity).filter(|shared| !shared.may_end()) {
                match Snapshot::take(&shared) {
                    // This process reads a plain file, which another one writes to by now.
                    Err(Error::InUse { .. }) => {}
                    taken => return taken,
                }
            }
            if let Some(refused) = locked_itself(path)? {
                // It may be closing.
                if since.elapsed() >= PATIENCE {
                    return Err(refused);
                }
                thread::sleep(Duration::from_millis(10));
                continue;
            }
            let asked = match ask_holder(path, identity.inode) {
                Ok(Some(snapshot)) => return Ok(snapshot),
                Ok(None) => None,
                Err(refused @ Error::InUse { .. }) => Some(refused),
                Err(error) => return Err(error),
            };
            // Also where somebody has the sidecar's lock: it may be that of readers. A writer may come before the
            // snapshot is taken.
            match open(path, &Options::new().read_only(true)).and_then(|shared| Snapshot::take(&shared)) {
                Err(in_use @ Error::InUse { .. }) if since.elapsed() >= PATIENCE => return Err(asked.unwrap_or(in_use)),
                Err(Error::InUse { .. }) => {}
                taken => return taken,
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Why nothing is read of a region store or a log, whose bytes mean nothing while its program changes them.
fn locked_itself(path: &Path) -> Result<Option<Error>> {
    let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
    let writer = flock_writer(file.as_fd()).ok().flatten();
    Ok(writer.map(|process| {
        let holder = format!("{}, which locks the file itself; close it there first", process_name(process));
        Error::InUse { path: path.to_owned(), holder }
    }))
}

/// A snapshot of the process that has the file open for writing; `None` if none has, or if it is about to have or to
/// close it.
fn ask_holder(path: &Path, inode: u64) -> Result<Option<Snapshot>> {
    let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
    let Some(process) = process_with(path, inode) else { return Ok(None) };
    match take(path, &file, process, false)? {
        Asked::Taken(snapshot) => Ok(Some(Snapshot::remote(snapshot))),
        Asked::Busy => Ok(None),
    }
}
