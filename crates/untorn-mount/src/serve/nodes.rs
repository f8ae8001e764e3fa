//! The node table: what the kernel knows of the source, by number.
//!
//! # Invariants
//!
//! 1. A node owns an `O_PATH` descriptor, which pins its inode. So device and inode number mean this file for as long
//!    as the node exists, whatever happens to its names.
//! 2. A file has one node, whatever names it is found by.
//! 3. The table counts the answers that gave a node to the kernel, under one lock with the look by device and inode. A
//!    FORGET takes back as many as it says; the node goes with the last one. The root never goes.
//! 4. A number is used again only by the same inode number of the source. Its generation then differs.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::lock;

/// The number of the root.
pub(super) const ROOT: u64 = 1;
/// Numbers of files on other devices than the root's, and of those whose own number the root has.
const FOREIGN: u64 = 1 << 63;

/// Device and inode: no two files that exist have both.
pub(super) type Key = (u64, u64);

pub(super) fn key_of(status: &Stat) -> Key {
    (status.st_dev, status.st_ino)
}

/// A file of the source that the kernel may ask for.
pub(super) struct Node {
    pub(super) number: u64,
    pub(super) generation: u64,
    pub(super) key: Key,
    pub(super) kind: FileType,
    descriptor: OwnedFd,
    /// No mark of a sidecar was found on it, or the library settled the file.
    settled: AtomicBool,
    /// The name by which it was found last, and the number of that name's directory. The descriptor only knows the name
    /// that it was opened by.
    found_as: Mutex<Option<(u64, OsString)>>,
}

