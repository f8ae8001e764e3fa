//! A store in a directory of a local file system.
//!
//! # Invariants
//!
//! 1. An object's bytes are durable before it has its name, so no reader finds half an object, also after a power cut.
//! 2. `link(2)` makes a name only if it is free: of several processes exactly one creates an object.
//! 3. An update compares and renames under the exclusive lock of the directory, so no other update comes in between.
//! 4. A name is durable before a write returns, also before it is refused because the name is taken: the process that
//!    took the name may have been killed before its own flush, and the caller relies on that object now.
//!
//! A deletion is not flushed. The protocol never uses a name again, so an object that a power cut brings back is
//! garbage, and nothing reads it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{Answer, Fetched, Listed, Put, Read, Store, StoreError, Tag};
use crate::format::{hex, sum_of};
use crate::random;

/// The file that updates are serialized by, and the directory of unfinished objects. No object has such a name.
const LOCK: &str = ".lock";
const UNFINISHED: &str = ".unfinished";

/// A store in a directory, which several processes of one machine may use. Network file systems are no place for it:
/// their locks and their caches give no such promises.
#[derive(Debug)]
pub struct DirectoryStore {
    root: PathBuf,
    url: String,
}

impl DirectoryStore {
    /// The store in a directory, which the first write creates if it is not there: who only looks makes nothing.
    pub fn new(root: &Path) -> Self {
        DirectoryStore { root: root.to_owned(), url: format!("file://{}", root.display()) }
    }

    fn path(&self, name: &str) -> Answer<PathBuf> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain);
        if name.split('/').all(is_part) {
            return Ok(self.root.join(name));
        }
        let cause = "it has a name that no object can have".to_owned();
        Err(StoreError { operation: "name", name: name.to_owned(), is_transient: false, cause })
    }

    /// Writes a durable file that has no name of an object yet.
    fn unfinished(&self, bytes: &[u8]) -> io::Result<Unfinished> {
        let directory = self.root.join(UNFINISHED);
        make_directories(&directory)?;
        let path = directory.join(hex(&random::<16>()?));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let unfinished = Unfinished(path);
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(unfinished)
    }
}

/// An unfinished object, whose file goes with it.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // It has no name of an object, so it harms nothing if it stays.
        let _ = fs::remove_file(&self.0);
    }
}

fn failed(operation: &'static str, name: &str) -> impl Fn(io::Error) -> StoreError {
    let name = name.to_owned();
    move |error| {
        let is_transient = matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock);
        StoreError { operation, name: name.clone(), is_transient, cause: error.to_string() }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates a directory and those above it. Each is durable in the one above it.
fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().ok_or(ErrorKind::NotFound)?;
    make_directories(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made?,
    }
    // Also if another process has just made it, which may not have flushed it yet.
    sync_directory(parent)
}

fn tag_of(bytes: &[u8]) -> Tag {
    Tag(hex(&sum_of(bytes)))
}

