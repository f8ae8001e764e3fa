//! The spill file of a log: epochs larger than the log, and what others may do to that file.

use std::sync::Arc;
use std::time::Duration;

use crate::common::memory_dir;
use crate::common::shelf::{contents, pmem, small};
use untorn::testing::storage::PageCache;
use untorn::write_cache::{CacheOptions, CachedFile, Descriptor, Kernel, WriteCache};

/// A log in front of files of the kernel: on a shelf no file is made, so there is no spill file.
struct OnDisk {
    dir: tempfile::TempDir,
    options: CacheOptions,
    /// The log is on persistent memory.
    pmem: bool,
}

impl OnDisk {
    fn new(options: CacheOptions, is_pmem: bool) -> (Self, WriteCache) {
        let dir = memory_dir();
        let log = dir.path().join("log");
        let cache = match is_pmem {
            true => options.create_on(pmem(), Arc::new(Kernel), log),
            false => options.create_on(PageCache::new(), Arc::new(Kernel), log),
        };
        (OnDisk { dir, options, pmem: is_pmem }, cache.unwrap())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn attach(&self, cache: &WriteCache, name: &str) -> CachedFile {
        let path = self.path(name);
        let mut options = std::fs::File::options();
        let plain = options.read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        cache.attach_atomic(Arc::new(Descriptor::new(plain.into(), &path).unwrap()), &path).unwrap()
    }

    fn open(&self) -> untorn::Result<WriteCache> {
        match self.pmem {
            true => self.options.open_on(pmem(), Arc::new(Kernel), self.path("log")),
            false => self.options.open_on(PageCache::new(), Arc::new(Kernel), self.path("log")),
        }
    }

    fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

#[test]
fn an_epoch_may_be_far_larger_than_the_log() {
    for pmem in [false, true] {
        epochs_larger_than_the_log(pmem);
    }
}

fn epochs_larger_than_the_log(pmem: bool) {
    // A log of 4 KiB of data.
    let (disk, cache) = OnDisk::new(small(64).spill_from(4096), pmem);
    let (a, b) = (disk.attach(&cache, "a"), disk.attach(&cache, "b"));
    let mut expected = Vec::new();
    for part in 0..20_u8 {
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| (n / 7) as u8 ^ part).collect();
        a.append(&bytes).unwrap();
        expected.extend(bytes);
        b.write_at(&[part; 10], 0).unwrap();
        b.commit().unwrap();
    }
    a.write_at(&[9; 100], 123_456).unwrap();
    expected[123_456..123_556].fill(9);
    a.set_len(190_000).unwrap();
    expected.truncate(190_000);
    assert!(contents(&a) == expected && disk.get("a").is_empty());
    let spill = disk.path("log.spill");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&spill).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    a.commit().unwrap();
    a.append(&[8; 5000]).unwrap();
    // Killed: the next one finds all of the commit, and nothing after it.
    drop((a, b, cache));
    let cache = disk.open().unwrap();
    assert!(disk.get("a") == expected && disk.get("b") == [19; 10]);
    assert!(!spill.exists());
    // Drained, abandoned, or written over again and again: it takes no more space than what is open.
    let a = disk.attach(&cache, "a");
    for round in 0..30_u8 {
        a.write_at(&[round; 12_000], 1000).unwrap();
        match round % 3 {
            0 => a.abandon().unwrap(),
            1 => a.commit().unwrap(),
            _ => cache.drain().unwrap(),
        }
        if round % 3 == 0 {
            expected[1000..13_000].copy_from_slice(&contents(&a)[1000..13_000]);
        } else {
            expected[1000..13_000].fill(round);
        }
        assert!(contents(&a) == expected, "round {round}");
    }
    assert!(std::fs::metadata(&spill).unwrap().len() <= 10 * 12_288);
    a.commit().unwrap();
    cache.drain().unwrap();
    assert_eq!(std::fs::metadata(&spill).unwrap().len(), 0);
    assert!(disk.get("a") == expected);
    // A replay needs nothing of what was abandoned, and finds it without its bytes.
    a.write_at(&[1; 12_000], 0).unwrap();
    a.abandon().unwrap();
    a.write_at(b"last", 0).unwrap();
    a.commit().unwrap();
    expected[..4].copy_from_slice(b"last");
    assert_eq!(std::fs::metadata(&spill).unwrap().len(), 0);
    let kept = std::fs::read(disk.path("log")).unwrap();
    drop((a, cache));
    assert!(!spill.exists());
    for spill_len in [None, Some(0), Some(4096)] {
        std::fs::write(disk.path("log"), &kept).unwrap();
        if let Some(len) = spill_len {
            std::fs::write(&spill, vec![0; len]).unwrap();
        }
        drop(disk.open().unwrap());
        assert!(disk.get("a") == expected && !spill.exists());
    }
}

