//! What becomes of a shared map when the file behind it fails. A test that has the file fail does so in a process of its own.

mod cuts;
mod strangers;

use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::AtomicFile;
use crate::sharing::working::tests::{child_of, command_in, unavailable};
use crate::sys::ring::FAIL;

#[test]
fn after_a_failed_flush_nothing_is_rolled_back_or_committed() {
    const TEST: &str = "after_a_failed_flush_nothing_is_rolled_back_or_committed";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let map = SharedMap::open(dir.join("file")).unwrap();
        let words = map.words(0, 1024).unwrap();
        words[0].store(1, SeqCst);
        words[512].store(1, SeqCst);
        assert_eq!(map.commit().unwrap(), 1);
        words[0].store(2, SeqCst);
        words[512].store(2, SeqCst);
        FAIL.store(true, SeqCst);
        let first = map.commit().unwrap_err();
        assert!(matches!(first, Error::Io { .. }), "{first}");
        FAIL.store(false, SeqCst);
        // Commit 2 may be durable: a rollback to commit 1 would make the memory differ from it without anybody's noticing.
        let read = map.read_at(&mut [0; 8], 0);
        for refused in [map.rollback().err(), map.commit().err(), map.grow(1 << 20).err(), read.err()] {
            assert!(matches!(refused, Some(Error::Poisoned { .. })), "{refused:?}");
        }
        assert_eq!((words[0].load(SeqCst), words[512].load(SeqCst)), (2, 2));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    AtomicFile::create(dir.path().join("file"), 8192).unwrap().settle().unwrap();
    let ended = command_in("map::shared::tests", TEST, dir.path(), 0, None).status().unwrap();
    assert!(ended.success());
    let map = SharedMap::open(dir.path().join("file")).unwrap();
    let words = map.words(0, 1024).unwrap();
    let found = (words[0].load(SeqCst), words[512].load(SeqCst));
    assert!(matches!((map.last_commit(), found), (1, (1, 1)) | (2, (2, 2))), "{found:?}");
}
