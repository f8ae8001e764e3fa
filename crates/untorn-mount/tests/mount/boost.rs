//! Mode boost: what a write acknowledged survives the server and a power cut.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use untorn_testing::{SplitMix, cases, seed};

use crate::support::{How, Mount, mount, mount_as};

/// Contents of the files of a directory.
type Contents = BTreeMap<PathBuf, Vec<u8>>;

fn contents(at: &Path) -> Contents {
    let files = fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| (entry.file_name().into(), fs::read(entry.path()).unwrap())).collect()
}

/// Takes from a file what its device had not got: all since the bytes that are given.
fn cut_power(path: &Path, durable: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(durable, 0).unwrap();
    // Long before the last entry of the log.
    let before = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: before, last_modification: before };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

fn replayed(mount: &Mount) -> Contents {
    mount.replay();
    contents(&mount.source())
}

#[test]
fn acknowledged_writes_survive_the_server_and_a_power_cut() {
    for round in 0..cases(3, 30) {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", How::BoostUndrained) else { return };
        let seed = seed(untorn_testing::test_name!());
        let mut random = SplitMix::new(seed ^ round as u64);
        let mut model = Contents::new();
        for number in 0..4_u8 {
            let path = mount.path().join(format!("{number}"));
            let (one, two) = (File::create(&path).unwrap(), File::options().write(true).open(&path).unwrap());
            let expected = model.entry(format!("{number}").into()).or_default();
            for _ in 0..10 {
                let (offset, len) = (random.below(30_000), 1 + random.below(9_000));
                let bytes = vec![random.below(256) as u8; len as usize];
                let file = if random.below(2) == 0 { &one } else { &two };
                if random.below(8) == 0 {
                    file.set_len(offset).unwrap();
                    expected.resize(offset as usize, 0);
                } else {
                    file.write_all_at(&bytes, offset).unwrap();
                    let end = (offset + len) as usize;
                    expected.resize(end.max(expected.len()), 0);
                    expected[offset as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        mount.kill();
        assert_eq!(contents(&mount.source()), model, "seed {seed}, round {round}: the source");
        for path in model.keys() {
            cut_power(&mount.source().join(path), b"");
        }
        assert_eq!(replayed(&mount), model, "seed {seed}, round {round}: after the replay");
    }
}

#[test]
fn renamed_and_removed_files_are_replayed_under_their_names() {
    let Some(mut mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let at = mount.path();
    let written = |name: &str, bytes: &str| {
        let file = File::create(at.join(name)).unwrap();
        file.write_all_at(bytes.as_bytes(), 0).unwrap();
        file
    };
    written("old", "replaced");
    let kept = written("new", "replaces");
    fs::rename(at.join("new"), at.join("old")).unwrap();
    kept.write_all_at(b"REP", 0).unwrap();
    let gone = written("gone", "removed");
    fs::remove_file(at.join("gone")).unwrap();
    gone.write_all_at(b"still open", 0).unwrap();
    fs::create_dir(at.join("d")).unwrap();
    written("d/f", "below");
    fs::rename(at.join("d"), at.join("e")).unwrap();
    let moved = File::options().write(true).open(at.join("e/f")).unwrap();
    moved.write_all_at(b"BE", 0).unwrap();
    written("x", "exchanged");
    rustix::fs::renameat_with(CWD, at.join("x"), CWD, at.join("old"), rustix::fs::RenameFlags::EXCHANGE).unwrap();
    let linked = written("linked", "two names");
    fs::hard_link(at.join("linked"), at.join("other")).unwrap();
    fs::remove_file(at.join("other")).unwrap();
    linked.write_all_at(b"TWO", 0).unwrap();
    mount.kill();
    let expected = Contents::from([
        ("x".into(), b"REPlaces".to_vec()),
        ("old".into(), b"exchanged".to_vec()),
        ("linked".into(), b"TWO names".to_vec()),
    ]);
    assert_eq!(contents(&mount.source()), expected);
    assert_eq!(replayed(&mount), expected);
    assert_eq!(fs::read(mount.source().join("e/f")).unwrap(), b"BElow");
    assert_eq!(fs::read_dir(mount.source().join("e")).unwrap().count(), 1);
}

#[test]
fn a_file_is_managed_from_its_first_change_under_its_name() {
    let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", How::BoostUndrained) else { return };
    for name in ["read", "removed", "renamed", "cut"] {
        fs::write(mount.source().join(name), "before").unwrap();
    }
    let at = mount.path();
    let open = |name: &str| File::options().read(true).write(true).open(at.join(name)).unwrap();
    let (_read, removed, renamed, again) = (open("read"), open("removed"), open("renamed"), open("renamed"));
    renamed.sync_all().unwrap();
    fs::remove_file(at.join("removed")).unwrap();
    removed.write_all_at(b"no name", 0).unwrap();
    fs::rename(at.join("renamed"), at.join("new name")).unwrap();
    again.write_all_at(b"BE", 0).unwrap();
    renamed.write_all_at(b"FO", 2).unwrap();
    File::options().write(true).open(at.join("cut")).unwrap().set_len(3).unwrap();
    mount.kill();
    for (name, durable) in [("new name", "before"), ("cut", "before")] {
        cut_power(&mount.source().join(name), durable.as_bytes());
    }
    let expected = [("cut", "bef"), ("new name", "BEFOre"), ("read", "before")];
    assert_eq!(replayed(&mount), expected.map(|(name, bytes)| (name.into(), bytes.as_bytes().to_vec())).into());
}

#[test]
fn what_a_hole_or_a_copy_left_is_not_replayed_over() {
    let Some(mut mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let path = mount.path().join("f");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&[7; 3 * 4096], 0).unwrap();
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 4096, 4096).unwrap();
    mount.kill();
    let mut expected = vec![7; 3 * 4096];
    expected[4096..8192].fill(0);
    assert_eq!(replayed(&mount), Contents::from([("f".into(), expected)]));
}

#[test]
fn many_small_files_fit_a_small_log() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let count = cases(700, 20_000);
    for number in 0..count {
        fs::write(mount.path().join(number.to_string()), number.to_string()).unwrap();
    }
    for number in 0..count {
        assert_eq!(fs::read_to_string(mount.source().join(number.to_string())).unwrap(), number.to_string());
    }
    assert_eq!(mount.unmount(), (count as u64, 0));
}
