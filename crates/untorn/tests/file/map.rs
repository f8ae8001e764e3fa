//! [`AtomicMap`]: plain stores against a plain byte array, by both ways of finding them out; and what happens around
//! it: other handles, forks, kernels that write into the memory, files that shrink underneath.
#![allow(clippy::single_range_in_vec_init, reason = "what was stored to is a list of ranges, and often of one")]

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::disk::{Kind, SmallDisk};
use crate::common::system::in_forked_child;
use crate::common::{
    PAGE, alone, memory_dir, methods, new_map, on_disk, pattern, run_alone, scratch, scratch_holding, truncate,
};
use proptest::prelude::*;
use untorn::options::{DirtyTracking, LogPolicy};
use untorn::report::State;
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Error, Options};
use untorn_testing::{again, cases, test_name};

/// What is not committed, as first page and the page behind the last.
fn uncommitted(map: &mut AtomicMap) -> Vec<(u64, u64)> {
    let pages = |run: std::ops::Range<u64>| (run.start / PAGE as u64, run.end / PAGE as u64);
    map.uncommitted().unwrap().into_iter().map(pages).collect()
}

/// Runs a test of this file once more where every file seems to be on persistent memory.
fn on_persistent_memory(test: &str) {
    if std::env::var_os("UNTORN_ASSUME_PMEM").is_some() {
        return;
    }
    let again = again(test).env("UNTORN_ASSUME_PMEM", "1").output().unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&again.stderr));
}

#[derive(Clone, Debug)]
enum Op {
    Store { offset: u64, len: usize, fill: u8 },
    Commit,
    Rollback,
    Resize(u64),
    Close,
    Drop,
    Settle,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..40_000_u64, 0_usize..9000, any::<u8>())
            .prop_map(|(offset, len, fill)| Op::Store { offset, len, fill }),
        4 => Just(Op::Commit),
        3 => Just(Op::Rollback),
        4 => (0..10 * PAGE as u64).prop_map(Op::Resize),
        1 => Just(Op::Close),
        1 => Just(Op::Drop),
        1 => Just(Op::Settle),
    ]
}

fn run(ops: &[Op], options: &Options) {
    let (path, mut map) = new_map(options, 3 * PAGE as u64 + 100);
    let mut now = vec![0; map.len()];
    let mut committed = now.clone();
    for op in ops {
        match *op {
            Op::Store { offset, len, fill } => {
                let from = (offset as usize).min(now.len());
                let to = (from + len).min(now.len());
                map[from..to].fill(fill);
                now[from..to].fill(fill);
            }
            Op::Commit => {
                map.commit().unwrap();
                committed.clone_from(&now);
            }
            Op::Rollback => {
                map.rollback().unwrap();
                now.clone_from(&committed);
            }
            Op::Resize(len) => {
                map.resize(len).unwrap();
                now.resize(len as usize, 0);
            }
            Op::Close => {
                map.close().unwrap();
                committed.clone_from(&now);
                assert!(std::fs::read(&path).unwrap() == committed, "what a close leaves at home");
                map = options.map(&path).unwrap();
                assert!(!map.info().recovery.was_needed);
            }
            Op::Drop => {
                drop(map);
                now.clone_from(&committed);
                map = options.map(&path).unwrap();
            }
            Op::Settle => {
                map.settle().unwrap();
                committed.clone_from(&now);
                assert!(std::fs::read(&path).unwrap() == committed, "a settled file");
                map = options.map(&path).unwrap();
            }
        }
        assert!(*map == *now, "after {op:?}");
    }
    drop(map);
    assert!(std::fs::read(&path).unwrap() == committed);
}

#[test]
fn random_stores_commits_and_lengths() {
    for method in methods() {
        let options = Options::new().dirty_tracking(method).max_len(1 << 20);
        let mut runner =
            proptest::test_runner::TestRunner::new(ProptestConfig { cases: cases(80, 200), ..Default::default() });
        runner
            .run(&prop::collection::vec(op(), 1..40), |ops| {
                run(&ops, &options);
                Ok(())
            })
            .unwrap();
    }
    on_persistent_memory(test_name!());
}

