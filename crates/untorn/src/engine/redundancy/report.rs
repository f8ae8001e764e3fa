//! Reports on a protected file.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::{Checksum, Damage, PageRange, StripeLayout};

/// How much of a file is covered now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Coverage {
    /// The path of the redundancy file.
    pub redundancy_file: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Pages of the data file, 4096 bytes each.
    pub pages: u64,
    /// Pages that were stored to since they were last covered.
    pub uncovered: u64,
    /// Pages whose bytes are only in the sidecar and not covered there, such as those in the log of the hybrid log. The
    /// reflection engine's sidecar pages are covered, see [`sidecar`](Coverage::sidecar). It is 0 for a file that is
    /// not open with an engine.
    pub in_sidecar: u64,
    /// The same for the sidecar pages that may have bytes of the file, if they are covered too; page 0 is the first of
    /// them.
    pub sidecar: Option<Box<Coverage>>,
    /// False after a crash that left unannounced stores, and if the file's size or time show an unannounced write. A
    /// page that does not match its checksum is then unknown, and is not repaired until the file is protected again.
    pub believed: bool,
    /// Pages that did not match their checksums when the file was opened after a crash or after an unannounced write.
    /// untorn cannot tell whether they are damaged, and computes their checksums anew. It is empty for a file that is
    /// not open, because nothing is compared.
    pub unknown: Vec<u64>,
    /// Damaged pages that could not be repaired when they were found, since the file was opened. They are not recorded
    /// beyond that, so it is empty for a file that is not open.
    pub lost: Vec<u64>,
    /// An upper bound of how long the oldest uncovered page has been uncovered since the file was opened; `None` if
    /// there is none. It exceeds the true time by at most the time between two passes, or between two calls that cover.
    /// Times before the open are not recorded, so it is also `None` for a file that is not open.
    pub oldest_uncovered: Option<Duration>,
    /// Stripes of the file.
    pub stripes: u64,
    /// Stripes with an uncovered page. If another page of such a stripe is damaged, it cannot be repaired.
    pub vulnerable_stripes: u64,
    /// Data pages of a stripe.
    pub stripe: u32,
    /// Which pages form a stripe.
    pub layout: StripeLayout,
    /// The checksum of a page.
    pub checksum: Checksum,
    /// The [kept period](crate::redundancy::ProtectOptions::keep_period) for opens that set none; `None` if none is
    /// kept, which means one second.
    pub period: Option<Duration>,
    /// The [kept cap](crate::redundancy::ProtectOptions::keep_max_uncovered) for opens that set none; `None` if none is
    /// kept.
    pub max_uncovered: Option<u64>,
    /// The pace of the background thread of the handle that has the file open; `None` if there is no such thread.
    pub pace: Option<CoveringPace>,
    /// Scrubs and repairs so far.
    pub history: History,
    /// The progress of the running scrub, by any thread; `None` if none runs.
    pub scrubbing: Option<Scrubbing>,
    /// The findings of the last whole scrub since this process opened the file; `None` if there was none.
    pub found: Option<ScrubFindings>,
}

/// How often an open file is covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoveringPace {
    /// The time between two passes; `None` if there is no pass until somebody asks for it, or the cap is exceeded.
    pub period: Option<Duration>,
    /// The cap: if more pages are uncovered, in the file and its sidecar together, a pass begins at once.
    pub max_uncovered: Option<u64>,
    /// The most pages that were seen uncovered at one time since the file was opened, in the file and its sidecar
    /// together. Pages of a mapping are seen when untorn looks at its page tables.
    pub peak_uncovered: u64,
    /// Pages that the last pass of the background thread covered, of those that covered any.
    pub last_pass_pages: u64,
    /// How long that pass took; `None` if there was none. With the pages it gives the rate at which a
    /// [`Battery`](crate::redundancy::Battery) covers what is left.
    pub last_pass: Option<Duration>,
}

/// Scrubs and repairs since the file was protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The end of the last whole scrub, in seconds since 1970; 0 if there was none.
    pub scrubbed: u64,
    /// The number of whole scrubs.
    pub scrubs: u64,
    /// The number of repaired pages of the data file.
    pub repaired: u64,
}

/// The progress of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scrubbing {
    /// Pages checked so far.
    pub looked: u64,
    /// Pages in total.
    pub pages: u64,
}

/// The findings of a scrub, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubFindings {
    /// Damaged pages.
    pub damaged: u64,
    /// Pages for which untorn cannot tell whether they are damaged.
    pub unknown: u64,
    /// Damaged parity pages, and damaged copies of tables and of the superblock.
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
    /// The factor by which the mean time to data loss is longer than without redundancy, as in the Vilamb paper: P / (V
    /// · N), for P pages in total, V vulnerable stripes, and N pages in a stripe; both page counts include parity. It
    /// includes the pages of the [sidecar](Coverage::sidecar) if they are covered. `None` if no stripe is vulnerable:
    /// then damage to one more covered page loses nothing. It does not count pages that are only [in the
    /// sidecar](Coverage::in_sidecar), nor existing damage.
    pub fn mttdl_gain(&self) -> Option<f64> {
        let at_risk = self.pages_at_risk();
        (at_risk > 0).then(|| self.pages_in_total() as f64 / at_risk as f64)
    }

    fn parts(&self) -> impl Iterator<Item = &Coverage> {
        [Some(self), self.sidecar.as_deref()].into_iter().flatten()
    }

    /// P: pages of the file and its sidecar, with their parity.
    pub(crate) fn pages_in_total(&self) -> u64 {
        self.parts().map(|part| part.pages + part.stripes).sum()
    }

    /// V · N: those of vulnerable stripes.
    pub(crate) fn pages_at_risk(&self) -> u64 {
        self.parts().map(|part| part.vulnerable_stripes * (u64::from(part.stripe) + 1)).sum()
    }
}

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Pages read and compared.
    pub checked: u64,
    /// Pages skipped because they were uncovered.
    pub skipped: u64,
    /// Pages of the sidecar read and compared; also 0 if its scrub failed after damage was found in the file.
    pub sidecar_checked: u64,
    /// Pages of the sidecar skipped because they were uncovered.
    pub sidecar_skipped: u64,
    /// The damage found, by place.
    pub damage: Vec<Damage>,
}

