//! One call at a time.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::super::{Opener, PAGE, SharedMemory};
use super::{backing, child_of, open, spawn, unavailable};
use crate::error::Error;

const PAGES: usize = 100;

fn set(copy: &SharedMemory, page: usize, value: u64) {
    copy.words(page * PAGE, 1)[0].store(value, SeqCst);
}

fn get(copy: &SharedMemory, page: usize) -> u64 {
    copy.words(page * PAGE, 1)[0].load(SeqCst)
}

#[test]
fn committed_stores_outlive_the_last_process_others_do_not() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!((copy.len(), copy.reserved(), copy.last_commit()), ((PAGES * PAGE) as u64, 1 << 30, 0));
    assert!(copy.is_owner() && !copy.address().is_null());
    assert_eq!((0..PAGES).map(|page| get(&copy, page)).sum::<u64>(), 0);
    assert_eq!(copy.commit().unwrap(), 0, "there was nothing to commit");
    set(&copy, 3, 33);
    set(&copy, 99, 44);
    assert_eq!(copy.commit().unwrap(), 1);
    assert_eq!(copy.commit().unwrap(), 1, "nothing was stored since");
    set(&copy, 3, 55);
    set(&copy, 50, 66);
    copy.leave().unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!((copy.last_commit(), get(&copy, 3), get(&copy, 50), get(&copy, 99)), (1, 33, 0, 44));
    drop(copy);
    assert!(!dir.path().join("meeting.sock").exists(), "the socket's name stayed");
}

#[test]
fn a_rollback_takes_back_everything_since_the_last_commit() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    (0..PAGES).for_each(|page| set(&copy, page, 1));
    copy.commit().unwrap();
    for round in 2..5 {
        (0..PAGES).step_by(3).for_each(|page| set(&copy, page, round));
        assert_eq!(copy.roll_back().unwrap(), 1);
        assert!((0..PAGES).all(|page| get(&copy, page) == 1));
        assert_eq!(copy.commit().unwrap(), 1, "it left something to commit");
    }
    set(&copy, 6, 9);
    assert_eq!(copy.commit().unwrap(), 2, "a store after a rollback went unnoticed");
}

#[test]
fn two_processes_see_one_memory_that_grows_for_both() {
    const TEST: &str = "two_processes_see_one_memory_that_grows_for_both";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let copy = open(&dir, PAGES);
        assert!(!copy.is_owner());
        assert_eq!(get(&copy, 1), 5, "a store that nobody has committed yet");
        set(&copy, 2, 6);
        copy.grow((200 * PAGE + 10) as u64).unwrap();
        assert_eq!((copy.len(), get(&copy, 150)), ((200 * PAGE + 10) as u64, 0));
        set(&copy, 200, 7);
        // It ends without leaving, and without a commit.
        std::process::exit(0);
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    set(&copy, 1, 5);
    assert!(spawn("api", TEST, dir.path(), 0, None).wait().unwrap().success());
    assert_eq!((copy.len(), copy.last_commit()), ((200 * PAGE + 10) as u64, 1));
    assert_eq!((get(&copy, 2), get(&copy, 200)), (6, 7));
    set(&copy, 199, 8);
    assert_eq!(copy.commit().unwrap(), 2);
    for wrong in [PAGES * PAGE, (1 << 30) + 1] {
        let error = copy.grow(wrong as u64).unwrap_err();
        assert!(error.to_string().contains("a shared map can only grow"), "{error}");
    }
    copy.leave().unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!(copy.len(), (200 * PAGE + 10) as u64);
    assert_eq!([1, 2, 199, 200].map(|page| get(&copy, page)), [5, 6, 8, 7]);
}

