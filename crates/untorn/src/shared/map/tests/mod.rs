//! What becomes of a shared map when the file behind it fails. A test that has the file fail does so in a process of
//! its own.

mod cuts;
mod external_writer;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::AtomicFile;
use crate::ipc::memory::tests::{Stage, is_poisoned, this_test, unavailable, with_processes};
use crate::sys::ring::FAIL;

#[test]
fn nothing_is_committed_or_rolled_back_after_a_failed_flush() {
    let child = |test: &Stage, _| {
        let map = SharedMap::open(test.dir.join("file")).unwrap();
        let words = [0, 512].map(|word| &map.words(0, 1024).unwrap()[word]);
        words.iter().for_each(|word| word.store(1, SeqCst));
        assert_eq!(map.commit().unwrap(), 1);
        words.iter().for_each(|word| word.store(2, SeqCst));
        FAIL.store(true, SeqCst);
        let first = map.commit().unwrap_err();
        assert!(matches!(first, Error::Io { .. }), "{first}");
        FAIL.store(false, SeqCst);
        // Commit 2 may be durable: a rollback to commit 1 would make the memory differ from it without anybody's
        // noticing.
        let read = map.read_at(&mut [0; 8], 0);
        let calls = [map.rollback(), map.commit().map(drop), map.grow(1 << 20).map(drop), read];
        calls.into_iter().for_each(|call| is_poisoned(call, ""));
        assert_eq!(words.map(|word| word.load(SeqCst)), [2, 2]);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        let path = test.dir.join("file");
        AtomicFile::create(&path, 8192).unwrap().settle().unwrap();
        test.start_unheard(0);
        test.succeeds(0);
        let map = SharedMap::open(&path).unwrap();
        let found = [0, 512].map(|word| map.words(0, 1024).unwrap()[word].load(SeqCst));
        assert!(matches!((map.last_commit(), found), (1, [1, 1]) | (2, [2, 2])), "{found:?}");
    });
}

/// Commits protect the memory again and again, so that the kernel cannot store to it.
#[test]
fn reads_from_a_descriptor_succeed_beside_commits() {
    if unavailable() {
        return;
    }
    const LEN: usize = 64 * 4096;
    let dir = tempfile::tempdir().unwrap();
    AtomicFile::create(dir.path().join("file"), LEN as u64).unwrap().settle().unwrap();
    let map = SharedMap::open(dir.path().join("file")).unwrap();
    let stop = AtomicBool::new(false);
    let mut expected = Vec::new();
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            while !stop.load(SeqCst) {
                map.commit().unwrap();
            }
        });
        let read_all = |expected: &[u8], source: &std::fs::File| {
            let mut at = 0;
            loop {
                match map.read_from(source, at, (LEN - at as usize).min(10_000)).unwrap() {
                    0 => break,
                    read => at += read as u64,
                }
            }
            assert_eq!(at as usize, expected.len());
            let mut found = vec![0; LEN];
            map.read_at(&mut found, 0).unwrap();
            assert!(found == expected);
        };
        // Until it has been in the middle of some commits.
        let mut round = 0_u32;
        while round < 20 || (map.last_commit() < 20 && !committing.is_finished()) {
            expected = (0..LEN as u32).map(|at| (at ^ (at >> 8) ^ round) as u8).collect();
            std::fs::write(dir.path().join("source"), &expected).unwrap();
            read_all(&expected, &std::fs::File::open(dir.path().join("source")).unwrap());
            round += 1;
        }
        stop.store(true, SeqCst);
    });
    let source = std::fs::File::open(dir.path().join("source")).unwrap();
    assert!(matches!(map.read_from(&source, 1, LEN), Err(Error::OutOfRange { .. })));
    assert_eq!(map.read_from(&source, 0, 0).unwrap(), 0);
    let error = map.read_from(std::fs::File::open(dir.path()).unwrap(), 0, 8).unwrap_err();
    assert_eq!(error.errno(), libc::EISDIR);
    map.commit().unwrap();
    map.close().unwrap();
    AtomicFile::open(dir.path().join("file")).unwrap().settle().unwrap();
    assert!(std::fs::read(dir.path().join("file")).unwrap() == expected);
}
