//! Opening a file in a build without the feature `redundancy`: it refuses a file that has redundancy, because its
//! stores would make checksums and parity wrong.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::adopt::adopt;
use super::bare_engine_on;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::format::sidecar::adopt::Relocation;
use crate::format::sidecar::redundancy::beside;
use crate::format::sidecar::redundancy_file;
use crate::options::Options;
use crate::storage::{Access, Medium, MediumFile};

/// Only handles with redundancy wait after they record the file's time.
pub(super) const TICK: Duration = Duration::ZERO;

/// The engine of a file that has no redundancy.
pub(super) fn engine_on<M: Medium>(
    medium: Arc<M>,
    path: &Path,
    options: &Options,
    _: Duration,
) -> Result<Box<dyn Engine>> {
    if options.read_only {
        return bare_engine_on(medium, path, options, false);
    }
    adopt(&medium, path, options)?;
    refuse_redundancy(&*medium, path)?;
    let engine = bare_engine_on(Arc::clone(&medium), path, options, false)?;
    // Another process may have protected the file before the engine had it.
    refuse_redundancy(&*medium, path)?;
    Ok(engine)
}

fn refuse_redundancy<M: Medium>(medium: &M, path: &Path) -> Result<()> {
    let redundancy = redundancy_file(path, medium.open(path, Access::Read, 0)?.identity()?.inode);
    if medium.exists(&redundancy)? { Err(unkept(path, &redundancy)) } else { Ok(()) }
}

/// Refuses redundancy that comes with an adopted sidecar. Changes nothing.
pub(super) fn refuse_adopted<M: Medium>(
    _: &M,
    path: &Path,
    _: &M::File,
    _: &Options,
    found: &Relocation<M::File>,
) -> Result<()> {
    if found.redundancy.is_some() { Err(unkept(path, &beside(&found.from))) } else { Ok(()) }
}

fn unkept(path: &Path, redundancy: &Path) -> Error {
    let what = format!(
        "the file has redundancy, in {}, and this build of untorn cannot keep it because it lacks the feature \
         `redundancy`; use a build with the feature, open the file read-only, or give its redundancy up (`untorn \
         unprotect`). If it belonged to a removed file with the same inode number, a build with the feature moves \
         it aside",
        redundancy.display()
    );
    Error::Invalid { path: path.to_owned(), what }
}
