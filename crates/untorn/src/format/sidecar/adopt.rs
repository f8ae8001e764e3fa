//! Adopting a sidecar that has another name, and renaming one.
//!
//! # Why any order of adoptions brings every file its sidecar
//! Files restored under other inode numbers may have swapped them, so at a file's place may stand the sidecar of a
//! sibling.
//! 1. A file and its sidecar know each other by the UUID alone, in the mark and in the superblock.
//! 2. The sidecar at a file's place that has another UUID is no live file's: the place goes by the inode number, which
//!    is this file's. It is set aside under a name with its UUID.
//! 3. An adoption looks through all names in the directory, also those set aside. So it does not matter in which order
//!    the files come.
//! 4. A sidecar moves with its companions and with the [redundancy file](super::redundancy) of its data file. These go
//!    first, and durably: a crash in between leaves the sidecar under a name where it is found again.
//! 5. An adoption comes before anything else that is done with a file: redundancy and engine find the set in its place.

use std::path::{Path, PathBuf};

use super::attach::{in_use, is_named, locked, open_existing, take_lock};
use super::redundancy::{follow, sync_names};
use super::superblock::Superblock;
use super::{Geometry, aside, barriers, candidates, companions, parent, path as sidecar_path, uuid_text};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::options::Options;
use crate::storage::{Access, Identity, LockKind, MarkState, Medium, MediumFile};

/// Brings the sidecar of a file to its place, with all that goes with it, if the file is opened with adoption. A
/// sibling's sidecar that stands there is set aside. A file without a mark stays as it is.
///
/// # Errors
/// As for [`adopt`]; [`Error::InUse`] while another process has the sidecar at the place.
pub(crate) fn bring<M: Medium>(medium: &M, path: &Path, options: &Options) -> Result<()> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = sidecar_path(path, data.identity()?.inode);
    // Another process may create, settle or remove the sidecar between two of our steps; each time round we look anew.
    for _ in 0..16 {
        let MarkState::Present(mark) = data.mark()? else { return Ok(()) };
        let Some(side) = open_existing(medium, &place, Access::ReadWrite, 0, &data)? else {
            let ours = || options.exclusion.as_ref().map_or(Ok(()), |exclusion| exclusion.check_exclusion());
            return adopt(medium, path, &data, &mark, &place, &ours);
        };
        let is_siblings = |side: &M::File| Superblock::read(side, &place).ok().filter(|found| found.uuid != mark);
        if is_siblings(&side).is_none() {
            // What is wrong with it otherwise, attaching tells.
            return Ok(());
        }
        if !take_lock(&side, LockKind::Exclusive)? {
            return Err(locked(path, &side));
        }
        if !is_named(medium, &place, &side)? {
            continue;
        }
        options.exclusion.as_ref().map_or(Ok(()), |exclusion| exclusion.check_exclusion())?;
        side.sync(barriers::ATTACH_FILES)?;
        side.distrust_cache(barriers::ATTACH_LINES, 0, Geometry::LANES_AT)?;
        let Some(superblock) = is_siblings(&side) else { return Ok(()) };
        set_aside(medium, path, &data, &place, &superblock)?;
    }
    Err(in_use(path))
}

/// Brings the sidecar with this UUID to its `place`, for a pair restored together under new inode numbers.
///
/// A file copied with its mark beside the living original finds the original's sidecar too. That one must stay: with it
/// the original would lose what only the sidecar holds.
///
/// # Errors
/// [`Error::SidecarMissing`] if there is none, or only that of an original; [`Error::InUse`] while another process
/// has it.
fn adopt<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    mark: &[u8; 16],
    place: &Path,
    may: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let identity = data.identity()?;
    let (mut original, mut in_use) = (None, None);
    for candidate in candidates(medium, path)? {
        // What cannot be opened or read as a sidecar is not the one looked for.
        let Ok(side) = medium.open_companion(&candidate, Access::ReadWrite, 0, data) else { continue };
        let is_it = || Superblock::read(&side, &candidate).ok().filter(|found| found.uuid == *mark);
        if is_it().is_none() {
            continue;
        }
        if !take_lock(&side, LockKind::Exclusive)? {
            in_use = Some(format!("another process, which has the sidecar {} open", candidate.display()));
            continue;
        }
        // What was read before the lock was ours may be stale.
        let Some(superblock) = is_it().filter(|_| is_named(medium, &candidate, &side).unwrap_or(false)) else {
            continue;
        };
        original = owner(medium, path, identity, &superblock, &candidate)?;
        if original.is_none() {
            may()?;
            relocate(medium, data, &superblock, [&candidate, place], Some(identity))?;
            return sync_names(medium, &candidate, place);
        }
    }
    match in_use {
        Some(holder) => Err(Error::InUse { path: path.to_owned(), holder }),
        None => {
            let (path, sidecar) = (path.to_owned(), place.to_owned());
            Err(Error::SidecarMissing { path, sidecar, uuid: uuid_text(mark), original, found: None })
        }
    }
}

