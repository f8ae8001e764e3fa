//! The test of redundancy: a process writes a file and updates, scrubs and repairs its redundancy at the same time. The
//! test damages the file between two runs of that process.
//!
//! The file ends with pages that are written once, in separate stripes. These pages are covered at every instant, so
//! repair must restore a damaged one byte for byte, even if several repairs in a row are killed. The other pages may be
//! uncovered at a kill. The test damages none of them before all are covered again, and no scrub may report one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use untorn::redundancy::{Damage, PageRange, ProtectOptions, VerifyReads};
use untorn::{AtomicFile, Options, Result};

use super::plan::FILE_LEN;
use crate::exit::Exit;
use crate::rng::Rng;

const PAGE: u64 = 4096;
/// Data pages per stripe.
const STRIPE: u64 = 4;
/// The pages written once.
const STILL: Range<u64> = FILE_LEN.div_ceil(STRIPE * PAGE) * STRIPE..FILE_LEN.div_ceil(STRIPE * PAGE) * STRIPE + 64;
/// Length of the file.
pub(super) const LEN: u64 = STILL.end * PAGE;
/// The period of updates and scrubs: many of both in each run.
const OFTEN: Duration = Duration::from_millis(1);

/// The bytes of a page that is written once.
fn bytes_of(page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    Rng::from_parts(&[page]).fill(&mut bytes);
    bytes
}

fn is_still(range: &PageRange) -> bool {
    STILL.contains(&(range.offset / PAGE))
}

fn redundancy() -> ProtectOptions {
    ProtectOptions::new().stripe(STRIPE as u32).batch(8)
}

/// Options for inspecting the file between two runs.
pub(super) fn by_hand(options: Options) -> Options {
    options.redundancy(redundancy().on_demand())
}

/// Options for the process that is killed.
pub(super) fn in_background(options: Options) -> Options {
    let alarm = |damage: &Damage| {
        if !matches!(damage, Damage::Page(range) if is_still(range)) {
            accused(&format!("a scrub reported damage to undamaged data: {damage:?}"));
        }
    };
    let redundancy = redundancy().period(OFTEN).scrub_every(OFTEN).on_damage(alarm);
    options.redundancy(redundancy).verify_reads(VerifyReads::Fail)
}

/// Exits the process, which counts as a violation.
fn accused(what: &str) {
    eprintln!("untorn: {what}");
    std::process::exit(Exit::Attention as i32);
}

/// Writes the pages that are written once, and covers the whole file.
pub(super) fn prepare(file: &AtomicFile) -> Result<()> {
    for page in STILL {
        file.write_at(&bytes_of(page), page * PAGE)?;
    }
    file.sync()?;
    file.deploy(0, LEN)?;
    file.sync_redundancy()
}

/// Repairs and updates redundancy in a loop, while other threads write.
pub(super) fn forever(file: &AtomicFile) -> Result<std::convert::Infallible> {
    loop {
        let report = file.repair()?;
        let wrong = misjudged(&report.scrub.damage, &STILL.collect());
        let strays = report.repaired.iter().any(|range| !is_still(range)) || !report.sidecar_repaired.is_empty();
        if !wrong.is_empty() || strays || !report.is_whole() || !report.unknown.is_empty() {
            accused(&format!("a repair changed undamaged data or lost pages: {report:?}"));
        }
        file.sync_redundancy()?;
    }
}

/// The reported damage outside the damaged pages.
fn misjudged(found: &[Damage], damaged: &BTreeSet<u64>) -> Vec<String> {
    let is_right = |damage: &&Damage| matches!(damage, Damage::Page(range) if damaged.contains(&(range.offset / PAGE)));
    let wrong = found.iter().filter(|damage| !is_right(damage));
    wrong.map(|damage| format!("reported as damaged, but it was not damaged: {damage:?}")).collect()
}

