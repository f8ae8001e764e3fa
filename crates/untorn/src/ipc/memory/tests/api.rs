//! One call at a time.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::super::{Opener, PAGE, SharedMemory};
use super::{
    READY, STOP, Stage, alone, backing, fails, get, is_poisoned, open, set, this_test, unavailable, with_processes,
};
use crate::error::Error;

const PAGES: usize = 100;

/// Leaves, as the last process, and begins again.
fn again(copy: SharedMemory, dir: &Path) -> SharedMemory {
    copy.leave().unwrap();
    open(dir, PAGES)
}

#[test]
fn committed_stores_outlive_the_last_process_others_do_not() {
    let Some((dir, copy)) = alone(PAGES) else { return };
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
    let copy = again(copy, dir.path());
    assert_eq!((copy.last_commit(), get(&copy, 3), get(&copy, 50), get(&copy, 99)), (1, 33, 0, 44));
    drop(copy);
    assert!(!dir.path().join("meeting.sock").exists(), "the socket's name stayed");
}

#[test]
fn a_rollback_takes_back_everything_since_the_last_commit() {
    let Some((_dir, copy)) = alone(PAGES) else { return };
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
    const LONGER: u64 = (200 * PAGE + 10) as u64;
    let child = |test: &Stage, _| {
        let copy = open(&test.dir, PAGES);
        assert!(!copy.is_owner());
        assert_eq!(get(&copy, 1), 5, "a store that nobody has committed yet");
        set(&copy, 2, 6);
        copy.grow(LONGER).unwrap();
        assert_eq!((copy.len(), get(&copy, 150)), (LONGER, 0));
        set(&copy, 200, 7);
        // It ends without leaving, and without a commit.
        std::process::exit(0);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        let copy = open(&test.dir, PAGES);
        set(&copy, 1, 5);
        test.start_unheard(0);
        test.succeeds(0);
        assert_eq!((copy.len(), copy.last_commit()), (LONGER, 1));
        assert_eq!((get(&copy, 2), get(&copy, 200)), (6, 7));
        set(&copy, 199, 8);
        assert_eq!(copy.commit().unwrap(), 2);
        for wrong in [PAGES * PAGE, (1 << 30) + 1] {
            fails(copy.grow(wrong as u64), "a shared map can only grow");
        }
        let copy = again(copy, &test.dir);
        assert_eq!(copy.len(), LONGER);
        assert_eq!([1, 2, 199, 200].map(|page| get(&copy, page)), [5, 6, 8, 7]);
    });
}

/// On a full disk everything else goes on, also what is committed by others while it is full.
#[test]
fn a_length_that_cannot_be_had_is_seen_by_nobody() {
    let Some((dir, copy)) = alone(PAGES) else { return };
    let longer = ((PAGES + 5) * PAGE + 10) as u64;
    set(&copy, 1, 5);
    fs::write(dir.path().join("full"), "").unwrap();
    fails(copy.grow(longer), "the test's disk is full");
    assert_eq!(copy.len(), (PAGES * PAGE) as u64);
    assert!(copy.commit().is_err());
    fs::remove_file(dir.path().join("full")).unwrap();
    assert_eq!(copy.commit().unwrap(), 1);
    let copy = again(copy, dir.path());
    assert_eq!((copy.len(), get(&copy, 1)), ((PAGES * PAGE) as u64, 5));
    assert_eq!(copy.grow(longer).unwrap(), 2);
    assert_eq!((copy.len(), get(&copy, PAGES + 4)), (longer, 0));
    set(&copy, PAGES + 5, 6);
    assert_eq!(copy.commit().unwrap(), 3);
}

#[test]
fn the_serving_process_may_leave() {
    let child = |test: &Stage, _| {
        let copy = open(&test.dir, PAGES);
        assert!(!copy.is_owner());
        set(&copy, 0, 1);
        while !copy.is_owner() {
            set(&copy, 1, get(&copy, 1) + 1);
            copy.commit().unwrap();
        }
        assert_eq!((get(&copy, 0), get(&copy, 2)), (1, 3));
        set(&copy, 3, 4);
        copy.commit().unwrap();
        copy.leave().unwrap();
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        let copy = open(&test.dir, PAGES);
        set(&copy, 2, 3);
        test.start_unheard(0);
        while copy.last_commit() < 20 {
            copy.commit().unwrap();
        }
        copy.leave().unwrap();
        test.succeeds(0);
        let copy = open(&test.dir, PAGES);
        assert_eq!([0, 2, 3].map(|page| get(&copy, page)), [1, 3, 4]);
    });
}

