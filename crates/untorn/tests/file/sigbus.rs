//! Pages lost under a mapping: an error that names file and offset, a handle that promises nothing more, a process that
//! lives, and every other SIGBUS where it belongs.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Barrier as Meeting;
use std::time::Duration;

use crate::common::disk::{Kind, SmallDisk};
use crate::common::system::{Disposition, HANDLED, on_sigbus, touch_beyond};
use crate::common::{PAGE, alone, limit, on_disk, pattern, pmem, scratch, sidecar_of, truncate};
use rustix::process::{Signal, getpid, kill_process};
use untorn::options::LostPage;
use untorn::testing::storage::{Access, Barrier, Dax, Medium, MediumFile, PageCache};
use untorn::{AtomicFile, Durability, Error, Options};
use untorn_testing::{again, test_name};

const FENCE: Barrier = Barrier::new("test.fence");

/// Pages of the files that are cut.
const PAGES: usize = 16;

/// The page that is accessed when it is gone.
const GONE: usize = 8;

/// The error of an access to a page that is gone.
fn assert_lost(error: &Error, operation: &str, path: &Path, page: usize) {
    let Error::Io { operation: found, path: at, offset: Some(offset), .. } = error else { panic!("{error:?}") };
    assert_eq!((*found, at.as_path()), (operation, path), "{error}");
    assert_eq!(*offset, (page * PAGE) as u64, "{error}");
    assert_eq!(error.errno(), rustix::io::Errno::IO.raw_os_error(), "{error}");
    assert!(error.to_string().contains("a mapped page of the file was lost"), "{error}");
}

/// Nothing more is promised through the handle.
fn assert_poisoned(file: &AtomicFile) {
    let mut byte = [0];
    for page in [0, PAGES - 1] {
        let read = file.read_at(&mut byte, (page * PAGE) as u64);
        assert!(matches!(read, Err(Error::Io { .. })), "{read:?}");
    }
    for refused in [file.write_at(&[1], 0), file.deploy(0, 1), file.sync().map(drop), file.resize(1)] {
        let Err(Error::Poisoned { cause, .. }) = &refused else { panic!("{refused:?}") };
        assert!(cause.contains("a mapped page of the file was lost"), "{cause}");
    }
}

/// What opening says of a file cut to `pages`, and that it is its old self when it has its bytes back.
fn assert_refused_until_restored(
    path: &Path,
    options: &Options,
    medium: impl Fn() -> Boxed,
    bytes: &[u8],
) -> AtomicFile {
    let error = medium().open(options, path).unwrap_err();
    assert!(matches!(error, Error::ModifiedExternally { .. }), "{error}");
    let file = OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    medium().open(options, path).unwrap()
}

/// A medium of either kind.
enum Boxed {
    Disk(PageCache),
    Memory(Dax),
}

impl Boxed {
    fn disk() -> Self {
        Boxed::Disk(PageCache::new())
    }

    fn memory() -> Self {
        Boxed::Memory(pmem())
    }

    fn open(self, options: &Options, path: &Path) -> untorn::Result<AtomicFile> {
        match self {
            Boxed::Disk(medium) => options.open_on(medium, path),
            Boxed::Memory(medium) => options.open_on(medium, path),
        }
    }
}

/// A directory on the disk, and one in memory.
fn places() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir().unwrap(), crate::common::memory_dir()]
}

#[test]
fn a_read_of_a_truncated_file_is_an_error() {
    let _limit = limit(60, "reading a truncated file");
    for dir in places() {
        for medium in [Boxed::disk, Boxed::memory] {
            let (path, other) = (dir.path().join("cut"), dir.path().join("other"));
            let bytes = pattern(PAGES * PAGE, 1);
            for path in [&path, &other] {
                std::fs::write(path, &bytes).unwrap();
            }
            let options = Options::new().max_len(1 << 20);
            let file = medium().open(&options, &path).unwrap();
            let other = medium().open(&options, &other).unwrap();
            let mut buf = vec![0; 3 * PAGE];
            file.read_at(&mut buf, (GONE * PAGE) as u64).unwrap();
            assert!(buf == bytes[GONE * PAGE..][..buf.len()]);

            truncate(&path, 4 * PAGE);
            let error = file.read_at(&mut buf, (GONE * PAGE) as u64).unwrap_err();
            assert_lost(&error, "read from", &path, GONE);
            assert_poisoned(&file);
            assert!(file.clone().close().is_err());

            other.write_at(b"goes on", 10).unwrap();
            other.sync().unwrap();
            other.read_at(&mut buf, (GONE * PAGE) as u64).unwrap();
            assert!(buf == bytes[GONE * PAGE..][..buf.len()]);
            other.settle().unwrap();

            drop(file);
            let file = assert_refused_until_restored(&path, &options, medium, &bytes);
            assert!(crate::common::read(&file) == bytes);
            file.settle().unwrap();
        }
    }
}

