//! Recovery: from the records that arrived to the one state they prove.
//!
//! # A data file that was cut short
//! A caller who prefers the sidecar opens a data file that is shorter than its last commit made it:
//! 1. Every slice that the last commit has in the sidecar comes back, also where the data file ends before it.
//! 2. A slice that the last commit has at home, behind the cut, is lost and reads as zeros.
//! 3. A record that only its checksum could prove, and that has slices at home behind the cut, can't be verified. It is
//!    dropped whole, and its pages keep the commit before.
//! 4. [`Recovery::lost_bytes`] counts the bytes of 2 and 3.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::layout::pages;
use super::slices::{SLICE, runs};
use super::{Reflection, barriers};
use crate::engine::Recovery;
use crate::error::{Error, Result};
use crate::format::record::{ChecksumSeed, DataSum, Entry, LINE, Line, More, Record, decode, number};
use crate::format::sidecar::superblock::Left;
use crate::format::sidecar::{Geometry, MAX_LEN, MAX_NUMBER, PAGE, spill_path};
use crate::storage::{Access, Medium, MediumFile};

/// Every whole record above the checkpoint, with its lane, ascending by number.
///
/// # Errors
/// [`Error::Corrupt`] where more head lines claim the spill file than commits can have left behind.
pub(super) fn live_records<M: Medium>(
    medium: &M,
    side: &M::File,
    sidecar: &Path,
    geometry: Geometry,
    checksum_seed: ChecksumSeed,
    checkpoint: u64,
) -> Result<Vec<(u32, Record)>> {
    let lane_len = u64::from(geometry.slots) * LINE;
    let mut scan = Scan::new(medium, side, sidecar, geometry)?;
    let mut records = Vec::new();
    for lane in 0..geometry.lanes {
        let at = Geometry::LANES_AT + u64::from(lane) * lane_len;
        side.read(at, &mut scan.ring)?;
        scan.lane(at, checksum_seed, checkpoint, |record| records.push((lane, record)))?;
    }
    records.sort_by_key(|(_, record)| record.seq);
    Ok(records)
}

/// How often the whole spill file may be read. It belongs to one head line, and each head line that a torn commit left
/// behind with the same number reads it once more; that takes a crash within one commit, again and again, with no
/// progress between. What [`SPILL_ALLOWANCE`] covers, any number of head lines may read.
const SPILL_READS: u64 = 16;
/// Lines of spill file, 1 GiB, that are read whoever asks.
const SPILL_ALLOWANCE: u64 = 1 << 24;

/// Looks for the records of one lane after the other, in time linear in what there is to read, also where somebody
/// forged it: a line of a lane is looked at as a head line, as the further line of the one head line before it, and
/// where another record ends.
struct Scan<'a, F> {
    /// The lane at hand.
    ring: Vec<u8>,
    /// The spill file, until the one record is found that it belongs to.
    spill: Option<F>,
    spill_lines: u64,
    /// Lines of the spill file that may be read before somebody must have forged it.
    spill_allowance: u64,
    sidecar: &'a Path,
    /// Further lines looked at so far, in lanes and in the spill file.
    looked_at: (u64, u64),
}

impl<'a, F: MediumFile> Scan<'a, F> {
    fn new(medium: &impl Medium<File = F>, side: &F, sidecar: &'a Path, geometry: Geometry) -> Result<Self> {
        // What the cache has of it can be relied on: the line that refers to it was stored after its flush had
        // succeeded.
        let spill_at = spill_path(sidecar);
        let spill = match medium.exists(&spill_at)? {
            // Whoever may write the sidecar may write its spill file.
            true => Some(medium.open_companion(&spill_at, Access::Read, 0, side)?),
            false => None,
        };
        let spill_lines = spill.as_ref().map_or(0, MediumFile::len) / LINE;
        let ring = vec![0; (u64::from(geometry.slots) * LINE) as usize];
        let spill_allowance = (SPILL_READS * spill_lines).max(SPILL_ALLOWANCE);
        Ok(Scan { ring, spill, spill_lines, spill_allowance, sidecar, looked_at: (0, 0) })
    }