#[test]
fn a_commit_that_fails_can_be_tried_again() {
    let Some((dir, copy)) = alone(PAGES) else { return };
    set(&copy, 1, 1);
    fs::write(dir.path().join("full"), "").unwrap();
    for _ in 0..2 {
        fails(copy.commit(), "the test's disk is full");
    }
    set(&copy, 2, 2);
    fs::remove_file(dir.path().join("full")).unwrap();
    assert_eq!(copy.commit().unwrap(), 1);
    let copy = again(copy, dir.path());
    assert_eq!([1, 2].map(|page| get(&copy, page)), [1, 2]);
}

#[test]
fn an_unreadable_file_fails_every_call_and_every_commit() {
    let Some((dir, copy)) = alone(PAGES) else { return };
    set(&copy, 99, 1);
    copy.commit().unwrap();
    fs::write(dir.path().join("unreadable"), "").unwrap();
    set(&copy, 0, get(&copy, 0) + 7);
    assert_eq!((get(&copy, 0), get(&copy, 1)), (7, 0));
    // Of pages in memory and of others.
    let loaded = [0, 60 * PAGE, 99 * PAGE].map(|at| copy.load(at, &mut [9; 8]).map(|()| 0));
    let opened = copy.open_range(0..8).map(|()| 0);
    let calls = [copy.commit(), copy.roll_back(), copy.grow((PAGES * PAGE) as u64), opened];
    loaded.into_iter().chain(calls).for_each(|result| is_poisoned(result, "broken"));
    assert!(matches!(copy.store(0, &[1; 8]), Err(Error::Poisoned { .. })));
    copy.leave().unwrap();
    fs::remove_file(dir.path().join("unreadable")).unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!([0, 99].map(|page| get(&copy, page)), [0, 1]);
}

#[test]
fn a_failed_reopen_ends_all_waits_and_commits_nothing() {
    let child = |test: &Stage, _| {
        let copy = open(&test.dir, PAGES);
        assert!(copy.is_owner());
        set(&copy, 0, 1);
        copy.commit().unwrap();
        test.say(READY);
        test.hear(STOP);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        test.start(0, READY);
        let copy = open(&test.dir, PAGES);
        assert_eq!(get(&copy, 0), 1);
        fs::write(test.dir.join("broken"), "the test's disk is gone").unwrap();
        test.kill(0);
        set(&copy, 1, 1);
        assert_eq!((get(&copy, 0), get(&copy, 99)), (1, 0));
        is_poisoned(copy.load(99 * PAGE, &mut [9; 8]), "is gone");
        is_poisoned(copy.commit(), "is gone");
        copy.leave().unwrap();
    });
}

#[test]
fn a_store_beyond_the_end_is_told_by_the_next_call() {
    let Some((dir, copy)) = alone(PAGES) else { return };
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
        fails(try_open(), "a reason");
    }
    fs::write(dir.path().join("broken"), "panic").unwrap();
    is_poisoned(try_open(), "panicked");
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
    let Some((_dir, copy)) = alone(PAGES) else { return };
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
    let child = |test: &Stage, _| {
        let opener: Arc<dyn Opener> = Arc::new(|| panic!("it began a second working copy"));
        let opened = SharedMemory::open(&test.dir.join("data"), &test.dir, "meeting", opener, 1 << 20);
        fs::write(test.dir.join("said"), opened.err().unwrap().to_string()).unwrap();
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        if !rustix::process::geteuid().is_root() {
            untorn_testing::skip!("only root can become another user");
        }
        let copy = open(&test.dir, PAGES);
        for name in ["", "meeting.lock", "meeting.sock", "notes"] {
            fs::set_permissions(test.dir.join(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        match test.command(0).uid(65534).gid(65534).status() {
            Ok(status) => assert!(status.success()),
            Err(error) => untorn_testing::skip!("another user cannot run this program: {error}"),
        }
        let said = fs::read_to_string(test.dir.join("said")).unwrap();
        assert!(said.contains("only processes of that user"), "{said}");
        set(&copy, 1, 1);
        assert_eq!(copy.commit().unwrap(), 1);
    });
}
