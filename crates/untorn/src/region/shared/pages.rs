//! The page states of a shared region: two bits for each page, in memory that the cuts cover like the pages.
//!
//! # Invariants, whichever process is killed at whatever instruction
//!
//! - A commit has a page if the page is *allocated* in the cut. So stores and allocations are of the same instant, a
//!   rollback restores both, and the allocations of a killed process stay like its stores.
//! - One process at a time owns a page: one compare-and-exchange changes it from *free* to *claimed*, and only one
//!   succeeds. It becomes *allocated* only after it was cleared to zeros. No commit and no rollback comes in between.
//! - No process allocates a *freed* page before a commit without it is durable: only the process that serves makes it
//!   *free*, after that commit.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::ipc::memory::{BetweenCuts, SharedMemory};
use crate::region::engine::PAGE;
use crate::sys::shared::SharedPages;

/// Nobody has it.
pub(super) const FREE: u64 = 0;
/// It is part of the region.
pub(super) const ALLOCATED: u64 = 1;
/// It was part of the region, and the last commit may have it.
pub(super) const FREED: u64 = 2;
/// It is being made ready for somebody.
pub(super) const CLAIMED: u64 = 3;

/// Pages that a word tells of.
pub(super) const IN_WORD: u64 = 32;
/// Pages that a page of these words tells of.
const IN_PAGE: u64 = PAGE / 8 * IN_WORD;
/// The low bit of each page's two.
const LOW: u64 = 0x5555_5555_5555_5555;

/// The low bits of those pages in a word that are allocated.
pub(super) fn allocated_in(word: u64) -> u64 {
    word & !(word >> 1) & LOW
}

/// The low bits of those pages in a word that are free.
fn free_in(word: u64) -> u64 {
    !(word | word >> 1) & LOW
}

/// Where things are in the shared memory of a region: its pages from the first byte on, then the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Pages that can be in memory.
    pub(super) pages: u64,
}

impl Layout {
    /// The layout of shared memory of so many bytes.
    pub(super) fn of_len(len: u64) -> Self {
        let total = len / PAGE;
        Layout { pages: total - total.div_ceil(IN_PAGE + 1) }
    }

    /// Bytes of the shared memory.
    pub(super) fn len(self) -> u64 {
        (self.pages + self.pages.div_ceil(IN_PAGE)) * PAGE
    }

    /// Pages of the shared memory that have the states.
    pub(super) fn states(self) -> Range<u64> {
        self.pages..self.len() / PAGE
    }

    /// The first page that a page of states tells of.
    pub(super) fn first_of(self, states: u64) -> u64 {
        (states - self.pages) * IN_PAGE
    }

    /// The pages that have the states of these pages, of which there is one at least.
    fn states_of(self, pages: &Range<u64>) -> Range<u64> {
        self.pages + pages.start / IN_PAGE..self.pages + (pages.end - 1) / IN_PAGE + 1
    }

    /// Where the word of a page is, in bytes, and the page's place in it.
    fn place(self, page: u64) -> (usize, u64) {
        ((self.pages * PAGE + page / IN_WORD * 8) as usize, page % IN_WORD * 2)
    }
}

fn state_in(word: u64, shift: u64) -> u64 {
    word >> shift & 3
}