/// On a full disk everything else goes on, also what is committed by others while it is full.
#[test]
fn a_length_that_cannot_be_had_is_seen_by_nobody() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    let longer = ((PAGES + 5) * PAGE + 10) as u64;
    set(&copy, 1, 5);
    fs::write(dir.path().join("full"), "").unwrap();
    let error = copy.grow(longer).unwrap_err();
    assert!(error.to_string().contains("the test's disk is full"), "{error}");
    assert_eq!(copy.len(), (PAGES * PAGE) as u64);
    assert!(copy.commit().is_err());
    fs::remove_file(dir.path().join("full")).unwrap();
    assert_eq!(copy.commit().unwrap(), 1);
    copy.leave().unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!((copy.len(), get(&copy, 1)), ((PAGES * PAGE) as u64, 5));
    assert_eq!(copy.grow(longer).unwrap(), 2);
    assert_eq!((copy.len(), get(&copy, PAGES + 4)), (longer, 0));
    set(&copy, PAGES + 5, 6);
    assert_eq!(copy.commit().unwrap(), 3);
}

#[test]
fn the_serving_process_may_leave() {
    const TEST: &str = "the_serving_process_may_leave";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let copy = open(&dir, PAGES);
        assert!(!copy.is_owner());
        set(&copy, 0, 1);
        while !copy.is_owner() {
            set(&copy, 1, get(&copy, 1) + 1);
            copy.commit().unwrap();
        }
        assert_eq!((get(&copy, 0), get(&copy, 2)), (1, 3));
        set(&copy, 3, 4);
        copy.commit().unwrap();
        return copy.leave().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    set(&copy, 2, 3);
    let mut child = spawn("api", TEST, dir.path(), 0, None);
    while copy.last_commit() < 20 {
        copy.commit().unwrap();
    }
    copy.leave().unwrap();
    assert!(child.wait().unwrap().success());
    let copy = open(dir.path(), PAGES);
    assert_eq!([0, 2, 3].map(|page| get(&copy, page)), [1, 3, 4]);
}

#[test]
fn a_commit_that_fails_can_be_tried_again() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    set(&copy, 1, 1);
    fs::write(dir.path().join("full"), "").unwrap();
    for _ in 0..2 {
        let error = copy.commit().unwrap_err();
        assert!(error.to_string().contains("the test's disk is full"), "{error}");
    }
    set(&copy, 2, 2);
    fs::remove_file(dir.path().join("full")).unwrap();
    assert_eq!(copy.commit().unwrap(), 1);
    copy.leave().unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!([1, 2].map(|page| get(&copy, page)), [1, 2]);
}

#[test]
fn an_unreadable_file_fails_every_call_and_every_commit() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    set(&copy, 99, 1);
    copy.commit().unwrap();
    fs::write(dir.path().join("unreadable"), "").unwrap();
    set(&copy, 0, get(&copy, 0) + 7);
    assert_eq!((get(&copy, 0), get(&copy, 1)), (7, 0));
    // Of pages in memory and of others.
    let loaded = [0, 60 * PAGE, 99 * PAGE].map(|at| copy.load(at, &mut [9; 8]).map(|()| 0));
    let opened = copy.open_range(0..8).map(|()| 0);
    let calls = [copy.commit(), copy.roll_back(), copy.grow((PAGES * PAGE) as u64), opened];
    for result in loaded.into_iter().chain(calls) {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Poisoned { cause, .. } if cause.contains("broken")), "{error}");
    }
    assert!(matches!(copy.store(0, &[1; 8]), Err(Error::Poisoned { .. })));
    copy.leave().unwrap();
    fs::remove_file(dir.path().join("unreadable")).unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!([0, 99].map(|page| get(&copy, page)), [0, 1]);
}

#[test]
fn a_failed_reopen_ends_all_waits_and_commits_nothing() {
    const TEST: &str = "a_failed_reopen_ends_all_waits_and_commits_nothing";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let copy = open(&dir, PAGES);
        assert!(copy.is_owner());
        set(&copy, 0, 1);
        copy.commit().unwrap();
        loop {
            std::thread::park();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = spawn("api", TEST, dir.path(), 0, None);
    let first = |dir: &std::path::Path| fs::read(dir.join("image")).is_ok_and(|image| image.first() == Some(&1));
    while !first(dir.path()) {
        std::thread::yield_now();
    }
    let copy = open(dir.path(), PAGES);
    assert_eq!(get(&copy, 0), 1);
    fs::write(dir.path().join("broken"), "the test's disk is gone").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    set(&copy, 1, 1);
    assert_eq!((get(&copy, 0), get(&copy, 99)), (1, 0));
    for result in [copy.load(99 * PAGE, &mut [9; 8]).map(|()| 0), copy.commit()] {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Poisoned { cause, .. } if cause.contains("is gone")), "{error}");
    }
    copy.leave().unwrap();
}

