//! Files behind a log that get other names, in two directories: a replay has each where it was when the rename had
//! returned, whatever of the renames a crash undid.

use std::fs;
use std::path::PathBuf;

use super::machine::Machine;
use crate::common::names;
use untorn::write_cache::{CachedFile, ReplayOutcome};

/// A machine with two directories, `one` and `two`, on a file system that tells its files apart.
fn new_machine() -> Option<Machine> {
    Machine::new("renames", 64, &["one", "two"])
}

impl Machine {
    /// A file with this in it, which the log has.
    fn create_with(&self, name: &str, bytes: &[u8]) -> CachedFile {
        let file = self.attach_new(name);
        file.write_at(bytes, 0).unwrap();
        file
    }

    fn rename(&self, file: &CachedFile, to: &str) {
        let from = file.path();
        assert!(file.begin_rename(&self.path(to)).unwrap(), "{} to {to}", from.display());
        fs::rename(from, self.path(to)).unwrap();
        file.end_rename(true).unwrap();
        assert_eq!(file.path(), self.path(to));
    }

    /// Undoes a rename, as a crash may.
    fn undo(&self, from: &str, to: &str) {
        fs::rename(self.path(to), self.path(from)).unwrap();
    }

    /// Checks what files there are, and what they hold.
    #[track_caller]
    fn has(&self, expected: &[(&str, &str)]) {
        let mut found = Vec::new();
        for dir in ["one", "two"] {
            for name in names(&self.path(dir)) {
                let name = format!("{dir}/{name}");
                let bytes = String::from_utf8(fs::read(self.path(&name)).unwrap()).unwrap();
                found.push((name, bytes));
            }
        }
        let found: Vec<(&str, &str)> = found.iter().map(|(name, bytes)| (name.as_str(), bytes.as_str())).collect();
        assert_eq!(found, expected);
    }
}

/// `link` and `unlink` instead of `rename`: a crash may undo either, and leave both names, the first, the last or none.
#[test]
fn a_rename_by_link_and_unlink_is_repeated() {
    for to in ["one/b", "two/b"] {
        for (first, last) in [(false, true), (true, true), (true, false), (false, false)] {
            let Some(mut machine) = new_machine() else { return };
            let file = machine.create_with("one/a", b"bytes");
            fs::hard_link(machine.path("one/a"), machine.path(to)).unwrap();
            assert!(file.begin_rename(&machine.path(to)).unwrap(), "{to}");
            fs::remove_file(machine.path("one/a")).unwrap();
            file.end_rename(true).unwrap();
            file.append(b", more").unwrap();
            assert_eq!(file.path(), machine.path(to));
            drop(file);
            let replay = machine.crash(|machine| {
                fs::hard_link(machine.path(to), machine.path("one/a")).unwrap();
                for (name, is_left) in [("one/a", first), (to, last)] {
                    if !is_left {
                        fs::remove_file(machine.path(name)).unwrap();
                    }
                }
            });
            assert!(replay.is_complete(), "{to} {first} {last}: {replay:?}");
            machine.has(&[(to, "bytes, more")]);
            assert_eq!(machine.replay().operations, 0, "nothing is left to do");
        }
    }
}

/// Nobody said that the first name was removed: the file keeps what it has, and every byte.
#[test]
fn a_link_whose_unlink_did_not_come_costs_no_byte() {
    for told in [false, true] {
        let Some(mut machine) = new_machine() else { return };
        let file = machine.create_with("one/a", b"bytes");
        fs::hard_link(machine.path("one/a"), machine.path("two/b")).unwrap();
        assert!(file.begin_rename(&machine.path("two/b")).unwrap());
        if told {
            file.end_rename(false).unwrap();
        }
        file.append(b", more").unwrap();
        drop(file);
        let replay = machine.crash(|machine| fs::remove_file(machine.path("two/b")).unwrap());
        assert!(replay.is_complete(), "{replay:?}");
        machine.has(&[("one/a", "bytes, more")]);
    }
}

/// The replay removes the name from before only where the renamed file has it.
#[test]
fn a_name_that_another_file_has_by_now_is_not_removed() {
    let Some(mut machine) = new_machine() else { return };
    let file = machine.create_with("one/a", b"bytes");
    fs::hard_link(machine.path("one/a"), machine.path("two/b")).unwrap();
    assert!(file.begin_rename(&machine.path("two/b")).unwrap());
    fs::remove_file(machine.path("one/a")).unwrap();
    file.end_rename(true).unwrap();
    drop(file);
    let replay = machine.crash(|machine| fs::write(machine.path("one/a"), "another").unwrap());
    assert!(replay.is_complete(), "{replay:?}");
    machine.has(&[("one/a", "another"), ("two/b", "bytes")]);
}