    /// Calls `found` with every record of the lane at hand, which begins at byte `at` of the sidecar.
    fn lane(
        &mut self,
        at: u64,
        checksum_seed: ChecksumSeed,
        checkpoint: u64,
        mut found: impl FnMut(Record),
    ) -> Result<()> {
        let slots = self.ring.len() as u64 / LINE;
        let (lane_lines, spill_lines) = &mut self.looked_at;
        let ring = &self.ring;
        let line = |slot: u64| -> Line {
            let from = (slot % slots * LINE) as usize;
            let mut line = [0; LINE as usize];
            line.copy_from_slice(&ring[from..from + LINE as usize]);
            line
        };
        for slot in 0..slots {
            let first = line(slot);
            if number(&first) <= checkpoint || number(&first) > MAX_NUMBER {
                continue;
            }
            let offset = at + slot * LINE;
            let (mut failed, mut spilled) = (None, false);
            let more = |from: More, n: u64| match from {
                More::Lane => (n + 1 < slots).then(|| {
                    *lane_lines += 1;
                    line(slot + 1 + n)
                }),
                More::Spill => {
                    let spill = self.spill.as_ref().filter(|_| n < self.spill_lines)?;
                    spilled = true;
                    *spill_lines += 1;
                    if *spill_lines > self.spill_allowance {
                        let what = "more records claim the spill file than unfinished commits can have written";
                        let (path, what) = (self.sidecar.to_owned(), what.to_owned());
                        failed = Some(Error::Corrupt { path, offset: Some(offset), what });
                        return None;
                    }
                    let mut line = [0; LINE as usize];
                    spill.read(n * LINE, &mut line).map_err(|error| failed = Some(error)).ok()?;
                    Some(line)
                }
            };
            // A spilled record cannot have more entries than its file has room for, nor one in a lane more than the
            // lane.
            let record = decode(checksum_seed, offset, &first, 2 * (slots + self.spill_lines), more);
            if let Some(error) = failed {
                return Err(error);
            }
            if spilled && record.is_some() {
                // It belongs to no other record: the next commit that spills writes a new one.
                self.spill = None;
            }
            let sensible = |record: &Record| {
                // The bug that `cargo xtask fuzz --plant` plants: a page beyond the file is believed.
                let inside = |entry: &Entry| entry.page < pages(record.len) || cfg!(untorn_plant);
                record.len <= MAX_LEN && record.entries.iter().all(inside)
            };
            if let Some(record) = record.filter(sensible) {
                found(record);
            }
        }
        Ok(())
    }
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

/// How many bytes of a range of the file these slices of a page have.
fn bytes_of(page: u64, slices: u64, range: Range<u64>) -> u64 {
    runs(slices)
        .map(|(start, count)| {
            let from = page * PAGE + start * SLICE;
            (from + count * SLICE).min(range.end).saturating_sub(from.max(range.start))
        })
        .sum()
}

impl<M: Medium> Reflection<M> {
    /// Brings the state in memory to the last commit. Writes nothing.
    pub(super) fn replay(&mut self, records: Vec<(u32, Record)>) -> Result<()> {
        let (left, retirement, sums) = {
            let sidecar_state = self.sidecar_state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            let superblock = &sidecar_state.superblock;
            (superblock.left, sidecar_state.retirement, (superblock.bitmap_sum, superblock.slice_sum))
        };
        let max_pages = self.state.max_pages;
        // Pages that have, or had, slices in the sidecar.
        let mut reflected = BTreeSet::new();
        let mut room = Ok(());
        self.places.load(&self.side, &self.sidecar, max_pages, |page, bitmap| {
            if bitmap != 0 && room.is_ok() {
                room = self.state.fit(page + 1);
            }
            if bitmap != 0 && room.is_ok() {
                reflected.insert(page);
                self.state.restore(page, bitmap);
                if let Some(at) = self.places.reflection(page) {
                    self.side_space.learn(at);
                }
            }
        })?;
        let no_room = |error| Error::io("reserve memory for", &self.path, error);
        room.map_err(no_room)?;
        let head = self.state.head();
        if left == Left::Clean {
            let (bitmap_sum, slice_sum) = self.digests(self.options.verify)?;
            if bitmap_sum != sums.0 || self.options.verify && slice_sum != sums.1 {
                let what = "its bitmaps or slices do not match the checksums recorded when the file was closed";
                return Err(Error::Corrupt { path: self.sidecar.clone(), offset: None, what: what.to_owned() });
            }
        }
        let mut recovery = Recovery { was_needed: left == Left::Open, ..Recovery::default() };
        let highest = records.iter().map(|(_, record)| record.seq).fold(retirement.checkpoint, u64::max);
        let proven = proven(&records);
        let mut changed = Vec::new();
        // Of dropped records that a cut of the data file keeps from being verified, by page: what they wrote.
        let mut unverified = BTreeMap::new();
        let mut len = retirement.len;
        for (n, ((_, record), proven)) in records.iter().zip(proven).enumerate() {
            self.options.report("replaying records", n as u64, records.len() as u64);
            let is_certain = proven || record.certain;
            if !is_certain && self.is_cut(record) {
                unverified.extend(record.entries.iter().map(|entry| (entry.page, entry.mask)));
                recovery.discarded += 1;
                continue;
            }
            if !(is_certain || self.arrived(record)?) {
                recovery.discarded += 1;
                continue;
            }
            recovery.replayed += 1;
            if record.len < len {
                for page in reflected.split_off(&pages(record.len)) {
                    self.restore(page, 0, &mut changed);
                }
            }
            len = record.len;
            for entry in &record.entries {
                self.state.fit(entry.page + 1).map_err(no_room)?;
                reflected.insert(entry.page);
                self.restore(entry.page, entry.bitmap, &mut changed);
            }
        }
        head.len.store(len, Ordering::Relaxed);
        head.floor.store(highest, Ordering::Relaxed);
        self.recovered_time = retirement.time;
        if recovery.was_needed {
            self.recovered_time = self.recovered_time.max(self.side.stamp()?.modified);
        }
        recovery.lost_bytes = self.lost(len, &reflected, &unverified);
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
            self.state.restore(page, bitmap);
            changed.push(page);
        }
    }

