//! What several test files need: bytes that tell where they belong, seeded choices, a data file and its sidecar put
//! back byte for byte, a limit on time.
#![allow(dead_code)] // Each test file uses its own part.

pub(crate) mod counting;
pub(crate) mod disk;
pub(crate) mod golden;
pub(crate) mod members;
pub(crate) mod shelf;
pub(crate) mod system;

use std::fs::{File, FileTimes, OpenOptions};
use std::io::Write;
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime};

use counting::Counting;
use untorn::options::{DirtyTracking, LogPolicy};
use untorn::region::{Region, RegionStore, StoreOptions};
use untorn::shared::SharedMap;
use untorn::testing::storage::{Dax, Medium, MediumKind};
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Options, Result};
use untorn_testing::again;
#[allow(unused_imports, reason = "not every test program draws")]
pub(crate) use untorn_testing::{SplitMix as Rng, seed};

pub(crate) const PAGE: usize = 4096;

/// Bytes that differ by position and by `seed`, none of them 0.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| (rng.next_u64() as u8).max(1)).collect()
}

/// KiB of this process's page tables. A test that asks is alone in its process.
pub(crate) fn page_tables() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPTE:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Makes a sparse file of 10 TiB, or of 1 TiB where the file system has none as long.
pub(crate) fn make_long(path: &Path) -> u64 {
    let file = File::create(path).unwrap();
    let len = [10 << 40, 1 << 40].into_iter().find(|len| file.set_len(*len).is_ok());
    len.expect("the file system has no files of 1 TiB")
}

/// An empty directory in memory where the machine has one, for tests that open a file thousands of times; a flush costs
/// nothing there.
pub(crate) fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The path of a file that is not there yet, in a directory of its own, which goes with it.
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Scratch {
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Deref for Scratch {
    type Target = PathBuf;

    fn deref(&self) -> &PathBuf {
        &self.path
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// One in a [`memory_dir`].
pub(crate) fn scratch(name: &str) -> Scratch {
    let dir = memory_dir();
    Scratch { path: dir.path().join(name), dir }
}

/// One in a [`memory_dir`] that is there, with these bytes.
pub(crate) fn scratch_holding(bytes: impl AsRef<[u8]>) -> Scratch {
    let path = scratch("data");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// One where temporary files are, which is on a disk on most machines.
pub(crate) fn on_disk(name: &str) -> Scratch {
    let dir = tempfile::tempdir().unwrap();
    Scratch { path: dir.path().join(name), dir }
}

pub(crate) fn pmem() -> Dax {
    Dax::new(MediumKind::AssumedPmem)
}

pub(crate) fn counted_pmem() -> Counting<Dax> {
    Counting::new(pmem())
}

/// A new file, and its directory, which is in memory.
pub(crate) fn create_on<M: Medium>(medium: M, options: &Options, len: u64) -> (Scratch, AtomicFile) {
    let path = scratch("data");
    let file = options.create_on(medium, &path, len).unwrap();
    (path, file)
}

/// The same, mapped.
pub(crate) fn new_map(options: &Options, len: u64) -> (Scratch, AtomicMap) {
    let path = scratch("data");
    let map = options.create_map(&path, len).unwrap();
    (path, map)
}

/// A new region store, which is in memory, and its region "r".
pub(crate) fn new_region(options: &StoreOptions) -> (Scratch, RegionStore, Region) {
    let path = scratch("store");
    let store = options.create(&path).unwrap();
    let region = store.create_region("r").unwrap();
    (path, store, region)
}

/// The engine `hybrid-log`, with what is durable at each commit.
pub(crate) fn hybrid_log(policy: LogPolicy) -> Options {
    Options::new().engine(EngineKind::HybridLog).durability(Durability::PerCommit).log_policy(policy)
}

/// Leaves of a file what a process leaves that is killed now. Returns its path.
pub(crate) fn killed(file: AtomicFile) -> PathBuf {
    let path = file.path().to_owned();
    let pair = Pair::of(&path);
    drop(file);
    pair.restore();
    path
}

/// Files, maps and regions, read without a buffer.
pub(crate) trait ReadAt {
    fn fill_from(&self, bytes: &mut [u8], offset: u64) -> Result<()>;

    /// So many bytes from there on.
    fn bytes_at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        self.fill_from(&mut bytes, offset).unwrap();
        bytes
    }

    fn word_at(&self, offset: usize) -> u64 {
        word(&self.bytes_at(offset as u64, 8), 0)
    }
}

macro_rules! read_at {
    ($($of:ty)+) => {$(
        impl ReadAt for $of {
            fn fill_from(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
                self.read_at(bytes, offset)
            }
        }
    )+};
}

read_at!(AtomicFile SharedMap Region);

/// The number at an offset of some bytes.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub(crate) fn put_word(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Gives a file another length, as another program does.
pub(crate) fn truncate(path: &Path, len: usize) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len as u64).unwrap();
}

/// The ways of finding out what was stored to a map that this machine has. Only a machine without userfaultfd lacks
/// one, and then the test says so.
pub(crate) fn methods() -> Vec<DirtyTracking> {
    let dir = memory_dir();
    let found = untorn::AtomicMap::create(dir.path().join("probe"), 4096).unwrap().dirty_tracking();
    if found != DirtyTracking::WriteProtect {
        untorn_testing::skipped!("write protection of stores ({found} is the best here)");
        return vec![DirtyTracking::PageTable];
    }
    vec![DirtyTracking::PageTable, DirtyTracking::WriteProtect]
}

/// Where the sidecar of a data file stands.
pub(crate) fn sidecar_of(data: &Path) -> PathBuf {
    let inode = std::fs::metadata(data).unwrap().ino();
    data.parent().unwrap().join(".untorn").join(inode.to_string())
}

/// Names in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect(),
        Err(_) => Vec::new(),
    };
    names.sort();
    names
}

