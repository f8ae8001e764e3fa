//! Other processes that append to the log themselves: what becomes of it if they die, if there is no room, if the
//! file fails.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::shelf::{Book, Setup, small};
use untorn::Error;
use untorn::write_cache::{CacheOptions, CachedFile, Step, WriteCache};

const PATH: &str = "/slow/file";

fn options() -> CacheOptions {
    small(32).shared(true)
}

/// A file behind a log of its own.
fn file_behind_a_log() -> (Setup, WriteCache, Arc<Book>, CachedFile) {
    let (setup, cache, [book]) = Setup::create(options(), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    (setup, cache, book, file)
}

#[test]
fn other_processes_write_only_while_the_log_has_the_file() {
    let (_setup, cache, book, file) = file_behind_a_log();
    assert!(cache.shared().is_some());
    let beside = |bytes: &[u8], at| file.write_shared(bytes, at, None).unwrap();
    file.allow_writers(true);
    assert_eq!(beside(b"x", 0), None, "the log has no number for it");
    file.write_at(b"first", 0).unwrap();
    assert_eq!(beside(b"x", 0), None, "nobody let them in");
    file.allow_writers(true);
    assert_eq!(beside(b"second", 5), Some(6));
    assert_eq!(file.append(b"third").unwrap(), 11);
    assert_eq!(*book.bytes.lock().unwrap(), b"firstsecondthird");
    assert_eq!((file.counts_shared(), file.counts_shared()), ([1, 6, 0], [0; 3]));
    file.revoke_writers().unwrap();
    assert_eq!(beside(b"x", 0), None);
    file.allow_writers(false);
    assert_eq!(beside(b"F", 0), Some(1));
    assert!(!file.is_settled());
    file.demote().unwrap();
    assert!(file.is_settled());
    file.allow_writers(true);
    assert_eq!(beside(b"x", 0), None);
    assert_eq!(file.counts_shared(), [1, 1, 0]);
    assert_eq!(*book.bytes.lock().unwrap(), b"Firstsecondthird");
}

#[test]
fn every_waiter_completes_a_write_that_a_death_cut_short() {
    for step in Step::ALL {
        for way in 0..8 {
            let (setup, cache, book, file) = file_behind_a_log();
            file.write_at(b"before", 0).unwrap();
            file.allow_writers(true);
            file.write_shared(&[1; 200], 3, Some(step)).unwrap();
            assert_eq!(file.write_shared(b"x", 0, None).unwrap(), None, "what was left is for the server");
            let mut expected = b"before".to_vec();
            if step >= Step::Stored {
                expected.truncate(3);
                expected.extend([1; 200]);
            }
            match way {
                0 => cache.drain().unwrap(),
                1 => file.demote().unwrap(),
                2 => file.revoke_writers().unwrap(),
                3 => file.sync().unwrap(),
                4 => cache.sync().unwrap(),
                5 => file.recover_writers().unwrap(),
                6 => {
                    file.write_at(b"B", 0).unwrap();
                    expected[0] = b'B';
                }
                _ => {
                    file.set_len(5).unwrap();
                    expected.truncate(5);
                }
            }
            assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}, {way}");
            cache.drain().unwrap();
            assert_eq!(cache.info().unwrap().used, 0);
            drop((file, cache));
            let cache = setup.open().unwrap();
            assert_eq!(cache.replayed().operations, 0);
            assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}, {way}");
        }
    }
}

