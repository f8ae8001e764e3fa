//! A log that its owner removes: what keeps it, which states a crash on the way leaves, and who opens it meanwhile.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::memory_dir;
use untorn::testing::storage::forward;
use untorn::testing::storage::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, Names,
    PageCache, PageCacheFile, Stamp,
};
use untorn::write_cache::{CacheOptions, CachedFile, Descriptor, Kernel, WriteCache};
use untorn::{Error, Result};

fn options() -> CacheOptions {
    CacheOptions::new().size(1 << 20).max_files(16).background(false).spill_from(4096)
}

/// A log in a directory of untorn's own.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { dir: memory_dir() };
        fs::create_dir(place.hidden()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn hidden(&self) -> PathBuf {
        self.path(".untorn")
    }

    fn log(&self) -> PathBuf {
        self.path(".untorn/log")
    }

    fn spill(&self) -> PathBuf {
        self.path(".untorn/log.spill")
    }
}

fn attach(cache: &WriteCache, path: &Path) -> CachedFile {
    let plain = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    cache.attach_atomic(Arc::new(Descriptor::new(plain.into(), path).unwrap()), path).unwrap()
}

/// Opens the log, or creates it, as a server does. Other servers may be at their ends.
fn open(log: &Path) -> WriteCache {
    let is = |error: &Error, kind| matches!(error, Error::Io { source, .. } if source.kind() == kind);
    loop {
        let opened = match options().open(log) {
            Err(error) if is(&error, ErrorKind::NotFound) => {
                let _ = fs::create_dir(log.parent().unwrap());
                options().create(log)
            }
            opened => opened,
        };
        match opened {
            Err(Error::InUse { .. }) => thread::yield_now(),
            Err(error) if is(&error, ErrorKind::NotFound) || is(&error, ErrorKind::AlreadyExists) => {}
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn a_log_goes_once_nothing_needs_it() {
    let place = Place::new();
    let cache = open(&place.log());
    let file = attach(&cache, &place.path("file"));
    file.write_at(&[7; 10_000], 0).unwrap();
    assert!(!cache.remove().unwrap(), "it has an open epoch");
    file.commit().unwrap();
    drop(file);
    assert!(!cache.remove().unwrap(), "it has a commit that the file lacks");
    cache.drain().unwrap();
    let file = attach(&cache, &place.path("file"));
    assert!(!cache.remove().unwrap(), "a file is attached");
    assert!(place.log().exists() && place.spill().exists());
    drop(file);
    assert!(cache.remove().unwrap());
    assert!(!place.hidden().exists());
    assert_eq!(fs::read(place.path("file")).unwrap(), [7; 10_000]);
    let plain =
        Arc::new(Descriptor::new(File::create(place.path("other")).unwrap().into(), &place.path("other")).unwrap());
    let refused = cache.attach_atomic(plain, &place.path("other")).map(drop);
    assert!(matches!(&refused, Err(Error::Poisoned { cause, .. }) if cause.contains("removed")), "{refused:?}");
    assert!(matches!(cache.remove(), Err(Error::Poisoned { .. })));
    // The names are the next one's, whose spill file stays when this handle goes.
    let next = open(&place.log());
    let file = attach(&next, &place.path("file"));
    file.write_at(&[8; 10_000], 0).unwrap();
    drop(cache);
    assert!(place.log().exists() && place.spill().exists());
    file.commit().unwrap();
    drop((file, next));
    drop(open(&place.log()));
    assert_eq!(fs::read(place.path("file")).unwrap(), [8; 10_000]);
}

#[test]
fn a_log_that_lost_its_name_to_another_file_removes_nothing() {
    let place = Place::new();
    let cache = open(&place.log());
    fs::rename(place.log(), place.path("away")).unwrap();
    assert!(!cache.remove().unwrap());
    fs::write(place.log(), "another").unwrap();
    assert!(!cache.remove().unwrap());
    assert_eq!(fs::read(place.log()).unwrap(), b"another");
    fs::rename(place.path("away"), place.log()).unwrap();
    // Somebody else's file keeps the directory.
    fs::write(place.path(".untorn/1"), "").unwrap();
    assert!(cache.remove().unwrap());
    assert!(!place.log().exists() && place.hidden().exists());
}

/// Each set of names that a crash at any moment of the removal may leave, the power cut included.
#[test]
fn whatever_a_crash_leaves_of_the_names_the_next_session_begins() {
    let place = Place::new();
    let cache = open(&place.log());
    let file = attach(&cache, &place.path("file"));
    file.write_at(&[1; 10_000], 0).unwrap();
    // Of the spill file as it is with bytes in it.
    let spill = fs::read(place.spill()).unwrap();
    assert!(!spill.is_empty());
    file.commit().unwrap();
    drop(file);
    cache.drain().unwrap();
    let log = fs::read(place.log()).unwrap();
    assert!(cache.remove().unwrap());
    for (with_directory, with_log, with_spill) in
        [(true, true, true), (true, true, false), (true, false, true), (true, false, false), (false, false, false)]
    {
        if with_directory {
            fs::create_dir(place.hidden()).unwrap();
        }
        for (path, bytes) in [(place.log(), with_log.then_some(&log)), (place.spill(), with_spill.then_some(&spill))] {
            if let Some(bytes) = bytes {
                fs::write(path, bytes).unwrap();
            }
        }
        // Another program has changed the file since.
        File::options().write(true).open(place.path("file")).unwrap().write_all_at(b"later", 100).unwrap();
        let next = open(&place.log());
        assert_eq!(next.replayed().operations, 0);
        let file = attach(&next, &place.path("file"));
        file.write_at(&[2; 9000], 1000).unwrap();
        file.commit().unwrap();
        drop(file);
        next.drain().unwrap();
        let bytes = fs::read(place.path("file")).unwrap();
        assert!(&bytes[100..105] == b"later" && bytes[1000..] == [2; 9000]);
        assert!(next.remove().unwrap() && !place.hidden().exists());
    }
}

#[test]
fn of_owners_that_remove_and_create_a_log_one_has_it_at_a_time() {
    let place = Place::new();
    let rounds = untorn_testing::cases(20, 5000);
    thread::scope(|scope| {
        for number in 0..3_u8 {
            let (log, path) = (place.log(), place.path(&format!("file{number}")));
            scope.spawn(move || {
                for round in 0..rounds as u64 {
                    let cache = open(&log);
                    // Nobody but its owner removes a log, so the name stays while this one has it.
                    let there = fs::metadata(&log).unwrap().ino();
                    let file = attach(&cache, &path);
                    file.write_at(&round.to_le_bytes(), 0).unwrap();
                    file.commit().unwrap();
                    assert_eq!(fs::metadata(&log).unwrap().ino(), there, "two owners at a time");
                    drop(file);
                    if round % 3 > 0 {
                        cache.drain().unwrap();
                        assert!(cache.remove().unwrap());
                    }
                }
            });
        }
    });
    drop(open(&place.log()));
    for number in 0..3 {
        let bytes = fs::read(place.path(&format!("file{number}"))).unwrap();
        assert_eq!(bytes, (rounds as u64 - 1).to_le_bytes());
    }
}

#[test]
fn a_log_in_a_directory_by_another_name_leaves_nothing_there() {
    let place = Place::new();
    fs::rename(place.hidden(), place.path("elsewhere")).unwrap();
    symlink(place.path("elsewhere"), place.hidden()).unwrap();
    let refused = options().create(place.log()).map(drop);
    assert!(matches!(&refused, Err(Error::Untrusted { .. })), "{refused:?}");
    assert_eq!(fs::read_dir(place.path("elsewhere")).unwrap().count(), 0);
}

type Owner = Arc<Mutex<Option<WriteCache>>>;

/// A medium on which the owner of a log removes it just before somebody else locks it.
struct Late {
    medium: PageCache,
    owner: Owner,
    /// Whether another process makes a new one at once.
    replaced: bool,
}

struct LateFile {
    file: PageCacheFile,
    path: PathBuf,
    owner: Owner,
    replaced: bool,
}

impl Late {
    fn file(&self, path: &Path, file: PageCacheFile) -> LateFile {
        LateFile { file, path: path.to_owned(), owner: self.owner.clone(), replaced: self.replaced }
    }
}

impl Medium for Late {
    type File = LateFile;

    forward!(medium: class, order, unique, now, booted, relax);

    fn names(&self) -> &dyn Names {
        self.medium.names()
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<LateFile> {
        self.medium.open(path, access, reserve).map(|file| self.file(path, file))
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&LateFile>) -> Result<LateFile> {
        let made = self.medium.create_new(path, len, reserve, like.map(|like| &like.file));
        made.map(|file| self.file(path, file))
    }

    fn fence(&self, barrier: Barrier, files: &[&LateFile]) -> Result<()> {
        let files: Vec<&PageCacheFile> = files.iter().map(|file| &file.file).collect();
        self.medium.fence(barrier, &files)
    }
}

impl MediumFile for LateFile {
    forward!(file: len, identity, descriptor, stamp, mark, set_mark, read, write, store, flush);
    forward!(file: set_len, allocate, punch, sync, distrust_cache, commit_note, set_commit_note);

    fn try_lock(&self, kind: LockKind) -> Result<bool> {
        if let Some(owner) = self.owner.lock().unwrap().take() {
            assert!(owner.remove().unwrap());
            drop(owner);
            if self.replaced {
                drop(open(&self.path));
            }
        }
        self.file.try_lock(kind)
    }
}

#[test]
fn a_log_that_goes_before_it_is_locked_is_not_opened() {
    for replaced in [false, true] {
        let place = Place::new();
        let owner = Arc::new(Mutex::new(Some(open(&place.log()))));
        let late = Late { medium: PageCache::new(), owner, replaced };
        match options().open_on(late, Arc::new(Kernel), place.log()) {
            Err(Error::Io { source, .. }) => assert!(!replaced && source.kind() == ErrorKind::NotFound, "{source}"),
            Err(error) => panic!("{error}"),
            Ok(opened) => {
                assert!(replaced, "a log without a name was opened");
                // It is the one that has the name.
                let again = options().open(place.log()).map(drop);
                assert!(matches!(again, Err(Error::InUse { .. })), "{again:?}");
                drop(opened);
            }
        }
    }
}
