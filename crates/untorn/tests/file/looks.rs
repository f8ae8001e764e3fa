//! Looking at a file stores nothing, and opens nothing for writing.

use std::fs;
use std::path::Path;

use crate::common::pattern;
use crate::common::system::{Untouched, counting_in_mappings};
use untorn::Options;
use untorn::report::State;

/// Everything that only looks at a file, in a directory of its own. The bytes that a reader finds.
fn all_looks(dir: &Path, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (what, look) in [
        ("inspect", &mut (|| assert_eq!(untorn::inspect(path).unwrap().state, State::Clean)) as &mut dyn FnMut()),
        ("doctor", &mut || drop(untorn::doctor(path).unwrap())),
        ("coverage", &mut || assert!(untorn::coverage(path).unwrap().is_none())),
        ("recorded", &mut || assert!(untorn::redundancy::recorded(path).unwrap().is_none())),
        ("a read-only open", &mut || {
            let file = Options::new().read_only(true).verify(true).open(path).unwrap();
            bytes = vec![0; file.len() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            file.close().unwrap();
        }),
    ] {
        let untouched = Untouched::watch(&[dir]);
        look();
        untouched.check(what);
    }
    bytes
}

#[test]
fn no_look_at_a_closed_file_stores_anything() {
    let bytes = pattern(40_000, 1);
    for engine in untorn::testing::ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = Options::new().engine(engine).create(&path, bytes.len() as u64).unwrap();
        file.write_at(&bytes, 0).unwrap();
        file.close().unwrap();
        assert_eq!(all_looks(dir.path(), &path), bytes, "{engine}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(all_looks(dir.path(), &path), bytes, "plain");
}

/// A program stores to a plain file through a mapping, and somebody looks at it.
#[test]
fn looks_take_no_store_of_a_live_program_back() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    fs::write(&live, vec![0; 64 << 10]).unwrap();
    let lost = counting_in_mappings(&live, || {
        for _ in 0..untorn_testing::cases(20, 2000) {
            untorn::inspect(&live).unwrap();
            untorn::doctor(&live).unwrap();
            Options::new().read_only(true).open(&live).unwrap();
        }
    });
    assert_eq!(lost, 0);
}