/// A store that no commit covers is in memory of the process only, however hard the kernel writes back.
#[test]
fn the_file_learns_of_no_store_before_its_commit() {
    for method in methods() {
        let path = on_disk("data");
        let mut map = Options::new().dirty_tracking(method).create_map(&path, 64 * PAGE as u64).unwrap();
        map.fill(1);
        map.commit().unwrap();
        map.close().unwrap();
        let mut map = Options::new().dirty_tracking(method).map(&path).unwrap();
        map.fill(2);
        File::open(&path).unwrap().sync_all().unwrap();
        rustix::fs::sync();
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 1));
        assert_eq!(uncommitted(&mut map), [(0, 64)]);
        drop(map);
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 1));
    }
}

#[test]
fn a_commit_writes_the_pages_that_were_stored_to_and_no_others() {
    for method in methods() {
        let path = scratch_holding(pattern(100 * PAGE, 5));
        let mut map = Options::new().dirty_tracking(method).map(&path).unwrap();
        assert!(map.uncommitted().unwrap().is_empty());
        assert!(map.iter().any(|byte| *byte != 0), "reading everything");
        assert!(map.uncommitted().unwrap().is_empty(), "{method}: a load counts as a store");
        let commit = map.commit().unwrap();
        assert_eq!(map.commit().unwrap(), commit, "a commit of nothing is none");
        for round in 1..=3 {
            for page in [3, 4, 97] {
                map[page * PAGE + 9] = round;
            }
            assert_eq!(uncommitted(&mut map), [(3, 5), (97, 98)]);
            map.commit().unwrap();
            assert!(map.uncommitted().unwrap().is_empty(), "{method}, round {round}");
        }
        // Pages that nobody has stored to since are the file's again; those that were are not.
        for page in 0..50 {
            map[page * PAGE] = 77;
        }
        map[99 * PAGE] = 78;
        map.rollback().unwrap();
        assert_eq!((map[3 * PAGE + 9], map[97 * PAGE + 9]), (3, 3));
        assert!(map.uncommitted().unwrap().is_empty());
    }
}

#[test]
fn kernel_writes_into_a_map_count_as_stores() {
    for method in methods() {
        let dir = memory_dir();
        let source = dir.path().join("source");
        std::fs::write(&source, pattern(10 * PAGE, 8)).unwrap();
        let mut map =
            Options::new().dirty_tracking(method).create_map(dir.path().join("data"), 20 * PAGE as u64).unwrap();
        for _ in 0..2 {
            File::open(&source).unwrap().read_exact(&mut map[PAGE + 5..11 * PAGE + 5]).unwrap();
            assert_eq!(uncommitted(&mut map), [(1, 12)]);
            map.commit().unwrap();
        }
        map.close().unwrap();
        assert!(std::fs::read(dir.path().join("data")).unwrap()[PAGE + 5..11 * PAGE + 5] == pattern(10 * PAGE, 8));
    }
}

#[test]
fn the_address_stays_while_the_file_grows() {
    let dir = memory_dir();
    let mut map = AtomicMap::create(dir.path().join("data"), 10).unwrap();
    let address = map.as_ptr();
    // What is reserved unless the program asks for more.
    for len in [4096, 5000, 1 << 20, 64 << 20] {
        map.resize(len).unwrap();
        map[len as usize - 1] = 7;
        map.commit().unwrap();
        assert_eq!(map.as_ptr(), address);
    }
    let error = map.resize((64 << 20) + 1).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("larger max_len"), "{error}");
    assert_eq!(map.len(), 64 << 20);
    map.close().unwrap();
    let mut map = Options::new().max_len(1 << 30).map(dir.path().join("data")).unwrap();
    let address = map.as_ptr();
    map.resize(1 << 30).unwrap();
    map[(1 << 30) - 1] = 7;
    map.commit().unwrap();
    assert_eq!(map.as_ptr(), address);
    assert!(matches!(map.resize((1 << 30) + 1), Err(Error::Invalid { .. })));
}