/// Damages pages as a device does, at most one per stripe, while no process has the file open: any page, or only those
/// written once. The file's modification time stays the same. Returns the damaged pages.
pub(super) fn damage(path: &Path, any: bool, rng: &mut Rng) -> io::Result<BTreeSet<u64>> {
    let file = File::options().read(true).write(true).open(path)?;
    let modified = file.metadata()?.modified()?;
    let from = if any { 0 } else { STILL.start / STRIPE };
    let mut damaged = BTreeSet::new();
    for stripe in from..STILL.end / STRIPE {
        // Always damage at least one page; otherwise the pass tests nothing.
        if rng.below(6) != 0 && stripe + 1 < STILL.end / STRIPE {
            continue;
        }
        let page = stripe * STRIPE + rng.below(STRIPE);
        let mut held = vec![0; PAGE as usize];
        file.read_exact_at(&mut held, page * PAGE)?;
        let before = held.clone();
        match rng.below(3) {
            0 => held[rng.below(PAGE) as usize] ^= 1 << rng.below(8),
            1 => held.fill(0),
            // The bytes of another page.
            _ => file.read_exact_at(&mut held, rng.below(STILL.end) * PAGE)?,
        }
        if held != before {
            file.write_all_at(&held, page * PAGE)?;
            damaged.insert(page);
        }
    }
    file.set_modified(modified)?;
    Ok(damaged)
}

/// Repairs and covers a file with these damaged pages, and returns what went wrong. Another process may have restored
/// some of the pages before.
///
/// # Errors
/// Errors of reading and writing the file.
pub(super) fn judge(file: &AtomicFile, damaged: &BTreeSet<u64>) -> Result<Vec<String>> {
    let mut wrong = misjudged(&file.scrub()?.damage, damaged);
    let report = file.repair()?;
    let repaired: BTreeSet<u64> = report.repaired.iter().map(|range| range.offset / PAGE).collect();
    if !repaired.is_subset(damaged) || !report.sidecar_repaired.is_empty() {
        wrong.push(format!("repaired, but it was not damaged: {:?} {:?}", report.repaired, report.sidecar_repaired));
    }
    if !report.is_whole() || !report.unknown.is_empty() || !report.sidecar_unknown.is_empty() {
        wrong.push(format!("repair did not restore a stripe's single damaged page: {report:?}"));
    }
    let mut held = vec![0; PAGE as usize];
    for page in STILL {
        file.read_at(&mut held, page * PAGE)?;
        if held != bytes_of(page) {
            wrong.push(format!("page {page} does not hold the bytes that were written to it"));
        }
    }
    file.sync_redundancy()?;
    let again = file.scrub()?;
    wrong.extend(misjudged(&again.damage, &BTreeSet::new()));
    if let Some(coverage) = file.coverage()?
        && (coverage.uncovered > 0 || !coverage.unknown.is_empty() || again.skipped > 0)
    {
        wrong.push(format!("not fully covered after a redundancy sync: {coverage:?}"));
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        by_hand(Options::new())
    }

    #[test]
    fn damage_is_repaired_and_the_judge_reports_failures() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("healed");
        let file = options().create(&path, LEN).unwrap();
        prepare(&file).unwrap();
        file.close().unwrap();
        let mut rng = Rng::new(7);
        let damaged = damage(&path, true, &mut rng).unwrap();
        assert!(damaged.len() > 10, "{damaged:?}");
        let file = options().open(&path).unwrap();
        assert_eq!(judge(&file, &damaged).unwrap(), Vec::<String>::new());
        file.close().unwrap();
        // `judge` reports damage that it was not told of.
        let damaged = damage(&path, true, &mut rng).unwrap();
        let file = options().open(&path).unwrap();
        let wrong = judge(&file, &BTreeSet::new()).unwrap();
        assert!(wrong.len() > damaged.len(), "{wrong:?}");
        file.close().unwrap();
        // Two damaged pages in one stripe cannot be restored.
        let raw = File::options().write(true).open(&path).unwrap();
        let modified = raw.metadata().unwrap().modified().unwrap();
        let both: BTreeSet<u64> = [STILL.start, STILL.start + 1].into();
        both.iter().for_each(|page| raw.write_all_at(b"damage", page * PAGE).unwrap());
        raw.set_modified(modified).unwrap();
        let file = options().open(&path).unwrap();
        let wrong = judge(&file, &both).unwrap();
        assert!(wrong.iter().any(|what| what.contains("did not restore")), "{wrong:?}");
        assert!(wrong.iter().any(|what| what.contains("does not hold the bytes")), "{wrong:?}");
    }
}