#[test]
fn a_lost_store_fails_its_write_and_keeps_earlier_commits() {
    let _limit = limit(60, "writing to a truncated file");
    for dir in places() {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            for len in [64, 960, 3 * PAGE] {
                let path = dir.path().join("cut");
                let mut bytes = pattern(PAGES * PAGE, 1);
                std::fs::write(&path, &bytes).unwrap();
                let options = Options::new().max_len(1 << 20).durability(durability);
                let file = Boxed::memory().open(&options, &path).unwrap();
                truncate(&path, 4 * PAGE);
                let at = GONE * PAGE;
                // The first goes to the sidecar, which is whole, and is committed there.
                let first = pattern(len, 2);
                file.write_at(&first, at as u64).unwrap();
                file.sync().unwrap();
                // The next goes to the file.
                let error = file.write_at(&pattern(len, 3), at as u64).unwrap_err();
                assert_lost(&error, "write to", &path, GONE);
                assert_poisoned(&file);
                drop(file);
                let file = assert_refused_until_restored(&path, &options, Boxed::memory, &bytes);
                bytes[at..at + len].copy_from_slice(&first);
                assert!(crate::common::read(&file) == bytes, "{durability} {len}: what was acknowledged is not there");
                file.settle().unwrap();
            }
        }
    }
}

#[test]
fn a_truncated_sidecar_is_an_error_of_the_write() {
    let _limit = limit(60, "writing beside a truncated sidecar");
    for dir in places() {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            let path = dir.path().join(durability.as_str());
            std::fs::write(&path, pattern(PAGES * PAGE, 1)).unwrap();
            let options = Options::new().max_len(1 << 20).durability(durability);
            let file = Boxed::memory().open(&options, &path).unwrap();
            let sidecar = sidecar_of(&path);
            truncate(&sidecar, 0);
            let outcome = file.write_at(&[1; 64], 0).and_then(|()| file.sync());
            let error = outcome.expect_err("a commit into a file that is gone");
            assert!(matches!(&error, Error::Io { path, offset: Some(_), .. } if *path == sidecar), "{error}");
            assert!(matches!(file.write_at(&[1], 0), Err(Error::Poisoned { .. })));
            drop(file);
            let error = Boxed::memory().open(&options, &path).unwrap_err();
            assert!(error.to_string().contains(sidecar.to_str().unwrap()), "{error}");
        }
    }
}

/// Every call that changes or promises something, through a file of the medium.
fn assert_promises_nothing<M: Medium>(medium: &M, file: &M::File) {
    let calls = [
        file.write(0, &[1]),
        file.write(0, &[1; PAGE]),
        file.store(0, &[1]),
        file.read(0, &mut [0]),
        file.set_len(PAGE as u64),
        file.allocate(0, 1),
        file.punch(0, 1),
        file.sync(FENCE),
        medium.fence(FENCE, &[file]),
    ];
    for (n, call) in calls.into_iter().enumerate() {
        assert!(matches!(call, Err(Error::Io { offset: Some(_), .. })), "call {n}: {call:?}");
    }
}

fn loses_a_page_and_promises_nothing<M: Medium>(medium: &M) {
    let dir = tempfile::tempdir().unwrap();
    let [path, other] = ["cut", "other"].map(|name| dir.path().join(name));
    let bytes = pattern(PAGES * PAGE, 1);
    std::fs::write(&path, &bytes).unwrap();
    let file = medium.open(&path, Access::ReadWrite, 1 << 20).unwrap();
    let other = medium.create(&other, PAGE as u64, 1 << 20).unwrap();
    truncate(&path, PAGE);
    let mut buf = [0; 100];
    file.read(0, &mut buf).unwrap();
    assert_eq!(buf, bytes[..100]);
    let error = file.read((5 * PAGE + 7) as u64, &mut buf).unwrap_err();
    assert_lost(&error, "read from", &path, 5);
    assert_promises_nothing(medium, &file);
    assert_eq!(file.len(), (PAGES * PAGE) as u64);
    other.write(0, b"whole").unwrap();
    medium.fence(FENCE, &[&other]).unwrap();
    medium.fence(FENCE, &[&other, &file]).unwrap_err();
    drop(file);
    other.sync(FENCE).unwrap();
    assert!(medium.open(&path, Access::ReadWrite, 1 << 20).unwrap().read(0, &mut buf).is_ok());
}

