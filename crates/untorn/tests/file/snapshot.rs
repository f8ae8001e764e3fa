//! Snapshots of one process: threads that write while others read, what ends a snapshot, and what holds a file open.
//! `model` has snapshots among its random operations, and the crash explorer holds them across crashes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::system::{Child, allocations, in_forked_child};
use crate::common::{PAGE, Rng, alone, counted_pmem, create_on, on_disk, pmem, scratch, seed};
use crate::planted::as_user;
use crate::threads::together;
use untorn::options::LogPolicy;
use untorn::{AtomicFile, AtomicMap, Durability, Error, Options, Snapshot};
use untorn_testing::{cases, needs};

const PAGES: u64 = 24;

fn word(snapshot: &Snapshot, page: u64) -> u64 {
    let mut bytes = [0; 8];
    snapshot.read_at(&mut bytes, page * PAGE as u64 + 64).unwrap();
    u64::from_le_bytes(bytes)
}

/// Each transaction sets one word on all pages; so in a snapshot all have the same, and keep it.
fn writers_beside_snapshots(file: &AtomicFile, per_commit: bool) {
    let (stamp, syncing) = (AtomicU64::new(1), AtomicU64::new(0));
    let write = |_: u64| {
        let stamp = stamp.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let mut tx = file.transaction();
        (0..PAGES).for_each(|page| tx.write_at(&stamp, page * PAGE as u64 + 64).unwrap());
        tx.commit().unwrap();
    };
    let sync = |_: u64| {
        if per_commit {
            syncing.store(file.sync().unwrap(), Ordering::Release);
        }
    };
    let hold = |n: u64| {
        let acknowledged = syncing.load(Ordering::Acquire);
        let snapshot = file.snapshot().unwrap();
        assert!(snapshot.commit() >= acknowledged, "it lacks an acknowledged commit");
        let first = word(&snapshot, n % PAGES);
        for look in 0..3 {
            for page in 0..PAGES {
                assert_eq!(word(&snapshot, page), first, "page {page} at look {look}");
            }
            std::thread::yield_now();
        }
    };
    let time = Duration::from_millis(cases(150_u64, 3000));
    together(time, &[&write, &write, &sync, &hold, &hold]);
    let held = file.snapshots();
    assert_eq!((held.snapshots.len(), held.bytes), (0, 0));
}

#[test]
fn a_snapshot_is_one_commit_while_threads_write() {
    for engine in untorn::testing::ENGINES {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            for memory in [0, 1 << 20] {
                let options = Options::new().engine(engine).durability(durability).snapshot_memory(memory);
                let path = scratch("data");
                let file = options.create(&path, PAGES * PAGE as u64).unwrap();
                writers_beside_snapshots(&file, durability == Durability::PerCommit);
                file.close().unwrap();
                let file = options.create_on(pmem(), path.with_extension("pmem"), PAGES * PAGE as u64).unwrap();
                writers_beside_snapshots(&file, durability == Durability::PerCommit);
            }
        }
    }
}

/// A snapshot is taken with an open epoch and without one, and is read before and after the next commit.
fn no_uncommitted_write_is_in_a_snapshot(file: &AtomicFile) {
    let write = |stamp: u64, page| file.write_at(&stamp.to_le_bytes(), page * PAGE as u64 + 64).unwrap();
    for round in 1..5 {
        (0..PAGES).for_each(|page| write(2 * round, page));
        file.sync().unwrap();
        let after = file.snapshot().unwrap();
        // A page of its own for each round, and one for all.
        for page in [round, 0] {
            write(2 * round + 1, page);
        }
        let amid = file.snapshot().unwrap();
        for commits in 0..2 {
            for (snapshot, what) in [(&after, "after the commit"), (&amid, "amid an epoch")] {
                let found: Vec<u64> = (0..PAGES).map(|page| word(snapshot, page)).collect();
                assert_eq!(found, [2 * round; PAGES as usize], "{what}, round {round}, {commits} commits later");
            }
            file.sync().unwrap();
        }
    }
}

