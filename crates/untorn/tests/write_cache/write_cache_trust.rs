//! Whose logs are believed, who may read one, and what is left in it.

use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use crate::common::memory_dir;
use crate::common::shelf::{Setup, small};
use crate::common::system::{Untouched, counting_in_mappings};
use untorn::write_cache::{CacheOptions, WriteCache, find_logs, inspect_log, replay};
use untorn::{Error, Result};

/// A user who is not the one that runs the tests.
const ANOTHER: u32 = 65_534;

fn options() -> CacheOptions {
    CacheOptions::new().size(1 << 20).max_files(16).background(false)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A log with a write for a file beside it, which the file does not have yet.
fn left_behind(dir: &Path) -> (PathBuf, PathBuf) {
    let (log, path) = (dir.join("log"), dir.join("file"));
    fs::write(&path, b"before").unwrap();
    let cache = options().create(&log).unwrap();
    attach(&cache, &path, b"logged");
    (log, path)
}

fn attach(cache: &WriteCache, path: &Path, bytes: &[u8]) {
    let plain = File::open(path).unwrap();
    cache.attach(plain.as_fd(), path).unwrap().write_at(bytes, 0).unwrap();
}

/// Every way to have a log believed.
fn all_ways(log: &Path) -> [Result<()>; 3] {
    [options().open(log).map(drop), replay(log, None).map(drop), inspect_log(log).map(drop)]
}

#[track_caller]
fn refused_by_all(log: &Path, path: &Path) {
    for refused in all_ways(log) {
        assert!(matches!(&refused, Err(Error::UntrustedLog { path, .. }) if path == log), "{refused:?}");
    }
    assert_eq!(fs::read(path).unwrap(), b"before", "a log that is not trusted was believed");
}

#[test]
fn a_log_is_for_its_owner_alone_from_its_first_moment_on() {
    let dir = memory_dir();
    let (log, path) = left_behind(dir.path());
    assert_eq!(mode(&log), 0o600);
    // As an earlier version made it. A look changes nothing, and an owner puts it right before anything is stored.
    fs::set_permissions(&log, Permissions::from_mode(0o644)).unwrap();
    inspect_log(&log).unwrap();
    assert_eq!(mode(&log), 0o644);
    assert!(replay(&log, None).unwrap().is_complete());
    assert_eq!((mode(&log), fs::read(&path).unwrap()), (0o600, b"logged".to_vec()));
}

#[test]
fn a_log_that_others_may_write_to_is_refused() {
    let dir = memory_dir();
    let (log, path) = left_behind(dir.path());
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&log, Permissions::from_mode(mode)).unwrap();
        refused_by_all(&log, &path);
    }
    assert_eq!(find_logs(dir.path()).unwrap(), std::slice::from_ref(&log), "it is named, and refused");
    let pool = options().open_in(dir.path()).unwrap();
    assert_ne!(pool.path(), log);
    assert_eq!(fs::read(&path).unwrap(), b"before");
    fs::set_permissions(&log, Permissions::from_mode(0o600)).unwrap();
    assert!(replay(&log, None).unwrap().is_complete());
    assert_eq!(fs::read(&path).unwrap(), b"logged");
}

#[test]
fn a_log_of_another_user_is_refused_whatever_its_name() {
    untorn_testing::needs!("root");
    let dir = memory_dir();
    let (log, path) = left_behind(dir.path());
    lchown(&log, Some(ANOTHER), Some(ANOTHER)).unwrap();
    refused_by_all(&log, &path);
    let own = dir.path().join("own");
    symlink(&log, &own).unwrap();
    for refused in all_ways(&own) {
        assert!(matches!(&refused, Err(Error::UntrustedLog { .. })), "{refused:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"before");
    lchown(&log, Some(0), Some(0)).unwrap();
    // A link is followed if the caller or root made it.
    assert_eq!(inspect_log(&own).unwrap().operations, 1);
    lchown(&own, Some(ANOTHER), Some(ANOTHER)).unwrap();
    refused_by_all(&own, &path);
}

#[test]
fn a_log_with_two_names_is_refused() {
    let dir = memory_dir();
    let (log, path) = left_behind(dir.path());
    let second = dir.path().join("second");
    fs::hard_link(&log, &second).unwrap();
    refused_by_all(&log, &path);
    fs::remove_file(&second).unwrap();
    assert!(replay(&log, None).unwrap().is_complete());
}

#[test]
fn a_look_at_a_log_and_its_files_stores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = left_behind(dir.path());
    let untouched = Untouched::watch(&[dir.path()]);
    assert_eq!(inspect_log(&log).unwrap().operations, 1);
    assert_eq!(find_logs(dir.path()).unwrap(), [log]);
    untouched.check("a look at a log");
    assert_eq!(fs::read(path).unwrap(), b"before");
}

/// Somebody names the database of a live program where a log is expected.
#[test]
fn a_file_that_is_no_log_is_left_alone_under_a_live_mapping() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    fs::write(&live, vec![0; 64 << 10]).unwrap();
    let lost = counting_in_mappings(&live, || {
        for _ in 0..untorn_testing::cases(100, 3000) {
            for refused in all_ways(&live) {
                assert!(matches!(&refused, Err(Error::Invalid { .. })), "{refused:?}");
            }
            assert!(find_logs(dir.path()).unwrap().is_empty());
        }
    });
    assert_eq!(lost, 0, "stores of a live program were taken back");
}

#[test]
fn a_drained_log_keeps_no_bytes_of_files() {
    const SECRET: &[u8] = b"top secret";
    let has_secret = |log: &Path| fs::read(log).unwrap().windows(SECRET.len()).any(|bytes| bytes == SECRET);
    let path = "/slow/file";
    // So many writes that the ring wraps round, or not.
    for writes in [1, 5, 100] {
        let (setup, cache, _) = Setup::create(small(16), [path]);
        let file = setup.attach(&cache, path);
        (0..writes).for_each(|n| file.write_at(SECRET, n).unwrap());
        cache.drain().unwrap();
        assert!(has_secret(&setup.log), "the file is still attached");
        drop(file);
        cache.drain().unwrap();
        assert!(!has_secret(&setup.log), "after {writes} writes and a drain");
        // What a later life leaves, and does not drain, a replay wipes.
        setup.attach(&cache, path).write_at(SECRET, 0).unwrap();
        drop(cache);
        assert!(has_secret(&setup.log), "nobody has brought it to the file");
        drop(setup.open().unwrap());
        assert!(!has_secret(&setup.log), "after a replay");
        let cache = setup.open().unwrap();
        let file = setup.attach(&cache, path);
        file.write_at(SECRET, 7).unwrap();
        cache.drain().unwrap();
        drop((file, cache));
        assert!(!has_secret(&setup.log), "after the last handle went");
    }
}

#[test]
fn a_log_is_not_given_away_by_its_creation() {
    untorn_testing::needs!("root");
    // In a directory of a group, whose files are the group's.
    let dir = memory_dir();
    lchown(dir.path(), Some(0), Some(ANOTHER)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o2775)).unwrap();
    let log = dir.path().join("log");
    drop(options().create(&log).unwrap());
    assert_eq!((mode(&log), fs::metadata(&log).unwrap().uid()), (0o600, 0));
    drop(options().open(&log).unwrap());
}
