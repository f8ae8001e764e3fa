//! The hybrid log under a size that it may not exceed: an epoch that fits is never refused, and one that does not fit
//! leaves the file and the handle as they were.

use untorn::{AtomicFile, EngineKind, LogPolicy, Options};

const MIB: u64 = 1 << 20;

fn file(len: u64, log_size: u64) -> (tempfile::TempDir, AtomicFile) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo);
    let file = options.log_size(log_size).checkpointers(0).create(dir.path().join("f"), len).unwrap();
    (dir, file)
}

/// Commits after each write, so that no epoch has more than one of them in the log.
fn write_all(file: &AtomicFile, len: usize) {
    let bytes = vec![7; len];
    for at in (0..file.len()).step_by(len) {
        file.write_at(&bytes, at).unwrap_or_else(|error| panic!("at {at}: {error}"));
        file.sync().unwrap();
    }
    let mut seen = vec![0; file.len() as usize];
    file.read_at(&mut seen, 0).unwrap();
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
