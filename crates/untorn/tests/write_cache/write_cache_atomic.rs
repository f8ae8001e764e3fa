//! Atomic files: what a crash leaves of epochs, and how open ones live in a log that is full.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::shelf::{Setup, contents, small};
use untorn::testing::storage::PageCache;
use untorn::write_cache::{BackingDir, CachedFile, Descriptor, WriteCache};
use untorn::{Durability, Error};

const A: &str = "/slow/a";
const B: &str = "/slow/b";
const ENOSPC: i32 = 28;

/// The files' contents after a crash at this moment, and the report of the replay.
fn crash<const N: usize>(setup: &Setup, paths: [&str; N]) -> ([Vec<u8>; N], untorn::write_cache::Replay) {
    let before = paths.map(|path| setup.get(path));
    let cache = setup.open_log(&setup.copy_log()).unwrap();
    let (found, replay) = (paths.map(|path| setup.get(path)), cache.replayed().clone());
    drop(cache);
    for (path, bytes) in paths.iter().zip(before) {
        *setup.shelf.files.lock().unwrap()[Path::new(path)].bytes.lock().unwrap() = bytes;
    }
    (found, replay)
}

/// Writes once round the log, which has 64 entries, and more.
fn fill(cache: &WriteCache, setup: &Setup, path: &str, rounds: u32) {
    let other = setup.attach(cache, path);
    for round in 0..rounds * 64 {
        other.write_at(&round.to_le_bytes(), u64::from(round % 10) * 100).unwrap();
    }
}

#[test]
fn a_crash_leaves_the_last_commit_and_nothing_of_the_open_epoch() {
    let (setup, cache, _) = Setup::create(small(64), [A, B]);
    let (a, b) = (setup.attach_atomic(&cache, A), setup.attach_atomic(&cache, B));
    a.write_at(&[1; 200], 0).unwrap();
    assert_eq!(crash(&setup, [A]).0, [b""]);
    assert!(a.has_open_epoch());
    a.commit().unwrap();
    assert!(!a.has_open_epoch());
    b.write_at(&[7; 10], 0).unwrap();
    a.set_len(50).unwrap();
    a.append(&[2; 100]).unwrap();
    a.set_len(300).unwrap();
    let shown = [&[1; 50][..], &[2; 100], &[0; 150]].concat();
    assert_eq!(contents(&a), shown);
    let (found, replay) = crash(&setup, [A, B]);
    assert_eq!((found, replay.open_epochs), ([vec![1; 200], Vec::new()], 2));
    assert_eq!((replay.operations, replay.incomplete), (1, 0));
    // A commit of one file says nothing of the other; no drain brings a part of an epoch to its file.
    a.sync().unwrap();
    cache.drain().unwrap();
    assert_eq!((setup.get(A), setup.get(B)), (shown.clone(), Vec::new()));
    assert_eq!(crash(&setup, [A, B]).0, [shown.clone(), Vec::new()]);
    cache.sync().unwrap();
    let (found, replay) = crash(&setup, [A, B]);
    assert_eq!((found, replay.open_epochs), ([shown, vec![7; 10]], 0));
}

#[test]
fn an_open_epoch_moves_on_in_a_full_log_and_counts_whole() {
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let (setup, cache, _) = Setup::create(small(64).durability(durability), [A, B, "/slow/c"]);
        let (a, b) = (setup.attach_atomic(&cache, A), setup.attach_atomic(&cache, B));
        a.write_at(&[9; 30], 0).unwrap();
        a.commit().unwrap();
        let mut expected = vec![9; 30];
        for round in 1..=3_u8 {
            let before = expected.clone();
            a.write_at(&[round; 100], 20).unwrap();
            b.append(&[round; 3]).unwrap();
            fill(&cache, &setup, "/slow/c", 2);
            a.set_len(60).unwrap();
            a.append(&[round + 10; 70]).unwrap();
            expected.truncate(20);
            expected.extend([round; 40]);
            expected.extend([round + 10; 70]);
            fill(&cache, &setup, "/slow/c", 2);
            assert_eq!((contents(&a), contents(&b).len()), (expected.clone(), usize::from(round) * 3));
            assert_eq!(crash(&setup, [A, B]).0, [before, Vec::new()], "round {round}");
            if round == 2 {
                a.commit_later().unwrap();
            }
            a.commit().unwrap();
            assert_eq!(crash(&setup, [A, B]).0, [expected.clone(), Vec::new()], "round {round}");
        }
        cache.drain().unwrap();
        assert_eq!((setup.get(A), setup.get(B)), (expected, Vec::new()));
        b.commit().unwrap();
        drop((a, b, cache));
        setup.open().unwrap();
        assert_eq!(setup.get(B), [1, 1, 1, 2, 2, 2, 3, 3, 3]);
    }
}

