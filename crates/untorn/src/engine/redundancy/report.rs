//! What is said of a protected file.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::{Checksum, Damage, PageRange, StripeLayout};

/// How much of a file is covered, now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Coverage {
    /// The companion file.
    pub companion: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Pages of the data file, of 4096 bytes.
    pub pages: u64,
    /// Of these, how many were stored to since they were last covered.
    pub uncovered: u64,
    /// Pages of which the sidecar has bytes that are not at home and not covered, as those in the log of the hybrid log are. Of
    /// the reflection engine they are covered where they are, see [`sidecar`](Coverage::sidecar). Of a file that is not open with
    /// an engine it is 0.
    pub in_sidecar: u64,
    /// The same of the pages of the sidecar that may have bytes of the file, if these are covered too: page 0 is the first
    /// of them.
    pub sidecar: Option<Box<Coverage>>,
    /// False after a crash that left stores untold, and if the file's size or time show a write that nobody told of: a page
    /// that differs from its checksum is then unknown, and not repaired, until the file is protected again.
    pub believed: bool,
    /// Pages that differed from their checksums when the file was opened, after a crash or after a write that nobody told of:
    /// whether they are damaged cannot be said. They are covered as they are. Of a file that is not open nothing is compared, so
    /// there are none.
    pub unknown: Vec<u64>,
    /// Damaged pages that could not be repaired when they were come upon, since the file was opened; nobody keeps note of them
    /// beyond that, so of one that is not open there are none.
    pub lost: Vec<u64>,
    /// For how long, at most, the oldest uncovered page has been so since the file was opened; `None` if there is none. It is too
    /// much by the time between two passes at most, or between two calls that cover. Since when a page was uncovered before,
    /// which a crash may have left so, nobody keeps note of; so it is `None` too of a file that is not open.
    pub oldest_uncovered: Option<Duration>,
    /// Stripes of the file.
    pub stripes: u64,
    /// Stripes with an uncovered page: if another page of one is damaged, it cannot be repaired.
    pub vulnerable_stripes: u64,
    /// Data pages of a stripe.
    pub stripe: u32,
    /// Which pages are one stripe.
    pub layout: StripeLayout,
    /// The checksum of a page.
    pub checksum: Checksum,
    /// The [period](crate::ProtectOptions::keep_period) of openings that name none; `None` if none is kept, and it is a second.
    pub period: Option<Duration>,
    /// What was done before.
    pub history: History,
    /// How far the scrub is that is under way, of whatever thread; `None` if none is.
    pub scrubbing: Option<Scrubbing>,
    /// What the last whole scrub found since the file was opened by this process; `None` if there was none.
    pub found: Option<ScrubFindings>,
}

/// What was scrubbed and repaired since the file is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// When the last whole scrub ended, in seconds since 1970; 0 if there was none.
    pub scrubbed: u64,
    /// Whole scrubs.
    pub scrubs: u64,
    /// Pages of the data file that were repaired.
    pub repaired: u64,
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scrubbing {
    /// Pages that were looked at.
    pub looked: u64,
    /// Pages in all.
    pub pages: u64,
}

/// What a scrub found, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubFindings {
    /// Damaged pages.
    pub damaged: u64,
    /// Pages of which it cannot be said whether they are damaged.
    pub unknown: u64,
    /// Damaged parity pages, and copies of tables and of the superblock that are not whole.
    pub redundancy: u64,
}

impl ScrubFindings {
    pub(crate) fn of(damage: &[Damage]) -> Self {
        let mut found = ScrubFindings::default();
        for damage in damage {
            match damage {
                Damage::Page(_) => found.damaged += 1,
                Damage::Unknown(_) => found.unknown += 1,
                _ => found.redundancy += 1,
            }
        }
        found
    }
}

impl Coverage {
    /// By how much the mean time to data loss is longer than without redundancy, as the Vilamb paper has it: P / (V · N) for
    /// P pages in all, V vulnerable stripes and N pages in a stripe, parity among both; of the pages of the
    /// [sidecar](Coverage::sidecar) too, if these are covered. `None` if no stripe is vulnerable: then damage to one more page of what
    /// is covered loses nothing. Pages that are only [in the sidecar](Coverage::in_sidecar), and damage that there is by now, are not
    /// counted.
    pub fn mttdl_gain(&self) -> Option<f64> {
        let parts = || [Some(self), self.sidecar.as_deref()].into_iter().flatten();
        let pages: u64 = parts().map(|part| part.pages + part.stripes).sum();
        let at_risk: u64 = parts().map(|part| part.vulnerable_stripes * (u64::from(part.stripe) + 1)).sum();
        (at_risk > 0).then(|| pages as f64 / at_risk as f64)
    }
}

/// The outcome of a scrub.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Pages that were read and compared.
    pub checked: u64,
    /// Pages that were uncovered when it came by.
    pub skipped: u64,
    /// Pages of the sidecar that were read and compared; 0 too if its scrub failed after damage was found in the file.
    pub sidecar_checked: u64,
    /// Pages of the sidecar that were uncovered when it came by.
    pub sidecar_skipped: u64,
    /// What is wrong, by place.
    pub damage: Vec<Damage>,
}