/// The whole contents of an open file.
pub(crate) fn read(file: &AtomicFile) -> Vec<u8> {
    file.bytes_at(0, file.len() as usize)
}

/// The mark a data file carries.
pub(crate) fn mark(path: &Path) -> Option<Vec<u8>> {
    let mut value = [0; 16];
    rustix::fs::getxattr(path, "user.untorn", &mut value).ok().map(|len| value[..len].to_vec())
}

/// Makes one file carry the mark of another, as a backup does.
pub(crate) fn copy_mark(from: &Path, to: &Path) {
    rustix::fs::setxattr(to, "user.untorn", &mark(from).unwrap(), rustix::fs::XattrFlags::empty()).unwrap();
}

/// What the sidecar holds of a file from [`partly_reflected`].
pub(crate) const REFLECTED: Range<usize> = 64..192;

/// Makes a cleanly closed file some of whose committed bytes stand in its sidecar only. Returns its contents.
pub(crate) fn partly_reflected(options: &Options, path: &Path, len: usize, seed: u64) -> Vec<u8> {
    let mut model = pattern(len, seed);
    std::fs::write(path, &model).unwrap();
    let file = options.clone().engine(EngineKind::Reflection).keep_sidecar(true).open(path).unwrap();
    model[REFLECTED].fill(seed as u8);
    file.write_at(&model[REFLECTED], REFLECTED.start as u64).unwrap();
    file.close().unwrap();
    assert_ne!(std::fs::read(path).unwrap(), model, "nothing stands in the sidecar only");
    model
}

/// Copies a file with its mark and its time, as `cp -a` does.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
    copy_mark(from, to);
    let modified = std::fs::metadata(from).unwrap().modified().unwrap();
    let times = FileTimes::new().set_modified(modified);
    OpenOptions::new().write(true).open(to).unwrap().set_times(times).unwrap();
}

/// See [`tree`].
pub(crate) type Tree = std::collections::BTreeMap<PathBuf, (Option<Vec<u8>>, Option<Vec<u8>>)>;

/// Every name under a directory, with the bytes of regular files and their marks.
pub(crate) fn tree(dir: &Path) -> Tree {
    let mut found = Tree::new();
    for name in names(dir) {
        let path = dir.join(name);
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            found.extend(tree(&path));
        }
        let bytes = kind.is_file().then(|| std::fs::read(&path).unwrap());
        let carried = kind.is_file().then(|| mark(&path)).flatten();
        found.insert(path, (bytes, carried));
    }
    found
}

/// One file as it was: bytes, mark and modification time.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    mark: Option<Vec<u8>>,
    modified: SystemTime,
    inode: u64,
}

impl Image {
    pub(crate) fn of(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).unwrap();
        Image {
            path: path.to_owned(),
            bytes: std::fs::read(path).unwrap(),
            mark: mark(path),
            modified: metadata.modified().unwrap(),
            inode: metadata.ino(),
        }
    }

    /// Puts the file back in place: the same inode, bytes, holes, mark and modification time. A sidecar that is gone is
    /// made again.
    pub(crate) fn restore(&self) {
        self.restore_as(&self.bytes);
    }

    /// The same with other bytes.
    pub(crate) fn restore_as(&self, bytes: &[u8]) {
        let is_sidecar = self.path.parent().is_some_and(|parent| parent.ends_with(".untorn"));
        if is_sidecar {
            std::fs::create_dir_all(self.path.parent().unwrap()).unwrap();
        }
        let file = OpenOptions::new().write(true).create(is_sidecar).truncate(false).open(&self.path).unwrap();
        let inode = file.metadata().unwrap().ino();
        assert!(is_sidecar || inode == self.inode, "{} was replaced", self.path.display());
        if mark(&self.path) != self.mark {
            match &self.mark {
                Some(mark) => {
                    rustix::fs::fsetxattr(&file, "user.untorn", mark, rustix::fs::XattrFlags::empty()).unwrap()
                }
                None => rustix::fs::fremovexattr(&file, "user.untorn").unwrap(),
            }
        }
        file.set_len(0).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (n, page) in bytes.chunks(PAGE).enumerate() {
            if *page != [0; PAGE][..page.len()] {
                file.write_all_at(page, (n * PAGE) as u64).unwrap();
            }
        }
        file.set_times(FileTimes::new().set_modified(self.modified)).unwrap();
    }

    /// Sets the modification time alone.
    pub(crate) fn restore_time(&self) {
        let file = File::open(&self.path).unwrap();
        file.set_times(FileTimes::new().set_modified(self.modified)).unwrap();
    }
}

