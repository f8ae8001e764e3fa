//! No space left: an error that names the file, a file that is as it was, and work that goes on once there is room.

use std::io::ErrorKind;

use crate::common::disk::{Kind, SmallDisk};
use crate::common::{PAGE, alone, counted_pmem, create_on, limit, names, pattern, pmem, read, run_alone, scratch};
use untorn::options::Layout;
use untorn::testing::storage::{Medium, PageCache};
use untorn::{AtomicFile, Durability, Error, Options};
use untorn_testing::test_name;

fn small(durability: Durability) -> Options {
    Options::new().record_area(2, 4).durability(durability).max_len(1 << 20)
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull)
}

/// A commit too large for a lane needs a file of its own. If there is no room for it the commit fails; then either the
/// handle says that it promises nothing more, or the next commit makes everything durable. Never a commit that returns
/// success and makes nothing durable, and never a writer that waits for ever.
#[test]
fn a_large_commit_without_room_is_never_a_later_success() {
    let _limit = limit(60, "a write after a commit that found no room");
    for layout in [Layout::Dense, Layout::Sparse] {
        let medium = counted_pmem();
        let options = small(Durability::PerCommit).layout(layout);
        let (path, file) = create_on(medium.clone(), &options, 64 * PAGE as u64);
        let first = pattern(40 * PAGE, 1);
        file.write_at(&first, 0).unwrap();
        medium.fill(true);
        let error = file.sync().expect_err("there is no room for the record");
        assert!(is_full(&error), "{error}");
        medium.fill(false);
        let synced = file.sync();
        if synced.is_ok() {
            // What a crash leaves now must hold what was acknowledged.
            drop(file);
            let file = options.open_on(medium.clone(), &path).unwrap();
            assert!(read(&file)[..first.len()] == first, "{layout}: sync returned success, and the epoch is gone");
            continue;
        }
        assert!(matches!(synced, Err(Error::Poisoned { .. })), "{synced:?}");
        let after = file.write_at(&first, 0);
        assert!(matches!(after, Err(Error::Poisoned { .. })), "{after:?}");
        drop(file);
        let file = options.open_on(medium.clone(), &path).unwrap();
        assert!(read(&file).iter().all(|&byte| byte == 0), "{layout}: what did not commit is not there");
    }
}

/// After it a writer must not wait for slices that nobody will ever let go.
#[test]
fn a_writer_does_not_wait_for_a_commit_that_failed() {
    alone!(10, "a write after a commit that found no room");
    let medium = counted_pmem();
    let (_dir, file) = create_on(medium.clone(), &small(Durability::PerCommit), 64 * PAGE as u64);
    file.write_at(&pattern(40 * PAGE, 1), 0).unwrap();
    medium.fill(true);
    assert!(file.sync().is_err());
    medium.fill(false);
    match file.write_at(&[1; 64], 0) {
        Ok(()) => drop(file.sync()),
        Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{error}"),
    }
}

/// A shrink through the middle of a slice that commits a large epoch with it, and finds no room for its record: the
/// file is as long and holds the same bytes as before, and reading it does not wait for ever.
#[test]
fn a_shrink_that_found_no_room_changes_nothing() {
    alone!(10, "a read after a shrink that found no room");
    let medium = counted_pmem();
    let (_dir, file) = create_on(medium.clone(), &small(Durability::PerCommit), 64 * PAGE as u64);
    let bytes = pattern(64 * PAGE, 1);
    file.write_at(&bytes, 0).unwrap();
    medium.fill(true);
    let error = file.resize(50 * PAGE as u64 + 1000).expect_err("there is no room for the record");
    assert!(is_full(&error), "{error}");
    medium.fill(false);
    // A handle that promises nothing more may still be read.
    assert!(read(&file) == bytes, "a failed shrink changed something");
}

/// A crash may leave the file of a large record behind. It means nothing any more, and must not be in the way.
#[test]
fn the_file_of_a_large_record_left_by_a_crash_is_not_in_the_way() {
    let _limit = limit(60, "a large write after a crash during another");
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let path = scratch("data");
        let file = small(durability).create(&path, 64 * PAGE as u64).unwrap();
        // As if a crash had come between the commit and the removal of its file.
        let spill = crate::common::sidecar_of(&path).with_extension("spill");
        std::fs::write(&spill, pattern(3000, 2)).unwrap();
        drop(file);
        let file = small(durability).open(&path).unwrap();
        let bytes = pattern(40 * PAGE, 1);
        file.write_at(&bytes, 7).unwrap_or_else(|error| panic!("{durability}: {error}"));
        file.sync().unwrap_or_else(|error| panic!("{durability}: {error}"));
        assert!(read(&file)[7..7 + bytes.len()] == bytes);
        file.close().unwrap();
        assert!(!spill.exists(), "{durability}: the file stays");
    }
}

