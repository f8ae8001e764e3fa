//! Checks of a file of an engine that has redundancy: after a crash, after a pass, and when something is damaged.

use std::ops::Range;
use std::path::PathBuf;

use untorn::AtomicFile;
use untorn::redundancy::{Damage, ProtectOptions};
use untorn::report::ProtectionProblem;

use super::super::companion::{self, PAGE, PATH, Superblock};
use super::super::finding::{Found, accused, guarded, tried, wrong};
use super::config::Config;
use super::life::Expected;
use crate::medium::SimMedium;
use crate::rng::Rng;

/// Opens the file with its engine, which must find a state that it may be in. `keeps` is whether closing it keeps the
/// sidecar.
pub(super) fn open(config: &Config, medium: &SimMedium, expected: &Expected, keeps: bool) -> Found<AtomicFile> {
    let options = config.options().keep_sidecar(keeps).adopt(expected.adopts.is_some());
    let file = tried("opening", || options.open_on(medium.clone(), PATH))?;
    if expected.adopts.is_some() && expected.adopts != uuid(medium)? {
        return wrong("an adoption did not bring the redundancy file");
    }
    let held = read(&file)?;
    if expected.states.contains(&held) { Ok(file) } else { wrong("the file's bytes match no committed state") }
}

/// The UUID of the file's redundancy file; `None` if it has none.
pub(super) fn uuid(medium: &SimMedium) -> Found<Option<[u8; 16]>> {
    let place = tried("looking for the redundancy file", || companion::path(medium))?;
    let side = place.and_then(|place| medium.peek(place));
    Ok(side.and_then(|side| Superblock::of(&side)).map(|superblock| superblock.uuid))
}

pub(super) fn read(file: &AtomicFile) -> Found<Vec<u8>> {
    let mut held = vec![0; file.len() as usize];
    tried("reading", || file.read_at(&mut held, 0))?;
    Ok(held)
}

/// Judges what redundancy says of a file that a crash left, and of which nothing was damaged.
pub(super) fn judge(medium: &SimMedium, expected: &Expected) -> Found<()> {
    if expected.adopts.is_some() {
        // Before the adoption there is nothing in its place.
        return Ok(());
    }
    let looked = guarded("looking", || ProtectOptions::new().look_on(medium.clone(), PATH))?;
    let looked = match looked {
        Ok(looked) => looked,
        Err(untorn::Error::Protection { problem: ProtectionProblem::NotProtected, .. }) if expected.unprotected => {
            return Ok(());
        }
        // It has another length than its companion, or none at all.
        Err(untorn::Error::Protection {
            problem: ProtectionProblem::OtherLength { .. } | ProtectionProblem::Empty,
            ..
        }) if (expected.resizing || expected.unprotected) && is_of_another_length(medium) => return Ok(()),
        Err(error) => return wrong(format!("opening without changes failed: {error}")),
    };
    let report = tried("scrubbing", || looked.scrub())?;
    // A table or a superblock may be one that was being written.
    let is_written = |damage: &&Damage| {
        !matches!(
            damage,
            Damage::Page(_)
                | Damage::Unknown(_)
                | Damage::Parity { .. }
                | Damage::SidecarPage(_)
                | Damage::SidecarUnknown(_)
                | Damage::SidecarParity { .. }
        )
    };
    report.damage.iter().find(|damage| !is_written(damage)).map_or(Ok(()), accused)
}

/// Makes a pass over the file, which has no other user, and checks that all of it is covered then.
/// Whether the file is empty, so that it has no companion, or its companion is for another length.
fn is_of_another_length(medium: &SimMedium) -> bool {
    let len = medium.peek(PATH).map_or(0, |bytes| bytes.len() as u64);
    let side = companion::path(medium).ok().flatten().and_then(|side| medium.peek(side));
    len == 0 || side.and_then(|side| Superblock::of(&side)).is_some_and(|superblock| superblock.len != len)
}

pub(super) fn cover(file: &AtomicFile) -> Found<()> {
    tried("covering", || file.sync_redundancy())?;
    if file.is_empty() {
        return Ok(());
    }
    let is_whole = |coverage: &untorn::redundancy::Coverage| {
        coverage.uncovered == 0 && coverage.lost.is_empty() && coverage.unknown.is_empty()
    };
    match file.coverage() {
        Ok(Some(coverage)) if is_whole(&coverage) && coverage.sidecar.as_deref().is_none_or(is_whole) => Ok(()),
        Ok(coverage) => wrong(format!("after a whole pass, some pages are not covered: {coverage:?}")),
        Err(error) => wrong(format!("reading the coverage failed: {error}")),
    }
}

