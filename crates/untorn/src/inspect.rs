//! Looking at a file without changing it, and recovering it on demand.

use std::path::{Path, PathBuf};

use crate::engine::{EngineKind, Recovery};
use crate::error::Result;
use crate::options::{Durability, Layout, Options};

/// In what state a file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Closed cleanly, or a plain file without a sidecar.
    Clean,
    /// Open in another process right now.
    InUse,
    /// Not closed cleanly; opening it for writing, or [`recover`], brings it to its last commit.
    NeedsRecovery,
    /// The file and its sidecar contradict each other or themselves; the findings say how.
    Corrupt,
}

/// A sidecar as [`inspect`] found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SidecarReport {
    /// Where it is.
    pub path: PathBuf,
    /// Space it takes, in bytes.
    pub bytes: u64,
    /// Its UUID, as text.
    pub uuid: String,
    /// Layout of its meta pages.
    pub layout: Layout,
    /// The durability the file was created with.
    pub durability: Durability,
}

/// What [`inspect`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The data file.
    pub path: PathBuf,
    /// The engine it was last opened with; `None` for a plain file.
    pub engine: Option<EngineKind>,
    /// Length at the last commit, in bytes.
    pub len: u64,
    /// Number of the last commit, 0 for a plain file.
    pub commit: u64,
    /// Its state.
    pub state: State,
    /// Its sidecar.
    pub sidecar: Option<SidecarReport>,
    /// What is wrong or worth knowing, in sentences.
    pub findings: Vec<String>,
}

/// Looks at a file, its mark and its sidecar. Changes nothing.
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
    crate::engine::reflection::inspect(path.as_ref())
}

/// Brings a file to its last committed state and closes it cleanly. A plain or clean file is left as it is. Running it
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