fn create_on_a_full_disk(kind: Kind) {
    let Some(disk) = SmallDisk::mount(kind, 4096) else { return };
    let path = disk.path("data");
    for pages in [0, 1, 2, 3, 4, 5, 6, 7, 8, 12] {
        disk.fill(pages);
        match small(Durability::PerCommit).create(&path, 3 * PAGE as u64) {
            Ok(file) => {
                file.settle().unwrap();
                std::fs::remove_file(&path).unwrap();
            }
            Err(error) => {
                assert!(is_full(&error), "{error}");
                assert!(error.to_string().contains(disk.0.path().to_str().unwrap()), "{error}");
            }
        }
        assert_eq!(names(disk.0.path()), ["ballast"], "with {pages} pages free");
        disk.empty();
    }
    small(Durability::PerCommit).create(&path, 3 * PAGE as u64).unwrap().close().unwrap();
}

#[test]
fn creating_on_a_full_ext4_leaves_nothing() {
    // Alone, as all that count free pages: a process that another test starts has for a moment every file open that
    // this one has, and the space of those that were removed.
    alone!(60, "creating on a full ext4");
    create_on_a_full_disk(Kind::Ext4);
}

#[test]
fn creating_on_a_full_tmpfs_leaves_nothing() {
    alone!(60, "creating on a full tmpfs");
    create_on_a_full_disk(Kind::Tmpfs);
}

