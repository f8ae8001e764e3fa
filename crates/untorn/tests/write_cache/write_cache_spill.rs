//! The spill file of a log: epochs larger than the log, and what others may do to that file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::memory_dir;
use crate::common::shelf::{Setup, contents, pmem, small};
use untorn::testing::storage::PageCache;
use untorn::write_cache::{CacheOptions, CachedFile, Descriptor, Keep, Kernel, WriteCache};

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

/// Numbers that look random, below a limit.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % limit
    }
}

/// Writes small and large ones to random places, and shortens the file now and then: what it has then.
fn change_at_random(file: &CachedFile, expected: &mut Vec<u8>, count: u32, below: &mut dyn FnMut(u64) -> u64) {
    for n in 0..count {
        let len = match below(40) {
            0 => 500 + below(3000),
            1..10 => 1,
            _ => 1 + below(150),
        };
        let (at, tag) = (below(40_000) as usize, n as u8 | 1);
        if below(60) == 0 {
            file.set_len(at as u64).unwrap();
            expected.resize(at, 0);
            continue;
        }
        let bytes: Vec<u8> = (0..len).map(|n| tag.wrapping_add(n as u8)).collect();
        file.write_at(&bytes, at as u64).unwrap();
        expected.resize(expected.len().max(at + bytes.len()), 0);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

/// Small writes, of which the log has room for a few: the others are packed, and packs into packs.
#[test]
fn an_epoch_of_small_writes_may_be_larger_than_the_log() {
    for (pmem, chunk) in [(false, 1 << 16), (true, 256), (false, 512)] {
        let (disk, cache) = OnDisk::new(small(64).spill_from(chunk), pmem);
        let (a, b) = (disk.attach(&cache, "a"), disk.attach(&cache, "b"));
        let mut below = numbers(u64::from(chunk));
        let mut expected = Vec::new();
        for round in 0..4 {
            change_at_random(&a, &mut expected, 1500, &mut below);
            assert!(contents(&a) == expected, "chunks of {chunk}, round {round}");
            b.write_at(&[round; 10], 0).unwrap();
            match round {
                0 => a.commit().unwrap(),
                1 => {
                    // Nothing of it is left, and none of its space is in use.
                    a.abandon().unwrap();
                    b.commit().unwrap();
                    expected.clone_from(&disk.get("a"));
                    assert!(contents(&a) == expected, "chunks of {chunk}");
                    cache.drain().unwrap();
                    assert_eq!(std::fs::metadata(disk.path("log.spill")).unwrap().len(), 0);
                }
                // In the way of the tail while it is open.
                2 => {
                    cache.drain().unwrap();
                    assert!(contents(&a) == expected && disk.get("a") != expected);
                    a.commit().unwrap();
                    cache.drain().unwrap();
                    assert!(disk.get("a") == expected && contents(&a) == expected);
                    assert_eq!(cache.info().unwrap().used, cache.info().unwrap().uncommitted / 2);
                }
                _ => a.commit_later().unwrap(),
            }
        }
        cache.sync().unwrap();
        change_at_random(&a, &mut expected.clone(), 800, &mut below);
        // Killed: the next one finds all of the last commit, and nothing after it.
        drop((a, b, cache));
        let cache = disk.open().unwrap();
        assert!(disk.get("a") == expected && disk.get("b") == [3; 10], "chunks of {chunk}");
        assert_eq!(cache.replayed().open_epochs, 1);
        assert!(!disk.path("log.spill").exists());
    }
}

/// A log of 4 MiB, in the long form one of 16: an epoch of writes of 4 KiB, and one of writes of 100 bytes, both at
/// random places.
#[test]
fn a_log_of_ordinary_size_commits_an_epoch_many_times_as_large() {
    let bytes = untorn_testing::cases(8 << 20, 200 << 20) as u64;
    let (size, most) = (untorn_testing::cases(4 << 20, 16 << 20) as u64, untorn_testing::cases(75_000, 300_000) as u64);
    let options = CacheOptions::new().size(size).max_files(64).max_age(Duration::from_millis(10));
    for len in [4096, 100] {
        let (disk, cache) = OnDisk::new(options.clone(), false);
        let file = disk.attach(&cache, "a");
        let mut below = numbers(len);
        let mut expected = vec![0; 2 * bytes as usize];
        file.set_len(expected.len() as u64).unwrap();
        for n in 0..bytes.min(len * most) / len {
            let at = below(expected.len() as u64 - len);
            let piece = [n as u8; 4096];
            file.write_at(&piece[..len as usize], at).unwrap();
            expected[at as usize..(at + len) as usize].fill(n as u8);
        }
        assert!(contents(&file) == expected && disk.get("a").is_empty(), "writes of {len} bytes");
        file.commit().unwrap();
        drop((file, cache));
        drop(disk.open().unwrap());
        assert!(disk.get("a") == expected, "writes of {len} bytes");
    }
}

/// Each of the files has little that no commit covers, and all of them together more than the log has room for.
#[test]
fn open_epochs_of_several_files_may_be_larger_than_the_log() {
    let (disk, cache) = OnDisk::new(small(64), false);
    let names = ["a", "b", "c", "d"];
    let files = names.map(|name| disk.attach(&cache, name));
    let mut expected = names.map(|_| Vec::new());
    for round in 0..40_u8 {
        for (file, expected) in files.iter().zip(&mut expected) {
            file.append(&[round; 70]).unwrap();
            expected.extend([round; 70]);
            file.write_at(&[round; 3], 1).unwrap();
            expected[1..4].fill(round);
        }
    }
    for (file, expected) in files.iter().zip(&expected) {
        assert!(contents(file) == *expected);
    }
    files[2].abandon().unwrap();
    expected[2].clear();
    cache.sync().unwrap();
    drop((files, cache));
    drop(disk.open().unwrap());
    for (name, expected) in names.iter().zip(&expected) {
        assert!(disk.get(name) == *expected, "{name}");
    }
}

/// One whose length is more than the log has room for beside what is open, and less than what is always spilled.
#[test]
fn a_write_that_finds_no_room_in_the_log_goes_to_the_spill_file() {
    let (disk, cache) = OnDisk::new(small(64), false);
    let files = ["a", "b", "c", "d"].map(|name| disk.attach(&cache, name));
    for (tag, file) in (1..).zip(&files) {
        file.write_at(&[tag; 64 * 16], 0).unwrap();
        file.write_at(&[tag; 64 * 16], 500).unwrap();
    }
    cache.sync().unwrap();
    drop((files, cache));
    drop(disk.open().unwrap());
    for (tag, name) in (1..).zip(["a", "b", "c", "d"]) {
        assert!(disk.get(name) == [tag; 1524], "{name}");
    }
}

/// A log whose epoch is packed says so, and needs each byte of the pack.
#[test]
fn a_commit_without_its_pack_does_not_count() {
    let (disk, cache) = OnDisk::new(small(64).spill_from(128), false);
    let incompat = || {
        let log = disk.get("log");
        [12, 4096 + 12].map(|at| u32::from_le_bytes(log[at..at + 4].try_into().unwrap()))
    };
    let a = disk.attach(&cache, "a");
    a.write_at(b"first", 0).unwrap();
    a.commit().unwrap();
    assert_eq!(incompat(), [1, 1]);
    (0..200).for_each(|n| a.write_at(&[7; 9], n * 10).unwrap());
    assert_eq!(incompat(), [3, 3]);
    a.commit().unwrap();
    let (log, spill) = (disk.get("log"), disk.get("log.spill"));
    drop((a, cache));
    let replayed = |spill: &[u8]| {
        std::fs::write(disk.path("log"), &log).unwrap();
        std::fs::write(disk.path("log.spill"), spill).unwrap();
        std::fs::write(disk.path("a"), b"first").unwrap();
        let replay = untorn::write_cache::replay_keeping(disk.path("log"), Keep::Log, None).unwrap();
        (replay.open_epochs, disk.get("a").len())
    };
    assert_eq!(replayed(&spill), (0, 1999));
    assert_eq!(incompat(), [0, 0]);
    let used: Vec<usize> = (0..spill.len()).filter(|&at| spill[at] == 7).collect();
    for at in used.iter().copied().step_by(used.len() / 10) {
        let mut spill = spill.clone();
        spill[at] ^= 1;
        assert_eq!(replayed(&spill), (1, 5), "{at}");
    }
    assert_eq!(replayed(&spill[..used[used.len() / 2]]), (1, 5));
}

/// Threads that write to one file, and commit it, while others fill the log: what each wrote last is there.
#[test]
fn packs_of_several_threads_have_all_that_was_written() {
    let rounds = untorn_testing::cases(150, 3000) as u32;
    let options = small(100).spill_from(256).background(true).max_age(Duration::from_millis(1));
    let (disk, cache) = OnDisk::new(options, false);
    let one = &|number: u64| {
        let (own, all) = (disk.attach(&cache, &number.to_string()), disk.attach(&cache, "all"));
        for round in 1..=rounds {
            let bytes = round.to_le_bytes().repeat(15);
            for place in 0..5 {
                own.write_at(&bytes, place * 60).unwrap();
            }
            all.write_at(&bytes, number * 60).unwrap();
            assert!(contents(&own) == bytes.repeat(5), "{number}, round {round}");
            let mut found = vec![0; 60];
            all.read_at(&mut found, number * 60).unwrap();
            assert!(found == bytes, "{number}, round {round}");
            match round % 16 {
                0 => own.commit().unwrap(),
                8 if number == 0 => all.commit().unwrap(),
                _ => {}
            }
        }
    };
    std::thread::scope(|scope| (0..3).for_each(|number| drop(scope.spawn(move || one(number)))));
    drop(cache);
    let committed = (rounds / 16 * 16).to_le_bytes();
    drop(disk.open().unwrap());
    for number in 0..3 {
        assert!(disk.get(&number.to_string()) == committed.repeat(75));
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

/// Logs with spilled writes in a commit, and in an open epoch; in the second the small writes are packed.
const GOLDEN: [&str; 2] = ["tests/golden/write-cache-spill", "tests/golden/write-cache-pack"];

#[test]
fn golden_logs_with_spill_files_are_replayed() {
    const PATHS: [&str; 2] = ["/slow/a", "/slow/b"];
    let create = || Setup::create(small(32).spill_from(128), PATHS);
    for (golden, packed) in GOLDEN.into_iter().zip([false, true]) {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
        let [log, spill] = ["log", "spill"].map(|kind| golden.with_extension(kind));
        let writes = if packed { 20 } else { 3 };
        if std::env::var_os("UNTORN_BLESS").is_some() && !log.exists() {
            let (setup, cache, _) = create();
            setup.shelf.spills.store(true, Ordering::Relaxed);
            let [a, b] = PATHS.map(|path| setup.attach_atomic(&cache, path));
            a.write_at(&[7; 500], 10).unwrap();
            (0..writes).for_each(|n| a.write_at(&[n; 30], u64::from(n) * 20).unwrap());
            a.set_len(480).unwrap();
            a.append(&[9; 200]).unwrap();
            a.commit().unwrap();
            b.append(&[8; 200]).unwrap();
            let mut bytes = std::fs::read(&setup.log).unwrap();
            bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1);
            std::fs::write(&log, bytes).unwrap();
            std::fs::copy(setup.dir.path().join("log.spill"), &spill).unwrap();
        }
        let mut bytes = std::fs::read(log).unwrap();
        assert_eq!(bytes[12], if packed { 3 } else { 1 }, "the bits that an older reader must refuse");
        bytes.resize(3 * 4096 + 4 * 8192 + 32 * 128, 0);
        let (setup, cache, _) = create();
        drop(cache);
        std::fs::write(&setup.log, bytes).unwrap();
        std::fs::copy(spill, setup.dir.path().join("log.spill")).unwrap();
        let cache = setup.open().unwrap();
        assert!(cache.replayed().is_complete());
        assert_eq!(cache.replayed().open_epochs, 1);
        let mut expected = [&[0; 10][..], &[7; 470]].concat();
        (0..usize::from(writes)).for_each(|n| expected[n * 20..(n * 20 + 30).min(480)].fill(n as u8));
        expected.extend([9; 200]);
        assert_eq!((setup.get(PATHS[0]), setup.get(PATHS[1])), (expected, Vec::new()));
    }
}
