//! Scanning a log: which operations are whole, in which order, and which files they belong to.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::commits::{self, Closed, Commit};
use super::format::{Entry, Geometry, HEADER, Kind, Superblock, TableLine, read_entry, read_tail};
use super::pack::{Packed, unpack};
use super::spill::Spilled;
use crate::error::{Error, Result};
use crate::format::record::ChecksumSeed;
use crate::storage::MediumFile;

/// An operation that arrived whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) position: u64,
    pub(super) order: u64,
    pub(super) uid: u64,
    pub(super) kind: Kind,
    pub(super) value: u64,
    pub(super) len: u64,
    pub(super) parts: u64,
    /// When the file got it; 0 if that is not known.
    pub(super) time: u64,
    /// Which of the [spilled writes](Scan::spilled) it is.
    pub(super) spilled: Option<usize>,
    /// Whether that is a [pack](super::pack) of changes, and not the bytes of one.
    pub(super) is_packed: bool,
}

/// What is in a log.
pub(super) struct Scan<F> {
    pub(super) geometry: Geometry,
    pub(super) checksum_seed: ChecksumSeed,
    /// In the order in which they are to be done.
    pub(super) operations: Vec<Operation>,
    /// By number: the slot, the copy that counts, and what it says.
    pub(super) table: HashMap<u64, (u32, usize, TableLine)>,
    pub(super) incomplete: u64,
    pub(super) spilled: Vec<Spilled>,
    /// The spill file, if a whole entry needs it, and it is there.
    pub(super) spill: Option<F>,
    /// Files with changes of an epoch that no commit closed.
    pub(super) open_epochs: u64,
    /// Numbered Commits that count, in order: each is to have a record in its file's commit log.
    pub(super) closed: Vec<Closed>,
    /// Where an entry may be the log has zeros only, as far as the first bytes of each place tell.
    pub(super) is_blank: bool,
}

/// Bytes read on before it is asked again whether the log has a hole there.
const LOOK: u64 = 1 << 20;

/// The slots that may hold something: a log may be as long as its owner likes, and a scan costs what it holds.
fn written_slots<F: MediumFile>(file: &F, geometry: Geometry) -> impl Iterator<Item = u64> {
    let (first, slot_len) = (geometry.entry_at(0), geometry.entry_at(1) - geometry.entry_at(0));
    let (mut slot, mut looked) = (0, 0);
    std::iter::from_fn(move || {
        let at = first + slot * slot_len;
        if slot < geometry.slots && at >= looked {
            let data = file.next_data(at)?;
            slot = (data - first) / slot_len;
            looked = data.max(at) + LOOK;
        }
        slot += 1;
        (slot <= geometry.slots).then_some(slot - 1)
    })
}

/// Reads bytes of a spilled write. False if the spill file does not have what was written.
pub(super) fn read_spilled<F: MediumFile>(
    spill: Option<&F>,
    seed: ChecksumSeed,
    spilled: &Spilled,
    range: std::ops::Range<u64>,
    buffer: &mut Vec<u8>,
) -> Result<bool> {
    let Some(file) = spill else { return Ok(false) };
    let read = |at: u64, dst: &mut [u8]| {
        let there = file.len().saturating_sub(at).min(dst.len() as u64) as usize;
        // A crash may leave it shorter than any of its chunks.
        if there == 0 { Ok(0) } else { file.read(at, &mut dst[..there]).map(|()| there) }
    };
    spilled.read(seed, range.start, range.end - range.start, buffer, read)
}