/// The kernel appends what is written by a description with `O_APPEND`, wherever it is said to go: what it has is not
/// written again.
#[test]
fn an_append_cut_short_by_a_death_is_appended_once() {
    for step in Step::ALL {
        // As much as the kernel had taken of it when the process was killed.
        for taken in [0, 1, 120, 200] {
            let (setup, cache, book, file) = file_behind_a_log();
            file.write_at(b"before", 0).unwrap();
            book.appends.store(true, Ordering::Relaxed);
            file.allow_writers(true);
            assert_eq!(file.append_shared(b" it", None).unwrap(), Some(3));
            assert_eq!(file.append_shared(&[1; 200], Some(step)).unwrap(), Some(0));
            if step == Step::Delivered {
                book.bytes.lock().unwrap().truncate(9 + taken);
            }
            file.revoke_writers().unwrap();
            let all = if step >= Step::Stored { 200 } else { 0 };
            let expected = [&b"before it"[..], &vec![1; all]].concat();
            assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}, {taken}");
            file.allow_writers(true);
            assert_eq!(file.append_shared(b"!", None).unwrap(), Some(1));
            let expected = [&expected[..], b"!"].concat();
            assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}, {taken}");
            // A crash that takes all that the kernel had, and one that takes nothing of it.
            book.appends.store(false, Ordering::Relaxed);
            let crashed = std::fs::read(&setup.log).unwrap();
            drop((file, cache));
            for nothing in [true, false] {
                std::fs::write(&setup.log, &crashed).unwrap();
                if nothing {
                    book.bytes.lock().unwrap().clear();
                }
                drop(setup.open().unwrap());
                assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}, {taken}, after a crash");
            }
        }
    }
}

#[test]
fn an_append_without_room_ends_where_the_process_was_told() {
    let (setup, cache, book, file) = file_behind_a_log();
    file.write_at(b"before", 0).unwrap();
    book.appends.store(true, Ordering::Relaxed);
    book.room.store(40, Ordering::Relaxed);
    file.allow_writers(true);
    assert_eq!(file.append_shared(&[1; 100], None).unwrap(), Some(34));
    assert_eq!(file.append_shared(b"x", None).unwrap_err().errno(), 28);
    let expected = [&b"before"[..], &[1; 34]].concat();
    assert_eq!(*book.bytes.lock().unwrap(), expected);
    drop((file, cache));
    book.room.store(usize::MAX, Ordering::Relaxed);
    book.appends.store(false, Ordering::Relaxed);
    let cache = setup.open().unwrap();
    assert_eq!(cache.replayed().operations, 0);
    assert_eq!(*book.bytes.lock().unwrap(), expected);
}

#[test]
fn a_length_set_by_another_process_is_that_of_the_file_or_not() {
    for step in Step::ALL.map(Some).into_iter().chain([None]) {
        for len in [3, 50] {
            let (setup, cache, book, file) = file_behind_a_log();
            file.write_at(b"before", 0).unwrap();
            file.allow_writers(true);
            assert_eq!(file.write_shared(b"B", 0, None).unwrap(), Some(1));
            assert_eq!(file.set_len_shared(len, step).unwrap(), Some(()));
            let mut expected = b"Before".to_vec();
            if step.is_none_or(|step| step >= Step::Stored) {
                expected.resize(len as usize, 0);
            }
            // A crash now, which takes all that the kernel had.
            let copy = setup.copy_log();
            let shown = book.bytes.lock().unwrap().clone();
            book.bytes.lock().unwrap().clear();
            drop(setup.open_log(&copy).unwrap());
            assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}, {len}, after a crash");
            *book.bytes.lock().unwrap() = shown;
            cache.drain().unwrap();
            assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}, {len}");
            file.revoke_writers().unwrap();
            file.allow_writers(true);
            assert_eq!(file.write_shared(b"x", 0, None).unwrap(), Some(1));
            assert_eq!(file.counts_shared()[..2], [2, 2], "a length is no write");
        }
    }
}

#[test]
fn a_length_that_the_file_refuses_is_never_replayed() {
    let (setup, cache, book, file) = file_behind_a_log();
    file.write_at(b"before", 0).unwrap();
    file.allow_writers(true);
    book.room.store(40, Ordering::Relaxed);
    assert_eq!(file.set_len_shared(100, None).unwrap_err().errno(), 28);
    assert_eq!(file.write_shared(b"B", 0, None).unwrap(), Some(1));
    assert_eq!(*book.bytes.lock().unwrap(), b"Before");
    // A crash now, which takes what is in the log alone, and then there is room.
    let copy = setup.copy_log();
    drop((file, cache));
    book.room.store(usize::MAX, Ordering::Relaxed);
    let cache = setup.open_log(&copy).unwrap();
    assert_eq!(cache.replayed().operations, 1);
    assert_eq!(*book.bytes.lock().unwrap(), b"Before");
}

