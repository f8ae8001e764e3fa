//! The overlay of a slow file: for each page the entries that change it, under locks that also make reads and writes
//! atomic with respect to each other.
//!
//! A page's number assigns it to one of a few *stripes*. A write holds the stripes of its pages, exclusively and in
//! ascending order, from before its entries are placed until they are durable and visible here. A read holds the
//! stripes of its pages shared. These are the paper's page locks, as many as threads can use. A file that is written
//! through has the locks and no pieces.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(super) const PAGE: u64 = super::format::PAGE;
/// How many locks a file has for its pages.
const STRIPES: usize = 16;

/// Part of a page as an entry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The entry's position.
    pub(super) position: u64,
    /// Where in the entry's data the piece begins.
    pub(super) from: u32,
    /// The bytes of the page that it is.
    pub(super) start: u16,
    pub(super) end: u16,
}

/// Bytes that are now elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) position: u64,
    /// Where in the data there.
    pub(super) from: u32,
    /// How many bytes follow there at most.
    pub(super) most: u64,
}

/// The pieces of each page, oldest first.
pub(super) type Pages = HashMap<u64, Vec<Piece>>;

/// The pieces of one file.
#[derive(Default)]
pub(super) struct Overlay {
    stripes: [RwLock<Pages>; STRIPES],
}

/// Some stripes, shared.
pub(super) struct Shared<'a>([Option<RwLockReadGuard<'a, Pages>>; STRIPES]);

/// Some stripes, exclusively.
pub(super) struct Exclusive<'a>([Option<RwLockWriteGuard<'a, Pages>>; STRIPES]);

fn stripe(page: u64) -> usize {
    (page % STRIPES as u64) as usize
}

/// The pages of a range of bytes.
pub(super) fn pages(offset: u64, len: u64) -> Range<u64> {
    if len == 0 { 0..0 } else { offset / PAGE..(offset + len - 1) / PAGE + 1 }
}

/// Whether the stripe has one of these pages.
fn touches(index: usize, pages: &Range<u64>) -> bool {
    let first = pages.start + (index as u64 + STRIPES as u64 - pages.start % STRIPES as u64) % STRIPES as u64;
    first < pages.end
}

impl Overlay {
    pub(super) fn shared(&self, pages: &Range<u64>) -> Shared<'_> {
        Shared(std::array::from_fn(|index| {
            touches(index, pages).then(|| self.stripes[index].read().unwrap_or_else(PoisonError::into_inner))
        }))
    }

    pub(super) fn exclusive(&self, pages: &Range<u64>) -> Exclusive<'_> {
        Exclusive(std::array::from_fn(|index| {
            touches(index, pages).then(|| self.stripes[index].write().unwrap_or_else(PoisonError::into_inner))
        }))
    }

    /// Runs over every page there is, one stripe at a time.
    fn each(&self, mut keep: impl FnMut(u64, &mut Vec<Piece>)) {
        for stripe in &self.stripes {
            let mut pages = stripe.write().unwrap_or_else(PoisonError::into_inner);
            pages.retain(|&page, pieces| {
                keep(page, pieces);
                !pieces.is_empty()
            });
        }
    }

    /// Takes away what lies beyond a length.
    pub(super) fn cut(&self, len: u64) {
        self.each(|page, pieces| {
            let most = len.saturating_sub(page * PAGE).min(PAGE) as u16;
            pieces.retain_mut(|piece| {
                piece.end = piece.end.min(most);
                piece.start < piece.end
            });
        });
    }

    /// Takes away the pieces of entries that are in the file.
    pub(super) fn remove(&self, pages: Range<u64>, is_of: impl Fn(u64) -> bool) {
        for page in pages {
            let mut pieces = self.stripes[stripe(page)].write().unwrap_or_else(PoisonError::into_inner);
            if let Some(of_page) = pieces.get_mut(&page) {
                of_page.retain(|piece| !is_of(piece.position));
                if of_page.is_empty() {
                    pieces.remove(&page);
                }
            }
        }
    }

    /// Takes away everything.
    pub(super) fn clear(&self) {
        self.each(|_, pieces| pieces.clear());
    }

    /// Lets pieces know that their entries have moved.
    pub(super) fn relocate(&self, pages: Range<u64>, from: &Range<u64>, to: u64) {
        for page in pages {
            let mut pieces = self.stripes[stripe(page)].write().unwrap_or_else(PoisonError::into_inner);
            for piece in pieces.get_mut(&page).into_iter().flatten().filter(|piece| from.contains(&piece.position)) {
                piece.position = piece.position - from.start + to;
            }
        }
    }

    /// The same for data that is now elsewhere, perhaps in several places: `place` tells where a byte of it is. `entry`
    /// is the bytes of data in each of the entries.
    pub(super) fn relocate_bytes(
        &self,
        pages: Range<u64>,
        from: &Range<u64>,
        entry: u64,
        place: impl Fn(u64) -> Place,
    ) {
        for page in pages {
            let mut stripe = self.stripes[stripe(page)].write().unwrap_or_else(PoisonError::into_inner);
            let Some(pieces) = stripe.get_mut(&page) else { continue };
            if !pieces.iter().any(|piece| from.contains(&piece.position)) {
                continue;
            }
            let mut moved = Vec::with_capacity(pieces.len());
            for piece in pieces.drain(..) {
                if !from.contains(&piece.position) {
                    moved.push(piece);
                    continue;
                }
                let first = (piece.position - from.start) * entry + u64::from(piece.from);
                let mut start = piece.start;
                while start < piece.end {
                    let Place { position, from, most } = place(first + u64::from(start - piece.start));
                    let end = start + most.min(u64::from(piece.end - start)) as u16;
                    moved.push(Piece { position, from, start, end });
                    start = end;
                }
            }
            *pieces = moved;
        }
    }

    /// Takes away the pieces of chunks that are in the file, wherever they are.
    pub(super) fn remove_all(&self, is_of: impl Fn(u64) -> bool) {
        self.each(|_, pieces| pieces.retain(|piece| !is_of(piece.position)));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let len = |stripe: &RwLock<Pages>| stripe.read().unwrap().values().map(Vec::len).sum::<usize>();
        self.stripes.iter().map(len).sum()
    }
}

