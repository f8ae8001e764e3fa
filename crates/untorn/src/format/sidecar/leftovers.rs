//! Files in the directory of sidecars that belong to no file beside it.
//!
//! # What is never taken for one
//! 1. What belongs to a file that exists: its inode number is in the name, or its mark has the UUID of the superblock.
//! 2. What somebody has locked.
//! 3. A lock file with which processes meet, and any file that is not recognized.
//!
//! A removal takes the lock first, and then looks again at the files of the directory. So a file that comes back
//! meanwhile keeps its sidecar. The sidecar goes first, then what goes with it: a file that comes back after a kill is
//! refused, not served without its spill file. What a kill leaves is found as remains.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::attach::is_named;
use super::redundancy::{beside as redundancy_beside, goes_with};
use super::superblock::Superblock;
use super::{companions, is_meeting_place};
use crate::error::Result;
use crate::format::dual_copy::DualCopy;
use crate::storage::{Access, LockKind, MarkState, Medium, MediumFile};

/// What a file in the directory of sidecars is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftoverKind {
    /// A sidecar, with its spill file, its redundancy and that of its file.
    Sidecar,
    /// A sidecar, with the same, or a redundancy file alone, that untorn set aside, because another file got the inode
    /// number.
    Orphan,
    /// The redundancy of a file that has no sidecar.
    Redundancy,
    /// What a crash left of a file in creation, or of a sidecar that is gone.
    Remains,
}

impl LeftoverKind {
    /// The name in the tool and the JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            LeftoverKind::Sidecar => "sidecar",
            LeftoverKind::Orphan => "orphan",
            LeftoverKind::Redundancy => "redundancy",
            LeftoverKind::Remains => "remains",
        }
    }
}

/// One of them, as found.
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) kind: LeftoverKind,
    /// The path of the file that it was made for, if it says so.
    pub(crate) made_for: Option<PathBuf>,
    /// All files that go with it, itself first.
    pub(crate) files: Vec<PathBuf>,
}

/// The files beside a directory of sidecars.
struct Living {
    inodes: BTreeSet<u64>,
    marks: BTreeSet<[u8; 16]>,
}

impl Living {
    fn of<M: Medium>(medium: &M, dir: &Path) -> Result<Self> {
        let mut living = Living { inodes: BTreeSet::new(), marks: BTreeSet::new() };
        for name in medium.list(dir)? {
            // What is no file, or may not be opened, has at least its number.
            let path = dir.join(name);
            if let Ok(found) = std::fs::symlink_metadata(&path) {
                living.inodes.insert(std::os::unix::fs::MetadataExt::ino(&found));
            }
            let Ok(file) = medium.open(&path, Access::Read, 0) else { continue };
            if let Ok(MarkState::Present(mark)) = file.mark() {
                living.marks.insert(mark);
            }
        }
        Ok(living)
    }
}

fn kind_of(name: &str) -> LeftoverKind {
    if name.ends_with(".orphan") {
        LeftoverKind::Orphan
    } else if name.ends_with(".redundancy") {
        LeftoverKind::Redundancy
    } else if name.ends_with(".new")
        || name.ends_with(".spill")
        || name.ends_with(".sidecar-redundancy")
        || name.contains(".commits")
    {
        LeftoverKind::Remains
    } else {
        LeftoverKind::Sidecar
    }
}

/// Whether a name has the UUID of what was set aside, with what goes with it. It does not go by its number any more.
fn is_aside(name: &str) -> bool {
    let is_uuid = |part: &str| part.len() == 36 && part.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    name.ends_with(".orphan") || name.split('.').any(is_uuid)
}

/// The redundancy file that goes with a sidecar.
fn redundancy_of<M: Medium>(medium: &M, sidecar: &Path, superblock: &Superblock) -> Option<PathBuf> {
    let place = redundancy_beside(sidecar);
    if !medium.exists(&place).unwrap_or(false) {
        return None;
    }
    let file = medium.open(&place, Access::Read, 0);
    goes_with(file, &place, superblock, None).map(|_| place)
}

