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
//! 4. A sidecar moves with its companions, which go first, and durably: a crash in between leaves the sidecar under a
//!    name where it is found again.

use std::path::{Path, PathBuf};

use super::attach::{is_named, take_lock};
use super::superblock::Superblock;
use super::{aside, barriers, candidates, companions, parent, path as sidecar_path, uuid_text};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::storage::{Access, Identity, LockKind, MarkState, Medium, MediumFile};

/// Brings the sidecar with this UUID to its `place`, for a pair restored together under new inode numbers.
///
/// A file copied with its mark beside the living original finds the original's sidecar too. That one must stay: with it
/// the original would lose what only the sidecar holds.
///
/// # Errors
/// [`Error::SidecarMissing`] if there is none, or only that of an original; [`Error::InUse`] while another process
/// has it.
pub(super) fn adopt<M: Medium>(medium: &M, path: &Path, data: &M::File, mark: &[u8; 16], place: &Path) -> Result<()> {
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
            relocate(medium, &parent(place), &candidate, place)?;
            medium.sync_dir(barriers::CREATE_NAME, &parent(place))?;
            if parent(&candidate) != parent(place) {
                // A rename from one directory to another is durable when both are.
                medium.sync_dir(barriers::CREATE_NAME, &parent(&candidate))?;
            }
            return Ok(());
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

/// Renames a sidecar and the files that go with it.
///
/// These go first, and durably: a crash in between leaves the sidecar under its old name, to be renamed again, with its
/// spill already where it will be looked for. The other way round a record would find its sidecar without its spill.
pub(super) fn relocate<M: Medium>(medium: &M, dir: &Path, from: &Path, to: &Path) -> Result<()> {
    for (companion, place) in companions(from).into_iter().zip(companions(to)) {
        // Of two sidecars "7" and "7.copy", the spill file "7.spill" belongs to the former.
        let owner = companion.with_extension("");
        if medium.exists(&companion)? && (owner == from || !medium.exists(&owner)?) {
            medium.rename(&companion, &place)?;
            medium.sync_dir(barriers::CREATE_NAME, dir)?;
        }
    }
    medium.rename(from, to)
}

/// Sets a sidecar aside that stands at the place of another file: its own file finds it by its UUID.
pub(super) fn set_aside<M: Medium>(medium: &M, path: &Path, place: &Path, superblock: &Superblock) -> Result<()> {
    let to = aside(place, &superblock.uuid);
    let (file, sidecar) = (path.display(), to.display());
    tracing::warn!(path = %file, %sidecar, "renamed a sidecar that does not belong to this file");
    relocate(medium, &parent(place), place, &to)
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
