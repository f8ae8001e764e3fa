//! Reads a redundancy file that another process has open, without asking that process.
//!
//! It locks and writes nothing, so it may read while the other process writes. Everything in the file has two copies,
//! of which one is written at a time. A part that cannot be read whole is read again, and finally counts as uncovered.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Coverage;
use super::file::{is_of, redundancy_file, sidecar_redundancy_file};
use super::format::Superblock;
use super::table::Tables;
use crate::error::{Error, ProtectionProblem, Result};
use crate::format::sidecar::path as sidecar_path;
use crate::storage::{Access, Medium, MediumFile};

/// How often what is being written is read again, and how long the pause before each time is.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// What the redundancy file of a file says, and of its sidecar; nothing if it has none.
///
/// # Errors
/// [`Error::Corrupt`] if neither superblock is whole, [`Error::Protection`] if it is that of another file; those of
/// reading.
pub(crate) fn recorded<M: Medium>(medium: &M, path: &Path) -> Result<Option<Coverage>> {
    let data = medium.open(path, Access::Read, 0)?;
    let inode = data.identity()?.inode;
    let Some(mut coverage) = read(medium, path, &data, redundancy_file(path, inode))? else { return Ok(None) };
    let (of_sidecar, sidecar) = (sidecar_redundancy_file(path, inode), sidecar_path(path, inode));
    if medium.exists(&of_sidecar)? && medium.exists(&sidecar)? {
        let pages = medium.open_companion(&sidecar, Access::Read, 0, &data)?;
        coverage.sidecar = match read(medium, path, &pages, of_sidecar) {
            // It is of a sidecar that is gone.
            Err(Error::Protection { problem: ProtectionProblem::OtherFile { .. }, .. }) => None,
            read => read?.map(Box::new),
        };
    }
    Ok(Some(coverage))
}

fn read<M: Medium>(medium: &M, path: &Path, of: &M::File, place: PathBuf) -> Result<Option<Coverage>> {
    if !medium.exists(&place)? {
        return Ok(None);
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let side = medium.open_companion(&place, Access::Read, 0, of)?;
        let superblock = match Superblock::read(&side, &place, of) {
            Err(Error::Corrupt { .. }) if tries < ATTEMPTS => {
                std::thread::sleep(PAUSE);
                continue;
            }
            read => read?.0,
        };
        if !is_of(&superblock, of)? {
            return Err(Error::protection(path, ProtectionProblem::OtherFile { redundancy: place }));
        }
        let geometry = superblock.geometry;
        if side.len() < geometry.side_len() {
            // Anybody may have written the number, and memory for so many pages is not to be had.
            let what = "the redundancy file is shorter than its superblock says; protect the file again".to_owned();
            return Err(Error::Corrupt { path: place, offset: Some(side.len()), what });
        }
        let (tables, found) = Tables::read(&side, &place, geometry, superblock.tie(), false)?;
        if !found.lost.is_empty() && tries < ATTEMPTS {
            std::thread::sleep(PAUSE);
            continue;
        }
        return Ok(Some(coverage_of(&superblock, place, &tables.uncovered().iter().collect())));
    }
}

/// The coverage that this superblock records, with these pages uncovered. Fields that only the owner knows are empty.
pub(super) fn coverage_of(superblock: &Superblock, redundancy_file: PathBuf, uncovered: &BTreeSet<u64>) -> Coverage {
    let geometry = superblock.geometry;
    let vulnerable: BTreeSet<u64> = uncovered.iter().map(|page| geometry.stripe_of(*page)).collect();
    Coverage {
        redundancy_file,
        bytes: geometry.side_len(),
        pages: geometry.pages(),
        uncovered: uncovered.len() as u64,
        in_sidecar: 0,
        sidecar: None,
        believed: true,
        unknown: Vec::new(),
        lost: Vec::new(),
        oldest_uncovered: None,
        stripes: geometry.stripes(),
        vulnerable_stripes: vulnerable.len() as u64,
        stripe: geometry.stripe,
        layout: geometry.layout,
        checksum: superblock.checksum,
        period: superblock.period,
        max_uncovered: superblock.max_uncovered,
        pace: None,
        history: superblock.history,
        scrubbing: None,
        found: None,
    }
}
