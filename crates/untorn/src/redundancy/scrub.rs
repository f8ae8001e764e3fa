//! Scrub: reads everything as the medium holds it, and compares.
//!
//! It holds no lock while it reads, so the program and the covering of its stores go on. A page that seems damaged is
//! checked again under the lock, where no page is covered and no announcement is made. The scrub reads the page once
//! more and *then* checks whether it was stored to. If not, an undamaged page had its covered bytes at that read.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::ahead::{Ahead, Reader};
use super::bits::Bits;
use super::holes::Holes;
use super::layout::Geometry;
use super::{Inner, Mode, Redundancy, barriers};
use super::{Scrub, ScrubFindings, ScrubReport, Scrubbing};
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::options::{Damage, PageRange};
use crate::storage::{Medium, MediumFile};

/// So many bytes are read between two times that progress is told, and that it is seen to that no more are read than
/// may be.
const STEP: u64 = 1 << 20;

/// The longest sleep of a scrub that is ahead of its time: whoever wants it to end waits no longer.
const NAP: Duration = Duration::from_millis(50);

/// What is wrong with one stripe.
#[derive(Default)]
pub(super) struct StripeFindings {
    pub(super) damaged: Vec<u64>,
    pub(super) unknown: Vec<u64>,
    pub(super) uncovered: Vec<u64>,
    pub(super) parity: bool,
}

/// How far a scrub has come that goes on when the file has another length.
///
/// What counts is which pages were looked at, for stripes may have others by then. What was found wrong is looked at
/// once more: it may have been given back, or cut off, and the parity of a stripe may be a new one.
pub(super) struct Looked {
    start: Instant,
    /// The shape that the file had then.
    was: Option<Geometry>,
    looked: Bits,
    /// Of these, pages of which nothing could be said.
    skipped: Bits,
    damage: Vec<Damage>,
}

impl Looked {
    pub(super) fn nothing() -> Self {
        Looked { start: Instant::now(), was: None, looked: Bits::new(0), skipped: Bits::new(0), damage: Vec::new() }
    }

    /// Goes on with a file of this shape, which may be another one than before.
    fn follow(&mut self, geometry: Geometry) {
        let was = self.was.replace(geometry).unwrap_or(geometry);
        let mut again = BTreeSet::new();
        for damage in std::mem::take(&mut self.damage) {
            match damage {
                Damage::Page(range) | Damage::Unknown(range) => again.extend(Some(range.offset / PAGE)),
                Damage::Parity { stripe } => again.extend(was.members(stripe)),
                _ => {}
            }
        }
        let pages = geometry.pages();
        let stay = |bits: &Bits| {
            let mut stay = Bits::new(pages);
            for page in bits.iter().filter(|page| *page < pages && !again.contains(page)) {
                stay.put(page, true);
            }
            stay
        };
        (self.looked, self.skipped) = (stay(&self.looked), stay(&self.skipped));
    }

    fn note(&mut self, members: impl Iterator<Item = u64>, uncovered: &[u64]) {
        for page in members {
            self.looked.put(page, true);
            self.skipped.put(page, uncovered.contains(&page));
        }
    }

    /// What is said of it.
    pub(super) fn report(self) -> ScrubReport {
        let skipped = self.skipped.count();
        ScrubReport { checked: self.looked.count() - skipped, skipped, damage: self.damage, ..ScrubReport::default() }
    }
}

/// What is told of scrubs while the file is open.
#[derive(Default)]
pub(super) struct Scrubs {
    /// Pages that the scrub under way has looked at; of several, the one that told last.
    looked: Mutex<Option<u64>>,
    found: Mutex<Option<ScrubFindings>>,
}

impl Scrubs {
    fn note(&self, looked: Option<u64>) {
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = looked;
    }

    pub(super) fn under_way(&self, pages: u64) -> Option<Scrubbing> {
        let looked = *self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        looked.map(|looked| Scrubbing { looked: looked.min(pages), pages })
    }

