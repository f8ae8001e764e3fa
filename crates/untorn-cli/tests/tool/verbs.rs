//! Every verb does what it says, with the exit code and the JSON that scripts bind to.

use std::process::{Command, Stdio};

use serde_json::Value;
use untorn_testing::needs;

use crate::common::{Place, UNTORN, untorn, untorn_with};

#[test]
fn create_makes_a_clean_file_of_zeros() {
    let place = Place::empty();
    let made = untorn(&["create", place.name(), "--len", "64K", "--json"]).expect(0).json();
    assert_eq!(made["path"], place.name());
    assert_eq!(made["len"], 65536);
    assert_eq!(place.read(), vec![0; 65536]);
    let info = place.info();
    assert_eq!(info["state"], "clean");
    assert_eq!(info["len"], 65536);
}

#[test]
fn create_takes_each_layout_and_durability() {
    for layout in ["dense", "sparse", "auto"] {
        for durability in ["write", "commit"] {
            let place = Place::empty();
            let arguments =
                ["create", place.name(), "--len=1M", "--layout", layout, "--durability", durability, "--json"];
            let made = untorn(&arguments).expect(0).json();
            assert_eq!(made["durability"], durability);
            untorn_with(&["write", place.name(), "--offset", "4090"], b"across a page").expect(0);
            assert_eq!(&place.read()[4090..4103], b"across a page");
        }
    }
}

#[test]
fn info_has_the_keys_that_do_not_drift() {
    let place = Place::created_with(10_000, &["--keep-sidecar"]);
    let info = untorn(&["info", place.name(), "--json"]).expect(0).json();
    for key in ["path", "engine", "len", "commit", "state", "sidecar", "redundancy"] {
        assert!(info.get(key).is_some(), "no {key} in {info}");
    }
    let chosen = untorn(&["doctor", place.dir(), "--json"]).json();
    assert_eq!(info["engine"], chosen["engine"]);
    assert!(info["sidecar"]["path"].is_string() && info["sidecar"]["bytes"].is_u64(), "{info}");
    assert!(info["redundancy"].is_null());
    let text = untorn(&["info", place.name()]).expect(0).text();
    assert!(text.contains("clean") && text.contains(place.name()), "{text}");
    assert!(!text.contains('\x1b'), "colours on a pipe: {text:?}");
}

#[test]
fn info_calls_a_plain_file_a_clean_one_without_engine() {
    let place = Place::plain(b"plain");
    let info = untorn(&["info", place.name(), "--json"]).expect(0).json();
    assert!(info["engine"].is_null() && info["sidecar"].is_null(), "{info}");
    assert_eq!((&info["state"], &info["len"]), (&"clean".into(), &5.into()));
}

#[test]
fn read_returns_the_written_bytes() {
    let place = Place::created(20_000);
    let bytes: Vec<u8> = (0..9000u32).map(|i| i as u8).collect();
    let wrote = untorn_with(&["write", place.name(), "--offset", "4K", "--json"], &bytes).expect(0).json();
    assert_eq!((&wrote["offset"], &wrote["bytes"]), (&4096.into(), &9000.into()));
    assert!(wrote["commit"].as_u64().is_some_and(|commit| commit > 0), "{wrote}");
    let read = untorn(&["read", place.name(), "--offset", "4096", "--len", "9000"]).expect(0);
    assert_eq!(read.out, bytes);
    assert_eq!(untorn(&["read", place.name(), "--offset", "19999"]).expect(0).out, [0]);
    assert_eq!(untorn(&["read", place.name(), "--offset", "20000"]).expect(0).out, b"");
    untorn_with(&["write", place.name()], b"start").expect(0);
    assert_eq!(&place.read()[..5], b"start");
}

#[test]
fn an_empty_write_is_no_error() {
    let place = Place::created(100);
    untorn_with(&["write", place.name(), "--offset", "100"], b"").expect(0);
    assert_eq!(place.read(), vec![0; 100]);
}

