//! Delivery of operations to one file: of writes to one byte only the last counts, and neighbours are written at once.

use std::ops::Range;

use super::Cache;
use super::coalesce::{self, Run};
use super::drain::Item;
use super::file::Managed;
use super::format::Kind;
use super::pack::{Packed, unpack};
use super::spill::Spilled;
use crate::error::Result;
use crate::storage::Medium;

/// The longest write to a slow file, in bytes.
const LONGEST: u64 = 1 << 20;
/// Writes of a pack that are delivered together, and bytes of them.
const MANY: usize = 1 << 14;
const BATCH: usize = 4 << 20;

/// The place of a write's bytes.
#[derive(Clone, Copy)]
pub(super) enum Bytes<'a> {
    Log(u64),
    Spilled(&'a Spilled),
    Here(&'a [u8]),
}

/// A write to deliver.
#[derive(Clone, Copy)]
struct Write<'a> {
    offset: u64,
    len: u64,
    bytes: Bytes<'a>,
}

impl<'a> Write<'a> {
    fn of(item: &'a Item) -> Self {
        let bytes = item.spilled.as_deref().map_or(Bytes::Log(item.position), Bytes::Spilled);
        Write { offset: item.operation.value, len: item.len, bytes }
    }
}

/// Writes of a pack that follow one another.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// The offset of each, and its bytes.
    writes: Vec<(u64, Unpacked)>,
}

enum Unpacked {
    /// A part of `bytes`.
    Here(Range<usize>),
    Spilled(Spilled),
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH || self.writes.len() >= MANY
    }

    fn writes(&self) -> Vec<Write<'_>> {
        self.writes
            .iter()
            .map(|(offset, bytes)| match bytes {
                Unpacked::Here(range) => {
                    let bytes = &self.bytes[range.clone()];
                    Write { offset: *offset, len: bytes.len() as u64, bytes: Bytes::Here(bytes) }
                }
                Unpacked::Spilled(spilled) => {
                    Write { offset: *offset, len: spilled.len, bytes: Bytes::Spilled(spilled) }
                }
            })
            .collect()
    }
}

impl<M: Medium> Cache<M> {
    /// Gives the kernel operations on one file.
    pub(super) fn deliver_to(&self, file: &Managed, items: &[Item]) -> Result<()> {
        // A rename the kernel did before the log had it, and a Commit is none of its business.
        let changes: Vec<&Item> =
            items.iter().filter(|item| !matches!(item.operation.kind, Kind::Move | Kind::Commit)).collect();
        let is_write = |item: &Item| item.operation.kind.is_write();
        for group in changes.chunk_by(|one, other| is_write(one) && is_write(other)) {
            match group {
                [Item { operation, spilled: Some(pack), .. }] if operation.kind == Kind::StagedPack => {
                    self.deliver_pack(file, pack)?;
                }
                [item] if !is_write(item) => file.slow.set_len(item.operation.value)?,
                group => {
                    let writes: Vec<Write<'_>> = group.iter().map(|item| Write::of(item)).collect();
                    self.deliver_writes(file, &writes)?;
                }
            }
        }
        Ok(())
    }

    /// Gives the kernel the changes of a pack, some at a time.
    fn deliver_pack(&self, file: &Managed, pack: &Spilled) -> Result<()> {
        let seed = self.ring.checksum_seed;
        let mut batch = Batch::default();
        let read = |spilled: &Spilled, range: Range<u64>, buffer: &mut Vec<u8>| {
            self.spill.read_run(seed, spilled, range.start, range.end - range.start, buffer).map(|()| true)
        };
        let whole = unpack(pack, self.spill.len()?, read, |change| {
            match change {
                Packed::Write { offset, bytes, .. } => {
                    let start = batch.bytes.len();
                    batch.bytes.extend(bytes);
                    batch.writes.push((offset, Unpacked::Here(start..batch.bytes.len())));
                }
                Packed::Spilled { offset, spilled } => batch.writes.push((offset, Unpacked::Spilled(spilled))),
                Packed::SetLen(len) => {
                    self.deliver_batch(file, &mut batch)?;
                    file.slow.set_len(len)?;
                }
            }
            if batch.is_full() {
                self.deliver_batch(file, &mut batch)?;
            }
            Ok(true)
        })?;
        self.deliver_batch(file, &mut batch)?;
        if whole { Ok(()) } else { Err(self.spill.odd()) }
    }

    fn deliver_batch(&self, file: &Managed, batch: &mut Batch) -> Result<()> {
        self.deliver_writes(file, &batch.writes())?;
        batch.writes.clear();
        batch.bytes.clear();
        Ok(())
    }

    fn deliver_writes(&self, file: &Managed, writes: &[Write<'_>]) -> Result<()> {
        let ranges: Vec<(u64, u64)> = writes.iter().map(|write| (write.offset, write.len)).collect();
        let mut buffer = Vec::new();
        let runs = coalesce::visible(&ranges);
        let adjacent = |one: &Run, other: &Run| one.offset + one.len == other.offset;
        for stretch in runs.chunk_by(adjacent) {
            let mut at = stretch[0].offset;
            for run in stretch {
                let mut done = 0;
                while done < run.len {
                    let bytes = (run.len - done).min(LONGEST - buffer.len() as u64);
                    self.read_run(writes[run.write].bytes, run.skip + done, bytes, &mut buffer)?;
                    done += bytes;
                    if buffer.len() as u64 == LONGEST {
                        file.slow.write(at, &buffer)?;
                        at += LONGEST;
                        buffer.clear();
                    }
                }
            }
            if !buffer.is_empty() {
                file.slow.write(at, &buffer)?;
                buffer.clear();
            }
        }
        Ok(())
    }

    /// Appends bytes of a write to a buffer.
    pub(super) fn read_run(&self, bytes: Bytes<'_>, skip: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let position = match bytes {
            Bytes::Spilled(spilled) => {
                return self.spill.read_run(self.ring.checksum_seed, spilled, skip, len, buffer);
            }
            Bytes::Here(bytes) => {
                buffer.extend(&bytes[skip as usize..(skip + len) as usize]);
                return Ok(());
            }
            Bytes::Log(position) => position,
        };
        let entry = u64::from(self.ring.geometry.entry);
        let mut done = 0;
        while done < len {
            let at = skip + done;
            let bytes = (len - done).min(entry - at % entry);
            let from = buffer.len();
            buffer.resize(from + bytes as usize, 0);
            self.ring.read(position + at / entry, at % entry, &mut buffer[from..])?;
            done += bytes;
        }
        Ok(())
    }
}