    /// Whether a record has slices at home that the data file is too short for.
    fn is_cut(&self, record: &Record) -> bool {
        let end = record.len.min(MAX_LEN);
        self.data.len() < end
            && record.entries.iter().any(|entry| {
                let home = entry.mask & !entry.bitmap;
                bytes_of(entry.page, home, self.data.len()..end) > 0
            })
    }

    /// Bytes of the last commit that a data file shorter than that no longer has, and the sidecar neither.
    fn lost(&self, len: u64, reflected: &BTreeSet<u64>, unverified: &BTreeMap<u64, u64>) -> u64 {
        let has = self.data.len();
        if has >= len {
            return 0;
        }
        let dropped = |page: &u64| unverified.get(page).copied().unwrap_or(0);
        let held = |page: &u64| {
            let bitmap = self.state.pages[*page as usize].bitmap();
            bytes_of(*page, bitmap & !dropped(page), has..len)
        };
        let held: u64 = reflected.range(has / PAGE..).map(held).sum();
        let before: u64 = unverified.iter().map(|(page, mask)| bytes_of(*page, *mask, 0..has)).sum();
        len - has - held + before
    }

    /// Whether the data of a record is what its checksum says.
    fn arrived(&self, record: &Record) -> Result<bool> {
        let placed = |entry: &Entry| entry.bitmap & entry.mask == 0 || self.places.reflection(entry.page).is_some();
        if !record.entries.iter().all(placed) {
            return Ok(false);
        }
        // Bytes beyond the file's end count as zeros, and the end is where this record says. The data file may end
        // before it: then the sidecar has all that this record needs from there.
        self.state.head().len.store(record.len, Ordering::Relaxed);
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

    /// Whether the sidecar has room for the bitmap of a page.
    fn has_bitmap(&self, page: u64) -> bool {
        // In the dense form every page has a place by its number, also where the sidecar ends before it.
        self.places.bitmap(page).is_some_and(|at| at + size_of::<u64>() as u64 <= self.side.len())
    }

    /// That each page which replay changed has the place that its bitmap needs. Writes nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn check_recovered(&self) -> Result<()> {
        let lacks_room = |&&page: &&u64| self.state.pages[page as usize].bitmap() != 0 && !self.has_bitmap(page);
        self.changed.iter().find(lacks_room).map_or(Ok(()), |page| {
            let what = format!("page {page} has slices in the sidecar, but no slot holds them");
            Err(Error::Corrupt { path: self.sidecar.clone(), offset: None, what })
        })
    }

