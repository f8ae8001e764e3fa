//! Syncs of directories, which wait for no device where the log keeps all that changed there since the last one that
//! did.
//!
//! # Invariants
//!
//! 1. The kernel tells of each name that changes in a watched directory before the call that changes it returns
//!    (inotify(7)), whoever makes the call. A sync that is asked for afterwards therefore hears of it.
//! 2. A directory is watched before it is synced. Either all names are known that changed since, or it is known that
//!    others may have: more than are remembered, or than the kernel's queue holds; or the directory itself changed.
//! 3. The log is asked for each of these names whether a crash and a replay leave it as it is now
//!    ([`WriteCache::dir_is_durable`]). A name that the log does not know, as of a plain or removed file, makes the
//!    directory be synced.
//! 4. The outcome of a sync under way is unknown until it ends: until then other syncs of the directory are made, too.
//!    After one that failed nothing is known.
//!
//! [`WriteCache::dir_is_durable`]: untorn::write_cache::WriteCache::dir_is_durable

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::directories::Stream;
use super::nodes::{Key, number};
use super::{Server, lock};

/// Directories that are watched.
const MOST: usize = 64;
/// Names of one that are remembered.
const MOST_NAMES: usize = 64;

/// Changes of a directory since it was synced.
#[derive(Default)]
struct Changes {
    names: BTreeSet<OsString>,
    /// Perhaps more than these.
    unknown: bool,
}

struct Directory {
    watch: i32,
    changes: Changes,
    /// Syncs of it that are under way.
    syncing: usize,
}

/// Directories that were synced.
#[derive(Default)]
pub(super) struct DirSyncs {
    /// `None` before the first, and where there is none to be had.
    inotify: Option<OwnedFd>,
    watched: HashMap<Key, Directory>,
}

impl DirSyncs {
    /// Watches a directory. If that is not possible, each sync of it is made.
    fn watch(&mut self, key: Key, directory: BorrowedFd<'_>) {
        if self.watched.len() >= MOST && self.watched.values().all(|directory| directory.syncing == 0) {
            // The watches go with it.
            *self = DirSyncs::default();
        }
        let new = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        let Some(inotify) = self.inotify.take().or_else(new) else { return };
        // By its descriptor: another directory may have its name by now.
        let link = format!("/proc/self/fd/{}", number(directory));
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        let itself = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR;
        if let Ok(watch) = inotify::add_watch(&inotify, link, names | itself) {
            self.watched.insert(key, Directory { watch, changes: Changes::default(), syncing: 0 });
        }
        self.inotify = Some(inotify);
    }

    /// Hears all that the kernel has to tell by now.
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
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return,
                Err(_) => return self.watched.values_mut().for_each(|directory| directory.changes.unknown = true),
            }
        }
    }

    /// Names to ask the log for; `None` if the directory has to be synced in any case.
    fn changed(&self, key: Key) -> Option<Vec<OsString>> {
        let directory = self.watched.get(&key).filter(|directory| directory.syncing == 0)?;
        (!directory.changes.unknown).then(|| directory.changes.names.iter().cloned().collect())
    }

    /// A sync begins, which is to make all changes so far durable.
    fn begin(&mut self, key: Key) {
        if let Some(directory) = self.watched.get_mut(&key) {
            directory.changes = Changes::default();
            directory.syncing += 1;
        }
    }

    /// It ended.
    fn end(&mut self, key: Key, done: bool) {
        // A directory that was removed meanwhile is watched no more.
        if let Some(directory) = self.watched.get_mut(&key) {
            directory.syncing = directory.syncing.saturating_sub(1);
            directory.changes.unknown |= !done;
        }
    }
}

/// The kernel tells of a change in a directory.
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