impl Shared<'_> {
    /// The pieces of a page.
    pub(super) fn of(&self, page: u64) -> &[Piece] {
        self.0[stripe(page)].as_ref().and_then(|pages| pages.get(&page)).map_or(&[], Vec::as_slice)
    }

    /// Whether one piece alone has all of these bytes of a page, so that nothing beneath is seen.
    pub(super) fn covers(&self, page: u64, start: u64, end: u64) -> bool {
        self.of(page).iter().any(|piece| u64::from(piece.start) <= start && end <= u64::from(piece.end))
    }
}

impl Exclusive<'_> {
    /// Lays the entries of a write over what is there. `entry` is the bytes of data in each of them.
    pub(super) fn add(&mut self, offset: u64, len: u64, first: u64, entry: u64) {
        self.add_at(offset, len, entry, |done| first + done / entry);
    }

    /// The same, with a position for each byte of the write.
    pub(super) fn add_at(&mut self, offset: u64, len: u64, entry: u64, position: impl Fn(u64) -> u64) {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let start = at % PAGE;
            // Up to the end of the write, of the page, or of the entry.
            let bytes = (len - done).min(PAGE - start).min(entry - done % entry);
            let piece = Piece {
                position: position(done),
                from: (done % entry) as u32,
                start: start as u16,
                end: (start + bytes) as u16,
            };
            if let Some(pages) = &mut self.0[stripe(at / PAGE)] {
                let pieces = pages.entry(at / PAGE).or_default();
                // What is covered altogether is not seen again.
                pieces.retain(|old| old.start < piece.start || old.end > piece.end);
                pieces.push(piece);
            }
            done += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_is_taken_if_and_only_if_it_has_a_page() {
        for start in 0..40 {
            for end in start..start + 40 {
                for index in 0..STRIPES {
                    assert_eq!(touches(index, &(start..end)), (start..end).any(|page| stripe(page) == index));
                }
            }
        }
    }

    #[test]
    fn pieces_go_when_they_are_covered_cut_or_drained() {
        let overlay = Overlay::default();
        // Over three pages, in entries of 4096 bytes, of which none lies in one page.
        overlay.exclusive(&pages(100, 8192)).add(100, 8192, 7, 4096);
        let seen: Vec<Piece> = (0..3).flat_map(|page| overlay.shared(&(page..page + 1)).of(page).to_vec()).collect();
        let piece = |position, from, start, end| Piece { position, from, start, end };
        let expected = [piece(7, 0, 100, 4096), piece(7, 3996, 0, 100), piece(8, 0, 100, 4096), piece(8, 3996, 0, 100)];
        assert_eq!(seen, expected);
        overlay.exclusive(&(1..2)).add(4096, 4096, 9, 4096);
        assert_eq!(overlay.shared(&(1..2)).of(1), [piece(9, 0, 0, 4096)]);
        assert!(overlay.shared(&(1..2)).covers(1, 0, 4096) && !overlay.shared(&(0..1)).covers(0, 99, 101));
        overlay.cut(4096 + 10);
        assert_eq!(overlay.shared(&(1..2)).of(1), [piece(9, 0, 0, 10)]);
        assert!(overlay.shared(&(2..3)).of(2).is_empty());
        overlay.relocate(1..2, &(9..10), 20);
        overlay.remove(0..3, |position| (7..9).contains(&position));
        assert_eq!(overlay.len(), 1);
        // In chunks of 16 bytes from byte 90 of the first on: the data of the write begins at byte 88 of its entry.
        let place = |at: u64| Place { position: 30 + (at + 88) / 16, from: ((at + 88) % 16) as u32, most: 8 };
        overlay.exclusive(&(1..2)).add(4096 + 4, 20, 40, 64);
        overlay.relocate_bytes(1..2, &(20..21), 4096, |at| Place { most: 16 - (at + 88) % 16, ..place(at) });
        let expected = [piece(35, 8, 0, 8), piece(36, 0, 8, 10), piece(40, 0, 4, 24)];
        assert_eq!(overlay.shared(&(1..2)).of(1), expected);
        overlay.remove_all(|position| position == 35 || position == 40);
        overlay.relocate(1..2, &(36..37), 20);
        assert_eq!(overlay.shared(&(1..2)).of(1), [piece(20, 0, 8, 10)]);
        overlay.remove(1..2, |position| position == 20);
        assert_eq!(overlay.len(), 0);
    }
}