impl ScrubReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty()
    }
}

/// The outcome of a repair.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// What was found.
    pub scrub: ScrubReport,
    /// Pages that have their bytes again: read anew from the medium after they were flushed, and compared.
    pub repaired: Vec<PageRange>,
    /// Parity pages and copies of tables that were written anew, and read anew from the medium after they were flushed.
    pub rebuilt: u64,
    /// Of these kinds, what is damaged yet, of the file and of its sidecar: the medium does not have it although it said that it did, or
    /// pages of the stripe could be read before and not when its parity was to be made of them. The next repair may make it.
    pub not_rebuilt: Vec<Damage>,
    /// Pages that parity cannot give back: their stripe has lost more than one, or is not covered, save for stores that are
    /// covered [at once](crate::ProtectOptions::period) and not made yet. While there is one, nothing is repaired. And those that the
    /// medium did not take, or does not have although it said that it did: beside them others may have been repaired.
    pub lost: Vec<PageRange>,
    /// Pages of which it cannot be said whether they are damaged. They are left alone.
    pub unknown: Vec<PageRange>,
    /// Pages of the sidecar that have their bytes again. Where they are is counted from its start, as below.
    pub sidecar_repaired: Vec<PageRange>,
    /// Pages of the sidecar that parity cannot give back. While there is one, nothing is repaired, here or in the file. And
    /// those that the medium does not have after all, as above.
    pub sidecar_lost: Vec<PageRange>,
    /// Pages of the sidecar of which it cannot be said whether they are damaged.
    pub sidecar_unknown: Vec<PageRange>,
}

impl RepairReport {
    /// Whether no page is damaged beyond repair. Of the redundancy something [may be](RepairReport::not_rebuilt) yet.
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.sidecar_lost.is_empty()
    }
}

fn damage_in_sidecar(damage: Damage, from: u64) -> Damage {
    let at = |range: PageRange| PageRange { offset: from + range.offset, ..range };
    match damage {
        Damage::Page(range) => Damage::SidecarPage(at(range)),
        Damage::Unknown(range) => Damage::SidecarUnknown(at(range)),
        Damage::Parity { stripe } => Damage::SidecarParity { stripe },
        Damage::Table { offset } => Damage::SidecarTable { offset },
        other => other,
    }
}

/// Reports on the pages of a sidecar, which begin at `from`, in its own words.
pub(crate) fn in_sidecar(report: ScrubReport, from: u64) -> ScrubReport {
    let damage = report.damage.into_iter().map(|damage| damage_in_sidecar(damage, from));
    let (sidecar_checked, sidecar_skipped) = (report.checked, report.skipped);
    ScrubReport { checked: 0, skipped: 0, sidecar_checked, sidecar_skipped, damage: damage.collect() }
}

/// The same of a repair.
pub(crate) fn repair_in_sidecar(report: RepairReport, from: u64) -> RepairReport {
    let at = |ranges: Vec<PageRange>| -> Vec<PageRange> {
        ranges.into_iter().map(|range| PageRange { offset: from + range.offset, ..range }).collect()
    };
    RepairReport {
        scrub: in_sidecar(report.scrub, from),
        rebuilt: report.rebuilt,
        not_rebuilt: report.not_rebuilt.into_iter().map(|damage| damage_in_sidecar(damage, from)).collect(),
        sidecar_repaired: at(report.repaired),
        sidecar_lost: at(report.lost),
        sidecar_unknown: at(report.unknown),
        ..RepairReport::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(pages: u64, stripes: u64, vulnerable_stripes: u64, sidecar: Option<Coverage>) -> Coverage {
        Coverage {
            companion: PathBuf::new(),
            bytes: 0,
            pages,
            uncovered: vulnerable_stripes,
            in_sidecar: 0,
            sidecar: sidecar.map(Box::new),
            believed: true,
            unknown: Vec::new(),
            lost: Vec::new(),
            oldest_uncovered: None,
            stripes,
            vulnerable_stripes,
            stripe: 4,
            layout: StripeLayout::Consecutive,
            checksum: Checksum::Crc32c,
            period: None,
            history: History::default(),
            scrubbing: None,
            found: None,
        }
    }

    #[test]
    fn the_gain_counts_stripes_of_the_file_and_of_its_sidecar() {
        // 1000 pages and their 250 parity pages; two stripes of 5 are vulnerable.
        assert_eq!(coverage(1000, 250, 2, None).mttdl_gain(), Some(125.0));
        assert_eq!(coverage(1000, 250, 0, None).mttdl_gain(), None);
        // As many again in the sidecar.
        assert_eq!(coverage(1000, 250, 2, Some(coverage(1000, 250, 3, None))).mttdl_gain(), Some(100.0));
        assert_eq!(coverage(1000, 250, 0, Some(coverage(1000, 250, 4, None))).mttdl_gain(), Some(125.0));
        assert_eq!(coverage(1000, 250, 0, Some(coverage(1000, 250, 0, None))).mttdl_gain(), None);
    }
}