/// The file is found by either name, and has the one that it was given.
#[test]
fn a_rename_that_a_crash_undid_is_repeated() {
    for to in ["one/b", "two/b"] {
        for undone in [false, true] {
            let Some(mut machine) = new_machine() else { return };
            let file = machine.create_with("one/a", b"bytes");
            machine.rename(&file, to);
            file.append(b", more").unwrap();
            drop(file);
            let replay = machine.crash(|machine| {
                if undone {
                    machine.undo("one/a", to);
                }
            });
            assert!(replay.is_complete(), "{replay:?}");
            assert_eq!(replay.files[0].path, machine.path(to));
            machine.has(&[(to, "bytes, more")]);
            assert_eq!(machine.replay().operations, 0, "nothing is left to do");
        }
    }
}

/// A new file that the crash took with both its names is made again by the last one, over what that had.
#[test]
fn a_new_file_that_was_put_over_another_is_made_again_there() {
    for known in [false, true] {
        let Some(mut machine) = new_machine() else { return };
        let old = if known {
            Some(machine.create_with("two/b", b"old"))
        } else {
            fs::write(machine.path("two/b"), b"old").unwrap();
            None
        };
        fs::hard_link(machine.path("two/b"), machine.path("kept")).unwrap();
        let file = machine.create_with("one/a", b"new");
        if known {
            // It has but one name when it is replaced.
            fs::remove_file(machine.path("kept")).unwrap();
        }
        machine.rename(&file, "two/b");
        drop((file, old));
        let replay = machine.crash(|machine| {
            fs::remove_file(machine.path("two/b")).unwrap();
            if !known {
                fs::rename(machine.path("kept"), machine.path("two/b")).unwrap();
            }
        });
        assert!(replay.is_complete(), "{replay:?}");
        assert!(replay.files.iter().all(|file| file.moved_aside.is_none()), "{replay:?}");
        machine.has(&[("two/b", "new")]);
    }
}

/// The one that had the name is there as it was, if the rename was not done and the crash came before it.
#[test]
fn a_rename_that_was_not_done_leaves_both_files() {
    for told in [false, true] {
        let Some(mut machine) = new_machine() else { return };
        let (file, over) = (machine.create_with("one/a", b"new"), machine.create_with("two/b", b"old"));
        assert!(file.begin_rename(&machine.path("two/b")).unwrap());
        if told {
            file.end_rename(false).unwrap();
            assert_eq!(file.path(), machine.path("one/a"));
        }
        file.append(b"er").unwrap();
        over.append(b"er").unwrap();
        drop((file, over));
        let replay = machine.crash(|_| {});
        assert!(replay.is_complete(), "{replay:?}");
        machine.has(&[("one/a", "newer"), ("two/b", "older")]);
    }
}

/// A replay that brings the renamed file its bytes, and not the other, has the log say that the other stays.
#[test]
fn a_file_that_was_not_replaced_waits_for_its_directory() {
    let Some(mut machine) = new_machine() else { return };
    let (file, other) = (machine.create_with("one/a", b"renamed"), machine.create_with("two/b", b"stays"));
    assert!(file.begin_rename(&machine.path("two/b")).unwrap());
    drop((file, other));
    let replay = machine.crash(|machine| {
        fs::remove_file(machine.path("two/b")).unwrap();
        fs::rename(machine.path("two"), machine.path("elsewhere")).unwrap();
    });
    let fates: Vec<&ReplayOutcome> = replay.files.iter().map(|file| &file.fate).collect();
    assert!(matches!(fates[..], [ReplayOutcome::Replayed, ReplayOutcome::Missing(_)]), "{replay:?}");
    fs::rename(machine.path("elsewhere"), machine.path("two")).unwrap();
    let replay = machine.replay();
    assert!(replay.is_complete(), "{replay:?}");
    machine.has(&[("one/a", "renamed"), ("two/b", "stays")]);
}

/// The process died in between: the file is where it is.
#[test]
fn a_rename_of_which_nobody_said_that_it_was_done_is_not_undone() {
    let Some(mut machine) = new_machine() else { return };
    let (file, over) = (machine.create_with("one/a", b"new"), machine.create_with("two/b", b"old"));
    assert!(file.begin_rename(&machine.path("two/b")).unwrap());
    fs::rename(machine.path("one/a"), machine.path("two/b")).unwrap();
    drop((file, over));
    let replay = machine.crash(|_| {});
    assert!(replay.is_complete(), "{replay:?}");
    machine.has(&[("two/b", "new")]);
}

