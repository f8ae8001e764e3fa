//! Recovery: it finds the last whole epoch from the records and headers that arrived.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::thread::available_parallelism;

use super::chunk_space::headers_len;
use super::commit::{MILLISECOND, RECORDS, record_at};
use super::format::{Digest, EpochRecord, Header, Kind, check_of, epoch_of, sum_of};
use super::meta::Extent;
use super::{Core, inline};
use crate::engine::Recovery;
use crate::error::{Error, Result};
use crate::format::record::LINE;
use crate::format::sidecar::superblock::Left;
use crate::format::sidecar::{MAX_LEN, MAX_NUMBER, MAX_NUMBER_AT_OPEN, PAGE};
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sync::word_lock::lock;

/// Bytes from which on several threads recover.
const WORTH_THREADS: u64 = 8 << 20;

/// An entry whose header arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) header: Header,
    pub(super) unit: u64,
    check: u64,
}

/// What the log holds, and what it proves.
pub(super) struct Found {
    was_needed: bool,
    /// The last epoch that is whole.
    pub(super) committed: u64,
    /// The file's length then.
    pub(super) len: u64,
    /// When it was made, in nanoseconds since 1970; 0 if that is not known.
    pub(super) time: u64,
    /// Redo entries of committed epochs, by region of the file and then by epoch.
    replay: Vec<Entry>,
    /// Undo entries of what did not commit, by region and then the latest epoch first.
    revert: Vec<Entry>,
    /// Entries that count for nothing.
    dropped: u64,
    /// Bytes of the file's last commit that neither the data file nor the log has any more.
    lost: u64,
}

impl Found {
    /// Reads the log. Writes nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where what must be there is not.
    pub(super) fn read<M: Medium>(core: &Core<M>) -> Result<Self> {
        let (left, retirement) = {
            let sidecar_state = lock(&core.sidecar_state, core.relax());
            (sidecar_state.superblock.left, sidecar_state.retirement)
        };
        let mut found = Found {
            was_needed: left == Left::Open,
            committed: retirement.checkpoint,
            len: retirement.len,
            time: retirement.time,
            replay: Vec::new(),
            revert: Vec::new(),
            dropped: 0,
            lost: 0,
        };
        if left != Left::Open {
            found.lost = found.lost_of(core.data.len());
            return Ok(found);
        }
        let mut records = core.read_records(retirement.checkpoint)?;
        let (entries, more) = core.read_headers(retirement.checkpoint)?;
        records.extend(more.into_iter().map(|record| (record.epoch, record)));
        found.committed = core.last_whole(retirement.checkpoint, &records, &entries)?;
        if found.committed > MAX_NUMBER_AT_OPEN {
            let what = format!("the durable epoch number {} is higher than any file can reach", found.committed);
            return Err(Error::Corrupt { path: core.sidecar.clone(), offset: None, what });
        }
        if let Some(record) = records.get(&found.committed) {
            found.len = record.len;
            found.time = found.time.max(record.time.saturating_mul(MILLISECOND));
        } else if found.committed != retirement.checkpoint {
            let what = format!("epoch {} is durable, but its commit record is missing", found.committed);
            return Err(core.corrupt(record_at(found.committed), what));
        }
        for entry in entries {
            match (entry.header.kind, entry.header.epoch <= found.committed) {
                (Kind::Redo, true) => found.replay.push(entry),
                (Kind::Undo, false) => found.revert.push(entry),
                // Undo of what is committed is of no more use, but only the other was given up by the crash.
                (Kind::Undo, true) => {}
                (Kind::Redo, false) => found.dropped += 1,
            }
        }
        let top = core.chunks.top_class();
        found.replay.sort_by_key(|entry| (entry.header.block >> top, entry.header.epoch));
        found.revert.sort_by_key(|entry| (entry.header.block >> top, Reverse(entry.header.epoch)));
        found.lost = found.lost_of(core.data.len());
        Ok(found)
    }

    /// Bytes of the last commit that a data file of `has` bytes is too short for, and that are not in the log.
    fn lost_of(&self, has: u64) -> u64 {
        let within = |entry: &Entry| {
            let start = entry.header.block * PAGE + u64::from(entry.header.offset);
            (start.max(has), (start + u64::from(entry.header.len)).min(self.len))
        };
        let mut held: Vec<(u64, u64)> = self.replay.iter().map(within).filter(|(start, end)| start < end).collect();
        held.sort_unstable();
        let (mut at, mut lost) = (has.min(self.len), 0);
        for (start, end) in held {
            lost += start.saturating_sub(at);
            at = at.max(end);
        }
        lost + self.len - at
    }

