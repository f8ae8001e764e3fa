//! What a file is called: its name, and while a rename is not durable the other one too, by either of which a crash may leave it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{Managed, exclusive, shared};
use super::format::{Before, PARENTS};
use crate::medium::Identity;

/// The names of a file.
pub(super) struct Names {
    /// Where it is, as far as is known.
    pub(super) path: Arc<Path>,
    /// The directories above, once it has a line.
    pub(super) parents: [u64; PARENTS],
    /// When it got this name, counted as numbers are given; 0: with its number.
    pub(super) named: u64,
    /// A rename that is not durable yet.
    pub(super) moving: Option<Moving>,
    /// The directory from which another file came over it.
    pub(super) replaced_from: Option<PathBuf>,
}

/// A rename, from before it is done until it is durable.
#[derive(Clone)]
pub(super) struct Moving {
    /// Where the file is if `path` is where it was, and the other way about.
    pub(super) other: Arc<Path>,
    pub(super) parents: [u64; PARENTS],
    pub(super) named: u64,
    /// Counted as numbers are given.
    pub(super) number: u64,
    /// What the rename is to put it over.
    pub(super) over: Option<Identity>,
    /// It was done, and `other` is the name before.
    pub(super) done: bool,
}

/// What a line of the table says of names.
pub(super) struct Said {
    pub(super) path: PathBuf,
    pub(super) parents: [u64; PARENTS],
    pub(super) named: u64,
    pub(super) before: Option<Before>,
}

pub(super) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

impl Names {
    pub(super) fn new(path: PathBuf) -> Self {
        Names { path: path.into(), parents: [0; PARENTS], named: 0, moving: None, replaced_from: None }
    }

    /// Takes it that the rename was done.
    pub(super) fn is_moved(&mut self) {
        if let Some(moving) = self.moving.as_mut().filter(|moving| !moving.done) {
            std::mem::swap(&mut self.path, &mut moving.other);
            std::mem::swap(&mut self.parents, &mut moving.parents);
            std::mem::swap(&mut self.named, &mut moving.named);
            moving.done = true;
        }
    }
}

impl Managed {
    pub(crate) fn path(&self) -> Arc<Path> {
        Arc::clone(&shared(&self.names).path)
    }

    /// The directory that has its name.
    pub(super) fn dir(&self) -> PathBuf {
        parent(&self.path()).to_owned()
    }

    /// The number of a rename that is done and not known to be durable.
    pub(super) fn moved(&self) -> Option<u64> {
        shared(&self.names).moving.as_ref().filter(|moving| moving.done).map(|moving| moving.number)
    }

    /// A rename of this number is durable.
    pub(super) fn is_moved_for_good(&self, number: u64) {
        let mut names = exclusive(&self.names);
        if names.moving.as_ref().is_some_and(|moving| moving.done && moving.number == number) {
            names.moving = None;
        }
    }

    /// Every name that it has, or may have after a crash.
    pub(super) fn paths(&self) -> Vec<Arc<Path>> {
        let names = shared(&self.names);
        let other = names.moving.as_ref().map(|moving| Arc::clone(&moving.other));
        std::iter::once(Arc::clone(&names.path)).chain(other).collect()
    }

    /// The directories whose syncs make durable what became of its names.
    pub(super) fn dirs(&self) -> BTreeSet<PathBuf> {
        let from = shared(&self.names).replaced_from.clone();
        self.paths().iter().map(|path| parent(path).to_owned()).chain(from).collect()
    }

    /// What its line says.
    pub(super) fn said(&self) -> Said {
        let names = shared(&self.names);
        let (path, parents, named) = (names.path.to_path_buf(), names.parents, names.named);
        let Some(moving) = &names.moving else { return Said { path, parents, named, before: None } };
        let (other, over) = (moving.other.to_path_buf(), moving.over);
        if moving.done {
            let before = Before { path: other, parents: moving.parents, named: moving.named, over };
            return Said { path, parents, named, before: Some(before) };
        }
        let before = Some(Before { path, parents, named, over });
        Said { path: other, parents: moving.parents, named: moving.named, before }
    }
}
