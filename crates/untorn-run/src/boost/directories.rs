//! Syncs of directories, which wait for no device where the log keeps all that changed there since the last one that
//! did.
//!
//! # What makes it sound
//! 1. The kernel tells of each name that changes in a directory that is watched before the call that changes it
//!    returns (inotify(7)), whoever makes it. So a sync that is asked for afterwards hears of it.
//! 2. A directory is watched before it is synced. So all names are known that changed since, or it is known that
//!    others may have: more than are remembered, or than the kernel's queue holds; or the directory itself changed.
//! 3. The log is asked for each of these names what a crash would leave there, as the name is now
//!    ([`WriteCache::dir_is_durable`]). One of which it knows nothing, as of a file that is plain, or removed, makes
//!    the directory be synced.
//! 4. What a sync that is under way makes durable is not known before its end: until then the others are made, too.
//!    Programs make them themselves, and say so afterwards; what one was about to make durable that does not say so
//!    any more is not known.
//!
//! [`WriteCache::dir_is_durable`]: untorn::write_cache::WriteCache::keeps_names

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno as Sys;
use untorn_wire::PLAIN;

use super::Boost;
use crate::descriptor::{flags, path_of};
use crate::files::{Key, lock};
use crate::managed::{Errno, libc_errno};

/// Directories that are watched.
const MOST: usize = 64;
/// Names of one that are remembered.
const MOST_NAMES: usize = 64;

/// What changed since a directory was synced.
#[derive(Default)]
struct Changes {
    names: BTreeSet<OsString>,
    /// Perhaps more than these.
    unknown: bool,
}

struct Directory {
    watch: i32,
    changes: Changes,
    /// Syncs of it that are under way, by number.
    syncing: HashSet<u64>,
}

/// Directories that were synced.
#[derive(Default)]
pub(super) struct Directories {
    /// `None` before the first, and where there is none to be had.
    inotify: Option<OwnedFd>,
    watched: HashMap<Key, Directory>,
    /// Syncs so far that were the programs' to make.
    syncs: u64,
}

/// Who syncs a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sync {
    /// Nobody need: the log keeps what changed.
    Kept,
    /// Whoever asks, and says so with this number; 0 if nobody wants to know.
    Due(u64),
}

impl Directories {
    /// Watches a directory. Where that cannot be, its syncs stay the kernel's.
    fn watch(&mut self, key: Key, descriptor: &OwnedFd) {
        if self.watched.len() >= MOST {
            // With it go the watches. Numbers are not used again.
            *self = Directories { syncs: self.syncs, ..Directories::default() };
        }
        let new = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        let Some(inotify) = self.inotify.take().or_else(new) else { return };
        // By its descriptor: what has its name now may be another.
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        let itself = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR;
        if let Ok(watch) = inotify::add_watch(&inotify, link, names | itself) {
            self.watched.insert(key, Directory { watch, changes: Changes::default(), syncing: HashSet::new() });
        }
        self.inotify = Some(inotify);
    }

    /// Hears what the kernel has to tell by now.
    fn hear(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    note(&mut self.watched, event.wd(), event.events(), name);
                }
                Err(Sys::INTR) => {}
                Err(Sys::WOULDBLOCK) => return,
                Err(_) => return self.watched.values_mut().for_each(|directory| directory.changes.unknown = true),
            }
        }
    }

    /// Names of which the log is to be asked; `None` if the directory has to be synced in any case.
    fn changed(&self, key: Key) -> Option<Vec<OsString>> {
        let directory = self.watched.get(&key).filter(|directory| directory.syncing.is_empty())?;
        (!directory.changes.unknown).then(|| directory.changes.names.iter().cloned().collect())
    }

    /// A sync begins, which is to make all durable that changed: its number.
    fn begin(&mut self, key: Key) -> u64 {
        let Some(directory) = self.watched.get_mut(&key) else { return 0 };
        self.syncs += 1;
        directory.changes = Changes::default();
        directory.syncing.insert(self.syncs);
        self.syncs
    }

    /// It ended.
    fn end(&mut self, number: u64, done: bool) {
        // None, if it was forgotten meanwhile.
        for directory in self.watched.values_mut() {
            if directory.syncing.remove(&number) {
                directory.changes.unknown |= !done;
            }
        }
    }

    /// Of those that are under way nobody may be left to say that they ended.
    fn forget_syncs(&mut self) {
        for directory in self.watched.values_mut().filter(|directory| !directory.syncing.is_empty()) {
            directory.syncing.clear();
            directory.changes.unknown = true;
        }
    }
}

