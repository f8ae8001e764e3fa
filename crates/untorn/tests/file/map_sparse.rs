//! A long file with little in it costs what is touched, in memory, page tables and on the disk, as an [`AtomicMap`] and
//! as an [`AtomicFile`]. Each test is by itself in its process: it counts all memory of that.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::common::{alone, make_long, methods, on_disk, page_tables};
use untorn::{AtomicFile, AtomicMap, Durability, Options};

const LEN: u64 = 16 << 30;
/// Pages that are stored to, each in a part of the file, and page tables, of its own.
const TOUCHED: u64 = 512;

/// What `/proc/self/status` has under a name, in KiB.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// KiB of this process's memory, and of its page tables.
fn memory() -> (u64, u64) {
    (status("VmRSS:"), status("VmPTE:"))
}

/// KiB of memory that is no file's, and of page tables.
fn own_memory() -> u64 {
    status("RssAnon:") + status("VmPTE:")
}

/// KiB on the disk of all in a directory.
fn disk_usage(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => disk_usage(&entry.path()),
            false => entry.metadata().unwrap().blocks() / 2,
        })
        .sum()
}

#[test]
fn a_long_map_costs_what_is_touched() {
    alone!(120, "a long map");
    for method in methods() {
        let path = on_disk("file");
        File::create(&path).unwrap().set_len(LEN).unwrap();
        let before = memory();
        let mut map = Options::new().dirty_tracking(method).map(&path).unwrap();
        let opened = memory();
        for number in 0..TOUCHED {
            map[(LEN / TOUCHED * number) as usize] = 1;
        }
        map.commit().unwrap();
        let committed = memory();
        let disk = disk_usage(path.dir());
        let grown = |from: (u64, u64), to: (u64, u64)| to.0.saturating_sub(from.0) + to.1.saturating_sub(from.1);
        // A byte for each page would be 4 MiB.
        assert!(grown(before, opened) < 2 << 10, "{method}: opening it took {before:?} to {opened:?} KiB");
        let most = 64 * TOUCHED;
        assert!(grown(opened, committed) < most, "{method}: {TOUCHED} pages took {opened:?} to {committed:?} KiB");
        assert!(disk < most, "{method}: {TOUCHED} pages take {disk} KiB of the disk");
        map.close().unwrap();
        let map = AtomicMap::open(&path).unwrap();
        assert!((0..TOUCHED).all(|number| map[(LEN / TOUCHED * number) as usize] == 1));
        map.close().unwrap();
    }
}

/// Ten tebibytes, of which a page is touched here and there.
#[test]
fn a_very_long_map_takes_page_tables_for_what_is_touched() {
    alone!(120, "a very long map");
    for method in methods() {
        let path = on_disk("file");
        let len = make_long(&path);
        let before = page_tables();
        let mut map = Options::new().dirty_tracking(method).map(&path).unwrap();
        let taken = || page_tables().saturating_sub(before);
        assert!(taken() < 1 << 10, "{method}: untouched it takes {} KiB", taken());
        for number in 0..16 {
            map[(len / 16 * number) as usize] = 1;
        }
        map.commit().unwrap();
        assert!(taken() < 2 << 10, "{method}: 16 pages take {} KiB", taken());
        map.close().unwrap();
    }
}

/// The tables of an engine are as long as the file, in pages of memory of which only those that are touched are there.
#[test]
fn a_long_file_takes_memory_for_what_is_touched() {
    const LEN: u64 = 64 << 30;
    const TOUCHED: u64 = 256;
    alone!(120, "a long file");
    for engine in untorn::testing::ENGINES {
        let path = on_disk("file");
        File::create(&path).unwrap().set_len(LEN).unwrap();
        let before = own_memory();
        let file: AtomicFile = Options::new().engine(engine).durability(Durability::PerCommit).open(&path).unwrap();
        for number in 0..TOUCHED {
            file.write_at(&number.to_le_bytes(), LEN / TOUCHED * number).unwrap();
        }
        file.sync().unwrap();
        let grown = own_memory().saturating_sub(before);
        assert!(grown < 128 * TOUCHED, "{engine}: {TOUCHED} pages took {grown} KiB");
        let mut bytes = [0; 8];
        for number in 0..TOUCHED {
            file.read_at(&mut bytes, LEN / TOUCHED * number).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), number, "{engine}");
        }
        file.settle().unwrap();
    }
}
