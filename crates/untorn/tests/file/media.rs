//! One suite over every real medium.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::disk::{Kind, SmallDisk};
use crate::common::pmem;
use untorn::Error;
use untorn::testing::storage::{
    Access, Barrier, Latched, LockKind, MarkState, Medium, MediumClass, MediumFile, PageCache, detect,
};

const AT: Barrier = Barrier::new("test.media");

/// Runs a check over every medium, in an empty directory each time.
macro_rules! on_every_medium {
    ($($name:ident)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn page_cache() {
                super::$name(PageCache::new(), tempfile::tempdir().unwrap().path());
            }
            #[test]
            fn assumed_pmem() {
                super::$name(pmem(), tempfile::tempdir().unwrap().path());
            }
            #[test]
            fn latched() {
                super::$name(Latched::new(PageCache::new()), tempfile::tempdir().unwrap().path());
            }
        }
    )+};
}

on_every_medium! {
    written_bytes_are_read_back
    ranges_outside_the_file_are_errors
    a_file_open_for_reading_refuses_stores
    length_changes_keep_and_zero
    holes_read_as_zeros
    a_mark_comes_and_goes
    identity_follows_the_file
    one_lock_a_file
    growth_under_concurrent_readers
    names
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 131 + seed * 17 + i / 251) as u8).collect()
}

fn read<F: MediumFile>(file: &F, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xA5; len];
    file.read(offset, &mut bytes).unwrap();
    bytes
}

fn written_bytes_are_read_back<M: Medium>(medium: M, dir: &Path) {
    let path = dir.join("file");
    let file = medium.create(&path, 20_000, 20_000).unwrap();
    assert_eq!(file.len(), 20_000);
    file.allocate(0, 20_000).unwrap();
    let mut model = vec![0; 20_000];
    for (seed, (offset, len)) in
        [(0, 64), (1, 1), (4090, 12), (63, 66), (8192, 4096), (19_999, 1), (3, 9000), (128, 8), (777, 0)]
            .into_iter()
            .enumerate()
    {
        let part = bytes(len, seed);
        if seed % 2 == 0 {
            file.write(offset as u64, &part).unwrap();
        } else {
            file.store(offset as u64, &part).unwrap();
            file.flush(AT, offset as u64, len as u64);
        }
        model[offset..offset + len].copy_from_slice(&part);
        assert_eq!(read(&file, 0, 20_000), model);
    }
    medium.fence(AT, &[&file]).unwrap();
    file.sync(AT).unwrap();
    drop(file);
    assert_eq!(std::fs::read(&path).unwrap(), model, "others see the same bytes");
    assert_eq!(read(&medium.open(&path, Access::Read, 0).unwrap(), 0, 20_000), model);
}

fn ranges_outside_the_file_are_errors<M: Medium>(medium: M, dir: &Path) {
    // The mapping reaches further than the file, so that only the check keeps accesses in.
    let file = medium.create(&dir.join("file"), 100, 1 << 20).unwrap();
    for (offset, len) in [(100, 1), (99, 2), (101, 0), (u64::MAX, 1), (u64::MAX - 7, 8), (4096, 8)] {
        let mut buffer = vec![0; len];
        for result in [
            file.read(offset, &mut buffer),
            file.write(offset, &buffer),
            file.store(offset, &buffer),
            file.allocate(offset, len as u64),
            file.punch(offset, len as u64),
        ] {
            assert!(matches!(result, Err(Error::OutOfRange { file_len: 100, .. })), "{offset} {len}: {result:?}");
        }
        file.flush(AT, offset, len as u64);
    }
    file.flush(AT, 0, u64::MAX);
    assert_eq!(read(&file, 100, 0), b"");
}

fn a_file_open_for_reading_refuses_stores<M: Medium>(medium: M, dir: &Path) {
    let path = dir.join("file");
    medium.create(&path, 100, 100).unwrap().write(0, b"kept").unwrap();
    let file = medium.open(&path, Access::Read, 100).unwrap();
    for result in [
        file.write(0, b"x"),
        file.store(0, b"x"),
        file.set_len(1),
        file.allocate(0, 1),
        file.punch(0, 1),
        file.set_mark(Some([1; 16])),
    ] {
        assert!(matches!(result, Err(Error::ReadOnly { .. })), "{result:?}");
    }
    file.sync(AT).unwrap();
    medium.fence(AT, &[&file]).unwrap();
    assert_eq!(read(&file, 0, 4), b"kept");
}