/// Another file in the directory that carries the sidecar's mark and would find it, or would if it had its own name.
fn owner<M: Medium>(
    medium: &M,
    path: &Path,
    identity: Identity,
    superblock: &Superblock,
    sidecar: &Path,
) -> Result<Option<PathBuf>> {
    for name in medium.list(&parent(path))? {
        let other = parent(path).join(name);
        // What is no file, or may not be opened, says nothing of a mark.
        let Ok(file) = medium.open(&other, Access::Read, 0) else { continue };
        let inode = file.identity()?.inode;
        // The file itself may have several names.
        if inode == identity.inode || file.mark()? != MarkState::Present(superblock.uuid) {
            continue;
        }
        let home = sidecar_path(path, inode);
        if home == sidecar || superblock.identity.inode == inode && !medium.exists(&home)? {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// Renames a sidecar and the files that go with it, for the file that adopts them if there is one.
///
/// These go first, and durably: a crash in between leaves the sidecar under its old name, to be renamed again, with its
/// spill already where it will be looked for. The other way round a record would find its sidecar without its spill.
fn relocate<M: Medium>(
    medium: &M,
    data: &M::File,
    superblock: &Superblock,
    [from, to]: [&Path; 2],
    adopter: Option<Identity>,
) -> Result<()> {
    for (companion, place) in companions(from).into_iter().zip(companions(to)) {
        // Of two sidecars "7" and "7.copy", the spill file "7.spill" belongs to the former.
        let owner = companion.with_extension("");
        if medium.exists(&companion)? && (owner == from || !medium.exists(&owner)?) {
            medium.rename(&companion, &place)?;
            sync_names(medium, &companion, &place)?;
        }
    }
    follow(medium, data, superblock, [from, to], adopter)?;
    medium.rename(from, to)
}

/// Sets a sidecar aside that stands at the place of another file: its own file finds it by its UUID.
pub(super) fn set_aside<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    place: &Path,
    superblock: &Superblock,
) -> Result<()> {
    let to = aside(place, &superblock.uuid);
    let (file, sidecar) = (path.display(), to.display());
    tracing::warn!(path = %file, %sidecar, "renamed a sidecar that does not belong to this file");
    relocate(medium, data, superblock, [place, &to], None)
}

/// The sidecar with the UUID of a file's mark, wherever it stands in the directory; none is locked or changed.
pub(super) fn find<M: Medium>(medium: &M, path: &Path, data: &M::File, mark: MarkState) -> Option<PathBuf> {
    let MarkState::Present(mark) = mark else { return None };
    let is_it = |candidate: &PathBuf| {
        let side = medium.open_companion(candidate, Access::Read, 0, data).ok();
        side.and_then(|side| Superblock::read(&side, candidate).ok()).is_some_and(|found| found.uuid == mark)
    };
    candidates(medium, path).ok()?.find(is_it)
}

/// The refusal of a file and the sidecar at its place, with the sidecar that is the file's own, if that is to be found:
/// then nothing need be given up.
pub(super) fn explained<M: Medium>(medium: &M, path: &Path, data: &M::File, mark: MarkState, error: Error) -> Error {
    match error {
        Error::SidecarMissing { path: at, sidecar, uuid, original: None, found: None } => {
            let found = find(medium, path, data, mark);
            Error::SidecarMissing { path: at, sidecar, uuid, original: None, found }
        }
        Error::SidecarMismatch { path: at, sidecar, what, found: None } => {
            let found = find(medium, path, data, mark).filter(|found| *found != sidecar);
            Error::SidecarMismatch { path: at, sidecar, what, found }
        }
        other => other,
    }
}
