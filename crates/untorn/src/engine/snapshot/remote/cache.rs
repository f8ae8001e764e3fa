//! Pages that the server brought, as the reader has them: a second read of a page is a copy out of memory.
//!
//! # Invariants
//!
//! 1. One thread at a time changes what the memory has. It forgets the pages of the places, then begins a new round,
//!    and only then has the server store to them.
//! 2. A reader copies first and looks at the round afterwards. If it is the one from before the copy, and the page was
//!    there, the copy has the bytes of that page only.
//!
//! The bytes of a page are the same whenever it is brought for one snapshot. For later ones the caller looks whether
//! the page has changed since it was brought.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{BYTES, HEADER};
use crate::sys::ZeroedArray;
use crate::sys::shared::SharedPages;

/// The memory, and which pages are in it.
pub(super) struct Cache {
    memory: SharedPages,
    /// The page at each place, plus 1; 0 for none.
    pages: ZeroedArray<AtomicU64>,
    /// The snapshot that it was brought for.
    since: ZeroedArray<AtomicU64>,
    /// Counts how often places that had pages were given to others.
    round: AtomicU64,
}

impl Cache {
    /// # Errors
    /// Those of reserving memory.
    pub(super) fn new(memory: SharedPages) -> io::Result<Cache> {
        let places = (memory.reserved() as u64 - HEADER) / BYTES;
        let [pages, since] = [ZeroedArray::reserve(places as usize)?, ZeroedArray::reserve(places as usize)?];
        Ok(Cache { memory, pages, since, round: AtomicU64::new(0) })
    }

    /// The memory, with what comes before the pages.
    pub(super) fn memory(&self) -> &SharedPages {
        &self.memory
    }

    #[inline(always)]
    fn place(&self, page: u64) -> (u64, &AtomicU64) {
        let place = page % self.pages.len() as u64;
        (HEADER + place * BYTES, &self.pages[place as usize])
    }

    /// Whether a page is there.
    pub(super) fn has(&self, page: u64) -> bool {
        self.place(page).1.load(Ordering::Acquire) == page + 1
    }

    /// The snapshot that a page was brought for; `None` if it is not there.
    pub(super) fn since(&self, page: u64) -> Option<u64> {
        let since = &self.since[(page % self.pages.len() as u64) as usize];
        self.has(page).then(|| since.load(Ordering::Relaxed))
    }

    /// Copies bytes from `from` of a page that is there for a snapshot which `is_right` accepts. False, with
    /// unspecified bytes, if it is not.
    #[inline]
    pub(super) fn read(&self, page: u64, from: u64, dst: &mut [u8], is_right: impl FnOnce(u64) -> bool) -> bool {
        let round = self.round.load(Ordering::Acquire);
        if !self.since(page).is_some_and(is_right) {
            return false;
        }
        self.memory.copy_out((self.place(page).0 + from) as usize, dst);
        fence(Ordering::Acquire);
        self.round.load(Ordering::Relaxed) == round
    }

    /// The end of the pages from `page` on, of at most `wanted`, that are not there and have places in a row.
    pub(super) fn run_from(&self, page: u64, wanted: u64) -> u64 {
        let places = self.pages.len() as u64;
        let end = page + wanted.max(1).min(places - page % places);
        (page + 1..end).find(|page| self.has(*page)).unwrap_or(end)
    }

    /// Forgets all pages: they are to be those of another snapshot. Nobody reads meanwhile.
    pub(super) fn forget_all(&mut self) {
        self.pages.iter().for_each(|page| page.store(0, Ordering::Relaxed));
    }

    /// Makes room for pages, before the server stores them.
    pub(super) fn replace(&self, pages: Range<u64>) {
        let mut had_any = false;
        for page in pages {
            had_any |= self.place(page).1.swap(0, Ordering::Relaxed) != 0;
        }
        if had_any {
            self.round.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Says that the server has stored pages as a snapshot has them.
    pub(super) fn note_filled(&self, pages: Range<u64>, snapshot: u64) {
        for page in pages {
            self.since[(page % self.pages.len() as u64) as usize].store(snapshot, Ordering::Relaxed);
            self.place(page).1.store(page + 1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(places: u64) -> Cache {
        let size = HEADER + places * BYTES;
        Cache::new(SharedPages::create("untorn-test", size, size as usize).unwrap()).unwrap()
    }

    fn fill(cache: &Cache, pages: Range<u64>) {
        cache.replace(pages.clone());
        pages.clone().for_each(|page| cache.memory.copy_in(cache.place(page).0 as usize, &[page as u8; 4096]));
        cache.note_filled(pages, 1);
    }

    fn byte(cache: &Cache, page: u64) -> Option<u8> {
        let mut byte = [0];
        cache.read(page, 4095, &mut byte, |_| true).then_some(byte[0])
    }

    #[test]
    fn a_page_is_there_until_its_place_is_given_away() {
        let cache = cache(8);
        assert_eq!(byte(&cache, 3), None);
        fill(&cache, 3..5);
        assert_eq!([2, 3, 4, 5, 11].map(|page| byte(&cache, page)), [None, Some(3), Some(4), None, None]);
        assert_eq!(cache.round.load(Ordering::Relaxed), 0, "no reader is disturbed");
        fill(&cache, 11..12);
        assert_eq!([3, 4, 11].map(|page| byte(&cache, page)), [None, Some(4), Some(11)]);
        assert_eq!(cache.round.load(Ordering::Relaxed), 1);
        let runs = [(0, 9), (5, 9), (12, 1), (1, 0), (8, 9)].map(|(page, wanted)| cache.run_from(page, wanted));
        assert_eq!(runs, [4, 8, 13, 2, 11]);
    }

    /// Threads read while the places change hands.
    #[test]
    fn a_copy_has_the_bytes_of_one_page() {
        let cache = cache(2);
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for page in [1, 3] {
                let (cache, seen) = (&cache, &seen);
                scope.spawn(move || {
                    while seen.load(Ordering::Relaxed) < 3000 {
                        let mut bytes = [0xff; 4096];
                        if cache.read(page, 0, &mut bytes, |_| true) {
                            assert_eq!(bytes, [page as u8; 4096]);
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let mut round = 0;
            while seen.load(Ordering::Relaxed) < 3000 {
                round += 1;
                let page = 2 * (round % 2) + 1;
                fill(&cache, page..page + 1);
            }
        });
    }
}
