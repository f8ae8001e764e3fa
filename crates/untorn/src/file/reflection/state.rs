//! The volatile state of an open file: plain words in flat tables, nothing that points.

use std::io;

use super::layout::pages;
use crate::sync::clean_bits::{CleanBits, CleanReadGuard, SequenceCounter};
use crate::sync::group_commit::GroupFlush;
use crate::sync::page_seqlock::PageState;
use crate::sync::word_lock::WordLock;
use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedBox};

/// One of a kind for each open file.
#[derive(Zeroed)]
#[repr(C, align(64))]
pub(super) struct Head {
    /// Length of the file in bytes.
    pub(super) len: AtomicU64,
    /// Odd while the length changes; grows with each change.
    pub(super) resizes: AtomicU64,
    /// What a reader of a clean page goes by.
    pub(super) sequence: SequenceCounter,
    /// Every new record is numbered above this: the last checkpoint, or the last record that spoke for the whole file.
    pub(super) floor: AtomicU64,
    /// Pages whose bitmap became 0, for which space can be given back.
    pub(super) emptied: AtomicU64,
    /// The open epoch's number, from 1.
    pub(super) epoch: AtomicU64,
    /// Every epoch up to this one is durable.
    pub(super) committed_epoch: AtomicU64,
    /// Held by the thread that commits an epoch or changes the length.
    pub(super) commit: WordLock,
    /// Held by the thread that makes a checkpoint.
    pub(super) checkpoint: WordLock,
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

/// All tables.
pub(super) struct State {
    head: ZeroedBox<Head>,
    /// What readers go by.
    pub(super) pages: GrowingArray<PageState>,
    /// Clean is a page without slices in the sidecar or in an epoch.
    pub(super) clean: CleanBits,
    /// Per-commit mode: what the open epoch and the commit under way need to know of each page.
    pub(super) epochs: GrowingArray<EpochState>,
    /// Per-commit mode: pages written in the open epoch, a bit each.
    dirty: GrowingArray<AtomicU64>,
    /// Words of `dirty` that are not 0, a bit each.
    dirty_words: GrowingArray<AtomicU64>,
    /// Pages that had slices in the sidecar when the file was opened; one that several records named counts as often.
    restored: AtomicU64,
    /// The most pages that the file may have while it is open.
    pub(super) max_pages: u64,
}

impl State {
    /// For a file that has `len` bytes now and may grow to `max_len`.
    pub(super) fn new(len: u64, max_len: u64) -> io::Result<Self> {
        let count = pages(len);
        let state = State {
            head: ZeroedBox::new()?,
            pages: GrowingArray::new(count)?,
            clean: CleanBits::new(count)?,
            epochs: GrowingArray::new(count)?,
            dirty: GrowingArray::new(count.div_ceil(64))?,
            dirty_words: GrowingArray::new(count.div_ceil(64 * 64))?,
            restored: AtomicU64::new(0),
            max_pages: pages(max_len),
        };
        state.head().epoch.store(1, Ordering::Relaxed);
        Ok(state)
    }

    /// Makes room for `count` pages. No page is changed before there is room for it, and no length is shown before
    /// there is room for all of its pages.
    pub(super) fn fit(&self, count: u64) -> io::Result<()> {
        // All the others first: `count` goes by the pages.
        self.clean.fit(count)?;
        self.epochs.fit(count)?;
        self.dirty.fit(count.div_ceil(64))?;
        self.dirty_words.fit(count.div_ceil(64 * 64))?;
        self.pages.fit(count)
    }

    /// How many pages there is room for now. None behind these has slices.
    pub(super) fn count(&self) -> u64 {
        self.pages.count().min(self.epochs.count())
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
            self.clean.mark_dirty(page);
            self.restored.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many pages may have had slices in the sidecar when the file was opened.
    pub(super) fn restored(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
    }

    /// What a reader of a clean page has to find unchanged after its copy; `None` if the page is not clean, if the
    /// file does not have the byte `last`, or if its length is changing.
    #[inline(always)]
    pub(super) fn begin_clean_read(&self, page: u64, last: u64) -> Option<CleanReadGuard<'_>> {
        let head = self.head();
        let sequence = head.sequence.read()?;
        if last >= head.len.load(Ordering::Acquire) {
            return None;
        }
        self.clean.read_guard(page, sequence)
    }

    /// Notes that a page was written in the open epoch. For holders of a lane only: a commit takes them all.
    #[inline]
    pub(super) fn mark_changed(&self, page: u64) {
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
        for index in 0..words {
            each_bit(self.dirty_words[index as usize].swap(0, Ordering::Relaxed), |bit| {
                let word = index * 64 + bit;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_pages_come_back_once_and_in_order() {
        let state = State::new(1, 1 << 30).unwrap();
        state.fit(1 << 18).unwrap();
        state.head().len.store(1 << 30, Ordering::Relaxed);
        let written = [0, 1, 63, 64, 4095, 4096, 100_000, 262_143];
        for page in written.iter().rev() {
            state.mark_changed(*page);
            state.mark_changed(*page);
        }
        let mut taken = Vec::new();
        state.take_dirty(|page| taken.push(page));
        assert_eq!(taken, written);
        state.take_dirty(|page| panic!("page {page} was taken before"));
    }
}
