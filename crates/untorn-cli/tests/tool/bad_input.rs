//! Bad input: each a clear error with the path and the way out, the right exit code, and nothing changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Place, UNTORN, run, untorn, untorn_with};

/// Runs the tool on a file that holds bytes, asserts that it refuses and that the bytes are still there.
#[track_caller]
fn refused(place: &Place, arguments: &[&str], input: &[u8], code: i32, says: &[&str]) {
    let before = place.read();
    let run = untorn_with(arguments, input).expect(code).names(place.name());
    for word in says {
        assert!(run.err.contains(word), "no {word:?} in {:?}", run.err);
    }
    assert!(run.out.is_empty(), "{:?}", run.text());
    assert_eq!(place.read(), before, "untorn {arguments:?} changed the file");
    assert_eq!(place.info()["state"], "clean", "untorn {arguments:?} left the file in need of recovery");
}

/// A file with content, once with its sidecar and once as a plain file.
fn places() -> [Place; 2] {
    let content: Vec<u8> = (0..10_000u32).map(|i| (i / 7) as u8).collect();
    let made = Place::created(10_000);
    untorn_with(&["write", made.name()], &content).expect(0);
    [made, Place::plain(&content)]
}

#[test]
fn ranges_outside_the_file_are_refused() {
    for place in places() {
        let name = place.name();
        refused(&place, &["write", name, "--offset", "10001"], b"x", 64, &["10001", "10000", "resize"]);
        refused(&place, &["write", name, "--offset", "9999"], b"xy", 64, &["9999", "resize"]);
        refused(&place, &["write", name, "--offset", "18446744073709551615"], b"x", 64, &["resize"]);
        refused(&place, &["write", name], &vec![1; 10_001], 64, &["10000", "nothing was written"]);
        refused(&place, &["read", name, "--offset", "10001"], b"", 64, &["10001"]);
        refused(&place, &["read", name, "--offset", "9000", "--len", "1001"], b"", 64, &["1001"]);
        refused(&place, &["read", name, "--offset", "1", "--len", "18446744073709551615"], b"", 64, &[]);
    }
}

#[test]
fn endless_input_ends_where_the_file_does() {
    for place in places() {
        let before = place.read();
        let zeros = fs::File::open("/dev/zero").expect("/dev/zero exists on Linux");
        let output = Command::new(UNTORN).args(["write", place.name()]).stdin(zeros).output().expect("runs");
        crate::common::Run::of(output, &["write"]).expect(64).names(place.name());
        assert_eq!(place.read(), before);
    }
}

#[test]
fn a_bad_line_applies_nothing_and_is_named() {
    let good = "{\"offset\":0,\"hex\":\"ffff\"}\n";
    for place in places() {
        for (bad, says) in [
            ("{\"offset\":4,\"hex\":\"abc\"}", "3 digits"),
            ("{\"offset\":4,\"hex\":\"xy\"}", "not a hexadecimal digit"),
            ("{\"offset\":4}", "missing field `hex`"),
            ("{\"offset\":\"4\",\"hex\":\"ab\"}", "invalid type"),
            ("{\"offset\":4,\"hex\":\"ab\",\"len\":1}", "unknown field `len`"),
            ("{\"offset\":4,\"hex\":\"ab\"", "{\"offset\":N,\"hex\":\"...\"}"),
            ("offset 4", "{\"offset\":N,\"hex\":\"...\"}"),
            ("{\"offset\":9999,\"hex\":\"abcd\"}", "10000 bytes"),
            ("{\"offset\":18446744073709551615,\"hex\":\"abcd\"}", "10000 bytes"),
            ("\u{fffd}", "column"),
        ] {
            let input = format!("{good}\n{bad}\n{good}");
            refused(&place, &["apply", place.name()], input.as_bytes(), 64, &["line 3", says, "nothing was applied"]);
        }
        refused(&place, &["apply", place.name()], b"\xff\xfe", 64, &["line 1"]);
    }
}

