//! Files that another program changed after the log's last word on them. A replay would write old bytes over new ones.
//!
//! # Invariants
//! 1. The entries of a file that is written through have the time at which the file gets them. A file whose
//!    modification time is later than its last entry, and which does not have what the entries leave, is *changed*: a
//!    replay stores nothing to it, and the log keeps the entries. Both versions are there until the user chooses.
//! 2. After a power cut the log may lack entries that were not synced, and the file may have what they wrote. All of it
//!    is older than the start of the machine: what counts as later is later than that.
//! 3. Otherwise a process was killed, and the log has every entry. A process may be held up between an entry and its
//!    write, so the file's time must be later by more than [`SLACK`].
//! 4. After a kill the file has what the entries leave, whatever its time says: it is compared with them. So a process
//!    that was held up for longer does not have its file called changed, and neither has a program that only sets the
//!    file's times or attributes.
//! 5. A replay, and a server that completes the change of a dead process, store to a file at times that no entry has.
//!    Before the first such store the file's line says so ([`TableLine::late`]), and from then on its time is not asked
//!    any more. The line need not be durable: after a power cut the machine is started anew (2).
//!
//! 6. The entries of a file that is not written through have no times: a drain decides when the file gets them. The
//!    line has the modification time that the drain's last store left ([`own_stores`](super::own_stores)). The file is
//!    changed if it has another time, and does not have what the entries leave.
//!
//! 7. A flush of the log that fails may lose entries that the files have got, and the machine goes on. From then on no
//!    file's time is asked any more: every line says so ([`doubt_times`]), in the cache like what the flush lost, and
//!    the next flush that succeeds makes it durable.
//!
//! A power cut of the files' device alone, under a running machine, is taken for a kill. If it took unsynced entries,
//! the file may be called changed, and the user chooses. The same goes for a kill between a failed flush and the stores
//! of 7.
//!
//! Not noticed are: a change within [`SLACK`] of the last entry, one whose program sets the modification time back, one
//! after a clock was set back, one after an interrupted replay or a failed flush of the log, and, of a file that is not
//! written through, one in the clock tick of the drain's last store, or if the drain was killed amid a store to the
//! file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::format::{HEADER, Kind, OwnStores, TableLine};
use super::pack::Packed;
use super::replay::{Keep, ReplayOutcome, Replayer};
use super::scan::Operation;
use super::spill::Spilled;
use crate::error::{Error, Result};
use crate::format::record::ChecksumSeed;
use crate::storage::{Medium, MediumFile};
use crate::write_cache::backing::BackingFile;

/// How much later than its last entry a file may have got it, in nanoseconds: a second.
const SLACK: u64 = 1_000_000_000;

/// What a replay says of a changed file.
pub(super) const CHANGED: &str = "another program changed it after the last write in the log; both versions are kept: \
                                  `untorn replay --trust file` drops the log's writes, `untorn replay --trust log` \
                                  writes them over the file";

/// Bytes that are compared at once.
const PART: u64 = 1 << 16;

/// Has the log say of all its files that their times tell nothing, after a flush of it failed. It does what it can: the
/// caller has an error to report already.
pub(super) fn doubt_times<F: MediumFile>(log: &F, checksum_seed: ChecksumSeed, files: u32) {
    for slot in 0..files {
        let Ok(Some((copy, mut line))) = TableLine::read(log, checksum_seed, slot) else { continue };
        line.late = OwnStores::UnderWay.encode();
        line.seq += 1;
        if let Err(error) = line.write_unpromised(log, checksum_seed, slot, 1 - copy) {
            tracing::debug!(slot, %error, "cannot note that a flush of the log failed");
        }
    }
}