impl ScrubReport {
    /// Whether the scrub found no damage.
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty()
    }

    /// Adds what was found in the pages of the sidecar, which begin at `from`.
    pub(crate) fn add_sidecar(&mut self, other: ScrubReport, from: u64) {
        (self.sidecar_checked, self.sidecar_skipped) = (other.checked, other.skipped);
        self.damage.extend(other.damage.into_iter().map(|damage| damage.in_sidecar(from)));
    }
}

/// The result of a repair.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// The findings of its scrub.
    pub scrub: ScrubReport,
    /// Repaired pages: flushed, read back from the medium, and compared.
    pub repaired: Vec<PageRange>,
    /// Rebuilt parity pages and copies of tables: flushed and read back from the medium.
    pub rebuilt: u64,
    /// Parity pages and copies of tables, of the file and of its sidecar, that are still damaged. Either the medium
    /// reported success but does not have the new bytes, or pages of the stripe became unreadable when parity was to be
    /// computed from them. The next repair may succeed.
    pub not_rebuilt: Vec<Damage>,
    /// Pages that parity cannot rebuild. Their stripe has lost more than one page, or is not covered; announced
    /// stores that are covered [at once](crate::redundancy::ProtectOptions::period) and not made yet do not count
    /// against it. While there is one, the repair changes nothing. Also pages that the medium refused, or does not
    /// have although it reported success; other pages may have been repaired beside these.
    pub lost: Vec<PageRange>,
    /// Pages for which untorn cannot tell whether they are damaged. They are left as they are.
    pub unknown: Vec<PageRange>,
    /// Unknown pages that [`repair_modified`](crate::repair_modified) replaced: they have the bytes that they were last
    /// covered with, flushed, read back from the medium, and compared.
    pub replaced: Vec<PageRange>,
    /// Unknown pages that parity cannot vouch for: another page of their stripe differs too or is not covered, or their
    /// checksums are lost. While there is one, [`repair_modified`](crate::repair_modified) changes nothing.
    pub refused: Vec<PageRange>,
    /// Repaired pages of the sidecar. Here and below, offsets count from the sidecar's start.
    pub sidecar_repaired: Vec<PageRange>,
    /// Pages of the sidecar that parity cannot rebuild. While there is one, the repair changes nothing, here or in the
    /// file. Also pages that the medium does not have after all, as above.
    pub sidecar_lost: Vec<PageRange>,
    /// Pages of the sidecar for which untorn cannot tell whether they are damaged.
    pub sidecar_unknown: Vec<PageRange>,
}

impl RepairReport {
    /// Whether no page is damaged beyond repair. Parts of the redundancy [may still be
    /// damaged](RepairReport::not_rebuilt).
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.sidecar_lost.is_empty()
    }

    /// Adds what a repair of the pages of the sidecar did, which begin at `from`.
    pub(crate) fn add_sidecar(&mut self, other: RepairReport, from: u64) {
        let at = |ranges: Vec<PageRange>| ranges.into_iter().map(|range| range.behind(from)).collect();
        self.scrub.add_sidecar(other.scrub, from);
        self.rebuilt += other.rebuilt;
        self.not_rebuilt.extend(other.not_rebuilt.into_iter().map(|damage| damage.in_sidecar(from)));
        (self.sidecar_repaired, self.sidecar_lost) = (at(other.repaired), at(other.lost));
        self.sidecar_unknown = at(other.unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(pages: u64, stripes: u64, vulnerable_stripes: u64, sidecar: Option<Coverage>) -> Coverage {
        Coverage {
            redundancy_file: PathBuf::new(),
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
            max_uncovered: None,
            pace: None,
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

    /// §4.8 of the Vilamb paper, with 10 GB in stripes of four data pages, as of Redis: YCSB-A has 15 times the mean
    /// time to data loss if a 75th of all stripes are vulnerable on average.
    #[test]
    fn the_time_to_data_loss_is_as_in_the_paper() {
        let pages = 10_000_000_000 / 4096;
        let redis = coverage(pages, pages / 4, pages / 4 / 15, None);
        let gain = redis.mttdl_gain().unwrap();
        assert!((gain - 15.0).abs() < 0.01, "{gain}");
        // Whatever the unit is, and however long a page lasts.
        for page_mttf in [1e9, 3.7e15] {
            let (with, without) = (redis.mttdl(page_mttf).unwrap(), redis.mttdl_without(page_mttf));
            assert_eq!(without, page_mttf / (pages + pages / 4) as f64);
            assert_eq!(with, page_mttf / (5 * (pages / 4 / 15)) as f64);
            assert!((with / without - gain).abs() < 1e-9);
        }
        assert_eq!(coverage(1000, 250, 0, None).mttdl(1e9), None);
    }
}
