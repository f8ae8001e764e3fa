//! How much one process can have open: handles, threads, descriptors, address space.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs, thread};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Options};
use untorn_testing::{again, cases, is_root, test_name};

use super::common::{limit, memory_dir};

/// Where a process of a test's own finds its files.
const DIR: &str = "UNTORN_TEST_LIMITS";

/// The user that a process of root's becomes.
const SOMEBODY: u32 = 1000;

/// What `untorn` has at most besides the files: threads of the pool, and rings.
const THREADS: usize = 16;
const KEPT_THREADS: usize = 2;
const RINGS: usize = 8;

const ENGINES: [EngineKind; 3] = untorn::testing::ENGINES;

/// What this process has.
#[derive(Clone, Copy, Debug)]
struct Process {
    threads: usize,
    descriptors: usize,
    /// Address space, in bytes.
    addresses: u64,
    mappings: usize,
}

impl Process {
    fn now() -> Process {
        let entries = |path: &str| fs::read_dir(path).unwrap().count();
        let pages = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        Process {
            threads: entries("/proc/self/task"),
            // The directory itself is open while it is read.
            descriptors: entries("/proc/self/fd") - 1,
            addresses: pages * 4096,
            mappings: fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
        }
    }

    /// The same, once no more than so many threads are there: one that was joined may be listed a moment longer.
    fn with_threads(most: usize) -> Process {
        loop {
            let now = Process::now();
            if now.threads <= most {
                return now;
            }
            thread::yield_now();
        }
    }
}

/// Runs a test again in a process of its own, of an ordinary user, which is told of a directory of its own. `None` in
/// that process, with the directory.
fn elsewhere(test: &str) -> Option<std::path::PathBuf> {
    if let Some(dir) = env::var_os(DIR) {
        return Some(dir.into());
    }
    let dir = memory_dir();
    let mut command: Command = again(test);
    command.env(DIR, dir.path());
    if is_root() {
        std::os::unix::fs::chown(dir.path(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        command.uid(SOMEBODY).gid(SOMEBODY);
    }
    match command.status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            untorn_testing::skipped!("an ordinary user may not run the test program: {error}")
        }
        Err(error) => panic!("{error}"),
    }
    None
}

