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
    pub(crate) class: MediumClass,
    pub(crate) muted: Option<Barrier>,
    pub(crate) clock: u64,
    pub(crate) next_dir: u64,
    pub(crate) tree: Arc<Tree>,
    pub(crate) files: Vec<(u64, Inode)>,
}

impl Image {
    /// A hash of all names, bytes, lengths, marks and holes; modification times are left out.
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
        let names = Names { volatile: self.tree.clone(), durable: self.tree, log: Vec::new() };
        let files = self.files.into_iter().collect();
        let Image { class, muted, clock, next_dir, .. } = self;
        SimMedium::of(World { muted, clock, booted: clock, next_dir, names, files, ..World::new(class) })
    }
}