    /// The entries whose bytes recovery stores to the file, in their order.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.revert.iter().chain(&self.replay)
    }

    pub(super) fn summary(&self) -> Recovery {
        Recovery {
            was_needed: self.was_needed,
            replayed: self.replay.len() as u64,
            discarded: self.dropped + self.revert.len() as u64,
            dropped_commits: 0,
            lost_bytes: self.lost,
        }
    }
}

/// Whether a record could have been written.
fn is_sensible(record: &EpochRecord) -> bool {
    record.epoch <= MAX_NUMBER && record.len <= MAX_LEN && record.proves < record.epoch
}

/// The units of an entry.
fn units_of(header: &Header) -> u64 {
    // A class that no header has leaves no room for it either.
    if header.inline {
        inline::units(header.len)
    } else {
        1_u64.checked_shl(header.class.into()).unwrap_or(u64::MAX >> 1)
    }
}

impl<M: Medium> Core<M> {
    /// The records of epochs above the cut, those that stand at their own place.
    fn read_records(&self, checkpoint: u64) -> Result<BTreeMap<u64, EpochRecord>> {
        let mut records = BTreeMap::new();
        for place in 0..RECORDS {
            let mut line = [0; LINE as usize];
            let at = record_at(place);
            self.side.read(at, &mut line)?;
            let record = EpochRecord::decode(self.checksum_seed, at, &line);
            let in_place = |record: &EpochRecord| record_at(record.epoch) == at && is_sensible(record);
            if let Some(record) = record.filter(in_place).filter(|record| record.epoch >= checkpoint) {
                records.insert(record.epoch, record);
            }
        }
        Ok(records)
    }

    /// The entries of epochs above the cut whose headers are whole, and the records of such epochs that stand among the
    /// headers.
    fn read_headers(&self, checkpoint: u64) -> Result<(Vec<Entry>, Vec<EpochRecord>)> {
        let chunks = self.chunks.with_headers(&self.side);
        let bytes = chunks.len() as u64 * headers_len(self.chunks.units);
        let read = |chunks: &[u64]| -> Result<(Vec<Entry>, Vec<EpochRecord>)> {
            let mut headers = vec![0; headers_len(self.chunks.units) as usize];
            let mut found = (Vec::new(), Vec::new());
            for &chunk in chunks {
                self.read_headers_of(chunk, checkpoint, &mut headers, &mut found)?;
            }
            Ok(found)
        };
        let (entries, records): (Vec<_>, Vec<_>) = in_parallel(&chunks, bytes, read)?.into_iter().unzip();
        Ok((entries.concat(), records.concat()))
    }

    fn read_headers_of(
        &self,
        chunk: u64,
        checkpoint: u64,
        headers: &mut [u8],
        (entries, records): &mut (Vec<Entry>, Vec<EpochRecord>),
    ) -> Result<()> {
        let units = self.chunks.units;
        self.side.read(self.chunks.header_at(chunk * units), headers)?;
        let (lines, _) = headers.as_chunks::<{ LINE as usize }>();
        let mut taken = 0;
        for (index, line) in (0..units).zip(lines) {
            // Entries of one life of a chunk do not overlap, and those of an earlier one are retired; so whatever is
            // forged, no byte of the log is looked at for two of them.
            if index < taken || epoch_of(line) <= checkpoint {
                continue;
            }
            let unit = chunk * units + index;
            let at = self.chunks.header_at(unit);
            let Some(header) = Header::decode(self.checksum_seed, at, line) else {
                let record = if self.inline { EpochRecord::decode(self.checksum_seed, at, line) } else { None };
                records.extend(record.filter(is_sensible));
                continue;
            };
            if self.is_sensible(&header, index) {
                taken = index + units_of(&header);
                entries.push(Entry { header, unit, check: check_of(line) });
            }
        }
        Ok(())
    }