/// The kernel tells of something in a directory.
fn note(watched: &mut HashMap<Key, Directory>, watch: i32, events: ReadFlags, name: Option<&OsStr>) {
    if events.contains(ReadFlags::QUEUE_OVERFLOW) {
        return watched.values_mut().for_each(|directory| directory.changes.unknown = true);
    }
    if events.contains(ReadFlags::IGNORED) {
        // Removed, or unmounted.
        return watched.retain(|_, directory| directory.watch != watch);
    }
    let Some(directory) = watched.values_mut().find(|directory| directory.watch == watch) else { return };
    match name {
        // Attributes of a file are not its directory's.
        Some(_) if events.contains(ReadFlags::ATTRIB) => {}
        Some(name) if directory.changes.names.len() < MOST_NAMES => {
            directory.changes.names.insert(name.to_owned());
        }
        _ => directory.changes.unknown = true,
    }
}

impl Boost {
    /// A program is about to sync a directory.
    ///
    /// # Errors
    /// Those of the kernel; [`PLAIN`] for what is none, or open for neither reading nor writing.
    pub(super) fn about_to_sync_directory(&self, descriptor: &OwnedFd) -> Result<Sync, Errno> {
        let status = rustix::fs::fstat(descriptor).map_err(libc_errno)?;
        let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
        if !is_directory || flags(descriptor)?.contains(OFlags::PATH) {
            return Err(PLAIN);
        }
        let key = (status.st_dev, status.st_ino);
        let path = path_of(descriptor)?;
        let changed = {
            let mut directories = lock(&self.directories);
            directories.hear();
            if !directories.watched.contains_key(&key) {
                directories.watch(key, descriptor);
                return Ok(Sync::Due(directories.begin(key)));
            }
            directories.changed(key)
        };
        // Without the lock, for it may be a flush of the log's disk. A log that failed keeps nothing: then what the
        // kernel says holds.
        if changed.is_some_and(|names| self.cache.dir_is_durable(&path, &names).unwrap_or(false)) {
            self.ledger.directory_kept();
            return Ok(Sync::Kept);
        }
        Ok(Sync::Due(lock(&self.directories).begin(key)))
    }

    /// A sync of a directory ended that was a program's to make.
    pub(super) fn directory_was_synced(&self, number: u64, done: bool) {
        lock(&self.directories).end(number, done);
    }