#[test]
fn apply_commits_every_line_and_the_later_one_wins() {
    let place = Place::created(20_000);
    let lines = b"{\"offset\":0,\"hex\":\"0102\"}\n\n{\"offset\":8191,\"hex\":\"AAbb\"}\n{\"offset\":1,\"hex\":\"ff\"}";
    let applied = untorn_with(&["apply", place.name(), "--json"], lines).expect(0).json();
    assert_eq!((&applied["writes"], &applied["bytes"]), (&3.into(), &5.into()));
    let bytes = place.read();
    assert_eq!((&bytes[..2], &bytes[8191..8193]), (&[1, 0xff][..], &[0xaa, 0xbb][..]));
}

#[test]
fn a_write_past_the_end_says_where_the_file_ends() {
    let place = Place::created(5000);
    let write = |offset| untorn_with(&["write", place.name(), "--offset", offset], b"bytes").expect(64);
    write("6000")
        .names("offset 6000 is past the end of the file (length 5000); nothing was written; run `untorn resize` first");
    write("4998").names("more than the 2 bytes between offset 4998 and the end of the file; nothing was written");
    assert!(place.read().iter().all(|byte| *byte == 0));
}

#[test]
fn resize_grows_with_zeros_and_shrinks() {
    let place = Place::created(5000);
    untorn_with(&["write", place.name(), "--offset", "4990"], b"0123456789").expect(0);
    let grown = untorn(&["resize", place.name(), "--len", "12K", "--json"]).expect(0).json();
    assert_eq!((&grown["old_len"], &grown["len"]), (&5000.into(), &12288.into()));
    let bytes = place.read();
    assert_eq!((bytes.len(), &bytes[4990..5001]), (12288, &b"0123456789\0"[..]));
    untorn(&["resize", place.name(), "--len", "4995"]).expect(0);
    assert!(place.read().ends_with(b"01234"));
    untorn(&["resize", place.name(), "--len", "5000"]).expect(0);
    assert!(place.read().ends_with(b"01234\0\0\0\0\0"));
}

#[test]
fn check_says_what_it_verified() {
    let place = Place::created(10_000);
    untorn_with(&["write", place.name(), "--offset", "5000", "--keep-sidecar"], b"some").expect(0);
    let text = untorn(&["check", place.name()]).expect(0).text();
    assert!(text.contains("verified: the sidecar") && text.contains("all 10000 bytes"), "{text}");
    assert!(text.contains("not verified"), "{text}");
    let object = untorn(&["check", place.name(), "--json"]).expect(0).json();
    assert_eq!((&object["ok"], &object["state"]), (&true.into(), &"clean".into()));
    assert!(object["error"].is_null() && object["verified"].is_array());
}

#[test]
fn recover_leaves_a_clean_file_as_it_is() {
    let place = Place::created(10_000);
    untorn_with(&["write", place.name()], b"kept").expect(0);
    let before = place.info();
    for _ in 0..2 {
        let done = untorn(&["recover", place.name(), "--json"]).expect(0).json();
        assert_eq!((&done["recovery"]["was_needed"], &done["state"]), (&false.into(), &"clean".into()));
    }
    assert_eq!(place.info(), before);
    assert!(place.read().starts_with(b"kept"));
}

#[test]
fn settle_leaves_a_plain_file() {
    let place = Place::created(10_000);
    untorn_with(&["write", place.name(), "--offset", "4090", "--keep-sidecar"], b"across a page").expect(0);
    assert_eq!(place.entries().len(), 2, "no sidecar was kept");
    let settled = untorn(&["settle", place.name(), "--json"]).expect(0).json();
    assert_eq!((&settled["settled"], &settled["state"]), (&true.into(), &"clean".into()));
    assert!(settled["sidecar"].is_null(), "{settled}");
    let bytes = place.bytes();
    assert_eq!((bytes.len(), &bytes[4090..4103]), (10_000, &b"across a page"[..]));
    assert_eq!(place.entries(), ["ledger"], "more than the file is left");
    let again = untorn(&["settle", place.name(), "--json"]).expect(0).json();
    assert_eq!(again["settled"], false);
}

