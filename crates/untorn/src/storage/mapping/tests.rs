//! Ranges, growth, reservations, and what is distrusted.

use std::sync::atomic::AtomicBool;
use std::thread;

use super::super::names;
use super::*;
use crate::sys::map::FileMap;

const PAGE: u64 = 4096;

fn file(dir: &Path, kind: MapKind, len: u64, reserve: u64) -> MappedFile {
    let path = dir.join("file");
    let descriptor = names::create_regular(&path, len).unwrap();
    MappedFile::new(&path, descriptor, kind, Access::ReadWrite, reserve, LostPage::Fail).unwrap()
}

#[test]
fn growth_in_place_under_concurrent_readers() {
    const PAGES: u64 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), MapKind::Read, 0, PAGES * PAGE);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut page = [0; PAGE as usize];
                while !done.load(Ordering::Acquire) {
                    let Some(last) = file.len().checked_sub(PAGE) else { continue };
                    let offset = last / PAGE / 2 * PAGE;
                    for offset in [offset, last] {
                        let dst = read(&file, offset, &mut page);
                        // The last page may not have been written to yet.
                        assert!(dst.iter().all(|byte| *byte == dst[0]) || offset == last);
                        assert!(offset == last || dst[0] == (offset / PAGE) as u8);
                    }
                }
            });
        }
        for page in 0..PAGES {
            file.set_len((page + 1) * PAGE).unwrap();
            file.pwrite(page * PAGE, &[page as u8; PAGE as usize]).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    let error = file.set_len(PAGES * PAGE + 1).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }));
    assert!(error.to_string().contains("max_len"), "{error}");
    assert_eq!(file.len(), PAGES * PAGE);
}

/// What began in an older window ends there, and what is stored through one window is seen through the other.
#[test]
#[allow(unsafe_code)]
fn growth_moves_no_byte_that_somebody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), MapKind::ReadWrite, 3 * PAGE, 1 << 40);
    let before = file.range_mut(PAGE, 8).unwrap();
    let small = file.map.reserved();
    assert!(small <= 1 << 20, "{small} bytes of address space for three pages");
    file.set_len(1 << 30).unwrap();
    assert_eq!(file.map.reserved(), 1 << 31);
    let after = file.range(PAGE, 8).unwrap();
    assert_ne!(before, after);
    // SAFETY: within the file's length then, and no window goes before the file does.
    unsafe { before.cast::<u64>().write_volatile(7) };
    // SAFETY: within the file's length.
    assert_eq!(unsafe { after.cast::<u64>().read_volatile() }, 7);
    file.set_len((1 << 31) + PAGE).unwrap();
    file.set_len(PAGE).unwrap();
    assert_eq!(file.map.reserved(), 2 * ((1 << 31) + PAGE), "a shrink keeps the window");
    assert!(file.range(PAGE, 1).is_err());
    file.set_len(2 * PAGE).unwrap();
    assert_eq!(read(&file, PAGE, &mut [1; 16]), [0; 16]);
}

#[test]
#[allow(unsafe_code)]
fn a_page_lost_in_an_older_window_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), MapKind::Read, 3 * PAGE, 1 << 40);
    let before = file.range(2 * PAGE, 1).unwrap();
    file.set_len(1 << 30).unwrap();
    rustix::fs::ftruncate(&file.file, PAGE).unwrap();
    // SAFETY: no window goes before the file does; the page is lost, and replaced by zeros.
    assert_eq!(unsafe { before.read_volatile() }, 0);
    let error = file.intact("read from").unwrap_err().to_string();
    assert!(error.contains(" at byte 8192: "), "{error}");
    assert!(file.range(0, 1).is_err() && file.set_len(PAGE).is_err());
}

#[allow(unsafe_code)]
fn read<'a>(file: &MappedFile, offset: u64, page: &'a mut [u8]) -> &'a [u8] {
    let src = file.range(offset, page.len()).unwrap();
    // SAFETY: `range` gives as many mapped bytes, and the file is borrowed.
    unsafe { sys::copy::read_racy(src, page) };
    page
}

#[test]
fn the_range_check_knows_every_edge() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), MapKind::ReadWrite, 100, PAGE);
    for (offset, len) in [(0, 0), (0, 100), (100, 0), (99, 1)] {
        assert!(file.range(offset, len).is_ok());
        assert!(file.checked(offset, len as u64).is_ok());
    }
    for (offset, len) in
        [(0, 101), (100, 1), (101, 0), (u64::MAX, 0), (u64::MAX, 1), (1, usize::MAX), (u64::MAX, usize::MAX)]
    {
        assert!(matches!(file.range(offset, len), Err(Error::OutOfRange { file_len: 100, .. })), "{offset} {len}");
        assert!(matches!(file.checked(offset, len as u64), Err(Error::OutOfRange { file_len: 100, .. })));
    }
}