#[test]
fn a_refusal_gives_a_plain_file_no_sidecar() {
    let place = Place::plain(&[1; 100]);
    untorn_with(&["write", place.name(), "--offset", "101"], b"x").expect(64);
    untorn_with(&["write", place.name(), "--offset", "99"], b"xy").expect(64);
    untorn_with(&["apply", place.name()], b"{\"offset\":99,\"hex\":\"0000\"}").expect(64);
    assert_eq!(place.entries(), ["ledger"]);
}

#[test]
fn an_impossible_length_is_refused() {
    for place in places() {
        let run = untorn(&["resize", place.name(), "--len", "16777215T"]);
        assert!([64, 74].contains(&run.code), "{run:?}");
        let run = run.names(place.name());
        assert!(run.out.is_empty());
        assert_eq!(place.read().len(), 10_000);
    }
    let place = Place::empty();
    let run = untorn(&["create", place.name(), "--len", "16777215T"]);
    assert!([64, 74].contains(&run.code), "{run:?}");
    run.names(place.name());
    assert!(!place.file.exists(), "a file that could not be made is left behind");
}

/// Every verb that takes a file, with what it needs.
fn on_a_file(name: &str) -> Vec<Vec<&str>> {
    let mut all = vec![vec!["resize", name, "--len", "1"]];
    all.extend(["info", "check", "write", "read", "apply", "recover", "settle"].map(|verb| vec![verb, name]));
    all
}

#[test]
fn a_plain_file_is_told_from_a_log_and_from_a_protected_file() {
    let place = Place::plain(&[1; 100]);
    for verb in [&["replay"][..], &["replay", "--list"], &["log", "info"]] {
        let arguments = [verb, &[place.name()]].concat();
        refused(&place, &arguments, b"", 64, &["not a write-cache log"]);
    }
    for verb in ["scrub", "repair"] {
        refused(&place, &[verb, place.name()], b"", 64, &["not protected", "untorn protect"]);
    }
    assert_eq!(place.entries(), ["ledger"]);
}

#[test]
fn a_missing_file_is_an_io_error() {
    let place = Place::empty();
    for arguments in on_a_file(place.name()) {
        untorn(&arguments).expect(74).names(place.name());
        assert_eq!(place.entries(), [""; 0], "{arguments:?} made something");
    }
    untorn(&["doctor", place.name()]).expect(74).names(place.name());
    let deep = place.file.join("below").join("nothing");
    untorn(&["create", deep.to_str().expect("text"), "--len", "1"]).expect(74).names("below");
}

#[test]
fn directories_and_devices_are_refused() {
    let place = Place::empty();
    let dir = place.dir();
    for arguments in on_a_file(dir) {
        let run = untorn(&arguments);
        if arguments[0] == "info" {
            // It tells what is left over in a directory.
            run.expect(0);
        } else {
            run.expect(64).names(dir);
        }
    }
    for arguments in on_a_file("/dev/null") {
        untorn(&arguments).expect(64).names("/dev/null");
    }
    assert_eq!(place.entries(), [""; 0]);
}

#[test]
fn create_never_replaces_a_file() {
    let place = Place::plain(b"precious");
    untorn(&["create", place.name(), "--len", "100"]).expect(74).names(place.name());
    assert_eq!(place.bytes(), b"precious");
    assert_eq!(place.entries(), ["ledger"]);
}

#[test]
fn an_error_is_json_too_if_asked_for() {
    let place = Place::empty();
    for verb in ["info", "check", "write", "apply", "recover", "settle", "doctor"] {
        let run = untorn(&[verb, place.name(), "--json"]).expect(74).names(place.name());
        let object = run.json();
        assert_eq!(object["path"], place.name());
        assert!(object["error"].as_str().is_some_and(|error| run.err.contains(error)), "{object}");
    }
}