#[test]
fn a_refused_change_fails_every_commit_until_the_epoch_is_gone() {
    let (setup, cache, _) = Setup::create(small(64), [A, B]);
    let (a, b) = (setup.attach_atomic(&cache, A), setup.attach_atomic(&cache, B));
    a.write_at(b"committed", 0).unwrap();
    a.commit().unwrap();
    // Three eighths of 64 entries, with one for the commit.
    let refused = a.write_at(&[1; 64 * 24], 0).unwrap_err();
    assert_eq!(refused.errno(), ENOSPC, "{refused}");
    for refused in [a.commit(), a.commit_later(), a.sync(), cache.sync(), a.write_at(b"x", 0), a.set_len(1)] {
        assert!(matches!(&refused, Err(error) if error.errno() == ENOSPC), "{refused:?}");
    }
    assert_eq!(b.write_at(&[2; 64 * 9], 0).unwrap_err().errno(), ENOSPC, "the other has the room");
    a.abandon().unwrap();
    b.abandon().unwrap();
    assert_eq!((contents(&a), contents(&b), cache.info().unwrap().uncommitted), (b"committed".to_vec(), Vec::new(), 0));
    // With the last handle, too.
    let other = setup.attach_atomic(&cache, A);
    a.write_at(&[1; 64 * 24], 0).unwrap_err();
    drop(a);
    assert_eq!(other.commit().unwrap_err().errno(), ENOSPC);
    drop(other);
    let a = setup.attach_atomic(&cache, A);
    a.write_at(&[3; 64 * 20], 4).unwrap();
    a.commit().unwrap();
    assert_eq!(crash(&setup, [A]).0, [[&b"comm"[..], &[3; 64 * 20]].concat()]);
}

/// A file that finds no line in the file table lacks its change, and no commit may hide that.
#[test]
fn a_change_without_a_line_in_the_file_table_is_refused() {
    const ENFILE: i32 = 23;
    let paths = ["/slow/0", "/slow/1", "/slow/2", "/slow/3", "/slow/4"];
    let (setup, cache, _) = Setup::create(small(64), paths);
    let mut files = paths.map(|path| Some(setup.attach_atomic(&cache, path)));
    let file = |files: &[Option<CachedFile>; 5], n: usize| files[n].as_ref().unwrap().write_at(b"one", 0);
    (0..4).for_each(|n| file(&files, n).unwrap());
    let last = files[4].as_ref().unwrap();
    assert_eq!(last.take_line().unwrap_err().errno(), ENFILE);
    last.commit().unwrap();
    assert_eq!(file(&files, 4).unwrap_err().errno(), ENFILE);
    files[0] = None;
    let last = files[4].as_ref().unwrap();
    assert_eq!([last.commit(), last.set_len(1)].map(|refused| refused.unwrap_err().errno()), [ENFILE; 2]);
    last.abandon().unwrap();
    last.write_at(b"two", 0).unwrap();
    cache.sync().unwrap();
    assert_eq!(crash(&setup, ["/slow/0", "/slow/3", "/slow/4"]).0, [b"".to_vec(), b"one".to_vec(), b"two".to_vec()]);
}

