//! The tables: the checksum of every data page and every parity page, and which data pages are uncovered.
//!
//! Each block has two copies, far apart. The next version of a block overwrites the older copy, and only when the write
//! of the version before is durable, so a torn write damages only the version being written. In a closed file both
//! copies hold the same version, and damage to one of them loses nothing.

use std::collections::BTreeSet;
use std::path::Path;

use super::bits::Bits;
use super::format::{Block, ENTRIES};
use super::layout::Geometry;
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::storage::MediumFile;
use crate::sys::direct::PageBuffer;

/// Blocks that are read at once to look at all of them: 1 MiB.
const AT_ONCE: u64 = 256;

/// Blocks that are read, whether or not there is anything of them: 16 MiB in two copies.
const FEW: u64 = 2048;

/// Refuses tables of which the redundancy file lacks most: each block is written when the file is made, and anybody can
/// make a sparse file that claims to have tables for terabytes. Memory and time go by what exists.
///
/// # Errors
/// [`Error::Corrupt`] for such tables; those of asking for holes.
pub(super) fn tables_exist<F: MediumFile>(side: &F, place: &Path, geometry: &Geometry) -> Result<()> {
    let blocks = geometry.blocks();
    let mut most = 0;
    for copy in [0, 1] {
        let (mut at, end) = (geometry.block_at(0, copy), geometry.block_at(blocks, copy));
        let mut exists = 0;
        while at < end
            && 2 * most < blocks
            && let Some(data) = side.data_from(at)?.filter(|data| data.start < end)
        {
            exists += (data.end.min(end) - data.start.max(at)) / PAGE;
            at = data.end.max(at + 1);
            most = most.max(exists);
        }
    }
    if blocks <= FEW || 2 * most >= blocks {
        return Ok(());
    }
    let what = format!(
        "only {most} of {blocks} blocks of its checksums exist, the rest are holes; remove it with `untorn unprotect`, \
         then protect the file again"
    );
    Err(Error::Corrupt { path: place.to_owned(), offset: Some(geometry.block_at(0, 0)), what })
}

/// Both tables in memory, and which copy of each block is the older.
pub(super) struct Tables {
    geometry: Geometry,
    tie: u64,
    /// Of data pages, then of parity pages, each table in whole blocks.
    sums: Vec<u64>,
    /// Data pages that may differ from their checksums, and from what the parity of their stripe speaks of. As
    /// durable as the block.
    uncovered: Bits,
    blocks: Vec<Held>,
    /// Blocks that were changed and not written.
    changed: BTreeSet<u64>,
}

#[derive(Clone, Copy, Default)]
struct Held {
    seq: u64,
    /// The copy that holds this version.
    copy: usize,
}

/// What reading the tables came upon.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Copies of blocks that are not whole, or older than they may be, as (block, copy).
    pub(super) damaged: Vec<(u64, usize)>,
    /// Blocks of which no copy is whole.
    pub(super) lost: Vec<u64>,
}

impl Tables {
    /// Tables of a file of which nothing is covered.
    ///
    /// # Errors
    /// [`Error::Io`] where there is no memory for them: how long a file is may be what somebody made up.
    pub(super) fn new(geometry: Geometry, tie: u64, place: &Path) -> Result<Self> {
        let mut sums = Vec::new();
        sums.try_reserve_exact((geometry.blocks() * ENTRIES) as usize).map_err(|_| {
            Error::io("allocate memory for the tables of", place, std::io::Error::from(rustix::io::Errno::NOMEM))
        })?;
        sums.resize((geometry.blocks() * ENTRIES) as usize, 0);
        // What follows is a fraction of that.
        let mut tables = Tables {
            geometry,
            tie,
            sums,
            uncovered: Bits::new(geometry.data_blocks() * ENTRIES),
            blocks: vec![Held::default(); geometry.blocks() as usize],
            changed: (0..geometry.blocks()).collect(),
        };
        for page in 0..geometry.pages() {
            tables.uncovered.put(page, true);
        }
        Ok(tables)
    }