#[test]
fn a_store_beyond_the_end_is_told_by_the_next_call() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    set(&copy, 1, 1);
    assert_eq!(copy.commit().unwrap(), 1);
    set(&copy, PAGES + 1, 1);
    assert!(copy.commit().unwrap_err().is_page_lost());
    drop(copy);
    let copy = open(dir.path(), PAGES);
    assert_eq!((copy.len(), get(&copy, 1)), ((PAGES * PAGE) as u64, 1));
}

#[test]
fn a_second_handle_is_refused_and_file_errors_are_reported() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let try_open = || {
        let opener: Arc<dyn Opener> = Arc::new(backing::Journal::opener(dir.path(), PAGES));
        SharedMemory::open(&dir.path().join("data"), dir.path(), "meeting", opener, 1 << 20)
    };
    fs::write(dir.path().join("broken"), "a reason").unwrap();
    for _ in 0..2 {
        let error = try_open().err().unwrap();
        assert!(error.to_string().contains("a reason"), "{error}");
    }
    fs::write(dir.path().join("broken"), "panic").unwrap();
    let error = try_open().err().unwrap();
    assert!(matches!(&error, Error::Poisoned { cause, .. } if cause.contains("panicked")), "{error}");
    fs::remove_file(dir.path().join("broken")).unwrap();
    let copy = try_open().unwrap();
    let error = try_open().err().unwrap();
    assert!(matches!(&error, Error::InUse { holder, .. } if holder == "another handle of this process"), "{error}");
    set(&copy, 1, 1);
    assert_eq!(copy.commit().unwrap(), 1, "the second handle's end took the locks of the first");
    drop(copy);
    assert_eq!(try_open().unwrap().last_commit(), 1);
}

#[test]
fn a_range_opened_for_the_kernel_is_dirty_until_a_commit() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    let page = PAGE as u64;
    copy.open_range(5 * page + 100..7 * page + 1).unwrap();
    let zero = fs::File::open("/dev/zero").unwrap();
    let read = |at: u64, len: usize| copy.member.pages.read_from(&zero, at as usize, len);
    assert_eq!(read(5 * page + 100, 2 * PAGE).unwrap(), 2 * PAGE);
    assert_eq!(copy.commit().unwrap(), 1);
    assert_eq!(read(5 * page, 8).unwrap_err().raw_os_error(), Some(libc::EFAULT), "a store went unnoticed");
    copy.open_range(5 * page..5 * page + 8).unwrap();
    assert_eq!(read(5 * page, 8).unwrap(), 8);
    for wrong in [98 * page..101 * page, u64::MAX - 1..u64::MAX, std::ops::Range { start: 2, end: 1 }] {
        assert!(matches!(copy.open_range(wrong).unwrap_err(), Error::OutOfRange { .. }));
    }
}

#[test]
fn another_user_is_told_that_it_cannot_share() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const TEST: &str = "another_user_is_told_that_it_cannot_share";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let opener: Arc<dyn Opener> = Arc::new(|| panic!("it began a second working copy"));
        let error = SharedMemory::open(&dir.join("data"), &dir, "meeting", opener, 1 << 20).err().unwrap();
        return fs::write(dir.join("said"), error.to_string()).unwrap();
    }
    if !rustix::process::geteuid().is_root() {
        untorn_testing::skip!("only root can become another user");
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = open(dir.path(), PAGES);
    for name in ["", "meeting.lock", "meeting.sock"] {
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = super::command("api", TEST, dir.path(), 0, None);
    let ended = command.uid(65534).gid(65534).status();
    match ended {
        Ok(status) => assert!(status.success()),
        Err(error) => untorn_testing::skip!("another user cannot run this program: {error}"),
    }
    let said = fs::read_to_string(dir.path().join("said")).unwrap();
    assert!(said.contains("only processes of that user"), "{said}");
    set(&copy, 1, 1);
    assert_eq!(copy.commit().unwrap(), 1);
}
