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
//! 5. Another user may have planted something in a directory that several may write to. Only regular files count that
//!    belong to this user, to root, or to the owner of the directory; a symbolic link, a FIFO or a device never does,
//!    and is not waited for.
//! 6. A directory that is gone is an error, and not an empty store: a disk that was taken out comes back. Only the
//!    record and a probe make it.
//!
//! A deletion is not flushed. The protocol never uses a name again, so an object that a power cut brings back is
//! garbage, and nothing reads it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;
use rustix::process::geteuid;

use super::meter::{Kind, Meter, Requests};
use super::{Answer, Fetched, Listed, Put, Read, Store, StoreError, Tag};
use crate::format::{LONGEST, OWNER, hex, sum_of};
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
    meter: Meter,
}

impl DirectoryStore {
    /// The store in a directory. If it is not there, the ownership record of a new replica and a probe create it; a
    /// reader, and a writer whose store is gone, create nothing.
    pub fn new(root: &Path) -> Self {
        let (url, meter) = (format!("file://{}", root.display()), Meter::default());
        DirectoryStore { root: root.to_owned(), url, meter }
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

    /// Whether a file or directory of the store is believed, by whom it belongs to.
    fn is_trusted(&self, found: &fs::Metadata) -> bool {
        let owner = || fs::metadata(&self.root).is_ok_and(|root| root.uid() == found.uid());
        found.uid() == geteuid().as_raw() || found.uid() == 0 || owner()
    }

    /// Opens a file of the store without waiting for a FIFO and without following a link.
    fn open(&self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        let file = options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file; remove it"));
        }
        if !self.is_trusted(&found) {
            let what = format!("it belongs to the user {}, who does not own the store; remove it", found.uid());
            return Err(io::Error::other(what));
        }
        Ok(file)
    }

