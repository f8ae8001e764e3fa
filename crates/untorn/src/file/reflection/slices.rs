//! Slices of a page and sets of them.

use crate::engine::Piece;
use crate::format::sidecar::PAGE;
/// Of slices: as (first slice, slices).
pub(super) use crate::storage::runs;

/// Bytes of a slice: a cache line.
pub(super) const SLICE: u64 = 64;

/// The slices that bytes `from..to` of a page touch. `from < to <= 4096`.
#[inline]
pub(super) fn touched(from: u64, to: u64) -> u64 {
    debug_assert!(from < to && to <= PAGE);
    let first = from / SLICE;
    let last = (to - 1) / SLICE;
    (u64::MAX << first) & (u64::MAX >> (63 - last))
}

/// The part of a page's byte range that one piece of a write covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    /// Page number.
    pub(super) page: u64,
    /// First byte within the page.
    pub(super) from: u64,
    /// The bytes.
    pub(super) bytes: &'a [u8],
}

impl<'a> Part<'a> {
    /// Its first byte within the file.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.page * PAGE + self.from
    }

    pub(super) fn piece(&self) -> Piece<'a> {
        Piece { offset: self.offset(), bytes: self.bytes }
    }

    /// Behind its last byte within the page.
    #[inline]
    pub(super) fn to(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }

    /// Whether it covers whole units of so many bytes only, a power of two.
    #[inline]
    pub(super) fn aligned(&self, unit: u64) -> bool {
        (self.from | self.bytes.len() as u64) & (unit - 1) == 0
    }

    /// The slices that it covers wholly.
    pub(super) fn whole_slices(&self) -> u64 {
        let (first, end) = (self.from.div_ceil(SLICE), self.to() / SLICE);
        if first < end { touched(first * SLICE, end * SLICE) } else { 0 }
    }
}

/// Cuts a byte range at page boundaries.
pub(super) fn parts(offset: u64, bytes: &[u8]) -> impl Iterator<Item = Part<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == bytes.len() {
            return None;
        }
        let position = offset + at as u64;
        let from = position % PAGE;
        let len = ((PAGE - from) as usize).min(bytes.len() - at);
        let part = Part { page: position / PAGE, from, bytes: &bytes[at..at + len] };
        at += len;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_counts_partial_slices() {
        assert_eq!(touched(0, 1), 1);
        assert_eq!(touched(0, 64), 1);
        assert_eq!(touched(0, 65), 3);
        assert_eq!(touched(63, 65), 3);
        assert_eq!(touched(4095, 4096), 1 << 63);
        assert_eq!(touched(0, 4096), u64::MAX);
    }

    #[test]
    fn whole_slices_are_those_without_another_byte() {
        let bytes = [0; PAGE as usize];
        let part = |from: u64, to: u64| Part { page: 0, from, bytes: &bytes[from as usize..to as usize] };
        assert_eq!(part(0, 4096).whole_slices(), u64::MAX);
        assert_eq!(part(0, 63).whole_slices(), 0);
        assert_eq!(part(1, 127).whole_slices(), 0);
        assert_eq!(part(1, 128).whole_slices(), 0b10);
        assert_eq!(part(64, 200).whole_slices(), 0b110);
        assert!(part(64, 192).aligned(SLICE) && !part(64, 192).aligned(PAGE) && part(0, 4096).aligned(PAGE));
    }

    #[test]
    fn parts_cover_the_range_in_order() {
        let bytes: Vec<u8> = (0..10_000).map(|n| n as u8).collect();
        let mut at = 4000;
        for part in parts(4000, &bytes) {
            assert_eq!(part.page * PAGE + part.from, at);
            assert!(part.to() <= PAGE);
            assert_eq!(part.bytes[0], (at - 4000) as u8);
            at += part.bytes.len() as u64;
        }
        assert_eq!(at, 14_000);
        assert_eq!(parts(7, &[]).count(), 0);
    }
}
