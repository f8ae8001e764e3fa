//! The index from a block of the file to its slot: a two-level radix tree in memory (the Libnvmmio paper, §3.2.2).
//!
//! The paper's tree has four levels, and a pointer that skips the levels that a short file does not need. Here one
//! growing table replaces the levels above the last. It has room for the file's length, and only touched parts take
//! memory. The processor's own page tables are its upper levels, so they are always skipped, and nothing moves when the
//! file grows. The first write to a leaf's range creates the leaf; it is neither freed nor moved while the file is
//! open. So a look-up takes two loads, no lock and no memory.

use std::io;
use std::ops::Range;
use std::sync::PoisonError;

use crate::sync::page_seqlock::PageState;
use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Mutex, Ordering};

/// Slots of a leaf: 2 MiB of the file, as in the paper. Models make do with two.
const FAN: u64 = if cfg!(loom) { 2 } else { 512 };

/// The tree.
pub(super) struct Index {
    /// For each leaf's worth of blocks the first slot of its leaf; 0 where nothing was ever written.
    leaf_of: GrowingArray<AtomicU64>,
    /// Slots of the leaves, leaf by leaf, from the second on: 0 is none.
    slots: GrowingArray<PageState>,
    /// Leaves in use; held to add one, and never across an operation on the medium.
    leaves: Mutex<u64>,
}

/// How many leaves there were at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaves(u64);

impl Index {
    /// Blocks of a leaf.
    pub(super) const FAN: u64 = FAN;

    /// The block behind the leaf that a block is in.
    pub(super) fn leaf_end(block: u64) -> u64 {
        (block / FAN + 1) * FAN
    }

    /// An empty tree for a file of this many blocks.
    pub(super) fn new(blocks: u64) -> io::Result<Self> {
        let leaves = blocks.div_ceil(FAN);
        let leaf_of = GrowingArray::new(leaves)?;
        // For every leaf that can be hung in, and for the one that stands for none.
        let slots = GrowingArray::new((1 + leaf_of.count()) * FAN)?;
        Ok(Index { leaf_of, slots, leaves: Mutex::default() })
    }

    /// Makes room for a file of this many blocks.
    pub(super) fn fit(&self, blocks: u64) -> io::Result<()> {
        let leaves = blocks.div_ceil(FAN);
        // The slots first, for as many leaves as the other table then has: a leaf that can be hung in finds its own.
        let hung = leaves.max(self.leaf_of.count()).checked_next_power_of_two().ok_or(rustix::io::Errno::OVERFLOW)?;
        self.slots.fit(hung.saturating_add(1).saturating_mul(FAN))?;
        self.leaf_of.fit(leaves)
    }

    /// The slot of a block, if anything was ever written near it.
    #[inline(always)]
    pub(super) fn get(&self, block: u64) -> Option<&PageState> {
        let leaf = self.leaf_of.get((block / FAN) as usize)?.load(Ordering::Acquire);
        self.slot_in(leaf, block)
    }

    #[inline(always)]
    fn slot_in(&self, leaf: u64, block: u64) -> Option<&PageState> {
        if leaf == 0 { None } else { self.slots.get((leaf + block % FAN) as usize) }
    }

    /// How many leaves there are now.
    pub(super) fn leaves(&self) -> Leaves {
        Leaves(*self.leaves.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The slot of a block, if it was among these leaves. Leaves are numbered in the order in which they are made, so
    /// the answer stays the same.
    pub(super) fn get_of(&self, leaves: Leaves, block: u64) -> Option<&PageState> {
        let leaf = self.leaf_of.get((block / FAN) as usize)?.load(Ordering::Acquire);
        if leaf <= leaves.0 * FAN { self.slot_in(leaf, block) } else { None }
    }

    /// Whether every leaf of these blocks was among these.
    pub(super) fn has_no_more_than(&self, leaves: Leaves, blocks: Range<u64>) -> bool {
        let leaf_of = |leaf: u64| self.leaf_of.get(leaf as usize).map_or(0, |place| place.load(Ordering::Acquire));
        (blocks.start / FAN..blocks.end.div_ceil(FAN)).all(|leaf| leaf_of(leaf) <= leaves.0 * FAN)
    }

    /// The slot of a block, made if need be. `None` for a block that there is no room for.
    #[inline]
    pub(super) fn make(&self, block: u64) -> Option<&PageState> {
        match self.get(block) {
            Some(slot) => Some(slot),
            None => self.hang_in(block),
        }
    }

    #[cold]
    fn hang_in(&self, block: u64) -> Option<&PageState> {
        let place = self.leaf_of.get((block / FAN) as usize)?;
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut leaf = place.load(Ordering::Acquire);
        if leaf == 0 {
            *leaves += 1;
            leaf = *leaves * FAN;
            place.store(leaf, Ordering::Release);
        }
        drop(leaves);
        self.slot_in(leaf, block)
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_one_slot() {
        let index = Index::new(1).unwrap();
        assert!(index.get(0).is_none() && index.make(1 << 20).is_none());
        index.fit(1 << 30).unwrap();
        let blocks = [5, 511, 512, 1 << 18, (1 << 27) + 3, (1 << 30) - 1];
        assert!(blocks.iter().all(|&block| index.get(block).is_none()));
        for (number, &block) in blocks.iter().enumerate() {
            index.make(block).unwrap().restore(number as u64 + 1);
        }
        for (number, &block) in blocks.iter().enumerate() {
            assert_eq!(index.get(block).map(PageState::bitmap), Some(number as u64 + 1), "block {block}");
            assert!(std::ptr::eq(index.get(block).unwrap(), index.make(block).unwrap()));
        }
        assert_eq!(index.get(6).map(PageState::bitmap), Some(0), "the same leaf");
        assert!(index.get(1 << 20).is_none(), "another leaf");
        assert!(index.make(1 << 30).is_none() && index.get(u64::MAX).is_none(), "beyond the file");
    }

    #[test]
    fn leaves_made_later_are_told_from_earlier_ones() {
        let index = Index::new(1 << 20).unwrap();
        index.make(700).unwrap();
        let leaves = index.leaves();
        assert!(index.get_of(leaves, 513).is_some() && index.has_no_more_than(leaves, 0..1 << 20));
        index.make(3).unwrap();
        assert!(index.get_of(leaves, 513).is_some() && index.get(3).is_some() && index.get_of(leaves, 3).is_none());
        assert!(index.has_no_more_than(leaves, 512..1 << 20) && !index.has_no_more_than(leaves, 511..513));
        assert_eq!((Index::leaf_end(511), Index::leaf_end(512)), (512, 1024));
    }

    #[test]
    fn threads_that_make_the_same_slots_get_the_same() {
        let index = Index::new(1 << 24).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for block in (0..1 << 24).step_by(40_009) {
                        let slot = index.make(block).unwrap();
                        slot.lock(false, |_| std::thread::yield_now());
                        slot.publish(slot.bitmap() + 1, slot.version() + 1);
                    }
                });
            }
        });
        assert!((0..1 << 24).step_by(40_009).all(|block| index.get(block).map(PageState::bitmap) == Some(4)));
    }
}
