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
//! 6. A refused adoption changes nothing: every question is asked before the first file gets another name.

use std::path::{Path, PathBuf};

use super::attach::{in_use, is_named, locked, open_existing, take_lock};
use super::redundancy::{follow, follower, sync_names};
use super::superblock::Superblock;
use super::{Geometry, aside, barriers, candidates, companions, parent, path as sidecar_path, uuid_text};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::options::Options;
use crate::storage::{Access, Identity, LockKind, MarkState, Medium, MediumFile};

/// A sidecar that is about to get another name, with what goes with it. It is locked, and nothing has moved.
pub(crate) struct Relocation<F> {
    pub(crate) side: F,
    pub(crate) superblock: Superblock,
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    /// The file that adopts it, if there is one.
    adopter: Option<Identity>,
    /// The redundancy file that goes with it, locked.
    pub(crate) redundancy: Option<F>,
}

/// Brings the sidecar of a file to its place, with all that goes with it, if the file is opened with adoption. A
/// sibling's sidecar that stands there is set aside. A file without a mark stays as it is.
///
/// `accept` is asked before the first change whether the file can be opened with that sidecar.
///
/// # Errors
/// As for [`adoptee`]; [`Error::InUse`] while another process has the sidecar at the place; those of `accept`. Nothing
/// has changed then.
pub(crate) fn bring<M: Medium>(
    medium: &M,
    path: &Path,
    options: &Options,
    accept: impl Fn(&Relocation<M::File>) -> Result<()>,
) -> Result<()> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = sidecar_path(path, data.identity()?.inode);
    // Another process may create, settle or remove the sidecar between two of our steps; each time round we look anew.
    for _ in 0..16 {
        let MarkState::Present(mark) = data.mark()? else { return Ok(()) };
        let siblings = match open_existing(medium, &place, Access::ReadWrite, 0, &data)? {
            None => None,
            Some(side) => {
                let is_siblings =
                    |side: &M::File| Superblock::read(side, &place).ok().filter(|found| found.uuid != mark);
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
                side.sync(barriers::ATTACH_FILES)?;
                side.distrust_cache(barriers::ATTACH_LINES, 0, Geometry::LANES_AT)?;
                let Some(superblock) = is_siblings(&side) else { return Ok(()) };
                Some(Relocation::aside(medium, &data, &place, side, superblock)?)
            }
        };
        let own = adoptee(medium, path, &data, &mark, &place)?;
        accept(&own)?;
        options.exclusion.as_ref().map_or(Ok(()), |exclusion| exclusion.check_exclusion())?;
        medium.bring_in_line(&own.side, &data)?;
        if let Some(siblings) = siblings {
            siblings.set_aside(medium, path, &data)?;
        }
        own.go(medium, &data)?;
        return sync_names(medium, &own.from, &place);
    }
    Err(in_use(path))
}

/// Finds the sidecar with this UUID, to be brought to its `place`, for a pair restored together under new inode
/// numbers.
///
/// A file copied with its mark beside the living original finds the original's sidecar too. That one must stay: with it
/// the original would lose what only the sidecar holds.
///
/// # Errors
/// [`Error::SidecarMissing`] if there is none, or only that of an original; [`Error::InUse`] while another process
/// has it.
fn adoptee<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    mark: &[u8; 16],
    place: &Path,
) -> Result<Relocation<M::File>> {
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
        // What was read before the lock was ours, or before a flush that failed, may be stale.
        side.sync(barriers::ATTACH_FILES)?;
        side.distrust_cache(barriers::ATTACH_LINES, 0, Geometry::LANES_AT)?;
        let Some(superblock) = is_it().filter(|_| is_named(medium, &candidate, &side).unwrap_or(false)) else {
            continue;
        };
        original = owner(medium, path, identity, &superblock, &candidate)?;
        if original.is_none() {
            return Relocation::prepared(medium, data, (side, superblock), [&candidate, place], Some(identity));
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

impl<F: MediumFile> Relocation<F> {
    /// # Errors
    /// As for [`follower`].
    fn prepared<M: Medium<File = F>>(
        medium: &M,
        data: &F,
        (side, superblock): (F, Superblock),
        [from, to]: [&Path; 2],
        adopter: Option<Identity>,
    ) -> Result<Self> {
        let redundancy = follower(medium, data, &superblock, [from, to], adopter)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        Ok(Relocation { side, superblock, from, to, adopter, redundancy })
    }

    /// For a sidecar that stands at the place of another file: its own file finds it by its UUID.
    ///
    /// # Errors
    /// As for [`follower`].
    pub(super) fn aside<M: Medium<File = F>>(
        medium: &M,
        data: &F,
        place: &Path,
        side: F,
        superblock: Superblock,
    ) -> Result<Self> {
        let to = aside(place, &superblock.uuid);
        Self::prepared(medium, data, (side, superblock), [place, &to], None)
    }

    /// Whether the sidecar has redundancy, which may mend it.
    pub(crate) fn is_mendable<M: Medium<File = F>>(&self, medium: &M) -> Result<bool> {
        // A crash in the middle of an earlier adoption leaves it at the place where the sidecar is to go.
        let [_, here] = companions(&self.from);
        let [_, there] = companions(&self.to);
        Ok(medium.exists(&here)? || medium.exists(&there)?)
    }

    /// Renames a sidecar that stands at the place of the file at `path`.
    pub(super) fn set_aside<M: Medium<File = F>>(&self, medium: &M, path: &Path, data: &F) -> Result<()> {
        let (file, sidecar) = (path.display(), self.to.display());
        tracing::warn!(path = %file, %sidecar, "renamed a sidecar that does not belong to this file");
        self.go(medium, data)
    }

    /// Renames the sidecar and the files that go with it.
    ///
    /// These go first, and durably: a crash in between leaves the sidecar under its old name, to be renamed again, with
    /// its spill already where it will be looked for. The other way round a record would find its sidecar without its
    /// spill.
    fn go<M: Medium<File = F>>(&self, medium: &M, data: &F) -> Result<()> {
        let (from, to) = (&*self.from, &*self.to);
        for (companion, place) in companions(from).into_iter().zip(companions(to)) {
            // Of two sidecars "7" and "7.copy", the spill file "7.spill" belongs to the former.
            let owner = companion.with_extension("");
            if medium.exists(&companion)? && (owner == from || !medium.exists(&owner)?) {
                medium.rename(&companion, &place)?;
                sync_names(medium, &companion, &place)?;
            }
        }
        if let Some(redundancy) = &self.redundancy {
            follow(medium, data, redundancy, &self.superblock, [from, to], self.adopter)?;
        }
        medium.rename(from, to)
    }
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
