//! The bytes that a transaction has written so far.
//!
//! # Invariants
//!
//! 1. No two ranges overlap or touch: whatever the order of the writes, the engine gets each contiguous part as one
//!    piece.
//! 2. A byte holds what the last write to it gave.
//! 3. When a write joins two ranges, the bytes of the shorter one move. A moved byte ends in a range at least twice as
//!    long, so *n* bytes cost at most *n* · log2 *n* moves, in any order. A range grows at either end without moving
//!    what it holds, but for the moves of a buffer that doubles.

use std::collections::BTreeMap;

/// Disjoint ranges of bytes, by offset.
#[derive(Default)]
pub(super) struct Written {
    ranges: BTreeMap<u64, Span>,
    /// Bytes of older writes that later ones moved, without the moves of buffers that double.
    #[cfg(test)]
    moved: usize,
}

impl Written {
    /// Writes `buf` at `offset`, whose sum does not overflow.
    pub(super) fn write(&mut self, offset: u64, buf: &[u8]) {
        if buf.is_empty() {
            return;
        }
        let end = offset + buf.len() as u64;
        // The range that begins here or before and reaches at least to here.
        let left = self.ranges.range_mut(..=offset).next_back().map(|(&start, span)| (start, span));
        let left = left.filter(|(start, span)| start + span.len() as u64 >= offset);
        let left = match left {
            Some((start, span)) if start + span.len() as u64 >= end => {
                span.bytes_mut()[(offset - start) as usize..(end - start) as usize].copy_from_slice(buf);
                return;
            }
            left => left.map(|(start, _)| start),
        };
        let start = left.unwrap_or(offset);
        let mut joined = self.ranges.remove(&start).unwrap_or_default();
        joined.truncate((offset - start) as usize);
        // Those that begin in the write or right behind it. Only the last one may reach beyond its end.
        let mut right = Span::default();
        while let Some((&next, _)) = self.ranges.range(offset..=end).next() {
            right = self.ranges.remove(&next).unwrap_or_default();
            right.skip((end - next) as usize);
        }
        #[cfg(test)]
        {
            self.moved += joined.len().min(right.len());
        }
        if joined.len() >= right.len() {
            joined.append(buf);
            joined.append(right.bytes());
        } else {
            right.prepend(buf);
            right.prepend(joined.bytes());
            joined = right;
        }
        self.ranges.insert(start, joined);
    }

    /// Puts what was written over the bytes from `offset` on.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        let first = self.ranges.range(..=offset).next_back().map_or(offset, |(&start, _)| start);
        for (&start, span) in self.ranges.range(first..end) {
            let from = start.max(offset);
            let to = (start + span.len() as u64).min(end);
            if from < to {
                let bytes = &span.bytes()[(from - start) as usize..(to - start) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
            }
        }
    }

    /// All ranges, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges.iter().map(|(&offset, span)| (offset, span.bytes()))
    }
}

/// Bytes that grow at both ends: a buffer whose first bytes are room to grow into.
#[derive(Default)]
struct Span {
    buffer: Vec<u8>,
    room: usize,
}

impl Span {
    fn len(&self) -> usize {
        self.buffer.len() - self.room
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.room..]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.room..]
    }

    /// Keeps the first `len` bytes.
    fn truncate(&mut self, len: usize) {
        self.buffer.truncate(self.room.saturating_add(len));
    }

    /// Leaves out the first `len` bytes.
    fn skip(&mut self, len: usize) {
        self.room = self.buffer.len().min(self.room.saturating_add(len));
    }

    fn append(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn prepend(&mut self, bytes: &[u8]) {
        if self.room < bytes.len() {
            // As much room as there are bytes then: the next move comes when these have doubled.
            let len = self.len() + bytes.len();
            let mut buffer = Vec::with_capacity(2 * len);
            buffer.resize(len + bytes.len(), 0);
            buffer.extend_from_slice(self.bytes());
            self.room = len + bytes.len();
            self.buffer = buffer;
        }
        self.room -= bytes.len();
        self.buffer[self.room..][..bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: usize = 200;

    proptest! {
        /// Whatever the writes and their order: each byte is that of the last write to it, and the ranges are as few as
        /// can be.
        #[test]
        fn the_last_write_to_a_byte_wins_in_any_order(
            writes in proptest::collection::vec((0..LEN, 0..40_usize, any::<u8>()), 0..60),
        ) {
            let mut written = Written::default();
            let mut model = [None; LEN];
            for (offset, len, seed) in writes {
                let len = len.min(LEN - offset);
                let bytes: Vec<u8> = (0..len).map(|nth| seed.wrapping_add(nth as u8)).collect();
                written.write(offset as u64, &bytes);
                for (byte, to) in bytes.iter().zip(&mut model[offset..]) {
                    *to = Some(*byte);
                }
                let mut found = [None; LEN];
                let mut last = None;
                for (start, bytes) in written.iter() {
                    prop_assert!(!bytes.is_empty());
                    prop_assert!(last.is_none_or(|last| last < start), "two ranges touch at {start}");
                    last = Some(start + bytes.len() as u64);
                    for (byte, to) in bytes.iter().zip(&mut found[start as usize..]) {
                        *to = Some(*byte);
                    }
                }
                prop_assert_eq!(found, model);
            }
            for offset in [0, 3, LEN - 1] {
                let mut read = vec![7; LEN - offset];
                written.read(offset as u64, &mut read);
                let expected: Vec<u8> = model[offset..].iter().map(|byte| byte.unwrap_or(7)).collect();
                prop_assert_eq!(read, expected);
            }
        }
    }

    /// Pages of 16 bytes, written in an order: how many bytes moved.
    fn moved(order: impl Iterator<Item = u64>) -> usize {
        let mut written = Written::default();
        for page in order {
            written.write(page * 16, &[page as u8; 16]);
        }
        assert_eq!(written.iter().count(), 1);
        written.moved
    }

    #[test]
    fn no_order_of_writes_moves_bytes_again_and_again() {
        const PAGES: u64 = 4096;
        assert_eq!(moved(0..PAGES), 0, "ascending");
        assert_eq!(moved((0..PAGES).rev()), 0, "descending");
        // Every second one, then those between; and the odd multiples of each power of two, which join ranges of equal
        // length last: the most that can move.
        assert!(moved((0..PAGES).step_by(2).chain((1..PAGES).step_by(2))) <= PAGES as usize * 16);
        let scattered = (0..PAGES).map(|nth| nth.reverse_bits() >> (64 - PAGES.trailing_zeros()));
        assert!(moved(scattered) <= PAGES as usize * 16 * PAGES.trailing_zeros() as usize);
    }

    /// A buffer is made anew each time its bytes have doubled.
    #[test]
    fn a_span_that_grows_downwards_is_copied_seldom() {
        let (mut span, mut copies) = (Span::default(), 0);
        for nth in 0..10_000_usize {
            let before = span.room;
            span.prepend(&[nth as u8]);
            copies += usize::from(span.room + 1 != before);
        }
        assert!(span.bytes().iter().rev().enumerate().all(|(nth, byte)| *byte == nth as u8));
        assert!(copies <= 15, "{copies} copies");
    }
}