#[test]
fn a_replay_finds_what_others_wrote_in_its_order() {
    for step in [None, Some(Step::Placed), Some(Step::Durable)] {
        let (setup, cache, book, file) = file_behind_a_log();
        file.write_at(&[1; 100], 0).unwrap();
        file.allow_writers(true);
        assert_eq!(file.write_shared(&[2; 100], 50, None).unwrap(), Some(100));
        file.write_at(&[3; 10], 60).unwrap();
        file.write_shared(&[4; 10], 65, step).unwrap();
        let last = if step == Some(Step::Placed) { 3 } else { 4 };
        // The log as a crash leaves it, with nobody who brings anything to an end.
        let copy = setup.copy_log();
        drop((file, cache));
        book.bytes.lock().unwrap().clear();
        let cache = setup.open_log(&copy).unwrap();
        assert_eq!(cache.replayed().operations, last);
        let ends = if last == 4 { [[3; 5], [4; 5], [4; 5]] } else { [[3; 5], [3; 5], [2; 5]] };
        let expected = [&[1; 50][..], &[2; 10], &ends.concat(), &[2; 75]].concat();
        assert_eq!(*book.bytes.lock().unwrap(), expected, "{step:?}");
    }
}

#[test]
fn bytes_without_room_in_the_file_are_never_replayed() {
    let (setup, cache, book, file) = file_behind_a_log();
    file.write_at(b"before", 0).unwrap();
    file.allow_writers(true);
    book.room.store(40, Ordering::Relaxed);
    assert_eq!(file.write_shared(&[1; 100], 10, None).unwrap(), Some(30));
    assert_eq!(file.write_shared(&[1; 100], 40, None).unwrap_err().errno(), 28);
    let expected = [&b"before"[..], &[0; 4], &[1; 30]].concat();
    assert_eq!(*book.bytes.lock().unwrap(), expected);
    drop((file, cache));
    book.room.store(usize::MAX, Ordering::Relaxed);
    let cache = setup.open().unwrap();
    assert_eq!(cache.replayed().operations, 0);
    assert_eq!(*book.bytes.lock().unwrap(), expected);
}

/// What others were shown, and built on, a replay leaves: not what the file had no room for.
#[test]
fn the_shown_end_of_a_file_is_one_that_a_replay_leaves() {
    // The process that was told, or would have been, dies first; what it left is brought to its end by a write, a
    // drain or a sync, or for its own sake.
    for step in [Step::Durable, Step::Delivered, Step::Completed] {
        for way in 0..5 {
            let (setup, cache, book, file) = file_behind_a_log();
            file.write_at(b"before", 0).unwrap();
            file.allow_writers(true);
            book.room.store(40, Ordering::Relaxed);
            file.write_shared(&[1; 100], 10, Some(step)).unwrap();
            assert_eq!(file.write_shared(b"x", 0, None).unwrap(), None, "{step:?}: it is not known what a replay does");
            match way {
                0 => {}
                1 => cache.drain().unwrap(),
                2 => file.recover_writers().unwrap(),
                // What a sync has answered for is what was shown then, and no more.
                3 => file.sync().unwrap(),
                _ => cache.sync().unwrap(),
            }
            if way >= 2 {
                let copy = setup.copy_log();
                let shown = book.bytes.lock().unwrap().clone();
                let room = book.room.swap(usize::MAX, Ordering::Relaxed);
                drop(setup.open_log(&copy).unwrap());
                assert_eq!(*book.bytes.lock().unwrap(), shown, "{step:?}, {way}");
                book.room.store(room, Ordering::Relaxed);
            }
            file.write_at(b"B", 0).unwrap();
            assert_eq!(file.write_shared(b"E", 1, None).unwrap(), Some(1));
            let shown = book.bytes.lock().unwrap().clone();
            assert_eq!(shown, [&b"BEfore"[..], &[0; 4], &[1; 30]].concat(), "{step:?}");
            // A crash now, and then there is room.
            let copy = setup.copy_log();
            drop((file, cache));
            book.room.store(usize::MAX, Ordering::Relaxed);
            let cache = setup.open_log(&copy).unwrap();
            assert_eq!(cache.replayed().operations, 2);
            assert_eq!(*book.bytes.lock().unwrap(), shown, "{step:?}");
        }
    }
}