    pub(super) fn found(&self) -> Option<ScrubFindings> {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_found(&self, found: Option<ScrubFindings>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

/// How a part of a scrub ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All was looked at.
    Whole,
    /// Whoever called has it end.
    Stopped,
    /// The file is about to have another length, of which the scrub is to [go on](Looked::follow).
    Left,
}

impl<M: Medium> Redundancy<M> {
    /// Reads all pages, all parity and all tables that have not been looked at, until the file is about to change.
    ///
    /// # Errors
    /// Those of reading. What is wrong with the file is in the report.
    pub(super) fn go_on(&self, how: &mut Scrub<'_>, looked: &mut Looked) -> Result<End> {
        // A thread that reads ahead ends with the scrub.
        let end = std::thread::scope(|scope| self.go_on_telling(how, looked, Reader::new(self, how.rate, scope)));
        self.scrubs.note(None);
        if matches!(end, Ok(End::Whole)) {
            self.scrubs.set_found(Some(ScrubFindings::of(&looked.damage)));
        }
        end
    }

    fn go_on_telling(&self, how: &mut Scrub<'_>, looked: &mut Looked, mut reader: Reader<'_, '_, M>) -> Result<End> {
        looked.follow(self.geometry);
        let total = self.geometry.len;
        let mut done = looked.looked.count() * PAGE;
        let mut notified: Option<u64> = None;
        let (mut holes, mut parity_holes) = (Holes::default(), Holes::default());
        let of_zeros = self.checksum.of(&[0; PAGE as usize]);
        for stripe in 0..self.geometry.stripes() {
            let fresh = self.geometry.members(stripe).filter(|page| !looked.looked.has(*page)).count() as u64;
            if fresh == 0 {
                continue;
            }
            if self.is_leaving() {
                return Ok(End::Left);
            }
            if (how.stops)() {
                return Ok(End::Stopped);
            }
            let is_hole = self.is_hole(&mut holes, stripe)? && self.is_parity_hole(&mut parity_holes, stripe)?;
            let found = if is_hole {
                self.look_at_hole(stripe, of_zeros)?
            } else {
                let ahead = reader.stripe(stripe)?;
                self.look_at(stripe, ahead)?
            };
            // Of a stripe that has others than before, some pages were looked at already, and nothing was wrong with
            // them.
            looked.note(self.geometry.members(stripe), &found.uncovered);
            let ranges = |pages: &[u64]| pages.iter().map(|page| self.range_of(*page)).collect::<Vec<_>>();
            looked.damage.extend(ranges(&found.damaged).into_iter().map(Damage::Page));
            looked.damage.extend(ranges(&found.unknown).into_iter().map(Damage::Unknown));
            if found.parity {
                looked.damage.push(Damage::Parity { stripe });
            }
            // Not counted anew each time: of a long file that would take longer than to read a stripe.
            done += fresh * PAGE;
            self.scrubs.note(Some(done / PAGE));
            if notified.is_none_or(|notified| done >= notified + STEP) || stripe + 1 == self.geometry.stripes() {
                notified = Some(done);
                if !(how.progress)(done.min(total), total) {
                    return Ok(End::Stopped);
                }
                let due = how.rate.map(|rate| Duration::from_secs_f64(done as f64 / rate.max(1) as f64));
                while let Some(left) = due.and_then(|due| due.checked_sub(looked.start.elapsed()))
                    && !left.is_zero()
                    && !self.is_leaving()
                {
                    std::thread::sleep(left.min(NAP));
                    if !(how.progress)(done.min(total), total) {
                        return Ok(End::Stopped);
                    }
                }
            }
        }
        let mut inner = self.usable()?;
        let copies = self.damaged_tables(&inner)?;
        looked.damage.extend(copies.into_iter().map(|(block, copy)| {
            let offset = self.geometry.block_at(block, copy);
            Damage::Table { offset }
        }));
        if !matches!(self.mode, Mode::Look | Mode::Report) {
            // They are written seldom, so damage would go on until the other copy is damaged too.
            inner.superblocks = inner.superblock.whole_copies(&self.side)?;
        }
        let superblocks = (0_u64..).zip(inner.superblocks).filter(|(_, whole)| !whole);
        looked.damage.extend(superblocks.map(|(copy, _)| Damage::Table { offset: copy * PAGE }));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        inner.superblock.history.scrubbed = now;
        // Anybody may have written the number that this begins with.
        inner.superblock.history.scrubs = inner.superblock.history.scrubs.saturating_add(1);
        Ok(End::Whole)
    }

    /// Copies of table blocks that are not as they should be.
    pub(super) fn damaged_tables(&self, inner: &Inner) -> Result<Vec<(u64, usize)>> {
        // Where the tables were only read, what was found then is what there is.
        if matches!(self.mode, Mode::Look | Mode::Report) {
            Ok(inner.damaged.clone())
        } else {
            inner.tables.damaged(&self.side)
        }
    }

    pub(super) fn range_of(&self, page: u64) -> PageRange {
        let range = self.geometry.bytes_of(page);
        PageRange { offset: range.start, len: range.end - range.start }
    }

    /// Looks at a stripe that was read without a lock, and reads it again with it if anything seems wrong.
    ///
    /// The tables are asked after the reading. A page that was stored to since, or covered since, differs or is left
    /// out, and one that differs is read again: so what was read too early costs a second look, and accuses nothing.
    fn look_at(&self, stripe: u64, ahead: &Ahead) -> Result<StripeFindings> {
        let (sums, parity_sum, mut found) = {
            let inner = self.usable()?;
            let sums: Vec<u64> = self.geometry.members(stripe).map(|page| inner.tables.sum(page)).collect();
            (sums, inner.tables.parity_sum(stripe), self.not_covered(&inner, stripe, &[]))
        };
        let read = ahead.stripe(&self.geometry, self.checksum, stripe);
        let skip = |page: &u64| found.uncovered.contains(page) || found.unknown.contains(page);
        let differs =
            (0..sums.len()).any(|nth| read.sums[nth].is_none_or(|sum| !skip(&read.pages[nth]) && sum != sums[nth]));
        let whole = found.uncovered.is_empty() && found.unknown.is_empty();
        let parity_is_wrong = whole
            && match ahead.parity(stripe) {
                Some(parity) => self.checksum.of(parity) != parity_sum || !differs && parity != read.fold(None),
                None => true,
            };
        if differs || parity_is_wrong {
            found = self.accuse(&*self.usable()?, stripe)?;
        }
        Ok(found)
    }

    /// Looks at a stripe that was a hole, with its parity, when the scrub came by: only its checksums can be wrong.
    fn look_at_hole(&self, stripe: u64, of_zeros: u64) -> Result<StripeFindings> {
        let inner = self.usable()?;
        let found = self.not_covered(&inner, stripe, &[]);
        let skip = |page: &u64| found.uncovered.contains(page) || found.unknown.contains(page);
        let differs = self.geometry.members(stripe).any(|page| !skip(&page) && inner.tables.sum(page) != of_zeros);
        let whole = found.uncovered.is_empty() && found.unknown.is_empty();
        if differs || whole && inner.tables.parity_sum(stripe) != of_zeros {
            return self.accuse(&inner, stripe);
        }
        Ok(found)
    }

    /// What is wrong with a stripe for certain. Nothing is covered and nothing announced meanwhile.
    pub(super) fn accuse(&self, inner: &Inner, stripe: u64) -> Result<StripeFindings> {
        let read = self.read_stripe(stripe, true)?;
        let parity = self.read_parity(stripe, true)?;
        // Asked after the reading: what is not among these was not stored to before it.
        let stored = match &self.mode {
            Mode::Tracked(tracker) => tracker.look()?,
            _ => Vec::new(),
        };
        let mut found = self.not_covered(inner, stripe, &stored);
        // The same of a file whose time tells of stores. It does not tell of which page.
        let is_doubtful = self.was_touched(inner)?;
        for (page, sum) in read.pages.iter().zip(&read.sums) {
            let counts = !found.uncovered.contains(page) && !found.unknown.contains(page);
            let differs = counts && *sum != Some(inner.tables.sum(*page));
            if differs && is_doubtful {
                found.unknown.push(*page);
            }
            // What cannot be read is damaged, whatever it should hold.
            if sum.is_none() || differs && !is_doubtful {
                found.damaged.push(*page);
            }
        }
        if found.uncovered.is_empty() && found.unknown.is_empty() {
            found.parity = parity.is_none_or(|(parity, sum)| {
                let agrees = !found.damaged.is_empty() || parity == read.fold(None);
                sum != inner.tables.parity_sum(stripe) || !agrees
            });
        }
        Ok(found)
    }

    /// The pages of a stripe of which nothing can be said.
    fn not_covered(&self, inner: &Inner, stripe: u64, stored: &[Range<u64>]) -> StripeFindings {
        let mut found = StripeFindings::default();
        for page in self.geometry.members(stripe) {
            if inner.unknown.contains(&page) {
                found.unknown.push(page);
            } else if inner.tables.uncovered().has(page) && !inner.premarked.has(page)
                || inner.stored.has(page)
                || stored.iter().any(|run| run.contains(&page))
            {
                found.uncovered.push(page);
            }
        }
        found
    }

    /// The parity of a stripe as it is, or as the medium holds it, and its checksum; nothing if it cannot be read.
    pub(super) fn read_parity(&self, stripe: u64, stored: bool) -> Result<Option<(Vec<u8>, u64)>> {
        let (at, mut parity) = (self.geometry.parity_at(stripe), vec![0; PAGE as usize]);
        let is_there = if stored {
            self.side.read_stored_unless_bad(at, &mut parity)?
        } else {
            self.side.read_unless_bad(at, &mut parity)?
        };
        let sum = self.checksum.of(&parity);
        Ok(is_there.then_some((parity, sum)))
    }

    /// Notes in the redundancy file that a scrub went through.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn note_scrub(&self) -> Result<()> {
        let mut inner = self.usable()?;
        let result = self.write_superblocks(&mut inner, barriers::REPAIR_DONE);
        self.note_failure(&mut inner, result)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::options::Settings;
    use crate::storage::PageCache;

    /// Of so many pages, in the widest stripes there are.
    fn protected(pages: u64) -> (tempfile::TempDir, Redundancy<PageCache>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        std::fs::write(&path, vec![7; (pages * PAGE) as usize]).unwrap();
        let settings = Settings { stripe: Some(Settings::MAX_STRIPE), batch: Settings::BATCH, ..Settings::default() };
        let redundancy = Redundancy::open(Arc::new(PageCache::new()), &path, Mode::Announced, settings).unwrap();
        redundancy.cover().unwrap();
        (dir, redundancy)
    }

    fn scrub(redundancy: &Redundancy<PageCache>, mut how: Scrub<'_>) -> ScrubReport {
        let mut looked = Looked::nothing();
        redundancy.go_on(&mut how, &mut looked).unwrap();
        looked.report()
    }

    #[test]
    fn a_stopped_scrub_reads_no_further_stripe() {
        let (_dir, redundancy) = protected(640);
        for after in 0..3 {
            let asked = Cell::new(0);
            let stops = || asked.replace(asked.get() + 1) == after;
            let report = scrub(&redundancy, Scrub { stops: &stops, ..Scrub::telling(&mut |_, _| true) });
            assert_eq!(report.checked, 64 * after);
        }
    }

    #[test]
    fn progress_is_told_by_bytes_and_not_by_stripes() {
        let (_dir, redundancy) = protected(640);
        let mut notified = Vec::new();
        let mut progress = |done, of| {
            // Whoever else asks is told the same.
            let Some(Scrubbing { looked, pages }) = redundancy.coverage().unwrap().scrubbing else { return false };
            assert_eq!((looked * PAGE, pages * PAGE), (done, of));
            notified.push((done, of));
            true
        };
        scrub(&redundancy, Scrub::telling(&mut progress));
        assert_eq!(redundancy.coverage().unwrap().scrubbing, None);
        // Of stripes of 64: after the first, after each fourth that follows, and at the end.
        assert_eq!(notified, [64, 320, 576, 640].map(|pages| (pages * PAGE, 640 * PAGE)));
    }

    /// Who is ahead of its time sleeps until it is not, and is asked after each nap; nobody else sleeps.
    #[test]
    fn a_rate_limited_scrub_sleeps_when_ahead_of_its_rate() {
        let (_dir, redundancy) = protected(64);
        let naps = |rate: Option<u64>, most: u64| {
            let mut notified = 0;
            let mut progress = |done, of| {
                assert_eq!((done, of), (64 * PAGE, 64 * PAGE));
                notified += 1;
                notified <= most
            };
            let report = scrub(&redundancy, Scrub { rate, ..Scrub::telling(&mut progress) });
            assert_eq!(report.checked, 64);
            notified - 1
        };
        assert_eq!(naps(None, 3), 0);
        // In three naps nobody is late for what would take 73 hours.
        assert_eq!(naps(Some(1), 3), 3);
        // What is read in no time at all is never ahead.
        assert_eq!(naps(Some(u64::MAX), 3), 0);
    }
}