#[test]
fn every_verb_that_changes_a_file_leaves_a_plain_one() {
    let place = Place::created(10_000);
    let is_plain = |expected: &[u8]| {
        assert_eq!(place.entries(), ["ledger"], "more than the file is left");
        assert_eq!(&place.bytes()[..expected.len()], expected);
    };
    is_plain(&[]);
    untorn_with(&["write", place.name()], b"some").expect(0);
    is_plain(b"some");
    untorn_with(&["apply", place.name()], b"{\"offset\":0,\"hex\":\"53\"}\n").expect(0);
    is_plain(b"Some");
    untorn(&["resize", place.name(), "--len", "12000"]).expect(0);
    is_plain(b"Some");
    // A kept sidecar goes with the next verb.
    untorn_with(&["write", place.name(), "--keep-sidecar"], b"more").expect(0);
    untorn(&["recover", place.name()]).expect(0);
    is_plain(b"more");
}

#[test]
fn recover_says_what_it_discards() {
    let place = Place::created_with(10_000, &["--engine", "reflection", "--keep-sidecar"]);
    for text in ["one", "two", "three"] {
        untorn_with(&["write", place.name(), "--offset", "4000", "--keep-sidecar"], text.as_bytes()).expect(0);
    }
    let text = untorn(&["recover", place.name(), "--trust", "file"]).expect(0).text();
    assert!(text.contains("discarded 3 commits"), "{text}");
    assert!(!place.bytes()[4000..].starts_with(b"three"), "the last commit was in the sidecar only");
    assert_eq!(place.entries(), ["ledger"]);
}

#[test]
fn prune_lists_and_removes_what_belongs_to_no_file() {
    let place = Place::created_with(10_000, &["--keep-sidecar"]);
    let nothing = untorn(&["prune", place.dir(), "--json"]).expect(0).json();
    assert_eq!(nothing["leftovers"], serde_json::json!([]));
    std::fs::remove_file(&place.file).expect("removes");
    for arguments in [["prune", place.dir()], ["info", place.dir()]] {
        let text = untorn(&arguments).expect(0).text();
        assert!(text.contains("sidecar") && text.contains(place.name()) && text.contains("--remove"), "{text}");
    }
    let old = untorn(&["prune", place.dir(), "--remove", "--older-than", "1d", "--json"]).expect(0).json();
    assert_eq!(old["leftovers"], serde_json::json!([]));
    let gone = untorn(&["prune", place.dir(), "--remove", "--json"]).expect(0).json();
    let leftover = &gone["leftovers"][0];
    assert_eq!((&leftover["kind"], &leftover["removed"]), (&"sidecar".into(), &true.into()), "{gone}");
    assert_eq!((&leftover["made_for"], &leftover["bytes"]), (&place.name().into(), &gone["bytes"]), "{gone}");
    assert!(place.entries().is_empty());
    untorn(&["prune", "/nonexistent"]).expect(74).names("/nonexistent");
}

#[test]
fn reading_and_looking_change_nothing() {
    let place = Place::plain(&[7; 9000]);
    for arguments in [["read", place.name()], ["info", place.name()], ["check", place.name()]] {
        untorn(&arguments).expect(0);
    }
    assert_eq!(place.entries(), ["ledger"], "something was made");
    assert_eq!(place.bytes(), [7; 9000]);
}

