//! [`Image`]: the files one choice leaves, and the machine that boots from them.

use std::sync::Arc;

use twox_hash::XxHash3_64;
use untorn::testing::storage::{Barrier, MediumClass};

use crate::medium::SimMedium;
use crate::names::{Names, Node, Tree};
use crate::rng::mix;
use crate::world::{Inode, World};

/// The durable files after one crash. It shares all unchanged pages with the machine it came from.
pub struct Image {
    class: MediumClass,
    muted: Option<Barrier>,
    clock: u64,
    next_dir: u64,
    tree: Arc<Tree>,
    files: Vec<(u64, Inode)>,
}

impl Image {
    pub(crate) fn new(
        class: MediumClass,
        muted: Option<Barrier>,
        clock: u64,
        next_dir: u64,
        tree: Arc<Tree>,
        files: Vec<(u64, Inode)>,
    ) -> Self {
        Image { class, muted, clock, next_dir, tree, files }
    }

    /// A hash of all names, bytes, lengths and marks; modification times and holes are left out.
    pub fn digest(&self) -> u64 {
        let mut sum = self.class as u64;
        for (place, node) in self.tree.iter() {
            let (kind, number) = match node {
                Node::File(number) => (1, number),
                Node::Dir(number) => (2, number),
            };
            let name = XxHash3_64::oneshot(place.name.as_encoded_bytes());
            sum = sum.wrapping_add(mix(name ^ mix(place.dir ^ mix(kind ^ number << 2))));
        }
        for (number, inode) in &self.files {
            sum = sum.wrapping_add(mix(inode.durable.digest() ^ mix(*number)));
        }
        sum
    }

    /// A machine started from these files, with nothing pending.
    pub fn boot(self) -> SimMedium {
        let mut world = World::new(self.class);
        world.muted = self.muted;
        world.clock = self.clock;
        world.next_dir = self.next_dir;
        world.names = Names { volatile: self.tree.clone(), durable: self.tree, log: Vec::new() };
        world.files = self.files.into_iter().collect();
        SimMedium::of(world)
    }
}