/// Several threads, each with a file of its own, all spilling.
#[test]
fn large_epochs_of_several_threads_stay_whole() {
    let rounds = untorn_testing::cases(40, 600) as u32;
    let options = small(200).spill_from(1024).background(true).max_age(Duration::from_millis(1));
    let (disk, cache) = OnDisk::new(options, false);
    let names = ["0", "1", "2"];
    let one = &|name: &str| {
        let file = disk.attach(&cache, name);
        let mut last = Vec::new();
        for round in 1..=rounds {
            let bytes = round.to_le_bytes().repeat(1 + (round as usize * 97) % 1700);
            file.set_len(0).unwrap();
            file.write_at(&bytes, 0).unwrap();
            file.write_at(&round.to_le_bytes(), 0).unwrap();
            assert!(contents(&file) == bytes);
            match round % 3 {
                0 => file.commit_later().unwrap(),
                1 => file.commit().unwrap(),
                _ => file.abandon().unwrap(),
            }
            if round % 3 != 2 {
                last = bytes;
            }
            assert!(contents(&file) == last, "{name}, round {round}");
        }
        last
    };
    let last: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads = names.map(|name| scope.spawn(move || one(name)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    cache.sync().unwrap();
    drop(cache);
    drop(disk.open().unwrap());
    for (name, last) in names.iter().zip(last) {
        assert!(disk.get(name) == last);
    }
}

#[test]
fn a_commit_without_its_spill_file_does_not_count() {
    let (disk, cache) = OnDisk::new(small(64).spill_from(4096), false);
    let a = disk.attach(&cache, "a");
    a.write_at(&[1; 5000], 0).unwrap();
    a.commit().unwrap();
    a.write_at(&[2; 5000], 2000).unwrap();
    a.write_at(&[3; 10], 0).unwrap();
    a.commit().unwrap();
    drop((a, cache));
    // One byte of the second write is another.
    let spill = disk.path("log.spill");
    let mut bytes = std::fs::read(&spill).unwrap();
    let at = bytes.iter().rposition(|&byte| byte == 2).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&spill, bytes).unwrap();
    let cache = disk.open().unwrap();
    assert!(disk.get("a") == [1; 5000]);
    assert_eq!(cache.replayed().open_epochs, 1);
}

#[test]
fn a_planted_spill_file_is_not_written_to() {
    let (disk, cache) = OnDisk::new(small(64).spill_from(4096), false);
    std::fs::write(disk.path("victim"), b"precious").unwrap();
    std::os::unix::fs::symlink(disk.path("victim"), disk.path("log.spill")).unwrap();
    let a = disk.attach(&cache, "a");
    a.write_at(&[1; 5000], 0).unwrap();
    a.commit().unwrap();
    assert_eq!(disk.get("victim"), b"precious");
    drop((a, cache));
    drop(disk.open().unwrap());
    assert!(disk.get("a") == [1; 5000] && disk.get("victim") == b"precious");
}
