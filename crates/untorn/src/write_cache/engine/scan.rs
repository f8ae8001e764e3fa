//! Scanning a log: which operations are whole, in which order, and which files they belong to.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::format::{Entry, Geometry, HEADER, Kind, Superblock, TableLine, read_entry, read_tail};
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
}

/// What is in a log.
pub(super) struct Scan {
    pub(super) geometry: Geometry,
    pub(super) checksum_seed: ChecksumSeed,
    /// In the order in which they are to be done.
    pub(super) operations: Vec<Operation>,
    /// By number: the slot, the copy that counts, and what it says.
    pub(super) table: HashMap<u64, (u32, usize, TableLine)>,
    pub(super) incomplete: u64,
    /// Where an entry may be the log has zeros only, as far as the first bytes of each place tell.
    pub(super) is_blank: bool,
}

/// Reads a log through.
pub(super) fn scan<F: MediumFile>(file: &F, path: &Path, superblock: &Superblock) -> Result<Scan> {
    let (geometry, checksum_seed) = (superblock.geometry, superblock.checksum_seed());
    let tail = read_tail(file, checksum_seed)?;
    let mut entries = BTreeMap::new();
    let mut data = Vec::new();
    let mut is_blank = true;
    for slot in 0..geometry.slots {
        // A process that was killed may have left data without a header.
        let mut start = [0; 2 * HEADER as usize];
        file.read(geometry.entry_at(slot), &mut start)?;
        is_blank &= start == [0; 2 * HEADER as usize];
        if let Some(entry) = read_entry(file, checksum_seed, geometry, geometry.entry_at(slot), &mut data)?
            && (tail..tail + geometry.slots).contains(&entry.position)
        {
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
            operations.push(Operation { position, order, uid, kind, value, len, parts, time });
            whole += parts;
        }
    }
    // What was moved stands twice until the tail passes the first of the two; it is the same both times.
    operations.sort_by_key(|operation| (operation.order, operation.position));
    operations.dedup_by_key(|operation| operation.order);
    let mut table = HashMap::new();
    if !operations.is_empty() {
        for slot in 0..geometry.files {
            if let Some((copy, line)) = TableLine::read(file, checksum_seed, slot)? {
                table.insert(line.uid, (slot, copy, line));
            }
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
    Ok(Scan { geometry, checksum_seed, operations, table, incomplete: end - tail - whole.min(end - tail), is_blank })
}