    /// Whether a header, which stands for the unit of this number in its chunk, could have been written.
    fn is_sensible(&self, header: &Header, index: u64) -> bool {
        let class_fits = header.class <= self.chunks.top_class() && index + units_of(header) <= self.chunks.units;
        let may_be_inline = self.inline && header.kind == Kind::Redo && header.class == 0 && header.len <= inline::MOST;
        class_fits
            && (!header.inline || may_be_inline)
            && header.block.trailing_zeros() >= u32::from(header.class)
            && header.block <= MAX_LEN / PAGE
            && u64::from(header.offset) + u64::from(header.len) <= PAGE << header.class
            && header.epoch <= MAX_NUMBER
            && header.proves < header.epoch
    }

    /// The last epoch that is whole, and all before it.
    fn last_whole(&self, checkpoint: u64, records: &BTreeMap<u64, EpochRecord>, entries: &[Entry]) -> Result<u64> {
        let proofs =
            entries.iter().map(|entry| entry.header.proves).chain(records.values().map(|record| record.proves));
        let mut last = proofs.fold(checkpoint, u64::max);
        if last > checkpoint {
            self.check_proven(records.range(checkpoint + 1..=last), entries)?;
        }
        while let Some(record) = records.get(&(last + 1)) {
            let whole = match record.digest {
                None => true,
                Some(digest) => self.adds_up(last + 1, digest, entries)?,
            };
            if !whole {
                break;
            }
            last += 1;
        }
        Ok(last)
    }