#[test]
fn options_of_another_torture_are_refused_in_words() {
    for (medium, option, value) in [
        ("dax", "--seconds", "5"),
        ("dax", "--durability", "write"),
        ("dax", "--fs", "btrfs"),
        ("process", "--kernel", "6.12"),
        ("process", "--images", "5"),
    ] {
        let run = untorn(&["torture", "--medium", medium, option, value]).expect(64);
        assert!(run.err.contains(option) && run.err.contains(medium), "{}", run.err);
    }
}

#[test]
fn block_torture_without_root_says_what_is_missing() {
    let place = Place::empty();
    let program = public_binary(&place);
    unprivileged(&program, &["torture", "--medium", "block"], b"").expect(74).names("this needs root");
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    for verb in ["demo", "torture"] {
        untorn(&[verb, "--dir", "/nonexistent/dir"]).expect(74).names("/nonexistent/dir");
    }
}

/// Runs the tool as somebody who is not root, if the tests run as root; as themselves otherwise.
fn unprivileged(program: &Path, arguments: &[&str], input: &[u8]) -> crate::common::Run {
    const NOBODY: u32 = 65534;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    run(&mut command, arguments, input)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").expect("/proc is mounted").uid() == 0
}

/// A copy of the binary where anybody may run it: the build directory may be private.
fn public_binary(place: &Place) -> std::path::PathBuf {
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).expect("the directory is ours");
    let program = place.dir.path().join("untorn");
    // Copied by another process: were it open for writing in this one, a child that another test forks at that moment
    // would hold it open, too, and it could not be run (ETXTBSY).
    let copied = Command::new("cp").arg("-p").arg(UNTORN).arg(&program).status().expect("cp runs");
    assert!(copied.success(), "the binary could not be copied");
    program
}

#[test]
fn a_file_that_may_not_be_written_is_refused() {
    let place = Place::plain(&[5; 5000]);
    let program = public_binary(&place);
    fs::set_permissions(&place.file, fs::Permissions::from_mode(0o444)).expect("the file is ours");
    let name = place.name();
    for (arguments, input) in [
        (&["write", name][..], &b"x"[..]),
        (&["apply", name], b"{\"offset\":0,\"hex\":\"00\"}"),
        (&["resize", name, "--len", "1"], b""),
    ] {
        unprivileged(&program, arguments, input).expect(74).names(name);
    }
    assert_eq!(unprivileged(&program, &["read", name], b"").expect(0).out, [5; 5000]);
    unprivileged(&program, &["info", name], b"").expect(0);
    unprivileged(&program, &["check", name], b"").expect(0);
    assert_eq!(place.bytes(), [5; 5000]);
}

#[test]
fn a_file_that_may_not_be_read_is_refused() {
    let place = Place::plain(&[5; 5000]);
    let program = public_binary(&place);
    fs::set_permissions(&place.file, fs::Permissions::from_mode(0o000)).expect("the file is ours");
    for arguments in on_a_file(place.name()) {
        unprivileged(&program, &arguments, b"").expect(74).names(place.name());
    }
    fs::set_permissions(&place.file, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    assert_eq!(place.bytes(), [5; 5000]);
}

#[test]
fn a_directory_that_may_not_be_written_is_refused() {
    let place = Place::plain(&[5; 5000]);
    let program = public_binary(&place);
    fs::set_permissions(&place.file, fs::Permissions::from_mode(0o666)).expect("the file is ours");
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o555)).expect("the directory is ours");
    let new = place.dir.path().join("new");
    let new = new.to_str().expect("text");
    unprivileged(&program, &["create", new, "--len", "1"], b"").expect(74).names(new);
    // There is no place for a sidecar, and without one nothing can be promised.
    unprivileged(&program, &["write", place.name()], b"x").expect(74).names(place.dir());
    assert_eq!(place.bytes(), [5; 5000]);
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).expect("the directory is ours");
}