#[test]
fn a_snapshot_has_nothing_of_the_open_epoch() {
    let len = PAGES * PAGE as u64;
    for engine in untorn::testing::ENGINES {
        let options = Options::new().engine(engine).durability(Durability::PerCommit);
        no_uncommitted_write_is_in_a_snapshot(&options.create(scratch("data"), len).unwrap());
        for policy in [LogPolicy::Hybrid, LogPolicy::Undo, LogPolicy::Redo] {
            let options = options.clone().log_policy(policy);
            no_uncommitted_write_is_in_a_snapshot(&options.create_on(pmem(), scratch("pmem"), len).unwrap());
        }
    }
}

/// The directory is gone from its name, so there is no place for the spill file.
#[test]
fn a_pre_image_without_space_ends_only_the_snapshot() {
    let path = on_disk("data");
    let dir = path.dir();
    let moved = dir.with_extension("moved");
    let file = Options::new().snapshot_memory(PAGE as u64).create(&path, 4 * PAGE as u64).unwrap();
    file.write_at(&[7; 4 * PAGE], 0).unwrap();
    file.sync().unwrap();
    let snapshot = file.snapshot().unwrap();
    file.write_at(&[1], 0).unwrap();
    assert_eq!(file.snapshots().bytes, PAGE as u64);
    let mut byte = [0];
    snapshot.read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [7]);
    std::fs::rename(dir, &moved).unwrap();
    file.write_at(&[2], PAGE as u64).unwrap();
    std::fs::rename(&moved, dir).unwrap();
    for page in 0..4 {
        let error = snapshot.read_at(&mut byte, page * PAGE as u64).unwrap_err();
        assert!(matches!(error, Error::SnapshotEnded { .. }), "{error}");
        assert!(error.to_string().contains("take a new snapshot"), "{error}");
    }
    assert_eq!(file.snapshots().bytes, 0, "what it kept is freed");
    // The writer went on, and a new snapshot can be had.
    file.sync().unwrap();
    let again = file.snapshot().unwrap();
    again.read_at(&mut byte, PAGE as u64).unwrap();
    assert_eq!(byte, [2]);
    drop((snapshot, again));
    file.close().unwrap();
}

#[test]
fn a_snapshot_of_a_map_has_the_last_commit() {
    let path = scratch("data");
    let mut map = AtomicMap::create(&path, 3 * PAGE as u64).unwrap();
    map[0] = 1;
    map.commit().unwrap();
    map[0] = 2;
    map[PAGE] = 2;
    let one = map.snapshot().unwrap();
    map.commit().unwrap();
    map.resize(PAGE as u64).unwrap();
    map[0] = 3;
    map.commit().unwrap();
    let two = map.snapshot().unwrap();
    map.resize(3 * PAGE as u64).unwrap();
    map[PAGE] = 4;
    map.commit().unwrap();
    let bytes = |snapshot: &Snapshot, at: usize| {
        let mut byte = [0xee];
        snapshot.read_at(&mut byte, at as u64).map(|()| byte[0])
    };
    assert_eq!((bytes(&one, 0).unwrap(), bytes(&one, PAGE).unwrap(), one.len()), (1, 0, 3 * PAGE as u64));
    assert_eq!((bytes(&two, 0).unwrap(), two.len()), (3, PAGE as u64));
    assert!(matches!(bytes(&two, PAGE), Err(Error::OutOfRange { .. })));
    assert_eq!(map.snapshots().snapshots.iter().map(|held| held.commit).collect::<Vec<_>>(), [1, 3]);
}

/// Whichever goes last closes the file.
#[test]
fn a_snapshot_holds_its_file_open() {
    let path = scratch("data");
    let file = AtomicFile::create(&path, PAGE as u64).unwrap();
    file.write_at(b"kept", 0).unwrap();
    let snapshot = {
        file.sync().unwrap();
        file.snapshot().unwrap()
    };
    file.write_at(b"more", 0).unwrap();
    file.close().unwrap();
    let mut bytes = [0; 4];
    snapshot.read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"kept");
    assert!(matches!(AtomicMap::open(&path), Err(Error::InUse { .. })));
    drop(snapshot);
    assert_eq!(std::fs::read(&path).unwrap()[..4], *b"more", "a closed file is a plain one");
    AtomicMap::open(&path).unwrap().close().unwrap();
}

