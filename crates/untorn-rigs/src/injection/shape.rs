//! The layout of a redundancy file, derived from `docs/format.md` without untorn's code.

use std::ops::Range;

use untorn::redundancy::StripeLayout;

pub(super) const PAGE: u64 = 4096;
/// Number of checksums per table block.
const ENTRIES: u64 = 500;
/// The offset of the lanes of records in a sidecar.
const LANES_AT: u64 = 3 * PAGE;
/// Bytes of the two superblocks.
const SUPERBLOCKS: u64 = 2 * PAGE;

/// The offset of a sidecar's chunks, from the superblock's description of the lanes before them.
pub(super) fn chunks_at(sidecar: &[u8]) -> u64 {
    let word =
        |at: usize| u64::from(u32::from_le_bytes([sidecar[at], sidecar[at + 1], sidecar[at + 2], sidecar[at + 3]]));
    (LANES_AT + word(100) * word(104) * 64).next_multiple_of(PAGE)
}

/// The shape of a protected file and its redundancy file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of the data file.
    pub(super) len: u64,
    /// Data pages of a stripe.
    pub(super) stripe: u64,
    pub(super) layout: StripeLayout,
}

impl Shape {
    pub(super) fn pages(&self) -> u64 {
        self.len.div_ceil(PAGE)
    }

    pub(super) fn stripes(&self) -> u64 {
        self.pages().div_ceil(self.stripe)
    }

    /// The pages of a stripe.
    pub(super) fn members(&self, stripe: u64) -> Vec<u64> {
        let all = 0..self.stripe;
        let page = |nth| match self.layout {
            StripeLayout::Consecutive => stripe * self.stripe + nth,
            StripeLayout::Spread => stripe + nth * self.stripes(),
        };
        all.map(page).filter(|page| *page < self.pages()).collect()
    }

    /// Bytes of a page of the data file.
    pub(super) fn page(&self, page: u64) -> Range<u64> {
        page * PAGE..((page + 1) * PAGE).min(self.len)
    }

    /// Table blocks, of which there are two copies.
    pub(super) fn blocks(&self) -> u64 {
        self.pages().div_ceil(ENTRIES) + self.stripes().div_ceil(ENTRIES)
    }

    /// The offset of a copy of a block in the redundancy file.
    pub(super) fn block_at(&self, block: u64, copy: u64) -> u64 {
        SUPERBLOCKS + (copy * self.blocks() + block) * PAGE
    }

    /// The offset of a stripe's parity.
    pub(super) fn parity_at(&self, stripe: u64) -> u64 {
        SUPERBLOCKS + (2 * self.blocks() + stripe) * PAGE
    }

    /// Whether two versions of the redundancy file's page at `at` have the same meaning, as they must without stores. A
    /// block's version and checksum change with each write, and superblocks record scrubs and the file's time.
    pub(super) fn agree(&self, at: u64, a: &[u8], b: &[u8]) -> bool {
        let same = |ranges: &[Range<usize>]| ranges.iter().all(|range| a[range.clone()] == b[range.clone()]);
        match at {
            0..SUPERBLOCKS => same(&[0..56, 64..120, 168..4088]),
            _ if at < self.parity_at(0) => same(&[0..8, 16..4088]),
            _ => a == b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_stripes_are_all_pages() {
        for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
            let shape = Shape { len: 41 * PAGE + 5, stripe: 4, layout };
            let mut pages: Vec<u64> = (0..shape.stripes()).flat_map(|stripe| shape.members(stripe)).collect();
            pages.sort_unstable();
            assert_eq!(pages, (0..42).collect::<Vec<_>>());
            assert_eq!((shape.page(41).end, shape.blocks(), shape.parity_at(0)), (shape.len, 2, 6 * PAGE));
        }
    }
}
