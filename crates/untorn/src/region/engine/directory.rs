//! The regions of an open store, by their names and by the nodes they are in. Finding one by its name, and a node for
//! a new one, does not take longer with more regions.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::Region;
use super::format::NODES_AT;
use crate::storage::Medium;

/// One region node.
pub(super) enum Slot<M: Medium> {
    Free,
    Region(Arc<Region<M>>),
    /// Its bytes make no sense.
    Broken(String),
}

/// All region nodes of a store.
pub(super) struct Directory<M: Medium> {
    slots: Vec<Slot<M>>,
    /// Where the region of a name is in `slots`.
    names: HashMap<String, usize>,
    free: BTreeSet<usize>,
}

impl<M: Medium> Directory<M> {
    pub(super) fn new() -> Self {
        Directory { slots: Vec::new(), names: HashMap::new(), free: BTreeSet::new() }
    }

    /// Adds the node after the last one. The name of a region must not be there yet.
    pub(super) fn push(&mut self, slot: Slot<M>) {
        let at = self.slots.len();
        match &slot {
            Slot::Free => _ = self.free.insert(at),
            Slot::Region(region) => _ = self.names.insert(region.name.clone(), at),
            Slot::Broken(_) => {}
        }
        self.slots.push(slot);
    }

    pub(super) fn find(&self, name: &str) -> Option<&Arc<Region<M>>> {
        self.names.get(name).and_then(|&at| match &self.slots[at] {
            Slot::Region(region) => Some(region),
            _ => None,
        })
    }

    /// The first node without a region.
    pub(super) fn first_free(&self) -> Option<u64> {
        self.free.first().map(|&at| NODES_AT + at as u64)
    }

    /// Puts a region into its node, which is free.
    pub(super) fn insert(&mut self, region: Arc<Region<M>>) {
        let at = (region.node - NODES_AT) as usize;
        self.free.remove(&at);
        self.names.insert(region.name.clone(), at);
        self.slots[at] = Slot::Region(region);
    }

    /// Frees the node of a region that is there.
    pub(super) fn remove(&mut self, region: &Region<M>) {
        let at = (region.node - NODES_AT) as usize;
        self.names.remove(&region.name);
        self.free.insert(at);
        self.slots[at] = Slot::Free;
    }

    /// The number of nodes.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of regions.
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// The regions in the order of their nodes.
    pub(super) fn regions(&self) -> impl Iterator<Item = &Arc<Region<M>>> {
        self.slots.iter().filter_map(|slot| if let Slot::Region(region) = slot { Some(region) } else { None })
    }

    /// A sentence on each broken node: what is wrong with it.
    pub(super) fn damage(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().filter_map(|slot| if let Slot::Broken(what) = slot { Some(what.as_str()) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Dax;

    fn region(node: u64, name: &str) -> Arc<Region<Dax>> {
        Arc::new(Region::new(node, name.to_owned(), [0; 16], 1, true))
    }

    #[test]
    fn a_name_and_a_free_node_are_found_as_regions_come_and_go() {
        let mut directory = Directory::new();
        directory.push(Slot::Free);
        directory.push(Slot::Region(region(NODES_AT + 1, "one")));
        directory.push(Slot::Broken("torn".to_owned()));
        directory.push(Slot::Free);
        assert_eq!((directory.len(), directory.count(), directory.first_free()), (4, 1, Some(NODES_AT)));
        directory.insert(region(NODES_AT, "zero"));
        directory.insert(region(NODES_AT + 3, "three"));
        assert_eq!((directory.count(), directory.first_free()), (3, None));
        let one = Arc::clone(directory.find("one").unwrap());
        directory.remove(&one);
        assert!(directory.find("one").is_none() && directory.find("zero").is_some());
        assert_eq!(directory.first_free(), Some(NODES_AT + 1));
        let names: Vec<&str> = directory.regions().map(|region| region.name.as_str()).collect();
        assert_eq!((names, directory.damage().collect::<Vec<_>>()), (vec!["zero", "three"], vec!["torn"]));
        directory.insert(region(NODES_AT + 1, "zwei"));
        assert_eq!(directory.find("zwei").unwrap().node, NODES_AT + 1);
    }
}
