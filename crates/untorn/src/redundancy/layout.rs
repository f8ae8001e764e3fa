//! Which pages form a stripe, and the layout of the redundancy file.

use std::ops::Range;

use super::format::ENTRIES;
use crate::format::sidecar::PAGE;
use crate::options::StripeLayout;

/// The shape of the redundancy of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Bytes of the data file.
    pub(super) len: u64,
    /// Data pages of a stripe.
    pub(super) stripe: u32,
    pub(super) layout: StripeLayout,
}

impl Geometry {
    /// The most data pages of a stripe: more would be lost together too often.
    pub(super) const MAX_STRIPE: u32 = 64;

    /// Pages of the data file; the last may be short, and counts as filled up with zeros.
    pub(super) fn pages(&self) -> u64 {
        self.len.div_ceil(PAGE)
    }

    /// Stripes, and so parity pages.
    pub(super) fn stripes(&self) -> u64 {
        self.pages().div_ceil(u64::from(self.stripe))
    }

    /// The stripe of a page.
    pub(super) fn stripe_of(&self, page: u64) -> u64 {
        match self.layout {
            StripeLayout::Consecutive => page / u64::from(self.stripe),
            StripeLayout::Spread => page % self.stripes(),
        }
    }

    /// The data pages of a stripe, ascending.
    pub(super) fn members(&self, stripe: u64) -> impl Iterator<Item = u64> + use<> {
        let (pages, width, stripes) = (self.pages(), u64::from(self.stripe), self.stripes());
        let layout = self.layout;
        (0..width)
            .map(move |nth| match layout {
                StripeLayout::Consecutive => stripe * width + nth,
                StripeLayout::Spread => stripe + nth * stripes,
            })
            .filter(move |page| *page < pages)
    }

    /// The data pages of consecutive stripes, as ranges of consecutive pages: the more stripes, the longer they are.
    pub(super) fn runs(&self, stripes: Range<u64>) -> Vec<Range<u64>> {
        let (pages, width) = (self.pages(), u64::from(self.stripe));
        // How many there are, where each begins, and how far.
        let (count, apart, factor) = match self.layout {
            StripeLayout::Consecutive => (1, 0, width),
            StripeLayout::Spread => (width, self.stripes(), 1),
        };
        let runs = (0..count).map(|nth| nth * apart + stripes.start * factor..nth * apart + stripes.end * factor);
        runs.map(|run| run.start..run.end.min(pages)).filter(|run| !run.is_empty()).collect()
    }

    /// The stripes that have any of these pages, as few ranges, of which two may overlap.
    pub(super) fn stripes_of(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let (width, stripes) = (u64::from(self.stripe), self.stripes());
        let ranges = match self.layout {
            _ if pages.is_empty() => [0..0, 0..0],
            StripeLayout::Consecutive => [pages.start / width..pages.end.div_ceil(width), 0..0],
            StripeLayout::Spread if pages.end - pages.start >= stripes => [0..stripes, 0..0],
            StripeLayout::Spread => match (pages.start % stripes, (pages.end - 1) % stripes) {
                (first, last) if first <= last => [first..last + 1, 0..0],
                (first, last) => [0..last + 1, first..stripes],
            },
        };
        ranges.into_iter().filter(|range| !range.is_empty()).collect()
    }

    /// Bytes of the file that a page has.
    pub(super) fn bytes_of(&self, page: u64) -> Range<u64> {
        page * PAGE..((page + 1) * PAGE).min(self.len)
    }

    /// The pages that have any of these bytes.
    pub(super) fn pages_of(&self, bytes: &Range<u64>) -> Range<u64> {
        if bytes.is_empty() { 0..0 } else { bytes.start / PAGE..bytes.end.div_ceil(PAGE) }
    }

    /// Blocks of the table of data pages.
    pub(super) fn data_blocks(&self) -> u64 {
        self.pages().div_ceil(ENTRIES)
    }

    /// Blocks of both tables, that of parity pages behind the other.
    pub(super) fn blocks(&self) -> u64 {
        self.data_blocks() + self.stripes().div_ceil(ENTRIES)
    }

    /// Where one of the two copies of a block is. The copies of one block are far apart.
    pub(super) fn block_at(&self, index: u64, copy: usize) -> u64 {
        (2 + copy as u64 * self.blocks() + index) * PAGE
    }

    /// Where a stripe's parity is.
    pub(super) fn parity_at(&self, stripe: u64) -> u64 {
        (2 + 2 * self.blocks() + stripe) * PAGE
    }

    /// Bytes that a list of all pages takes, behind everything else in the redundancy file.
    pub(super) fn list_len(&self) -> u64 {
        self.data_blocks() * PAGE
    }

    /// Bytes of the redundancy file.
    pub(super) fn side_len(&self) -> u64 {
        self.parity_at(self.stripes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_one_stripe_and_every_stripe_has_pages() {
        for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
            for stripe in 1..9 {
                for pages in 1..50 {
                    let geometry = Geometry { len: pages * PAGE - 1, stripe, layout };
                    let mut seen = vec![0; pages as usize];
                    for stripe in 0..geometry.stripes() {
                        let members: Vec<u64> = geometry.members(stripe).collect();
                        assert!(!members.is_empty());
                        for page in members {
                            assert_eq!(geometry.stripe_of(page), stripe);
                            seen[page as usize] += 1;
                        }
                    }
                    assert!(seen.iter().all(|&times| times == 1), "{geometry:?}");
                }
            }
        }
    }

    #[test]
    fn the_runs_of_stripes_are_their_pages_and_the_other_way_round() {
        for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
            for (stripe, pages) in (1..6).flat_map(|stripe| (1..30).map(move |pages| (stripe, pages))) {
                let geometry = Geometry { len: pages * PAGE - 1, stripe, layout };
                let all = geometry.stripes();
                for (from, to) in (0..all).flat_map(|from| (from + 1..=all).map(move |to| (from, to))) {
                    let mut members: Vec<u64> = (from..to).flat_map(|stripe| geometry.members(stripe)).collect();
                    members.sort_unstable();
                    let runs = geometry.runs(from..to);
                    assert!(runs.iter().all(|run| !run.is_empty()));
                    let mut found: Vec<u64> = runs.into_iter().flatten().collect();
                    found.sort_unstable();
                    assert_eq!(found, members, "{geometry:?}, stripes {from} to {to}");
                }
                for (from, to) in (0..pages).flat_map(|from| (from..=pages).map(move |to| (from, to))) {
                    let mut stripes: Vec<u64> = geometry.stripes_of(from..to).into_iter().flatten().collect();
                    stripes.sort_unstable();
                    stripes.dedup();
                    let mut expected: Vec<u64> = (from..to).map(|page| geometry.stripe_of(page)).collect();
                    expected.sort_unstable();
                    expected.dedup();
                    assert_eq!(stripes, expected, "{geometry:?}, pages {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn nothing_overlaps_in_the_companion_file() {
        let geometry = Geometry { len: 5000 * PAGE, stripe: 4, layout: StripeLayout::Consecutive };
        let blocks = (0..geometry.blocks()).flat_map(|index| [0, 1].map(|copy| geometry.block_at(index, copy)));
        let parity = (0..geometry.stripes()).map(|stripe| geometry.parity_at(stripe));
        let mut places: Vec<u64> = [0, PAGE].into_iter().chain(blocks).chain(parity).collect();
        places.sort_unstable();
        assert_eq!(places, (0..geometry.side_len() / PAGE).map(|page| page * PAGE).collect::<Vec<_>>());
    }
}
