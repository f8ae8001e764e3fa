//! The hybrid log under a size that it may not exceed: an epoch that fits is never refused, and one that does not fit
//! leaves the file and the handle as they were.

use crate::common::ReadAt;
use untorn::options::LogPolicy;
use untorn::{AtomicFile, EngineKind, Options};

const MIB: u64 = 1 << 20;

fn file(len: u64, log_size: u64) -> (tempfile::TempDir, AtomicFile) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo);
    let file = options.log_size(log_size).checkpoint_threads(0).create(dir.path().join("f"), len).unwrap();
    (dir, file)
}

/// Commits after each write, so that no epoch has more than one of them in the log.
fn write_all(file: &AtomicFile, len: usize) {
    let bytes = vec![7; len];
    for at in (0..file.len()).step_by(len) {
        file.write_at(&bytes, at).unwrap_or_else(|error| panic!("at {at}: {error}"));
        file.sync().unwrap();
    }
    let seen = file.bytes_at(0, file.len() as usize);
    assert!(seen.iter().all(|&byte| byte == 7));
}

#[test]
fn the_smallest_log_serves_small_writes() {
    let (_dir, file) = file(MIB, 256 << 10);
    write_all(&file, 4096);
    file.close().unwrap();
}

#[test]
fn a_log_at_its_most_makes_room_by_checkpoints() {
    for (log_size, write) in [(4 * MIB, 64 << 10), (4 * MIB, MIB as usize), (16 * MIB, MIB as usize)] {
        let (_dir, file) = file(32 * MIB, log_size);
        write_all(&file, write);
        file.close().unwrap();
    }
}

#[test]
fn a_write_that_does_not_fit_leaves_room_for_those_that_do() {
    let (_dir, file) = file(64 * MIB, 16 * MIB);
    file.write_at(&vec![9; 64 << 20], 0).expect_err("it is four times as long as the log");
    let mut seen = [1; 8];
    file.read_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [0; 8], "nothing of it is there");
    file.write_at(&vec![8; 1 << 20], 0).expect("the log holds nothing");
    file.sync().unwrap();
    write_all(&file, MIB as usize);
    file.close().unwrap();
}

/// What a lane held at the last cut, and has let go of since, is free without another cut; and a reclaim leaves lanes
/// nothing.
#[test]
fn space_freed_since_the_last_checkpoint_holds_an_epoch() {
    let cuts: [fn(&AtomicFile); 2] = [
        |file| assert!(file.reclaim().unwrap() > 0),
        // Once a shorter length is durable, a growth has everything taken home before it.
        |file| {
            file.resize(7 * MIB).unwrap();
            file.sync().unwrap();
            file.resize(8 * MIB).unwrap();
        },
    ];
    for (n, cut) in cuts.into_iter().enumerate() {
        // Two chunks.
        let (_dir, file) = file(8 * MIB, 4 * MIB);
        file.write_at(&[1; 4096], 0).unwrap();
        file.sync().unwrap();
        cut(&file);
        let bytes = vec![2; 4 << 20];
        file.write_at(&bytes, 0).unwrap_or_else(|error| panic!("after cut {n}: {error}"));
        file.sync().unwrap();
        assert!(file.bytes_at(0, 4 << 20) == bytes, "after cut {n}");
        file.close().unwrap();
    }
}

/// A write that no log of this size can hold is refused before the log is made longer for it.
#[test]
fn a_log_is_not_made_longer_for_what_it_can_never_hold() {
    let (dir, file) = file(64 * MIB, 48 * MIB);
    file.write_at(&vec![9; 64 << 20], 0).expect_err("it is longer than the log");
    let sidecar = std::fs::read_dir(dir.path().join(".untorn")).unwrap().next().unwrap().unwrap();
    let len = sidecar.metadata().unwrap().len();
    assert!(len < 16 * MIB, "the sidecar has {len} bytes");
    write_all(&file, MIB as usize);
    file.close().unwrap();
}
