//! Renames of files with a log, announced and done, or not.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use untorn::write_cache::{BackingFile, Descriptor};
use untorn_wire::PLAIN;

use super::{Place, at, await_that};
use crate::files::Key;

impl Place {
    /// Has a rename announced, of this file to a name beside it.
    fn announce(&self, key: Key, name: &str) -> bool {
        let directory = OwnedFd::from(File::open(self.path().parent().unwrap()).unwrap());
        self.boost.about_to_be_moved(key, &directory, name.as_bytes()).unwrap()
    }

    /// A file of that name that is boosted, with a write that is in the log.
    fn boosted_as(&self, name: &str, bytes: &[u8]) -> (OwnedFd, Key) {
        let path = self.path().with_file_name(name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        let (status, file) = (file.metadata().unwrap(), OwnedFd::from(file));
        await_that(|| self.boost.opened(&file).unwrap());
        assert_eq!(self.boost.write(&file, at(0), bytes), Ok(bytes.len() as u64));
        (file, (status.dev(), status.ino()))
    }

    fn tells_files_apart(&self) -> bool {
        let path = self.path().with_file_name("probe");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let identity = Descriptor::new(file.into(), &path).unwrap().identity().unwrap();
        fs::remove_file(path).unwrap();
        identity.generation != 0 && identity.birth != 0
    }

    fn demoted(&self) -> Vec<String> {
        self.boost.ledger.report().demoted.into_iter().map(|(entry, _)| entry.why).collect()
    }
}

#[test]
fn a_renamed_file_stays_boosted_under_its_new_name() {
    let place = Place::new();
    if !place.tells_files_apart() {
        untorn_testing::skipped!("renames, on a file system whose files have no generation or no birth time");
        return;
    }
    let (over, target) = place.boosted_as("g", b"old");
    let (file, key) = place.boosted();
    assert!(place.announce(key, "g"));
    let to = place.path().with_file_name("g");
    fs::rename(place.path(), &to).unwrap();
    assert_eq!(place.boost.was_moved(key, true), Ok(()));
    assert_eq!(place.boost.write(&file, at(7), b" more"), Ok(5));
    assert_eq!(place.demoted(), [""; 0]);
    // What was replaced is open still, and a write to it is as good as any.
    assert_eq!(place.boost.write(&over, at(0), b"gone"), Ok(4));
    place.close(file, key);
    let mut again = None;
    await_that(|| {
        again = place.reopen(key);
        again.is_some()
    });
    drop((again, over));
    assert_eq!(place.boost.descriptor_closed(target), Ok(()));
    // A crash may leave it where it was.
    fs::rename(&to, place.path()).unwrap();
    let (dir, replay) = place.crash();
    assert!(replay.is_complete(), "{replay:?}");
    assert_eq!(fs::read(dir.path().join("files/g")).unwrap(), b"written more");
    assert!(!dir.path().join("files/f").exists());
}

#[test]
fn a_rename_that_failed_changes_nothing() {
    let place = Place::new();
    if !place.tells_files_apart() {
        return;
    }
    let (over, target) = place.boosted_as("g", b"old");
    let (file, key) = place.boosted();
    assert!(place.announce(key, "g"));
    assert_eq!(place.boost.was_moved(key, false), Ok(()));
    place.boost.process_ended();
    assert_eq!(place.demoted(), [""; 0]);
    assert_eq!(place.boost.write(&file, at(0), b"W"), Ok(1));
    assert_eq!(place.boost.write(&over, at(0), b"O"), Ok(1));
    assert!(place.boost.find(target).is_some());
    drop((file, over));
    let (dir, replay) = place.crash();
    assert!(replay.is_complete(), "{replay:?}");
    let content = |name: &str| fs::read(dir.path().join("files").join(name)).unwrap();
    assert_eq!((content("f"), content("g")), (b"Written".to_vec(), b"Old".to_vec()));
}

/// Who announced it died: the file has the new name, or it is a plain one with the old.
#[test]
fn a_rename_of_a_process_that_died_is_looked_for() {
    for done in [true, false] {
        let place = Place::new();
        if !place.tells_files_apart() {
            return;
        }
        let (_over, target) = place.boosted_as("g", b"old");
        let (file, key) = place.boosted();
        assert!(place.announce(key, "g"));
        if done {
            fs::rename(place.path(), place.path().with_file_name("g")).unwrap();
        }
        place.boost.process_ended();
        let written = place.boost.write(&file, at(0), b"W");
        let demoted = place.demoted();
        if done {
            assert_eq!((written, demoted), (Ok(1), vec![]));
        } else {
            assert_eq!(written, Err(PLAIN));
            assert!(demoted.contains(&"rename did not happen".to_owned()), "{demoted:?}");
            assert!(place.boost.find(target).is_none(), "what was to be replaced is a plain one too");
        }
        // The name is free for the next one.
        let (_other, key) = place.boosted_as("other", b"other");
        assert!(place.announce(key, "g"));
        assert_eq!(place.boost.was_moved(key, false), Ok(()));
    }
}

/// The log counts renames to one name in the order in which the kernel does them.
#[test]
fn renames_to_one_name_wait_for_each_other() {
    let place = Place::new();
    if !place.tells_files_apart() {
        return;
    }
    let (one, first) = place.boosted_as("one", b"first");
    let (two, second) = place.boosted_as("two", b"second");
    assert!(place.announce(first, "g"));
    let announced = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(place.announce(second, "g"));
            announced.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!announced.load(Ordering::SeqCst));
        fs::rename(place.path().with_file_name("one"), place.path().with_file_name("g")).unwrap();
        assert_eq!(place.boost.was_moved(first, true), Ok(()));
    });
    fs::rename(place.path().with_file_name("two"), place.path().with_file_name("g")).unwrap();
    assert_eq!(place.boost.was_moved(second, true), Ok(()));
    drop((one, two));
    let (dir, replay) = place.crash();
    assert!(replay.is_complete(), "{replay:?}");
    assert_eq!(fs::read(dir.path().join("files/g")).unwrap(), b"second");
}

#[test]
fn renaming_an_unlogged_file_leaves_it_to_the_kernel() {
    let place = Place::new();
    let file = File::options().read(true).write(true).create(true).truncate(false).open(place.path()).unwrap();
    let (status, file) = (file.metadata().unwrap(), OwnedFd::from(file));
    await_that(|| place.boost.opened(&file).unwrap());
    assert!(!place.announce((status.dev(), status.ino()), "g"));
    assert_eq!(place.demoted(), ["rename"]);
}
