//! The dirty pages: how they are found, taken by a commit, and made dirty again if no process completes the commit.
//!
//! # Invariant at every instant, whichever process is killed
//!
//! A page that is neither dirty nor in flight equals the last commit. A page goes from dirty to in flight by setting
//! the one bit before clearing the other. It leaves in flight when the backing has reported that the commit is durable.

use std::sync::atomic::Ordering;

use super::bits::pages_of;
use super::{Control, DIRTY, IN_FLIGHT, PENDING};

impl Control {
    /// The dirty pages, ascending.
    pub(in super::super) fn dirty_pages(&self, into: &mut Vec<u64>) {
        into.clear();
        let dirty = self.dirty();
        for (index, summary) in dirty.summary.iter().enumerate().take(self.summaries()) {
            for word in pages_of(index, summary.load(Ordering::SeqCst)) {
                let bits = dirty.words.get(word as usize).map_or(0, |word| word.load(Ordering::SeqCst));
                into.extend(pages_of(word as usize, bits));
            }
        }
        self.keep_existing(into);
    }

    /// Makes the dirty pages those of a commit under way, each pending until it is copied. The gate is closed.
    pub(in super::super) fn take_dirty(&self, into: &mut Vec<u64>) {
        into.clear();
        let (dirty, in_flight, pending) = (self.dirty(), self.in_flight(), self.pending());
        for (index, summary) in dirty.summary.iter().enumerate().take(self.summaries()) {
            let which = summary.load(Ordering::SeqCst);
            if which == 0 {
                continue;
            }
            for word in pages_of(index, which) {
                let word = (word as usize).min(dirty.words.len() - 1);
                let bits = dirty.words[word].load(Ordering::SeqCst);
                pending.words[word].fetch_or(bits, Ordering::SeqCst);
                in_flight.words[word].fetch_or(bits, Ordering::SeqCst);
                dirty.words[word].store(0, Ordering::SeqCst);
                into.extend(pages_of(word, bits));
            }
            summary.store(0, Ordering::SeqCst);
        }
        self.keep_existing(into);
    }

    /// Drops pages that a process gone wild may have named.
    fn keep_existing(&self, pages: &mut Vec<u64>) {
        let end = self.pages();
        pages.retain(|page| *page < end);
    }

    /// How many words of the summary there can be bits in.
    fn summaries(&self) -> usize {
        self.pages().div_ceil(64 * 64) as usize
    }

    /// Makes all pages of a commit that nobody will complete dirty again, forgets what a cut was doing, and finds the
    /// summary anew: what a process does first that takes over the serving.
    pub(in super::super) fn recover(&self) {
        let (dirty, in_flight, pending) = (self.dirty(), self.in_flight(), self.pending());
        for word in self.words_in_memory(IN_FLIGHT) {
            let bits = in_flight.words[word].load(Ordering::SeqCst);
            if bits != 0 {
                dirty.words[word].fetch_or(bits, Ordering::SeqCst);
                in_flight.words[word].store(0, Ordering::SeqCst);
            }
        }
        for word in self.words_in_memory(PENDING) {
            if pending.words[word].load(Ordering::SeqCst) != 0 {
                pending.words[word].store(0, Ordering::SeqCst);
            }
        }
        for word in self.words_in_memory(DIRTY) {
            if dirty.words[word].load(Ordering::SeqCst) != 0 {
                dirty.summarise(word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PAGE;
    use super::*;

    #[test]
    fn dirty_pages_are_taken_once_and_return_if_uncommitted() {
        let control = Control::create(20_000 * PAGE as u64, 1 << 20).unwrap();
        let pages = [0, 63, 64, 4095, 4096, 19_999];
        pages.iter().for_each(|page| assert!(!control.dirty().set(*page)));
        let mut found = Vec::new();
        control.dirty_pages(&mut found);
        assert_eq!(found, pages);
        control.take_dirty(&mut found);
        assert_eq!(found, pages);
        assert!(pages.iter().all(|page| control.pending().get(*page) && control.in_flight().get(*page)));
        control.dirty_pages(&mut found);
        assert!(found.is_empty());
        control.dirty().set(7);
        control.recover();
        control.dirty_pages(&mut found);
        assert_eq!(found, [0, 7, 63, 64, 4095, 4096, 19_999]);
        assert!(!pages.iter().any(|page| control.pending().get(*page) || control.in_flight().get(*page)));
    }
}