#[test]
fn a_forked_child_is_told() {
    alone!(120, "a forked child");
    let path = scratch("data");
    let file = AtomicFile::create(&path, 2 * PAGE as u64).unwrap();
    let snapshot = file.snapshot().unwrap();
    file.write_at(&[1], 0).unwrap();
    let child = in_forked_child(|| {
        let forked = |outcome: untorn::Result<()>| matches!(outcome, Err(Error::Forked { .. }));
        let told = forked(snapshot.read_at(&mut [0], 0))
            && forked(file.write_at(&[2], PAGE as u64))
            && forked(file.resize(0))
            && forked(file.snapshot().map(drop))
            && file.snapshots().snapshots.is_empty();
        i32::from(!told)
    });
    assert_eq!(child.wait(), Some(0));
    file.write_at(&[3], PAGE as u64).unwrap();
    let mut bytes = [9; PAGE];
    snapshot.read_at(&mut bytes, 1).unwrap();
    assert_eq!(bytes, [0; PAGE]);
}

/// A process that writes until it is killed: each transaction sets one word on all pages.
fn writer(path: &Path, options: &Options) -> Child {
    in_forked_child(|| {
        let file = options.create(path, PAGES * PAGE as u64).unwrap();
        for stamp in 1_u64.. {
            let mut tx = file.transaction();
            (0..PAGES).for_each(|page| tx.write_at(&stamp.to_le_bytes(), page * PAGE as u64 + 64).unwrap());
            tx.commit().unwrap();
            file.sync().unwrap();
            if stamp == 1 {
                std::fs::write(path.with_extension("begun"), "").unwrap();
            }
        }
        0
    })
}