#[test]
fn a_file_that_lost_a_page_promises_nothing() {
    loses_a_page_and_promises_nothing(&PageCache::new());
    loses_a_page_and_promises_nothing(&pmem());
}

/// A page lost when its lines are written back, so that no copy notices: the fence must.
#[test]
fn a_loss_that_only_the_flush_comes_upon_fails_the_fence() {
    let path = scratch("cut");
    let medium = pmem();
    let file = medium.create(&path, (2 * PAGE) as u64, 1 << 20).unwrap();
    file.store(PAGE as u64, &[1; 64]).unwrap();
    truncate(&path, PAGE);
    file.flush(FENCE, PAGE as u64, 64);
    match medium.fence(FENCE, &[&file]) {
        Err(error) => assert_lost(&error, "flush", &path, 1),
        Ok(()) => {
            file.read(0, &mut [0]).expect("the flush came upon the loss, and the fence said nothing");
            untorn_testing::skipped!("this CPU writes no lines back");
        }
    }
}

/// A store where the file system has no block left: on a tmpfs, and on a disk that allocates when a page is touched.
#[test]
fn a_store_on_a_full_disk_is_an_error() {
    alone!(60, "a store on a full disk");
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let Some(disk) = SmallDisk::mount(kind, 4096) else { continue };
        let path = disk.path("sparse");
        let medium = pmem();
        let file = medium.create(&path, 1 << 20, 1 << 20).unwrap();
        let other = medium.create(&disk.path("other"), PAGE as u64, PAGE as u64).unwrap();
        other.allocate(0, PAGE as u64).unwrap();
        other.write(0, &[1; PAGE]).unwrap();
        file.allocate(0, PAGE as u64).unwrap();
        disk.fill(0);
        file.write(0, &[2; PAGE]).unwrap();
        let error = (1..256).find_map(|page| file.write((page * PAGE) as u64, &[3; PAGE]).err()).expect("no space");
        let Error::Io { operation: "write to", offset: Some(offset), .. } = error else {
            panic!("{kind:?}: {error:?}")
        };
        assert!(offset >= PAGE as u64 && offset.is_multiple_of(PAGE as u64), "{kind:?}: {error}");
        assert_promises_nothing(&medium, &file);
        let mut page = [0; PAGE];
        other.read(0, &mut page).unwrap();
        assert_eq!(page, [1; PAGE]);
        other.write(0, &[4; PAGE]).unwrap();
        medium.fence(FENCE, &[&other]).unwrap();
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap()[..PAGE], [2; PAGE], "what was stored before is there");
    }
}

#[test]
fn threads_that_read_while_the_file_is_cut_all_return() {
    let _limit = limit(60, "reading while the file is cut");
    const THREADS: usize = 8;
    for medium in [Boxed::disk, Boxed::memory] {
        let path = on_disk("cut");
        let bytes = pattern(256 * PAGE, 1);
        std::fs::write(&path, &bytes).unwrap();
        let file = medium().open(&Options::new().max_len(1 << 21), &path).unwrap();
        let meeting = Meeting::new(THREADS + 1);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (file, bytes, meeting, path) = (&file, &bytes, &meeting, &path);
                scope.spawn(move || {
                    let mut rng = crate::common::Rng::new(thread as u64);
                    let mut buf = vec![0; 8 * PAGE];
                    meeting.wait();
                    let error = loop {
                        let at = rng.below((bytes.len() - buf.len()) as u64);
                        let len = rng.below(buf.len() as u64) as usize;
                        let part = &mut buf[..len];
                        match file.read_at(part, at) {
                            Ok(()) => assert!(*part == bytes[at as usize..at as usize + len], "wrong bytes at {at}"),
                            Err(error) => break error,
                        }
                    };
                    assert!(matches!(&error, Error::Io { path: at, .. } if *at == **path), "{error}");
                });
            }
            meeting.wait();
            std::thread::sleep(Duration::from_millis(20));
            truncate(&path, PAGE);
        });
    }
}

