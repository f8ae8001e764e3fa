//! New files behind a log: none of them waits for its name to be durable, and a replay makes those again that a crash
//! took.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::machine::Machine;
use crate::common::shelf::{pmem, small};
use untorn::testing::storage::{Barrier, Identity};
use untorn::write_cache::{BackingDir, BackingFile, CreateAttrs, Kernel, Named};
use untorn::write_cache::{CachedFile, ReplayOutcome};
use untorn::{Error, Result};

/// A machine with one directory, on a file system that tells its files apart.
fn new_machine() -> Option<Machine> {
    Machine::new("new files", 32, &[])
}

impl Machine {
    /// A new file of the permissions 0640.
    fn create(&self, name: &str) -> CachedFile {
        let file = self.open_new(name);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o640)).unwrap();
        self.attach(file, name)
    }

    fn names(&self) -> Vec<String> {
        crate::common::names(&self.path(""))
    }
}

/// A machine on which no file gets another name.
struct Blocked(Kernel);

impl BackingDir for Blocked {
    fn open(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        self.0.open(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.0.exists(path)
    }

    fn named(&self, path: &Path) -> Result<Named> {
        self.0.named(path)
    }

    fn candidates(&self, dir: &Path, inode: u64) -> Result<Vec<OsString>> {
        self.0.candidates(dir, inode)
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        self.0.names(dir)
    }

    fn directory(&self, dir: &Path) -> Result<Option<Identity>> {
        self.0.directory(dir)
    }

    fn make(&self, path: &Path, like: &CreateAttrs) -> Result<Arc<dyn BackingFile>> {
        self.0.make(path, like)
    }

    fn rename(&self, from: &Path, _: &Path) -> Result<()> {
        Err(Error::Io {
            operation: "rename",
            path: from.to_owned(),
            offset: None,
            source: ErrorKind::PermissionDenied.into(),
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.remove(path)
    }

    fn sync_dir(&self, barrier: Barrier, dir: &Path) -> Result<()> {
        self.0.sync_dir(barrier, dir)
    }
}

fn remove(name: &'static str) -> impl FnOnce(&Machine) {
    move |machine| fs::remove_file(machine.path(name)).unwrap()
}

#[test]
fn a_new_file_that_a_crash_took_is_made_again() {
    let Some(mut machine) = new_machine() else { return };
    let file = machine.create("new");
    file.write_at(b"a beginning", 0).unwrap();
    file.append(b", more").unwrap();
    file.set_len(15).unwrap();
    file.write_at(b"A", 0).unwrap();
    drop(file);
    let replay = machine.crash(remove("new"));
    assert_eq!(replay.files[0].fate, ReplayOutcome::Replayed, "{replay:?}");
    assert_eq!(fs::read(machine.path("new")).unwrap(), b"A beginning, mo");
    let made = fs::metadata(machine.path("new")).unwrap();
    assert_eq!(made.permissions().mode() & 0o7777, 0o640);
    assert_eq!(machine.names(), ["new"]);
    assert_eq!(machine.replay().operations, 0, "nothing is left to do");
}

/// It begins with nothing in it, whatever of it the crash left.
#[test]
fn a_new_file_that_is_found_has_what_the_log_has() {
    let Some(mut machine) = new_machine() else { return };
    machine.create("new").write_at(b"new", 0).unwrap();
    let replay = machine.crash(|machine| fs::write(machine.path("new"), b"of an older life, truncated").unwrap());
    assert_eq!(replay.files[0].fate, ReplayOutcome::Replayed, "{replay:?}");
    assert_eq!(fs::read(machine.path("new")).unwrap(), b"new");
}

/// Once the tail has passed something of it the log could not make it again whole, and does not try.
#[test]
fn a_file_that_was_drained_is_not_made_again() {
    let Some(mut machine) = new_machine() else { return };
    let file = machine.create("new");
    file.write_at(b"drained", 0).unwrap();
    machine.cache().drain().unwrap();
    file.write_at(b"later", 0).unwrap();
    drop(file);
    let replay = machine.crash(remove("new"));
    assert!(matches!(replay.files[0].fate, ReplayOutcome::Missing(_)), "{replay:?}");
    assert_eq!(machine.names(), [""; 0]);
}

/// One that had something in it when the log came is found, or missed.
#[test]
fn a_file_that_is_not_new_is_not_made_again() {
    let Some(mut machine) = new_machine() else { return };
    let file = machine.open_new("old");
    file.write(0, b"before").unwrap();
    let file = machine.attach(file, "old");
    file.write_at(b"AFTER", 1).unwrap();
    drop(file);
    let replay = machine.crash(remove("old"));
    assert!(matches!(replay.files[0].fate, ReplayOutcome::Missing(_)), "{replay:?}");
}

/// Nor one that has more to it than a replay could give it.
#[test]
fn a_file_with_another_name_or_attributes_is_not_made_again() {
    let Some(mut machine) = new_machine() else { return };
    let linked = machine.open_new("linked");
    fs::hard_link(machine.path("linked"), machine.path("other")).unwrap();
    let linked = machine.attach(linked, "linked");
    let marked = machine.open_new("marked");
    let path = machine.path("marked");
    let marks = rustix::fs::setxattr(&path, "user.note", b"1", rustix::fs::XattrFlags::empty()).is_ok();
    let marked = machine.attach(marked, "marked");
    linked.write_at(b"1", 0).unwrap();
    marked.write_at(b"2", 0).unwrap();
    drop((linked, marked));
    let replay = machine.crash(|machine| {
        for name in ["linked", "other", "marked"] {
            fs::remove_file(machine.path(name)).unwrap();
        }
    });
    assert!(matches!(replay.files[0].fate, ReplayOutcome::Missing(_)), "{replay:?}");
    assert!(matches!(replay.files[1].fate, ReplayOutcome::Missing(_)) == marks, "{replay:?}");
}

/// One that was removed stays so, and what was made in its place is there, also where the crash brings the first one
/// back.
#[test]
fn a_successor_of_a_removed_file_takes_its_name_again() {
    for comes_back in [false, true] {
        let Some(mut machine) = new_machine() else { return };
        let first = machine.create("name");
        first.write_at(b"first", 0).unwrap();
        assert!(first.prepare_unlink().unwrap());
        fs::rename(machine.path("name"), machine.path("kept")).unwrap();
        drop(first);
        machine.create("name").write_at(b"second", 0).unwrap();
        let replay = machine.crash(|machine| {
            fs::remove_file(machine.path("name")).unwrap();
            if comes_back {
                fs::rename(machine.path("kept"), machine.path("name")).unwrap();
            } else {
                fs::remove_file(machine.path("kept")).unwrap();
            }
        });
        let fates: Vec<&ReplayOutcome> = replay.files.iter().map(|file| &file.fate).collect();
        assert_eq!(fates, [&ReplayOutcome::Removed, &ReplayOutcome::Replayed], "{replay:?}");
        assert_eq!(fs::read(machine.path("name")).unwrap(), b"second");
        assert_eq!(machine.names(), ["name"]);
    }
}

/// What the log never had and the crash brings back in the place of a new file is kept beside it; what is younger is
/// somebody else's, and nothing is done.
#[test]
fn a_file_with_the_name_of_a_new_one_is_not_lost() {
    let Some(mut machine) = new_machine() else { return };
    fs::write(machine.path("name"), b"older").unwrap();
    fs::rename(machine.path("name"), machine.path("kept")).unwrap();
    machine.create("name").write_at(b"new", 0).unwrap();
    let replay = machine.crash(|machine| fs::rename(machine.path("kept"), machine.path("name")).unwrap());
    assert_eq!(replay.files[0].moved_aside, Some(machine.path("name.before-replay-1")), "{replay:?}");
    assert_eq!(fs::read(machine.path("name")).unwrap(), b"new");
    assert_eq!(fs::read(machine.path("name.before-replay-1")).unwrap(), b"older");

    let Some(mut machine) = new_machine() else { return };
    machine.create("name").write_at(b"new", 0).unwrap();
    let replay = machine.crash(|machine| {
        // Births are told by a coarse clock.
        thread::sleep(Duration::from_millis(50));
        let first = fs::metadata(machine.path("name")).unwrap().ino();
        fs::rename(machine.path("name"), machine.path("kept")).unwrap();
        fs::write(machine.path("name"), b"younger").unwrap();
        assert_ne!(fs::metadata(machine.path("name")).unwrap().ino(), first);
        fs::remove_file(machine.path("kept")).unwrap();
    });
    assert!(matches!(&replay.files[0].fate, ReplayOutcome::Missing(why) if why.contains("another file")), "{replay:?}");
    assert_eq!(fs::read(machine.path("name")).unwrap(), b"younger");
    assert_eq!(machine.names(), ["name"]);
    // Once it is out of the way the file is made again.
    fs::remove_file(machine.path("name")).unwrap();
    assert!(machine.replay().is_complete());
    assert_eq!(fs::read(machine.path("name")).unwrap(), b"new");
}

/// Another directory in the place of the one it was in is that of a file system that is not mounted.
#[test]
fn nothing_is_made_in_another_directory() {
    let Some(mut machine) = new_machine() else { return };
    fs::create_dir(machine.path("dir")).unwrap();
    machine.create("dir/new").write_at(b"new", 0).unwrap();
    let replay = machine.crash(|machine| {
        fs::rename(machine.path("dir"), machine.path("elsewhere")).unwrap();
        fs::create_dir(machine.path("dir")).unwrap();
        fs::remove_file(machine.path("elsewhere/new")).unwrap();
    });
    assert!(matches!(&replay.files[0].fate, ReplayOutcome::Missing(why) if why.contains("mounted")), "{replay:?}");
    assert!(fs::read_dir(machine.path("dir")).unwrap().next().is_none());
    fs::remove_dir(machine.path("dir")).unwrap();
    fs::rename(machine.path("elsewhere"), machine.path("dir")).unwrap();
    assert!(machine.replay().is_complete());
    assert_eq!(fs::read(machine.path("dir/new")).unwrap(), b"new");
}

/// What an earlier replay made and did not come to name is made anew, or goes on.
#[test]
fn a_replay_that_was_cut_short_is_repeated() {
    let Some(mut machine) = new_machine() else { return };
    machine.create("name").write_at(b"new", 0).unwrap();
    let log = machine.log();
    let before = fs::read(&log).unwrap();
    machine.crash(remove("name"));
    let temporary = {
        // By what name it was made shows in a directory in which it cannot get another.
        fs::write(&log, &before).unwrap();
        fs::remove_file(machine.path("name")).unwrap();
        let place = Blocked(Kernel);
        let replay = small(32).replay_on(pmem(), &place, &log).unwrap();
        assert!(matches!(replay.files[0].fate, ReplayOutcome::Failed(_)), "{replay:?}");
        let [name] = &machine.names()[..] else { panic!("{:?}", machine.names()) };
        name.clone()
    };
    // The log knows it: it gets its name.
    assert!(machine.replay().is_complete());
    assert_eq!(machine.names(), ["name"]);
    assert_eq!(fs::read(machine.path("name")).unwrap(), b"new");
    // It does not: what is there by that name is nothing.
    fs::write(&log, &before).unwrap();
    fs::remove_file(machine.path("name")).unwrap();
    fs::write(machine.path(&temporary), b"half").unwrap();
    assert!(machine.replay().is_complete());
    assert_eq!(machine.names(), ["name"]);
    assert_eq!(fs::read(machine.path("name")).unwrap(), b"new");
}
