//! The age of uncovered pages, as an upper bound.
//!
//! An instant for each stored page would cost more than the page's mark. So there is one common instant, and individual
//! ones for the few pages that a pass leaves uncovered: *no uncovered page became uncovered before its own instant, or,
//! without one, before the common instant.*
//!
//! A pass that completes covers every page stored to before it began. A page that was uncovered before the pass and
//! still is afterwards is one that the pass left: it keeps the instant that it counted by, until it is covered. All
//! other uncovered pages were stored to since the pass began, and that becomes the common instant. So a reported age is
//! too high by less than the time between two passes. If stores are covered at once there are no passes, and few
//! uncovered pages at a time: each has its own instant.

use std::collections::BTreeMap;
use std::time::Instant;

use super::bits::Bits;

/// Since when pages of a file are uncovered.
pub(super) struct UncoveredSince {
    /// For pages that have no instant of their own.
    since: Instant,
    /// For those that have one.
    own: BTreeMap<u64, Instant>,
    /// Pages that were uncovered when the last pass began, and have not been covered since.
    due: Bits,
}

impl UncoveredSince {
    /// Of a file of so many pages, of which any may be uncovered from this instant on.
    pub(super) fn new(pages: u64, since: Instant) -> Self {
        UncoveredSince { since, own: BTreeMap::new(), due: Bits::new(pages) }
    }

    /// The same for another number of pages: what is known of those that stay.
    pub(super) fn of_length(&self, pages: u64) -> Self {
        let own = self.own.range(..pages).map(|(page, since)| (*page, *since)).collect();
        UncoveredSince { since: self.since, own, due: Bits::new(pages) }
    }

    /// A page has become uncovered.
    pub(super) fn stored(&mut self, page: u64, now: Instant) {
        self.own.entry(page).or_insert(now);
    }

    /// A page has been covered.
    pub(super) fn covered(&mut self, page: u64) {
        self.own.remove(&page);
        self.due.put(page, false);
    }

    /// A pass begins, before which these became uncovered.
    pub(super) fn begin(&mut self, due: Bits) {
        self.due = due;
    }

    /// A pass that began at this instant came to its end. What it left are pages that are still due: if another has
    /// begun meanwhile, perhaps also some that were stored to in between, for which it is too much.
    pub(super) fn end(&mut self, began: Instant) {
        for page in self.due.iter() {
            self.own.entry(page).or_insert(self.since);
        }
        self.since = self.since.max(began);
    }

    /// Since when the oldest of these, all that are uncovered, is so.
    pub(super) fn oldest<'a>(&self, uncovered: impl Iterator<Item = &'a u64>) -> Option<Instant> {
        uncovered.map(|page| *self.own.get(page).unwrap_or(&self.since)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 20;

    fn bits(pages: impl Iterator<Item = u64>) -> Bits {
        let mut bits = Bits::new(PAGES);
        for page in pages {
            bits.put(page, true);
        }
        bits
    }

    proptest! {
        /// Pages are stored to between passes and amid them, and passes leave some: no age is too little, and none is
        /// more than the time from the beginning of one pass to the beginning of the next too much.
        #[test]
        fn they_are_true_within_a_pass(passes in proptest::collection::vec(
            (proptest::collection::vec(0..PAGES, 0..6), proptest::collection::vec(0..PAGES, 0..6),
             proptest::collection::vec(0..PAGES, 0..4), any::<bool>()), 1..30)) {
            let start = Instant::now();
            let mut ticks = 0;
            let mut tick = || { ticks += 1; start + Duration::from_secs(ticks) };
            let mut uncovered_since = UncoveredSince::new(PAGES, start);
            // Since when each is uncovered in truth, and the instant from which the last pass on counted.
            let mut truth: BTreeMap<u64, Instant> = BTreeMap::new();
            let mut passes_began = vec![start];
            for (before, amid, left, ends) in passes {
                for page in before {
                    let now = tick();
                    truth.entry(page).or_insert(now);
                }
                let began = tick();
                uncovered_since.begin(bits(truth.keys().copied()));
                let due: Vec<u64> = truth.keys().copied().filter(|page| !left.contains(page)).collect();
                for page in due {
                    truth.remove(&page);
                    uncovered_since.covered(page);
                }
                for page in amid {
                    let now = tick();
                    truth.entry(page).or_insert(now);
                }
                if ends {
                    uncovered_since.end(began);
                    passes_began.push(began);
                }
                let notified = uncovered_since.oldest(truth.keys());
                prop_assert_eq!(notified.is_some(), !truth.is_empty());
                let Some(notified) = notified else { continue };
                let oldest = *truth.values().min().unwrap();
                prop_assert!(notified <= oldest);
                // The last pass that began before it, or with it.
                let pass = passes_began.iter().rev().find(|began| **began <= oldest).unwrap();
                prop_assert!(notified >= *pass, "{:?} before {:?}", notified, pass);
            }
        }
    }

    #[test]
    fn each_has_its_own_where_it_is_told_of() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut uncovered_since = UncoveredSince::new(PAGES, start);
        uncovered_since.stored(3, at(5));
        uncovered_since.stored(3, at(6));
        uncovered_since.stored(19, at(7));
        assert_eq!(uncovered_since.oldest([3, 19].iter()), Some(at(5)));
        uncovered_since.covered(3);
        assert_eq!(uncovered_since.oldest([19].iter()), Some(at(7)));
        // Of a page that is cut off nothing is kept.
        assert_eq!(uncovered_since.of_length(19).oldest([19].iter()), Some(start));
        assert_eq!(uncovered_since.of_length(25).oldest([19, 24].iter()), Some(start));
        assert_eq!(uncovered_since.oldest([].iter()), None);
    }
}