#[test]
fn what_the_last_handle_leaves_uncommitted_is_dropped() {
    let (setup, cache, _) = Setup::create(small(64), [A, "/slow/c"]);
    for drained in [false, true] {
        let a = setup.attach_atomic(&cache, A);
        let again = setup.attach_atomic(&cache, A);
        a.write_at(&[1; 100], 0).unwrap();
        a.commit_later().unwrap();
        a.set_len(10).unwrap();
        a.append(&[2; 100]).unwrap();
        if drained {
            fill(&cache, &setup, "/slow/c", 1);
        }
        drop(a);
        assert_eq!(contents(&again).len(), 110, "the epoch is the file's");
        drop(again);
        let a = setup.attach_atomic(&cache, A);
        assert_eq!(contents(&a), [1; 100]);
        a.write_at(&[3], 99).unwrap();
        a.commit().unwrap();
        let mut expected = vec![1; 100];
        expected[99] = 3;
        assert_eq!(crash(&setup, [A]).0, [expected]);
        a.set_len(0).unwrap();
        a.commit().unwrap();
    }
    cache.drain().unwrap();
    let info = cache.info().unwrap();
    assert_eq!((info.used, info.files, info.uncommitted), (0, 0, 0));
}

#[test]
fn the_background_thread_makes_a_later_commit_durable() {
    let (setup, cache, _) = Setup::create(small(64).background(true).max_age(Duration::from_millis(5)), [A]);
    let a = setup.attach_atomic(&cache, A);
    a.write_at(b"some time", 0).unwrap();
    a.commit_later().unwrap();
    while setup.get(A) != b"some time" {
        std::thread::yield_now();
    }
    while !a.is_settled() {
        std::thread::yield_now();
    }
}

/// The superblocks' bits that an older reader must refuse.
fn incompat(log: &Path) -> [u32; 2] {
    let bytes = std::fs::read(log).unwrap();
    [0, 4096].map(|copy| u32::from_le_bytes(bytes[copy + 12..copy + 16].try_into().unwrap()))
}

#[test]
fn a_log_says_that_it_may_have_epochs_until_it_was_replayed() {
    let (setup, cache, _) = Setup::create(small(64), [A, B]);
    setup.attach(&cache, B).write_at(b"plain", 0).unwrap();
    assert_eq!(incompat(&setup.log), [0, 0]);
    let a = setup.attach_atomic(&cache, A);
    a.write_at(b"whole", 0).unwrap();
    a.commit().unwrap();
    assert_eq!(incompat(&setup.log), [1, 1]);
    drop((a, cache));
    drop(setup.open().unwrap());
    assert_eq!((setup.get(A), incompat(&setup.log)), (b"whole".to_vec(), [0, 0]));
}

