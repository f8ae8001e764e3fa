//! Reading a file after a crash without recovering it. All bytes that recovery would store to the file are laid over
//! it: a reader finds the last commit, and nothing is written.

use std::collections::BTreeMap;
use std::ops::Range;

use super::format::{Kind, sum_of};
use super::recovery::Found;
use super::{Core, HybridLog};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::storage::{Medium, MediumFile};
use crate::sys::sync::Ordering;

/// Bytes of the log that stand for bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Where in the file they end.
    end: u64,
    /// Where in the log they begin, or with [`HELD`] where among the bytes that the view holds itself.
    at: u64,
}

/// Bytes of an entry that do not stand one after the other in the log.
const HELD: u64 = 1 << 63;

/// The pieces by where in the file they begin, none of which overlaps another; and bytes that the view holds itself.
#[derive(Debug, Default)]
pub(super) struct View(BTreeMap<u64, Piece>, Vec<u8>);

impl View {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pages of the file that have a piece, and slices, both rounded up for each piece.
    pub(super) fn extent(&self) -> (u64, u64) {
        let units = |unit: u64| self.0.iter().map(|(start, piece)| piece.end.div_ceil(unit) - start / unit).sum();
        (units(PAGE), units(64))
    }

    /// Lays a piece over those there are.
    fn lay(&mut self, start: u64, piece: Piece) {
        let end = piece.end;
        let below = self.0.range(..start).next_back().map(|(&from, &below)| (from, below));
        if let Some((from, below)) = below.filter(|(_, below)| below.end > start) {
            self.0.insert(from, Piece { end: start, ..below });
            self.keep_from(end, from, below);
        }
        let covered: Vec<(u64, Piece)> = self.0.range(start..end).map(|(&from, &below)| (from, below)).collect();
        for (from, below) in covered {
            self.0.remove(&from);
            self.keep_from(end, from, below);
        }
        if start < end {
            self.0.insert(start, piece);
        }
    }

    /// Keeps of a piece what lies from a byte on.
    fn keep_from(&mut self, at: u64, from: u64, piece: Piece) {
        if piece.end > at {
            self.0.insert(at, Piece { end: piece.end, at: piece.at + (at - from) });
        }
    }

    /// The first run of pages, among these, that have a piece.
    pub(super) fn first_in(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let (start, end) = (pages.start * PAGE, pages.end * PAGE);
        let before = self.0.range(..start).next_back().filter(|(_, piece)| piece.end > start);
        let (from, piece) = before.or_else(|| self.0.range(start..end).next())?;
        Some((from / PAGE).max(pages.start)..piece.end.div_ceil(PAGE).min(pages.end))
    }

    /// Calls `each` with the pieces within a range: where in the file, how many bytes, and where in the log.
    fn within(&self, start: u64, end: u64, mut each: impl FnMut(u64, u64, u64) -> Result<()>) -> Result<()> {
        let before = self.0.range(..start).next_back();
        for (&from, piece) in before.into_iter().chain(self.0.range(start..end)) {
            let (first, last) = (from.max(start), piece.end.min(end));
            if first < last {
                each(first, last - first, piece.at + (first - from))?;
            }
        }
        Ok(())
    }
}

impl<M: Medium> HybridLog<M> {
    /// Has reads find the last commit of a file that was not closed cleanly. Writes nothing.
    pub(super) fn view_last_commit(core: &mut Core<M>) -> Result<()> {
        let found = Found::read(core)?;
        if core.data.len() < found.len {
            let what = format!("it has {} bytes, but its last commit has {}", core.data.len(), found.len);
            return Err(Error::ModifiedExternally { path: core.path().to_owned(), what });
        }
        core.recovery = found.summary();
        for word in [&core.head.len, &core.head.committed_len, &core.head.longest] {
            word.store(found.len, Ordering::Relaxed);
        }
        core.head.durable.store(found.committed, Ordering::Relaxed);
        let (mut view, mut image) = (View::default(), Vec::new());
        // In the order in which recovery stores them.
        for entry in found.entries() {
            let header = &entry.header;
            if header.kind == Kind::Undo {
                core.read_entry(entry, &mut image)?;
                // If bytes that were to go back did not arrive, nothing was stored in their place.
                if header.sum != Some(sum_of(&image)) {
                    continue;
                }
            }
            let start = header.block * PAGE + u64::from(header.offset);
            let at = if header.inline {
                core.read_entry(entry, &mut image)?;
                view.1.extend_from_slice(&image);
                HELD | (view.1.len() - image.len()) as u64
            } else {
                core.chunks.bytes_at(entry.unit) + u64::from(header.offset)
            };
            // A clean block is read past the log.
            core.clean.mark_all_dirty(start / PAGE..(start + u64::from(header.len)).div_ceil(PAGE));
            view.lay(start, Piece { end: start + u64::from(header.len), at });
        }
        core.view = view;
        Ok(())
    }
}

impl<M: Medium> Core<M> {
    /// A read of a file that was not recovered.
    #[cold]
    pub(super) fn read_view(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.check(offset, dst.len() as u64)?;
        self.handle_state.readable()?;
        self.data.read(offset, dst)?;
        self.view.within(offset, offset + dst.len() as u64, |start, len, at| {
            let from = (start - offset) as usize;
            let dst = &mut dst[from..from + len as usize];
            if at & HELD == 0 {
                return self.side.read(at, dst);
            }
            let held = (at - HELD) as usize;
            dst.copy_from_slice(&self.view.1[held..held + len as usize]);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a file of bytes, each of which knows where in the log it came from.
    #[test]
    fn pieces_cover_one_another_in_the_order_they_come() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..50 {
            let (mut view, mut model) = (View::default(), vec![0; 64]);
            for round in 1..=12 {
                let (start, len) = (next(60), next(20));
                let end = (start + len).min(64);
                view.lay(start, Piece { end, at: round * 1000 });
                (start..end).for_each(|byte| model[byte as usize] = round * 1000 + (byte - start));
                let from = next(64);
                let to = from + next(65 - from);
                let mut seen = vec![0; 64];
                let each = |first: u64, len: u64, at: u64| {
                    (0..len).for_each(|n| seen[(first + n) as usize] = at + n);
                    Ok(())
                };
                view.within(from, to, each).unwrap();
                for byte in 0..64 {
                    let expected = if (from..to).contains(&byte) { model[byte as usize] } else { 0 };
                    assert_eq!(seen[byte as usize], expected, "byte {byte} of {from}..{to}");
                }
                assert!(view.0.iter().zip(view.0.keys().skip(1)).all(|((_, piece), next)| piece.end <= *next));
            }
        }
    }
}