impl<M: Medium> Replayer<'_, M> {
    /// Finds out which files were changed, before any file is stored to, and has the log say that the others may be
    /// from now on.
    pub(super) fn judge(&mut self, operations: &[Operation]) -> Result<()> {
        let mut by_file: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
        for operation in operations.iter().filter(|operation| operation.kind != Kind::Move) {
            by_file.entry(operation.uid).or_default().push(operation);
        }
        let now = self.medium.now().max(1);
        for (uid, operations) in by_file {
            let Some((_, _, line)) = self.scan.table.get(&uid).filter(|(_, _, line)| !line.replayed) else { continue };
            let stores = line.own_stores();
            let last = last_of(&operations);
            if stores == OwnStores::None && last.is_none() {
                continue;
            }
            // What cannot be looked for is told of where it is to be replayed.
            let Ok(Some((_, file))) = self.search(line) else { continue };
            let judged = match self.keep {
                Some(Keep::Log) => Ok(false),
                _ => self.is_changed(line, &*file, &operations, last),
            };
            match judged {
                Ok(true) if self.keep == Some(Keep::File) => drop(self.judged.insert(uid, ReplayOutcome::Dropped)),
                Ok(true) => drop(self.judged.insert(uid, ReplayOutcome::Changed(CHANGED.to_owned()))),
                Err(error) => drop(self.judged.insert(uid, ReplayOutcome::Failed(error.to_string()))),
                Ok(false) if self.is_dry() || stores == OwnStores::UnderWay => {}
                Ok(false) => {
                    if let Some((slot, copy, line)) = self.scan.table.get_mut(&uid) {
                        line.late = now;
                        line.seq += 1;
                        // The copy that counts stays until a fence: whoever writes the line next goes over this one.
                        line.write(self.log, self.scan.checksum_seed, *slot, 1 - *copy)?;
                    }
                }
            }
        }
        self.medium.order();
        Ok(())
    }

    fn is_changed(
        &self,
        line: &TableLine,
        file: &dyn BackingFile,
        operations: &[&Operation],
        last: Option<u64>,
    ) -> Result<bool> {
        let booted = self.medium.booted();
        let Some(modified) = file.modified()? else { return Ok(false) };
        let is_later = match (line.own_stores(), last) {
            (OwnStores::Left(left), _) if left >= booted => modified != left,
            (OwnStores::None, Some(last)) if last >= booted => modified > last.saturating_add(SLACK),
            (OwnStores::Left(_), _) | (OwnStores::None, Some(_)) => modified > booted,
            (OwnStores::UnderWay, _) | (OwnStores::None, None) => false,
        };
        Ok(is_later && !self.has_all(line, file, operations)?)
    }

    /// Whether a file has what these operations leave, so that a replay of them would change nothing.
    fn has_all(&self, line: &TableLine, file: &dyn BackingFile, operations: &[&Operation]) -> Result<bool> {
        let has = file.len()?;
        let is_new = line.new.is_some();
        let changes = self.changes(operations)?;
        let len = changes.iter().fold(if is_new { 0 } else { has }, |len, change| match change.bytes {
            None => change.offset,
            Some(_) => len.max(change.offset.saturating_add(change.len)),
        });
        if has != len {
            return Ok(false);
        }
        // Backwards: what a later operation left an earlier one does not. Beyond the least later length are zeros.
        let (mut later, mut limit) = (Ranges::default(), len);
        let last = RefCell::new(LastChunk::default());
        for change in changes.iter().rev() {
            let left = match &change.bytes {
                None => {
                    let before = limit;
                    limit = limit.min(change.offset);
                    later
                        .without(limit..before)
                        .into_iter()
                        .try_fold(true, |all, (at, end)| Ok::<_, Error>(all && has_bytes(file, at, end, zeros)?))?
                }
                Some(bytes) => {
                    let end = change.offset.saturating_add(change.len).min(limit);
                    later.take(change.offset..end).into_iter().try_fold(true, |all, (at, end)| {
                        let read = |at, dst: &mut [u8]| self.read_data(bytes, at - change.offset, dst, &last);
                        Ok::<_, Error>(all && has_bytes(file, at, end, read)?)
                    })?
                }
            };
            if !left {
                return Ok(false);
            }
        }
        let before = if is_new { later.without(0..limit) } else { Vec::new() };
        before.into_iter().try_fold(true, |all, (at, end)| Ok(all && has_bytes(file, at, end, zeros)?))
    }

    /// All changes that operations are, with those of packs.
    fn changes(&self, operations: &[&Operation]) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for operation in operations {
            let (offset, len) = (operation.value, operation.len);
            let write = operation.spilled.and_then(|write| self.scan.spilled.get(write));
            match (operation.kind, write) {
                _ if operation.is_packed => self.unpack(operation, |change| {
                    changes.push(match change {
                        Packed::SetLen(len) => Change { offset: len, len: 0, bytes: None },
                        Packed::Spilled { offset, spilled } => Change::spilled(offset, Arc::new(spilled)),
                        Packed::Write { offset, bytes, pack, at } => {
                            let (len, bytes) = (bytes.len() as u64, Some(Bytes::Packed(Arc::clone(pack), at)));
                            Change { offset, len, bytes }
                        }
                    });
                    Ok(())
                })?,
                (Kind::SetLen, _) => changes.push(Change { offset, len: 0, bytes: None }),
                (_, Some(write)) => changes.push(Change::spilled(offset, Arc::new(write.clone()))),
                (_, None) => changes.push(Change { offset, len, bytes: Some(Bytes::Log(operation.position)) }),
            }
        }
        Ok(changes)
    }

    /// Reads bytes of a write, from its byte `skip` on.
    fn read_data(&self, bytes: &Bytes, skip: u64, dst: &mut [u8], last: &RefCell<LastChunk>) -> Result<()> {
        let position = match bytes {
            Bytes::Log(position) => *position,
            Bytes::Spilled(write) => {
                dst.copy_from_slice(&self.spilled(write, skip..skip + dst.len() as u64)?);
                return Ok(());
            }
            Bytes::Packed(pack, at) => return self.read_packed(pack, at + skip, dst, &mut last.borrow_mut()),
        };
        let entry = u64::from(self.scan.geometry.entry);
        let mut done = 0;
        while done < dst.len() {
            let at = skip + done as u64;
            let bytes = (dst.len() - done).min((entry - at % entry) as usize);
            let from = self.scan.geometry.entry_at(position + at / entry) + HEADER + at % entry;
            self.log.read(from, &mut dst[done..done + bytes])?;
            done += bytes;
        }
        Ok(())
    }

    /// Reads bytes of a pack, from this one on.
    fn read_packed(&self, pack: &Arc<Spilled>, mut at: u64, dst: &mut [u8], last: &mut LastChunk) -> Result<()> {
        let mut done = 0;
        while done < dst.len() {
            let start = at - at % pack.chunk();
            if last.start != start || last.pack.as_ref().is_none_or(|other| !Arc::ptr_eq(other, pack)) {
                let bytes = self.spilled(pack, start..(start + pack.chunk()).min(pack.len))?;
                *last = LastChunk { pack: Some(Arc::clone(pack)), start, bytes };
            }
            let there = &last.bytes[((at - start) as usize).min(last.bytes.len())..];
            let count = there.len().min(dst.len() - done);
            if count == 0 {
                return Err(self.lacks_bytes());
            }
            dst[done..done + count].copy_from_slice(&there[..count]);
            (done, at) = (done + count, at + count as u64);
        }
        Ok(())
    }
}

