//! The hybrid log on a disk that is full: what has its space goes on, what lacks some is refused with an error, and
//! all goes on once there is room.

use std::os::unix::fs::MetadataExt;

use crate::common::counting::Counting;
use crate::common::disk::{Kind, SmallDisk};
use crate::common::{PAGE, alone, create_on, memory_dir, pmem, read, sidecar_of};
use untorn::options::LogPolicy;
use untorn::testing::storage::{Medium, PageCache};
use untorn::{AtomicFile, EngineKind, Error, Options, Result};

/// Units of a chunk of the log, which takes one page more.
const UNITS: u64 = 16;
const BLOCKS: u64 = 256;

fn options() -> Options {
    let options = Options::new().engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo);
    options.record_area(1, UNITS as u32).checkpoint_threads(0).keep_sidecar(true)
}

fn write(file: &AtomicFile, block: u64, fill: u8) -> Result<()> {
    file.write_at(&[fill; PAGE], block * PAGE as u64)
}

/// A file that is all ones, with space, and a log of many chunks none of which has any.
fn hollowed<M: Medium>(medium: M, disk: &SmallDisk) -> AtomicFile {
    let file = options().create_on(medium, disk.path("data"), BLOCKS * PAGE as u64).unwrap();
    (0..BLOCKS).for_each(|block| write(&file, block, 1).unwrap());
    file.sync().unwrap();
    assert!(file.reclaim().unwrap() >= BLOCKS * PAGE as u64);
    file
}

/// Writes block after block, all in one epoch, until one is refused for want of space. Returns how many were not.
fn write_until_full(file: &AtomicFile, fill: u8) -> u64 {
    let refused = (0..BLOCKS).find_map(|block| write(file, block, fill).err().map(|error| (block, error)));
    let (block, error) = refused.expect("the disk is full");
    assert!(matches!(error, Error::Io { .. }) && error.errno() == 28, "{error}");
    block
}

fn expect(file: &AtomicFile, first: u64, fill: u8, rest: u8) {
    for (block, bytes) in read(file).chunks(PAGE).enumerate() {
        let fill = if (block as u64) < first { fill } else { rest };
        assert!(bytes.iter().all(|&byte| byte == fill), "block {block} is not all {fill}");
    }
}

/// Does `go` with each medium on a small disk of each kind.
fn each(go: fn(bool, Kind)) {
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        go(true, kind);
        go(false, kind);
    }
}

/// After a reclaim, or a kill while the log grew, the next session finds chunks that may be holes.
#[test]
fn a_hole_that_a_log_was_found_with_is_not_stored_into() {
    alone!(120, "a log of holes on a full disk");
    fn go<M: Medium>(medium: impl Fn() -> M, kind: Kind) {
        let Some(disk) = SmallDisk::mount(kind, 16 << 10) else { return };
        hollowed(medium(), &disk).close().unwrap();
        let file = options().open_on(medium(), disk.path("data")).unwrap();
        // For some of its chunks there is space.
        disk.fill(3 * (UNITS + 1));
        let fitted = write_until_full(&file, 2);
        assert!(fitted >= UNITS, "{kind:?}: {fitted} blocks of the epoch had their space");
        file.sync().unwrap();
        expect(&file, fitted, 2, 1);
        disk.empty();
        (0..BLOCKS).for_each(|block| write(&file, block, 3).unwrap());
        file.sync().unwrap();
        file.close().unwrap();
        expect(&options().open_on(medium(), disk.path("data")).unwrap(), 0, 0, 3);
    }
    each(|block, kind| match block {
        true => go(PageCache::new, kind),
        false => go(pmem, kind),
    });
}

/// The log that gave its space back, on a disk that others fill then: what it gets space for serves all further epochs.
#[test]
fn checkpoints_make_room_on_a_full_disk_after_a_reclaim() {
    alone!(120, "checkpoints on a full disk");
    fn go<M: Medium>(medium: M, kind: Kind) {
        let Some(disk) = SmallDisk::mount(kind, 16 << 10) else { return };
        let file = hollowed(medium, &disk);
        disk.fill(3 * (UNITS + 1));
        for round in 0..BLOCKS {
            write(&file, round, 2)
                .and_then(|()| file.sync())
                .unwrap_or_else(|error| panic!("{kind:?}, {round}: {error}"));
        }
        expect(&file, BLOCKS, 2, 2);
        let fitted = write_until_full(&file, 3);
        file.sync().unwrap();
        expect(&file, fitted, 3, 2);
        disk.empty();
        (0..BLOCKS).for_each(|block| write(&file, block, 4).unwrap());
        file.close().unwrap();
    }
    each(|block, kind| match block {
        true => go(PageCache::new(), kind),
        false => go(pmem(), kind),
    });
}

/// What a session left in its log the next one can give back, too, on either medium.
#[test]
fn a_log_that_was_found_gives_its_space_back() {
    fn go<M: Medium>(medium: impl Fn() -> M) {
        let (path, file) = create_on(medium(), &options(), BLOCKS * PAGE as u64);
        (0..BLOCKS).for_each(|block| write(&file, block, 1).unwrap());
        file.close().unwrap();
        let space = || std::fs::metadata(sidecar_of(&path)).unwrap().blocks() * 512;
        let before = space();
        let file = options().open_on(medium(), &path).unwrap();
        let freed = file.reclaim().unwrap();
        assert!(freed >= BLOCKS * PAGE as u64 && space() + freed <= before, "{before}, {freed} freed, {}", space());
        expect(&file, BLOCKS, 1, 1);
        write(&file, 0, 2).unwrap();
        file.sync().unwrap();
        expect(&file, 1, 2, 1);
    }
    go(PageCache::new);
    go(pmem);
}

/// A file system that finds out about its space only when it is written to: what stored nothing has nothing to be taken
/// back, and the epoch that is open goes on.
#[test]
fn a_write_that_stored_nothing_costs_the_open_epoch_nothing() {
    let dir = memory_dir();
    let medium = Counting::new(PageCache::new());
    let path = dir.path().join("data");
    let file = options().create_on(medium.clone(), &path, 8 * PAGE as u64).unwrap();
    write(&file, 0, 2).unwrap();
    medium.refuse_writes_to(Some(&sidecar_of(&path)));
    // A block that has an entry, one that has none, and both in one write.
    for (offset, len) in [(0, PAGE), (PAGE, PAGE), (100, PAGE)] {
        let refused = file.write_at(&vec![3; len], offset as u64).unwrap_err();
        assert!(matches!(refused, Error::Io { .. }), "{refused}");
    }
    medium.refuse_writes_to(None);
    write(&file, 2, 2).unwrap();
    file.sync().unwrap();
    let check = |file: &AtomicFile| {
        for (block, bytes) in read(file).chunks(PAGE).enumerate() {
            let fill = if [0, 2].contains(&block) { 2 } else { 0 };
            assert!(bytes.iter().all(|&byte| byte == fill), "block {block}");
        }
    };
    check(&file);
    drop(file);
    check(&options().open_on(medium, &path).unwrap());
}