fn length_changes_keep_and_zero<M: Medium>(medium: M, dir: &Path) {
    let file = medium.create(&dir.join("file"), 0, 1 << 16).unwrap();
    assert!(file.is_empty());
    file.set_len(5000).unwrap();
    file.write(4990, &[7; 10]).unwrap();
    file.set_len(4995).unwrap();
    file.set_len(9000).unwrap();
    assert_eq!(read(&file, 4990, 10), [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    assert_eq!(file.stamp().unwrap().size, 9000);
    assert!(matches!(file.set_len((1 << 16) + 1), Err(Error::Invalid { .. })));
    assert_eq!(file.len(), 9000);
}

fn holes_read_as_zeros<M: Medium>(medium: M, dir: &Path) {
    let file = medium.create(&dir.join("file"), 300_000, 300_000).unwrap();
    let mut model = bytes(300_000, 3);
    file.write(0, &model).unwrap();
    for (offset, len) in [(0, 0), (4096, 8192), (100_001, 100_000), (299_999, 1)] {
        file.punch(offset as u64, len as u64).unwrap();
        model[offset..offset + len].fill(0);
        assert_eq!(read(&file, 0, 300_000), model);
    }
    assert_eq!(file.len(), 300_000);
}

fn a_mark_comes_and_goes<M: Medium>(medium: M, dir: &Path) {
    let path = dir.join("file");
    let file = medium.create(&path, 1, 1).unwrap();
    if file.mark().unwrap() == MarkState::Unsupported {
        assert!(file.set_mark(Some([1; 16])).is_err());
        untorn_testing::skipped!("no user extended attributes here");
        return;
    }
    assert_eq!(file.mark().unwrap(), MarkState::Absent);
    file.set_mark(None).unwrap();
    for mark in [[1; 16], [0xFF; 16]] {
        file.set_mark(Some(mark)).unwrap();
        assert_eq!(file.mark().unwrap(), MarkState::Present(mark));
    }
    for wrong in [0, 15, 17, 100] {
        rustix::fs::setxattr(&path, "user.untorn", &vec![1; wrong], rustix::fs::XattrFlags::empty()).unwrap();
        let error = file.mark().unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{wrong} bytes")), "{error}");
    }
    file.set_mark(None).unwrap();
    assert_eq!(file.mark().unwrap(), MarkState::Absent);
}

fn identity_follows_the_file<M: Medium>(medium: M, dir: &Path) {
    use std::os::unix::fs::MetadataExt;
    let (old, new) = (dir.join("old"), dir.join("new"));
    let file = medium.create(&old, 10, 10).unwrap();
    let identity = file.identity().unwrap();
    let metadata = std::fs::metadata(&old).unwrap();
    assert_eq!((identity.device, identity.inode), (metadata.dev(), metadata.ino()));
    if let Ok(born) = metadata.created() {
        let born = born.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        assert_eq!(u128::from(identity.birth), born);
    }
    assert_eq!(detect(&old).unwrap().identity, identity);
    medium.rename(&old, &new).unwrap();
    assert_eq!(medium.open(&new, Access::Read, 0).unwrap().identity().unwrap(), identity);
    assert_ne!(medium.create(&old, 10, 10).unwrap().identity().unwrap(), identity);
    let before = file.stamp().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(&new, b"longer than it was").unwrap();
    let after = file.stamp().unwrap();
    assert_eq!(after.size, 18);
    assert!(after.modified > before.modified);
}

fn one_lock_a_file<M: Medium>(medium: M, dir: &Path) {
    let path = dir.join("file");
    let one = medium.create(&path, 1, 1).unwrap();
    let two = medium.open(&path, Access::ReadWrite, 1).unwrap();
    assert!(one.try_lock(LockKind::Exclusive).unwrap());
    assert!(one.try_lock(LockKind::Exclusive).unwrap(), "taking what one has is fine");
    assert!(!two.try_lock(LockKind::Exclusive).unwrap());
    drop(one);
    assert!(two.try_lock(LockKind::Exclusive).unwrap(), "the lock went with the handle");
    let three = medium.open(&path, Access::Read, 1).unwrap();
    assert!(!three.try_lock(LockKind::Shared).unwrap());
    assert!(two.try_lock(LockKind::Shared).unwrap() && three.try_lock(LockKind::Shared).unwrap(), "readers share");
    assert!(!two.try_lock(LockKind::Exclusive).unwrap());
}

fn growth_under_concurrent_readers<M: Medium>(medium: M, dir: &Path) {
    const STEP: u64 = 1000;
    const STEPS: u64 = 500;
    let file = medium.create(&dir.join("file"), STEP, STEP * STEPS).unwrap();
    file.write(0, &[1; STEP as usize]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let complete = file.len() / STEP - 1;
                    for step in [0, complete / 2, complete.saturating_sub(1)] {
                        assert_eq!(
                            read(&file, step * STEP, STEP as usize),
                            [(step as u8).wrapping_add(1); STEP as usize]
                        );
                    }
                }
            });
        }
        for step in 1..STEPS {
            file.set_len((step + 1) * STEP).unwrap();
            file.write(step * STEP, &[(step as u8).wrapping_add(1); STEP as usize]).unwrap();
        }
        done.store(true, Ordering::Release);
    });
}

