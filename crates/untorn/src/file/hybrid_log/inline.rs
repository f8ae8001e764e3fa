//! Short entries: their bytes stand in the lines behind their header.
//!
//! A short write on a block medium would dirty a page for its header, one for its bytes and one for the epoch's record,
//! and a flush would write all three. So the header, the bytes and the record of a short epoch stand in lines that
//! follow each other among the headers of a chunk. Such an entry takes the units of all its lines, and leaves their
//! pages alone.
//!
//! # Invariants
//!
//! 1. A line of bytes begins with eight zeros, where a header and a record have their epoch, which is never 0. So no
//!    bytes that a program writes pass for a header or a record, in this session or a later one.
//! 2. An entry stays inline while its bytes fit into the lines that it took. If they do not any more, it moves to a
//!    unit of its own, and its old header is overwritten with zeros. Both belong to the open epoch.
//! 3. Only the first entries of an epoch are inline, so that a large epoch does not need a longer log.

use super::Core;
use super::block_range::{BlockRange, Logged};
use super::lanes::LaneState;
use super::meta::Extent;
use super::write::{Part, Plan};
use crate::error::Result;
use crate::format::record::{LINE, Line};
use crate::storage::{Medium, MediumClass, MediumFile};

/// Bytes of an entry that a line holds, and where in it they begin.
const PAYLOAD: usize = LINE as usize - PREFIX;
const PREFIX: usize = 8;

/// Lines of bytes that an inline entry has at most.
const MOST_LINES: usize = 5;

/// Bytes that an inline entry has at most.
pub(super) const MOST: u32 = (MOST_LINES * PAYLOAD) as u32;

/// Writes of a lane in an epoch, and covers of one write, from which on entries have units of their own.
const FEW: u64 = 8;

/// Units of a chunk for each of those: the entries of an epoch need not much more of a short log than without.
const UNITS_FOR_EACH: u64 = 16;

/// Where the bytes of a cover go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// To a new entry, inline if so.
    New { inline: bool },
    /// To the entry that the open epoch has already.
    Same { inline: bool },
    /// To a new entry with units of its own, which takes the place of an inline one.
    Moved,
}

impl Shape {
    pub(super) fn is_inline(self) -> bool {
        matches!(self, Shape::New { inline: true } | Shape::Same { inline: true })
    }
}

/// The units that an inline entry of `len` bytes takes: one for each line, that of the header counted in.
pub(super) fn units(len: u32) -> u64 {
    1 + lines(len)
}

fn lines(len: u32) -> u64 {
    u64::from(len).div_ceil(PAYLOAD as u64)
}

/// A header with the lines of its entry's bytes.
pub(super) fn with_bytes(header: &Line, bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity((1 + bytes.len().div_ceil(PAYLOAD)) * LINE as usize);
    all.extend_from_slice(header);
    for part in bytes.chunks(PAYLOAD) {
        let mut line = [0; LINE as usize];
        line[PREFIX..PREFIX + part.len()].copy_from_slice(part);
        all.extend_from_slice(&line);
    }
    all
}

impl<M: Medium> Core<M> {
    /// Whether headers, short bytes and records of this file may stand side by side.
    pub(super) fn inlines(&self) -> bool {
        self.inline && self.class == MediumClass::Block
    }

    /// Where the bytes of a cover go, of which a write has these parts.
    pub(super) fn shape(&self, lane: &LaneState, plan: &Plan<'_>, index: usize) -> Shape {
        let block_range = &plan.block_ranges[index];
        let parts = plan.parts_of(index).map(|part| part.extent).reduce(Extent::with);
        match block_range.logged {
            Logged::Nothing => {
                let most = (self.chunks.units / UNITS_FOR_EACH).clamp(1, FEW);
                let few = plan.block_ranges.len() as u64 <= most && lane.writes() < most;
                let fits = |parts: Extent| parts.len() <= MOST && units(parts.len()) <= self.chunks.units;
                let short = block_range.class == 0 && parts.is_some_and(fits);
                Shape::New { inline: self.inlines() && few && short }
            }
            Logged::Open(link) => {
                let meta = self.meta(link);
                let (before, inline) = (meta.delta(), meta.is_inline());
                let merged = parts.map_or(before, |parts| before.with(parts));
                if inline && lines(merged.len()) > lines(before.len()) { Shape::Moved } else { Shape::Same { inline } }
            }
        }
    }

