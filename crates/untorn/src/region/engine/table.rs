//! A region's page table: the tree on the medium, and its copy of the last commit in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zerocopy::{FromZeros, IntoBytes};

use super::format::{Entry, FANOUT, HALF, Half, LEAF, Node, PAGE, ROOT_AT, RawInner};
use super::{Core, barriers};
use crate::error::Result;
use crate::storage::{Medium, MediumFile};

/// A leaf as of the last commit.
pub(super) struct Leaf {
    /// Page of the store.
    pub(super) page: u64,
    pub(super) half: Arc<Half>,
    /// Lines of 64 bytes in which the other half may differ.
    pub(super) pending: u32,
}

impl Leaf {
    /// Byte offset of the half for a commit.
    pub(super) fn half_at(&self, commit: u64) -> u64 {
        self.page * PAGE + commit % 2 * HALF
    }
}

/// Which node of the tree: its level, 0 for a leaf, and its place in the level.
pub(super) type NodePosition = (u32, u64);

/// The page table of one region.
pub(super) struct Table {
    height: u32,
    /// Page of the region node, which has the pointer to the topmost node.
    node: u64,
    inner: BTreeMap<NodePosition, u64>,
    pub(super) leaves: BTreeMap<u64, Leaf>,
    /// Leaves whose halves may differ.
    pub(super) unsettled: BTreeSet<u64>,
    /// Sum of the digests of all entries.
    pub(super) total: u64,
    /// Pages allocated.
    pub(super) pages: u64,
}

impl Table {
    pub(super) fn new(node: u64, max_pages: u64) -> Self {
        Table {
            height: Node::height(max_pages),
            node,
            inner: BTreeMap::new(),
            leaves: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            total: 0,
            pages: 0,
        }
    }

    pub(super) fn height(&self) -> u32 {
        self.height
    }

    pub(super) fn add_inner(&mut self, position: NodePosition, page: u64) {
        self.inner.insert(position, page);
    }

    pub(super) fn entry(&self, logical: u64) -> Entry {
        let leaf = self.leaves.get(&(logical / LEAF));
        leaf.map_or(Entry::default(), |leaf| leaf.half.0[(logical % LEAF) as usize])
    }

    /// Every entry that is allocated, ascending by logical page.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, Entry)> {
        let of_leaf = |(&index, leaf): (&u64, &'_ Leaf)| {
            let entries = leaf.half.0;
            (0..LEAF).map(move |position| (index * LEAF + position, entries[position as usize]))
        };
        self.leaves.iter().flat_map(of_leaf).filter(|(_, entry)| entry.is_allocated())
    }

    /// Pages of the store that the tree itself has.
    pub(super) fn own_pages(&self) -> impl Iterator<Item = u64> {
        self.inner.values().copied().chain(self.leaves.values().map(|leaf| leaf.page))
    }

    fn has(&self, (level, index): NodePosition) -> bool {
        if level == 0 { self.leaves.contains_key(&index) } else { self.inner.contains_key(&(level, index)) }
    }

    /// The nodes that are missing for these leaves to be there.
    pub(super) fn missing(&self, leaves: impl IntoIterator<Item = u64>) -> BTreeSet<NodePosition> {
        let mut missing = BTreeSet::new();
        for leaf in leaves {
            let mut position = (0, leaf);
            while position.0 <= self.height && !self.has(position) && missing.insert(position) {
                position = above(position);
            }
        }
        missing
    }

    /// Where the pointer to a node stands whose parent is there: byte offset in the store.
    fn link_at(&self, position: NodePosition) -> Option<u64> {
        if position.0 == self.height {
            return Some(self.node * PAGE + ROOT_AT);
        }
        self.inner.get(&above(position)).map(|parent| parent * PAGE + position.1 % FANOUT * 8)
    }

    /// Adds nodes, empty but for what links them, on these pages.
    ///
    /// # Errors
    /// Those of the medium. The nodes are not there then, and nothing names their pages, unless the store is poisoned.
    pub(super) fn grow<M: Medium>(
        &mut self,
        core: &Core<M>,
        missing: &BTreeSet<NodePosition>,
        pages: &[u64],
    ) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let new: BTreeMap<NodePosition, u64> = missing.iter().copied().zip(pages.iter().copied()).collect();
        write(core, &new)?;
        core.fence(barriers::TABLE)?;
        for (position, page) in &new {
            if let Some(at) = self.link_at(*position) {
                // Whether a link that failed is there nobody can tell.
                core.file.write(at, &page.to_le_bytes()).map_err(|error| core.handle_state.poison(error))?;
            }
        }
        for ((level, index), page) in new {
            if level == 0 {
                self.leaves.insert(index, Leaf { page, half: Arc::new(Half::new_zeroed()), pending: 0 });
            } else {
                self.add_inner((level, index), page);
            }
        }
        Ok(())
    }
}

/// Writes the way to the first leaf of a new region, on pages of its own, and returns them; the first of all is the
/// root. Whoever makes the region makes them durable: its first allocations then need no fence for the table.
///
/// # Errors
/// Those of the medium, and of a full disk. Nothing is taken then.
pub(super) fn first_leaf<M: Medium>(core: &Core<M>, max_pages: u64) -> Result<Vec<u64>> {
    let missing = Table::new(0, max_pages).missing([0]);
    let pages = core.take_pages(missing.len())?;
    // The highest level, which is the root, comes last in order.
    let new = missing.into_iter().zip(pages.iter().rev().copied()).collect();
    match write(core, &new) {
        Ok(()) => Ok(pages),
        Err(error) => {
            core.release_pages(pages);
            Err(error)
        }
    }
}

/// Writes nodes, empty but for what links them to each other.
fn write<M: Medium>(core: &Core<M>, new: &BTreeMap<NodePosition, u64>) -> Result<()> {
    for (&(level, index), page) in new {
        let mut node = RawInner::new_zeroed();
        if level > 0 {
            let below = (level - 1, index * FANOUT)..(level - 1, (index + 1) * FANOUT);
            for (child, child_page) in new.range(below) {
                node.0[(child.1 % FANOUT) as usize] = (*child_page).into();
            }
        }
        core.file.write(page * PAGE, node.as_bytes())?;
    }
    Ok(())
}

fn above((level, index): NodePosition) -> NodePosition {
    (level + 1, index / FANOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_brings_the_nodes_above_it_that_are_not_there() {
        let mut table = Table::new(2, 1 << 30);
        assert_eq!(table.height(), 3);
        let missing = table.missing([0, 1, 513]);
        let expected = [(0, 0), (0, 1), (0, 513), (1, 0), (1, 1), (2, 0), (3, 0)];
        assert_eq!(Vec::from_iter(missing), expected);
        table.add_inner((3, 0), 10);
        table.add_inner((2, 0), 11);
        table.add_inner((1, 0), 12);
        assert_eq!(Vec::from_iter(table.missing([5])), [(0, 5)]);
        assert_eq!(table.link_at((0, 5)), Some(12 * PAGE + 5 * 8));
        assert_eq!(table.link_at((0, 513)), None);
        assert_eq!(table.link_at((3, 0)), Some(2 * PAGE + ROOT_AT));
    }
}
