//! From a block of the file to its slot: a radix tree in memory (the Libnvmmio paper, §3.2.2).
//!
//! Nine bits of the block number choose a child at each level. Levels above the first that a file of this length needs are
//! skipped: `top` points at the node to begin with, and moves up when the file grows. Nodes are never freed or moved while
//! the file is open, and a child is set once, so a look-up takes no lock and allocates nothing. Nodes are added under a
//! lock: without one, threads that come to a new place together would each make a node for it, and all but one be lost.

use std::io;
use std::sync::PoisonError;

use crate::sharing::page::PageState;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, ZeroedArray};

/// Bits of a block number that one level tells apart, as in the paper. A model of the tree has a small one.
const BITS: u32 = if cfg!(loom) { 1 } else { 9 };
/// Children of a node, and slots of a leaf.
const FAN: u64 = 1 << BITS;

/// The tree. A node's number is 1 and up; 0 is none.
pub(super) struct Index {
    /// Level and number of the top node, [`joined`]. Level 0 is a leaf.
    top: AtomicU64,
    /// Children of the inner nodes, [`FAN`] to a node: numbers of nodes of the level below.
    children: ZeroedArray<AtomicU64>,
    /// Slots of the leaves.
    slots: ZeroedArray<PageState>,
    /// Nodes in use; held to add one, and never across an operation on the medium.
    nodes: Mutex<Nodes>,
    blocks: u64,
}

#[derive(Default)]
struct Nodes {
    inner: u64,
    leaves: u64,
}

impl Nodes {
    /// The number of a new node, with no children or with slots that say nothing.
    fn add(&mut self, level: u32) -> u64 {
        let count = if level > 0 { &mut self.inner } else { &mut self.leaves };
        *count += 1;
        *count
    }
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
        Ok(Index {
            top: AtomicU64::new(0),
            children: ZeroedArray::reserve((inner * FAN) as usize)?,
            slots: ZeroedArray::reserve((leaves * FAN) as usize)?,
            nodes: Mutex::default(),
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
        self.grow(block)
    }

    #[cold]
    fn grow(&self, block: u64) -> Option<&PageState> {
        // What it guards is whole at every instant.
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut level, mut node) = self.raise(block, &mut nodes);
        while level > 0 {
            let child = self.child(node, level, block)?;
            level -= 1;
            node = match child.load(Ordering::Acquire) {
                0 => {
                    let new = nodes.add(level);
                    child.store(new, Ordering::Release);
                    new
                }
                there => there,
            };
        }
        self.slots.get(((node - 1) * FAN + block % FAN) as usize)
    }

    /// Moves the top up until it spans `block`; where it is then.
    fn raise(&self, block: u64, nodes: &mut Nodes) -> (u32, u64) {
        loop {
            let (level, node) = split(self.top.load(Ordering::Acquire));
            if node != 0 && block >> (BITS * (level + 1)) == 0 {
                return (level, node);
            }
            let new = if node == 0 {
                // The first node is a leaf; the levels above it come by themselves.
                nodes.add(0)
            } else {
                let above = nodes.add(level + 1);
                // Nobody else knows the node yet, and this is where the file's first blocks stay.
                if let Some(first) = self.child(above, level + 1, 0) {
                    first.store(node, Ordering::Relaxed);
                }
                joined(level + 1, above)
            };
            self.top.store(new, Ordering::Release);
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_one_slot_whatever_grew_above_it() {
        let index = Index::new(1 << 30).unwrap();
        assert!(index.get(0).is_none());
        let blocks = [5, 511, 512, 1 << 18, (1 << 27) + 3, (1 << 30) - 1];
        for (number, &block) in blocks.iter().enumerate() {
            assert!(index.get(block).is_none_or(|slot| slot.bitmap() == 0), "block {block}");
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
    fn threads_that_come_to_new_places_together_use_up_no_more_than_one() {
        let (threads, leaves) = (8, 2000);
        let index = Index::new(leaves * FAN).unwrap();
        let here = std::sync::Barrier::new(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for leaf in 0..leaves {
                        if leaf % 16 == 0 {
                            here.wait();
                        }
                        index.make(leaf * FAN).unwrap();
                    }
                });
            }
        });
        assert_eq!(index.nodes.lock().unwrap().leaves, leaves);
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
