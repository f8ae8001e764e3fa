//! The directories in which a new file needs no directory sync: they are durable themselves, and no other file can have
//! the new file's name after a crash.
//!
//! A name that is not free is remembered by a hash of it, so that a directory may have very many. Another name of the
//! same hash is then taken for one that is not free, or held by another file: the directory is synced once more.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use super::rename::is_named;
use crate::storage::Identity;

/// Directories that are remembered.
const MOST: usize = 1 << 10;
/// Names in all of them. A directory with more is looked at and synced for each new file.
const MOST_NAMES: usize = 1 << 20;

struct Directory {
    identity: Identity,
    /// Names that something else has, or had since it was synced: it may be back after a crash, and the log may know
    /// nothing of it.
    taken: HashSet<u64>,
    /// Of these, names that nothing may have but one file.
    held: HashMap<u64, Identity>,
}

/// Directories that were synced.
pub(super) struct SyncedDirs {
    dirs: HashMap<PathBuf, Directory>,
    /// Names that are remembered, and how many may be.
    names: usize,
    most: usize,
    hashes: RandomState,
}

impl Default for SyncedDirs {
    fn default() -> Self {
        SyncedDirs { dirs: HashMap::new(), names: 0, most: MOST_NAMES, hashes: RandomState::new() }
    }
}

impl SyncedDirs {
    fn hash(&self, name: &OsStr) -> u64 {
        self.hashes.hash_one(name)
    }

    /// Whether a directory, which is this one now, is there for good, and a name in it nobody else's.
    pub(super) fn is_free(&self, dir: &Path, found: Option<Identity>, name: &OsStr) -> bool {
        let name = self.hash(name);
        self.dirs.get(dir).is_some_and(|known| found == Some(known.identity) && !known.taken.contains(&name))
    }

    /// Whether nothing may have a name after a crash of which the log is not told, but what has it now: this file, or
    /// nothing.
    pub(super) fn is_held(&self, dir: &Path, found: Option<Identity>, name: &OsStr, holder: Option<&Identity>) -> bool {
        let Some(known) = self.dirs.get(dir).filter(|known| found == Some(known.identity)) else { return false };
        let name = self.hash(name);
        match holder {
            None => !known.taken.contains(&name),
            Some(holder) => known.held.get(&name).is_some_and(|held| is_named(held, holder)),
        }
    }

    /// A directory was synced, in which these names are taken.
    pub(super) fn note(&mut self, dir: &Path, found: Option<Identity>, taken: HashSet<OsString>) {
        self.forget(dir);
        let Some(identity) = found.filter(|_| taken.len() <= self.most) else { return };
        if self.dirs.len() >= MOST || self.names + taken.len() > self.most {
            self.dirs.clear();
            self.names = 0;
        }
        let taken: HashSet<u64> = taken.iter().map(|name| self.hash(name)).collect();
        self.names += taken.len();
        self.dirs.insert(dir.to_owned(), Directory { identity, taken, held: HashMap::new() });
    }

    /// A name is somebody's of whom the log is not told anything any more: this file's, if nothing else may have it
    /// after a crash.
    pub(super) fn hold(&mut self, dir: &Path, name: &OsStr, holder: Option<Identity>) {
        let name = self.hash(name);
        let Some(known) = self.dirs.get_mut(dir) else { return };
        self.names += usize::from(known.taken.insert(name));
        match holder {
            Some(holder) => drop(known.held.insert(name, holder)),
            None => drop(known.held.remove(&name)),
        }
        if self.names > self.most {
            self.forget(dir);
        }
    }

    pub(super) fn forget(&mut self, dir: &Path) {
        if let Some(known) = self.dirs.remove(dir) {
            self.names -= known.taken.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_in_a_synced_directory_until_it_is_held() {
        let identity = |inode| Some(Identity { device: 1, inode, generation: 0, birth: 3 });
        let (dir, mut synced_dirs) = (Path::new("/dir"), SyncedDirs::default());
        let is_free =
            |synced_dirs: &SyncedDirs, inode, name: &str| synced_dirs.is_free(dir, identity(inode), OsStr::new(name));
        assert!(!is_free(&synced_dirs, 1, "a"));
        synced_dirs.note(dir, identity(1), HashSet::from([OsString::from("there")]));
        assert!(is_free(&synced_dirs, 1, "a") && !is_free(&synced_dirs, 1, "there") && !is_free(&synced_dirs, 2, "a"));
        synced_dirs.hold(dir, OsStr::new("a"), None);
        assert!(!is_free(&synced_dirs, 1, "a") && is_free(&synced_dirs, 1, "b"));
        let is_held = |synced_dirs: &SyncedDirs, name: &str, holder: Option<&Identity>| {
            synced_dirs.is_held(dir, identity(1), OsStr::new(name), holder)
        };
        let (one, other) = (identity(5).unwrap(), identity(6).unwrap());
        assert!(
            is_held(&synced_dirs, "b", None)
                && !is_held(&synced_dirs, "a", None)
                && !is_held(&synced_dirs, "a", Some(&one))
        );
        assert!(!is_held(&synced_dirs, "b", Some(&one)), "it came without a word");
        synced_dirs.hold(dir, OsStr::new("a"), Some(one));
        assert!(is_held(&synced_dirs, "a", Some(&one)) && !is_held(&synced_dirs, "a", Some(&other)));
        synced_dirs.forget(dir);
        assert!(!is_free(&synced_dirs, 1, "b"));
        let names = |count: u32| (0..count).map(|n| n.to_string().into()).collect();
        synced_dirs.note(dir, identity(1), names(100_000));
        assert!(is_free(&synced_dirs, 1, "b") && !is_free(&synced_dirs, 1, "99999"));
        synced_dirs.most = 8;
        synced_dirs.note(dir, identity(1), names(9));
        assert!(!is_free(&synced_dirs, 1, "b"), "it has too many");
        synced_dirs.note(dir, identity(1), names(7));
        synced_dirs.hold(dir, OsStr::new("7"), Some(one));
        assert!(is_held(&synced_dirs, "7", Some(&one)) && !is_free(&synced_dirs, 1, "7"));
        assert!(is_free(&synced_dirs, 1, "8") && synced_dirs.names == 8);
        synced_dirs.hold(dir, OsStr::new("8"), None);
        assert!(!is_free(&synced_dirs, 1, "9") && synced_dirs.names == 0, "it has too many by now");
        synced_dirs.note(dir, identity(1), names(8));
        synced_dirs.note(Path::new("/other"), identity(2), names(1));
        assert!(!is_free(&synced_dirs, 1, "9") && synced_dirs.names == 1, "another takes its place");
        synced_dirs.note(dir, None, HashSet::new());
        assert!(!synced_dirs.is_free(dir, None, OsStr::new("b")), "it is not there");
    }
}