    /// A process has ended that may have been about to say so.
    pub(super) fn forget_syncs_of_directories(&self) {
        lock(&self.directories).forget_syncs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(directory: &OwnedFd) -> Key {
        let status = rustix::fs::fstat(directory).unwrap();
        (status.st_dev, status.st_ino)
    }

    /// A directory that is watched, and by which key.
    fn watched() -> (tempfile::TempDir, Directories, Key) {
        let dir = tempfile::tempdir().unwrap();
        let descriptor = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let mut directories = Directories::default();
        directories.watch(of(&descriptor), &descriptor);
        (dir, directories, of(&descriptor))
    }

    fn heard(directories: &mut Directories, key: Key) -> Option<Vec<OsString>> {
        directories.hear();
        directories.changed(key)
    }

    #[test]
    fn names_that_change_are_heard_of_until_a_sync_begins() {
        let (dir, mut directories, key) = watched();
        assert_eq!(heard(&mut directories, key), Some(Vec::new()));
        let path = |name| dir.path().join(name);
        std::fs::write(path("a"), "1").unwrap();
        std::fs::write(path("a"), "2").unwrap();
        std::fs::rename(path("a"), path("b")).unwrap();
        std::fs::create_dir(path("c")).unwrap();
        std::fs::remove_file(path("b")).unwrap();
        assert_eq!(heard(&mut directories, key), Some(["a", "b", "c"].map(OsString::from).to_vec()));
        let number = directories.begin(key);
        std::fs::write(path("d"), "1").unwrap();
        assert_eq!(heard(&mut directories, key), None, "a sync is under way");
        directories.end(number, true);
        assert_eq!(heard(&mut directories, key), Some(vec!["d".into()]));
        // Of two at a time the second may be the one that has it.
        let (one, other) = (directories.begin(key), directories.begin(key));
        directories.end(one, true);
        assert_eq!(heard(&mut directories, key), None, "the other is under way");
        directories.end(other, true);
        assert_eq!(heard(&mut directories, key), Some(Vec::new()));
    }

    #[test]
    fn a_failed_or_unfinished_sync_leaves_nothing_known() {
        let (dir, mut directories, key) = watched();
        std::fs::write(dir.path().join("a"), "1").unwrap();
        directories.hear();
        let number = directories.begin(key);
        directories.end(number, false);
        assert_eq!(heard(&mut directories, key), None);
        let dies = directories.begin(key);
        directories.forget_syncs();
        assert_eq!(heard(&mut directories, key), None);
        let number = directories.begin(key);
        // It did not die after all, and says nothing of the other.
        directories.end(dies, true);
        assert_eq!(heard(&mut directories, key), None);
        directories.end(number, true);
        assert_eq!(heard(&mut directories, key), Some(Vec::new()));
    }

    #[test]
    fn a_chmod_counts_for_the_directory_but_not_for_its_files() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, mut directories, key) = watched();
        let path = dir.path().join("a");
        std::fs::write(&path, "1").unwrap();
        let number = directories.begin(key);
        directories.hear();
        directories.end(number, true);
        let number = directories.begin(key);
        directories.end(number, true);
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode(0o600)).unwrap();
        assert_eq!(heard(&mut directories, key), Some(Vec::new()));
        std::fs::set_permissions(dir.path(), mode(0o700)).unwrap();
        assert_eq!(heard(&mut directories, key), None);
    }

    #[test]
    fn more_than_can_be_remembered_is_not_known() {
        let (dir, mut directories, key) = watched();
        for number in 0..=MOST_NAMES {
            std::fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(heard(&mut directories, key), None);
        let number = directories.begin(key);
        directories.end(number, true);
        note(&mut directories.watched, -1, ReadFlags::QUEUE_OVERFLOW, None);
        assert_eq!(directories.changed(key), None, "the kernel's queue ran over");
    }

    #[test]
    fn a_directory_that_is_moved_or_gone_is_not_known() {
        let outer = tempfile::tempdir().unwrap();
        let (one, other) = (outer.path().join("one"), outer.path().join("other"));
        std::fs::create_dir(&one).unwrap();
        let descriptor = OwnedFd::from(std::fs::File::open(&one).unwrap());
        let mut directories = Directories::default();
        let key = of(&descriptor);
        directories.watch(key, &descriptor);
        std::fs::rename(&one, &other).unwrap();
        assert_eq!(heard(&mut directories, key), None);
        let number = directories.begin(key);
        directories.end(number, true);
        assert_eq!(heard(&mut directories, key), Some(Vec::new()));
        std::fs::remove_dir(&other).unwrap();
        drop(descriptor);
        assert_eq!(heard(&mut directories, key), None);
        assert!(directories.watched.is_empty());
    }
}
