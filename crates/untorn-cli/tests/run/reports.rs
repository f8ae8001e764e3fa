//! The report of a run names the files that it served, and those that it could not.

use std::fs;

use serde_json::json;
use untorn_testing::programs::{succeed, text};

use crate::running::{MODES, Place, needs_mounts};

#[test]
fn the_report_counts_the_files_and_names_the_log() {
    needs_mounts!();
    for mode in MODES {
        let place = Place::new();
        let (said, report) = place.reported(mode, &[], &["sh", "-ec", "echo one > a; echo two > b; cat a b"]);
        assert_eq!(said, "one\ntwo\n", "{mode}");
        assert_eq!((&report["mode"], &report["exit"], &report["managed"]), (&mode.into(), &0.into(), &2.into()));
        for list in ["plain", "refused", "failed"] {
            assert_eq!(report[list], json!([]), "{mode}: {list}");
        }
        let log = &report["logs"][0];
        assert_eq!(log["path"], place.log().canonicalize().unwrap().to_str().unwrap());
        assert!(["pmem", "block", "assumed-pmem"].contains(&log["medium"].as_str().unwrap()), "{log}");
        assert_eq!(log["replayed"], json!({ "operations": 0, "files": 0 }));
    }
}

#[test]
fn statistics_are_said_on_standard_error() {
    needs_mounts!();
    for (mode, when) in [("atomic", "all changes of a file together, when fsync returns"), ("boost", " returns")] {
        let place = Place::new();
        let run = place.run(mode, &["--stats"], &["sh", "-c", "echo text > f; cat f"]).expect(0);
        assert_eq!(run.text(), "text\n", "{mode}");
        let log = place.log().canonicalize().unwrap();
        let run = run.names(&format!("untorn: log {}: ", log.display())).names(when);
        run.names("untorn: served 1 file with the log, 5 bytes written\n");
        assert_eq!(place.run(mode, &[], &["sh", "-c", "echo text > f"]).expect(0).err, "", "{mode}");
    }
}

/// The program removes one of a file's two names while the file is open. No `link` of the run gave it the other one, so
/// the log can't follow that.
const TWO_NAMES: &str = "
import os
fd = os.open('f', os.O_RDWR)
os.write(fd, b'first')
os.fsync(fd)
try: os.unlink('f')
except OSError as error: print(os.strerror(error.errno))
os.write(fd, b' second')
os.fsync(fd)
";

/// A place with a file that has two names.
fn two_names() -> Place {
    let place = Place::new();
    fs::write(place.file("f"), "").unwrap();
    fs::hard_link(place.file("f"), place.file("g")).unwrap();
    place
}

#[test]
fn a_file_left_to_the_file_system_is_told_in_one_line() {
    needs_mounts!("python3");
    for mode in MODES {
        let place = two_names();
        let run = place.run(mode, &[], &["python3", "-c", TWO_NAMES]).expect(0);
        let path = place.file("f");
        assert_eq!(run.err.lines().count(), 1, "{mode}: {}", run.err);
        run.names("left to the file system, without untorn's promise").names(path.to_str().unwrap());
        assert_eq!(place.read("g"), "first second", "{mode}");
        let (_, report) = two_names().reported(mode, &[], &["python3", "-c", TWO_NAMES]);
        assert_eq!(report["plain"].as_array().unwrap().len(), 1, "{mode}: {report}");
    }
}

/// `link` and `unlink`, as `git` and mail servers rename: the file stays behind the log, whether it is open or not.
#[test]
fn a_file_renamed_by_link_and_unlink_is_still_managed() {
    needs_mounts!("python3");
    let program = "
import os
for name, is_open in (('open', True), ('closed', False)):
    fd = os.open('new', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, b'first')
    if not is_open: os.close(fd)
    os.link('new', name)
    os.unlink('new')
    if not is_open: fd = os.open(name, os.O_RDWR | os.O_APPEND)
    os.write(fd, b' second')
    os.fsync(fd)
    # Once more, and back under the first name.
    os.link(name, 'other')
    os.unlink(name)
    os.link('other', name)
    os.unlink('other')
    os.write(fd, b' third')
    os.close(fd)
";
    for mode in MODES {
        for options in [&[][..], &["--strict"]] {
            let place = Place::new();
            let (_, report) = place.reported(mode, options, &["python3", "-c", program]);
            assert_eq!((&report["plain"], &report["refused"]), (&json!([]), &json!([])), "{mode}: {report}");
            assert_eq!(fs::read_dir(place.files.path()).unwrap().count(), 2, "{mode}");
            for name in ["open", "closed"] {
                assert_eq!(place.read(name), "first second third", "{mode}: {name}");
            }
        }
    }
}

#[test]
fn a_strict_run_refuses_what_the_log_cannot_follow() {
    needs_mounts!("python3");
    for mode in MODES {
        let place = two_names();
        let run = place.run(mode, &["--strict"], &["python3", "-c", TWO_NAMES]).expect(0);
        assert_eq!((run.text().as_str(), run.err.as_str()), ("Operation not supported\n", ""), "{mode}");
        assert_eq!((place.read("f"), place.read("g")), ("first second".to_owned(), "first second".to_owned()));
    }
}

/// The path is longer than the log has room for.
const LONG: &str =
    "name=$(printf '%0200d' 0); for n in $(seq 20); do mkdir $name; cd $name; done; echo text > f; cat f";

#[test]
fn a_strict_run_does_not_open_a_file_that_it_cannot_manage() {
    needs_mounts!();
    for mode in MODES {
        let place = Place::new();
        let plain = place.run(mode, &[], &["sh", "-c", LONG]).expect(0);
        assert_eq!(plain.text(), "text\n", "{mode}");
        plain.names("left to the file system, without untorn's promise");
        let place = Place::new();
        let strict = place.run(mode, &["--strict"], &["sh", "-c", LONG]).expect(1);
        assert!(strict.text().is_empty() && strict.err.contains("not supported"), "{mode}: {}", strict.err);
        assert!(strict.err.contains("not opened for writing (--strict)"), "{mode}: {}", strict.err);
    }
}

#[test]
fn the_report_is_one_object_after_the_programs_output() {
    needs_mounts!();
    let place = Place::new();
    let output = succeed(&mut place.under("atomic", &["--json"], &["echo".as_ref(), "said".as_ref()]));
    let out = text(&output.stdout);
    assert_eq!(out.lines().count(), 2, "{out}");
    assert!(out.starts_with("said\n{"), "{out}");
}
