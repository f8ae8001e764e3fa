//! Files in use, killed writers, and files that disagree with their sidecars.

use std::fs;

use crate::common::{Place, TORTURED_LEN, crashed, kill, start_writer, untorn, untorn_with, write_untold};

#[test]
fn a_file_in_use_says_so_and_is_left_alone() {
    let place = Place::created(TORTURED_LEN);
    let mut writer = start_writer(&place.file, "commit");
    let info = untorn(&["info", place.name(), "--json"]).expect(0).json();
    assert_eq!(info["state"], "in-use");
    untorn(&["check", place.name()]).expect(74).names("in use");
    for arguments in [&["write", place.name()][..], &["settle", place.name()], &["recover", place.name()]] {
        untorn_with(arguments, b"x").expect(74).names("in use");
    }
    assert!(writer.try_wait().expect("ours").is_none(), "the writer did not survive being looked at");
    kill(&mut writer);
}

#[test]
fn a_killed_writer_leaves_a_file_to_recover() {
    let place = crashed(&[]);
    let look = |code| {
        let info = untorn(&["info", place.name(), "--json"]).expect(code).json();
        (info["state"].clone(), info["len"].clone())
    };
    assert_eq!(look(1), ("needs-recovery".into(), TORTURED_LEN.into()));
    untorn(&["check", place.name()]).expect(1).names("untorn recover");
    // A reader finds the last commit, and changes nothing.
    let committed = untorn(&["read", place.name()]).expect(0).out;
    assert_eq!(look(1).0, "needs-recovery", "looking changed the file");
    let done = untorn(&["recover", place.name(), "--json"]).expect(0).json();
    assert_eq!((&done["recovery"]["was_needed"], &done["state"]), (&true.into(), &"clean".into()));
    let bytes = place.read();
    assert!(bytes == committed, "recovery found another commit than the reader");
    assert_eq!(look(0), ("clean".into(), TORTURED_LEN.into()));
    untorn(&["check", place.name()]).expect(0);
    let again = untorn(&["recover", place.name(), "--json"]).expect(0).json();
    assert_eq!(again["recovery"]["was_needed"], false);
    assert_eq!(place.read(), bytes);
}

#[test]
fn writing_and_settling_recover_on_the_way() {
    let place = crashed(&[]);
    untorn_with(&["write", place.name(), "--offset", "5"], b"after").expect(0);
    assert_eq!(&place.read()[5..10], b"after");
    let place = crashed(&[]);
    untorn(&["settle", place.name()]).expect(0);
    assert_eq!(place.read(), place.bytes());
}

/// A file with committed bytes that only its sidecar holds.
fn reflected() -> Place {
    let place = Place::created_with(10_000, &["--engine", "reflection", "--keep-sidecar"]);
    untorn_with(&["write", place.name(), "--offset", "4000", "--keep-sidecar"], &[0xab; 200]).expect(0);
    place
}

#[test]
fn a_change_by_another_program_is_refused_with_the_way_out() {
    for side in ["file", "sidecar"] {
        let place = reflected();
        write_untold(&place.file, b"mixed use", 100);
        for verb in ["read", "write", "check", "info"] {
            let run = untorn(&[verb, place.name()]);
            assert_eq!(run.code, 1, "{verb}: {run:?}");
        }
        untorn(&["read", place.name()]).expect(1).names("--trust sidecar");
        untorn(&["recover", place.name()]).expect(1).names("--trust file");
        untorn(&["recover", place.name(), "--trust", side]).expect(0);
        let bytes = place.read();
        match side {
            "file" => assert_eq!(&bytes[100..109], b"mixed use"),
            _ => assert_eq!(bytes[4000..4200], [0xab; 200]),
        }
        untorn(&["check", place.name()]).expect(0);
    }
}

#[test]
fn bytes_of_a_file_cut_short_are_reported_as_lost() {
    let place = reflected();
    // The cut takes half of the 200 bytes that only the sidecar holds.
    fs::File::options().write(true).open(&place.file).expect("opens").set_len(4100).expect("cuts it");
    untorn(&["recover", place.name()]).expect(1).names("--trust sidecar");
    let run = untorn(&["recover", place.name(), "--trust", "sidecar", "--json"]).expect(1);
    let lost = run.json()["recovery"]["lost_bytes"].as_u64().expect("a number");
    // A slice has 64 bytes, and the sidecar has whole ones.
    assert!((10_000 - 4100 - 256..=10_000 - 4200).contains(&lost), "{lost}");
    let bytes = place.read();
    assert_eq!((bytes.len(), &bytes[4000..4200]), (10_000, &[0xab; 200][..]));
    untorn(&["check", place.name()]).expect(0);
}

#[test]
fn a_marked_file_without_its_sidecar_is_refused() {
    let place = reflected();
    if !marks_are_kept(&place) {
        return;
    }
    let elsewhere = place.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("makes a directory");
    let moved = elsewhere.join("ledger");
    fs::rename(&place.file, &moved).expect("renames");
    let name = moved.to_str().expect("text");
    for verb in ["read", "check", "info", "write"] {
        assert_eq!(untorn(&[verb, name]).code, 1, "{verb}");
    }
    untorn(&["read", name]).expect(1).names("sidecar");
    assert_eq!(untorn(&["info", name, "--json"]).json()["state"], "refused", "no byte of it is damaged");
    fs::rename(place.dir.path().join(".untorn"), elsewhere.join(".untorn")).expect("renames");
    assert_eq!(untorn(&["read", name, "--offset", "4000", "--len", "200"]).expect(0).out, [0xab; 200]);
}

/// Whether the file system of the tests keeps user attributes.
fn marks_are_kept(place: &Place) -> bool {
    let found = untorn(&["doctor", place.dir(), "--json"]).json();
    found["medium"] != "volatile"
}

/// The one sidecar of a file.
fn sidecar(place: &Place) -> std::path::PathBuf {
    place.info()["sidecar"]["path"].as_str().expect("there is a sidecar").into()
}

#[test]
fn a_sidecar_of_nonsense_is_corrupt_and_nothing_is_changed() {
    let place = reflected();
    let sidecar = sidecar(&place);
    let len = fs::metadata(&sidecar).expect("there").len();
    let nonsense: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
    fs::write(&sidecar, &nonsense).expect("writes");
    let before = place.bytes();
    for verb in ["read", "check", "info", "write", "recover", "settle"] {
        let run = untorn(&[verb, place.name()]).expect(2);
        assert!(verb == "info" || run.err.contains(".untorn"), "{verb}: {}", run.err);
    }
    assert_eq!(untorn(&["info", place.name(), "--json"]).json()["state"], "corrupt");
    assert_eq!(place.bytes(), before);
    assert_eq!(fs::read(&sidecar).expect("readable"), nonsense);
    // The way out: the data file as it is.
    untorn(&["recover", place.name(), "--trust", "file"]).expect(0);
    assert_eq!(place.read(), before);
}
