//! Write caches in front of files that fail, are gone, or are not where they should be, and under a log that fails.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::common::counting::Counting;
use crate::common::memory_dir;
use crate::common::shelf::{Setup, contents, pmem, small};
use untorn::Error;
use untorn::write_cache::Kernel;
use untorn::write_cache::{CachedFile, ReplayOutcome};

#[test]
fn a_failed_file_keeps_its_writes_in_the_log_and_blocks_none() {
    let (setup, cache, [bad, good]) = Setup::create(small(32), ["/slow/bad", "/slow/good"]);
    let (failing, working) = (setup.attach(&cache, "/slow/bad"), setup.attach(&cache, "/slow/good"));
    failing.write_at(&[7; 200], 10).unwrap();
    failing.set_len(100).unwrap();
    failing.write_at(b"last", 90).unwrap();
    let expected = contents(&failing);
    bad.broken.store(true, Ordering::Relaxed);
    assert!(matches!(failing.demote(), Err(Error::Poisoned { .. })));
    for refused in
        [failing.write_at(b"x", 0), failing.sync(), failing.set_len(1), failing.write_to_kernel(), cache.drain()]
    {
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    }
    // Many times round the log: the others go on.
    for round in 0..400_u32 {
        working.write_at(&round.to_le_bytes(), u64::from(round % 10) * 100).unwrap();
        assert_eq!(contents(&failing), expected, "round {round}");
    }
    working.demote().unwrap();
    assert_eq!(good.bytes.lock().unwrap()[900..904], 399_u32.to_le_bytes());
    assert!(cache.info().unwrap().stuck > 0);
    drop((failing, working, cache));
    // The log is no use to anybody, and nothing is lost, as long as the file fails.
    assert!(matches!(setup.open(), Err(Error::ReplayIncomplete { .. })));
    bad.broken.store(false, Ordering::Relaxed);
    let cache = setup.open().unwrap();
    assert!(cache.replayed().files.iter().any(|file| file.fate == ReplayOutcome::Replayed && file.inode == 1));
    assert_eq!(setup.get("/slow/bad"), expected);
}

/// A failed flush is told once. Whoever hears of it, what was on its way to the file then is not freed by the next.
#[test]
fn no_flush_succeeds_after_one_failed_outside_a_drain() {
    let (setup, cache, [bad]) = Setup::create(small(32), ["/slow/bad"]);
    let failing = setup.attach(&cache, "/slow/bad");
    failing.write_at(b"on its way", 0).unwrap();
    failing.write_to_kernel().unwrap();
    bad.broken.store(true, Ordering::Relaxed);
    assert!(matches!(failing.sync_file(), Err(Error::Io { .. })));
    bad.broken.store(false, Ordering::Relaxed);
    for refused in [failing.sync_file(), failing.sync(), failing.demote(), cache.drain()] {
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    }
    // The device never got it.
    bad.bytes.lock().unwrap().clear();
    drop((failing, cache));
    let cache = setup.open().unwrap();
    assert!(cache.replayed().files.iter().any(|file| file.fate == ReplayOutcome::Replayed && file.inode == 1));
    assert_eq!(setup.get("/slow/bad"), b"on its way");
}

#[test]
fn files_bypass_a_log_that_failed_files_have_filled() {
    let (setup, cache, [bad, good]) = Setup::create(small(16), ["/slow/bad", "/slow/good"]);
    let (failing, working) = (setup.attach(&cache, "/slow/bad"), setup.attach(&cache, "/slow/good"));
    // All that writers may have.
    (0..12).for_each(|n| failing.write_at(&[n; 10], u64::from(n) * 10).unwrap());
    bad.broken.store(true, Ordering::Relaxed);
    for round in 0..20_u32 {
        working.append(&round.to_le_bytes()).unwrap();
    }
    assert_eq!(good.bytes.lock().unwrap().len(), 80, "each was written past the log");
    assert_eq!(contents(&failing).len(), 120);
}

