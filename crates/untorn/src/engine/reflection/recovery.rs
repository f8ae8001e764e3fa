//! Recovery: from the records that arrived to the one state they prove.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::layout::pages;
use super::slices::{SLICE, runs};
use super::{Reflection, barriers};
use crate::engine::Recovery;
use crate::error::{Error, Result};
use crate::log::record::{DataSum, Entry, LINE, Line, More, Record, Seal, decode};
use crate::medium::{Access, Medium, MediumFile};
use crate::sidecar::superblock::Left;
use crate::sidecar::{Geometry, MAX_LEN, MAX_NUMBER, PAGE, spill_path};

/// Every whole record above the cut, with its lane, ascending by number.
pub(super) fn live_records<M: Medium>(
    medium: &M,
    side: &M::File,
    sidecar: &Path,
    geometry: Geometry,
    seal: Seal,
    cut: u64,
) -> Result<Vec<(u32, Record)>> {
    let slots = u64::from(geometry.slots);
    // What the cache has of it can be relied on: the line that refers to it was stored after its flush had succeeded.
    let spill_at = spill_path(sidecar);
    let spill = if medium.exists(&spill_at)? { Some(medium.open(&spill_at, Access::Read, 0)?) } else { None };
    // A spilled record cannot have more entries than its file has room for, nor one in a lane more than the lane.
    let spill_lines = spill.as_ref().map_or(0, MediumFile::len) / LINE;
    let max_entries = 2 * (slots + spill_lines);
    let mut records = Vec::new();
    let mut ring = vec![0; (slots * LINE) as usize];
    for lane in 0..geometry.lanes {
        let at = Geometry::LANES_AT + u64::from(lane) * slots * LINE;
        side.read(at, &mut ring)?;
        let line = |slot: u64| -> Line {
            let from = (slot % slots * LINE) as usize;
            let mut line = [0; LINE as usize];
            line.copy_from_slice(&ring[from..from + LINE as usize]);
            line
        };
        for slot in 0..slots {
            let mut failed = None;
            let more = |from: More, n: u64| match from {
                More::Lane => (n + 1 < slots).then(|| line(slot + 1 + n)),
                More::Spill => {
                    let spill = spill.as_ref().filter(|_| n < spill_lines)?;
                    let mut line = [0; LINE as usize];
                    spill.read(n * LINE, &mut line).map_err(|error| failed = Some(error)).ok()?;
                    Some(line)
                }
            };
            let record = decode(seal, at + slot * LINE, &line(slot), max_entries, more);
            if let Some(error) = failed {
                return Err(error);
            }
            let sensible = |record: &Record| {
                record.seq > cut
                    && record.seq <= MAX_NUMBER
                    && record.len <= MAX_LEN
                    && record.entries.iter().all(|entry| entry.page < pages(record.len))
            };
            records.extend(record.filter(sensible).map(|record| (lane, record)));
        }
    }
    records.sort_by_key(|(_, record)| record.seq);
    Ok(records)
}

/// For each record, ascending by number, whether a later one proves that its fence was passed: a lane and a page are
/// each written by one at a time.
fn proven(records: &[(u32, Record)]) -> Vec<bool> {
    let mut lanes = HashSet::new();
    let mut pages = HashSet::new();
    let mut proven: Vec<bool> = records
        .iter()
        .rev()
        .map(|(lane, record)| {
            let page_seen = record.entries.iter().any(|entry| pages.contains(&entry.page));
            pages.extend(record.entries.iter().map(|entry| entry.page));
            // Not short-circuited: the lane must be noted in any case.
            let lane_seen = !lanes.insert(*lane);
            lane_seen || page_seen
        })
        .collect();
    proven.reverse();
    proven
}

