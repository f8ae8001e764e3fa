//! Where processes have mapped twins: by address, over all files, and without their locks.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use super::mapping::Mapping;
use super::{Key, lock};
use crate::maps::Area;

/// All mappings that stores may be heard of, and all twins.
#[derive(Default)]
pub(super) struct Places {
    mappings: Mutex<Vec<(Key, Weak<Mapping>)>>,
    /// The files of twins, by their inodes.
    twins: Mutex<HashMap<u64, Key>>,
}

impl Places {
    /// A file has a twin.
    pub(super) fn note_twin(&self, inode: u64, key: Key) {
        lock(&self.twins).insert(inode, key);
    }

    /// A file is a plain one.
    pub(super) fn forget_twin(&self, inode: u64) {
        lock(&self.twins).remove(&inode);
    }

    /// The file of which a twin is, or was.
    pub(super) fn file_of(&self, inode: u64) -> Option<Key> {
        lock(&self.twins).get(&inode).copied()
    }

    fn all(&self) -> Vec<(Key, Arc<Mapping>)> {
        let all = lock(&self.mappings);
        all.iter().filter_map(|(key, mapping)| Some((*key, mapping.upgrade()?))).collect()
    }

    /// What a process has mapped.
    pub(super) fn of(&self, process: u32) -> Vec<Area> {
        let all = self.all().into_iter().filter(|(_, mapping)| mapping.process == process);
        all.filter_map(|(_, mapping)| mapping.part_in(&mapping.area)).collect()
    }

    /// The files of which a process has something mapped in a range of addresses.
    pub(super) fn files_in(&self, process: u32, start: usize, end: usize) -> HashSet<Key> {
        let all = self.all().into_iter().filter(|(_, mapping)| mapping.process == process);
        all.filter(|(_, mapping)| mapping.area.within(start, end).is_some()).map(|(key, _)| key).collect()
    }

    /// Notes a mapping, and has all others leave its place. Which parts of it they were in; `None` if it is coming,
    /// and another one is about to come to the same place: of two the one that comes later must be noted later.
    pub(super) fn take_up(&self, key: Key, mapping: &Arc<Mapping>) -> Option<Vec<Area>> {
        let mut all = lock(&self.mappings);
        all.retain(|(_, mapping)| mapping.strong_count() > 0);
        let others = all.iter().filter_map(|(_, other)| other.upgrade());
        let others = others.filter(|other| other.process == mapping.process);
        let others: Vec<_> =
            others.filter(|other| other.area.within(mapping.area.start, mapping.area.end).is_some()).collect();
        if mapping.is_coming() && others.iter().any(|other| other.is_coming()) {
            return None;
        }
        let mut parts = Vec::new();
        for other in others.iter().filter(|other| !other.is_coming()) {
            parts.extend(other.part_in(&mapping.area));
            match mapping.is_coming() {
                true => other.expect(mapping.area),
                false => other.leave(mapping.area),
            }
        }
        all.push((key, Arc::downgrade(mapping)));
        Some(parts)
    }

    /// The mapping of a process that is about to come from an address to a place, with its file. Once it has been
    /// moved another one may have the address, and be about to come from there as well.
    pub(super) fn coming(&self, process: u32, from: usize, place: usize) -> Option<(Key, Arc<Mapping>)> {
        let is_it = |mapping: &Mapping| mapping.process == process && mapping.comes_from(from);
        self.all().into_iter().find(|(_, mapping)| is_it(mapping) && mapping.area.start == place)
    }

    /// A mapping that was about to come is in its place, or will never be.
    pub(super) fn has_come(&self, mapping: &Mapping, placed: bool) {
        let all = lock(&self.mappings);
        if placed {
            mapping.arrive();
        }
        let others = all.iter().filter_map(|(_, other)| other.upgrade());
        for other in
            others.filter(|other| other.process == mapping.process && !std::ptr::eq(&raw const **other, mapping))
        {
            match placed {
                // Also those that came to a place that was free until then.
                true if !other.is_coming() && other.part_in(&mapping.area).is_some() => other.leave(mapping.area),
                _ => other.expect_no_more(&mapping.area),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_moved_from_one_address_are_told_apart() {
        let places = Places::default();
        let coming = |start: usize| {
            let area = Area { start, end: start + 4096, offset: 0, protection: 3, inode: 7 };
            let mapping = Arc::new(Mapping::new(1, area, None, 0x1000).unwrap());
            assert!(places.take_up((1, start as u64), &mapping).is_some());
            mapping
        };
        // The first one has been moved, and its thread has not said so.
        let (first, second) = (coming(0x10000), coming(0x20000));
        for mapping in [&second, &first] {
            let (_, found) = places.coming(1, 0x1000, mapping.area.start).unwrap();
            assert!(Arc::ptr_eq(&found, mapping));
            places.has_come(&found, true);
            assert!(places.coming(1, 0x1000, mapping.area.start).is_none());
        }
        assert!(!first.is_coming() && !second.is_coming());
    }
}
