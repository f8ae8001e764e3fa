//! Creating new files again that a crash took together with their names. A replay creates them from the log, which has
//! all that was ever in them.
//!
//! The new file has a temporary name in the same directory until it is whole, durably, and the log has accepted it in
//! place of the lost file. So an interrupted replay can be repeated, and a program that looks for the file finds none
//! or all of it.
//!
//! Another file may have the name at that time:
//!
//! - A file that had the name before and was removed just before the crash is removed again: the log let it leave, or
//!   it is older than the new file.
//! - A file that the log knows nothing of is not removed; it gets another name in the same directory.
//! - A younger file belongs to another program. It stays, and the log is kept.
//!
//! So of several files that had one name in turn, each let leave before the next was created, only the last ever comes
//! back.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::TableLine;
use super::rename::is_named;
use super::replay::{ReplayOutcome, is_same};
use crate::error::Result;
use crate::format::record::ChecksumSeed;
use crate::storage::{CreateAttrs, Identity};
use crate::write_cache::backing::{BackingDir, BackingFile};

/// What has the name of a file that is to be made again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InTheWay<'a> {
    Nothing,
    /// A file that was let leave before this one had the name, or that this one was put over.
    Earlier,
    /// One that had another name by then: its rename was undone by the crash, and it may be that no entry says that
    /// it was done.
    Renamed(&'a TableLine),
    /// One that was there before this one, or at the same time, of which the log knows nothing.
    Older,
    SomethingElse,
}

/// What a replay says of a directory that it does not find.
pub(super) const NO_DIRECTORY: &str = "its directory is missing or is a different one; check that its file system is \
                                       mounted";
/// What it says of a name that somebody else has.
pub(super) const ANOTHER: &str = "another file has its name now";

/// The name by which a file is made, which no other log gives.
pub(super) fn temporary(checksum_seed: ChecksumSeed, line: &TableLine) -> PathBuf {
    line.path.with_file_name(format!(".untorn-replay-{:016x}-{}", checksum_seed.at(0), line.uid))
}

/// Whether a file that was let leave has no right to its name any more: another one had it later.
pub(super) fn is_superseded<'a>(line: &TableLine, mut lines: impl Iterator<Item = &'a TableLine>) -> bool {
    line.leaving && lines.any(|other| other.uid != line.uid && had_later(other, &line.path, line.rank()))
}

/// Whether a file had a name that somebody had when so much was counted, after that one.
pub(super) fn had_later(line: &TableLine, path: &Path, rank: u64) -> bool {
    let before = line.before.as_ref();
    let had = before.is_some_and(|before| before.path == path && before.named.max(line.uid) > rank);
    had || line.path == path && line.rank() > rank
}

/// Whether a file was made way for, or is to, when another one got this name.
fn made_way(identity: &Identity, line: &TableLine, other: &TableLine) -> bool {
    let left =
        other.uid != line.uid && other.leaving && other.rank() < line.rank() && is_same(&other.identity, identity);
    let over = other.before.as_ref().and_then(|before| before.over);
    left || other.path == line.path && other.rank() <= line.rank() && over.is_some_and(|over| is_named(&over, identity))
}

/// Whether a file was renamed before another one got the name that it had.
fn was_renamed(identity: &Identity, line: &TableLine, other: &TableLine) -> bool {
    let had_it = other.before.as_ref().is_some_and(|before| before.path == line.path);
    had_it && other.path != line.path && other.rank() < line.rank() && is_same(&other.identity, identity)
}

/// What has the file's name, which is not this file.
pub(super) fn in_the_way<'a>(
    place: &dyn BackingDir,
    line: &TableLine,
    lines: &[&'a TableLine],
) -> Result<InTheWay<'a>> {
    if !place.exists(&line.path)? {
        return Ok(InTheWay::Nothing);
    }
    let Some(found) = place.look(&line.path)? else { return Ok(InTheWay::SomethingElse) };
    let identity = found.identity()?;
    Ok(if lines.iter().any(|other| made_way(&identity, line, other)) {
        InTheWay::Earlier
    } else if let Some(other) = lines.iter().find(|other| was_renamed(&identity, line, other)) {
        InTheWay::Renamed(other)
    } else if identity.birth != 0 && identity.birth <= line.identity.birth {
        // The clock of births is a coarse one; what came after the crash is younger by much more.
        InTheWay::Older
    } else {
        InTheWay::SomethingElse
    })
}

/// Makes an empty file in the place of one that is gone, by its temporary name.
pub(super) fn make(
    place: &dyn BackingDir,
    line: &TableLine,
    like: &CreateAttrs,
    temporary: &Path,
) -> Result<Arc<dyn BackingFile>> {
    if place.exists(temporary)? {
        // A replay was cut short before the log knew of it.
        place.remove(temporary)?;
    }
    tracing::debug!(path = %line.path.display(), "created the file again");
    place.make(temporary, like)
}

/// Whether the directory of a line is the one that it was.
///
/// # Errors
/// Those of looking at it.
pub(super) fn has_directory(place: &dyn BackingDir, line: &TableLine) -> Result<bool> {
    let Some(dir) = line.path.parent() else { return Ok(false) };
    Ok(place.directory(dir)?.is_some_and(|found| found.inode == line.parents[0]))
}

/// What became of those that had the name of a file.
#[derive(Debug, Default)]
pub(super) struct Displaced {
    /// Where one is of which the log knows nothing.
    pub(super) beside: Option<PathBuf>,
    /// Numbers of those that were renamed once more.
    pub(super) renamed: Vec<u64>,
}

/// Gives a file its name that has another one yet: that by which it was made again, or the one from before a rename.
/// What has the name is removed if it was to be, or gets the one that it had by then, or else one beside.
pub(super) fn put_in_place(
    place: &dyn BackingDir,
    line: &TableLine,
    so_far: &Path,
    lines: &[&TableLine],
) -> Result<std::result::Result<Displaced, ReplayOutcome>> {
    let mut displaced = Displaced::default();
    let mut row = vec![(line, so_far)];
    while let Some(&(last, _)) = row.last() {
        match in_the_way(place, last, lines)? {
            InTheWay::Nothing => break,
            // It had its number before that one: so the row ends.
            InTheWay::Renamed(other) => row.push((other, &last.path)),
            InTheWay::Earlier => {
                place.remove(&last.path)?;
                break;
            }
            InTheWay::Older => {
                let name = free_beside(place, &last.path)?;
                place.rename(&last.path, &name)?;
                displaced.beside = Some(name);
                break;
            }
            InTheWay::SomethingElse => return Ok(Err(ReplayOutcome::Missing(ANOTHER.to_owned()))),
        }
    }
    for (line, so_far) in row.iter().rev() {
        place.rename(so_far, &line.path)?;
    }
    displaced.renamed = row.iter().skip(1).map(|(line, _)| line.uid).collect();
    Ok(Ok(displaced))
}

/// A free name for what has one that another file is to have.
fn free_beside(place: &dyn BackingDir, path: &Path) -> Result<PathBuf> {
    let mut number = 1;
    loop {
        let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".before-replay-{number}"));
        let beside = path.with_file_name(name);
        if !place.exists(&beside)? {
            return Ok(beside);
        }
        number += 1;
    }
}
