//! The node table: what the kernel knows of the source, by number.
//!
//! # Invariants
//!
//! 1. A node owns an `O_PATH` descriptor, which pins its inode. So device and inode number mean this file for as long
//!    as the node is *open*, whatever happens to its names.
//! 2. A file has one node, whatever names it is found by.
//! 3. The table counts the answers that gave a node to the kernel, under one lock with the look by device and inode. A
//!    FORGET takes back as many as it says; the node goes with the last one. The root never goes.
//! 4. A number is used again only by the same inode number of the source. Its generation then differs.
//! 5. At most so many nodes are open, directories and those in use aside. A further one *closes* another that a look by
//!    its name finds at that moment. The next use opens it by that name, and only if the file there has its device,
//!    inode number and time of birth. Before the mount takes the name away, it opens the node ([`Nodes::hold`]).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::lock;
use super::pages::Kept;

/// The number of the root.
pub(super) const ROOT: u64 = 1;
/// Numbers of files on other devices than the root's, and of those whose own number the root has.
const FOREIGN: u64 = 1 << 63;

/// Nodes that are tried for one that is to be closed.
const TRIES: usize = 16;

/// Device and inode: no two files that exist have both.
pub(super) type Key = (u64, u64);

pub(super) fn key_of(status: &Stat) -> Key {
    (status.st_dev, status.st_ino)
}

/// Attributes that the kernel or the server asks for again and again, and that few files have.
#[derive(Clone, Copy)]
pub(super) enum Lack {
    /// `security.capability`: the kernel asks before the first write. A new file lacks it.
    Capability,
    /// `system.posix_acl_default` of a directory: the server asks before it makes a file there. The kernel has the
    /// directory locked then, as when a program sets the attribute.
    DefaultAcl,
    /// The mark of an atomic file ([`marks`](super::managed)): the server asks before the first writer.
    Mark,
}

const LACKS: usize = 3;

/// A file of the source that the kernel may ask for.
pub(super) struct Node {
    pub(super) number: u64,
    pub(super) generation: u64,
    pub(super) key: Key,
    pub(super) kind: FileType,
    descriptor: OwnedFd,
    /// A directory in which no name is found: see [`log`](super::log).
    sealed: AtomicBool,
    /// When its seal was looked at last, and the answer.
    pub(super) refusal: Mutex<Option<(Instant, Errno)>>,
    /// No mark of a sidecar was found on it, or the library settled the file.
    settled: AtomicBool,
    /// The pages that the kernel has of it.
    pub(super) kept: Kept,
    /// The error of the last write of the kernel that failed, until a program is told; 0 without one.
    unwritten: AtomicI32,
    /// Attributes that it did not have a moment ago.
    lacks: Mutex<[Option<Instant>; LACKS]>,
    /// The name by which it was found last, and the number of that name's directory. The descriptor only knows the name
    /// that it was opened by.
    found_as: Mutex<Option<(u64, OsString)>>,
}