#[test]
fn a_discarded_map_leaves_a_clean_file_at_the_last_commit() {
    for method in methods() {
        let (path, mut map) = new_map(&Options::new().dirty_tracking(method), 4 * PAGE as u64);
        map[PAGE] = 1;
        map.commit().unwrap();
        map.resize(9 * PAGE as u64).unwrap();
        map.fill(2);
        map.discard().unwrap();
        assert_eq!(untorn::inspect(&path).unwrap().state, State::Clean, "{method}");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[PAGE], bytes[PAGE + 1]), (4 * PAGE, 0, 1, 0), "{method}");
    }
}

#[test]
fn typed_views() {
    let dir = memory_dir();
    let mut map = AtomicMap::create(dir.path().join("data"), 2 * PAGE as u64).unwrap();
    map.slice_of_mut::<u32>(4, 3).unwrap().copy_from_slice(&[1, 2, 3]);
    map.view_mut::<[u64; 2]>(4096 + 8).unwrap()[1] = u64::MAX;
    map.commit().unwrap();
    assert_eq!(map.slice_of::<u32>(4, 3).unwrap(), [1, 2, 3]);
    assert_eq!(*map.view::<u64>(4096 + 16).unwrap(), u64::MAX);
    assert!(matches!(map.view::<u64>(4), Err(Error::Invalid { .. })));
    assert!(matches!(map.view_mut::<u64>(4), Err(Error::Invalid { .. })));
    assert!(matches!(map.slice_of_mut::<u16>(1, 2), Err(Error::Invalid { .. })));
    assert!(matches!(map.view::<u64>(8192 - 4), Err(Error::OutOfRange { .. })));
    assert!(matches!(map.slice_of::<u64>(0, usize::MAX), Err(Error::OutOfRange { .. })));
    assert!(map.slice_of::<u64>(8192, 0).unwrap().is_empty());
}

/// The child has a copy of what the parent had; the parent loses sight of no store, before or after.
#[test]
fn a_forked_child_keeps_its_stores_to_itself() {
    alone!(60, "a forked child");
    for method in methods() {
        let (path, mut map) = new_map(&Options::new().dirty_tracking(method), 8 * PAGE as u64);
        map[..4 * PAGE].fill(1);
        map.commit().unwrap();
        map[PAGE] = 2; // not committed yet
        let child = {
            let map = std::cell::RefCell::new(&mut map);
            in_forked_child(|| {
                let mut map = map.borrow_mut();
                let seen = (map[0], map[PAGE]) == (1, 2);
                map.fill(9);
                let told = [map.commit().map(drop), map.rollback(), map.resize(10), map.uncommitted().map(drop)]
                    .iter()
                    .all(|outcome| matches!(outcome, Err(Error::Forked { .. })));
                i32::from(!(seen && told && map[3 * PAGE] == 9))
            })
        };
        assert_eq!(child.wait(), Some(0));
        map[2 * PAGE] = 3;
        assert_eq!(uncommitted(&mut map), [(1, 3)], "{method}");
        map.commit().unwrap();
        map[3 * PAGE] = 4;
        map.commit().unwrap();
        map.close().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!([bytes[0], bytes[PAGE], bytes[2 * PAGE], bytes[3 * PAGE], bytes[4 * PAGE]], [1, 2, 3, 4, 0]);
    }
}

#[test]
fn a_map_shares_its_file_with_no_other_handle() {
    let path = scratch("data");
    let map = AtomicMap::create(&path, 4096).unwrap();
    for other in [AtomicMap::open(&path).map(drop), AtomicFile::open(&path).map(drop)] {
        assert!(matches!(&other, Err(error @ Error::InUse { .. }) if error.to_string().contains("map")), "{other:?}");
    }
    drop(map);
    let file = Options::new().engine(EngineKind::HybridLog).open(&path).unwrap();
    assert!(matches!(AtomicMap::open(&path), Err(Error::InUse { .. })));
    drop(file);
    AtomicMap::open(&path).unwrap();
}