impl Node {
    pub(super) fn is_regular(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    pub(super) fn set_settled(&self) {
        self.settled.store(true, Ordering::Release);
    }

    pub(super) fn was_found_as(&self, parent: u64, name: &OsStr) {
        let mut found_as = lock(&self.found_as);
        if !found_as.as_ref().is_some_and(|(known, as_name)| *known == parent && as_name == name) {
            *found_as = Some((parent, name.to_owned()));
        }
    }

    pub(super) fn found_as(&self) -> Option<(u64, OsString)> {
        lock(&self.found_as).clone()
    }

    pub(super) fn status(&self) -> Result<Stat, Errno> {
        rustix::fs::fstat(&self.descriptor)
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The directory of this process's descriptors, by which a file is opened again without a path.
pub(super) struct Descriptors(OwnedFd);

impl Descriptors {
    /// # Errors
    /// Those of `open(2)`, where /proc is not mounted.
    pub(super) fn open() -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/proc/self/fd", flags, Mode::empty()).map(Descriptors)
    }

    /// Opens the file of a descriptor again.
    pub(super) fn reopen(&self, file: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        let name = number(file.as_fd());
        rustix::fs::openat(&self.0, name.as_str(), flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// The path of a descriptor's file; `None` if it has no name any more.
    pub(super) fn path(&self, file: impl AsFd) -> Result<Option<PathBuf>, Errno> {
        use std::os::unix::ffi::OsStringExt;
        let name = number(file.as_fd());
        let target = rustix::fs::readlinkat(&self.0, name.as_str(), Vec::new())?.into_bytes();
        let gone = target.ends_with(b" (deleted)") || !target.starts_with(b"/");
        Ok((!gone).then(|| PathBuf::from(std::ffi::OsString::from_vec(target))))
    }
}

impl AsFd for Descriptors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The name of a descriptor below [`Descriptors`].
pub(super) fn number(file: BorrowedFd<'_>) -> String {
    file.as_raw_fd().to_string()
}

struct Entry {
    node: Arc<Node>,
    /// Answers that gave it to the kernel, less those that the kernel gave back.
    lookups: u64,
}

#[derive(Default)]
struct Table {
    by_number: HashMap<u64, Entry>,
    by_key: HashMap<Key, u64>,
    generation: u64,
    foreign: u64,
}

/// All nodes.
pub(super) struct Nodes {
    device: u64,
    table: Mutex<Table>,
}

impl Nodes {
    /// The table of a source, with its root.
    pub(super) fn new(root: OwnedFd) -> Result<Self, Errno> {
        let status = rustix::fs::fstat(&root)?;
        let mut table = Table::default();
        insert(&mut table, ROOT, root, &status, 1);
        Ok(Nodes { device: status.st_dev, table: Mutex::new(table) })
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Node>, Errno> {
        lock(&self.table).by_number.get(&number).map(|entry| entry.node.clone()).ok_or(Errno::STALE)
    }

    /// The node of a file, if it has one.
    pub(super) fn find(&self, key: Key) -> Option<Arc<Node>> {
        let table = lock(&self.table);
        Some(table.by_number.get(table.by_key.get(&key)?)?.node.clone())
    }

    /// The node of a file, if it has one; counted once more.
    pub(super) fn count(&self, key: Key) -> Option<Arc<Node>> {
        let mut table = lock(&self.table);
        let number = *table.by_key.get(&key)?;
        let entry = table.by_number.get_mut(&number)?;
        entry.lookups += 1;
        Some(entry.node.clone())
    }

    /// The node of a file, made if it has none; counted once more.
    pub(super) fn remember(&self, descriptor: OwnedFd, status: &Stat) -> Arc<Node> {
        let key = key_of(status);
        let mut table = lock(&self.table);
        if let Some(entry) = table.by_key.get(&key).copied().and_then(|number| table.by_number.get_mut(&number)) {
            entry.lookups += 1;
            return entry.node.clone();
        }
        let own = key.0 == self.device && key.1 > ROOT && key.1 < FOREIGN;
        let number = if own {
            key.1
        } else {
            table.foreign += 1;
            FOREIGN | table.foreign
        };
        insert(&mut table, number, descriptor, status, 1)
    }

    /// The kernel gives answers back.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.by_number.get_mut(&number) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0 && number != ROOT {
            let key = entry.node.key;
            let gone = table.by_number.remove(&number);
            table.by_key.remove(&key);
            drop(table);
            // Closing the descriptor may free the inode, which takes long for a big file.
            drop(gone);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.table).by_number.len()
    }
}

fn insert(table: &mut Table, number: u64, descriptor: OwnedFd, status: &Stat, lookups: u64) -> Arc<Node> {
    table.generation += 1;
    let node = Arc::new(Node {
        number,
        generation: table.generation,
        key: key_of(status),
        kind: FileType::from_raw_mode(status.st_mode),
        descriptor,
        settled: AtomicBool::new(false),
        found_as: Mutex::default(),
    });
    table.by_key.insert(node.key, number);
    table.by_number.insert(number, Entry { node: node.clone(), lookups });
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> (OwnedFd, Stat) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        let status = rustix::fs::fstat(&descriptor).unwrap();
        (descriptor, status)
    }

    #[test]
    fn a_node_lives_until_the_kernel_gave_all_answers_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "1").unwrap();
        let nodes = Nodes::new(open(dir.path()).0).unwrap();
        let (descriptor, status) = open(&path);
        assert!(nodes.count(key_of(&status)).is_none());
        let node = nodes.remember(descriptor, &status);
        assert_eq!((node.number, node.is_regular()), (status.st_ino, true));
        let again = nodes.remember(open(&path).0, &status);
        assert!(Arc::ptr_eq(&node, &again) && nodes.count(node.key).is_some());
        nodes.forget(node.number, 2);
        assert!(nodes.get(node.number).is_ok());
        nodes.forget(node.number, 1);
        assert_eq!(nodes.get(node.number).err(), Some(Errno::STALE));
        assert!(nodes.count(node.key).is_none() && nodes.len() == 1);
        nodes.forget(ROOT, 1 << 40);
        assert!(nodes.get(ROOT).is_ok(), "the root stays");
        let later = nodes.remember(open(&path).0, &status);
        assert!(later.number == node.number && later.generation != node.generation);
    }

    #[test]
    fn a_removed_file_has_no_path_and_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("f");
        std::fs::write(&path, "bytes").unwrap();
        let descriptors = Descriptors::open().unwrap();
        let (descriptor, _) = open(&path);
        assert_eq!(descriptors.path(&descriptor), Ok(Some(path.clone())));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(descriptors.path(&descriptor), Ok(None));
        let again = descriptors.reopen(&descriptor, OFlags::RDONLY).unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(again)).unwrap(), "bytes");
    }
}