fn open_a_plain_file_on_a_full_disk(kind: Kind) {
    let Some(disk) = SmallDisk::mount(kind, 4096) else { return };
    let path = disk.path("data");
    let bytes = pattern(3 * PAGE, 1);
    std::fs::write(&path, &bytes).unwrap();
    disk.fill(2);
    let error = small(Durability::PerCommit).open(&path).unwrap_err();
    assert!(is_full(&error), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(names(disk.0.path()), ["ballast", "data"]);
    disk.empty();
    let file = small(Durability::PerCommit).open(&path).unwrap();
    assert_eq!(read(&file), bytes);
    file.close().unwrap();
}

#[test]
fn opening_a_plain_file_on_a_full_disk_leaves_it_plain() {
    alone!(60, "opening on a full disk");
    open_a_plain_file_on_a_full_disk(Kind::Ext4);
    open_a_plain_file_on_a_full_disk(Kind::Tmpfs);
}

/// Everything a file can be asked while the disk is full, on both kinds of media.
fn survives_a_full_disk<M: Medium>(kind: Kind, medium: impl Fn() -> M, durability: Durability, layout: Layout) {
    let what = format!("{durability} {layout}");
    let Some(disk) = SmallDisk::mount(kind, 4096) else { return };
    let path = disk.path("data");
    let mut model = pattern(40 * PAGE, 1);
    std::fs::write(&path, &model).unwrap();
    let options = small(durability).layout(layout);
    let file = options.open_on(medium(), &path).unwrap();
    let write = |file: &AtomicFile, model: &mut Vec<u8>, bytes: &[u8], offset: usize| {
        let before = read(file);
        match file.write_at(bytes, offset as u64) {
            Ok(()) => model[offset..offset + bytes.len()].copy_from_slice(bytes),
            Err(error) => {
                assert!(is_full(&error), "{what}: {error}");
                assert!(read(file) == before, "{what}: a failed write changed something");
            }
        }
        assert!(read(file) == *model, "{what}");
    };
    write(&file, &mut model, &pattern(100, 2), 50);
    file.sync().unwrap();
    disk.fill(0);
    // The pages written before can be written again as often as one likes, through any number of cuts.
    for n in 0..40 {
        write(&file, &mut model, &pattern(100, 3 + n), 50);
        file.sync().unwrap_or_else(|error| panic!("{what}: commit {n}: {error}"));
    }
    // New ones may find no room; then nothing of the write is there.
    for page in (2..36).step_by(3) {
        write(&file, &mut model, &pattern(3 * PAGE, 50 + page), page as usize * PAGE + 9);
    }
    let longer = file.resize(60 * PAGE as u64);
    match &longer {
        Err(error) => assert!(is_full(error), "{what}: {error}"),
        Ok(()) => model.resize(60 * PAGE, 0),
    }
    assert!(read(&file) == model, "{what}");
    if let Err(error) = file.sync() {
        // An epoch too large for a lane needs room for its record. There is none; it stays open, whole, and commits as
        // soon as there is.
        assert!(is_full(&error), "{what}: {error}");
        assert!(read(&file) == model, "{what}");
        disk.empty();
        file.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
        disk.fill(0);
    }
    file.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    // It opens, reads and closes on the full disk too.
    let file = options.open_on(medium(), &path).unwrap_or_else(|error| panic!("{what}: {error}"));
    let bytes = read(&file);
    let differ = bytes.iter().zip(&model).filter(|(a, b)| a != b).count();
    assert!(bytes == model, "{what}: {} bytes, {differ} of them wrong", bytes.len());
    file.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    disk.empty();
    let file = options.open_on(medium(), &path).unwrap();
    write(&file, &mut model, &pattern(12 * PAGE, 99), 5 * PAGE + 1);
    file.settle().unwrap();
    assert!(std::fs::read(&path).unwrap() == model, "{what}");
}

macro_rules! full_disk {
    ($(#[$doc:meta])+ $module:ident $kind:ident; $($name:ident: $medium:expr, $durability:ident, $layout:ident;)+) => {
        $(#[$doc])+
        mod $module {
            use super::*;
            $(#[test]
            fn $name() {
                run_alone(test_name!(), 60, stringify!($module), || {
                    survives_a_full_disk(Kind::$kind, || $medium, Durability::$durability, Layout::$layout);
                });
            })+
        }
    };
}

full_disk! {
    /// A disk of the usual kind.
    a_full_ext4_harms_nothing Ext4;
    block_per_write_dense: PageCache::new(), PerWrite, Dense;
    block_per_write_sparse: PageCache::new(), PerWrite, Sparse;
    block_per_commit_dense: PageCache::new(), PerCommit, Dense;
    block_per_commit_sparse: PageCache::new(), PerCommit, Sparse;
    pmem_per_write_dense: pmem(), PerWrite, Dense;
    pmem_per_write_sparse: pmem(), PerWrite, Sparse;
    pmem_per_commit_dense: pmem(), PerCommit, Dense;
    pmem_per_commit_sparse: pmem(), PerCommit, Sparse;
}

full_disk! {
    /// Here even a load from a hole takes space. Memory assumed persistent is not asked for: a mapping of a tmpfs would
    /// raise SIGBUS there, and serves tests and benchmarks only.
    a_full_tmpfs_harms_nothing Tmpfs;
    block_per_write_dense: PageCache::new(), PerWrite, Dense;
    block_per_write_sparse: PageCache::new(), PerWrite, Sparse;
    block_per_commit_dense: PageCache::new(), PerCommit, Dense;
    block_per_commit_sparse: PageCache::new(), PerCommit, Sparse;
}

/// The limit on the size of files (`ulimit -f`): a call beyond it is an error, and no signal ends the process. What is
/// there can be read, and all goes on when the limit is lifted.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    alone!(60, "the limit is the process's own");
    let before = getrlimit(Resource::Fsize);
    let set = |current: Option<u64>| setrlimit(Resource::Fsize, Rlimit { current, ..before }).unwrap();
    let is_too_large = |error: Error, file: &std::path::Path| {
        assert!(error.errno() == 27 && error.path().starts_with(file.parent().unwrap()), "{error}");
    };
    for engine in untorn::testing::ENGINES {
        let options = Options::new().engine(engine).durability(Durability::PerCommit).record_area(2, 16);
        let path = scratch("data");
        let file = options.create(&path, 64 * PAGE as u64).unwrap();
        let mut model = read(&file);
        file.close().unwrap();
        let file = options.open(&path).unwrap();
        set(Some(8 * PAGE as u64));
        // Another file that is made here has the limit read.
        let other = path.with_file_name("other");
        is_too_large(options.create(&other, 64 * PAGE as u64).unwrap_err(), &other);
        assert!(!other.exists());
        let written = file.write_at(&pattern(40 * PAGE, 1), 0).and_then(|()| file.sync().map(drop));
        is_too_large(written.expect_err("the sidecar would be longer than the limit"), &path);
        is_too_large(file.resize(200 * PAGE as u64).unwrap_err(), &path);
        assert!(read(&file)[40 * PAGE..] == model[40 * PAGE..]);
        drop(file);
        set(before.current);
        let file = options.open(&path).unwrap();
        assert!(read(&file) == model, "{engine}: a write that failed is there");
        model[..40 * PAGE].copy_from_slice(&pattern(40 * PAGE, 1));
        file.write_at(&model[..40 * PAGE], 0).and_then(|()| file.sync()).unwrap();
        assert!(read(&file) == model);
        file.settle().unwrap();
        set(Some(8 * PAGE as u64));
        is_too_large(Options::new().create_map(path.with_file_name("map"), 64 * PAGE as u64).unwrap_err(), &path);
        let log = path.with_file_name("log");
        is_too_large(untorn::write_cache::CacheOptions::new().create(&log).map(drop).unwrap_err(), &log);
        set(before.current);
    }
}
