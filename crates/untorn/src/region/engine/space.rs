//! The free map: which pages of the store are in use. It lives in memory; a clean close writes it out, and after a
//! crash a scan of every region rebuilds it.

/// One bit a page, set where the page is in use.
pub(super) struct Space {
    used: Vec<u64>,
    /// Pages of the store.
    pages: u64,
    /// Superblocks and nodes end here.
    first: u64,
    /// Pages from here on are known; whether one below is in use is known only where its bit is set.
    floor: u64,
    /// Free pages from `floor` on.
    free: u64,
    /// Where the next search begins.
    hint: u64,
    /// Pages released last, to be given out first: the file has blocks for them already, which a disk would have to
    /// commit beside the data where a page is written for the first time. Some may have been given out since.
    recent: Vec<u64>,
}

/// So many pages are remembered as released.
const RECENT: usize = 1 << 16;

impl Space {
    /// The map of a store of which nothing is known: only what is added to it from now on is given out.
    pub(super) fn unknown(pages: u64, first: u64) -> Self {
        let used = vec![0; pages.div_ceil(64) as usize];
        Space { used, pages, first, floor: pages, free: 0, hint: pages, recent: Vec::new() }
    }

    /// The map that a clean close left.
    pub(super) fn known(mut used: Vec<u64>, pages: u64, first: u64) -> Self {
        used.resize(pages.div_ceil(64) as usize, 0);
        // Bits that no page of a region has may say anything.
        let ends = [first, pages].map(|end| end / 64);
        for (index, word) in (0..).zip(&mut used).filter(|(index, _)| *index <= ends[0] || *index >= ends[1]) {
            for bit in (0..64).filter(|bit| !(first..pages).contains(&(index * 64 + bit))) {
                *word &= !(1 << bit);
            }
        }
        let mut space = Space { used, pages, first, floor: pages, free: 0, hint: first, recent: Vec::new() };
        space.complete();
        space
    }

    /// Every page in use has been marked: the others are free.
    pub(super) fn complete(&mut self) {
        self.floor = self.first.min(self.pages);
        // No other bits are set than those of pages that a region may have.
        self.free = self.pages - self.floor - self.used();
        self.hint = self.floor;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.floor <= self.first
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages that can be given out now.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Whether the number is that of a page a region may have.
    pub(super) fn holds(&self, page: u64) -> bool {
        (self.first..self.pages).contains(&page)
    }

    pub(super) fn is_used(&self, page: u64) -> bool {
        self.used.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Marks a page as used. False if it is already, or is no page a region may have.
    pub(super) fn mark(&mut self, page: u64) -> bool {
        if !self.holds(page) || self.is_used(page) {
            return false;
        }
        self.used[(page / 64) as usize] |= 1 << (page % 64);
        self.free -= u64::from(page >= self.floor);
        true
    }

    /// The page is free from now on.
    pub(super) fn release(&mut self, page: u64) {
        if self.holds(page) && self.is_used(page) {
            self.used[(page / 64) as usize] &= !(1 << (page % 64));
            if page >= self.floor {
                self.free += 1;
                if self.recent.len() < RECENT {
                    self.recent.push(page);
                }
            }
        }
    }

    /// Gives out a free page.
    pub(super) fn take(&mut self) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        while let Some(page) = self.recent.pop() {
            if self.mark(page) {
                return Some(page);
            }
        }
        let page = self.search(self.hint.max(self.floor), self.pages).or_else(|| self.search(self.floor, self.hint))?;
        self.hint = page + 1;
        self.mark(page).then_some(page)
    }

    fn search(&self, from: u64, to: u64) -> Option<u64> {
        let mut page = from;
        while page < to {
            let free = !self.used[(page / 64) as usize] >> (page % 64);
            if free != 0 {
                page += u64::from(free.trailing_zeros());
                return (page < to).then_some(page);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }

    /// The first of `count` free pages in a row.
    pub(super) fn run(&self, count: u64) -> Option<u64> {
        let mut start = self.search(self.floor, self.pages)?;
        let mut page = start;
        while page < self.pages {
            if self.is_used(page) {
                start = self.search(page, self.pages)?;
                page = start;
            }
            page += 1;
            if page - start >= count {
                return Some(start);
            }
        }
        None
    }

    /// The store became longer.
    pub(super) fn extend(&mut self, pages: u64) {
        self.used.resize(pages.div_ceil(64) as usize, 0);
        self.free += pages - self.pages;
        self.pages = pages;
    }

    /// The map as a clean close writes it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.used.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Pages in use.
    pub(super) fn used(&self) -> u64 {
        self.used.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_below_the_floor_is_given_out_before_all_is_known() {
        let mut space = Space::unknown(100, 6);
        assert_eq!(space.take(), None);
        assert!(space.mark(50) && !space.mark(50) && !space.mark(5) && !space.mark(100));
        space.extend(103);
        assert_eq!([space.take(), space.take()], [Some(100), Some(101)]);
        space.release(50);
        assert_eq!((space.take(), space.take()), (Some(102), None));
        assert!(space.mark(7));
        space.complete();
        assert_eq!(space.free(), 94 - 1);
        assert_eq!(space.take(), Some(6));
        assert_eq!(space.take(), Some(8));
    }

    #[test]
    fn released_pages_are_reused_and_none_is_given_out_twice() {
        let mut space = Space::known(vec![0b111; 4], 200, 2);
        let taken: Vec<u64> = std::iter::from_fn(|| space.take()).collect();
        let distinct: std::collections::BTreeSet<u64> = taken.iter().copied().collect();
        assert_eq!((taken.len(), distinct.len(), space.free()), (198 - 10, 188, 0));
        space.release(77);
        space.release(77);
        assert_eq!((space.free(), space.take(), space.take()), (1, Some(77), None));
    }

    #[test]
    fn runs_are_free_from_end_to_end() {
        let mut space = Space::known(vec![0; 4], 200, 2);
        for page in [2, 5, 10, 64, 130] {
            assert!(space.mark(page));
        }
        assert_eq!(space.run(2), Some(3));
        assert_eq!(space.run(4), Some(6));
        assert_eq!(space.run(60), Some(65));
        assert_eq!(space.run(69), Some(131));
        assert_eq!(space.run(70), None);
    }
}