#[test]
fn files_come_and_go_while_others_lose_pages() {
    let _limit = limit(120, "opening and closing while pages are lost");
    let dir = crate::common::memory_dir();
    let medium = pmem();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (dir, medium) = (dir.path(), &medium);
            scope.spawn(move || {
                let path = dir.join(format!("file{thread}"));
                for n in 0..300 {
                    let bytes = pattern(4 * PAGE, n);
                    std::fs::write(&path, &bytes).unwrap();
                    let file = medium.open(&path, Access::ReadWrite, 1 << 20).unwrap();
                    let mut buf = vec![0; 4 * PAGE];
                    file.read(0, &mut buf).unwrap();
                    assert!(buf == bytes);
                    if thread % 2 == 0 {
                        truncate(&path, PAGE);
                        assert_lost(&file.read(0, &mut buf).unwrap_err(), "read from", &path, 1);
                    }
                }
            });
        }
    });
}

/// How a process ends that sets SIGBUS, opens a file as `options` say, and runs `then`. `test` is the name of the test
/// that calls it.
fn process(test: &str, before: Option<Disposition>, options: &Options, then: impl FnOnce(&AtomicFile)) -> ExitStatus {
    const CHILD: &str = "UNTORN_TEST_SIGBUS";
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        let _limit = limit(30, "a process that gets a SIGBUS");
        before.into_iter().for_each(on_sigbus);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, pattern(PAGES * PAGE, 1)).unwrap();
        let file = options.open(&path).unwrap();
        // The process may end in the middle; the test that started it need not find the directory.
        then(&file);
        drop((file, dir));
        std::process::exit(0);
    }
    // What a process that dies leaves behind is in here.
    let dir = tempfile::tempdir().unwrap();
    let mut child = again(test);
    child.env(CHILD, test).env("TMPDIR", dir.path()).output().unwrap().status
}

/// Ends by a SIGBUS.
const KILLED: (Option<i32>, Option<i32>) = (None, Some(Signal::BUS.as_raw()));

fn end(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    (status.code(), status.signal())
}

macro_rules! ends {
    ($($name:ident: $before:expr, $options:expr, $then:expr => $end:expr;)+) => {
        $(#[test]
        fn $name() {
            assert_eq!(end(process(test_name!(), $before, &$options, $then)), $end);
        })+
    };
}

/// A SIGBUS of the program's own.
fn foreign(_: &AtomicFile) {
    touch_beyond(&tempfile::tempfile().unwrap());
}

/// A SIGBUS that somebody sent and that ends the process.
fn sent(_: &AtomicFile) {
    kill_process(getpid(), Signal::BUS).unwrap();
    // It may be another thread that handles it.
    std::thread::sleep(Duration::from_secs(20));
}

/// One that does not.
fn sent_for_nothing(_: &AtomicFile) {
    kill_process(getpid(), Signal::BUS).unwrap();
    std::thread::sleep(Duration::from_millis(100));
}

/// A page of the file is lost, and read.
fn lost(file: &AtomicFile) {
    truncate(file.path(), PAGE);
    assert_lost(&file.read_at(&mut [0], PAGE as u64).unwrap_err(), "read from", file.path(), 1);
}

/// First a page of the file, then one of the program's own.
fn lost_then_foreign(file: &AtomicFile) {
    lost(file);
    foreign(file);
}

ends! {
    a_lost_page_does_not_reach_the_programs_handler: Some(Disposition::Exit), Options::new(), lost => (Some(0), None);
    another_sigbus_reaches_the_programs_handler:
        Some(Disposition::Exit), Options::new(), foreign => (Some(HANDLED), None);
    another_sigbus_reaches_the_handler_after_a_lost_page_too:
        Some(Disposition::Exit), Options::new(), lost_then_foreign => (Some(HANDLED), None);
    a_sigbus_that_was_sent_reaches_the_programs_handler:
        Some(Disposition::Exit), Options::new(), sent => (Some(HANDLED), None);
    another_sigbus_kills_by_default: Some(Disposition::Default), Options::new(), foreign => KILLED;
    // The standard library's, which looks for stack overflows and wants all three arguments.
    another_sigbus_kills_through_the_handler_of_the_runtime: None, Options::new(), foreign => KILLED;
    a_sigbus_that_was_sent_kills_by_default: Some(Disposition::Default), Options::new(), sent => KILLED;
    another_sigbus_cannot_be_ignored: Some(Disposition::Ignore), Options::new(), foreign => KILLED;
    a_sigbus_that_was_sent_can_be_ignored:
        Some(Disposition::Ignore), Options::new(), sent_for_nothing => (Some(0), None);
    a_lost_page_is_a_signal_by_option:
        Some(Disposition::Exit), Options::new().on_lost_page(LostPage::Signal), lost => (Some(HANDLED), None);
    a_lost_page_kills_by_option:
        Some(Disposition::Default), Options::new().on_lost_page(LostPage::Signal), lost => KILLED;
}
