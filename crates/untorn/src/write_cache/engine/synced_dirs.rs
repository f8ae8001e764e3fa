//! The directories in which a new file needs no directory sync: they are durable themselves, and no other file can have
//! the new file's name after a crash.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::rename::is_named;
use crate::storage::Identity;

/// Directories that are remembered.
const MOST: usize = 1 << 10;
/// Names in one of them. One with more is looked at and synced for each new file.
const MOST_NAMES: usize = 1 << 14;

struct Directory {
    identity: Identity,
    /// Names that something else has, or had since it was synced: it may be back after a crash, and the log may know
    /// nothing of it. The file, if nothing else but this one may be there.
    taken: HashMap<OsString, Option<Identity>>,
}

/// Directories that were synced.
#[derive(Default)]
pub(super) struct SyncedDirs(HashMap<PathBuf, Directory>);

impl SyncedDirs {
    /// Whether a directory, which is this one now, is there for good, and a name in it nobody else's.
    pub(super) fn is_free(&self, dir: &Path, found: Option<Identity>, name: &OsStr) -> bool {
        self.0.get(dir).is_some_and(|known| found == Some(known.identity) && !known.taken.contains_key(name))
    }

    /// Whether nothing may have a name after a crash of which the log is not told, but what has it now: this file, or
    /// nothing.
    pub(super) fn is_held(&self, dir: &Path, found: Option<Identity>, name: &OsStr, holder: Option<&Identity>) -> bool {
        let Some(known) = self.0.get(dir).filter(|known| found == Some(known.identity)) else { return false };
        match (holder, known.taken.get(name)) {
            (None, None) => true,
            (Some(holder), Some(Some(held))) => is_named(held, holder),
            _ => false,
        }
    }

    /// A directory was synced, in which these names are taken.
    pub(super) fn note(&mut self, dir: &Path, found: Option<Identity>, taken: HashSet<OsString>) {
        let Some(identity) = found.filter(|_| taken.len() <= MOST_NAMES) else { return self.forget(dir) };
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let taken = taken.into_iter().map(|name| (name, None)).collect();
        self.0.insert(dir.to_owned(), Directory { identity, taken });
    }

    /// A name is somebody's of whom the log is not told anything any more: this file's, if nothing else may have it
    /// after a crash.
    pub(super) fn hold(&mut self, dir: &Path, name: &OsStr, holder: Option<Identity>) {
        let Some(known) = self.0.get_mut(dir) else { return };
        known.taken.insert(name.to_owned(), holder);
        if known.taken.len() > MOST_NAMES {
            self.forget(dir);
        }
    }

    pub(super) fn forget(&mut self, dir: &Path) {
        self.0.remove(dir);
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
        synced_dirs.note(dir, identity(1), (0..=MOST_NAMES).map(|n| n.to_string().into()).collect());
        assert!(!is_free(&synced_dirs, 1, "b"), "it has too many");
        synced_dirs.note(dir, None, HashSet::new());
        assert!(!synced_dirs.is_free(dir, None, OsStr::new("b")), "it is not there");
    }
}
