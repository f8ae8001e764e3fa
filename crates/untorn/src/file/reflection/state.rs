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
    /// Words of `dirty_words` that are not 0, a bit each: a commit looks at one word for each GiB of the file.
    dirty_groups: GrowingArray<AtomicU64>,
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
            dirty_groups: GrowingArray::new(count.div_ceil(GROUP))?,
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
        self.dirty_groups.fit(count.div_ceil(GROUP))?;
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
        if mark(&self.dirty, page) && mark(&self.dirty_words, page / 64) {
            mark(&self.dirty_groups, page / (64 * 64));
        }
    }

    /// Calls `each` with the pages written in the open epoch, ascending, and leaves them there. For the holder of all
    /// lanes only.
    pub(super) fn each_dirty(&self, mut each: impl FnMut(u64)) {
        for group in 0..pages(self.head().len.load(Ordering::Relaxed)).div_ceil(GROUP) {
            let bits = |bits: &GrowingArray<AtomicU64>, word: u64| bits[word as usize].load(Ordering::Relaxed);
            each_bit(bits(&self.dirty_groups, group), |bit| {
                let words = group * 64 + bit;
                each_bit(bits(&self.dirty_words, words), |bit| {
                    let word = words * 64 + bit;
                    each_bit(bits(&self.dirty, word), |bit| each(word * 64 + bit));
                });
            });
        }
    }

    /// Takes the pages written in the open epoch, ascending, leaving none. For the holder of all lanes only.
    #[inline]
    pub(super) fn take_dirty(&self, mut take: impl FnMut(u64)) {
        for group in 0..pages(self.head().len.load(Ordering::Relaxed)).div_ceil(GROUP) {
            each_taken(&self.dirty_groups, group, |words| {
                each_taken(&self.dirty_words, words, |word| each_taken(&self.dirty, word, &mut take));
            });
        }
    }
}

/// Pages of one word of `dirty_groups`.
const GROUP: u64 = 64 * 64 * 64;

/// Sets a bit. Returns whether it was not set before.
#[inline]
fn mark(bits: &GrowingArray<AtomicU64>, number: u64) -> bool {
    let (word, bit) = (&bits[(number / 64) as usize], 1 << (number % 64));
    // Loaded first: a page is written again more often than for the first time, and a load costs no cache line.
    word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

/// Takes the numbers whose bits are set in a word, ascending, and leaves none.
#[inline]
fn each_taken(bits: &GrowingArray<AtomicU64>, word: u64, mut each: impl FnMut(u64)) {
    let bits = &bits[word as usize];
    // Loaded first: nearly all words of a long file are 0, and an exchange locks each.
    if bits.load(Ordering::Relaxed) != 0 {
        each_bit(bits.swap(0, Ordering::Relaxed), |bit| each(word * 64 + bit));
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
        const LEN: u64 = 1 << 36;
        let state = State::new(1, LEN).unwrap();
        state.fit(pages(LEN)).unwrap();
        state.head().len.store(LEN, Ordering::Relaxed);
        // A commit looks at one word for each GiB, and at others where there is something.
        assert!(state.dirty_groups.count() <= LEN >> 30);
        let written = [0, 1, 63, 64, 4095, 4096, 100_000, 262_143, 262_144, 1 << 20, (1 << 24) - 1];
        for page in written.iter().rev() {
            state.mark_changed(*page);
            state.mark_changed(*page);
        }
        for _ in 0..2 {
            let mut seen = Vec::new();
            state.each_dirty(|page| seen.push(page));
            assert_eq!(seen, written);
        }
        let mut taken = Vec::new();
        state.take_dirty(|page| taken.push(page));
        assert_eq!(taken, written);
        state.take_dirty(|page| panic!("page {page} was taken before"));
    }
}