#[test]
fn doctor_explains_itself() {
    let place = Place::plain(b"x");
    for path in [place.name(), place.dir()] {
        let said = untorn(&["doctor", path, "--json"]);
        let found = said.json();
        // In memory nothing is durable.
        let exit = if found["durable"] == true { 0 } else { 1 };
        said.expect(exit);
        assert_eq!((&found["path"], &found["obstacle"]), (&path.into(), &Value::Null));
        assert!(["pmem", "block", "assumed-pmem", "volatile"].map(Into::into).contains(&found["medium"]), "{found}");
        assert!(found["durable"].is_boolean() && found["engine"].is_string() && found["durability"].is_string());
        assert!(found["dirty_tracking"].is_string());
        assert!(found["reasons"].as_array().is_some_and(|reasons| !reasons.is_empty()), "{found}");
        let text = untorn(&["doctor", path]).expect(exit).text();
        assert!(text.starts_with(path) && text.contains("why:\n  - "), "{text}");
    }
    assert_eq!(untorn(&["doctor", "--json"]).json()["path"], ".");
}

#[test]
fn doctor_names_what_keeps_files_from_being_written() {
    for path in ["/proc", "/proc/self/maps"] {
        let said = untorn(&["doctor", path, "--json"]).expect(1);
        let found = said.json();
        let obstacle = found["obstacle"].as_str().expect("an obstacle").to_owned();
        assert!(obstacle.starts_with("proc "), "{obstacle}");
        for nothing in ["medium", "engine", "durability", "dirty_tracking"] {
            assert!(found[nothing].is_null(), "{nothing} of no file: {found}");
        }
        let text = untorn(&["doctor", path]).expect(1).text();
        assert!(text.contains("no file here") && text.contains(&obstacle), "{text}");
        let said = ["  medium ", "  engine ", "  durability ", "default engine", "A log of"];
        assert!(said.iter().all(|word| !text.contains(word)), "{text}");
    }
}

#[test]
fn a_file_in_memory_is_never_called_durable() {
    let memory = std::path::Path::new("/dev/shm");
    if !memory.is_dir() || untorn(&["doctor", "/dev/shm", "--json"]).json()["medium"] != "volatile" {
        untorn_testing::skipped!("/dev/shm is not a tmpfs here");
        return;
    }
    let dir = tempfile::tempdir_in(memory).expect("a directory in memory");
    let path = dir.path().join("ledger").display().to_string();
    untorn(&["doctor", "/dev/shm"]).expect(1);
    let said = untorn(&["create", &path, "--len", "64K"]).expect(0).text();
    assert!(said.contains("NOT durable") && !said.contains("durable at each"), "{said}");
    let said = untorn_with(&["write", &path, "--json"], b"x").expect(0);
    assert_eq!(said.json()["durable"], false);
    let said = untorn_with(&["apply", &path], b"{\"offset\":0,\"hex\":\"ff\"}\n").expect(0).text();
    assert!(said.contains("NOT durable"), "{said}");
    for verb in [&["resize", &path, "--len", "128K", "--json"][..], &["info", &path, "--json"]] {
        assert_eq!(untorn(verb).expect(0).json()["durable"], false, "{verb:?}");
    }
    assert!(untorn(&["info", &path]).expect(0).text().contains("durable     no"));
}

#[test]
fn a_file_in_use_is_refused_with_the_name_of_its_holder() {
    let place = Place::created(10_000);
    let file = untorn::AtomicFile::open(place.name()).expect("opens");
    let me = format!("process {} (", std::process::id());
    for said in [
        untorn_with(&["write", place.name()], b"x").expect(74),
        untorn(&["check", place.name()]).expect(74),
        untorn(&["settle", place.name()]).expect(74),
    ] {
        said.names(&me);
    }
    let info = untorn(&["info", place.name(), "--json"]).expect(0).json();
    assert!(info["holder"].as_str().is_some_and(|holder| holder.starts_with(&me)), "{info}");
    file.close().expect("closes");
    assert_eq!(untorn(&["info", place.name(), "--json"]).expect(0).json()["holder"], Value::Null);
}

