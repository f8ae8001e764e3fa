//! Figures of a file, whichever process has it open: the call behind `untorn stats`.

use std::path::{Path, PathBuf};

use crate::engine::commits::consumer::ConsumerInfo;
use crate::engine::figures::{Figures, allocated};
use crate::engine::snapshot::remote::client;
use crate::engine::{EngineKind, State};
use crate::error::{Error, Result};
use crate::file::inspect;
use crate::open;
use crate::options::Options;

/// What [`stats`] finds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The data file.
    pub path: PathBuf,
    /// Its state.
    pub state: State,
    /// The process that has it open.
    pub holder: Option<String>,
    /// The engine that last opened it; `None` for a plain file.
    pub engine: Option<EngineKind>,
    /// Bytes that the data file takes on the disk.
    pub allocated_bytes: u64,
    /// The consumers of its commit log, with their lag.
    pub consumers: Vec<ConsumerInfo>,
    /// The figures, if they are known.
    pub figures: Option<Figures>,
    /// Why they are not.
    pub unknown: Option<String>,
}

/// Tells the figures of a file. If another process has it open for writing, that process is asked, as
/// [`Snapshot::open`](crate::Snapshot::open) asks it. Otherwise the file is opened read-only for a moment.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("ledger");
/// let file = untorn::AtomicFile::create(&path, 1 << 20)?;
/// file.write_at(&[7; 5000], 0)?;
/// file.sync()?;
/// let stats = untorn::stats(&path)?;
/// assert_eq!(stats.figures.unwrap().len, 1 << 20);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of [`inspect`](crate::inspect()). A process that gives no figures is no error.
pub fn stats(path: impl AsRef<Path>) -> Result<Stats> {
    let report = inspect(path)?;
    let path = report.path;
    let (figures, unknown) = match report.state {
        State::InUse => match client::report(&path) {
            Ok(told) if told.figures.is_some() => (told.figures, None),
            Ok(_) => (None, Some("the process that has it open does not tell them".to_owned())),
            Err(why) => (None, Some(why)),
        },
        State::Refused | State::Corrupt => (None, Some("the file needs a decision; see `untorn info`".to_owned())),
        State::Clean | State::NeedsRecovery => match open::open(&path, &Options::new().read_only(true)) {
            Ok(shared) => (Some(Figures::of(&*shared.engine)), None),
            // A writer came in between.
            Err(error @ Error::InUse { .. }) => (None, Some(error.to_string())),
            Err(error) => return Err(error),
        },
    };
    let allocated_bytes = allocated(&path);
    let consumers = report.commit_log.map(|log| log.consumers).unwrap_or_default();
    Ok(Stats {
        state: report.state,
        holder: report.holder,
        engine: report.engine,
        allocated_bytes,
        consumers,
        figures,
        unknown,
        path,
    })
}