/// A data file and its sidecar as they were.
pub(crate) struct Pair {
    pub(crate) data: Image,
    pub(crate) side: Image,
}

impl Pair {
    /// Copies both, as they are at one instant. Where threads in the background still carry bytes from one to the
    /// other, a copy could have the one from before and the other from after, which no kill leaves behind: so they
    /// are copied until two copies are the same.
    pub(crate) fn of(data: &Path) -> Self {
        let copy = || Pair { data: Image::of(data), side: Image::of(&sidecar_of(data)) };
        let mut pair = copy();
        for _ in 0..1000 {
            let again = copy();
            if again.data.bytes == pair.data.bytes && again.side.bytes == pair.side.bytes {
                return again;
            }
            pair = again;
        }
        panic!("{} does not come to rest", data.display());
    }

    pub(crate) fn restore(&self) {
        self.data.restore();
        self.side.restore();
    }
}

/// Waits for what another thread or process does.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// What `go` returns, or the text of its panic.
pub(crate) fn attempt<T>(go: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(go)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("panicked: {}", text.unwrap_or_default())
    })
}

/// Failures collected over many cases, so that one run shows them all.
#[derive(Default)]
pub(crate) struct Failures {
    seen: Vec<String>,
    count: usize,
}

impl Failures {
    pub(crate) fn add(&mut self, failure: String) {
        self.count += 1;
        if self.seen.len() < 12 {
            self.seen.push(failure);
        }
    }

    pub(crate) fn conclude(self, cases: usize) {
        assert!(cases > 0, "no case was run");
        assert!(self.count == 0, "{} of {cases} cases failed, among them:\n{}", self.count, self.seen.join("\n"));
    }
}

/// Ends this process if it is not dropped in time: a test that hangs would tell nobody why.
pub(crate) struct Limit(#[allow(dead_code)] Sender<()>);

/// `seconds` are many times what an idle machine takes. One that has much else to do gets ten times as many: only a
/// hang may end a test.
pub(crate) fn limit(seconds: u64, what: &'static str) -> Limit {
    let seconds = 10 * seconds;
    let (alive, gone) = channel();
    std::thread::spawn(move || {
        if let Err(RecvTimeoutError::Timeout) = gone.recv_timeout(Duration::from_secs(seconds)) {
            let _ = writeln!(std::io::stderr(), "\n{what}: hangs, not done after {seconds} s");
            std::process::abort();
        }
    });
    Limit(alive)
}

/// Runs `body` in a process of its own, so that a signal or a hang ends only that. `test` is the full name of the test
/// that calls it: [`test_name!`](untorn_testing::test_name).
pub(crate) fn run_alone(test: &str, seconds: u64, what: &'static str, body: impl FnOnce()) {
    if let Some(_limit) = enter_alone(test, seconds, what) {
        body();
    }
}

/// Goes on with the calling test in a process of its own; see [`run_alone`]. Tests that fork use it: the child of a
/// process in which other tests start or end threads at that moment may wait for ever.
macro_rules! alone {
    ($seconds:expr, $what:expr) => {
        let Some(_limit) = $crate::common::enter_alone(untorn_testing::test_name!(), $seconds, $what) else { return };
    };
}
pub(crate) use alone;

/// `None` in the process of all tests, where it runs the test once more in one of its own and checks that it passes
/// there.
pub(crate) fn enter_alone(test: &str, seconds: u64, what: &'static str) -> Option<Limit> {
    const ALONE: &str = "UNTORN_TEST_ALONE";
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return Some(limit(seconds, what));
    }
    // What the child may leave behind when it dies is in here, file systems it mounted included.
    let dir = tempfile::tempdir().unwrap();
    let output = again(test).env(ALONE, test).env("TMPDIR", dir.path()).output().unwrap();
    for name in names(dir.path()) {
        // Fails where nothing is mounted.
        let _ = Command::new("umount").arg("-l").arg(dir.path().join(name)).output();
    }
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(25)..].join("\n");
    assert!(output.status.success(), "{test} alone: {}\n{last}", output.status);
    assert!(said.contains("1 passed"), "no test is named {test}:\n{said}");
    None
}
