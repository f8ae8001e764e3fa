//! Snapshots as plain memory: slices that never change, what ends one, and what the copy takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::system::in_forked_child;
use crate::common::{PAGE, alone, on_disk, scratch};
use crate::threads::together;
use untorn::{AtomicFile, Durability, Error, Options, Snapshot, SnapshotMap};
use untorn_testing::cases;

/// Several pieces of 64 KiB.
const PAGES: u64 = 50;
const LEN: u64 = PAGES * PAGE as u64;

fn write_all(file: &AtomicFile, stamp: u64) {
    let mut tx = file.transaction();
    (0..PAGES).for_each(|page| tx.write_at(&stamp.to_le_bytes().repeat(8), page * PAGE as u64).unwrap());
    tx.commit().unwrap();
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (pages, _) = bytes.as_chunks::<PAGE>();
    pages.iter().map(|page| u64::from_le_bytes(*page.first_chunk().unwrap()))
}

#[test]
fn a_mapped_snapshot_never_changes_beside_writers() {
    for engine in untorn::testing::ENGINES {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            let path = scratch("data");
            let file = Options::new().engine(engine).durability(durability).create(&path, LEN).unwrap();
            let stamp = AtomicU64::new(1);
            let write = |_: u64| {
                write_all(&file, stamp.fetch_add(1, Ordering::Relaxed));
                file.sync().unwrap();
            };
            let hold = |_: u64| {
                let map = file.snapshot().unwrap().map().unwrap();
                let middle = map.slice(30 * PAGE as u64..31 * PAGE as u64).unwrap();
                let first = words(middle).next().unwrap();
                for _ in 0..3 {
                    let all = map.all().unwrap();
                    assert!(words(all).all(|word| word == first), "{:?}", words(all).collect::<Vec<_>>());
                    assert!(words(middle).all(|word| word == first));
                    std::thread::yield_now();
                }
            };
            together(Duration::from_millis(cases(100_u64, 3000)), &[&write, &write, &hold, &hold]);
            file.close().unwrap();
        }
    }
}

