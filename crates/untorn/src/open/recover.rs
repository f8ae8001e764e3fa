//! Recovering a file on demand.

use std::path::Path;

use crate::engine::{Recovery, State};
use crate::error::Result;
use crate::file::inspect;
use crate::file::inspect::commits_held;
use crate::options::{Options, Prefer};

/// Brings a file to its last committed state and closes it, by default as a plain file
/// ([`Options::keep_sidecar`]). It leaves a plain file unchanged. Running it again, or after a crash during recovery,
/// gives the same state.
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
    // Of a sidecar that nobody can read nothing is known.
    let drops = options.prefer == Some(Prefer::File);
    let dropped_commits = if drops { commits_held(path).unwrap_or(0) } else { 0 };
    let file = options.open(path)?;
    let recovery = Recovery { dropped_commits, ..file.info().recovery };
    file.close()?;
    Ok(recovery)
}