#[test]
fn a_file_has_one_mode_and_no_shared_log_has_atomic_files() {
    let (setup, cache, _) = Setup::create(small(64), [A]);
    let a = setup.attach_atomic(&cache, A);
    let slow = || setup.shelf.open(Path::new(A)).unwrap().unwrap();
    for other in [cache.attach_backing(slow(), Path::new(A)), cache.attach_write_through(slow(), Path::new(A))] {
        assert!(matches!(other, Err(Error::Invalid { .. })), "{other:?}");
    }
    a.write_at(b"open", 0).unwrap();
    for refused in [a.demote(), a.reload_len()] {
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    a.commit().unwrap();
    a.demote().unwrap();
    assert_eq!(setup.get(A), b"open");
    a.write_at(b"past", 0).unwrap();
    a.commit().unwrap();
    assert_eq!(setup.get(A), b"past");
    let (setup, shared, _) = Setup::create(small(64).shared(true), [A]);
    let slow = setup.shelf.open(Path::new(A)).unwrap().unwrap();
    let refused = shared.attach_atomic(slow, Path::new(A));
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

#[test]
fn a_failed_atomic_file_keeps_its_commits_and_blocks_none() {
    let (setup, cache, [bad, _]) = Setup::create(small(64), [A, B]);
    let a = setup.attach_atomic(&cache, A);
    a.write_at(&[1; 150], 0).unwrap();
    a.commit_later().unwrap();
    a.write_at(&[2; 150], 100).unwrap();
    a.commit().unwrap();
    a.write_at(&[3; 10], 0).unwrap();
    bad.broken.store(true, Ordering::Relaxed);
    cache.drain().unwrap_err();
    for refused in [a.commit(), a.commit_later(), a.write_at(b"x", 0), a.set_len(1), a.abandon()] {
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    }
    let shown = [&[3; 10][..], &[1; 90], &[2; 150]].concat();
    for _ in 0..5 {
        fill(&cache, &setup, B, 2);
        assert_eq!(contents(&a), shown);
    }
    drop((a, cache));
    bad.broken.store(false, Ordering::Relaxed);
    let cache = setup.open().unwrap();
    assert_eq!(setup.get(A), [&[1; 100][..], &[2; 150]].concat());
    assert_eq!(cache.replayed().open_epochs, 1);
}

/// Several threads, each with a file of its own and all with one, in a log that is always full.
#[test]
fn epochs_of_several_threads_stay_whole() {
    let paths: [&str; 4] = ["/slow/0", "/slow/1", "/slow/2", "/slow/all"];
    let rounds = untorn_testing::cases(60, 1000) as u32;
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let options = small(200).durability(durability).background(true).max_age(Duration::from_millis(1));
        let (setup, cache, _) = Setup::create_on(PageCache::new(), options, paths);
        let all = setup.attach_atomic(&cache, paths[3]);
        let one = &|number: usize| {
            let (file, all) = (setup.attach_atomic(&cache, paths[number]), setup.attach_atomic(&cache, paths[3]));
            for round in 1..=rounds {
                for place in 0..4 {
                    file.write_at(&round.to_le_bytes().repeat(20), place * 80).unwrap();
                }
                all.write_at(&round.to_le_bytes().repeat(20), number as u64 * 80).unwrap();
                match round % 4 {
                    0 => file.commit_later().unwrap(),
                    1 => file.abandon().unwrap(),
                    _ => file.commit().unwrap(),
                }
                let last = if round % 4 == 1 { round - 1 } else { round };
                assert_eq!(contents(&file), last.to_le_bytes().repeat(if last == 0 { 0 } else { 80 }));
                all.commit().unwrap();
            }
        };
        std::thread::scope(|scope| {
            for number in 0..3 {
                scope.spawn(move || one(number));
            }
        });
        let expected = if rounds % 4 == 1 { rounds - 1 } else { rounds };
        assert_eq!(contents(&all), rounds.to_le_bytes().repeat(60));
        cache.sync().unwrap();
        drop((all, cache));
        setup.open().unwrap();
        for path in &paths[..3] {
            assert_eq!(setup.get(path), expected.to_le_bytes().repeat(80));
        }
        assert_eq!(setup.get(paths[3]), rounds.to_le_bytes().repeat(60));
    }
}

/// Random operations against a model: the committed bytes, and those with the open epoch.
#[test]
fn atomic_files_are_as_their_model() {
    for seed in 0..untorn_testing::cases(25, 400) as u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut below = move |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let durability = if seed % 2 == 0 { Durability::PerWrite } else { Durability::PerCommit };
        let (setup, mut cache, _) = Setup::create(small(64).durability(durability), [A, B, "/slow/c"]);
        let attach = |cache: &WriteCache| [A, B].map(|path| Some(setup.attach_atomic(cache, path)));
        let mut files: [Option<CachedFile>; 2] = attach(&cache);
        let mut model = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for step in 0..120 {
            let number = below(2) as usize;
            let (file, (committed, shown)) = (files[number].as_ref().unwrap(), &mut model[number]);
            match below(14) {
                0..=4 => {
                    let (at, bytes) = (below(300) as usize, vec![step as u8; 1 + below(300) as usize]);
                    match file.write_at(&bytes, at as u64) {
                        Ok(()) => {
                            shown.resize(shown.len().max(at + bytes.len()), 0);
                            shown[at..at + bytes.len()].copy_from_slice(&bytes);
                        }
                        Err(error) => {
                            assert_eq!(error.errno(), ENOSPC);
                            file.commit().unwrap_err();
                            file.abandon().unwrap();
                            shown.clone_from(committed);
                        }
                    }
                }
                5 if cache.info().unwrap().uncommitted < 40 => {
                    let len = below(400);
                    file.set_len(len).unwrap();
                    shown.resize(len as usize, 0);
                }
                6 | 7 => {
                    file.commit().unwrap();
                    committed.clone_from(shown);
                }
                8 => {
                    file.commit_later().unwrap();
                    committed.clone_from(shown);
                }
                9 => {
                    file.abandon().unwrap();
                    shown.clone_from(committed);
                }
                10 => {
                    files[number] = None;
                    files[number] = Some(setup.attach_atomic(&cache, [A, B][number]));
                    shown.clone_from(committed);
                }
                11 => cache.drain_some().unwrap(),
                12 if cache.info().unwrap().uncommitted < 30 => fill(&cache, &setup, "/slow/c", 1),
                13 if step % 3 == 0 => {
                    files.iter_mut().for_each(|file| drop(file.take()));
                    drop(cache);
                    cache = setup.open().unwrap();
                    files = attach(&cache);
                    model.iter_mut().for_each(|(committed, shown)| shown.clone_from(committed));
                }
                _ => cache.drain().unwrap(),
            }
            for (file, (_, shown)) in files.iter().flatten().zip(&model) {
                assert!(contents(file) == *shown, "seed {seed}, step {step}");
            }
            if step % 10 == 0 && durability == Durability::PerWrite {
                let (found, _) = crash(&setup, [A, B]);
                let expected = model.each_ref().map(|(committed, _)| committed.clone());
                assert!(found == expected, "seed {seed}, step {step}: a crash");
            }
        }
    }
}