    /// Makes the bitmaps that replay changed durable, before the records that told of them are retired. All have a
    /// place that need one.
    pub(super) fn write_recovered(&mut self) -> Result<()> {
        let changed = std::mem::take(&mut self.changed);
        for (n, &page) in changed.iter().enumerate() {
            self.options.report("writing bitmaps", n as u64, changed.len() as u64);
            if self.has_bitmap(page) {
                self.write_bitmap(page, self.state.pages[page as usize].bitmap())?;
            }
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
    use crate::format::record::encode_spilled;
    use crate::storage::PageCache;

    fn record(seq: u64, pages: &[u64]) -> Record {
        let entries = pages.iter().map(|&page| Entry { page, bitmap: 1, mask: 1 }).collect();
        Record { seq, certain: false, sum: 0, len: 1 << 20, entries }
    }

    #[test]
    fn a_record_is_proven_by_a_later_one_of_its_lane_or_page() {
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

    const GEOMETRY: Geometry = Geometry { lanes: 2, slots: 256 };
    const SEAL: [u8; 16] = [5; 16];

    /// What is looked at, in lanes and in the spill file, in a sidecar whose lanes and spill file hold these lines, and
    /// how many records are found.
    fn looked_at(lines: &[Line], spill: &[Line]) -> Result<((u64, u64), usize)> {
        let dir = tempfile::tempdir().unwrap();
        let sidecar = dir.path().join("7");
        std::fs::write(spill_path(&sidecar), spill.concat()).unwrap();
        let medium = PageCache::default();
        let side = medium.create(&sidecar, 0, 0)?;
        let mut scan = Scan::new(&medium, &side, &sidecar, GEOMETRY)?;
        // Smaller than in earnest, to be exceeded sooner.
        scan.spill_allowance = SPILL_READS * scan.spill_lines;
        let mut found = 0;
        for (lane, lines) in lines.chunks(GEOMETRY.slots as usize).enumerate() {
            scan.ring.copy_from_slice(&lines.concat());
            let at = Geometry::LANES_AT + lane as u64 * u64::from(GEOMETRY.slots) * LINE;
            scan.lane(at, ChecksumSeed::new(&SEAL, 1), 3, |_| found += 1)?;
        }
        Ok((scan.looked_at, found))
    }

    /// A head line that claims `count` entries, with any number, flags and check.
    fn claim(seq: u64, flags: u16, count: u32, check: u64) -> Line {
        let mut line = [0; LINE as usize];
        line[..8].copy_from_slice(&seq.to_le_bytes());
        line[8..10].copy_from_slice(&flags.to_le_bytes());
        line[12..16].copy_from_slice(&count.to_le_bytes());
        line[56..].copy_from_slice(&check.to_le_bytes());
        line
    }

    #[test]
    fn forged_lanes_take_time_linear_in_their_size() {
        let slots = u64::from(GEOMETRY.lanes * GEOMETRY.slots);
        // Each line a head line that claims the whole lane, or one that would be a further line too, or both in turn.
        for (what, check) in [("heads", [1, 1]), ("further lines", [0, 0]), ("in turn", [1, 0])] {
            let lines: Vec<Line> = (0..slots as usize).map(|n| claim(9, 0, 400, check[n % 2])).collect();
            let ((lane, spill), found) = looked_at(&lines, &[]).unwrap();
            assert!(lane <= 2 * slots && spill == 0 && found == 0, "{what}: {lane} lines of {slots}");
        }
        // One long run of further lines with a head line before each lane's.
        let lines: Vec<Line> = (0..slots as usize).map(|n| claim(9, 0, 400, u64::from(n % 256 == 0))).collect();
        let ((lane, _), _) = looked_at(&lines, &[]).unwrap();
        assert!((400..=2 * slots).contains(&lane), "{lane} lines of {slots}");
    }

    #[test]
    fn retired_lines_are_not_followed() {
        let lines = vec![claim(3, 0, 400, 1); 512];
        assert_eq!(looked_at(&lines, &[claim(3, 0, 0, 0); 9]).unwrap(), ((0, 0), 0));
    }

    #[test]
    fn a_spill_file_is_read_for_few_records_and_belongs_to_one() {
        let pages: Vec<u64> = (0..600).collect();
        let record = |seq| Record { len: 600 * PAGE, ..record(seq, &pages) };
        let at = |slot: usize| Geometry::LANES_AT + slot as u64 * LINE;
        let mut lines = vec![[0; LINE as usize]; 512];
        // Two whole records that share a file exist only where somebody forged them; the first is believed.
        let mut spill = Vec::new();
        for slot in [3, 300] {
            let encoded = encode_spilled(ChecksumSeed::new(&SEAL, 1), at(slot), &record(9), Path::new("f")).unwrap();
            lines[slot] = encoded[0];
            spill = encoded[1..].to_vec();
        }
        assert_eq!(looked_at(&lines, &spill).unwrap(), ((0, 300), 1));
        // What a torn commit with the same number left behind does not hide the one that is whole.
        lines[..3].fill(claim(9, 2, 600, 1));
        assert_eq!(looked_at(&lines, &spill).unwrap(), ((0, 4 * 300), 1));
        // A forger lets every line of the lanes read all of it.
        lines.fill(claim(9, 2, 600, 1));
        let error = looked_at(&lines, &spill).unwrap_err();
        assert!(matches!(error, Error::Corrupt { offset: Some(_), .. }), "{error}");
    }
}