    /// The bytes of a cover's entry as they are with these parts laid over: those of the inline entry that the open
    /// epoch has already, if it has one, and those of the file between. Which bytes of the cover they are comes first.
    pub(super) fn merged<'a, 'b: 'a>(
        &self,
        block_range: &BlockRange,
        parts: impl Iterator<Item = &'a Part<'b>>,
    ) -> Result<(Extent, Vec<u8>)> {
        let parts: Vec<&Part<'_>> = parts.collect();
        let before = match block_range.logged {
            Logged::Open(link) => Some((link, self.meta(link).delta())),
            Logged::Nothing => None,
        };
        let all = parts.iter().map(|part| part.extent).chain(before.map(|(_, extent)| extent)).reduce(Extent::with);
        let delta = all.unwrap_or(Extent { offset: 0, end: 0 });
        let mut image = vec![0; delta.len() as usize];
        let within = |extent: Extent| (extent.offset - delta.offset) as usize..(extent.end - delta.offset) as usize;
        // A single part leaves nothing between.
        if parts.len() + usize::from(before.is_some()) > 1 {
            self.read_home(block_range, delta, &mut image)?;
        }
        if let Some((link, extent)) = before {
            self.read_inline(link.unit(), 0, &mut image[within(extent)])?;
        }
        for part in parts {
            image[within(part.extent)].copy_from_slice(part.bytes);
        }
        Ok((delta, image))
    }

    /// Reads bytes of an entry that holds `delta`, from byte `skip` of those on.
    pub(super) fn read_logged(&self, unit: u64, inline: bool, delta: Extent, skip: u64, dst: &mut [u8]) -> Result<()> {
        if inline {
            return self.read_inline(unit, skip, dst);
        }
        self.side.read(self.chunks.bytes_at(unit) + u64::from(delta.offset) + skip, dst)
    }

    /// Reads bytes of an inline entry, from byte `skip` of those that it holds on. A range beyond the longest entry is
    /// that of a reader whose entry was given up meanwhile, and which believes nothing of it: it gets any bytes.
    pub(super) fn read_inline(&self, unit: u64, skip: u64, dst: &mut [u8]) -> Result<()> {
        let end = skip + dst.len() as u64;
        if end > u64::from(MOST) || dst.is_empty() {
            return Ok(());
        }
        let (first, last) = (skip as usize / PAYLOAD, (end as usize).div_ceil(PAYLOAD));
        let mut lines = [[0; LINE as usize]; MOST_LINES];
        let lines = &mut lines[..last - first];
        self.side.read(self.chunks.header_at(unit) + (1 + first as u64) * LINE, lines.as_flattened_mut())?;
        let bytes = lines.iter().flat_map(|line| &line[PREFIX..]).skip(skip as usize % PAYLOAD);
        dst.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::{EpochRecord, Header};
    use super::*;
    use crate::format::record::ChecksumSeed;

    #[test]
    fn a_line_of_bytes_is_no_header_and_no_record() {
        // What a program would write that knows all there is to know.
        let seed = ChecksumSeed::new(&[7; 16], 3);
        let record = EpochRecord { epoch: 1, len: 9, digest: None, proves: 0, time: 0 }.encode(seed, 128);
        let all = with_bytes(&[1; LINE as usize], &record.repeat(4));
        let (lines, rest) = all.as_chunks::<{ LINE as usize }>();
        assert!(rest.is_empty());
        assert_eq!(lines.len() as u64, units(4 * LINE as u32));
        for line in &lines[1..] {
            assert_eq!(line[..PREFIX], [0; PREFIX]);
            assert_eq!((Header::decode(seed, 128, line), EpochRecord::decode(seed, 128, line)), (None, None));
        }
    }

    #[test]
    fn an_entry_takes_a_unit_for_each_line() {
        for (len, expected) in [(0, 1), (1, 2), (56, 2), (57, 3), (MOST, 6)] {
            assert_eq!(units(len), expected, "{len} bytes");
            assert_eq!(with_bytes(&[1; 64], &vec![5; len as usize]).len() as u64, expected * LINE, "{len} bytes");
        }
    }
}
