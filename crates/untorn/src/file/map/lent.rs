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
//! 4. The first look at a chunk costs the most: each of its pages that a load brought into memory gets its write
//!    protection. So chunks are small, as far as the bits of the longest map allow. Chunks near each other are looked
//!    at together, because a system call costs as much as some pages.

use std::iter;
use std::ops::Range;

/// Bytes that are noted together: of a map that is not long 64 KiB, and of the longest those of one page of a page
/// table.
const SHORTEST: u64 = 64 << 10;
const LONGEST: u64 = 2 << 20;

/// Chunks of a map up to which they stay as short: 512 KiB of bits.
const CHUNKS: u64 = 1 << 22;

/// Bytes of one slice whose chunks are noted one by one. Of a longer one, all of the map counts.
const MOST: u64 = 128 << 20;

/// Chunks that are no farther from each other than this are looked at together.
const GAP: u64 = 256 << 10;

/// The chunks that were lent.
pub(super) struct Lent {
    /// Bytes of a chunk.
    chunk: u64,
    /// A bit for each chunk up to the last one that was ever noted.
    bits: Vec<u64>,
    /// Those whose bits are set.
    chunks: Vec<u64>,
    all: bool,
    pointed: bool,
}

impl Lent {
    /// Nothing is lent, and there is room for what most programs lend between two commits.
    /// The map may get this length.
    pub(super) fn nothing(reserved: u64) -> Self {
        let chunk = (reserved / CHUNKS).next_power_of_two().clamp(SHORTEST, LONGEST);
        Lent { chunk, bits: vec![0], chunks: Vec::with_capacity(64), all: false, pointed: false }
    }

    /// Notes bytes that are about to be lent.
    #[inline]
    pub(super) fn note(&mut self, from: u64, len: u64) {
        let (first, last) = (from / self.chunk, (from + len.saturating_sub(1)) / self.chunk);
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
        if (last - first) * self.chunk >= MOST {
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
            let (start, stop) = (chunk * self.chunk, ((chunk + 1) * self.chunk).min(end));
            match ranges.last_mut() {
                _ if start >= end => break,
                Some(last) if start - last.end <= GAP => last.end = stop,
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
        for (reserved, chunk) in [(0, 64 << 10), (1 << 38, 64 << 10), (1 << 40, 256 << 10), (1 << 50, 2 << 20)] {
            let mut lent = Lent::nothing(reserved);
            assert!(lent.below(u64::MAX).is_empty());
            // Far enough from each other.
            let at = |number: u64| number * (chunk + GAP).next_multiple_of(chunk);
            for (from, len) in [(at(5), 1), (at(5) + 7, 0), (at(2) - 1, 2), (at(200), chunk), (at(5), 9)] {
                lent.note(from, len);
            }
            let noted = [at(2) - chunk..at(2) + chunk, at(5)..at(5) + chunk, at(200)..at(200) + chunk];
            assert_eq!(lent.below(u64::MAX), noted, "{reserved}");
            assert_eq!(lent.chunks.len(), 4);
            assert_eq!(lent.below(at(5) + 10), [noted[0].clone(), at(5)..at(5) + 10]);
            assert_eq!(lent.below(at(5)), noted[..1]);
            lent.forget();
            assert!(lent.below(u64::MAX).is_empty() && lent.bits.iter().all(|word| *word == 0));
            // One call asks about both.
            lent.note(0, 1);
            lent.note(chunk + GAP, 1);
            let end = ((chunk + GAP) / chunk + 1) * chunk;
            assert_eq!(lent.below(u64::MAX), slice::from_ref(&(0..end)), "{reserved}");
            lent.forget();
            lent.note(0, MOST + 1);
            assert_eq!(lent.below(9), slice::from_ref(&(0..9)), "a long slice");
            lent.forget();
            assert!(lent.below(9).is_empty());
            lent.note_pointer();
            lent.forget();
            assert_eq!(lent.below(9), slice::from_ref(&(0..9)), "a pointer is good for ever");
        }
    }
}
