//! Write caches in front of files on a full disk, a real one: what is in the log stays there until the disk has it,
//! and everybody is told. These need root, and are passed over without it.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::disk::{Kind, SmallDisk};
use crate::common::shelf::{contents, pmem};
use crate::common::{alone, pattern, scratch, truncate};
use untorn::write_cache::{CacheOptions, CachedFile, ReplayOutcome};
use untorn::write_cache::{Descriptor, Kernel};
use untorn::{Durability, Error};

const ENOSPC: i32 = 28;
/// Of the small disks, in KiB: room for what is written, and for a log, which is elsewhere.
const DISK: u64 = 2048;
const LEN: usize = 100_000;

/// A log that only drains when it is told to.
fn options() -> CacheOptions {
    CacheOptions::new().size(1 << 20).max_files(4).background(false).durability(Durability::PerWrite)
}

fn new_file(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn write_in_pieces(file: &CachedFile, bytes: &[u8]) {
    (0..).step_by(1000).zip(bytes.chunks(1000)).for_each(|(at, piece)| file.write_at(piece, at).unwrap());
}

/// While the disk is full no replay brings the writes to the file, nor loses them; each one says why. Once there is
/// room, one does.
fn is_kept_until_there_is_room(disk: &SmallDisk, log: &Path, path: &Path, expected: &[u8]) {
    for _ in 0..2 {
        let opened = options().open_on(pmem(), Arc::new(Kernel), log);
        assert!(
            matches!(opened, Err(Error::ReplayIncomplete { .. })),
            "a log with writes that no file has was begun anew"
        );
        let replay = options().replay_on(pmem(), &Kernel, log).unwrap();
        assert!(!replay.is_complete());
        let failed: Vec<_> = replay.files.iter().filter(|file| !file.fate.is_final()).collect();
        assert!(matches!(&failed[..], [file] if file.path.ends_with("file")), "{replay:?}");
        assert!(matches!(&failed[0].fate, ReplayOutcome::Failed(why) if why.contains("No space")), "{replay:?}");
    }
    disk.empty();
    assert!(options().replay_on(pmem(), &Kernel, log).unwrap().is_complete());
    assert!(fs::read(path).unwrap() == expected, "what was acknowledged is not in the file");
    // All of it is durable there, and the log has nothing more.
    let cache = options().open_on(pmem(), Arc::new(Kernel), log).unwrap();
    assert_eq!(cache.replayed().operations, 0);
}

fn what_finds_no_room_when_it_is_drained(kind: Kind) {
    let Some(disk) = SmallDisk::mount(kind, DISK) else { return };
    let (log, path) = (scratch("log"), disk.path("file"));
    let plain = new_file(&path);
    let other = new_file(&disk.path("other"));
    other.set_len(10).unwrap();
    let cache = options().create_on(pmem(), Arc::new(Kernel), &log).unwrap();
    let file = cache.attach(plain.as_fd(), &path).unwrap();
    let neighbour = cache.attach(other.as_fd(), &disk.path("other")).unwrap();
    neighbour.write_at(b"there is room", 0).unwrap();
    cache.drain().unwrap();
    disk.fill(2);
    let expected = pattern(LEN, 1);
    // Into the log, which has room: it is durable there, and to be seen.
    write_in_pieces(&file, &expected);
    assert_eq!(contents(&file), expected);
    let Err(error) = cache.drain() else { panic!("a full disk took {LEN} bytes") };
    assert!(matches!(error, Error::Poisoned { .. }) || error.errno() == ENOSPC, "{error}");
    for refused in [file.write_at(b"x", 0), file.sync(), file.set_len(1), file.demote()] {
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
    }
    // It is in nobody's way, and what it holds is still to be seen.
    neighbour.write_at(b"there still is", 0).unwrap();
    neighbour.sync().unwrap();
    assert_eq!(contents(&file), expected);
    assert!(cache.info().unwrap().stuck > 0, "the log let go of what no disk has");
    drop((file, neighbour, cache, plain, other));
    is_kept_until_there_is_room(&disk, &log, &path, &expected);
    assert_eq!(fs::read(disk.path("other")).unwrap(), b"there still is");
}

fn what_a_full_disk_took_in_part(kind: Kind) {
    let Some(disk) = SmallDisk::mount(kind, DISK) else { return };
    let (log, path) = (scratch("log"), disk.path("file"));
    let plain = new_file(&path);
    plain.set_len(10).unwrap();
    disk.fill(20);
    let cache = options().create_on(pmem(), Arc::new(Kernel), &log).unwrap();
    let descriptor = Descriptor::new(plain.into(), &path).unwrap();
    let file = cache.attach_write_through(Arc::new(descriptor), &path).unwrap();
    let pattern = pattern(LEN, 2);
    let mut taken = 0;
    loop {
        match file.write_some(&pattern[taken..taken + 3000], taken as u64) {
            Ok(len) => taken += len,
            Err(error) if error.errno() == ENOSPC => break,
            Err(error) => panic!("{error}"),
        }
        assert!(taken < LEN - 3000, "the disk is not full");
    }
    assert!(taken > 10_000, "only {taken} bytes before the disk was full");
    // That is no failure of the file: what it has is durable, so the log need not have it, and in place it is written
    // to.
    file.sync().unwrap();
    file.check_usable().unwrap();
    assert!(file.is_settled());
    let mut expected = pattern[..taken].to_vec();
    assert!(fs::read(&path).unwrap() == expected, "what was told and what is there differ");
    file.write_at(&[0xee; 500], 4000).unwrap();
    drop((file, cache));
    // A power cut takes what was not synced. A replay needs no room for it, and does nothing of what was refused.
    let plain = OpenOptions::new().write(true).open(&path).unwrap();
    plain.write_all_at(&expected[4000..4500], 4000).unwrap();
    assert!(options().replay_on(pmem(), &Kernel, &log).unwrap().is_complete());
    expected[4000..4500].fill(0xee);
    assert!(fs::read(&path).unwrap() == expected, "what was acknowledged is not in the file, or more than that");
}

fn what_was_written_and_not_synced(kind: Kind) {
    let Some(disk) = SmallDisk::mount(kind, DISK) else { return };
    let (log, path) = (scratch("log"), disk.path("file"));
    let plain = new_file(&path);
    let cache = options().create_on(pmem(), Arc::new(Kernel), &log).unwrap();
    let file = cache.attach_write_through(Arc::new(Descriptor::new(plain.into(), &path).unwrap()), &path).unwrap();
    let expected = pattern(LEN, 3);
    write_in_pieces(&file, &expected);
    drop((file, cache));
    // A power cut takes it, and somebody else the room.
    truncate(&path, 0);
    File::open(&path).unwrap().sync_all().unwrap();
    disk.fill(2);
    is_kept_until_there_is_room(&disk, &log, &path, &expected);
}

macro_rules! on_full_disks {
    ($($name:ident: $check:ident, $kind:ident;)+) => {$(
        #[test]
        fn $name() {
            alone!(60, "a full disk");
            $check(Kind::$kind);
        }
    )+};
}

on_full_disks! {
    the_log_keeps_bytes_until_a_full_ext4_has_room: what_finds_no_room_when_it_is_drained, Ext4;
    the_log_keeps_bytes_until_a_full_tmpfs_has_room: what_finds_no_room_when_it_is_drained, Tmpfs;
    only_bytes_that_a_full_ext4_took_are_kept: what_a_full_disk_took_in_part, Ext4;
    only_bytes_that_a_full_tmpfs_took_are_kept: what_a_full_disk_took_in_part, Tmpfs;
    replay_waits_for_room_on_a_full_ext4: what_was_written_and_not_synced, Ext4;
    replay_waits_for_room_on_a_full_tmpfs: what_was_written_and_not_synced, Tmpfs;
}