#[test]
fn times_that_the_owner_of_the_log_sets_are_no_change_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let (log, path) = (dir.path().join("log"), dir.path().join("file"));
    let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let times = plain.try_clone().unwrap();
    let cache = small(64).create(&log).unwrap();
    let file = cache.attach_atomic(Arc::new(Descriptor::new(plain.into(), &path).unwrap()), &path).unwrap();
    file.write_at(b"one", 0).unwrap();
    file.commit().unwrap();
    let noon = std::time::UNIX_EPOCH + Duration::from_secs(43_200);
    file.own_change(|| times.set_modified(noon)).unwrap().unwrap();
    drop((file, cache));
    let cache = small(64).open(&log).unwrap();
    assert!(cache.replayed().is_complete());
    let file = cache.attach_atomic(Arc::new(Descriptor::new(times.try_clone().unwrap().into(), &path).unwrap()), &path);
    let file = file.unwrap();
    file.write_at(b"two", 0).unwrap();
    file.commit().unwrap();
    times.set_modified(noon).unwrap();
    drop((file, cache));
    let refused = small(64).open(&log).unwrap_err();
    assert!(matches!(refused, Error::ChangedOutside { .. }), "{refused}");
}

/// A log with two commits, the second of an epoch that was staged again, and an open epoch.
const GOLDEN: &str = "tests/golden/write-cache-atomic.log";

#[test]
fn a_golden_log_with_epochs_is_replayed() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let create = || Setup::create(small(32), [A, B, "/slow/c"]);
    if std::env::var_os("UNTORN_BLESS").is_some() && !golden.exists() {
        let (setup, cache, _) = create();
        let (a, b) = (setup.attach_atomic(&cache, A), setup.attach_atomic(&cache, B));
        a.write_at(&[7; 100], 10).unwrap();
        fill(&cache, &setup, "/slow/c", 1);
        a.set_len(50).unwrap();
        a.commit().unwrap();
        a.append(b"end").unwrap();
        b.append(b"open").unwrap();
        a.commit().unwrap();
        let mut bytes = std::fs::read(&setup.log).unwrap();
        bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1);
        std::fs::write(&golden, bytes).unwrap();
    }
    let mut bytes = std::fs::read(golden).unwrap();
    bytes.resize(3 * 4096 + 4 * 8192 + 32 * 128, 0);
    let (setup, cache, _) = create();
    drop(cache);
    std::fs::write(&setup.log, bytes).unwrap();
    let cache = setup.open().unwrap();
    assert!(cache.replayed().is_complete());
    assert_eq!(cache.replayed().open_epochs, 1);
    assert_eq!((setup.get(A), setup.get(B)), ([&[0; 10][..], &[7; 40], b"end"].concat(), Vec::new()));
}