/// Changes the state of a page if it is as expected; the one it has if it is not.
fn exchange(word: &AtomicU64, shift: u64, from: u64, to: u64) -> Result<(), u64> {
    let mut seen = word.load(Ordering::SeqCst);
    loop {
        if state_in(seen, shift) != from {
            return Err(state_in(seen, shift));
        }
        let next = seen & !(3 << shift) | to << shift;
        match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
}

/// Makes pages that were freed free, which the last commit does not have. `committed` are the words of the last
/// commit, and `states` the pages of states to look at, all of them present. For the process that serves, while no
/// commit is under way.
pub(super) fn let_go(memory: &SharedPages, layout: Layout, committed: &[u64], states: &mut dyn Iterator<Item = u64>) {
    for page in states {
        let first = ((page - layout.pages) * (PAGE / 8)) as usize;
        let words = memory.words((page * PAGE) as usize, PAGE as usize / 8);
        for (word, committed) in words.iter().zip(committed.iter().skip(first)) {
            let seen = word.load(Ordering::SeqCst);
            let mut gone = seen >> 1 & !seen & LOW & !committed;
            while gone != 0 {
                // Only this thread takes a page out of this state.
                let _ = exchange(word, gone.trailing_zeros().into(), FREED, FREE);
                gone &= gone - 1;
            }
        }
    }
}

/// Why pages are not allocated.
pub(super) enum Refused {
    /// The page is not free.
    Taken(u64),
    /// The memory is lost or the map is poisoned.
    Lost(Error),
}

/// Has stores to a page proceed.
fn open(copy: &SharedMemory, now: &BetweenCuts<'_>, page: u64) -> Result<(), Refused> {
    if now.open(page) {
        return Ok(());
    }
    let lost = || Error::page_lost("store to", copy.path(), page * PAGE);
    Err(Refused::Lost(copy.check().err().unwrap_or_else(lost)))
}

/// Makes a page zeros. One that nobody has loaded is, for the last commit has nothing there.
fn clear(copy: &SharedMemory, now: &BetweenCuts<'_>, page: u64) -> Result<(), Refused> {
    let (at, mut bytes) = ((page * PAGE) as usize, [0; PAGE as usize]);
    if copy.has(page) {
        copy.load(at, &mut bytes).map_err(Refused::Lost)?;
        if bytes.iter().any(|byte| *byte != 0) {
            open(copy, now, page)?;
            copy.store(at, &[0; PAGE as usize]).map_err(Refused::Lost)?;
        }
    }
    Ok(())
}

/// The states as a process sees them, and changes them.
pub(super) struct States {
    pub(super) layout: Layout,
    /// Where to begin to look for a free page.
    hint: AtomicU64,
}

impl States {
    pub(super) fn new(layout: Layout) -> Self {
        States { layout, hint: AtomicU64::new(0) }
    }

    fn word<'a>(&self, copy: &'a SharedMemory, page: u64) -> (&'a AtomicU64, u64) {
        let (at, shift) = self.layout.place(page);
        (&copy.words(at, 1)[0], shift)
    }

    pub(super) fn state(&self, copy: &SharedMemory, page: u64) -> u64 {
        if page >= self.layout.pages {
            return FREE;
        }
        let (word, shift) = self.word(copy, page);
        state_in(word.load(Ordering::SeqCst), shift)
    }

    /// Looks for free pages from the lowest on again: a commit or a rollback may have made some free.
    pub(super) fn look_again(&self) {
        self.hint.store(0, Ordering::Relaxed);
    }

    /// Allocates `count` pages in a row, at a place or the first one found; the first of them, or `None` if they are
    /// nowhere.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn allocate(&self, copy: &SharedMemory, at: Option<u64>, count: u64) -> Result<Option<u64>, Refused> {
        loop {
            let first = match at {
                Some(first) => first,
                None => {
                    let from = self.hint.load(Ordering::Relaxed);
                    match self.vacancy(copy, from, count).or_else(|| self.vacancy(copy, 0, count)) {
                        Some(first) => first,
                        None => return copy.check().map(|()| None).map_err(Refused::Lost),
                    }
                }
            };
            match self.claim(copy, first, count) {
                Ok(()) => {
                    if at.is_none() && count == 1 {
                        self.hint.store(first + 1, Ordering::Relaxed);
                    }
                    return Ok(Some(first));
                }
                // Somebody else was quicker.
                Err(Refused::Taken(_)) if at.is_none() => {}
                Err(refused) => return Err(refused),
            }
        }
    }

    /// Takes pages that are free. All of it is between two cuts: a rollback in the middle would give the pages to
    /// somebody else, while this thread still makes them zeros.
    fn claim(&self, copy: &SharedMemory, first: u64, count: u64) -> Result<(), Refused> {
        let pages = first..first + count;
        let states = self.layout.states_of(&pages);
        // Before: who serves fills no page while it waits for a cut.
        copy.bring_in(states.clone()).map_err(Refused::Lost)?;
        copy.between_cuts(|now| {
            let change = |page: u64, from: u64, to: u64| {
                let (word, shift) = self.word(copy, page);
                exchange(word, shift, from, to).is_ok()
            };
            let give_back = |pages: Range<u64>| pages.for_each(|page| _ = change(page, CLAIMED, FREE));
            for page in states {
                open(copy, now, page)?;
            }
            for page in pages.clone() {
                if !change(page, FREE, CLAIMED) {
                    give_back(first..page);
                    return Err(Refused::Taken(page));
                }
            }
            #[cfg(test)]
            super::tests::failures::when_claimed();
            // That it was the states that were changed, and not zeros in the place of a lost page of them.
            let cleared = copy.check().map_err(Refused::Lost);
            let cleared = cleared.and_then(|()| pages.clone().try_for_each(|page| clear(copy, now, page)));
            if let Err(refused) = cleared {
                give_back(pages);
                return Err(refused);
            }
            pages.for_each(|page| _ = change(page, CLAIMED, ALLOCATED));
            copy.check().map_err(Refused::Lost)
        })
    }

    /// The first `count` pages in a row that are free, from a page on.
    fn vacancy(&self, copy: &SharedMemory, from: u64, count: u64) -> Option<u64> {
        let (mut first, mut next) = (from, from);
        while first.checked_add(count)? <= self.layout.pages {
            if next - first == count {
                return Some(first);
            }
            let (word, shift) = self.word(copy, next);
            let word = word.load(Ordering::SeqCst);
            if shift == 0 && free_in(word) == 0 {
                next += IN_WORD;
                first = next;
                continue;
            }
            next += 1;
            if state_in(word, shift) != FREE {
                first = next;
            }
        }
        None
    }

    /// Frees a page; false if it is not allocated.
    pub(super) fn free(&self, copy: &SharedMemory, page: u64) -> bool {
        if page >= self.layout.pages {
            return false;
        }
        let (word, shift) = self.word(copy, page);
        exchange(word, shift, ALLOCATED, FREED).is_ok()
    }

    /// Every page that is allocated, ascending.
    pub(super) fn pages(&self, copy: &SharedMemory) -> Vec<u64> {
        let mut pages = Vec::new();
        for first in (0..self.layout.pages).step_by(IN_WORD as usize) {
            let (word, _) = self.word(copy, first);
            pages.extend(pages_of(first, allocated_in(word.load(Ordering::SeqCst))));
        }
        pages
    }
}

/// The pages whose low bits are set in a word.
pub(super) fn pages_of(first: u64, mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(first + u64::from(bit) / 2)
    })
}