#[test]
fn a_reservation_beyond_the_address_space_is_made_smaller() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path(), MapKind::Read, 3 * PAGE, u64::MAX);
    let whole = FileMap::new(file.fd(), MapKind::Read, 3 * PAGE, u64::MAX, LostPage::Fail).unwrap();
    assert!(file.map.reserved() >= 3 * PAGE && whole.reserved() >= 3 * PAGE);
    file.set_len(5 * PAGE).unwrap();
    assert_eq!(read(&file, 4 * PAGE, &mut [1; 16]), [0; 16]);
}

#[test]
fn a_mapping_that_needs_persistent_memory_is_refused_without() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let descriptor = names::create_regular(&path, 10).unwrap();
    match MappedFile::new(&path, descriptor, MapKind::SyncReadWrite, Access::ReadWrite, PAGE, LostPage::Fail) {
        Ok(_) => untorn_testing::skipped!("{} is on persistent memory", dir.path().display()),
        Err(error) => assert!(error.to_string().starts_with("cannot map "), "{error}"),
    }
}

#[test]
fn distrusted_pages_leave_memory_or_are_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let kept = file(dir.path(), MapKind::Read, 64 * PAGE, 64 * PAGE);
    if sys::file::in_memory(kept.fd()) {
        untorn_testing::skipped!("{} is in memory only, so nothing can be dropped from it", dir.path().display());
        return;
    }
    let bytes = |page: u64| [page as u8 + 1; PAGE as usize];
    (8..64).for_each(|page| kept.pwrite(page * PAGE, &bytes(page)).unwrap());
    kept.fsync().unwrap();
    let mut image = [0; PAGE as usize];
    (0..64).for_each(|page| {
        assert_eq!(read(&kept, page * PAGE, &mut image)[0], if page < 8 { 0 } else { page as u8 + 1 })
    });
    let resident = |file: &MappedFile| file.map.resident(0, 64 * PAGE).unwrap().iter().filter(|page| **page).count();
    // A page may leave memory, or be in the kernel's own hands for a moment, at any time: not at all times.
    let once = |what: &dyn Fn() -> bool| (0..1000).any(|_| what());
    assert!(once(&|| {
        (0..64).for_each(|page| assert!(read(&kept, page * PAGE, &mut [0; PAGE as usize]).len() == PAGE as usize));
        resident(&kept) == 64
    }));

    // Nobody else has them mapped: they go, this mapping's own included.
    assert!(once(&|| {
        let written = kept.distrust(0, u64::MAX).unwrap();
        kept.fsync().unwrap();
        !written && resident(&kept) == 0
    }));
    (8..64).for_each(|page| assert_eq!(read(&kept, page * PAGE, &mut image), bytes(page)));

    // Somebody has: what cannot be dropped is written again, where it is not a hole.
    let descriptor = names::open_regular(kept.path(), Access::Read).unwrap();
    let other =
        MappedFile::new(kept.path(), descriptor, MapKind::Read, Access::Read, 64 * PAGE, LostPage::Fail).unwrap();
    (0..64).for_each(|page| {
        assert_eq!(read(&other, page * PAGE, &mut image)[0], if page < 8 { 0 } else { page as u8 + 1 })
    });
    let blocks = rustix::fs::fstat(&kept.file).unwrap().st_blocks;
    assert!(!kept.distrust(0, 8 * PAGE).unwrap(), "a hole was given space");
    assert!(once(&|| {
        (0..64).for_each(|page| assert!(read(&other, page * PAGE, &mut [0; PAGE as usize]).len() == PAGE as usize));
        kept.distrust(0, 64 * PAGE).unwrap()
    }));
    kept.fsync().unwrap();
    assert_eq!(rustix::fs::fstat(&kept.file).unwrap().st_blocks, blocks);
    (8..64).for_each(|page| assert_eq!(read(&kept, page * PAGE, &mut image), bytes(page)));
    assert!(matches!(other.distrust(0, PAGE), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_failed_resize_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    drop(names::create_regular(&path, 10).unwrap());
    let descriptor = names::open_regular(&path, Access::Read).unwrap();
    let file = MappedFile::new(&path, descriptor, MapKind::Read, Access::ReadWrite, PAGE, LostPage::Fail).unwrap();
    assert!(file.set_len(5).unwrap_err().to_string().starts_with("cannot resize "));
    assert_eq!(file.len(), 10);
}