    /// Reads both copies of every block; of a file that was closed they hold the same version. Of a block that is
    /// lost all pages are uncovered.
    pub(super) fn read<F: MediumFile>(
        side: &F,
        place: &Path,
        geometry: Geometry,
        tie: u64,
        closed: bool,
    ) -> Result<(Self, Read)> {
        tables_exist(side, place, &geometry)?;
        let mut tables = Tables::new(geometry, tie, place)?;
        tables.changed.clear();
        let mut read = Read::default();
        for index in 0..geometry.blocks() {
            let mut copies = [None, None];
            for (copy, found) in copies.iter_mut().enumerate() {
                *found = read_copy(side, &geometry, tie, index, copy, false)?;
                if found.is_none() {
                    read.damaged.push((index, copy));
                }
            }
            let seqs = copies.each_ref().map(|copy| copy.as_ref().map(|block| block.seq));
            let newest = usize::from(seqs[0] < seqs[1]);
            if closed && seqs[1 - newest].is_some_and(|seq| Some(seq) != seqs[newest]) {
                // A version that was written over came back.
                read.damaged.push((index, 1 - newest));
            }
            match &copies[newest] {
                None => read.lost.push(index),
                Some(block) => tables.take(index, block, newest),
            }
        }
        Ok((tables, read))
    }

    fn take(&mut self, index: u64, block: &Block, copy: usize) {
        let first = index * ENTRIES;
        self.sums[first as usize..(first + ENTRIES) as usize].copy_from_slice(&block.sums);
        if index < self.geometry.data_blocks() {
            for page in first..(first + ENTRIES).min(self.geometry.pages()) {
                let entry = page - first;
                self.uncovered.put(page, block.uncovered[(entry / 8) as usize] >> (entry % 8) & 1 == 1);
            }
        }
        self.blocks[index as usize] = Held { seq: block.seq, copy };
    }

    fn block(&self, index: u64) -> Block {
        let first = index * ENTRIES;
        let mut block = Block::new();
        block.seq = self.blocks[index as usize].seq;
        block.sums.copy_from_slice(&self.sums[first as usize..(first + ENTRIES) as usize]);
        if index < self.geometry.data_blocks() {
            for entry in 0..ENTRIES {
                let bit = u8::from(self.uncovered.has(first + entry)) << (entry % 8);
                block.uncovered[(entry / 8) as usize] |= bit;
            }
        }
        block
    }

    /// The checksum of a data page, as of when it was covered.
    pub(super) fn sum(&self, page: u64) -> u64 {
        self.sums[page as usize]
    }

    pub(super) fn set_sum(&mut self, page: u64, sum: u64) {
        if std::mem::replace(&mut self.sums[page as usize], sum) != sum {
            self.changed.insert(page / ENTRIES);
        }
    }

    /// The checksum of a parity page.
    pub(super) fn parity_sum(&self, stripe: u64) -> u64 {
        self.sums[self.parity_entry(stripe)]
    }

    pub(super) fn set_parity_sum(&mut self, stripe: u64, sum: u64) {
        let entry = self.parity_entry(stripe);
        if std::mem::replace(&mut self.sums[entry], sum) != sum {
            self.changed.insert(entry as u64 / ENTRIES);
        }
    }

    fn parity_entry(&self, stripe: u64) -> usize {
        (self.geometry.data_blocks() * ENTRIES + stripe) as usize
    }

    pub(super) fn uncovered(&self) -> &Bits {
        &self.uncovered
    }

    pub(super) fn set_uncovered(&mut self, page: u64, uncovered: bool) {
        if self.uncovered.put(page, uncovered) {
            self.changed.insert(page / ENTRIES);
        }
    }

    /// The data pages, or the stripes, that a block speaks of.
    pub(super) fn scope(&self, block: u64) -> Scope {
        let data = self.geometry.data_blocks();
        match block.checked_sub(data) {
            None => Scope::Pages(block * ENTRIES..((block + 1) * ENTRIES).min(self.geometry.pages())),
            Some(block) => Scope::Stripes(block * ENTRIES..((block + 1) * ENTRIES).min(self.geometry.stripes())),
        }
    }