impl Node {
    pub(super) fn is_regular(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    pub(super) fn set_sealed(&self, sealed: bool) {
        self.sealed.store(sealed, Ordering::Release);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    pub(super) fn set_settled(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// The kernel sent what a program had written, and it could not be written.
    pub(super) fn failed_to_write(&self, errno: Errno) {
        self.unwritten.store(errno.raw_os_error(), Ordering::Relaxed);
    }

    /// The error that the next write of a program is to be told.
    pub(super) fn take_unwritten(&self) -> Result<(), Errno> {
        match self.unwritten.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Whether it lacked an attribute at most so long ago.
    pub(super) fn lacks(&self, attribute: Lack, lifetime: Duration) -> bool {
        lock(&self.lacks)[attribute as usize].is_some_and(|since| since.elapsed() < lifetime)
    }

    /// It lacks an attribute now, or may have it from now on.
    pub(super) fn set_lacks(&self, attribute: Lack, lacks: bool) {
        lock(&self.lacks)[attribute as usize] = lacks.then(Instant::now);
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

    /// The rest of a node that is closed, if it can be opened again by a name in `parent`.
    fn to_close(&self, parent: &Node) -> Option<Closed> {
        let (number, name) = self.found_as().filter(|(number, _)| *number == parent.number)?;
        let birth = birth_of(&self.descriptor)?;
        let there = rustix::fs::statat(parent, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let (generation, is_settled) = (self.generation, self.is_settled());
        (key_of(&there) == self.key).then_some(Closed { generation, birth, is_settled, name: (number, name) })
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

/// A node without a descriptor.
struct Closed {
    generation: u64,
    birth: Birth,
    is_settled: bool,
    name: (u64, OsString),
}

type Birth = (i64, u32);

/// When a file was made; `None` where its file system does not know.
fn birth_of(file: &OwnedFd) -> Option<Birth> {
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    known.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}

enum State {
    Open(Arc<Node>),
    Closed(Closed),
}

struct Entry {
    key: Key,
    state: State,
    /// Answers that gave it to the kernel, less those that the kernel gave back.
    lookups: u64,
}

#[derive(Default)]
struct Table {
    by_number: HashMap<u64, Entry>,
    by_key: HashMap<Key, u64>,
    generation: u64,
    foreign: u64,
    /// How many are open, and how often one was opened.
    open: usize,
    opened: u64,
    /// Numbers of nodes that may be open, of which the next ones are closed.
    candidates: Vec<u64>,
    /// When to look for candidates again, as `opened` counts.
    next_look: u64,
}

/// All nodes.
pub(super) struct Nodes {
    device: u64,
    /// Nodes that are open at the same time, if possible.
    most: usize,
    table: Mutex<Table>,
    closed: AtomicUsize,
}

impl Nodes {
    /// The table of a source, with its root.
    pub(super) fn new(root: OwnedFd, most: usize) -> Result<Self, Errno> {
        let status = rustix::fs::fstat(&root)?;
        let mut table = Table::default();
        insert(&mut table, ROOT, root, &status, 1, None);
        Ok(Nodes { device: status.st_dev, most, table: Mutex::new(table), closed: AtomicUsize::new(0) })
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Node>, Errno> {
        let (parent, name) = match lock(&self.table).by_number.get(&number).ok_or(Errno::STALE)? {
            Entry { state: State::Open(node), .. } => return Ok(node.clone()),
            Entry { state: State::Closed(closed), .. } => closed.name.clone(),
        };
        // A directory is never closed.
        let parent = match lock(&self.table).by_number.get(&parent) {
            Some(Entry { state: State::Open(node), .. }) => node.clone(),
            _ => return Err(Errno::STALE),
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&*parent, &name, flags, Mode::empty());
        let descriptor = opened.map_err(|errno| if errno == Errno::NOENT { Errno::STALE } else { errno })?;
        let status = rustix::fs::fstat(&descriptor)?;
        let birth = birth_of(&descriptor);
        let mut table = lock(&self.table);
        let entry = table.by_number.get_mut(&number).ok_or(Errno::STALE)?;
        let closed = match &entry.state {
            State::Open(node) => return Ok(node.clone()),
            State::Closed(closed) => closed,
        };
        if key_of(&status) != entry.key || birth != Some(closed.birth) {
            return Err(Errno::STALE);
        }
        let node = Arc::new(Node {
            number,
            generation: closed.generation,
            key: entry.key,
            kind: FileType::from_raw_mode(status.st_mode),
            descriptor,
            sealed: AtomicBool::new(false),
            refusal: Mutex::default(),
            settled: AtomicBool::new(closed.is_settled),
            kept: Kept::default(),
            unwritten: AtomicI32::new(0),
            lacks: Mutex::default(),
            found_as: Mutex::new(Some(closed.name.clone())),
        });
        entry.state = State::Open(node.clone());
        self.closed.fetch_sub(1, Ordering::Relaxed);
        table.opened += 1;
        table.open += 1;
        self.make_room(&mut table);
        Ok(node)
    }

    /// Whether any node is closed.
    pub(super) fn has_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) > 0
    }

    /// Opens the node of a file, if it has one, whose name is about to go.
    pub(super) fn hold(&self, key: Key) -> Option<Arc<Node>> {
        let number = *lock(&self.table).by_key.get(&key)?;
        self.get(number).ok()
    }

    /// A file got a name.
    pub(super) fn was_named(&self, key: Key, parent: u64, name: &OsStr) {
        let mut table = lock(&self.table);
        let Some(number) = table.by_key.get(&key).copied() else { return };
        match table.by_number.get_mut(&number).map(|entry| &mut entry.state) {
            Some(State::Open(node)) => node.was_found_as(parent, name),
            Some(State::Closed(closed)) => closed.name = (parent, name.to_owned()),
            None => {}
        }
    }

    /// The node of a file, if it has one that is open; counted once more.
    pub(super) fn count(&self, key: Key) -> Option<Arc<Node>> {
        let mut table = lock(&self.table);
        let number = *table.by_key.get(&key)?;
        let entry = table.by_number.get_mut(&number)?;
        let State::Open(node) = &entry.state else { return None };
        entry.lookups += 1;
        Some(node.clone())
    }

    /// The node of a file, made if it has none; counted once more.
    pub(super) fn remember(&self, descriptor: OwnedFd, status: &Stat) -> Arc<Node> {
        let key = key_of(status);
        let mut table = lock(&self.table);
        let known = table.by_key.get(&key).copied();
        if let Some((number, entry)) = known.and_then(|number| Some((number, table.by_number.get_mut(&number)?))) {
            entry.lookups += 1;
            let closed = match &entry.state {
                State::Open(node) => return node.clone(),
                State::Closed(closed) => closed,
            };
            // Another file that has the inode number by now is another node, with a generation of its own.
            let same = birth_of(&descriptor) == Some(closed.birth);
            let before = same.then_some((closed.generation, closed.is_settled));
            let lookups = entry.lookups;
            self.closed.fetch_sub(1, Ordering::Relaxed);
            let node = insert(&mut table, number, descriptor, status, lookups, before);
            self.make_room(&mut table);
            return node;
        }
        let own = key.0 == self.device && key.1 > ROOT && key.1 < FOREIGN;
        let number = if own {
            key.1
        } else {
            table.foreign += 1;
            FOREIGN | table.foreign
        };
        let node = insert(&mut table, number, descriptor, status, 1, None);
        self.make_room(&mut table);
        node
    }

    /// Closes nodes while too many are open.
    fn make_room(&self, table: &mut Table) {
        for _ in 0..TRIES {
            if table.open <= self.most {
                return;
            }
            let Some(number) = table.candidates.pop() else {
                // Not for each node that finds all others in use.
                if table.opened >= table.next_look {
                    table.next_look = table.opened + 1 + self.most as u64 / 8;
                    table.candidates = table.by_number.keys().copied().collect();
                }
                if table.candidates.is_empty() {
                    return;
                }
                continue;
            };
            let Some(Entry { state: State::Open(node), .. }) = table.by_number.get(&number) else { continue };
            // Under the lock nobody else comes to use it.
            let is_idle = node.kind != FileType::Directory && Arc::strong_count(node) == 1;
            let parent = node.found_as().filter(|_| is_idle).and_then(|(parent, _)| table.by_number.get(&parent));
            let Some(Entry { state: State::Open(parent), .. }) = parent else { continue };
            let Some(closed) = node.to_close(parent) else { continue };
            if let Some(entry) = table.by_number.get_mut(&number) {
                entry.state = State::Closed(closed);
                table.open -= 1;
                self.closed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The kernel gives answers back.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        let mut table = lock(&self.table);
        let Some(entry) = table.by_number.get_mut(&number) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0 && number != ROOT {
            let key = entry.key;
            let gone = table.by_number.remove(&number);
            table.by_key.remove(&key);
            match gone {
                Some(Entry { state: State::Open(_), .. }) => table.open -= 1,
                _ => drop(self.closed.fetch_sub(1, Ordering::Relaxed)),
            }
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

/// Adds a node that is open; `before`: the generation that it had, and whether it was settled.
fn insert(
    table: &mut Table,
    number: u64,
    descriptor: OwnedFd,
    status: &Stat,
    lookups: u64,
    before: Option<(u64, bool)>,
) -> Arc<Node> {
    table.generation += 1;
    let (generation, is_settled) = before.unwrap_or((table.generation, false));
    let node = Arc::new(Node {
        number,
        generation,
        key: key_of(status),
        kind: FileType::from_raw_mode(status.st_mode),
        descriptor,
        sealed: AtomicBool::new(false),
        refusal: Mutex::default(),
        settled: AtomicBool::new(is_settled),
        kept: Kept::default(),
        unwritten: AtomicI32::new(0),
        lacks: Mutex::default(),
        found_as: Mutex::default(),
    });
    table.opened += 1;
    table.open += 1;
    table.by_key.insert(node.key, number);
    table.by_number.insert(number, Entry { key: node.key, state: State::Open(node.clone()), lookups });
    node
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

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
        let nodes = Nodes::new(open(dir.path()).0, 100).unwrap();
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
    fn a_closed_node_is_opened_as_the_same_file_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = Nodes::new(open(dir.path()).0, 8).unwrap();
        let paths: Vec<_> = (0..64).map(|number| dir.path().join(number.to_string())).collect();
        let find = |path: &std::path::Path| {
            let (descriptor, status) = open(path);
            let node = nodes.remember(descriptor, &status);
            node.was_found_as(ROOT, path.file_name().unwrap());
            node
        };
        let mut numbers = Vec::new();
        for path in &paths {
            std::fs::write(path, path.as_os_str().as_bytes()).unwrap();
            let node = find(path);
            node.set_settled();
            numbers.push((node.number, node.generation));
        }
        let open_nodes = || lock(&nodes.table).open;
        assert!(open_nodes() < 16 && nodes.len() == 65 && nodes.has_closed(), "{}", open_nodes());
        for (path, (number, generation)) in paths.iter().zip(&numbers) {
            let node = nodes.get(*number).unwrap();
            assert_eq!((node.generation, node.is_settled()), (*generation, true));
            assert_eq!(node.status().unwrap().st_size as usize, path.as_os_str().len());
        }
        // All that are in use stay open.
        let used: Vec<_> = numbers.iter().map(|(number, _)| nodes.get(*number).unwrap()).collect();
        assert_eq!(open_nodes(), 65);
        drop(used);
        for number in 64..80 {
            let path = dir.path().join(number.to_string());
            std::fs::write(&path, "").unwrap();
            find(&path);
        }
        assert!(open_nodes() < 16, "{}", open_nodes());
        let is_closed = |number: &u64| matches!(lock(&nodes.table).by_number[number].state, State::Closed(_));
        let place = numbers.iter().position(|(number, _)| is_closed(number)).unwrap();
        // Another name, of which the table hears; then one of which it does not.
        let (key, moved) = (nodes.get(numbers[place].0).unwrap().key, dir.path().join("moved"));
        let next = (place + 1..64).find(|place| is_closed(&numbers[*place].0)).unwrap();
        std::fs::rename(&paths[place], &moved).unwrap();
        nodes.was_named(key, ROOT, OsStr::new("moved"));
        assert!(nodes.get(numbers[place].0).is_ok());
        std::fs::rename(&paths[next], dir.path().join("unheard")).unwrap();
        std::fs::write(&paths[next], "another").unwrap();
        assert_eq!(nodes.get(numbers[next].0).err(), Some(Errno::STALE));
        assert_eq!(find(&dir.path().join("unheard")).generation, numbers[next].1, "the same file is the same node");
        nodes.forget(numbers[next].0, 100);
        assert!(nodes.get(numbers[next].0).is_err());
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