/// The pages of a sidecar that are covered.
pub(super) struct Sidecar {
    path: PathBuf,
    bytes: Range<u64>,
}

impl Sidecar {
    /// The offset of the pages behind the records of so small a record area.
    const FROM: u64 = 4 * PAGE as u64;

    pub(super) fn of(file: &AtomicFile) -> Option<Sidecar> {
        let pages = file.coverage().ok().flatten()?.sidecar?.pages;
        Some(Sidecar { path: file.info().sidecar?, bytes: Self::FROM..Self::FROM + pages * PAGE as u64 })
    }

    /// Flips a bit of them, except behind the end. Returns the content before that.
    pub(super) fn rot(&self, medium: &SimMedium, rng: &mut Rng) -> Option<Vec<u8>> {
        let before = medium.peek(&self.path)?;
        let end = self.bytes.end.min(before.len() as u64);
        let at = self.bytes.start + rng.below(end.checked_sub(self.bytes.start).filter(|bytes| *bytes > 0)?);
        medium.rot(&self.path, at, &[before[at as usize] ^ 1 << rng.below(8)]);
        Some(before)
    }
}

/// Damages the first page of a sidecar that tells which bytes of it count. A crash must have left all of it covered,
/// and the tables that say so whole. Otherwise redundancy cannot tell whether a page that differs is damaged: a table
/// is torn, or it is not yet durable that the sidecar is open again.
pub(super) fn deceive(medium: &SimMedium, rng: &mut Rng) -> Found<()> {
    let Ok(looked) = ProtectOptions::new().look_on(medium.clone(), PATH) else { return Ok(()) };
    let coverage = tried("reading the coverage", || looked.coverage())?;
    let report = guarded("scrubbing", || looked.scrub())?;
    let is_clean = report.is_ok_and(|report| report.is_clean());
    drop(looked);
    if !is_clean {
        return Ok(());
    }
    let Some(sidecar) = coverage.sidecar.filter(|sidecar| sidecar.believed && sidecar.uncovered == 0) else {
        return Ok(());
    };
    let bytes = Sidecar::FROM..Sidecar::FROM + PAGE as u64;
    Sidecar { path: sidecar.redundancy_file.with_extension(""), bytes }.rot(medium, rng);
    Ok(())
}

/// Flips a bit of a file before the page that has the byte at `end`: the engine reads a part of that page when the
/// length changes. Returns whether there is such a page.
pub(super) fn rot_before(medium: &SimMedium, end: usize, rng: &mut Rng) -> bool {
    let before = medium.peek(PATH).unwrap_or_default();
    let bytes = end.min(before.len()) / PAGE * PAGE;
    if bytes > 0 {
        let at = rng.below(bytes as u64);
        medium.rot(PATH, at, &[before[at as usize] ^ 1 << rng.below(8)]);
    }
    bytes > 0
}

/// Damages a page of a file all of which is covered, or of its sidecar. It must be given back.
pub(super) fn mend(medium: &SimMedium, file: &AtomicFile, rng: &mut Rng) -> Found<()> {
    if let Some(sidecar) = Sidecar::of(file).filter(|_| rng.one_in(2))
        && let Some(before) = sidecar.rot(medium, rng)
    {
        let report = tried("repair", || file.repair())?;
        if medium.peek(&sidecar.path).unwrap_or_default() != before {
            return wrong(format!("a byte of the sidecar was reported as covered, but was not restored: {report:?}"));
        }
        if report.sidecar_repaired.len() != 1 || !report.repaired.is_empty() || report.scrub.damage.len() != 1 {
            return wrong(format!("one page of the sidecar was damaged, but the repair reported {report:?}"));
        }
        return Ok(());
    }
    let before = medium.peek(PATH).unwrap_or_default();
    if before.is_empty() {
        return Ok(());
    }
    let at = rng.below(before.len() as u64);
    medium.rot(PATH, at, &[before[at as usize] ^ 1 << rng.below(8)]);
    let report = tried("repair", || file.repair())?;
    if medium.peek(PATH).unwrap_or_default() != before {
        return wrong(format!("byte {at} was reported as covered, but was not restored: {report:?}"));
    }
    if report.repaired.len() != 1 || report.scrub.damage.len() != 1 {
        return wrong(format!("one page was damaged, but the repair reported {report:?}"));
    }
    Ok(())
}