#[test]
fn a_file_that_fails_amid_a_completion_blocks_no_other() {
    for step in [Step::Durable, Step::Completed] {
        let (setup, cache, [book, other]) = Setup::create(options(), [PATH, "/slow/other"]);
        let file = setup.attach_through(&cache, PATH);
        let second = setup.attach_through(&cache, "/slow/other");
        file.write_at(b"before", 0).unwrap();
        second.write_at(b"first", 0).unwrap();
        cache.drain().unwrap();
        file.allow_writers(true);
        book.room.store(40, Ordering::Relaxed);
        file.write_shared(&[1; 100], 10, Some(step)).unwrap();
        book.broken.store(true, Ordering::Relaxed);
        second.write_at(b"F", 0).unwrap();
        for _ in 0..3 {
            cache.drain_some().unwrap();
        }
        assert!(second.is_settled(), "{step:?}");
        second.demote().unwrap();
        assert!(matches!(file.write_at(b"x", 0), Err(Error::Poisoned { .. })));
        assert_eq!(*other.bytes.lock().unwrap(), b"First");
    }
}

/// One that is killed between the two steps of waking the drain has everybody believe that it is awake.
#[test]
fn entries_are_drained_even_without_a_notification() {
    let (setup, cache, _) = Setup::create(options().background(true), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    file.write_at(b"first", 0).unwrap();
    cache.drain().unwrap();
    file.allow_writers(true);
    let start = Instant::now();
    for round in 0..2 {
        // It rings for nothing.
        assert_eq!(file.write_shared(b"x", round, None).unwrap(), Some(1));
        while cache.info().unwrap().used > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it sleeps for ever");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn handles_that_go_at_the_same_time_leave_nothing_behind() {
    let (setup, cache, _) = Setup::create(options(), [PATH]);
    for round in 0..200 {
        let handles = [setup.attach_through(&cache, PATH), setup.attach_through(&cache, PATH)];
        handles[0].write_at(b"first", 0).unwrap();
        let together = Barrier::new(2);
        thread::scope(|scope| {
            for file in handles {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    file.allow_writers(true);
                    file.write_shared(b"x", 0, None).unwrap();
                    drop(file);
                });
            }
        });
        cache.drain().unwrap();
        let info = cache.info().unwrap();
        assert_eq!((info.files, info.used), (0, 0), "round {round}");
    }
}

#[test]
fn a_file_that_fails_is_no_longer_written_to_by_others() {
    let (_setup, cache, book, file) = file_behind_a_log();
    file.write_at(b"kept", 0).unwrap();
    file.allow_writers(true);
    assert_eq!(file.write_shared(b"too", 4, None).unwrap(), Some(3));
    book.broken.store(true, Ordering::Relaxed);
    cache.drain_some().unwrap();
    assert_eq!(file.write_shared(b"x", 0, None).unwrap(), None);
    assert!(matches!(file.write_at(b"x", 0), Err(Error::Poisoned { .. })));
    assert_eq!(cache.info().unwrap().stuck, 2);
}

#[test]
fn other_processes_may_fill_half_of_the_log_after_each_drain() {
    let (_setup, cache, _, file) = file_behind_a_log();
    file.write_at(b"first", 0).unwrap();
    file.allow_writers(true);
    for round in 0..40 {
        let written = (0..40).take_while(|n| file.write_shared(&[*n; 64], 0, None).unwrap().is_some()).count();
        assert_eq!(written, 16, "round {round}");
        // There is room for this one, and for one as long as may be.
        file.write_at(b"x", 0).unwrap();
        if round % 3 == 0 {
            file.write_at(&[7; 8 * 64], 0).unwrap();
        }
        cache.drain().unwrap();
    }
    assert_eq!(cache.info().unwrap().used, 0);
}
