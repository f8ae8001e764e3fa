//! The volatile state of an open file: plain words in flat tables, nothing that points.

use std::io;

use super::layout::pages;
use crate::log::group::GroupFlush;
use crate::sharing::gate::Gate;
use crate::sharing::page::PageState;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedArray, ZeroedBox, fence};

/// One of a kind for each open file.
#[derive(Zeroed)]
#[repr(C, align(64))]
pub(super) struct Head {
    /// Length of the file in bytes.
    pub(super) len: AtomicU64,
    /// Odd while the length changes; grows with each change.
    pub(super) resizes: AtomicU64,
    /// What a reader of a calm page goes by: odd while the length changes, grown by 2 before a page counts as calm again.
    pub(super) moves: AtomicU64,
    /// Every new record is numbered above this: the last cut, or the last record that spoke for the whole file.
    pub(super) floor: AtomicU64,
    /// Pages whose bitmap became 0, for which space can be given back.
    pub(super) emptied: AtomicU64,
    /// The open epoch's number, from 1.
    pub(super) epoch: AtomicU64,
    /// Every epoch up to this one is durable.
    pub(super) committed_epoch: AtomicU64,
    /// Held by the thread that commits an epoch or changes the length.
    pub(super) commit: Gate,
    /// Held by the thread that makes a cut.
    pub(super) cut: Gate,
    /// Shares device flushes.
    pub(super) group: GroupFlush,
}

/// What per-commit mode knows of a page besides its visible bitmap; together, for they are used together.
#[derive(Zeroed)]
#[repr(C)]
pub(super) struct EpochState {
    /// The bitmap at the last durable commit. A slice whose bit differs from the visible one was written since.
    pub(super) committed: AtomicU64,
    /// Slices of the epoch that is being made durable right now: both their copies are in use.
    pub(super) frozen: AtomicU64,
}

/// What a reader of a calm page has to find unchanged after its copy.
#[derive(Clone, Copy)]
pub(super) struct Calm<'a> {
    stirred: &'a AtomicU64,
    /// The page's bit and those of its neighbours.
    bits: u64,
    moves: u64,
}

/// All tables.
pub(super) struct State {
    head: ZeroedBox<Head>,
    /// What readers go by.
    pub(super) pages: ZeroedArray<PageState>,
    /// Pages that may have slices in the sidecar or in an epoch, a bit each. The others are *calm*: all their bytes are in
    /// the data file, and nobody stores there before the bit is set. A reader of a calm page needs no more than this
    /// bit, which is near where the page's own state would be far: 32 KiB for a file of 1 GiB, and not 4 MiB.
    stirred: ZeroedArray<AtomicU64>,
    /// Per-commit mode: what the open epoch and the commit under way need to know of each page.
    pub(super) epochs: ZeroedArray<EpochState>,
    /// Per-commit mode: pages written in the open epoch, a bit each.
    dirty: ZeroedArray<AtomicU64>,
    /// Words of `dirty` that are not 0, a bit each.
    dirty_words: ZeroedArray<AtomicU64>,
    pub(super) max_pages: u64,
}

impl State {
    pub(super) fn new(max_len: u64) -> io::Result<Self> {
        let max_pages = pages(max_len);
        let count = max_pages as usize;
        let state = State {
            head: ZeroedBox::new()?,
            pages: ZeroedArray::reserve(count)?,
            stirred: ZeroedArray::reserve(count.div_ceil(64))?,
            epochs: ZeroedArray::reserve(count)?,
            dirty: ZeroedArray::reserve(count.div_ceil(64))?,
            dirty_words: ZeroedArray::reserve(count.div_ceil(64 * 64))?,
            max_pages,
        };
        state.head().epoch.store(1, Ordering::Relaxed);
        Ok(state)
    }

    #[inline(always)]
    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Sets a page's bitmap while the file is being opened, before anyone else can see it.
    pub(super) fn restore(&self, page: u64, bitmap: u64) {
        self.pages[page as usize].restore(bitmap);
        self.epochs[page as usize].committed.store(bitmap, Ordering::Relaxed);
        if bitmap != 0 {
            self.stir(page);
        }
    }

