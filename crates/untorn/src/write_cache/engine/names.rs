//! The names of a file: its name, and, until a rename is durable, its other name; a crash may leave the file under
//! either.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file::{Managed, exclusive, shared};
use super::format::{Before, PARENTS};
use super::rename::is_named;
use super::{Cache, barriers, locked};
use crate::error::Result;
use crate::storage::{Identity, Medium};
use crate::write_cache::backing::Named;

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
    /// The log has an entry that says so.
    pub(super) logged: bool,
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

    /// The log has an entry that says that the rename of this number was done.
    pub(super) fn move_is_logged(&self, number: u64) {
        if let Some(moving) = exclusive(&self.names).moving.as_mut().filter(|moving| moving.number == number) {
            moving.logged = true;
        }
    }

    /// The log has what it is called, durably once this request for a flush of the log is answered.
    pub(super) fn is_named_by(&self, request: u64) {
        self.named.fetch_max(request, Ordering::AcqRel);
    }

    /// Whether a replay leaves it by the name that it has, and that is this one.
    fn keeps(&self, path: &Path) -> bool {
        let names = shared(&self.names);
        self.is_kept(&names) && &*names.path == path && names.moving.as_ref().is_none_or(|moving| moving.logged)
    }

    /// Whether a replay leaves it by another name than this one, which it had before.
    fn gave_up(&self, path: &Path) -> bool {
        let names = shared(&self.names);
        self.is_kept(&names) && names.moving.as_ref().is_some_and(|moving| moving.logged && &*moving.other == path)
    }

    /// Whether the log has all that an atomic file ever had.
    fn is_new_atomic(&self) -> bool {
        self.epoch.is_some() && self.new.load(Ordering::Acquire)
    }

    /// Whether a replay finds it or makes it again: by its line.
    fn is_kept(&self, names: &Names) -> bool {
        // A replay does nothing for a new atomic file without a commit or a rename.
        let is_logged = || self.has_commit() || names.moving.as_ref().is_some_and(|moving| moving.logged);
        let has_line = self.uid.load(Ordering::Acquire) != 0 && (!self.is_new_atomic() || is_logged());
        has_line && !self.leaving.load(Ordering::Acquire) && !self.is_demoted() && !self.has_failed()
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

impl<M: Medium> Cache<M> {
    /// Whether each of these names of a directory stands, after a crash and a replay, for what it stands for now, the
    /// directory synced or not; durably so when this returns.
    ///
    /// A file with a line is found or made again, and has its name by right: what had it before is superseded, or was
    /// seen to when the line was given. Of a name that nothing has the log knows only that it was given up where the
    /// file that had it was renamed.
    pub(crate) fn dir_is_durable(&self, dir: &Path, names: &[OsString]) -> Result<bool> {
        self.handle_state.writable()?;
        let files = locked(&self.registry).all();
        let (mut named, mut by_commit) = (0, false);
        for name in names {
            let path = dir.join(name);
            let found = self.place.named(&path)?;
            let is_keeper = |file: &&Arc<Managed>| match &found {
                Named::File(found) => {
                    file.identity.device == found.device && is_named(&file.identity, found) && file.keeps(&path)
                }
                Named::Nothing => file.gave_up(&path),
                Named::Other => false,
            };
            // Of those that gave a name up, any may be back by it.
            let keepers: Vec<&Arc<Managed>> = files.iter().filter(is_keeper).collect();
            by_commit |= keepers.iter().any(|file| file.is_new_atomic());
            let Some(last) = keepers.into_iter().map(|file| file.named.load(Ordering::Acquire)).max() else {
                return Ok(false);
            };
            named = named.max(last);
        }
        // What says so is in the log, and is to be there after a crash, too. The sync of a file, by whichever
        // process, may have made all of it durable meanwhile.
        if by_commit {
            self.make_durable(self.commits.load(Ordering::Acquire))?;
        }
        if !self.ring.is_per_write() && !self.ring.shared_state().is_answered(named) {
            self.ring.persist(barriers::NAMES).map_err(|error| self.poison(error))?;
        }
        Ok(true)
    }
}