#[test]
fn options_that_a_map_can_not_have_are_refused() {
    let path = scratch("data");
    File::create(&path).unwrap().set_len(4096).unwrap();
    for options in [
        Options::new().engine(EngineKind::Reflection),
        Options::new().engine(EngineKind::Passthrough),
        Options::new().durability(Durability::PerWrite),
        Options::new().log_policy(LogPolicy::Undo),
    ] {
        assert!(matches!(options.map(&path), Err(Error::Invalid { .. })), "{options:?}");
    }
    assert!(!path.dir().join(".untorn").exists(), "a refusal leaves the file as it is");
    // One with committed bytes in another engine's sidecar.
    let file = Options::new().engine(EngineKind::Reflection).keep_sidecar(true).open(&path).unwrap();
    file.write_at(&[1; 100], 0).unwrap();
    file.close().unwrap();
    let error = AtomicMap::open(&path).unwrap_err();
    assert!(error.to_string().contains("settle"), "{error}");
    assert!(matches!(AtomicMap::open(path.dir()), Err(Error::NotAFile { .. })));
}

#[test]
fn a_map_for_reading() {
    let path = scratch_holding(pattern(2 * PAGE + 5, 1));
    let reading = Options::new().read_only(true);
    for round in 0..2 {
        let mut map = reading.map(&path).unwrap();
        let other = reading.map(&path).unwrap();
        assert!(*map == *pattern(2 * PAGE + 5, 1) && *other == *map);
        map[0] ^= 1; // memory of this handle's own
        assert!(*other == *pattern(2 * PAGE + 5, 1));
        for outcome in [map.commit().map(drop), map.rollback(), map.resize(1)] {
            assert!(matches!(outcome, Err(Error::ReadOnly { .. })), "round {round}");
        }
        map.close().unwrap();
        other.close().unwrap();
        // The second time with a sidecar, cleanly closed.
        AtomicMap::open(&path).unwrap().close().unwrap();
    }
    let mut map = AtomicMap::open(&path).unwrap();
    map[1] = 7;
    map.commit().unwrap();
    assert!(matches!(reading.map(&path), Err(Error::InUse { .. })));
}

/// A commit that does not fit is refused whole; the stores are still there, and can be committed once there is less.
#[test]
fn a_commit_that_does_not_fit_commits_nothing() {
    for method in methods() {
        let options = Options::new().dirty_tracking(method).log_size(4 << 20).record_area(16, 64);
        let (path, mut map) = new_map(&options, 32 << 20);
        map[0] = 1;
        map.commit().unwrap();
        map.fill(2);
        let error = map.commit().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("log"), "{error}");
        assert_eq!(uncommitted(&mut map), [(0, 8192)], "{method}");
        map.rollback().unwrap();
        assert_eq!((map[0], map[1]), (1, 0));
        map[5] = 3;
        map.commit().unwrap();
        drop(map);
        assert_eq!(std::fs::read(&path).unwrap()[..7], [1, 0, 0, 0, 0, 3, 0]);
    }
}

