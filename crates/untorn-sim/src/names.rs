//! Names: directories, what they hold, and changes that a crash may lose.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};
use std::sync::Arc;

/// The root directory, which always exists.
pub(crate) const ROOT: u64 = 0;

/// The node that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    File(u64),
    Dir(u64),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dir: u64,
    pub(crate) name: OsString,
}

/// All names of all directories; a handful, so a list serves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree(Vec<(Place, Node)>);

impl Tree {
    pub(crate) fn get(&self, dir: u64, name: &OsStr) -> Option<Node> {
        self.0.iter().find(|(place, _)| place.dir == dir && place.name == name).map(|&(_, node)| node)
    }

    fn set(&mut self, place: &Place, node: Option<Node>) {
        let found = self.0.iter().position(|(other, _)| other == place);
        match (found, node) {
            (Some(index), Some(node)) => self.0[index].1 = node,
            (Some(index), None) => {
                self.0.remove(index);
            }
            (None, Some(node)) => self.0.push((place.clone(), node)),
            (None, None) => {}
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Place, Node)> {
        self.0.iter().map(|(place, node)| (place, *node))
    }

    pub(crate) fn in_dir(&self, dir: u64) -> impl Iterator<Item = (&OsStr, Node)> {
        self.iter().filter(move |(place, _)| place.dir == dir).map(|(place, node)| (place.name.as_os_str(), node))
    }

    /// Whether a directory can be reached from the root. A name kept in a directory whose own creation was lost is
    /// not part of the namespace.
    pub(crate) fn reaches(&self, dir: u64) -> bool {
        let mut at = dir;
        // A path has at most as many steps as there are names.
        for _ in 0..=self.0.len() {
            if at == ROOT {
                return true;
            }
            match self.0.iter().find(|(_, node)| *node == Node::Dir(at)) {
                Some((place, _)) => at = place.dir,
                None => return false,
            }
        }
        false
    }

    /// Drops what cannot be reached from the root.
    pub(crate) fn prune(&mut self) {
        if self.0.iter().all(|(place, _)| place.dir == ROOT) {
            return;
        }
        let kept: Vec<bool> = self.0.iter().map(|(place, _)| self.reaches(place.dir)).collect();
        let mut kept = kept.into_iter();
        self.0.retain(|_| kept.next().unwrap_or(false));
    }

    /// The names of a path's last component and of the directory that holds it.
    pub(crate) fn locate(&self, path: &Path) -> Option<Place> {
        let mut dir = ROOT;
        let mut last: Option<&OsStr> = None;
        for component in path.components() {
            if let Component::Normal(name) = component
                && let Some(parent) = last.replace(name)
            {
                match self.get(dir, parent) {
                    Some(Node::Dir(inner)) => dir = inner,
                    _ => return None,
                }
            }
        }
        Some(Place { dir, name: last?.to_owned() })
    }

    /// The node that a path stands for.
    pub(crate) fn find(&self, path: &Path) -> Option<Node> {
        match self.locate(path) {
            Some(place) => self.get(place.dir, &place.name),
            None => path.components().all(|part| !matches!(part, Component::Normal(_))).then_some(Node::Dir(ROOT)),
        }
    }
}

/// One change of the namespace: a creation or removal of one name, or a rename, which is one step for any journal.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) call: u64,
    pub(crate) sets: Vec<(Place, Option<Node>)>,
    /// Directories that must be synced before it is certain.
    waiting: Vec<u64>,
    pub(crate) stale: bool,
}

impl Change {
    /// Whether every crash keeps it.
    pub(crate) fn certain(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn apply(&self, tree: &mut Tree) {
        for (place, node) in &self.sets {
            tree.set(place, *node);
        }
    }

    fn touches(&self, other: &Change) -> bool {
        self.sets.iter().any(|(place, _)| other.sets.iter().any(|(theirs, _)| theirs == place))
    }
}

/// The namespace as programs see it, as a crash leaves it at least, and the changes between the two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) volatile: Arc<Tree>,
    pub(crate) durable: Arc<Tree>,
    pub(crate) log: Vec<Change>,
}

impl Names {
    pub(crate) fn change(&mut self, call: u64, sets: Vec<(Place, Option<Node>)>) {
        let mut waiting: Vec<u64> = sets.iter().map(|(place, _)| place.dir).collect();
        waiting.dedup();
        let change = Change { call, sets, waiting, stale: false };
        change.apply(Arc::make_mut(&mut self.volatile));
        self.log.push(change);
    }

    /// Has the name of a file stand for another one, before any change is pending.
    pub(crate) fn renumber(&mut self, path: &Path, number: u64) {
        if let Some(place) = self.volatile.locate(path) {
            Arc::make_mut(&mut self.volatile).set(&place, Some(Node::File(number)));
            self.durable = self.volatile.clone();
        }
    }

    /// Makes the names of a directory durable. Returns whether anything changed.
    pub(crate) fn sync(&mut self, dir: u64) -> bool {
        let mut changed = false;
        for change in &mut self.log {
            let before = change.waiting.len();
            change.waiting.retain(|waiting| *waiting != dir);
            changed |= change.waiting.len() != before;
        }
        if !changed {
            return false;
        }
        let mut kept: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.log) {
            if change.certain() && !kept.iter().any(|earlier| earlier.touches(&change)) {
                change.apply(Arc::make_mut(&mut self.durable));
            } else {
                kept.push(change);
            }
        }
        self.log = kept;
        true
    }

    pub(crate) fn mark_stale(&mut self, dir: u64) {
        for change in &mut self.log {
            change.stale |= change.waiting.contains(&dir);
        }
    }

    /// The changes that a crash keeps, of those that it may keep: a journal that has a later change of one of a
    /// rename's names also has the rename.
    pub(crate) fn kept(&self, chosen: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut kept: Vec<bool> = (0..self.log.len()).map(chosen).collect();
        for (index, change) in self.log.iter().enumerate().rev().filter(|(_, change)| change.sets.len() > 1) {
            let later = self.log.iter().zip(&kept).skip(index + 1);
            kept[index] |= later.into_iter().any(|(later, kept)| *kept && later.touches(change));
        }
        kept
    }

    /// Whether a program finds this file by a name.
    pub(crate) fn has_name(&self, inode: u64) -> bool {
        self.volatile.iter().any(|(place, node)| node == Node::File(inode) && self.volatile.reaches(place.dir))
    }

    /// Whether any crash could still show this file.
    pub(crate) fn mentions(&self, inode: u64) -> bool {
        let node = Node::File(inode);
        self.volatile.iter().any(|(_, other)| other == node)
            || self.durable.iter().any(|(_, other)| other == node)
            || self.log.iter().any(|change| change.sets.iter().any(|(_, other)| *other == Some(node)))
    }
}