    /// What a reader of a calm page has to find unchanged after its copy; `None` if the page is not calm, if the file does
    /// not have the byte `last`, or if its length is changing.
    #[inline(always)]
    pub(super) fn glimpse_calm(&self, page: u64, last: u64) -> Option<Calm<'_>> {
        let head = self.head();
        let moves = head.moves.load(Ordering::Acquire);
        if moves & 1 != 0 || last >= head.len.load(Ordering::Acquire) {
            return None;
        }
        let stirred = self.stirred.get((page / 64) as usize)?;
        let bits = stirred.load(Ordering::Acquire);
        if bits & 1 << (page % 64) == 0 { Some(Calm { stirred, bits, moves }) } else { None }
    }

    /// Whether a page was calm from the glimpse until now, so that what was copied meanwhile is what it held. False also
    /// if a page near it was stirred meanwhile, which is seldom and saves telling the two apart.
    #[inline(always)]
    pub(super) fn stayed_calm(&self, glimpse: Calm<'_>) -> bool {
        // The loads of the copy must not move below these. Nor may the second load below move above the first: whoever
        // finds a page calm again finds that `moves` has grown.
        fence(Ordering::Acquire);
        glimpse.stirred.load(Ordering::Acquire) == glimpse.bits
            && self.head().moves.load(Ordering::Relaxed) == glimpse.moves
    }

    /// Makes a page count as stirred, before anything of it is published that is not in the data file.
    #[inline(always)]
    pub(super) fn stir(&self, page: u64) {
        let bit = 1 << (page % 64);
        if let Some(stirred) = self.stirred.get((page / 64) as usize)
            && stirred.load(Ordering::Acquire) & bit == 0
        {
            stirred.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Makes a page count as calm again. For the holder of its lock, who has seen that all its bytes are at home and in
    /// no epoch. A reader that saw the page calm before it was stirred, and sees it calm again after its copy, finds that
    /// `moves` has grown.
    pub(super) fn calm(&self, page: u64) {
        self.head().moves.fetch_add(2, Ordering::AcqRel);
        if let Some(stirred) = self.stirred.get((page / 64) as usize) {
            stirred.fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
        }
    }

    /// Notes that a page was written in the open epoch. For holders of a lane only: a commit takes them all.
    #[inline]
    pub(super) fn mark_dirty(&self, page: u64) {
        let word = page / 64;
        let bit = 1 << (page % 64);
        // Loaded first: a page is written again more often than for the first time, and a load costs no cache line.
        if self.dirty[word as usize].load(Ordering::Relaxed) & bit == 0 {
            self.dirty[word as usize].fetch_or(bit, Ordering::Relaxed);
            let summary = &self.dirty_words[(word / 64) as usize];
            let bit = 1 << (word % 64);
            if summary.load(Ordering::Relaxed) & bit == 0 {
                summary.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Takes the pages written in the open epoch, ascending, leaving none. For the holder of all lanes only.
    #[inline]
    pub(super) fn take_dirty(&self, mut take: impl FnMut(u64)) {
        let words = pages(self.head().len.load(Ordering::Relaxed)).div_ceil(64).div_ceil(64);
        for (index, summary) in self.dirty_words[..words as usize].iter().enumerate() {
            each_bit(summary.swap(0, Ordering::Relaxed), |bit| {
                let word = index as u64 * 64 + bit;
                each_bit(self.dirty[word as usize].swap(0, Ordering::Relaxed), |bit| take(word * 64 + bit));
            });
        }
    }
}

fn each_bit(mut set: u64, mut each: impl FnMut(u64)) {
    while set != 0 {
        each(u64::from(set.trailing_zeros()));
        set &= set - 1;
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_pages_come_back_once_and_in_order() {
        let state = State::new(1 << 30).unwrap();
        state.head().len.store(1 << 30, Ordering::Relaxed);
        let written = [0, 1, 63, 64, 4095, 4096, 100_000, 262_143];
        for page in written.iter().rev() {
            state.mark_dirty(*page);
            state.mark_dirty(*page);
        }
        let mut taken = Vec::new();
        state.take_dirty(|page| taken.push(page));
        assert_eq!(taken, written);
        state.take_dirty(|page| panic!("page {page} was taken before"));
    }
}