/// Gives each change of a pack to `each`, in order. False if the pack is not whole.
pub(super) fn unpack_spilled<F: MediumFile>(
    spill: Option<&F>,
    seed: ChecksumSeed,
    pack: &Spilled,
    each: impl FnMut(Packed<'_>) -> Result<bool>,
) -> Result<bool> {
    let most = spill.map_or(0, MediumFile::len);
    unpack(pack, most, |pack, range, buffer| read_spilled(spill, seed, pack, range, buffer), each)
}

/// Reads a log through. `open_spill` opens its spill file.
pub(super) fn scan<F: MediumFile>(
    file: &F,
    path: &Path,
    superblock: &Superblock,
    open_spill: impl FnOnce() -> Result<Option<F>>,
) -> Result<Scan<F>> {
    let (geometry, checksum_seed) = (superblock.geometry, superblock.checksum_seed());
    let tail = read_tail(file, checksum_seed)?;
    let mut entries = BTreeMap::new();
    let mut data = Vec::new();
    let mut is_blank = true;
    let mut committed = HashMap::new();
    let mut spilled = Vec::new();
    let mut spilled_at = HashMap::new();
    for slot in written_slots(file, geometry) {
        // A process that was killed may have left data without a header.
        let mut start = [0; 2 * HEADER as usize];
        file.read(geometry.entry_at(slot), &mut start)?;
        is_blank &= start == [0; 2 * HEADER as usize];
        if let Some(entry) = read_entry(file, checksum_seed, geometry, geometry.entry_at(slot), &mut data)?
            && (tail..tail + geometry.slots).contains(&entry.position)
            && (superblock.epochs || !entry.kind.is_of_epochs())
            && (superblock.packs || entry.kind != Kind::StagedPack)
        {
            if matches!(entry.kind, Kind::StagedSpill | Kind::StagedPack) {
                let Some(write) = Spilled::decode(&data) else { continue };
                spilled_at.insert(entry.position, spilled.len());
                spilled.push(write);
            }
            if entry.kind == Kind::Commit {
                // Without what it has to say it is whole, and counts for nothing.
                let commit = Commit::decode(&data).filter(|commit| superblock.numbered || commit.numbered.is_none());
                committed.extend(commit.map(|commit| (entry.position, commit)));
            }
            entries.insert(entry.position, entry);
        }
    }
    let end = entries.last_key_value().map_or(tail, |(&last, _)| last + 1);
    let mut operations = Vec::new();
    let mut whole = 0;
    for first in entries.values().filter(|entry| entry.part == 0) {
        let parts = u64::from(first.parts);
        let mut len = 0;
        let follows = |part: u64| {
            let entry = entries.get(&(first.position + part))?;
            let same = (entry.uid, entry.kind, entry.parts) == (first.uid, first.kind, first.parts);
            (same && u64::from(entry.part) == part && entry.order == first.order + part).then_some(u64::from(entry.len))
        };
        let complete = (0..parts).all(|part| {
            let found = follows(part);
            len += found.unwrap_or(0);
            // Only the last may have less than fits: the bytes of a write follow one another.
            found.is_some_and(|len| part + 1 == parts || len == u64::from(geometry.entry))
        });
        if complete {
            let Entry { position, order, uid, value, kind, time, .. } = *first;
            let write = spilled_at.get(&position).copied();
            let len = write.and_then(|write| spilled.get(write)).map_or(len, |write| write.len);
            let (spilled, is_packed) = (write, kind == Kind::StagedPack);
            operations.push(Operation { position, order, uid, kind, value, len, parts, time, spilled, is_packed });
            whole += parts;
        }
    }
    // What was moved stands twice until the tail passes the first of the two; it is the same both times.
    operations.sort_by_key(|operation| (operation.order, operation.position));
    operations.dedup_by_key(|operation| operation.order);
    let mut table = HashMap::new();
    // Also without an operation: a rename may be under way.
    for slot in 0..geometry.files {
        if let Some((copy, line)) = TableLine::read(file, checksum_seed, slot)? {
            table.insert(line.uid, (slot, copy, line));
        }
    }
    if !superblock.per_write {
        // Not synced: else their numbers would mean something.
        operations.retain(|operation| {
            let known = table.contains_key(&operation.uid);
            whole -= if known { 0 } else { operation.parts };
            known
        });
    }
    if let Some(stray) = operations.iter().find(|operation| !table.contains_key(&operation.uid)) {
        let what = format!("a log entry names file number {}, which is not in the file table", stray.uid);
        let offset = Some(geometry.entry_at(stray.position));
        return Err(Error::Corrupt { path: path.to_owned(), offset, what });
    }
    let spill = if spilled.is_empty() { None } else { open_spill()? };
    let is_spilled_whole =
        |write: &Spilled| read_spilled(spill.as_ref(), checksum_seed, write, 0..write.len, &mut Vec::new());
    let is_whole = |operation: &Operation| match operation.spilled.and_then(|write| spilled.get(write)) {
        Some(pack) if operation.is_packed => {
            unpack_spilled(spill.as_ref(), checksum_seed, pack, |change| match change {
                Packed::Spilled { spilled, .. } => is_spilled_whole(&spilled),
                Packed::Write { .. } | Packed::SetLen(_) => Ok(true),
            })
        }
        Some(write) => is_spilled_whole(write),
        None => Ok(true),
    };
    let (open_epochs, closed) = commits::resolve(&mut operations, &committed, tail, is_whole)?;
    let incomplete = end - tail - whole.min(end - tail);
    Ok(Scan { geometry, checksum_seed, operations, table, incomplete, spilled, spill, open_epochs, closed, is_blank })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Medium, PageCache};

    /// A log of 16 TiB of hole, with an entry's worth of bytes here and there.
    #[test]
    fn of_a_long_log_only_the_written_slots_are_looked_at() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let geometry = Geometry { entry: 4096, files: 8, slots: 1 << 32 };
        let path = dir.path().join("log");
        std::fs::File::create(&path).unwrap().set_len(geometry.len().unwrap()).unwrap();
        let written = [0, 1, 77_777, 1 << 20, (1 << 32) - 1];
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        for slot in written {
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; 64], geometry.entry_at(slot)).unwrap();
        }
        let log = PageCache::new().open(&path, crate::storage::Access::Read, 0).unwrap();
        let slots: Vec<u64> = written_slots(&log, geometry).collect();
        assert!(written.iter().all(|slot| slots.contains(slot)) && slots.is_sorted());
        let most = written.len() as u64 * (2 + LOOK / 4096);
        assert!((slots.len() as u64) < most, "{} slots are looked at", slots.len());
    }
}
