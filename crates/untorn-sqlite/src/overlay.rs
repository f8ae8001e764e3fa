//! What a connection has written and not committed.
//!
//! # Invariants
//!
//! 1. A block has a bit for each of its sectors that was written. Bytes of other sectors are the file's.
//! 2. No block has a sector at or beyond the length, once that was set. A sector without a bit is not beyond any length
//!    that the file was cut to.

use std::collections::BTreeMap;

/// The smallest page of SQLite.
const SECTOR: usize = 512;
const SECTORS: usize = 8;
const BLOCK: usize = SECTOR * SECTORS;

struct Block {
    written: u8,
    bytes: Box<[u8; BLOCK]>,
}

impl Default for Block {
    fn default() -> Self {
        Block { written: 0, bytes: Box::new([0; BLOCK]) }
    }
}

/// Writes, in memory, over a file that does not have them.
#[derive(Default)]
pub(crate) struct Overlay {
    blocks: BTreeMap<u64, Block>,
    len: Option<u64>,
}

/// The sectors of a block that a range within it has a part of.
fn sectors(from: usize, to: usize) -> u8 {
    (from / SECTOR..to.div_ceil(SECTOR)).fold(0, |bits, sector| bits | 1 << sector)
}

/// The parts of a range that lie in one block each: the block, and the range within it.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (block, from) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let to = BLOCK.min(from + (end - at) as usize);
            at += (to - from) as u64;
            (block, from..to)
        })
    })
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.len.is_none()
    }

    /// The length that the file is to have; `None` if it keeps its own.
    pub(crate) fn len(&self) -> Option<u64> {
        self.len
    }

    /// Takes a write within the length. `fill` reads the file's bytes at an offset, for the rest of a sector that is
    /// written in part.
    pub(crate) fn write<E>(
        &mut self,
        offset: u64,
        bytes: &[u8],
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = bytes;
        for (number, range) in parts(offset, bytes.len()) {
            let (part, later) = rest.split_at(range.len());
            rest = later;
            let block = self.blocks.entry(number).or_default();
            for edge in [range.start, range.end] {
                let sector = edge / SECTOR;
                if edge % SECTOR != 0 && block.written & 1 << sector == 0 {
                    let at = sector * SECTOR;
                    fill(number * BLOCK as u64 + at as u64, &mut block.bytes[at..at + SECTOR])?;
                    block.written |= 1 << sector;
                }
            }
            block.written |= sectors(range.start, range.end);
            block.bytes[range].copy_from_slice(part);
        }
        Ok(())
    }

    /// Puts what was written over the bytes of the file.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        if self.blocks.is_empty() {
            return;
        }
        let mut rest = bytes;
        for (number, range) in parts(offset, rest.len()) {
            let (part, later) = std::mem::take(&mut rest).split_at_mut(range.len());
            rest = later;
            let Some(block) = self.blocks.get(&number) else { continue };
            for sector in (0..SECTORS).filter(|sector| block.written & 1 << sector != 0) {
                let from = (sector * SECTOR).max(range.start);
                let to = ((sector + 1) * SECTOR).min(range.end);
                if from < to {
                    part[from - range.start..to - range.start].copy_from_slice(&block.bytes[from..to]);
                }
            }
        }
    }

    /// Sets the length; `own` is the file's. What was written beyond is dropped, and what comes in between reads as
    /// zeros.
    pub(crate) fn set_len<E>(
        &mut self,
        len: u64,
        own: u64,
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.len.unwrap_or(own);
        if len < before {
            let (last, within) = (len / BLOCK as u64, (len % BLOCK as u64) as usize);
            if within % SECTOR != 0 {
                // The sector keeps its first bytes, and has zeros after them.
                let (at, mut sector) = (len / SECTOR as u64 * SECTOR as u64, [0; SECTOR]);
                fill(at, &mut sector)?;
                self.read(at, &mut sector);
                sector[within % SECTOR..].fill(0);
                self.write(at, &sector, &mut fill)?;
            }
            drop(self.blocks.split_off(&if within == 0 { last } else { last + 1 }));
            if within != 0
                && let Some(block) = self.blocks.get_mut(&last)
            {
                block.written &= sectors(0, within);
                block.bytes[within..].fill(0);
            }
        }
        // Bytes of the file that a cut took away do not come back.
        let mut at = before;
        while at < len.min(own) {
            let sector = (at % BLOCK as u64) as usize / SECTOR;
            let block = self.blocks.entry(at / BLOCK as u64).or_default();
            block.written |= 1 << sector;
            at = (at / SECTOR as u64 + 1) * SECTOR as u64;
        }
        self.len = Some(len);
        Ok(())
    }

    /// All that was written, in order, in pieces as long as they can be within a block.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.blocks.iter().flat_map(|(number, block)| {
            let mut from = 0;
            std::iter::from_fn(move || {
                while from < SECTORS && block.written & 1 << from == 0 {
                    from += 1;
                }
                let to = (from..SECTORS).find(|sector| block.written & 1 << sector == 0).unwrap_or(SECTORS);
                let piece = &block.bytes[from * SECTOR..to * SECTOR];
                let offset = number * BLOCK as u64 + (from * SECTOR) as u64;
                from = to;
                (!piece.is_empty()).then_some((offset, piece))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use untorn_testing::{SplitMix, cases, seed};

    use super::*;

    /// Random writes, cuts and reads, beside a vector of bytes.
    #[test]
    fn reads_are_those_of_a_file_that_has_the_writes() {
        let mut random = SplitMix::new(seed(untorn_testing::test_name!()));
        for _ in 0..cases(200, 20_000) {
            let file: Vec<u8> = (0..40_000).map(|_| random.below(256) as u8).collect();
            let fill = |at: u64, bytes: &mut [u8]| {
                let at = (at as usize).min(file.len());
                let has = &file[at..(at + bytes.len()).min(file.len())];
                bytes[..has.len()].copy_from_slice(has);
                Ok::<_, std::convert::Infallible>(())
            };
            let own = file.len() as u64;
            let (mut overlay, mut model) = (Overlay::default(), file.clone());
            for _ in 0..30 {
                let (offset, len) = (random.below(50_000) as usize, 1 + random.below(9_000) as usize);
                if random.below(6) == 0 {
                    let Ok(()) = overlay.set_len(offset as u64, own, fill);
                    model.resize(offset, 0);
                    continue;
                }
                let bytes = vec![random.below(256) as u8; len];
                let end = (offset + len) as u64;
                if end > overlay.len().unwrap_or(own) {
                    let Ok(()) = overlay.set_len(end, own, fill);
                }
                let Ok(()) = overlay.write(offset as u64, &bytes, fill);
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].copy_from_slice(&bytes);
            }
            let len = overlay.len().unwrap_or(own) as usize;
            assert_eq!(len, model.len());
            let mut read = file.clone();
            read.resize(len, 0);
            let mut committed = read.clone();
            overlay.read(0, &mut read);
            assert!(read == model, "what a connection reads");
            for (offset, piece) in overlay.pieces() {
                let (at, end) = (offset as usize, (offset as usize + piece.len()).min(len));
                committed[at..end].copy_from_slice(&piece[..end - at]);
            }
            assert!(committed == model, "what a commit stores");
        }
    }
}