/// The drain frees entries one by one while it moves what is stuck: what is freed is seen by no read any more.
#[test]
fn no_read_sees_an_entry_that_is_free() {
    let medium = Counting::new(pmem());
    let (setup, cache, [bad, good, _]) =
        Setup::create_on(medium.clone(), small(16), ["/slow/bad", "/slow/good", "/slow/other"]);
    let (failing, working) = (setup.attach(&cache, "/slow/bad"), setup.attach(&cache, "/slow/good"));
    failing.write_at(b"first", 0).unwrap();
    (0..10).for_each(|n| working.write_at(&[n + 1; 64], u64::from(n) * 64).unwrap());
    failing.write_at(b"last", 5).unwrap();
    let expected = contents(&working);
    // When the second is moved, all between the two is free: the others write over it.
    let others = Arc::new(Mutex::new(Some((setup.attach(&cache, "/slow/other"), setup.attach(&cache, "/slow/good")))));
    let (seen, moves) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(0));
    let (theirs, see) = (Arc::clone(&others), Arc::clone(&seen));
    medium.watch(move |barrier, _| {
        if barrier == "cache.drain.moved" {
            let mut moves = moves.lock().unwrap();
            *moves += 1;
            if *moves == 2
                && let Some((other, working)) = &*theirs.lock().unwrap()
            {
                (0..4).for_each(|n| other.write_at(&[99; 64], n * 64).unwrap());
                *see.lock().unwrap() = contents(working);
            }
        }
    });
    bad.broken.store(true, Ordering::Relaxed);
    assert!(matches!(cache.drain(), Err(Error::Poisoned { .. })));
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(contents(&working), expected);
    assert_eq!(*good.bytes.lock().unwrap(), expected);
    assert_eq!(contents(&failing), b"firstlast");
    drop(others.lock().unwrap().take());
}

/// Writers, and the thread that drains, round a log full of entries that nobody can drain: each of them gets on or is
/// told.
#[test]
fn threads_go_on_while_a_file_is_stuck() {
    let paths = ["/slow/good", "/slow/other"];
    let options = small(32).background(true).batch(2, 8);
    let (setup, cache, [bad, ..]) = Setup::create(options, ["/slow/bad", paths[0], paths[1]]);
    let failing = setup.attach(&cache, "/slow/bad");
    let written = std::thread::scope(|scope| {
        for path in paths {
            let (setup, cache) = (&setup, &cache);
            scope.spawn(move || {
                let file = setup.attach(cache, path);
                for round in 0..2000_u32 {
                    file.append(&round.to_le_bytes()).unwrap();
                    if round % 100 == 0 {
                        file.write_to_kernel().unwrap();
                    }
                    if round % 500 == 0 {
                        file.reload_len().unwrap();
                    }
                }
            });
        }
        // Its writes that returned; it fails in the midst of the others.
        let mut written = 0;
        while failing.append(&[7]).is_ok() {
            written += 1;
            bad.broken.store(written >= 200, Ordering::Relaxed);
        }
        written
    });
    let expected: Vec<u8> = (0..2000_u32).flat_map(u32::to_le_bytes).collect();
    for path in paths {
        let file = setup.attach(&cache, path);
        assert_eq!(contents(&file), expected);
        file.demote().unwrap();
        assert_eq!(setup.get(path), expected);
    }
    assert_eq!(contents(&failing), vec![7; written]);
    drop((failing, cache));
    bad.broken.store(false, Ordering::Relaxed);
    assert!(small(32).open_on(pmem(), setup.shelf.clone(), &setup.log).unwrap().replayed().is_complete());
    assert_eq!(setup.get("/slow/bad"), vec![7; written]);
}

