//! Looking at a file without changing it, and recovering it on demand.

use std::path::Path;

use crate::engine::{Recovery, Report, State};
use crate::error::Result;
use crate::options::Options;

/// Looks at a file, its mark and its sidecar. Changes nothing. A file that another process has open for writing is
/// reported as such; nobody is kept from opening it meanwhile.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("f");
/// untorn::AtomicFile::create(&path, 4096)?.close()?;
/// assert_eq!(untorn::inspect(&path)?.state, untorn::State::Clean);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Only what keeps it from looking: no such file, no permission. What it finds wrong is in the report.
pub fn inspect(path: impl AsRef<Path>) -> Result<Report> {
    crate::engine::inspect(path.as_ref())
}

/// Brings a file to its last committed state and closes it cleanly. A plain file is left as it is, and of a clean one only the
/// sidecar is written anew. Running it
/// again, or after a crash during it, gives the same state.
///
/// `options` may carry [`Options::trust`], [`Options::adopt`] and [`Options::progress`].
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("f");
/// untorn::AtomicFile::create(&path, 4096)?.close()?;
/// assert!(!untorn::recover(&path, &untorn::Options::new())?.was_needed);
/// # Ok(()) }
/// ```
///
/// # Errors
/// See [`Options::open`].
pub fn recover(path: impl AsRef<Path>, options: &Options) -> Result<Recovery> {
    let path = path.as_ref();
    let plain = inspect(path)?;
    if plain.engine.is_none() && plain.state == State::Clean {
        return Ok(Recovery::default());
    }
    let file = options.open(path)?;
    let recovery = file.info().recovery;
    file.close()?;
    Ok(recovery)
}
