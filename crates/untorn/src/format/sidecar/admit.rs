//! The judgement of a sidecar when its file is opened for writing: the open takes the sidecar, makes it anew, or
//! refuses the file.
//!
//! The judgement reads only. So an adoption can ask for it before anything moves.

use std::path::Path;

use super::attach::{agree, disturbed, unchanged};
use super::retirement::Retirement;
use super::superblock::{Left, Superblock};
use crate::error::{Error, Result};
use crate::options::{EngineKind, Prefer};
use crate::storage::MediumFile;

/// The use that an opening has for a sidecar.
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a Path,
    pub(crate) place: &'a Path,
    pub(crate) engine: EngineKind,
    pub(crate) prefer: Option<Prefer>,
    /// This opening has made it.
    pub(crate) is_new: bool,
}

/// Judges a sidecar by what it says and by its file; only the superblock in memory changes. `None` if nothing in the
/// sidecar counts: then it is made anew.
///
/// # Errors
/// As for [`attach`](super::attach::attach).
pub(crate) fn admit<F: MediumFile>(
    asked: &Asked<'_>,
    superblock: &mut Superblock,
    side: &F,
    data: &F,
) -> Result<Option<Retirement>> {
    let &Asked { path, place, engine, prefer, is_new } = asked;
    superblock.left = how_left(superblock, side, place)?;
    if superblock.left == Left::Settled {
        return Ok(None);
    }
    let agrees = || agree(path, place, superblock, data.identity()?, data.mark()?);
    // Of a file that was closed cleanly the hybrid log keeps nothing back, and reflection nothing if it says so.
    let another = superblock.engine != engine;
    let idle = superblock.engine == EngineKind::HybridLog && matches!(superblock.left, Left::Clean | Left::Fresh)
        || superblock.holds_nothing();
    // A crash came while it was made, or somebody has put it there. No commit was made with it, so what it holds is
    // nobody's: it is made anew and never completed.
    let left_fresh = superblock.left == Left::Fresh && !is_new;
    if another && idle || left_fresh {
        agrees()?;
        if superblock.left == Left::Clean && !superblock.holds_nothing() {
            unchanged(path, superblock.stamp, data.stamp()?)?;
        }
        return Ok(None);
    }
    if another {
        return Err(Error::OtherEngine { path: path.to_owned(), engine: superblock.engine.to_string() });
    }
    let retirement = Retirement::read(side, place, &superblock.uuid)?;
    agrees()?;
    if superblock.left == Left::Clean && !superblock.holds_nothing() && prefer != Some(Prefer::Sidecar) {
        unchanged(path, superblock.stamp, data.stamp()?)?;
    }
    if superblock.left == Left::Disputed {
        if prefer != Some(Prefer::Sidecar) {
            return Err(disturbed(path));
        }
        superblock.left = Left::Open;
    }
    Ok(Some(retirement))
}

/// How a sidecar was left: one that has been used is not fresh, whatever the superblock says that is left of two.
pub(super) fn how_left<F: MediumFile>(superblock: &Superblock, side: &F, place: &Path) -> Result<Left> {
    let is_used = superblock.left == Left::Fresh && Retirement::shows_use(side, place, &superblock.uuid)?;
    Ok(if is_used { Left::Open } else { superblock.left })
}