impl Server {
    /// Makes the names in a directory durable.
    pub(super) fn sync_directory(&self, stream: &Stream) -> Result<(), Errno> {
        let key = stream.node.key;
        let changed = {
            let mut syncs = lock(&self.dir_syncs);
            syncs.hear();
            if !syncs.watched.contains_key(&key) {
                syncs.watch(key, stream.node.as_fd());
                None
            } else {
                syncs.changed(key)
            }
        };
        // Without the lock, because it may flush the log.
        if let Some(names) = changed
            && let Some(path) = self.descriptors.path(&*stream.node)?
            && self.managing.keeps_names(&path, &names)
        {
            return Ok(());
        }
        lock(&self.dir_syncs).begin(key);
        let synced = stream.sync();
        lock(&self.dir_syncs).end(key, synced.is_ok());
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is watched, and its key.
    fn watched(dir: &std::path::Path) -> (DirSyncs, Key) {
        let descriptor = OwnedFd::from(std::fs::File::open(dir).unwrap());
        let key = super::super::nodes::key_of(&rustix::fs::fstat(&descriptor).unwrap());
        let mut syncs = DirSyncs::default();
        syncs.watch(key, descriptor.as_fd());
        (syncs, key)
    }

    fn heard(syncs: &mut DirSyncs, key: Key) -> Option<Vec<OsString>> {
        syncs.hear();
        syncs.changed(key)
    }

    #[test]
    fn names_that_change_are_heard_of_until_a_sync_begins() {
        let dir = tempfile::tempdir().unwrap();
        let (mut syncs, key) = watched(dir.path());
        assert_eq!(heard(&mut syncs, key), Some(Vec::new()));
        let path = |name| dir.path().join(name);
        std::fs::write(path("a"), "1").unwrap();
        std::fs::write(path("a"), "2").unwrap();
        std::fs::rename(path("a"), path("b")).unwrap();
        std::fs::create_dir(path("c")).unwrap();
        std::fs::remove_file(path("b")).unwrap();
        assert_eq!(heard(&mut syncs, key), Some(["a", "b", "c"].map(OsString::from).to_vec()));
        syncs.begin(key);
        std::fs::write(path("d"), "1").unwrap();
        assert_eq!(heard(&mut syncs, key), None, "a sync is under way");
        syncs.begin(key);
        syncs.end(key, true);
        assert_eq!(heard(&mut syncs, key), None, "the other is under way");
        syncs.end(key, true);
        std::fs::write(path("e"), "1").unwrap();
        assert_eq!(heard(&mut syncs, key), Some(vec!["e".into()]));
        syncs.begin(key);
        syncs.end(key, false);
        assert_eq!(heard(&mut syncs, key), None, "a failed sync leaves nothing known");
    }

    #[test]
    fn a_chmod_or_a_move_of_the_directory_counts() {
        use std::os::unix::fs::PermissionsExt;
        let outer = tempfile::tempdir().unwrap();
        let (one, other) = (outer.path().join("one"), outer.path().join("other"));
        std::fs::create_dir(&one).unwrap();
        std::fs::write(one.join("a"), "1").unwrap();
        let (mut syncs, key) = watched(&one);
        std::fs::set_permissions(one.join("a"), PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(heard(&mut syncs, key), Some(Vec::new()));
        std::fs::set_permissions(&one, PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(heard(&mut syncs, key), None);
        syncs.begin(key);
        syncs.end(key, true);
        std::fs::rename(&one, &other).unwrap();
        assert_eq!(heard(&mut syncs, key), None);
        std::fs::remove_dir_all(&other).unwrap();
        // A child that another test is just starting may hold a descriptor of the directory, and with it the watch.
        for _ in 0..1000 {
            syncs.hear();
            if syncs.watched.is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("the removed directory is still watched");
    }

    #[test]
    fn more_than_can_be_remembered_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let (mut syncs, key) = watched(dir.path());
        for number in 0..=MOST_NAMES {
            std::fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(heard(&mut syncs, key), None);
        syncs.begin(key);
        syncs.end(key, true);
        note(&mut syncs.watched, -1, ReadFlags::QUEUE_OVERFLOW, None);
        assert_eq!(syncs.changed(key), None, "the kernel's queue ran over");
    }
}