fn read(path: &Path) -> io::Result<Option<Fetched>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(Fetched { tag: tag_of(&bytes), bytes })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Store for DirectoryStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        read(&self.path(name)?).map_err(failed("read", name))
    }

    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read> {
        Ok(match self.get(name)? {
            None => Read::Missing,
            Some(found) if found.tag == *tag => Read::Unchanged,
            Some(found) => Read::Changed(found),
        })
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Answer<Put> {
        let path = self.path(name)?;
        let put = || {
            let parent = path.parent().unwrap_or(&self.root);
            make_directories(parent)?;
            let unfinished = self.unfinished(bytes)?;
            let linked = fs::hard_link(&unfinished.0, &path);
            match linked {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            // Invariant 4, both if this call made the name and if it found it.
            sync_directory(parent)?;
            Ok(if linked.is_ok() { Put::Stored(tag_of(bytes)) } else { Put::Refused })
        };
        put().map_err(failed("create", name))
    }

    fn update_if_match(&self, name: &str, bytes: &[u8], tag: &Tag) -> Answer<Put> {
        let path = self.path(name)?;
        let update = || {
            let parent = path.parent().unwrap_or(&self.root);
            // The bytes are durable before the lock is taken: others wait for a rename, not for a flush of data.
            let unfinished = self.unfinished(bytes)?;
            let mut options = OpenOptions::new();
            let lock = options.write(true).create(true).truncate(false).mode(0o600).open(self.root.join(LOCK))?;
            flock(&lock, FlockOperation::LockExclusive)?;
            let is_match = read(&path)?.is_some_and(|found| found.tag == *tag);
            if is_match {
                fs::rename(&unfinished.0, &path)?;
            }
            sync_directory(parent)?;
            // The lock goes with its file, and after the flush: the next update builds on a durable version.
            Ok(if is_match { Put::Stored(tag_of(bytes)) } else { Put::Refused })
        };
        update().map_err(failed("update", name))
    }

    fn delete(&self, name: &str) -> Answer<()> {
        match fs::remove_file(self.path(name)?) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("delete", name)(error)),
            _ => Ok(()),
        }
    }

    fn list(&self, prefix: &str) -> Answer<Vec<Listed>> {
        let mut found = Vec::new();
        let mut waiting = vec![(self.root.clone(), String::new())];
        while let Some((directory, above)) = waiting.pop() {
            let mut look = || -> io::Result<()> {
                let entries = match fs::read_dir(&directory) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                    entries => entries?,
                };
                for entry in entries {
                    let entry = entry?;
                    let part = entry.file_name().to_string_lossy().into_owned();
                    if part.starts_with('.') {
                        continue;
                    }
                    let name = format!("{above}{part}");
                    match entry.metadata() {
                        Ok(data) if data.is_dir() => waiting.push((entry.path(), format!("{name}/"))),
                        Ok(data) if name.starts_with(prefix) => found.push(Listed { name, len: data.len() }),
                        // It may have been deleted meanwhile.
                        _ => {}
                    }
                }
                Ok(())
            };
            look().map_err(failed("list", prefix))?;
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn store() -> (tempfile::TempDir, DirectoryStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = DirectoryStore::new(&dir.path().join("a/b"));
        (dir, store)
    }

    #[test]
    fn who_only_looks_creates_nothing() {
        let (dir, store) = store();
        assert!(store.get("owner").unwrap().is_none());
        assert_eq!(store.list("").unwrap(), []);
        store.delete("owner").unwrap();
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn an_object_is_created_once() {
        let (_dir, store) = store();
        assert!(matches!(store.put_if_absent("o/1/2", b"one").unwrap(), Put::Stored(_)));
        assert_eq!(store.put_if_absent("o/1/2", b"two").unwrap(), Put::Refused);
        assert_eq!(store.get("o/1/2").unwrap().unwrap().bytes, b"one");
        assert!(fs::read_dir(store.root.join(UNFINISHED)).unwrap().next().is_none());
    }

    #[test]
    fn an_update_needs_the_present_version() {
        let (_dir, store) = store();
        let Put::Stored(first) = store.put_if_absent("owner", b"1").unwrap() else { panic!("refused") };
        assert!(matches!(store.update_if_match("owner", b"2", &first).unwrap(), Put::Stored(_)));
        assert_eq!(store.update_if_match("owner", b"3", &first).unwrap(), Put::Refused);
        assert_eq!(store.update_if_match("nothing", b"3", &first).unwrap(), Put::Refused);
        assert_eq!(store.get("owner").unwrap().unwrap().bytes, b"2");
    }

    #[test]
    fn one_of_many_threads_wins_each_update() {
        let (_dir, store) = store();
        store.put_if_absent("owner", b"0").unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut won = 0;
                    while won < 10 {
                        let found = store.get("owner").unwrap().unwrap();
                        let next: u64 = str::from_utf8(&found.bytes).unwrap().parse::<u64>().unwrap() + 1;
                        let put = store.update_if_match("owner", next.to_string().as_bytes(), &found.tag).unwrap();
                        won += u64::from(put != Put::Refused);
                    }
                });
            }
        });
        assert_eq!(store.get("owner").unwrap().unwrap().bytes, b"40");
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        let (_dir, store) = store();
        for name in ["../x", "/x", "a//b", "", ".lock", "a/.b", "a/../b"] {
            assert!(store.get(name).is_err(), "{name}");
            assert!(store.put_if_absent(name, b"").is_err(), "{name}");
        }
    }

    #[test]
    fn a_listing_has_objects_only() {
        let (_dir, store) = store();
        for name in ["o/2/1", "o/1/1", "owner"] {
            store.put_if_absent(name, name.as_bytes()).unwrap();
        }
        let names = |prefix| store.list(prefix).unwrap().into_iter().map(|found| found.name).collect::<Vec<_>>();
        assert_eq!(names(""), ["o/1/1", "o/2/1", "owner"]);
        assert_eq!(names("o/"), ["o/1/1", "o/2/1"]);
        store.delete("o/1/1").unwrap();
        store.delete("o/1/1").unwrap();
        assert_eq!(names("o/"), ["o/2/1"]);
    }
}
