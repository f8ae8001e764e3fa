//! Clean blocks: blocks that a reader may copy from the data file after it checks one bit.
//!
//! # Invariant
//!
//! While a block is *clean*, the data file has all of its visible bytes, none of an open epoch, and no thread stores
//! there. So if a reader finds a block clean before and after its copy, and never anything else in between, it has read
//! one state of the block, whole, and no older than any write that had returned.
//!
//! # Protocol
//!
//! - A thread that is about to change a block holds its lock. It *stirs* the block before it publishes any part of the
//!   change and before the first store to the data file. If several blocks change together, all are stirred before the
//!   first is published.
//! - A thread makes a block calm again while it holds the block's lock, when all the block's bytes are in the data
//!   file and no thread is about to store there. Before it clears the bit, it increments [`SequenceCounter`]. So a
//!   reader that saw the block calm before it was stirred, and sees it calm after its copy, is not deceived.
//! - A change of length makes [`SequenceCounter`] odd before it begins and even when it is done. Readers trust
//!   nothing meanwhile.
//!
//! A bit is close in memory where a block's own state would be far away: the bits of a 1 GiB file take 32 KiB, its
//! states 4 MiB. Waiting for a block's state would take as long as waiting for its bytes.

use std::io;
use std::ops::Range;

use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, fence};

/// What a reader goes by besides the bit: odd while the length changes, grown by 2 before a block counts as clean
/// again.
///
/// It stands beside the length, which readers look at too.
#[derive(Debug, Zeroed)]
#[repr(transparent)]
pub(crate) struct SequenceCounter(AtomicU64);

impl SequenceCounter {
    /// What to find unchanged after a copy; `None` while the length changes. To be asked before the length is looked
    /// at.
    #[inline(always)]
    pub(crate) fn read(&self) -> Option<u64> {
        let sequence = self.0.load(Ordering::Acquire);
        if sequence & 1 == 0 { Some(sequence) } else { None }
    }

    /// Says that the length is about to change. For one thread at a time.
    pub(crate) fn write_begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Says that the length has changed.
    pub(crate) fn write_end(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// What a reader of a clean block has to find unchanged after its copy.
#[derive(Clone, Copy)]
pub(crate) struct CleanReadGuard<'a> {
    word: &'a AtomicU64,
    /// The block's bit and those of its neighbours.
    bits: u64,
    sequence: u64,
}

impl CleanReadGuard<'_> {
    /// Whether the block was clean from the glimpse until now, so that what was copied meanwhile is what it held.
    /// False also if a block near it was dirty meanwhile, which is seldom and saves telling the two apart.
    #[inline(always)]
    pub(crate) fn validate(self, sequence: &SequenceCounter) -> bool {
        // The loads of the copy must not move below these. Nor may the second load below move above the first: whoever
        // finds a block clean again finds that `sequence` has grown.
        fence(Ordering::Acquire);
        self.word.load(Ordering::Acquire) == self.bits && sequence.0.load(Ordering::Relaxed) == self.sequence
    }
}

/// Which blocks of a file are clean. At first all are.
pub(crate) struct CleanBits {
    /// A bit for each block that is not clean.
    dirty: GrowingArray<AtomicU64>,
}

impl CleanBits {
    /// For so many blocks.
    pub(crate) fn new(blocks: u64) -> io::Result<Self> {
        Ok(CleanBits { dirty: GrowingArray::new(blocks.div_ceil(64))? })
    }

    /// Makes room for so many blocks. A block without room never counts as clean.
    pub(crate) fn fit(&self, blocks: u64) -> io::Result<()> {
        self.dirty.fit(blocks.div_ceil(64))
    }

    /// What a reader of a block has to find unchanged after its copy; `None` if the block is not clean. `sequence` is
    /// what the reader [looked at](SequenceCounter::look) before.
    #[inline(always)]
    pub(crate) fn read_guard(&self, block: u64, sequence: u64) -> Option<CleanReadGuard<'_>> {
        let word = self.dirty.get((block / 64) as usize)?;
        let bits = word.load(Ordering::Acquire);
        if bits & 1 << (block % 64) == 0 { Some(CleanReadGuard { word, bits, sequence }) } else { None }
    }

    /// Whether all of these blocks are clean. To be asked before a copy of them, after [`SequenceCounter::look`].
    pub(crate) fn are_clean(&self, blocks: Range<u64>) -> bool {
        let mut clean = true;
        each_word(blocks, |word, bits| {
            clean = clean && self.dirty.get(word).is_some_and(|word| word.load(Ordering::Acquire) & bits == 0);
        });
        clean
    }

    /// Whether blocks that were clean before a copy have been so until now. `sequence_before` is what was looked at
    /// first.
    pub(crate) fn stayed_clean(&self, blocks: Range<u64>, sequence: &SequenceCounter, sequence_before: u64) -> bool {
        // As in [`CleanReadGuard::held`]: after the copy, and of the two loads the bits first.
        fence(Ordering::Acquire);
        self.are_clean(blocks) && sequence.0.load(Ordering::Relaxed) == sequence_before
    }

    /// Whether a block is not clean, for a guess only.
    #[inline]
    pub(crate) fn is_dirty(&self, block: u64) -> bool {
        let word = self.dirty.get((block / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (block % 64) != 0)
    }

    /// Makes a block count as dirty. For the holder of its lock.
    #[inline(always)]
    pub(crate) fn mark_dirty(&self, block: u64) {
        self.mark_dirty_in((block / 64) as usize, 1 << (block % 64));
    }

    /// The same for several blocks, for the holder of the lock that stands for all of them.
    #[inline]
    pub(crate) fn mark_all_dirty(&self, blocks: Range<u64>) {
        each_word(blocks, |word, bits| self.mark_dirty_in(word, bits));
    }

    #[inline(always)]
    fn mark_dirty_in(&self, word: usize, bits: u64) {
        // Loaded first: a block is mostly dirty already, and a load takes no cache line away from those who read.
        if let Some(word) = self.dirty.get(word)
            && word.load(Ordering::Acquire) & bits != bits
        {
            word.fetch_or(bits, Ordering::AcqRel);
        }
        // Whoever reads a byte that is stored from here on finds the bit when it looks again. On x86 this costs
        // nothing.
        fence(Ordering::Release);
    }

    /// Makes blocks count as clean again. For the holder of the lock that stands for all of them, who has seen that
    /// they are.
    pub(crate) fn mark_clean(&self, blocks: Range<u64>, sequence: &SequenceCounter) {
        sequence.0.fetch_add(2, Ordering::AcqRel);
        each_word(blocks, |word, bits| {
            if let Some(word) = self.dirty.get(word) {
                word.fetch_and(!bits, Ordering::AcqRel);
            }
        });
    }
}