    /// Writes the next version of every block that was changed, if any was. Whatever this wrote before is durable.
    pub(super) fn write<F: MediumFile>(&mut self, side: &F) -> Result<bool> {
        let changed = std::mem::take(&mut self.changed);
        let any = !changed.is_empty();
        for index in changed {
            let Held { seq, copy } = self.blocks[index as usize];
            self.blocks[index as usize] = Held { seq: seq + 1, copy: 1 - copy };
            self.put(side, index, 1 - copy)?;
        }
        Ok(any)
    }

    /// Writes this version over the other copy of every block, so that both hold it. Whatever was written before is
    /// durable.
    pub(super) fn write_twins<F: MediumFile>(&self, side: &F) -> Result<()> {
        for index in 0..self.geometry.blocks() {
            let held = self.blocks[index as usize];
            let twin = read_copy(side, &self.geometry, self.tie, index, 1 - held.copy, false)?;
            if twin.is_none_or(|twin| twin.seq != held.seq) {
                self.put(side, index, 1 - held.copy)?;
            }
        }
        Ok(())
    }

    fn put<F: MediumFile>(&self, side: &F, index: u64, copy: usize) -> Result<()> {
        side.write_anew(self.geometry.block_at(index, copy), &self.block(index).encode(index, self.tie))
    }

    /// Copies of blocks that the medium does not hold as they should be: the newer one is what memory says, the other
    /// whole.
    pub(super) fn damaged<F: MediumFile>(&self, side: &F) -> Result<Vec<(u64, usize)>> {
        let mut damaged = Vec::new();
        let mut buffer = PageBuffer::new(AT_ONCE.min(self.geometry.blocks()));
        for copy in [0, 1] {
            for first in (0..self.geometry.blocks()).step_by(AT_ONCE as usize) {
                let end = (first + AT_ONCE).min(self.geometry.blocks());
                let bytes = &mut buffer.bytes_mut()[..((end - first) * PAGE) as usize];
                // Many at once, and one by one only if some of them cannot be read.
                let are_there = side.read_stored_unless_bad(self.geometry.block_at(first, copy), bytes)?;
                for (index, bytes) in (first..end).zip(bytes.as_chunks::<{ PAGE as usize }>().0) {
                    let found = if are_there {
                        Block::decode(bytes, index, self.tie)
                    } else {
                        read_copy(side, &self.geometry, self.tie, index, copy, true)?
                    };
                    let held = self.blocks[index as usize];
                    let right = match found {
                        Some(found) if copy == held.copy => found == self.block(index),
                        Some(found) => found.seq <= held.seq,
                        None => false,
                    };
                    if !right {
                        damaged.push((index, copy));
                    }
                }
            }
        }
        damaged.sort_unstable();
        Ok(damaged)
    }

    /// Has the next [`write`](Tables::write) replace a copy that is damaged: that copy is the one written over, and
    /// the other is not touched before that is durable.
    pub(super) fn replace(&mut self, index: u64, copy: usize) {
        self.blocks[index as usize].copy = 1 - copy;
        self.changed.insert(index);
    }
}

/// What a table block speaks of.
pub(super) enum Scope {
    Pages(std::ops::Range<u64>),
    Stripes(std::ops::Range<u64>),
}

fn read_copy<F: MediumFile>(
    side: &F,
    geometry: &Geometry,
    tie: u64,
    index: u64,
    copy: usize,
    stored: bool,
) -> Result<Option<Block>> {
    let mut bytes = [0; PAGE as usize];
    let at = geometry.block_at(index, copy);
    let is_there =
        if stored { side.read_stored_unless_bad(at, &mut bytes)? } else { side.read_unless_bad(at, &mut bytes)? };
    Ok(if is_there { Block::decode(&bytes, index, tie) } else { None })
}