#[track_caller]
fn assert_ended(map: &SnapshotMap, page: u64) {
    let at = page * PAGE as u64;
    match map.slice(at..at + 1) {
        Err(Error::SnapshotEnded { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// The directory is gone from its name, so there is no place for pre-images: the snapshot ends, and what was lent
/// stays.
#[test]
fn what_is_there_outlives_the_end_of_a_snapshot() {
    let path = on_disk("data");
    let dir = path.dir();
    let moved = dir.with_extension("moved");
    let file = Options::new().snapshot_memory(0).create(&path, LEN).unwrap();
    write_all(&file, 7);
    file.sync().unwrap();
    let map = file.snapshot().unwrap().map().unwrap();
    let lent = map.slice(0..PAGE as u64).unwrap();
    std::fs::rename(dir, &moved).unwrap();
    write_all(&file, 8);
    std::fs::rename(&moved, dir).unwrap();
    assert_eq!(words(lent).next(), Some(7));
    assert_eq!(words(map.slice(0..65_536).unwrap()).collect::<Vec<_>>(), [7; 16], "the piece that is there");
    assert_ended(&map, PAGES - 1);
    assert!(matches!(map.all(), Err(Error::SnapshotEnded { .. })));
    assert!(map.check().is_ok());
    drop(map);
    file.close().unwrap();
}

#[test]
fn what_is_there_outlives_a_killed_writer() {
    alone!(120, "a mapped snapshot of a killed writer");
    let path = scratch("data");
    let told = path.with_extension("told");
    let writer = in_forked_child(|| {
        let file = Options::new().create(&path, LEN).unwrap();
        write_all(&file, 1);
        file.sync().unwrap();
        std::fs::write(&told, "").unwrap();
        for stamp in 2.. {
            write_all(&file, stamp);
        }
        0
    });
    while !told.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let map = Snapshot::open(&path).unwrap().map().unwrap();
    let lent = map.slice(20 * PAGE as u64..21 * PAGE as u64).unwrap();
    let stamp = words(lent).next().unwrap();
    writer.kill();
    writer.wait();
    // The file goes on without the writer, which must not show.
    let file = AtomicFile::open(&path).unwrap();
    write_all(&file, 0);
    file.close().unwrap();
    assert_eq!(words(map.slice(16 * PAGE as u64..32 * PAGE as u64).unwrap()).collect::<Vec<_>>(), [stamp; 16]);
    assert_ended(&map, 0);
}

/// A write takes its bytes from the map of a snapshot of the same file: nothing that it holds is needed for that.
#[test]
fn a_map_may_be_the_source_of_a_write() {
    for engine in untorn::testing::ENGINES {
        let path = scratch("data");
        let file = Options::new().engine(engine).create(&path, LEN).unwrap();
        write_all(&file, 7);
        file.sync().unwrap();
        let map = file.snapshot().unwrap().map().unwrap();
        write_all(&file, 8);
        file.write_at(map.all().unwrap(), 0).unwrap();
        file.sync().unwrap();
        assert!(words(file.snapshot().unwrap().map().unwrap().all().unwrap()).all(|word| word == 7));
        drop(map);
        file.close().unwrap();
    }
}

#[test]
fn a_map_holds_its_snapshot_and_knows_its_bounds() {
    let path = scratch("data");
    let file = AtomicFile::create(&path, 10_000).unwrap();
    let map = file.snapshot().unwrap().map().unwrap();
    assert_eq!((map.len(), map.is_empty(), map.snapshot().commit()), (10_000, false, file.info().commit));
    assert_eq!(file.snapshots().snapshots.len(), 1);
    assert_eq!((map.slice(10_000..10_000).unwrap(), map.slice(9_999..10_000).unwrap()), (&[][..], &[0][..]));
    for outside in [9_999..10_001, 10_001..10_001, 0..u64::MAX, u64::MAX..u64::MAX] {
        assert!(matches!(map.slice(outside.clone()), Err(Error::OutOfRange { .. })), "{outside:?}");
    }
    drop(map);
    assert!(file.snapshots().snapshots.is_empty());
    file.resize(0).unwrap();
    file.sync().unwrap();
    assert_eq!(file.snapshot().unwrap().map().unwrap().all().unwrap(), &[0_u8; 0]);
    file.close().unwrap();
}

/// A copy takes what was asked for, and for a long file nothing of memory.
#[test]
fn a_copy_takes_what_is_asked_for() {
    let path = on_disk("data");
    let file = AtomicFile::create(&path, 1 << 34).unwrap();
    file.write_at(&[1; PAGE], 1 << 33).unwrap();
    file.sync().unwrap();
    let snapshot = file.snapshot().unwrap();
    let map = snapshot.map().unwrap();
    assert_eq!(map.bytes().unwrap(), 0);
    assert_eq!(map.slice((1 << 33) - 1..(1 << 33) + 1).unwrap(), [0, 1]);
    map.slice(0..1 << 20).unwrap();
    let bytes = map.bytes().unwrap();
    assert!((PAGE as u64..=128 << 10).contains(&bytes), "zeros take nothing: {bytes}");
    // Without a place for the copy of a long file there is no map, and the snapshot is as before.
    let moved = path.dir().with_extension("moved");
    std::fs::rename(path.dir(), &moved).unwrap();
    let refused = snapshot.map();
    std::fs::rename(&moved, path.dir()).unwrap();
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    snapshot.read_at(&mut [0], 1 << 33).unwrap();
    drop((map, snapshot));
    file.close().unwrap();
}

#[test]
fn a_forked_child_has_what_was_asked_for() {
    alone!(120, "a forked child with a map");
    let path = scratch("data");
    let file = AtomicFile::create(&path, LEN).unwrap();
    write_all(&file, 5);
    file.sync().unwrap();
    let map = file.snapshot().unwrap().map().unwrap();
    map.slice(0..1).unwrap();
    let child = in_forked_child(|| {
        let told = map.slice(0..1).is_ok_and(|bytes| bytes == [5])
            && matches!(map.slice(LEN - 1..LEN), Err(Error::Forked { .. }));
        i32::from(!told)
    });
    assert_eq!(child.wait(), Some(0));
    assert_eq!(words(map.all().unwrap()).last(), Some(5));
}
