//! Key-value stores in a mapping: a hash map with chains and a crit-bit tree, as PMDK has them. Each thread has an
//! instance of its own in its part of the file, as in the paper (§4.3).
//!
//! An instance begins with a page: the number of nodes handed out, and the root. Offsets are those in the file; 0 is
//! none. A node is 64 bytes: a crit-bit tree's inner node has the bit that its two children differ in.

use super::{Memory, PAGE};
use crate::error::Result;
use crate::offsets::mix;

/// Bytes of a node.
const NODE: u64 = 64;
/// Bits of a key.
const BITS: u64 = 64;

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    HashMap,
    CritBit,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::HashMap, Kind::CritBit];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kind::HashMap => "hashmap",
            Kind::CritBit => "ctree",
        }
    }
}

/// One store in a part of the memory.
pub(super) struct Map<'a> {
    kind: Kind,
    memory: Memory<'a>,
    base: u64,
    /// Nodes that fit.
    room: u64,
    /// Buckets of a hash map.
    buckets: u64,
    nodes: u64,
    /// Nodes that were given back.
    free: Vec<u64>,
}

impl<'a> Map<'a> {
    /// An empty store in these bytes.
    pub(super) fn empty(kind: Kind, memory: Memory<'a>, base: u64, len: u64) -> Result<Self> {
        memory.store_word(base, 0)?;
        let mut map = Self::attach(kind, memory, base, len)?;
        map.clear()?;
        Ok(map)
    }

    /// The store that is in these bytes.
    pub(super) fn attach(kind: Kind, memory: Memory<'a>, base: u64, len: u64) -> Result<Self> {
        // One bucket for two nodes.
        let buckets = if kind == Kind::HashMap { (len - PAGE) / (2 * NODE + 8) } else { 1 };
        let room = (len - PAGE - (8 * buckets).next_multiple_of(NODE)) / NODE;
        Ok(Map { kind, memory, base, room, buckets, nodes: memory.word(base)?, free: Vec::new() })
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) -> Result<()> {
        let zeros = [0; PAGE as usize];
        let end = self.base + PAGE + 8 * self.buckets;
        for at in (self.base..end).step_by(zeros.len()) {
            self.memory.store(at, &zeros[..(end - at).min(PAGE) as usize])?;
        }
        self.nodes = 0;
        self.free.clear();
        Ok(())
    }

    /// How many keys fit for certain: a key of a tree may take two nodes.
    pub(super) fn keys(&self) -> u64 {
        if self.kind == Kind::HashMap { self.room } else { self.room / 2 }
    }

    fn root(&self, key: u64) -> u64 {
        self.base + PAGE + 8 * (mix(key) % self.buckets)
    }