fn until_open(path: &Path) -> Snapshot {
    // A snapshot of the file before the writer has opened it would end when it does.
    while !path.with_extension("begun").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    loop {
        match Snapshot::open(path) {
            Ok(snapshot) if !snapshot.is_empty() && word(&snapshot, 0) > 0 => return snapshot,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn another_process_reads_commits_of_a_writer_until_its_death() {
    alone!(120, "a reader of a killed writer");
    for engine in untorn::testing::ENGINES {
        let path = scratch("data");
        let options = Options::new().engine(engine).durability(Durability::PerCommit);
        let writer = writer(&path, &options);
        let mut last = (0, 0);
        // In the long variant 1,000,000 reads of each engine.
        for _ in 0..cases(100, 1_000_000 / PAGES) {
            let snapshot = until_open(&path);
            let (commit, stamp) = (snapshot.commit(), word(&snapshot, 0));
            assert!(commit >= last.0 && stamp >= last.1, "{:?} after {last:?}", (commit, stamp));
            for page in 0..PAGES {
                assert_eq!(word(&snapshot, page), stamp, "page {page}");
            }
            last = (commit, stamp);
        }
        // Its chunks are not here yet when the writer dies.
        let snapshot = Snapshot::open(&path).unwrap();
        writer.kill();
        writer.wait();
        let error = snapshot.read_at(&mut [0], 0).unwrap_err();
        assert!(matches!(error, Error::SnapshotEnded { .. }), "{error}");
        // Now nobody has it open: the last commit, without recovery.
        let snapshot = Snapshot::open(&path).unwrap();
        let stamp = word(&snapshot, 0);
        assert!(stamp >= last.1);
        assert!((0..PAGES).all(|page| word(&snapshot, page) == stamp));
        drop(snapshot);
        AtomicFile::open(&path).unwrap().close().unwrap();
    }
}

#[test]
fn closing_ends_the_snapshot_of_another_process() {
    alone!(120, "a reader of a closed file");
    let path = scratch("data");
    let file = AtomicFile::create(&path, 1 << 20).unwrap();
    file.write_at(b"one", 0).unwrap();
    file.sync().unwrap();
    let told = path.with_extension("told");
    let child = in_forked_child(|| {
        let snapshot = Snapshot::open(&path).unwrap();
        let mut bytes = [0; 3];
        snapshot.read_at(&mut bytes, 0).unwrap();
        let right = &bytes == b"one";
        std::fs::write(&told, "").unwrap();
        while told.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = matches!(snapshot.read_at(&mut bytes, 1 << 19), Err(Error::SnapshotEnded { .. }));
        i32::from(!(right && ended))
    });
    while !told.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(file.snapshots().snapshots.len(), 1);
    file.write_at(b"two", 0).unwrap();
    file.close().unwrap();
    // A reader keeps nobody from opening the file anew, and gets nothing of that.
    let mut map = AtomicMap::open(&path).unwrap();
    assert_eq!((&map[..3], map.snapshots().snapshots.len()), (&b"two"[..], 0));
    map[0] = b'T';
    map.commit().unwrap();
    std::fs::remove_file(&told).unwrap();
    assert_eq!(child.wait(), Some(0));
    map.close().unwrap();
}

/// The process that has the file open goes on, and forgets a reader that was killed.
#[test]
fn a_killed_reader_frees_its_snapshot() {
    alone!(120, "a killed reader");
    let path = scratch("data");
    let file = AtomicFile::create(&path, 4 * PAGE as u64).unwrap();
    let told = path.with_extension("told");
    let child = in_forked_child(|| {
        let snapshot = Snapshot::open(&path).unwrap();
        std::fs::write(&told, "").unwrap();
        std::thread::sleep(Duration::from_secs(600));
        i32::from(snapshot.is_empty())
    });
    while !told.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    file.write_at(&[1; 2 * PAGE], 0).unwrap();
    let held = file.snapshots().snapshots;
    assert_eq!(held.iter().map(|held| (held.process, held.bytes)).collect::<Vec<_>>(), [(child.id(), 0)]);
    file.write_at(&[2; 2 * PAGE], PAGE as u64).unwrap();
    // Page 0 was zeros, which take none.
    assert_eq!(file.snapshots().snapshots[0].bytes, 0);
    let told = untorn::inspect(&path).unwrap().snapshots.unwrap();
    assert_eq!((told.snapshots[0].process, told), (child.id(), file.snapshots()));
    child.kill();
    child.wait();
    while !file.snapshots().snapshots.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(file.snapshots().bytes, 0);
}

#[test]
fn a_process_that_serves_no_snapshots_is_named() {
    alone!(120, "a refused reader");
    let path = scratch("data");
    let _file = Options::new().serve_snapshots(false).create(&path, PAGE as u64).unwrap();
    let child = in_forked_child(|| match Snapshot::open(&path) {
        Err(Error::InUse { holder, .. }) => {
            let report = untorn::inspect(&path).unwrap();
            let said = report.findings.iter().any(|finding| finding.contains("its snapshots are not known"));
            i32::from(!(holder.contains("gives no snapshot") && said && report.snapshots.is_none()))
        }
        _ => 2,
    });
    assert_eq!(child.wait(), Some(0));
}

/// A process of another user gets nothing, although it may read the data file.
#[test]
fn another_user_gets_no_snapshot() {
    alone!(120, "a reader of another user");
    needs!("root");
    let path = scratch("data");
    readable_by_all(path.dir(), 0o755);
    let file = AtomicFile::create(&*path, PAGE as u64).unwrap();
    readable_by_all(&path, 0o644);
    file.write_at(b"secret", 0).unwrap();
    file.sync().unwrap();
    let child = in_forked_child(|| {
        as_user(65_534, 65_534, || {
            let readable = std::fs::read(&*path).is_ok();
            i32::from(!readable || Snapshot::open(&*path).is_ok())
        })
    });
    assert_eq!(child.wait(), Some(0));
    assert!(file.snapshots().snapshots.is_empty());
}

fn readable_by_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// What is held costs memory, and nothing of the medium: each commit has the same fences, flushes and bytes.
#[test]
fn snapshots_cost_a_commit_nothing_on_the_medium() {
    alone!(120, "costs of commits");
    for engine in untorn::testing::ENGINES {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            // Nothing that happens in the background is counted along.
            let options = Options::new().engine(engine).durability(durability).checkpoint_threads(0);
            let costs = |count: usize| {
                let medium = counted_pmem();
                let (_dir, file) = create_on(medium.clone(), &options, 8 * PAGE as u64);
                let held: Vec<Snapshot> = (0..count).map(|_| file.snapshot().unwrap()).collect();
                let commit = |round: u64| {
                    let mut tx = file.transaction();
                    (0..3).for_each(|page| tx.write_at(&[round as u8; 100], (round + page) % 8 * PAGE as u64).unwrap());
                    tx.commit().unwrap();
                    file.sync().unwrap();
                };
                let costs: Vec<_> = (1..40).map(|round| medium.cost(|| commit(round))).collect();
                assert_eq!(file.snapshots().bytes, 0, "all pages were zeros");
                drop(held);
                costs.into_iter().map(|cost| [cost.fences, cost.orders, cost.syncs, cost.flushes, cost.bytes]).collect()
            };
            let none: Vec<[u64; 5]> = costs(0);
            assert!(none.iter().all(|cost| cost[0] >= 1 && cost[4] > 300), "{none:?}");
            for count in [1, 8] {
                assert_eq!(costs(count), none, "{engine} {durability} with {count} held");
            }
        }
    }
}

/// The times of a file tell of a writer that comes, and not of one that was there before: its stores to pages that it
/// has stored to change no time. So a handle that reads a plain file gives no snapshot while a writer has it.
#[test]
fn a_reader_of_a_plain_file_notices_a_resting_writer() {
    alone!(60, "a reader of a plain file beside a writer");
    for engine in untorn::testing::ENGINES {
        let path = scratch("data");
        let options = Options::new().engine(engine);
        options.create(&path, PAGES * PAGE as u64).unwrap().close().unwrap();
        let (begin, ready) = (path.with_extension("begin"), path.with_extension("ready"));
        let appears = |path: &Path| {
            while !path.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        // It begins later, and is forked before the reader has anything open.
        let writer = in_forked_child(|| {
            appears(&begin);
            let file = options.open(&path).unwrap();
            file.write_at(&1_u64.to_le_bytes(), 64).unwrap();
            file.sync().unwrap();
            std::fs::write(&ready, []).unwrap();
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        });
        let reader = Options::new().read_only(true).open(&path).unwrap();
        assert_eq!(word(&reader.snapshot().unwrap(), 0), 0);
        std::fs::write(&begin, []).unwrap();
        appears(&ready);
        // The times are old by then.
        std::thread::sleep(Duration::from_millis(30));
        let refused = reader.snapshot().map(drop);
        assert!(matches!(refused, Err(Error::InUse { .. })), "{engine}: {refused:?}");
        assert_eq!(word(&Snapshot::open(&path).unwrap(), 0), 1, "{engine}");
        writer.kill();
        assert_eq!(writer.wait(), None);
        // It has to be opened anew, since a crash left it.
        let refused = reader.snapshot().map(drop);
        assert!(matches!(refused, Err(Error::InUse { .. })), "{engine}: {refused:?}");
        drop(reader);
        assert_eq!(word(&Snapshot::open(&path).unwrap(), 0), 1, "{engine}");
    }
}

/// A process that takes snapshots until it is killed, and ends with 1 on a mixture.
fn holder(path: &Path) -> Child {
    in_forked_child(|| {
        loop {
            // While no process writes, a snapshot has the file open to read, and a writer waits for its end.
            std::thread::sleep(Duration::from_millis(1));
            let Ok(snapshot) = Snapshot::open(path) else { continue };
            let mut bytes = vec![0; snapshot.len() as usize];
            let read = snapshot.read_at(&mut bytes, 0);
            let words = || bytes.chunks(PAGE).map(|page| u64::from_le_bytes(page[64..72].try_into().unwrap()));
            if read.is_ok() && words().any(|word| Some(word) != words().next()) {
                return 1;
            }
        }
    })
}

/// Holders and writers are killed at any time, one of them in each cycle. The file is at one commit, no holder saw a
/// mixture, and a writer forgets a holder that was killed.
#[test]
fn holders_and_writers_are_killed_at_any_time() {
    alone!(1800, "holders and writers that are killed");
    let mut rng = Rng::new(seed("snapshot_kills"));
    for engine in untorn::testing::ENGINES {
        let path = scratch("data");
        let options = Options::new().engine(engine).durability(Durability::PerCommit);
        options.create(&path, PAGES * PAGE as u64).unwrap().close().unwrap();
        let writes = || {
            in_forked_child(|| {
                // While nobody writes, holders have it open to read.
                let file = loop {
                    match options.open(&path) {
                        Err(Error::InUse { .. }) => {}
                        opened => break opened.unwrap(),
                    }
                };
                for stamp in 1_u64.. {
                    let mut tx = file.transaction();
                    (0..PAGES).for_each(|page| tx.write_at(&stamp.to_le_bytes(), page * PAGE as u64 + 64).unwrap());
                    tx.commit().unwrap();
                    file.sync().unwrap();
                }
                0
            })
        };
        let mut writer = writes();
        let mut holders: Vec<Child> = (0..2).map(|_| holder(&path)).collect();
        let (mut of_writers, mut of_holders) = (0, 0);
        for _ in 0..cases(5, 500) {
            std::thread::sleep(Duration::from_micros(rng.below(20_000)));
            if rng.below(3) == 0 {
                writer.kill();
                assert_eq!(writer.wait(), None, "it ended by itself");
                of_writers += 1;
                let snapshot = Snapshot::open(&path).unwrap();
                let stamp = word(&snapshot, 0);
                assert!((0..PAGES).all(|page| word(&snapshot, page) == stamp));
                drop(snapshot);
                writer = writes();
            } else {
                let killed = holders.swap_remove(rng.below(2) as usize);
                let number = killed.id();
                killed.kill();
                assert_eq!(killed.wait(), None, "it saw a mixture");
                of_holders += 1;
                holders.push(holder(&path));
                let is_named =
                    |held: untorn::report::HeldSnapshots| held.snapshots.iter().any(|held| held.process == number);
                while untorn::inspect(&path).unwrap().snapshots.is_some_and(is_named) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        holders.push(writer);
        for child in holders {
            child.kill();
            assert_eq!(child.wait(), None);
        }
        println!("{engine}: {of_writers} writers and {of_holders} holders were killed");
        let file = AtomicFile::open(&path).unwrap();
        let snapshot = file.snapshot().unwrap();
        let stamp = word(&snapshot, 0);
        assert!((0..PAGES).all(|page| word(&snapshot, page) == stamp));
        drop(snapshot);
        file.close().unwrap();
    }
}

/// Holes that a shrink cuts off take no memory, and are zeros in the snapshot whatever comes later.
#[test]
fn a_shrink_keeps_nothing_for_holes() {
    const LEN: u64 = 32 << 20;
    const AT: u64 = LEN / 2;
    for engine in untorn::testing::ENGINES {
        let path = scratch("data");
        let file = Options::new().engine(engine).create(&path, LEN).unwrap();
        file.write_at(&[7; PAGE], AT).unwrap();
        file.sync().unwrap();
        let first = file.snapshot().unwrap();
        let before = allocations();
        file.resize(PAGE as u64).unwrap();
        let taken = allocations() - before;
        assert!(taken < 1000, "{taken} allocations for {} pages of zeros", LEN / PAGE as u64);
        file.sync().unwrap();
        assert_eq!(file.snapshots().bytes, PAGE as u64);
        file.resize(LEN).unwrap();
        file.write_at(&[9; 3 * PAGE], AT - PAGE as u64).unwrap();
        file.sync().unwrap();
        let second = file.snapshot().unwrap();
        file.resize(0).unwrap();
        file.sync().unwrap();
        let bytes = |snapshot: &Snapshot| {
            [AT - 1, AT, AT + PAGE as u64, LEN - 1].map(|at| {
                let mut byte = [0xee];
                snapshot.read_at(&mut byte, at).unwrap();
                byte[0]
            })
        };
        assert_eq!((bytes(&first), bytes(&second)), ([0, 7, 0, 0], [9, 9, 9, 0]), "{engine}");
        assert_eq!(file.snapshots().bytes, 4 * PAGE as u64);
        drop((first, second));
        assert_eq!(file.snapshots().bytes, 0);
        file.close().unwrap();
    }
}