fn names<M: Medium>(medium: M, dir: &Path) {
    let inner = dir.join("inner");
    medium.create_dir(&inner).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"not \xFF UTF-8");
    drop(medium.create(&inner.join(name), 3, 3).unwrap());
    assert_eq!(medium.create(&inner.join(name), 3, 3).unwrap_err_text(), "File exists");
    assert_eq!(medium.list(&inner).unwrap(), [name]);
    assert!(medium.exists(&inner.join(name)).unwrap());
    medium.sync_dir(AT, &inner).unwrap();
    medium.unlink(&inner.join(name)).unwrap();
    medium.remove_dir_if_empty(&inner).unwrap();
    assert!(!medium.exists(&inner).unwrap());
    assert_eq!(medium.open(&inner, Access::Read, 0).unwrap_err_text(), "No such file or directory");
    assert!(matches!(
        medium.open(dir, Access::Read, 0),
        Err(Error::NotAFile { found: untorn::report::FileKind::Directory, .. })
    ));
}

/// The system's reason of an error, for files that can't be printed.
trait ErrText {
    fn unwrap_err_text(self) -> String;
}

impl<T> ErrText for untorn::Result<T> {
    fn unwrap_err_text(self) -> String {
        match self.err() {
            Some(Error::Io { source, .. }) => source.to_string().split(" (os error").next().unwrap().to_owned(),
            other => panic!("not a system error: {other:?}"),
        }
    }
}

#[test]
fn classes_are_told_apart() {
    assert_eq!(PageCache::new().class(), MediumClass::Block);
    assert_eq!(Latched::new(pmem()).class(), MediumClass::PersistentMemory);
}

#[test]
fn a_full_disk_is_an_error() {
    let Some(disk) = SmallDisk::mount(Kind::Tmpfs, 64) else { return };
    let path = disk.path("file");
    let medium = PageCache::new();
    let file = medium.create(&path, 1 << 20, 1 << 20).unwrap();
    let error = file.write(4096, &[1; 1 << 19]).unwrap_err();
    let Error::Io { offset: Some(offset), ref source, .. } = error else { panic!("{error:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!((4096..(1 << 19)).contains(&offset), "the first byte that found no place: {offset}");
    assert_eq!(read(&file, 4096, 4096), [1; 4096], "what was written before is there, and nothing died");
    drop(file);
    medium.unlink(&path).unwrap();

    let medium = pmem();
    let file = medium.create(&path, 1 << 20, 1 << 20).unwrap();
    file.allocate(0, 4096).unwrap();
    file.write(0, &[2; 4096]).unwrap();
    assert_eq!(file.allocate(4096, 1 << 19).unwrap_err_text(), "No space left on device");
    assert_eq!(read(&file, 0, 4096), [2; 4096]);
}
