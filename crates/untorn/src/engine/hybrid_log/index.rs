//! From a block of the file to its slot: a radix tree in memory (the Libnvmmio paper, §3.2.2).
//!
//! Nine bits of the block number choose a child at each level. Levels above the first that a file of this length needs are
//! skipped: `top` points at the node to begin with, and moves up when the file grows. Nodes are never freed or moved while
//! the file is open, children are set once by a compare-and-swap, so a look-up takes no lock and allocates nothing.

use std::io;

use crate::sharing::page::PageState;
use crate::sys::sync::{AtomicU64, Ordering, ZeroedArray};

/// Bits of a block number that one level tells apart, as in the paper.
const BITS: u32 = 9;
/// Children of a node, and slots of a leaf.
const FAN: u64 = 1 << BITS;

/// The tree. A node's number is 1 and up; 0 is none.
pub(super) struct Index {
    /// Level and number of the top node, [`joined`]. Level 0 is a leaf.
    top: AtomicU64,
    /// Children of the inner nodes, [`FAN`] to a node: numbers of nodes of the level below.
    children: ZeroedArray<AtomicU64>,
    inner_nodes: AtomicU64,
    /// Slots of the leaves.
    slots: ZeroedArray<PageState>,
    leaves: AtomicU64,
    /// Leaves that lost the race to be hung in, to be used for another place.
    spare: AtomicU64,
    blocks: u64,
}

/// Where a node's level stands beside its number.
const LEVEL: u32 = 56;

fn joined(level: u32, node: u64) -> u64 {
    u64::from(level) << LEVEL | node
}

#[inline]
fn split(top: u64) -> (u32, u64) {
    ((top >> LEVEL) as u32, top & ((1 << LEVEL) - 1))
}

impl Index {
    /// An empty tree for files of up to this many blocks.
    pub(super) fn new(blocks: u64) -> io::Result<Self> {
        let leaves = blocks.div_ceil(FAN);
        // Each level has at most a 512th of the nodes below it, and one more that is not full.
        let inner = leaves.div_ceil(FAN) + leaves.div_ceil(FAN * FAN) + 8;
        // While a thread hangs a leaf in, it may have one more in its hands.
        let spares = 256;
        Ok(Index {
            top: AtomicU64::new(0),
            children: ZeroedArray::reserve((inner + spares) as usize * FAN as usize)?,
            inner_nodes: AtomicU64::new(0),
            slots: ZeroedArray::reserve((leaves + spares) as usize * FAN as usize)?,
            leaves: AtomicU64::new(0),
            spare: AtomicU64::new(0),
            blocks,
        })
    }

    /// The slot of a block, if anything was ever written near it.
    #[inline]
    pub(super) fn get(&self, block: u64) -> Option<&PageState> {
        let top = self.top.load(Ordering::Acquire);
        let (mut level, mut node) = split(top);
        if node == 0 || block >> (BITS * (level + 1)) != 0 {
            return None;
        }
        while level > 0 {
            node = self.child(node, level, block)?.load(Ordering::Acquire);
            if node == 0 {
                return None;
            }
            level -= 1;
        }
        self.slots.get(((node - 1) * FAN + block % FAN) as usize)
    }

    fn child(&self, node: u64, level: u32, block: u64) -> Option<&AtomicU64> {
        self.children.get(((node - 1) * FAN + (block >> (BITS * level)) % FAN) as usize)
    }

    /// The slot of a block, made if need be. `None` for a block beyond what the file may grow to.
    pub(super) fn make(&self, block: u64) -> Option<&PageState> {
        if let Some(slot) = self.get(block) {
            return Some(slot);
        }
        if block >= self.blocks {
            return None;
        }
        self.raise(block);
        let top = self.top.load(Ordering::Acquire);
        let (mut level, mut node) = split(top);
        while level > 0 {
            let child = self.child(node, level, block)?;
            node = match child.load(Ordering::Acquire) {
                0 => self.hang_in(child, level - 1),
                there => there,
            };
            level -= 1;
        }
        self.slots.get(((node - 1) * FAN + block % FAN) as usize)
    }

    /// Moves the top up until it spans `block`.
    fn raise(&self, block: u64) {
        loop {
            let top = self.top.load(Ordering::Acquire);
            let (level, node) = split(top);
            if node != 0 && block >> (BITS * (level + 1)) == 0 {
                return;
            }
            let new = if node == 0 {
                // The first node is a leaf; the levels above it come by themselves.
                self.new_node(0)
            } else {
                let above = self.new_node(level + 1);
                // Nobody else knows the node yet, so this is where the file's first blocks stay.
                if let Some(first) = self.child(above, level + 1, 0) {
                    first.store(node, Ordering::Relaxed);
                }
                joined(level + 1, above)
            };
            if self.top.compare_exchange(top, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                self.give_back(new);
            }
        }
    }

    fn hang_in(&self, child: &AtomicU64, level: u32) -> u64 {
        let new = self.new_node(level);
        match child.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(there) => {
                self.give_back(joined(level, new));
                there
            }
        }
    }

    fn new_node(&self, level: u32) -> u64 {
        if level > 0 {
            return self.inner_nodes.fetch_add(1, Ordering::Relaxed) + 1;
        }
        match self.spare.swap(0, Ordering::AcqRel) {
            0 => self.leaves.fetch_add(1, Ordering::Relaxed) + 1,
            spare => spare,
        }
    }

    /// Keeps a leaf that was not needed for the next who does. An inner node, of which there are few, is forgotten; so is
    /// a leaf beside another spare one.
    fn give_back(&self, node: u64) {
        if split(node).0 == 0 {
            let _ = self.spare.compare_exchange(0, node, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_one_slot_whatever_grew_above_it() {
        let index = Index::new(1 << 30).unwrap();
        assert!(index.get(0).is_none());
        let blocks = [5, 511, 512, 1 << 18, (1 << 27) + 3, (1 << 30) - 1];
        for (number, &block) in blocks.iter().enumerate() {
            assert!(index.get(block).is_none(), "block {block}");
            index.make(block).unwrap().restore(number as u64 + 1);
        }
        for (number, &block) in blocks.iter().enumerate() {
            assert_eq!(index.get(block).map(PageState::bitmap), Some(number as u64 + 1), "block {block}");
            assert!(std::ptr::eq(index.get(block).unwrap(), index.make(block).unwrap()));
        }
        assert_eq!(index.get(6).map(PageState::bitmap), Some(0), "the same leaf");
        assert!(index.get(1 << 20).is_none(), "another leaf");
        assert!(index.make(1 << 30).is_none(), "beyond the file");
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