/// Calls `each` with every word that has bits of these blocks, and with those bits.
#[inline]
fn each_word(blocks: Range<u64>, mut each: impl FnMut(usize, u64)) {
    for word in blocks.start / 64..blocks.end.div_ceil(64) {
        let (from, to) = (blocks.start.max(word * 64), blocks.end.min(word * 64 + 64));
        let bits = u64::MAX.checked_shr(64 - (to - from) as u32).unwrap_or(0);
        each(word as usize, bits << (from % 64));
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::sync::zeroed;

    /// Which of the first 200 blocks are clean, as a reader finds them.
    fn clean_ones(blocks: &CleanBits, sequence: &SequenceCounter) -> Vec<u64> {
        let look = sequence.read().unwrap();
        (0..200).filter(|&block| blocks.read_guard(block, look).is_some()).collect()
    }

    #[test]
    fn ranges_are_stirred_and_calmed_to_the_block() {
        let sequence: SequenceCounter = zeroed();
        for range in [0..1, 3..4, 0..64, 63..65, 64..128, 5..133, 128..200, 7..7] {
            let blocks = CleanBits::new(200).unwrap();
            blocks.mark_all_dirty(range.clone());
            let rest: Vec<u64> = (0..200).filter(|block| !range.contains(block)).collect();
            assert_eq!(clean_ones(&blocks, &sequence), rest, "{range:?} stirred");
            assert!((0..200).all(|block| blocks.is_dirty(block) == range.contains(&block)), "{range:?}");

            let blocks = CleanBits::new(200).unwrap();
            (0..200).for_each(|block| blocks.mark_dirty(block));
            blocks.mark_clean(range.clone(), &sequence);
            assert_eq!(clean_ones(&blocks, &sequence), range.clone().collect::<Vec<_>>(), "{range:?} calmed");
        }
    }

    #[test]
    fn blocks_were_calm_only_if_none_was_stirred_meanwhile() {
        let (blocks, sequence) = (CleanBits::new(200).unwrap(), zeroed::<SequenceCounter>());
        let look = || sequence.read().unwrap();
        let before = look();
        assert!(blocks.are_clean(0..200) && blocks.stayed_clean(0..200, &sequence, before));
        blocks.mark_dirty(130);
        assert!(blocks.are_clean(3..130) && blocks.are_clean(131..200) && !blocks.are_clean(129..131));
        assert!(blocks.stayed_clean(3..130, &sequence, before) && !blocks.stayed_clean(3..131, &sequence, before));
        blocks.mark_clean(130..131, &sequence);
        assert!(blocks.are_clean(0..200) && !blocks.stayed_clean(0..200, &sequence, before), "stirred and calm again");
        assert!(blocks.stayed_clean(0..200, &sequence, look()) && !blocks.are_clean(100..20_000));
    }

    #[test]
    fn a_block_beyond_all_is_never_calm() {
        let (blocks, sequence) = (CleanBits::new(64).unwrap(), zeroed::<SequenceCounter>());
        blocks.mark_dirty(64);
        blocks.mark_clean(64..65, &sequence);
        assert!(blocks.read_guard(64, 0).is_none() && blocks.read_guard(u64::MAX, 0).is_none());
    }

    #[test]
    fn a_glimpse_ends_with_whatever_happens_near() {
        let (blocks, sequence) = (CleanBits::new(64).unwrap(), zeroed::<SequenceCounter>());
        let read_guard = |block| blocks.read_guard(block, sequence.read().unwrap()).unwrap();
        let before = read_guard(3);
        assert!(before.validate(&sequence));
        blocks.mark_dirty(3);
        assert!(!before.validate(&sequence), "stirred");
        blocks.mark_clean(3..4, &sequence);
        assert!(!before.validate(&sequence), "stirred and calm again");

        let before = read_guard(3);
        sequence.write_begin();
        assert!(!before.validate(&sequence) && sequence.read().is_none(), "the length changes");
        sequence.write_end();
        assert!(!before.validate(&sequence), "the length has changed");
        assert!(read_guard(3).validate(&sequence));
    }
}
