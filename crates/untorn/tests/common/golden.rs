//! Files that a first version of a format wrote, kept in `tests/golden`.

use std::fs::{File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::{PAGE, Pair, word};
use untorn::testing::storage::{Access, Medium, MediumFile, PageCache};

pub(crate) const RETIREMENTS: [usize; 2] = [2 * PAGE, 2 * PAGE + 512];

/// Of two copies, the one with the higher sequence number.
pub(crate) fn newest(bytes: &[u8], copies: &[usize; 2], seq: usize) -> usize {
    copies.iter().copied().max_by_key(|&at| word(bytes, at + seq)).unwrap()
}

/// Whether the files are to be written anew.
pub(crate) fn are_blessed() -> bool {
    std::env::var_os("UNTORN_BLESS").is_some()
}

pub(crate) fn kept(name: &str, what: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.{what}"))
}

/// Keeps a data file and its sidecar, that without the zeros at its end. What is kept already stays as it is: another
/// version of untorn wrote it.
pub(crate) fn bless(name: &str, pair: &Pair) {
    if kept(name, "sidecar").exists() {
        return;
    }
    let end = pair.side.bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    std::fs::write(kept(name, "data"), &pair.data.bytes).unwrap();
    std::fs::write(kept(name, "sidecar"), &pair.side.bytes[..end]).unwrap();
}

/// Data file and sidecar, the sidecar as long as it was.
pub(crate) fn load(name: &str) -> (Vec<u8>, Vec<u8>) {
    let read = |what| {
        let path = kept(name, what);
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(bytes.len() < 256 << 10, "{} is large", path.display());
        bytes
    };
    let (data, mut side) = (read("data"), read("sidecar"));
    let len = word(&side, newest(&side, &RETIREMENTS, 0) + 32);
    side.resize(len as usize, 0);
    (data, side)
}

/// Puts both into a directory as a backup would, under new inode numbers.
pub(crate) fn place(name: &str, dir: &Path) -> PathBuf {
    let (data, side) = load(name);
    let path = dir.join("data");
    std::fs::write(&path, data).unwrap();
    std::fs::create_dir(dir.join(".untorn")).unwrap();
    std::fs::write(dir.join(".untorn/1"), &side).unwrap();
    let file = PageCache::new().open(&path, Access::ReadWrite, 0).unwrap();
    file.set_mark(Some(side[40..56].try_into().unwrap())).unwrap();
    path
}

/// Gives the data file the time that a cleanly closed sidecar has of it.
pub(crate) fn restore_time(path: &Path, side: &[u8]) {
    let modified = UNIX_EPOCH + Duration::from_nanos(word(side, newest(side, &[0, PAGE], 56) + 120));
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(modified)).unwrap();
}