/// Whether a redundancy file goes with a sidecar beside it, and stays or goes with that.
fn has_sidecar<M: Medium>(medium: &M, redundancy: &Path) -> bool {
    ["", "orphan"].map(|kind| redundancy.with_extension(kind)).iter().any(|sidecar| {
        let superblock = medium.open(sidecar, Access::Read, 0).and_then(|side| Superblock::read(&side, sidecar));
        superblock.is_ok_and(|superblock| redundancy_of(medium, sidecar, &superblock).is_some())
    })
}

/// What a name in `dir` is, if no file owns it.
fn judge<M: Medium>(medium: &M, beside: &Path, dir: &Path, name: &OsStr, living: &Living) -> Option<Found> {
    let (path, name) = (dir.join(name), name.to_str()?);
    let kind = kind_of(name);
    let number: Option<u64> = name.split('.').next().and_then(|number| number.parse().ok());
    if !is_aside(name) && number.is_some_and(|number| living.inodes.contains(&number)) {
        return None;
    }
    let side = medium.open(&path, Access::Read, 0).ok()?;
    let superblock = Superblock::read(&side, &path).ok();
    if superblock.as_ref().is_some_and(|superblock| living.marks.contains(&superblock.uuid)) {
        return None;
    }
    // A name without a number may be anything, unless it is a sidecar inside.
    if number.is_none() && superblock.is_none() {
        return None;
    }
    if kind == LeftoverKind::Remains {
        let owners = [path.with_extension(""), path.with_extension("orphan")];
        if owners.iter().any(|owner| medium.exists(owner).unwrap_or(true)) {
            // It goes, or stays, with its owner.
            return None;
        }
    }
    if kind == LeftoverKind::Redundancy && has_sidecar(medium, &path) {
        return None;
    }
    let redundancy = superblock.as_ref().and_then(|superblock| redundancy_of(medium, &path, superblock));
    // Of what a kill left of a set each file is found by itself.
    let is_sidecar = matches!(kind, LeftoverKind::Sidecar | LeftoverKind::Orphan);
    let made_for = superblock.and_then(|superblock| superblock.name.beside(&beside.join("file")));
    let mut files = vec![path.clone()];
    if is_sidecar {
        files.extend(companions(&path).into_iter().filter(|companion| medium.exists(companion).unwrap_or(false)));
    }
    files.extend(redundancy);
    if name.ends_with(".commits") {
        // The segments of a commit log, which are nothing without its control.
        let is_segment = |other: &OsStr| other.as_encoded_bytes().starts_with(format!("{name}.").as_bytes());
        files.extend(medium.list(dir).ok()?.into_iter().filter(|other| is_segment(other)).map(|other| dir.join(other)));
    }
    Some(Found { path, kind, made_for, files })
}

/// All that are in `dir`, which is beside the files in `beside`.
///
/// # Errors
/// Those of listing the two directories.
pub(crate) fn list<M: Medium>(medium: &M, beside: &Path, dir: &Path) -> Result<Vec<Found>> {
    if !medium.exists(dir)? {
        return Ok(Vec::new());
    }
    let living = Living::of(medium, beside)?;
    let mut names = medium.list(dir)?;
    names.retain(|name| !is_meeting_place(name));
    names.sort();
    let is_free = |found: &Found| {
        let locked = medium.open(&found.path, Access::Read, 0).and_then(|side| side.try_lock(LockKind::Exclusive));
        locked.unwrap_or(false)
    };
    let found = names.iter().filter_map(|name| judge(medium, beside, dir, name, &living));
    Ok(found.filter(is_free).collect())
}

/// Removes one of them, with what goes with it, unless it is owned or locked by now. Whether it is gone.
///
/// # Errors
/// Those of locking and removing.
pub(crate) fn remove<M: Medium>(medium: &M, beside: &Path, dir: &Path, found: &Found) -> Result<bool> {
    let side = medium.open(&found.path, Access::Read, 0)?;
    if !side.try_lock(LockKind::Exclusive)? || !is_named(medium, &found.path, &side)? {
        return Ok(false);
    }
    let living = Living::of(medium, beside)?;
    let Some(name) = found.path.file_name() else { return Ok(false) };
    let Some(found) = judge(medium, beside, dir, name, &living) else { return Ok(false) };
    for file in &found.files {
        medium.unlink(file)?;
    }
    medium.remove_dir_if_empty(dir)?;
    Ok(true)
}