/// What stays in memory of the process's own is bounded, whatever was ever committed.
#[test]
fn memory_of_committed_pages_is_given_back() {
    // Of the mapping, from what the kernel says of its address.
    let own = |map: &AtomicMap| {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", map.as_ptr().addr());
        let mine = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = mine.skip(1).find(|line| line.starts_with("Anonymous:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    for method in methods() {
        let len = 192 << 20;
        let (_path, mut map) = new_map(&Options::new().dirty_tracking(method), len);
        for start in (0..len as usize).step_by(8 << 20) {
            map[start..start + (8 << 20)].fill(5);
            map.commit().unwrap();
        }
        // 64 MiB are kept, and those of the last commit.
        let kept = own(&map);
        assert!(kept <= 72 << 20, "{method}: {} MiB", kept >> 20);
        assert!(map.iter().all(|byte| *byte == 5));
    }
}

#[test]
fn a_file_cut_off_underneath_is_an_error_of_the_next_call() {
    for method in methods() {
        let (path, mut map) = new_map(&Options::new().dirty_tracking(method), 8 * PAGE as u64);
        map[7 * PAGE] = 1;
        map.commit().unwrap();
        truncate(&path, PAGE);
        assert_eq!(map[5 * PAGE], 0);
        for outcome in [map.commit().map(drop), map.rollback(), map.resize(10)] {
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains("lost") && error.to_string().contains("data"), "{error}");
        }
        drop(map);
    }
}

/// No space for the log: the commit says so, and nothing is in it.
#[test]
fn a_full_disk_is_an_error_of_the_commit() {
    alone!(60, "a map on a full disk");
    let Some(disk) = SmallDisk::mount(Kind::Ext4, 16 << 10) else { return };
    let path = disk.path("data");
    let options = Options::new().record_area(16, 32);
    let mut map = options.create_map(&path, 1 << 20).unwrap();
    map[0] = 1;
    map.commit().unwrap();
    let filler = File::create(disk.path("filler")).unwrap();
    let mut filled = 0;
    while filler.write_all_at(&[1; 4096], filled).is_ok() {
        filled += 4096;
    }
    let before = untorn::inspect(&path).unwrap();
    assert!(matches!(before.state, State::InUse));
    map.fill(2);
    let refused = map.commit();
    // A child that another test forked meanwhile may have it open, and its space until then.
    filler.set_len(0).unwrap();
    drop(filler);
    std::fs::remove_file(disk.path("filler")).unwrap();
    match refused {
        // A log that was long enough already needs no space.
        Ok(_) => assert!(map.iter().all(|byte| *byte == 2)),
        Err(error) => {
            assert!(matches!(error, Error::Io { .. } | Error::Poisoned { .. }), "{error}");
            drop(map);
            let map = AtomicMap::open(&path).unwrap();
            assert!(map.iter().all(|byte| *byte == 2) || (map[0] == 1 && map[1..].iter().all(|byte| *byte == 0)));
        }
    }
}

/// A commit writes the bytes that changed, and not their whole pages. Stores that change nothing write nothing.
#[test]
fn a_commit_writes_the_bytes_that_changed() {
    let written = || -> u64 {
        let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        counts.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
    };
    for method in methods() {
        let options = Options::new().engine(EngineKind::HybridLog).dirty_tracking(method).checkpoint_threads(0);
        let (_dir, mut map) = new_map(&options, 256 * PAGE as u64);
        // The log gets its pages.
        map[..PAGE].fill(1);
        map.commit().unwrap();
        let stores: [(&[(usize, usize)], u64); 5] = [
            // A header, a line of bytes and a record, of 64 bytes each.
            (&[(PAGE + 100, 8)], 192),
            (&[(3 * PAGE + 100, 8), (9 * PAGE + 5, 40)], 320),
            // Eight bytes at each end of a page: what lies between goes along.
            (&[(5 * PAGE, 8), (6 * PAGE - 8, 8)], PAGE as u64 + 128),
            (&[(20 * PAGE, PAGE)], PAGE as u64 + 128),
            (&[], 0),
        ];
        // By this method the bytes go to the file at once, too.
        let times = if method == DirtyTracking::PageTable { 2 } else { 1 };
        for (stores, most) in stores {
            stores.iter().for_each(|&(at, len)| map[at..at + len].fill(7));
            let before = written();
            map.commit().unwrap();
            let bytes = written() - before;
            assert!(bytes <= times * most && (bytes == 0) == stores.is_empty(), "{method}, {stores:?}: {bytes} bytes");
        }
        map[5] = 2;
        map[5] = 1;
        let before = written();
        map.commit().unwrap();
        assert_eq!(written(), before, "{method}: a store that was taken back");
    }
}

/// A kill leaves the last commit: of a map, and of nothing else that the process did. Alone: the process is forked
/// and may start threads, for which it would wait for ever if another test was about to start or end one of its own
/// at that moment.
#[test]
fn a_killed_process_leaves_its_last_commit() {
    run_alone(test_name!(), 60, "a map of a process that is killed", || {
        for method in methods() {
            let path = scratch("data");
            killed_while_storing(&path, method);
            let map = AtomicMap::open(&path).unwrap();
            let count = map[0];
            assert!(count >= 20, "{count} commits");
            assert!(map.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == count)), "{method}: torn");
        }
    });
}

/// A child that fills the whole map again and again, and is killed in the middle of a filling.
fn killed_while_storing(path: &Path, method: DirtyTracking) {
    let child = in_forked_child(|| {
        let mut map = Options::new().dirty_tracking(method).create_map(path, 64 * PAGE as u64).unwrap();
        for count in 1..=20 {
            map.fill(count);
            map.commit().unwrap();
        }
        map[..40 * PAGE].fill(99);
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        0
    });
    assert_eq!(child.wait(), None, "it was killed");
}
