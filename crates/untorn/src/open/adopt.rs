//! Opening a file with adoption: the set of sidecar, spill and redundancy files comes to its place, before redundancy
//! or an engine looks for its own.
//!
//! # Invariant
//! A refusal leaves every file and every name as it was. So the opening is *rehearsed* with the sidecar where it
//! stands: what attaching, the engine and redundancy would refuse is asked first, and only then anything moves. After
//! that an open fails only if the system does, or if redundancy cannot mend a sidecar that it was to mend.

use std::path::Path;
use std::sync::Arc;

use super::redundancy::refuse_adopted;
use crate::error::{Error, Result};
use crate::file::inspect::seen_by_engine;
use crate::format::sidecar::admit::{Asked, admit};
use crate::format::sidecar::adopt::{Relocation, bring};
use crate::format::sidecar::attach::Attached;
use crate::format::sidecar::barriers;
use crate::format::sidecar::data::{check_len, open_data};
use crate::format::sidecar::superblock::Left;
use crate::options::{EngineKind, Options, Prefer};
use crate::storage::{Access, Medium, MediumFile};

/// Brings the set to the file, if the file is opened with adoption.
///
/// # Errors
/// Those of [`bring`], and what the open would refuse.
pub(super) fn adopt<M: Medium>(medium: &Arc<M>, path: &Path, options: &Options) -> Result<()> {
    if !options.adopt || options.read_only || options.engine == EngineKind::Passthrough {
        return Ok(());
    }
    bring(&**medium, path, options, |found| rehearse(medium, path, options, found))
}

/// Refuses what opening the file with this sidecar would refuse. Writes nothing.
fn rehearse<M: Medium>(medium: &Arc<M>, path: &Path, options: &Options, found: &Relocation<M::File>) -> Result<()> {
    rehearsed(medium, path, options, found).map_err(|error| match error {
        // The choice takes the sidecar from where it stands.
        Error::ModifiedExternally { path, what } => {
            let what = format!("{what}; its sidecar is still {}, so choose with `--adopt` too", found.from.display());
            Error::ModifiedExternally { path, what }
        }
        other => other,
    })
}

fn rehearsed<M: Medium>(medium: &Arc<M>, path: &Path, options: &Options, found: &Relocation<M::File>) -> Result<()> {
    let data = open_data(&**medium, path, options)?;
    refuse_adopted(&**medium, path, &data, options, found)?;
    if options.prefer == Some(Prefer::File) {
        // Whatever the sidecar is like, it is dropped.
        return Ok(());
    }
    let mut superblock = found.superblock.clone();
    superblock.identity = data.identity()?;
    let recorded = superblock.engine;
    let engine = if options.engine == EngineKind::Auto { recorded } else { options.engine };
    let asked = Asked { path, place: &found.from, engine, prefer: options.prefer, is_new: false };
    let Some(retirement) = admit(&asked, &mut superblock, &found.side, &data)? else { return Ok(()) };
    if found.is_mendable(&**medium)? {
        // Damage is not a refusal yet: redundancy mends the sidecar at its place.
        return Ok(());
    }
    if superblock.left == Left::Open {
        // Of the data file too, but that would look like a store to it, which only an open that goes on may make.
        found.side.distrust_cache(barriers::ATTACH_CACHE, 0, found.side.len())?;
    }
    let side = medium.open_companion(&found.from, Access::Read, 0, &data)?;
    let attached = Attached { side, path: found.from.clone(), superblock, retirement };
    let options = Options { read_only: true, progress: None, ..options.clone() };
    let has = data.len();
    let seen = seen_by_engine(Arc::clone(medium), path, (data, attached), &options)?;
    check_len(path, has, seen.len, options.prefer)
}
