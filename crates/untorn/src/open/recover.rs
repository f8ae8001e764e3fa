//! Recovering a file on demand.

use std::path::Path;

use crate::engine::{Recovery, State};
use crate::error::Result;
use crate::file::inspect;
use crate::options::Options;

/// Brings a file to its last committed state and closes it cleanly. It leaves a plain file unchanged; for a cleanly
/// closed file it only rewrites the sidecar. Running it again, or after a crash during recovery, gives the same state.
///
/// `options` may carry [`Options::prefer`], [`Options::adopt`] and [`Options::progress`].
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