/// Each is put where it was, those first that were renamed first.
#[test]
fn a_replay_repeats_renames_in_their_order() {
    let Some(mut machine) = new_machine() else { return };
    let (first, second) = (machine.create_with("one/log.1", b"first"), machine.create_with("one/log", b"second"));
    machine.rename(&first, "two/log.2");
    machine.rename(&second, "one/log.1");
    let third = machine.create_with("one/log", b"third");
    // Its first rename is durable before the second, so only that one can be undone.
    machine.rename(&third, "two/log.3");
    machine.rename(&third, "two/log.4");
    let fourth = machine.create_with("one/log", b"fourth");
    drop((first, second, third, fourth));
    let replay = machine.crash(|machine| {
        fs::remove_file(machine.path("one/log")).unwrap();
        machine.undo("two/log.3", "two/log.4");
        machine.undo("one/log", "one/log.1");
        machine.undo("one/log.1", "two/log.2");
    });
    assert!(replay.is_complete(), "{replay:?}");
    machine.has(&[("one/log", "fourth"), ("one/log.1", "second"), ("two/log.2", "first"), ("two/log.4", "third")]);
}

/// Neither the file nor what it was put over is back, wherever the crash has the two.
#[test]
fn a_renamed_and_removed_file_is_gone_with_its_target() {
    for undone in [false, true] {
        let Some(mut machine) = new_machine() else { return };
        let over = machine.create_with("two/b", b"old");
        let file = machine.create_with("one/a", b"new");
        assert!(file.begin_rename(&machine.path("two/b")).unwrap());
        fs::rename(machine.path("two/b"), machine.path("kept")).unwrap();
        fs::rename(machine.path("one/a"), machine.path("two/b")).unwrap();
        file.end_rename(true).unwrap();
        assert!(file.prepare_unlink().unwrap());
        fs::remove_file(machine.path("two/b")).unwrap();
        drop((file, over));
        let replay = machine.crash(|machine| {
            if undone {
                fs::rename(machine.path("kept"), machine.path("two/b")).unwrap();
            }
        });
        assert!(replay.files.iter().all(|file| file.fate == ReplayOutcome::Removed), "{replay:?}");
        machine.has(&[]);
    }
}

/// What is not the file that was replaced is not removed for it.
#[test]
fn a_younger_file_at_the_target_and_the_log_are_kept() {
    let Some(mut machine) = new_machine() else { return };
    let file = machine.create_with("one/a", b"new");
    machine.rename(&file, "two/b");
    drop(file);
    let replay = machine.crash(|machine| {
        machine.undo("one/a", "two/b");
        // Births are told by a coarse clock.
        std::thread::sleep(std::time::Duration::from_millis(50));
        fs::write(machine.path("two/b"), b"younger").unwrap();
    });
    assert!(matches!(&replay.files[0].fate, ReplayOutcome::Missing(why) if why.contains("another file")), "{replay:?}");
    machine.has(&[("one/a", "new"), ("two/b", "younger")]);
    fs::remove_file(machine.path("two/b")).unwrap();
    assert!(machine.replay().is_complete());
    machine.has(&[("two/b", "new")]);
}

/// Where a file is put over another again and again its directory is synced once, and no file waits for its own device.
#[test]
fn a_file_replaced_repeatedly_holds_its_last_version() {
    let Some(mut machine) = new_machine() else { return };
    fs::write(machine.path("one/b"), b"plain").unwrap();
    for round in 0..20 {
        let file = machine.create_with("one/b.new", format!("round {round}").as_bytes());
        machine.rename(&file, "one/b");
        if round % 3 == 0 {
            machine.cache().drain().unwrap();
        }
    }
    let replay = machine.crash(|_| {});
    assert!(replay.is_complete(), "{replay:?}");
    machine.has(&[("one/b", "round 19")]);
}

