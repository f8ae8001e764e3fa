//! A file with redundancy in a directory of its own, and what damages it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use untorn::AtomicFile;
use untorn::redundancy::ProtectOptions;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const LEN: u64 = 40 * PAGE + 1000;

pub(crate) struct Place {
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        Place { _dir: dir, path }
    }
}

pub(crate) fn by_hand() -> ProtectOptions {
    ProtectOptions::new().on_demand()
}

/// Does to a file what a device would: its bytes change, its times stay.
pub(crate) fn rot(path: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.set_modified(modified).unwrap();
    file.sync_all().unwrap();
}

pub(crate) fn quiet() -> impl FnMut(u64, u64) -> bool {
    |_, _| true
}

pub(crate) fn all_of(file: &AtomicFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}