fn set_limit(resource: Resource, current: u64) {
    let maximum = getrlimit(resource).maximum;
    let current = Some(maximum.map_or(current, |most| most.min(current)));
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

fn options(number: usize) -> Options {
    let options = Options::new().engine(ENGINES[number % ENGINES.len()]).durability(Durability::PerCommit);
    options.record_area(2, 8)
}

fn stamp(file: &AtomicFile, number: usize, round: u8) {
    file.write_at(&(number as u64).to_le_bytes(), 4090).unwrap();
    file.write_at(&[round; 8], 9000).unwrap();
    file.sync().unwrap();
}

/// With the default limits of an ordinary user: 8 MiB of locked memory, which an io_uring is counted by, 65,530
/// mappings. Two descriptors a file, so RLIMIT_NOFILE is raised as far as the user may.
#[test]
fn one_ordinary_process_has_thousands_of_files_open() {
    let Some(dir) = elsewhere(test_name!()) else { return };
    let _limit = limit(600, "thousands of files");
    set_limit(Resource::Nofile, u64::MAX);
    set_limit(Resource::Memlock, 8 << 20);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    let maps = 20;
    let count = (cases(2000, 10_000) as usize).min((most as usize - 200) / 2);
    // What is made once in a process is there before it is counted.
    drop(options(1).create(dir.join("first"), 4096).unwrap());
    let before = Process::now();

    let path = |number: usize| dir.join(number.to_string());
    let create = |number: usize| {
        let file = options(number).create(path(number), 64 << 10).unwrap();
        stamp(&file, number, 1);
        file
    };
    let files: Vec<AtomicFile> = (0..count).map(create).collect();
    let mut mapped: Vec<AtomicMap> =
        (0..maps).map(|number| AtomicMap::create(dir.join(format!("map{number}")), 1 << 20).unwrap()).collect();
    for map in &mut mapped {
        map[5000] = 7;
        map.commit().unwrap();
    }
    // All are at work at once, and none is left with a thread of its own.
    thread::scope(|scope| {
        for (part, files) in files.chunks(count.div_ceil(4)).enumerate() {
            let first = part * count.div_ceil(4);
            scope.spawn(move || files.iter().enumerate().for_each(|(number, file)| stamp(file, first + number, 2)));
        }
    });
    let working = Process::now();
    assert!(working.threads <= before.threads + THREADS, "{working:?} {before:?}");
    let open = Process::with_threads(before.threads + KEPT_THREADS);
    let descriptors = open.descriptors - before.descriptors;
    assert!(descriptors <= 2 * (count + maps) + 2 + RINGS, "{descriptors} descriptors for {count} files");
    let addresses = open.addresses - before.addresses;
    let threads = THREADS as u64 * (72 << 20);
    assert!(addresses <= threads + maps as u64 * (80 << 20) + count as u64 * (4 << 20), "{addresses} bytes");
    assert!(open.mappings - before.mappings <= 6 * count + 10 * maps + 8 * THREADS, "{open:?}");

    drop(mapped);
    files.into_iter().for_each(|file| file.close().unwrap());
    let closed = Process::with_threads(before.threads);
    assert_eq!(closed.descriptors, before.descriptors);
    assert!(closed.mappings <= before.mappings + 8 * THREADS, "{closed:?} {before:?}");
    for number in (0..count).step_by(97) {
        let file = options(number).open(path(number)).unwrap();
        let mut bytes = [0; 8];
        file.read_at(&mut bytes, 4090).unwrap();
        assert_eq!(bytes, (number as u64).to_le_bytes());
        file.read_at(&mut bytes, 9000).unwrap();
        assert_eq!(bytes, [2; 8]);
    }
}

/// As on clusters and under batch systems: `ulimit -v`.
#[test]
fn address_space_is_taken_in_proportion_to_the_file() {
    let Some(dir) = elsewhere(test_name!()) else { return };
    // The thread that serves snapshots takes 66 MiB of addresses once in a process: its stack, and its part of the
    // memory allocator.
    let options = Options::new().serve_snapshots(false);
    let room = |bytes: u64| set_limit(Resource::As, Process::now().addresses + bytes);
    room(512 << 20);
    let before = Process::now();
    for engine in ENGINES {
        let open = |number: u64| {
            let file = options.clone().engine(engine).durability(Durability::PerCommit);
            let file = file.create(dir.join(format!("{engine:?}{number}")), 1 << 20).unwrap();
            file.write_at(b"written", 1000).unwrap();
            file.sync().unwrap();
            file
        };
        let files: Vec<AtomicFile> = (0..4).map(open).collect();
        let taken = Process::now().addresses - before.addresses;
        assert!(taken <= 4 * (32 << 20), "{engine:?}: {taken} bytes for four files of 1 MiB");
        // It grows far beyond what was reserved at first, and all of it is there.
        files[0].resize(32 << 20).unwrap();
        files[0].write_at(b"behind", (32 << 20) - 6).unwrap();
        files[0].sync().unwrap();
        let mut bytes = [0; 7];
        files[0].read_at(&mut bytes, 1000).unwrap();
        assert_eq!(&bytes, b"written");
        files.into_iter().for_each(|file| file.close().unwrap());
    }
    let mut map = options.create_map(dir.join("map"), 1 << 20).unwrap();
    let taken = Process::now().addresses - before.addresses;
    assert!(taken <= 96 << 20, "{taken} bytes for a map of 1 MiB");
    map.resize(64 << 20).unwrap();
    let error = map.resize((64 << 20) + 1).unwrap_err().to_string();
    assert!(error.contains("larger max_len (default: 64 MiB or twice the length"), "{error}");
    map.rollback().unwrap();
    map.close().unwrap();
    // A limit that is too narrow for the file is named.
    refused(&dir, || room(100 << 20));
}

fn refused(dir: &Path, narrow: impl FnOnce()) {
    let path = dir.join("long");
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    narrow();
    let error = AtomicFile::open(&path).unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::NOMEM.raw_os_error());
    let words = error.to_string();
    assert!(words.contains(path.to_str().unwrap()) && words.contains("ulimit -v"), "{words}");
}

/// While one grows the file from one page on, others read and write what is there, wherever it is mapped by now.
#[test]
fn readers_and_writers_go_on_while_a_file_outgrows_its_room() {
    const STEP: u64 = 300 << 10;
    let _limit = limit(120, "growth under readers");
    for engine in ENGINES {
        let dir = memory_dir();
        let file = Options::new().engine(engine).durability(Durability::PerCommit).record_area(2, 64);
        let file = file.create(dir.path().join("grows"), 4096).unwrap();
        let steps = cases(24, 200);
        let done = std::sync::atomic::AtomicU64::new(0);
        thread::scope(|scope| {
            for reader in 0..2 {
                let (file, done) = (&file, &done);
                scope.spawn(move || {
                    let mut turn = reader;
                    loop {
                        let grown = done.load(std::sync::atomic::Ordering::Acquire);
                        if grown == steps {
                            return;
                        }
                        turn += 1;
                        let step = turn % (grown + 1);
                        let mut word = [0; 8];
                        file.read_at(&mut word, step * STEP).unwrap();
                        assert_eq!(u64::from_le_bytes(word), step, "{engine:?}");
                        file.write_at(&step.to_le_bytes(), step * STEP).unwrap();
                    }
                });
            }
            for step in 1..=steps {
                file.resize(step * STEP + 4096).unwrap();
                file.write_at(&step.to_le_bytes(), step * STEP).unwrap();
                if step % 8 == 0 {
                    file.sync().unwrap();
                }
                done.store(step, std::sync::atomic::Ordering::Release);
            }
        });
        file.sync().unwrap();
        file.close().unwrap();
        let file = Options::new().engine(engine).open(dir.path().join("grows")).unwrap();
        for step in 0..=steps {
            let mut word = [0; 8];
            file.read_at(&mut word, step * STEP).unwrap();
            assert_eq!(u64::from_le_bytes(word), step, "{engine:?} reopened");
        }
    }
}