#[test]
fn verbs_join_the_processes_that_share_a_file() {
    let place = Place::created(10_000);
    let file = untorn::Options::new().shared(true).open(place.name()).unwrap();
    untorn_with(&["write", place.name(), "--offset", "4090"], b"alone").expect(74);
    untorn_with(&["write", place.name(), "--offset", "4090", "--shared"], b"together").expect(0);
    let mut bytes = [0; 8];
    file.read_at(&mut bytes, 4090).unwrap();
    assert_eq!(&bytes, b"together");
    file.write_at(b"T", 4090).unwrap();
    let read = untorn(&["read", place.name(), "--offset", "4090", "--len", "8", "--shared"]).expect(0).text();
    assert_eq!(read, "Together");
    untorn_with(&["apply", place.name(), "--shared"], b"{\"offset\":0,\"hex\":\"41\"}\n").expect(0);
    untorn(&["resize", place.name(), "--len", "20000", "--shared"]).expect(0);
    file.read_at(&mut bytes[..1], 0).unwrap();
    assert_eq!((bytes[0], file.len()), (b'A', 20_000));
    file.settle().unwrap();
}

/// valgrind has programs run on a processor of its own, with an auxiliary vector of its own.
#[test]
fn the_tool_runs_clean_under_valgrind() {
    needs!("valgrind");
    for engine in ["reflection", "hybrid-log", "shadow"] {
        let place = Place::empty();
        let run = |arguments: &[&str]| {
            let mut command = Command::new("valgrind");
            command.args(["--quiet", "--error-exitcode=99", UNTORN]).args(arguments).stdin(Stdio::null());
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
            output.stdout
        };
        run(&["create", place.name(), "--len", "64K", "--engine", engine]);
        untorn_with(&["write", place.name(), "--offset", "5000"], b"seen").expect(0);
        assert_eq!(run(&["read", place.name(), "--offset", "5000", "--len", "4"]), b"seen");
        run(&["check", place.name()]);
        run(&["settle", place.name()]);
    }
}

/// A program has the file open while it is read and backed up.
#[test]
fn a_file_in_use_is_read_backed_up_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, dest, again) = (path("data"), path("backup"), path("again"));
    let file = untorn::AtomicFile::create(&data, 3 << 20).unwrap();
    file.write_at(b"first", 4094).unwrap();
    file.sync().unwrap();
    let read = || untorn(&["read", &data, "--offset", "4094", "--len", "5"]).expect(0).text();
    assert_eq!(read(), "first");
    file.write_at(b"other", 4094).unwrap();
    let made = untorn(&["backup", &data, &dest, "--verify", "--json"]).expect(0).json();
    assert_eq!((made["len"].as_u64(), made["bytes"].as_u64()), (Some(3 << 20), Some(8192)));
    assert!(made["commit"].as_u64().is_some() && made["since"].is_null(), "{made}");
    let streamed = untorn(&["backup", &data, "-"]).expect(0).out;
    assert_eq!(streamed, std::fs::read(&dest).unwrap());
    assert_eq!(&streamed[4094..4099], b"first", "the open epoch is not in it");
    file.sync().unwrap();
    assert_eq!(read(), "other");
    // A file that is there stays.
    untorn(&["backup", &data, &dest]).expect(74).names("--force replaces it");
    assert!(untorn(&["backup", &data, &dest, "--force"]).expect(0).text().contains("backed up commit"));
    untorn(&["restore", &dest, &data]).expect(74).names("use");
    assert!(untorn(&["restore", &dest, &again]).expect(0).text().contains("restored"));
    untorn(&["restore", &dest, &again]).expect(74).names("--force replaces it");
    assert_eq!(&std::fs::read(&again).unwrap()[4094..4099], b"other");
    untorn(&["backup", &data, "-", "--json"]).expect(64).names("standard output");
    std::fs::write(&dest, vec![1; 3 << 20]).unwrap();
    untorn(&["restore", "--force", &dest, &again]).expect(2).names("do not match its manifest");
    assert_eq!(&std::fs::read(&again).unwrap()[4094..4099], b"other");
    untorn(&["backup", "/nonexistent", &dest]).expect(74).names("/nonexistent");
    file.close().unwrap();
    assert_eq!(read(), "other");
}