    fn read(&self, path: &Path) -> io::Result<Option<Fetched>> {
        let file = match self.open(OpenOptions::new().read(true), path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        // A forged length allocates nothing.
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LONGEST {
            return Err(io::Error::other(format!("it has more than {LONGEST} bytes, which no object has")));
        }
        Ok(Some(Fetched { tag: tag_of(&bytes), bytes }))
    }

    /// # Errors
    /// If the directory of the store is gone.
    fn is_there(&self) -> io::Result<()> {
        if self.root.is_dir() {
            return Ok(());
        }
        let what = "the directory of the store is not there; is its disk mounted?";
        Err(io::Error::new(ErrorKind::NotFound, what))
    }

    /// Creates the directories above an object.
    fn make_parent(&self, name: &str, parent: &Path) -> io::Result<()> {
        if name == OWNER || name.starts_with("probe/") {
            make_directories(&self.root)?;
        }
        self.make_below(parent)
    }

    /// Creates a directory of the store and those above it, but never the store's own: that may go away at any moment.
    fn make_below(&self, path: &Path) -> io::Result<()> {
        if path == self.root {
            return self.is_there();
        }
        make_each(path, |parent| self.make_below(parent))
    }

    /// Writes a durable file that has no name of an object yet.
    fn unfinished(&self, bytes: &[u8]) -> io::Result<Unfinished> {
        let directory = self.root.join(UNFINISHED);
        self.make_below(&directory)?;
        let found = directory.symlink_metadata()?;
        if !found.is_dir() || !self.is_trusted(&found) {
            let what = format!("{} is no directory of the store's owner; remove it", directory.display());
            return Err(io::Error::other(what));
        }
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

/// The exclusive lock of a file.
struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    fn lock(file: &'a File) -> io::Result<Self> {
        retry_on_intr(|| flock(file, FlockOperation::LockExclusive))?;
        Ok(Locked(file))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // A process that another thread has forked meanwhile has the open file, too, and the lock would stay with it
        // when this descriptor is closed. This cannot fail: the descriptor is valid.
        let _ = flock(self.0, FlockOperation::Unlock);
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

/// Creates a directory and those above it.
fn make_directories(path: &Path) -> io::Result<()> {
    make_each(path, make_directories)
}

/// Creates a directory, once `above` has created the one above it, in which it is durable then.
fn make_each(path: &Path, above: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().ok_or(ErrorKind::NotFound)?;
    above(parent)?;
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

impl Store for DirectoryStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn requests(&self) -> Requests {
        self.meter.read()
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        self.meter.begin(Kind::Get, 0);
        let found = self.read(&self.path(name)?).map_err(failed("read", name))?;
        self.meter.receive(found.as_ref().map_or(0, |found| found.bytes.len()));
        // A reader that asks for anything else knows that there was a store.
        if found.is_none() && name != OWNER {
            self.is_there().map_err(failed("read", name))?;
        }
        Ok(found)
    }

    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read> {
        Ok(match self.get(name)? {
            // The caller knows that there was a store.
            None => self.is_there().map(|()| Read::Missing).map_err(failed("read", name))?,
            Some(found) if found.tag == *tag => Read::Unchanged,
            Some(found) => Read::Changed(found),
        })
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Answer<Put> {
        self.meter.begin(Kind::Put, bytes.len());
        let path = self.path(name)?;
        let put = || {
            let parent = path.parent().unwrap_or(&self.root);
            self.make_parent(name, parent)?;
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
        self.meter.begin(Kind::Put, bytes.len());
        let path = self.path(name)?;
        let update = || {
            self.is_there()?;
            let parent = path.parent().unwrap_or(&self.root);
            // The bytes are durable before the lock is taken: others wait for a rename, not for a flush of data.
            let unfinished = self.unfinished(bytes)?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let lock = self.open(&mut options, &self.root.join(LOCK))?;
            let _locked = Locked::lock(&lock)?;
            let is_match = self.read(&path)?.is_some_and(|found| found.tag == *tag);
            if is_match {
                fs::rename(&unfinished.0, &path)?;
            }
            sync_directory(parent)?;
            // The lock goes after the flush: the next update builds on a durable version.
            Ok(if is_match { Put::Stored(tag_of(bytes)) } else { Put::Refused })
        };
        update().map_err(failed("update", name))
    }

    fn delete(&self, name: &str) -> Answer<()> {
        self.meter.begin(Kind::Delete, 0);
        match fs::remove_file(self.path(name)?) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("delete", name)(error)),
            // An object of a store that is gone would come back with it.
            Err(_) if name != OWNER => self.is_there().map_err(failed("delete", name)),
            _ => Ok(()),
        }
    }

    fn list(&self, prefix: &str) -> Answer<Vec<Listed>> {
        self.meter.begin(Kind::List, 0);
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
        store.put_if_absent("owner", b"0").unwrap();
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
        for name in ["owner", "o/2/1", "o/1/1"] {
            store.put_if_absent(name, name.as_bytes()).unwrap();
        }
        let names = |prefix| store.list(prefix).unwrap().into_iter().map(|found| found.name).collect::<Vec<_>>();
        assert_eq!(names(""), ["o/1/1", "o/2/1", "owner"]);
        assert_eq!(names("o/"), ["o/1/1", "o/2/1"]);
        store.delete("o/1/1").unwrap();
        store.delete("o/1/1").unwrap();
        assert_eq!(names("o/"), ["o/2/1"]);
    }

    #[test]
    fn planted_links_and_pipes_are_refused_and_not_waited_for() {
        let (dir, store) = store();
        store.put_if_absent("owner", b"1").unwrap();
        fs::create_dir_all(store.root.join("o/1")).unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, b"secret").unwrap();
        std::os::unix::fs::symlink(&outside, store.root.join("o/1/1")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, store.root.join("o/1/2"), rustix::fs::Mode::RWXU).unwrap();
        fs::create_dir(store.root.join("o/1/3")).unwrap();
        let tag = Tag(String::new());
        for name in ["o/1/1", "o/1/2", "o/1/3"] {
            assert!(store.get(name).is_err(), "{name} was read");
            assert_eq!(store.put_if_absent(name, b"2").unwrap(), Put::Refused, "{name}");
            assert!(store.update_if_match(name, b"3", &tag).is_err(), "{name} was updated");
        }
        assert_eq!(fs::read(&outside).unwrap(), b"secret");
        // A lock and a directory of unfinished objects that lead elsewhere.
        let Put::Stored(tag) = store.put_if_absent("o/2/1", b"1").unwrap() else { panic!("refused") };
        fs::remove_file(store.root.join(LOCK)).unwrap();
        std::os::unix::fs::symlink(&outside, store.root.join(LOCK)).unwrap();
        assert!(store.update_if_match("o/2/1", b"2", &tag).is_err());
        fs::remove_dir(store.root.join(UNFINISHED)).unwrap();
        std::os::unix::fs::symlink(dir.path(), store.root.join(UNFINISHED)).unwrap();
        assert!(store.put_if_absent("o/2/2", b"1").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "something was written elsewhere");
    }

    #[test]
    fn objects_of_strangers_are_refused() {
        if !geteuid().is_root() {
            untorn_testing::skip!("giving a file to another user needs root");
        }
        let (_dir, store) = store();
        store.put_if_absent("owner", b"1").unwrap();
        let chown = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
        chown(&store.root.join("owner"), 4711);
        let refused = store.get("owner").unwrap_err();
        assert!(refused.to_string().contains("belongs to the user 4711"), "{refused}");
        // That user's own store.
        chown(&store.root, 4711);
        assert_eq!(store.get("owner").unwrap().unwrap().bytes, b"1");
        chown(&store.root.join(UNFINISHED), 4712);
        assert!(store.put_if_absent("o/1/1", b"1").is_err());
    }

    #[test]
    fn a_store_that_is_gone_is_an_error_and_not_made_anew() {
        let (dir, store) = store();
        let Put::Stored(tag) = store.put_if_absent("owner", b"1").unwrap() else { panic!("refused") };
        let away = dir.path().join("away");
        fs::rename(&store.root, &away).unwrap();
        assert!(store.get_if_changed("owner", &tag).is_err());
        assert!(store.put_if_absent("o/1/1", b"1").is_err());
        assert!(store.update_if_match("owner", b"2", &tag).is_err());
        assert!(store.get("o/1/1").is_err() && store.delete("o/1/1").is_err());
        // As if it went after the look that those calls begin with.
        assert!(store.unfinished(b"1").is_err() && store.make_below(&store.root.join("o/1")).is_err());
        assert!(!store.root.exists());
        fs::rename(&away, &store.root).unwrap();
        assert_eq!(store.get_if_changed("owner", &tag).unwrap(), Read::Unchanged);
    }
}