impl<M: Medium> Reflection<M> {
    /// Brings the state in memory to the last commit. Writes nothing.
    pub(super) fn replay(&mut self, records: Vec<(u32, Record)>) -> Result<()> {
        let (left, retirement, sums) = {
            let ledger = self.ledger.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            let superblock = &ledger.superblock;
            (superblock.left, ledger.retirement, (superblock.bitmap_sum, superblock.slice_sum))
        };
        let max_pages = self.state.max_pages;
        // Pages that have, or had, slices in the sidecar.
        let mut reflected = Vec::new();
        self.places.load(&self.side, &self.sidecar, max_pages, |page, bitmap| {
            if bitmap != 0 {
                reflected.push(page);
                self.state.pages[page as usize].restore(bitmap);
                self.state.epochs[page as usize].committed.store(bitmap, Ordering::Relaxed);
                if let Some(at) = self.places.reflection(page) {
                    self.side_space.learn(at);
                }
            }
        })?;
        let head = self.state.head();
        if left == Left::Clean {
            let (bitmap_sum, slice_sum) = self.digests(self.options.verify)?;
            if bitmap_sum != sums.0 || self.options.verify && slice_sum != sums.1 {
                return Err(Error::Corrupt {
                    path: self.sidecar.clone(),
                    offset: None,
                    what: "its bitmaps or slices are not what they were when it was closed".to_owned(),
                });
            }
        }
        let mut recovery = Recovery { was_needed: left == Left::Open, ..Recovery::default() };
        let highest = records.iter().map(|(_, record)| record.seq).fold(retirement.cut, u64::max);
        let proven = proven(&records);
        let mut changed = Vec::new();
        let mut len = retirement.len;
        for (n, ((_, record), proven)) in records.iter().zip(proven).enumerate() {
            self.options.report("replaying records", n as u64, records.len() as u64);
            if !(proven || record.certain || self.arrived(record)?) {
                recovery.discarded += 1;
                continue;
            }
            recovery.replayed += 1;
            if record.len < len {
                for &page in reflected.iter().filter(|&&page| page >= pages(record.len)) {
                    self.restore(page, 0, &mut changed);
                }
            }
            len = record.len;
            for entry in &record.entries {
                reflected.push(entry.page);
                self.restore(entry.page, entry.bitmap, &mut changed);
            }
        }
        head.len.store(len, Ordering::Relaxed);
        head.floor.store(highest, Ordering::Relaxed);
        changed.sort_unstable();
        changed.dedup();
        self.recovery = recovery;
        self.changed = changed;
        if recovery.was_needed {
            tracing::info!(
                path = %self.path.display(), replayed = recovery.replayed, discarded = recovery.discarded, "recovered"
            );
        }
        Ok(())
    }

    fn restore(&self, page: u64, bitmap: u64, changed: &mut Vec<u64>) {
        let state = &self.state.pages[page as usize];
        if state.bitmap() != bitmap {
            state.restore(bitmap);
            self.state.epochs[page as usize].committed.store(bitmap, Ordering::Relaxed);
            changed.push(page);
        }
    }

    /// Whether the data of a record is what its checksum says.
    fn arrived(&self, record: &Record) -> Result<bool> {
        let placed = |entry: &Entry| entry.bitmap & entry.mask == 0 || self.places.reflection(entry.page).is_some();
        if !record.entries.iter().all(placed) {
            return Ok(false);
        }
        // Bytes beyond the file's end count as zeros, and the end is where this record says.
        self.state.head().len.store(record.len.min(self.data.len()), Ordering::Relaxed);
        let mut sum = DataSum::default();
        let mut image = [0; PAGE as usize];
        for entry in &record.entries {
            for (start, len) in runs(entry.mask) {
                let bytes = &mut image[..(len * SLICE) as usize];
                self.copy_slices(entry.page, entry.bitmap, start, len, bytes)?;
                sum.add(bytes);
            }
        }
        Ok(sum.get() == record.sum)
    }

    /// Makes the bitmaps that replay changed durable, before the records that told of them are retired.
    pub(super) fn write_recovered(&mut self) -> Result<()> {
        let changed = std::mem::take(&mut self.changed);
        for (n, &page) in changed.iter().enumerate() {
            self.options.report("writing bitmaps", n as u64, changed.len() as u64);
            let bitmap = self.state.pages[page as usize].bitmap();
            if bitmap != 0 && self.places.bitmap(page).is_none() {
                return Err(Error::Corrupt {
                    path: self.sidecar.clone(),
                    offset: None,
                    what: format!("page {page} has slices in the sidecar but no place there"),
                });
            }
            self.write_bitmap(page, bitmap)?;
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.medium.fence(barriers::RECOVER_BITMAPS, &[&self.data, &self.side])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64, pages: &[u64]) -> Record {
        let entries = pages.iter().map(|&page| Entry { page, bitmap: 1, mask: 1 }).collect();
        Record { seq, certain: false, sum: 0, len: 1 << 20, entries }
    }

    #[test]
    fn a_later_record_of_the_lane_or_of_a_page_proves_an_earlier_one() {
        let records = [
            (0, record(1, &[1])),
            (1, record(1, &[2])),
            (2, record(2, &[3, 4])),
            (0, record(3, &[4])),
            (3, record(4, &[9])),
        ];
        // Lane 0 goes on; lane 1 has no successor and nobody wrote page 2; page 4 is written again; the rest are last.
        assert_eq!(proven(&records), [true, false, true, false, false]);
        assert_eq!(proven(&[]), [false; 0]);
    }
}
