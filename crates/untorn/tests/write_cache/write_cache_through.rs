//! Files that are written through a log: the kernel has what was written at once, and what the log has besides is not
//! more.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::memory_dir;
use crate::common::shelf::{Setup, pmem, small};
use untorn::Error;
use untorn::write_cache::ReplayOutcome;
use untorn::write_cache::{BackingDir, Descriptor, Kernel};

const PATH: &str = "/slow/file";

#[test]
fn a_write_is_in_the_file_and_in_the_log_when_it_returns() {
    let (setup, cache, [book]) = Setup::create(small(32), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    file.write_at(&[7; 200], 10).unwrap();
    assert_eq!(file.append(b"end").unwrap(), 210);
    file.set_len(212).unwrap();
    let expected = [&[0; 10][..], &[7; 200], b"en"].concat();
    assert_eq!(*book.bytes.lock().unwrap(), expected);
    assert!(!file.is_settled(), "a power cut may still take it from the file");
    drop((file, cache));
    // As one does.
    book.bytes.lock().unwrap().clear();
    let cache = setup.open().unwrap();
    assert_eq!(cache.replayed().operations, 3);
    assert_eq!(*book.bytes.lock().unwrap(), expected);
}

#[test]
fn the_drain_writes_nothing_over_what_is_there() {
    let (setup, cache, [book]) = Setup::create(small(32), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    file.write_at(b"written", 0).unwrap();
    book.bytes.lock().unwrap()[0] = b'W';
    cache.drain().unwrap();
    assert!(file.is_settled());
    assert_eq!(*book.bytes.lock().unwrap(), b"Written");
    file.demote().unwrap();
    file.write_at(b"later", 0).unwrap();
    assert_eq!(*book.bytes.lock().unwrap(), b"lateren");
}

#[test]
fn a_full_file_fails_writes_at_once_and_none_is_replayed() {
    // A write of two entries, and one that is longer than the log takes.
    for len in [100, 30 * 64] {
        let (setup, cache, [book]) = Setup::create(small(32), [PATH]);
        let file = setup.attach_through(&cache, PATH);
        file.write_at(b"before", 0).unwrap();
        book.room.store(40, Ordering::Relaxed);
        assert_eq!(file.write_some(&vec![1; len], 10).unwrap(), 30);
        let expected = [&b"before"[..], &[0; 4], &[1; 30]].concat();
        assert_eq!(*book.bytes.lock().unwrap(), expected);
        for refused in [file.write_some(&vec![2; len], 40).map(drop), file.write_at(&[2; 9], 40), file.set_len(100)] {
            assert_eq!(refused.unwrap_err().errno(), 28);
        }
        // Part of it is written all the same.
        assert_eq!(file.write_at(&[3; 9], 36).unwrap_err().errno(), 28);
        let expected = [&expected[..36], &[3; 4]].concat();
        file.sync().unwrap();
        drop((file, cache));
        book.room.store(usize::MAX, Ordering::Relaxed);
        let cache = setup.open().unwrap();
        assert!(cache.replayed().is_complete());
        assert_eq!(*book.bytes.lock().unwrap(), expected, "a replay wrote what the program was told is not written");
    }
}

#[test]
fn a_background_failure_is_reported_and_writes_are_kept() {
    let (setup, cache, [book]) = Setup::create(small(32), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    file.write_at(b"kept", 0).unwrap();
    file.check_usable().unwrap();
    book.broken.store(true, Ordering::Relaxed);
    cache.drain_some().unwrap();
    assert!(!file.is_settled());
    for refused in [file.check_usable(), file.write_at(b"x", 0), file.sync(), file.set_len(1), file.demote()] {
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    }
    // The device never got it.
    book.bytes.lock().unwrap().clear();
    book.broken.store(false, Ordering::Relaxed);
    drop((file, cache));
    let cache = setup.open().unwrap();
    assert!(cache.replayed().is_complete());
    assert_eq!(*book.bytes.lock().unwrap(), b"kept");
}

#[test]
fn a_file_is_written_through_by_all_its_handles_or_by_none() {
    let (setup, cache, _) = Setup::create(small(32), [PATH]);
    let (first, other) = (setup.attach_through(&cache, PATH), setup.attach_through(&cache, PATH));
    let slow = setup.shelf.open(Path::new(PATH)).unwrap().unwrap();
    assert!(matches!(cache.attach_backing(slow, Path::new(PATH)), Err(Error::Invalid { .. })));
    first.write_at(b"one", 0).unwrap();
    other.append(b" two").unwrap();
    drop((first, other));
    cache.drain().unwrap();
    let slow = setup.shelf.open(Path::new(PATH)).unwrap().unwrap();
    assert_eq!(cache.attach_backing(slow, Path::new(PATH)).unwrap().len().unwrap(), 7);
}

/// A log that is replayed before the file system with the files is mounted: in its place is another directory.
#[test]
fn a_removal_is_not_assumed_on_an_unmounted_file_system() {
    let dir = memory_dir();
    let slow = tempfile::tempdir().unwrap();
    let mount = slow.path().canonicalize().unwrap().join("mount");
    std::fs::create_dir_all(mount.join("sub")).unwrap();
    let (path, log) = (mount.join("sub/file"), dir.path().join("log"));
    let cache = small(32).create_on(pmem(), Arc::new(Kernel), &log).unwrap();
    let plain = std::fs::File::create_new(&path).unwrap();
    let file = cache.attach_write_through(Arc::new(Descriptor::reopen(plain.as_fd(), &path).unwrap()), &path).unwrap();
    file.write_at(b"acknowledged", 0).unwrap();
    if !file.prepare_unlink().unwrap() {
        // A file system that does not tell a file from an earlier one with its number: nothing is ever left there.
        file.demote().unwrap();
        return;
    }
    drop((file, cache));
    let away = slow.path().join("away");
    std::fs::rename(&mount, &away).unwrap();
    for there in [vec![mount.clone()], vec![mount.clone(), mount.join("sub")]] {
        there.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        let refused = small(32).open_on(pmem(), Arc::new(Kernel), &log);
        assert!(matches!(refused, Err(Error::ReplayIncomplete { .. })), "{there:?}: {refused:?}");
        there.iter().rev().for_each(|dir| std::fs::remove_dir(dir).unwrap());
    }
    std::fs::rename(&away, &mount).unwrap();
    // Without its directory it is gone, if that is gone from the one above.
    std::fs::remove_dir_all(mount.join("sub")).unwrap();
    let cache = small(32).open_on(pmem(), Arc::new(Kernel), &log).unwrap();
    assert_eq!(cache.replayed().files[0].fate, ReplayOutcome::Removed);
}

/// A log of today's writer, with the times of its entries, whose process was killed.
const TIMED: &str = "tests/golden/write-cache-timed.log";

#[test]
fn a_golden_log_with_times_is_replayed() {
    const ENTRIES: usize = 3 * 4096 + 4 * 8192;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(TIMED);
    if std::env::var_os("UNTORN_BLESS").is_some() {
        let (setup, cache, _) = Setup::create(small(16), [PATH]);
        let file = setup.attach_through(&cache, PATH);
        file.write_at(&[7; 100], 10).unwrap();
        file.set_len(50).unwrap();
        file.append(b"end").unwrap();
        drop((file, cache));
        let mut bytes = std::fs::read(&setup.log).unwrap();
        bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1);
        std::fs::write(&golden, bytes).unwrap();
    }
    let mut bytes = std::fs::read(golden).unwrap();
    bytes.resize(ENTRIES + 16 * 128, 0);
    // A time in the year 2020 or later, in each entry.
    for entry in 0..4 {
        let at = ENTRIES + entry * 128 + 48;
        assert!(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) > 1_577_836_800_000_000_000, "entry {entry}");
    }
    let (setup, cache, [book]) = Setup::create(small(16), [PATH]);
    drop(cache);
    std::fs::write(&setup.log, bytes).unwrap();
    let cache = setup.open().unwrap();
    assert_eq!((cache.replayed().operations, cache.replayed().is_complete()), (3, true));
    assert_eq!(*book.bytes.lock().unwrap(), [&[0; 10][..], &[7; 40], b"end"].concat());
}