/// A change of a file.
struct Change {
    /// The offset of the write, or the new length.
    offset: u64,
    len: u64,
    /// `None` for a new length.
    bytes: Option<Bytes>,
}

impl Change {
    fn spilled(offset: u64, write: Arc<Spilled>) -> Self {
        Change { offset, len: write.len, bytes: Some(Bytes::Spilled(write)) }
    }
}

/// The place of a write's bytes.
enum Bytes {
    Log(u64),
    Spilled(Arc<Spilled>),
    /// From a byte of a pack on.
    Packed(Arc<Spilled>, u64),
}

/// The chunk of a pack that was read last: many changes are in one.
#[derive(Default)]
struct LastChunk {
    pack: Option<Arc<Spilled>>,
    start: u64,
    bytes: Vec<u8>,
}

/// When the file got the last of its operations; `None` if that is not known of all.
fn last_of(operations: &[&Operation]) -> Option<u64> {
    let known = operations.iter().all(|operation| operation.time != 0);
    operations.iter().map(|operation| operation.time).max().filter(|_| known)
}

/// The bytes of a range that nothing was written to.
fn zeros(_: u64, bytes: &mut [u8]) -> Result<()> {
    bytes.fill(0);
    Ok(())
}

/// Whether a range of a file has the bytes that `expected` fills in for an offset.
fn has_bytes(
    file: &dyn BackingFile,
    at: u64,
    end: u64,
    expected: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<bool> {
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    for at in (at..end).step_by(PART as usize) {
        let len = (end - at).min(PART) as usize;
        found.resize(len, 0);
        wanted.resize(len, 0);
        expected(at, &mut wanted)?;
        if file.read(at, &mut found)? != len || found != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Ranges of a file that do not touch, by their starts.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The parts of a range that are in none of them, ascending.
    fn without(&self, range: std::ops::Range<u64>) -> Vec<(u64, u64)> {
        let (mut at, mut parts) = (range.start, Vec::new());
        let before = self.0.range(..range.start).next_back();
        for (&start, &end) in before.into_iter().chain(self.0.range(range.start..range.end.max(range.start))) {
            if start > at {
                parts.push((at, start));
            }
            at = at.max(end);
        }
        if at < range.end {
            parts.push((at, range.end));
        }
        parts
    }

    /// Adds a range, and returns the parts of it that are new.
    fn take(&mut self, range: std::ops::Range<u64>) -> Vec<(u64, u64)> {
        let new = self.without(range);
        for &(start, end) in &new {
            let end = self.0.remove(&end).unwrap_or(end);
            match self.0.range_mut(..start).next_back().filter(|(_, before)| **before == start) {
                Some((_, before)) => *before = end,
                None => drop(self.0.insert(start, end)),
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_once_and_merge() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.take(10..20), [(10, 20)]);
        assert_eq!(ranges.take(15..25), [(20, 25)]);
        assert_eq!(ranges.take(0..5), [(0, 5)]);
        assert_eq!(ranges.take(3..30), [(5, 10), (25, 30)]);
        assert_eq!(ranges.0.into_iter().collect::<Vec<_>>(), [(0, 30)]);
        let mut ranges = Ranges(BTreeMap::from([(4, 6), (8, 9)]));
        assert_eq!(ranges.without(0..12), [(0, 4), (6, 8), (9, 12)]);
        assert_eq!((ranges.without(4..6), ranges.without(5..5), ranges.take(9..9)), (vec![], vec![], vec![]));
    }
}