#[test]
fn renames_the_log_cannot_follow_are_left_to_the_caller() {
    let Some(machine) = new_machine() else { return };
    let file = machine.create_with("one/a", b"bytes");
    let longer = "n".repeat(200);
    let longer = (0..20).fold(machine.path("two"), |path, _| path.join(&longer));
    fs::create_dir(machine.path("two/dir")).unwrap();
    let unwritten = machine.attach_new("two/unwritten");
    for to in [file.path(), longer, machine.path("two/dir"), unwritten.path(), PathBuf::from("relative")] {
        assert!(!file.begin_rename(&to).unwrap(), "{}", to.display());
    }
    assert!(!unwritten.begin_rename(&machine.path("two/b")).unwrap(), "nothing of it is in the log");
    assert!(file.begin_rename(&machine.path("two/b")).unwrap());
    assert!(!file.begin_rename(&machine.path("two/c")).unwrap(), "one rename at a time");
    file.end_rename(false).unwrap();
    file.end_rename(true).unwrap();
    assert_eq!(file.path(), machine.path("one/a"), "none was announced");
    file.demote().unwrap();
    assert!(!file.begin_rename(&machine.path("two/b")).unwrap());
}

/// A log with few lines for files serves any number of files that are renamed, one after the other.
#[test]
fn lines_of_files_that_were_renamed_or_replaced_come_back() {
    let Some(machine) = new_machine() else { return };
    for round in 0..100 {
        let file = machine.create_with("one/a", b"bytes");
        machine.rename(&file, if round % 2 == 0 { "two/b" } else { "one/b" });
        drop(file);
    }
    machine.cache().drain().unwrap();
    assert_eq!(machine.cache().info().unwrap().files, 0);
}

/// Its renamer was killed before it said so, or what it said was not synced; but another file has the name since.
#[test]
fn a_drained_file_is_renamed_again_beside_a_new_namesake() {
    let Some(mut machine) = new_machine() else { return };
    let old = machine.create_with("one/f", b"old");
    machine.cache().drain().unwrap();
    assert!(old.begin_rename(&machine.path("two/f")).unwrap());
    fs::rename(machine.path("one/f"), machine.path("two/f")).unwrap();
    drop((old, machine.create_with("one/f", b"new")));
    let replay = machine.crash(|machine| {
        fs::remove_file(machine.path("one/f")).unwrap();
        machine.undo("one/f", "two/f");
    });
    assert!(replay.is_complete(), "{replay:?}");
    assert_eq!(fs::read(machine.path("one/f")).unwrap(), b"new");
    assert_eq!(fs::read(machine.path("two/f")).unwrap(), b"old");
    let count = |dir| fs::read_dir(machine.path(dir)).unwrap().count();
    assert_eq!((count("one"), count("two")), (1, 1));
}

/// Each is what a crash and a replay leave, as the other tests have it; the explorer tries what it relies on.
#[test]
fn the_log_keeps_names_of_its_files_and_of_renamed_ones() {
    let Some(machine) = new_machine() else { return };
    let kept = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(std::ffi::OsString::from).collect();
        machine.cache().dir_is_durable(&machine.path("one"), &names).unwrap()
    };
    assert!(kept(&[]));
    assert!(!kept(&["a"]), "nothing is there, and may have been removed");
    fs::write(machine.path("one/plain"), "plain").unwrap();
    fs::create_dir(machine.path("one/dir")).unwrap();
    std::os::unix::fs::symlink("a", machine.path("one/link")).unwrap();
    let a = machine.attach_new("one/a");
    assert!(!kept(&["a"]), "the log has nothing of it");
    a.write_at(b"a", 0).unwrap();
    assert!(kept(&["a"]));
    for other in ["plain", "dir", "link"] {
        assert!(!kept(&["a", other]), "{other}");
    }
    // Once it is durable by its own name it stays so.
    machine.cache().drain().unwrap();
    assert!(kept(&["a"]));

    assert!(a.begin_rename(&machine.path("one/b")).unwrap());
    assert!(!kept(&["a"]), "it is about to be renamed");
    fs::rename(machine.path("one/a"), machine.path("one/b")).unwrap();
    assert!(!kept(&["b"]), "the log was not told");
    a.end_rename(true).unwrap();
    assert!(kept(&["a", "b"]));
    machine.rename(&a, "two/b");
    assert!(kept(&["b"]));
    assert!(!kept(&["a"]), "that is two renames ago, and durable: the log has forgotten it");

    let gone = machine.create_with("one/gone", b"gone");
    assert!(gone.prepare_unlink().unwrap());
    assert!(!kept(&["gone"]), "it is about to be removed");
    fs::remove_file(machine.path("one/gone")).unwrap();
    assert!(!kept(&["gone"]), "it may be back");
    let again = machine.create_with("one/gone", b"again");
    assert!(kept(&["gone"]), "what it was is superseded");
    again.demote().unwrap();
    assert!(!kept(&["gone"]), "it is plain");
}