#[test]
fn a_failed_log_fails_its_waiters_and_keeps_acknowledged_bytes() {
    for sound in 20..40 {
        let paths = ["/slow/a", "/slow/b", "/slow/c"];
        let medium = Counting::new(pmem());
        let options = small(16).background(true).batch(2, 8);
        let (setup, cache, _) = Setup::create_on(medium.clone(), options, paths);
        let files = paths.map(|path| setup.attach(&cache, path));
        medium.fail_fences_after(sound);
        let written: Vec<usize> = std::thread::scope(|scope| {
            let writer = |file| {
                scope.spawn(move || {
                    let write = |n: &usize| CachedFile::append(file, &[*n as u8; 100]).is_ok();
                    (0..).take_while(write).count()
                })
            };
            let writers: Vec<_> = files.iter().map(writer).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        for refused in [files[0].sync(), files[0].set_len(1), files[0].demote(), cache.drain(), cache.sync()] {
            assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
        }
        drop((files, cache));
        assert!(small(16).open_on(pmem(), setup.shelf.clone(), &setup.log).unwrap().replayed().is_complete());
        for (path, written) in paths.iter().zip(written) {
            let found = setup.get(path);
            let expected: Vec<u8> = (0..=written).flat_map(|n| [n as u8; 100]).collect();
            // The one that was refused may be there, and is whole then.
            assert!([written * 100, written * 100 + 100].contains(&found.len()), "{} of {written}", found.len());
            assert_eq!(found, expected[..found.len()]);
        }
    }
}

#[test]
fn a_file_is_attached_where_it_is_and_nowhere_else() {
    let dir = memory_dir();
    let path = |name: &str| dir.path().join(name);
    let cache = small(16).create_on(pmem(), Arc::new(Kernel), path("log")).unwrap();
    std::fs::create_dir(path("deep")).unwrap();
    std::fs::write(path("other"), b"").unwrap();
    let plain = std::fs::File::create_new(path("deep/file")).unwrap();
    std::os::unix::fs::symlink(path("deep/file"), path("link")).unwrap();
    let wrong = cache.attach(plain.as_fd(), &path("other")).unwrap_err();
    assert!(matches!(wrong, Error::Invalid { .. }), "{wrong}");
    let file = cache.attach(plain.as_fd(), &path("link")).unwrap();
    assert_eq!(file.path(), std::fs::canonicalize(path("deep/file")).unwrap());
    file.write_at(b"through a link", 0).unwrap();
    file.demote().unwrap();
    drop(file);
    std::fs::remove_file(path("deep/file")).unwrap();
    assert!(cache.attach(plain.as_fd(), &path("deep/file")).is_err(), "no replay would find it");
}

#[test]
fn a_missing_or_replaced_file_keeps_its_log_entries() {
    let (setup, cache, [book, _]) = Setup::create(small(32), ["/slow/a", "/slow/b"]);
    setup.attach(&cache, "/slow/a").write_at(b"of a", 0).unwrap();
    setup.attach(&cache, "/slow/b").write_at(b"of b", 0).unwrap();
    drop(cache);
    setup.shelf.remove("/slow/a");
    let refused = setup.open().unwrap_err();
    assert!(matches!(&refused, Error::ReplayIncomplete { what, .. } if what.contains("/slow/a")), "{refused}");
    assert_eq!(setup.get("/slow/b"), b"of b", "what could be replayed was");
    // Another file of that name is not it. What was replayed already is not replayed over what came later.
    let other = setup.shelf.put("/slow/a", 3);
    setup.shelf.put("/slow/b", 2).bytes.lock().unwrap().extend(b"new!");
    assert!(matches!(setup.open(), Err(Error::ReplayIncomplete { .. })));
    assert_eq!((setup.get("/slow/a").len(), setup.get("/slow/b")), (0, b"new!".to_vec()));
    drop(other);
    // It comes back under another name beside: it is known by its identity.
    setup.shelf.files.lock().unwrap().insert(PathBuf::from("/slow/a.restored"), book);
    let cache = setup.open().unwrap();
    assert!(cache.replayed().is_complete());
    assert_eq!(setup.get("/slow/a.restored"), b"of a");
    assert_eq!((setup.get("/slow/a").len(), setup.get("/slow/b")), (0, b"new!".to_vec()));
}
