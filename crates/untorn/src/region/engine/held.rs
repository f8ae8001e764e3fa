//! Held snapshots of regions: the commits that readers keep, and the pages that are kept back for them.
//!
//! Commits never store over pages of an earlier one. So a snapshot copies no bytes: it shares the leaves of its commit,
//! and the pages that later commits give up are kept back from the free map.
//!
//! # Invariants
//!
//! 1. A page of the store that a held snapshot names is not free, unless the snapshot has ended.
//! 2. A page that a commit gives up is kept back if the newest snapshot of its region names it. If an older one names
//!    it, the region has had it ever since, so the newest one names it too.
//! 3. It is free when no snapshot that names it is left. So what is kept back is at most what snapshots name.
//! 4. Where the store has no space, all snapshots end, and then their pages are free. A reader looks after its last
//!    copy whether its snapshot has ended.
//!
//! Nothing of this is on the medium: after a crash the scan finds the pages free.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::format::{Entry, Half, LEAF};
use super::table::Table;

/// A region at one commit.
pub(super) struct Pin {
    /// Page of the region's node.
    node: u64,
    pub(super) commit: u64,
    leaves: BTreeMap<u64, Arc<Half>>,
}

impl Pin {
    pub(super) fn entry(&self, logical: u64) -> Entry {
        let leaf = self.leaves.get(&(logical / LEAF));
        leaf.map_or(Entry::default(), |leaf| leaf.0[(logical % LEAF) as usize])
    }

    /// Every page that is allocated, ascending.
    pub(super) fn logical_pages(&self) -> impl Iterator<Item = u64> + '_ {
        let of_leaf = |(&index, half): (&u64, &'_ Arc<Half>)| {
            let entries = half.0;
            (0..LEAF)
                .filter(move |place| entries[*place as usize].is_allocated())
                .map(move |place| index * LEAF + place)
        };
        self.leaves.iter().flat_map(of_leaf)
    }
}

/// A page that no commit names any more, and that a snapshot may.
struct KeptBack {
    /// The newest snapshot of the region when the page was given up.
    newest: u64,
    logical: u64,
    page: u64,
}

/// The held snapshots of a store.
#[derive(Default)]
pub(super) struct Holds {
    last: u64,
    held: BTreeMap<u64, Arc<Pin>>,
    kept_back: Vec<KeptBack>,
}

impl Holds {
    /// Holds a region at its last commit. Returns the number of the snapshot.
    pub(super) fn hold(&mut self, node: u64, commit: u64, table: &Table) -> (u64, Arc<Pin>) {
        let leaves = table.leaves.iter().map(|(index, leaf)| (*index, Arc::clone(&leaf.half))).collect();
        let pin = Arc::new(Pin { node, commit, leaves });
        self.last += 1;
        self.held.insert(self.last, Arc::clone(&pin));
        (self.last, pin)
    }

    /// Whether a snapshot has not ended.
    pub(super) fn has(&self, snapshot: u64) -> bool {
        self.held.contains_key(&snapshot)
    }

    /// Pages that are kept back.
    pub(super) fn pages(&self) -> u64 {
        self.kept_back.len() as u64
    }

    /// Of the pages that a commit of a region gives up, each with its logical page, those that are free.
    pub(super) fn keep_back(&mut self, node: u64, given_up: Vec<(u64, u64)>) -> Vec<u64> {
        let newest = self.held.iter().rev().find(|(_, pin)| pin.node == node);
        let Some((&newest, pin)) = newest else { return given_up.into_iter().map(|(_, page)| page).collect() };
        let mut free = Vec::new();
        for (logical, page) in given_up {
            if pin.entry(logical).stored() == Some(page) {
                self.kept_back.push(KeptBack { newest, logical, page });
            } else {
                free.push(page);
            }
        }
        free
    }

    /// Gives a snapshot up. Returns the pages that are free then.
    pub(super) fn release(&mut self, snapshot: u64) -> Vec<u64> {
        let Some(released) = self.held.remove(&snapshot) else { return Vec::new() };
        let held = &self.held;
        let names = |kept: &KeptBack| {
            let mut upto = held.range(..=kept.newest).map(|(_, pin)| pin).filter(|pin| pin.node == released.node);
            upto.any(|pin| pin.entry(kept.logical).stored() == Some(kept.page))
        };
        let is_of = |kept: &KeptBack| released.entry(kept.logical).stored() == Some(kept.page);
        let free = self.kept_back.extract_if(.., |kept| is_of(kept) && !names(kept));
        free.map(|kept| kept.page).collect()
    }

    /// Ends all snapshots. Returns the pages that are free then; if there are none, none ends.
    pub(super) fn end_all(&mut self) -> Vec<u64> {
        if !self.kept_back.is_empty() {
            self.held.clear();
        }
        std::mem::take(&mut self.kept_back).into_iter().map(|kept| kept.page).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Leaf;
    use super::*;

    /// A table with these pages of the store, by logical page.
    fn table(pages: &[(u64, u64)]) -> Table {
        let mut table = Table::new(2, 1 << 20);
        for (logical, page) in pages {
            let empty = Leaf { page: 9, half: Arc::new(Half([Entry::default(); LEAF as usize])), pending: 0 };
            let leaf = table.leaves.entry(logical / LEAF).or_insert(empty);
            Arc::make_mut(&mut leaf.half).0[(logical % LEAF) as usize] = Entry::new(*page, 0);
        }
        table
    }

    #[test]
    fn a_page_is_free_when_no_snapshot_names_it() {
        let mut holds = Holds::default();
        assert_eq!(holds.keep_back(2, vec![(0, 70)]), [70], "nothing is held");
        let (one, pin) = holds.hold(2, 1, &table(&[(0, 100), (500, 101)]));
        assert_eq!(pin.logical_pages().collect::<Vec<_>>(), [0, 500]);
        // The first commit after it changes page 0, and the second again.
        assert_eq!(holds.keep_back(2, vec![(0, 100)]), [0_u64; 0]);
        let (two, _) = holds.hold(2, 2, &table(&[(0, 102), (500, 101)]));
        assert_eq!(holds.keep_back(2, vec![(0, 102), (500, 101)]), [0_u64; 0]);
        let (three, _) = holds.hold(2, 3, &table(&[(0, 103)]));
        assert_eq!(holds.keep_back(2, vec![(0, 103)]), [0_u64; 0]);
        assert_eq!(holds.keep_back(2, vec![(0, 104)]), [104], "no snapshot names it");
        assert_eq!(holds.keep_back(3, vec![(0, 103)]), [103], "another region's");
        assert_eq!(holds.pages(), 4);
        assert_eq!(holds.release(two), [102]);
        assert_eq!(holds.release(one), [100, 101]);
        assert_eq!((holds.release(one), holds.has(one), holds.has(three)), (vec![], false, true));
        assert_eq!((holds.end_all(), holds.has(three), holds.pages()), (vec![103], false, 0));
        let (four, _) = holds.hold(2, 4, &table(&[(0, 105)]));
        assert_eq!((holds.end_all(), holds.has(four)), (vec![], true), "it keeps nothing back");
    }
}