    /// That nothing of epochs which are known to have been durable has gone bad since, as far as it can be told: no
    /// crash takes something of them away, so what is missing was damaged, and without it the file would be a
    /// mixture. Of an epoch whose record has no digest, or is written over by now, entries may have been stored to
    /// after their sums were taken; and of one that logged undo nothing is needed any more.
    fn check_proven<'a>(
        &self,
        records: impl Iterator<Item = (&'a u64, &'a EpochRecord)>,
        entries: &[Entry],
    ) -> Result<()> {
        let mut digests: BTreeMap<u64, Digest> =
            records.filter_map(|(&epoch, record)| Some((epoch, record.digest?))).collect();
        // All entries of an epoch are of one kind.
        for entry in entries.iter().filter(|entry| entry.header.kind == Kind::Undo) {
            digests.remove(&entry.header.epoch);
        }
        let mut found: BTreeMap<u64, Digest> = digests.keys().map(|&epoch| (epoch, Digest::default())).collect();
        let mut redo = Vec::new();
        for entry in entries {
            if let Some(digest) = found.get_mut(&entry.header.epoch) {
                digest.add(entry.check);
                redo.push(*entry);
            }
        }
        for (epoch, digest) in digests {
            let found = found.get(&epoch).copied().unwrap_or_default();
            if found != digest {
                let what = format!(
                    "epoch {epoch} was durable with {} log entries, but the {} entries found do not match the digest \
                     in its commit record",
                    digest.count, found.count
                );
                return Err(self.corrupt(record_at(epoch), what));
            }
        }
        let bytes = redo.iter().map(|entry| u64::from(entry.header.len)).sum();
        let verify = |entries: &[Entry]| -> Result<()> {
            let mut image = Vec::new();
            for entry in entries {
                if !self.is_whole(entry, &mut image)? {
                    let at = self.chunks.bytes_at(entry.unit) + u64::from(entry.header.offset);
                    let Header { epoch, len, .. } = entry.header;
                    let what = format!("{len} bytes of the durable epoch {epoch} do not match their checksum");
                    return Err(self.corrupt(at, what));
                }
            }
            Ok(())
        };
        in_parallel(&redo, bytes, verify).map(drop)
    }

    fn corrupt(&self, offset: u64, what: String) -> Error {
        Error::Corrupt { path: self.sidecar.clone(), offset: Some(offset), what }
    }

    /// Whether everything of an epoch arrived.
    fn adds_up(&self, epoch: u64, digest: Digest, entries: &[Entry]) -> Result<bool> {
        let mine: Vec<Entry> = entries.iter().filter(|entry| entry.header.epoch == epoch).copied().collect();
        let mut sum = Digest::default();
        mine.iter().for_each(|entry| sum.add(entry.check));
        if sum != digest {
            return Ok(false);
        }
        let bytes = mine.iter().map(|entry| u64::from(entry.header.len)).sum();
        let verify = |entries: &[Entry]| -> Result<bool> {
            let mut image = Vec::new();
            for entry in entries {
                if !self.is_whole(entry, &mut image)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        Ok(in_parallel(&mine, bytes, verify)?.into_iter().all(|whole| whole))
    }

    /// Whether the bytes of an entry, or under undo those in their place, are those its header was made for.
    fn is_whole(&self, entry: &Entry, image: &mut Vec<u8>) -> Result<bool> {
        let header = &entry.header;
        image.resize(header.len as usize, 0);
        let expected = match header.kind {
            Kind::Redo => {
                self.read_entry(entry, image)?;
                header.sum
            }
            Kind::Undo => {
                let offset = header.block * PAGE + u64::from(header.offset);
                if offset + u64::from(header.len) > self.data.len() {
                    return Ok(false);
                }
                self.data.read(offset, image)?;
                header.after
            }
        };
        Ok(expected == Some(sum_of(image)))
    }

    /// Brings the committed bytes home, and back what was not committed.
    pub(super) fn apply(&self, found: &Found) -> Result<()> {
        self.bring_home_in_parallel("rolling back uncommitted writes", &found.revert)?;
        self.bring_home_in_parallel("replaying the log", &found.replay)
    }

    /// Stores what entries hold, those of one region in their order. No cover lies in two regions.
    fn bring_home_in_parallel(&self, what: &'static str, entries: &[Entry]) -> Result<()> {
        let top = self.chunks.top_class();
        let region = |entry: &Entry| entry.header.block >> top;
        let regions: Vec<&[Entry]> = entries.chunk_by(|one, two| region(one) == region(two)).collect();
        let bytes = entries.iter().map(|entry| u64::from(entry.header.len)).sum();
        let total = regions.len() as u64;
        let bring = |regions: &[&[Entry]]| -> Result<()> {
            let mut image = Vec::new();
            for (done, region) in regions.iter().enumerate() {
                for entry in *region {
                    self.read_entry(entry, &mut image)?;
                    // If bytes that were to go back did not arrive, nothing was stored in their place.
                    if entry.header.kind == Kind::Redo || entry.header.sum == Some(sum_of(&image)) {
                        self.put_home(entry, &image)?;
                    }
                }
                self.options.report(what, done as u64, total);
            }
            // Of streaming stores a thread vouches for its own.
            self.medium.order();
            Ok(())
        };
        in_parallel(&regions, bytes, bring).map(drop)
    }

    pub(super) fn read_entry(&self, entry: &Entry, image: &mut Vec<u8>) -> Result<()> {
        image.resize(entry.header.len as usize, 0);
        let Header { offset, len, inline, .. } = entry.header;
        self.read_logged(entry.unit, inline, Extent { offset, end: offset + len }, 0, image)
    }

    fn put_home(&self, entry: &Entry, image: &[u8]) -> Result<()> {
        let offset = entry.header.block * PAGE + u64::from(entry.header.offset);
        // What lies behind the end was cut off, by a later epoch or by a recovery that did not come to its end.
        let within = (self.data.len().saturating_sub(offset) as usize).min(image.len());
        if within == 0 {
            return Ok(());
        }
        self.give_space(offset, within as u64)?;
        self.data.write(offset, &image[..within])
    }

    /// Space for bytes of the data file that go home, where a store into a hole could end in a signal.
    pub(super) fn give_space(&self, offset: u64, len: u64) -> Result<()> {
        if self.class == MediumClass::PersistentMemory {
            for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
                if !self.space.knows(page * PAGE) {
                    self.space.ensure(&self.data, page * PAGE, self.class)?;
                }
            }
        }
        Ok(())
    }
}

/// Does something with all items, divided among as many threads as there are processors if it is about many bytes.
fn in_parallel<T: Sync, R: Send>(items: &[T], bytes: u64, go: impl Fn(&[T]) -> Result<R> + Sync) -> Result<Vec<R>> {
    let threads = if bytes < WORTH_THREADS { 1 } else { available_parallelism().map_or(1, usize::from) };
    if threads == 1 || items.len() < 2 {
        return Ok(vec![go(items)?]);
    }
    let share = items.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let go = &go;
        let started: Vec<_> = items.chunks(share).map(|items| scope.spawn(move || go(items))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<R>>| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        started.into_iter().map(join).collect()
    })
}
