//! Which bytes of a map were lent for stores since the page tables were last asked.
//!
//! A look at the page tables costs as much as the pages that are mapped, be they stored to or only loaded from. So a
//! commit looks only where the program could have stored.
//!
//! # Invariants
//!
//! 1. A page that was stored to since the page tables were last asked is in a chunk that is noted, or all chunks count.
//!    A slice is noted when it is lent, and nobody stores through it once its borrow has ended.
//! 2. Once a pointer for stores was given out, all chunks count for ever: nobody knows what it is used for.
//! 3. To note bytes takes no memory, but for more chunks, or chunks farther from the beginning, than ever before.

use std::iter;
use std::ops::Range;

/// Bytes that are noted together: those of one page of a page table.
const CHUNK: u64 = 2 << 20;

/// Chunks of one slice that are noted one by one. Of a longer one, all of the map counts.
const MOST: u64 = 64;

/// The chunks that were lent.
pub(super) struct Lent {
    /// A bit for each chunk up to the last one that was ever noted.
    bits: Vec<u64>,
    /// Those whose bits are set.
    chunks: Vec<u64>,
    all: bool,
    pointed: bool,
}

impl Lent {
    /// Nothing is lent, and there is room for what most programs lend between two commits.
    pub(super) fn nothing() -> Self {
        Lent { bits: vec![0], chunks: Vec::with_capacity(64), all: false, pointed: false }
    }

    /// Notes bytes that are about to be lent.
    #[inline]
    pub(super) fn note(&mut self, from: u64, len: u64) {
        let (first, last) = (from / CHUNK, (from + len.saturating_sub(1)) / CHUNK);
        if first != last || !self.has(first) {
            self.note_chunks(first, last);
        }
    }

    #[inline]
    fn has(&self, chunk: u64) -> bool {
        self.bits.get((chunk / 64) as usize).is_some_and(|word| word >> (chunk % 64) & 1 == 1)
    }

    #[cold]
    fn note_chunks(&mut self, first: u64, last: u64) {
        if last - first >= MOST {
            self.all = true;
            return;
        }
        for chunk in first..=last {
            if !self.has(chunk) {
                let word = (chunk / 64) as usize;
                self.bits.resize(self.bits.len().max((word + 1).next_power_of_two()), 0);
                self.bits[word] |= 1 << (chunk % 64);
                self.chunks.push(chunk);
            }
        }
    }

    /// Notes that all of the map is lent.
    pub(super) fn note_all(&mut self) {
        self.all = true;
    }

    /// Notes that a pointer is given out.
    pub(super) fn note_pointer(&mut self) {
        self.pointed = true;
    }

    /// What was lent below an end, ascending.
    pub(super) fn below(&self, end: u64) -> Vec<Range<u64>> {
        if self.all || self.pointed {
            return iter::once(0..end).collect();
        }
        let mut chunks = self.chunks.clone();
        chunks.sort_unstable();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for chunk in chunks {
            let (start, stop) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(end));
            match ranges.last_mut() {
                _ if start >= end => break,
                Some(last) if last.end == start => last.end = stop,
                _ => ranges.push(start..stop),
            }
        }
        ranges
    }

    /// The page tables were asked: nothing is lent any more.
    pub(super) fn forget(&mut self) {
        for chunk in self.chunks.drain(..) {
            self.bits[(chunk / 64) as usize] = 0;
        }
        self.all = false;
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[test]
    fn chunks_are_noted_once_and_forgotten_together() {
        let mut lent = Lent::nothing();
        assert!(lent.below(u64::MAX).is_empty());
        for (from, len) in
            [(5 * CHUNK, 1), (5 * CHUNK + 7, 0), (2 * CHUNK - 1, 2), (200 * CHUNK, CHUNK), (5 * CHUNK, 9)]
        {
            lent.note(from, len);
        }
        let noted = [CHUNK..3 * CHUNK, 5 * CHUNK..6 * CHUNK, 200 * CHUNK..201 * CHUNK];
        assert_eq!(lent.below(u64::MAX), noted);
        assert_eq!(lent.chunks.len(), 4);
        assert_eq!(lent.below(5 * CHUNK + 10), [CHUNK..3 * CHUNK, 5 * CHUNK..5 * CHUNK + 10]);
        assert_eq!(lent.below(5 * CHUNK), noted[..1]);
        lent.forget();
        assert!(lent.below(u64::MAX).is_empty() && lent.bits.iter().all(|word| *word == 0));
        lent.note(0, MOST * CHUNK + 1);
        assert_eq!(lent.below(9), slice::from_ref(&(0..9)), "a long slice");
        lent.forget();
        assert!(lent.below(9).is_empty());
        lent.note_pointer();
        lent.forget();
        assert_eq!(lent.below(9), slice::from_ref(&(0..9)), "a pointer is good for ever");
    }
}