    /// A node with this content. The number handed out is stored, as an allocator does.
    fn node(&mut self, words: &[u64]) -> Result<u64> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.nodes += 1;
                self.memory.store_word(self.base, self.nodes)?;
                self.nodes - 1
            }
        };
        let at = self.base + PAGE + (8 * self.buckets).next_multiple_of(NODE) + number * NODE;
        let mut bytes = [0xa5; NODE as usize];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.memory.store(at, &bytes)?;
        Ok(at)
    }

    fn give_back(&mut self, at: u64) -> Result<()> {
        let number = (at - self.base - PAGE - (8 * self.buckets).next_multiple_of(NODE)) / NODE;
        self.free.push(number);
        // As an allocator notes it.
        self.memory.store_word(self.base + 8, number)
    }

    /// Puts a key in that is not there.
    pub(super) fn insert(&mut self, key: u64) -> Result<()> {
        let root = self.root(key);
        match self.kind {
            Kind::HashMap => {
                let first = self.memory.word(root)?;
                let node = self.node(&[key, first])?;
                self.memory.store_word(root, node)
            }
            Kind::CritBit => self.insert_in_tree(root, key),
        }
    }

    /// A leaf has its key and [`BITS`]; an inner node its two children and the bit they differ in.
    fn bit(&self, node: u64) -> Result<u64> {
        self.memory.word(node + 16)
    }

    fn child(key: u64, node: u64, bit: u64) -> u64 {
        node + 8 * (key >> (BITS - 1 - bit) & 1)
    }

    fn insert_in_tree(&mut self, root: u64, key: u64) -> Result<()> {
        let mut node = self.memory.word(root)?;
        if node == 0 {
            let leaf = self.node(&[key, 0, BITS])?;
            return self.memory.store_word(root, leaf);
        }
        // Some leaf that agrees with the key as long as any does.
        loop {
            let bit = self.bit(node)?;
            if bit == BITS {
                break;
            }
            node = self.memory.word(Self::child(key, node, bit))?;
        }
        let differs = u64::from((self.memory.word(node)? ^ key).leading_zeros());
        // Where the new inner node goes.
        let mut link = root;
        let mut below = self.memory.word(link)?;
        loop {
            let bit = self.bit(below)?;
            if bit > differs {
                break;
            }
            link = Self::child(key, below, bit);
            below = self.memory.word(link)?;
        }
        let leaf = self.node(&[key, 0, BITS])?;
        let is_right = key >> (BITS - 1 - differs) & 1 == 1;
        let children = if is_right { [below, leaf] } else { [leaf, below] };
        let inner = self.node(&[children[0], children[1], differs])?;
        self.memory.store_word(link, inner)
    }

    /// Takes a key out; whether it was there.
    pub(super) fn remove(&mut self, key: u64) -> Result<bool> {
        let mut link = self.root(key);
        match self.kind {
            Kind::HashMap => loop {
                let node = self.memory.word(link)?;
                if node == 0 {
                    return Ok(false);
                }
                let next = self.memory.word(node + 8)?;
                if self.memory.word(node)? == key {
                    self.memory.store_word(link, next)?;
                    self.give_back(node)?;
                    return Ok(true);
                }
                link = node + 8;
            },
            Kind::CritBit => {
                let (mut parent, mut sibling) = (0, 0);
                let mut parent_link = link;
                let mut node = self.memory.word(link)?;
                if node == 0 {
                    return Ok(false);
                }
                loop {
                    let bit = self.bit(node)?;
                    if bit == BITS {
                        break;
                    }
                    (parent, parent_link) = (node, link);
                    link = Self::child(key, node, bit);
                    sibling = self.memory.word(if link == node { node + 8 } else { node })?;
                    node = self.memory.word(link)?;
                }
                if self.memory.word(node)? != key {
                    return Ok(false);
                }
                self.memory.store_word(parent_link, sibling)?;
                self.give_back(node)?;
                if parent != 0 {
                    self.give_back(parent)?;
                }
                Ok(true)
            }
        }
    }

    #[cfg(test)]
    fn has(&self, key: u64) -> bool {
        let mut node = self.memory.word(self.root(key)).unwrap();
        while node != 0 {
            match self.kind {
                Kind::HashMap if self.memory.word(node).unwrap() == key => return true,
                Kind::HashMap => node = self.memory.word(node + 8).unwrap(),
                Kind::CritBit => match self.bit(node).unwrap() {
                    BITS => return self.memory.word(node).unwrap() == key,
                    bit => node = self.memory.word(Self::child(key, node, bit)).unwrap(),
                },
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use untorn::testing::storage::{Access, Dax, Medium, MediumKind};

    use super::*;

    #[test]
    fn both_stores_are_sets() {
        let dir = tempfile::tempdir().unwrap();
        for kind in Kind::ALL {
            let path = dir.path().join(kind.as_str());
            std::fs::write(&path, vec![0xee; 1 << 18]).unwrap();
            let file = Dax::new(MediumKind::AssumedPmem).open(&path, Access::ReadWrite, 1 << 18).unwrap();
            let memory = Memory { file: &file, announces: None };
            let mut map = Map::empty(kind, memory, PAGE, (1 << 18) - PAGE).unwrap();
            let mut keys = BTreeSet::new();
            assert!(map.keys() > 1000);
            for step in 0..20_000_u64 {
                let key = mix(step) % 3000;
                if keys.contains(&key) {
                    assert!(map.remove(key).unwrap() && !map.remove(key).unwrap(), "{kind:?}, step {step}");
                    keys.remove(&key);
                } else if (keys.len() as u64) < map.keys() - 1 {
                    map.insert(key).unwrap();
                    keys.insert(key);
                }
            }
            for key in 0..3000 {
                assert_eq!(map.has(key), keys.contains(&key), "{kind:?}, key {key}");
            }
            map.clear().unwrap();
            assert!(keys.iter().all(|key| !map.has(*key)));
        }
    }
}
