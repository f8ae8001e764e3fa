//! A mapping of a file, with room to grow.
//!
//! # Safety
//! A [`FileMap`] owns its address range from construction to drop and hands out raw pointers only, never references:
//! other threads and other processes may store to the same bytes at any time.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::fault::MappingWatch;
use super::page_size;
use crate::options::LostPage;

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    /// Loads only, through the page cache.
    Read,
    /// Loads and stores.
    ReadWrite,
    /// Loads only; fails unless the file is on persistent memory (`MAP_SYNC`).
    SyncRead,
    /// Loads and stores that reach persistent memory once written back from the CPU cache, with no system call
    /// (`MAP_SYNC`): before a first store to a page proceeds, the file system makes the page's place durable.
    SyncReadWrite,
    /// Loads and stores; a page that is stored to becomes the process's own, and the file never learns of it.
    Private,
    /// The same, but that nothing can be accessed before it is made accessible.
    Closed,
}

/// Address space over a file, from its first byte.
///
/// The kernel allows a mapping to reach beyond the end of the file; such pages raise SIGBUS until the file has grown
/// over them. So one mapping of the whole reservation serves every later length: growth needs no remapping, and the
/// address never moves under a reader. The owner keeps accesses within the file's length.
pub(crate) struct FileMap {
    start: NonNull<u8>,
    reserved: usize,
    /// Present unless a lost page is to be a SIGBUS of the program's own.
    watch: Option<MappingWatch>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `FileMap` is an address, a number and a watch, which
// any thread may hold.
unsafe impl Send for FileMap {}
// SAFETY: as above; a shared `FileMap` only gives its address out.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps the file over `reserve` bytes, and if the kernel has no room for that, over half as much, a quarter, and so
    /// on, but not less than `len`.
    ///
    /// # Errors
    /// EOPNOTSUPP from a `Sync` kind where the file is not on persistent memory; EOVERFLOW when the file is larger than
    /// the address space; what `mmap(2)` says otherwise.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        kind: MapKind,
        len: u64,
        reserve: u64,
        lost_page: LostPage,
    ) -> io::Result<Self> {
        let smallest = usize::try_from(len.max(1)).ok().and_then(|len| len.checked_next_multiple_of(page_size()));
        let smallest = smallest.ok_or(Errno::OVERFLOW)?;
        // No address space is as large as half of what an address can say; the loop below comes down from there.
        let wanted = usize::try_from(reserve).unwrap_or(usize::MAX).min(isize::MAX as usize);
        let mut reserved = wanted.next_multiple_of(page_size()).max(smallest);
        let (protection, flags) = match kind {
            MapKind::Read => (ProtFlags::READ, MapFlags::SHARED),
            MapKind::ReadWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            MapKind::SyncRead => (ProtFlags::READ, MapFlags::SHARED_VALIDATE | MapFlags::SYNC),
            MapKind::SyncReadWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED_VALIDATE | MapFlags::SYNC),
            MapKind::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
            MapKind::Closed => (ProtFlags::empty(), MapFlags::PRIVATE),
        };
        loop {
            let flags = flags | MapFlags::NORESERVE;
            // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
            match unsafe { mmap(ptr::null_mut(), reserved, protection, flags, file, 0) } {
                Ok(start) => {
                    let start = NonNull::new(start.cast()).expect("a mapping the kernel places is never at address 0");
                    let mut map = FileMap { start, reserved, watch: None };
                    if lost_page == LostPage::Fail {
                        let writable = protection.contains(ProtFlags::WRITE) || kind == MapKind::Closed;
                        map.watch = Some(MappingWatch::new(start.as_ptr() as usize, reserved, writable)?);
                    }
                    return Ok(map);
                }
                // ENOMEM: no room in the address space. EOVERFLOW: beyond the file system's largest file. EINVAL: some
                // file systems say so instead.
                Err(Errno::NOMEM | Errno::OVERFLOW | Errno::INVAL) if reserved > smallest => {
                    reserved = (reserved / 2).next_multiple_of(page_size()).max(smallest);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes of address space: the length the file can grow to.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved as u64
    }

    /// Lets go of the pages in a range of the mapping; touching them gets the file's. Of a private mapping, what was
    /// stored there is gone. `offset` is a multiple of the page size, and the range within the reservation.
    pub(crate) fn release(&self, offset: u64, len: u64) -> io::Result<()> {
        debug_assert!(offset.saturating_add(len) <= self.reserved());
        // What a program locked in memory, `mlockall(2)` all of it, takes a word of its own (Linux 5.18).
        const DONT_NEED_LOCKED: libc::c_int = 24;
        let (at, len) = (self.at(offset), len as usize);
        // SAFETY: a mapping of a file, and nobody else's; the next access finds the bytes of the file. That a private
        // one loses others is what its owner asks for.
        match unsafe { madvise(at.cast(), len, Advice::LinuxDontNeed) } {
            // SAFETY: as above.
            Err(Errno::INVAL) if unsafe { libc::madvise(at.cast(), len, DONT_NEED_LOCKED) } == 0 => Ok(()),
            done => Ok(done?),
        }
    }

    /// Which pages of a range are in memory, whoever has them there. The same requirements as for
    /// [`release`](FileMap::release). Source: `mincore(2)`.
    pub(crate) fn resident(&self, offset: u64, len: u64) -> io::Result<Vec<bool>> {
        debug_assert!(offset.saturating_add(len) <= self.reserved());
        let mut pages = vec![0_u8; (len as usize).div_ceil(page_size())];
        // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
        let done = unsafe { libc::mincore(self.at(offset).cast(), len as usize, pages.as_mut_ptr()) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.into_iter().map(|page| page & 1 != 0).collect())
    }

    /// The offset of the first page that was lost, if one was: from then on the bytes of the mapping are not all those
    /// of the file, and stores to it may go nowhere. Ask [`none_lost`](super::fault::none_lost) first, which is quick.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.watch.as_ref().and_then(MappingWatch::lost)
    }

    /// Notes that the page at `offset` was lost, found otherwise than by an access to it. Without effect where a lost
    /// page is to be a SIGBUS.
    pub(crate) fn note_lost(&self, offset: u64) {
        if let Some(watch) = &self.watch {
            watch.note(offset);
        }
    }

    /// Copies bytes out of the mapping, which others may be storing to: what a store meanwhile leaves in the copy is
    /// not specified. A page that is lost is copied as zeros; ask [`lost`](FileMap::lost) afterwards.
    #[inline]
    pub(crate) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        assert!(
            self.watch.is_some() && offset.checked_add(into.len() as u64).is_some_and(|end| end <= self.reserved())
        );
        // SAFETY: within the mapping, which is readable, by the check above: a page beyond the end of the file is
        // replaced, for the mapping is watched. The destination is Rust's own memory, so elsewhere.
        unsafe { super::copy::read_racy(self.at(offset), into) }
    }

    /// The address at `offset`, wherever that is: not to be accessed.
    #[inline(always)]
    pub(crate) fn address(&self, offset: u64) -> *const u8 {
        self.start.as_ptr().cast_const().wrapping_add(offset as usize)
    }

    /// The address of the file's byte `offset`, which must lie within the reservation to be of use.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.reserved as u64);
        self.start.as_ptr().wrapping_add(offset as usize)
    }
}

/// Makes the pages of a range of a file dirty: the next flush writes what they hold by then. `offset` is a multiple of
/// the page size, and the range lies within the file.
///
/// No byte is stored. Another program may have the pages mapped and store to them meanwhile, and a page that is written
/// over with what it held a moment ago takes such a store back.
///
/// # Errors
/// EIO if the file system cannot give a page a place, as on a full disk that copies on write. What `mmap(2)` says.
/// Source: `madvise(2)`, MADV_POPULATE_WRITE (Linux 5.14).
pub(crate) fn make_dirty(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let len = usize::try_from(len).ok().and_then(|len| len.checked_next_multiple_of(page_size()));
    let len = len.filter(|len| *len > 0).ok_or(Errno::INVAL)?;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
    let start: *mut u8 = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, offset) }?.cast();
    let made = populate(start, len).or_else(|errno| match errno {
        // A kernel without the advice.
        Errno::INVAL => touch(start, len),
        errno => Err(errno.into()),
    });
    // SAFETY: the mapping made above, of which nobody else knows the address.
    let unmapped = unsafe { munmap(start.cast(), len) };
    debug_assert!(unmapped.is_ok(), "munmap of a whole mapping: {unmapped:?}");
    made
}

/// Has the kernel map all pages of a mapping for stores, which makes them dirty.
fn populate(start: *mut u8, len: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: the caller's mapping, of which no byte is changed.
        match unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
            Err(Errno::INTR | Errno::AGAIN) => {}
            // A store would be a SIGBUS.
            Err(Errno::FAULT) => return Err(Errno::IO),
            done => return done,
        }
    }
}

/// The same by one atomic operation in each page that leaves it as it is.
fn touch(start: *mut u8, len: usize) -> io::Result<()> {
    let watch = MappingWatch::new(start as usize, len, true)?;
    for at in (0..len).step_by(page_size()) {
        // SAFETY: within the caller's mapping, which is there for as long as this runs; other processes access the byte
        // by loads and stores of their own. A page that is lost is replaced by one of zeros, and noted. A compiler that
        // knew the operand would make a load of the operation, which dirties nothing.
        let byte = unsafe { start.add(at) };
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(byte) }.fetch_or(black_box(0), Ordering::Relaxed);
    }
    let lost = watch.lost();
    // The only accesses to the mapping were made above, so no handler is about to replace a page of it.
    let withdrawn = watch.withdraw();
    debug_assert!(withdrawn);
    if lost.is_some() { Err(Errno::IO.into()) } else { Ok(()) }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        if self.watch.take().is_some_and(|watch| !watch.withdraw()) {
            // A handler of SIGBUS may still come to replace a page here, so the addresses are never given back.
            return;
        }
        // SAFETY: exactly the mapping that `new` made; its owner, about to go, made all accesses through itself.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.reserved) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::super::userfault::Userfault;
    use super::*;

    const PAGE: usize = 4096;

    fn map(file: &File, kind: MapKind) -> FileMap {
        FileMap::new(file.as_fd(), kind, 4 * PAGE as u64, 0, LostPage::Fail).unwrap()
    }

    fn load(map: &FileMap, offset: usize) -> u8 {
        // SAFETY: within the four pages that the tests map.
        unsafe { map.at(offset as u64).read_volatile() }
    }

    fn store(map: &FileMap, offset: usize, byte: u8) {
        // SAFETY: as above, and mapped writable.
        unsafe { map.at(offset as u64).write_volatile(byte) }
    }

    fn errno() -> *mut i32 {
        // SAFETY: no conditions.
        unsafe { libc::__errno_location() }
    }

    /// Both ways, under a program that counts in each page of a mapping of its own.
    #[test]
    fn pages_become_dirty_without_a_store_to_them() {
        const PAGES: usize = 4;
        let file = tempfile::tempfile().unwrap();
        file.set_len((PAGES * PAGE) as u64).unwrap();
        let theirs = map(&file, MapKind::ReadWrite);
        let word = |page: usize| {
            // SAFETY: within the four pages that the tests map, at a multiple of eight; all accesses are atomic.
            unsafe { AtomicU64::from_ptr(theirs.at((page * PAGE) as u64).cast()) }
        };
        let done = AtomicBool::new(false);
        let rounds = std::thread::scope(|scope| {
            let counter = scope.spawn(|| {
                let mut round = 0;
                while !done.load(Ordering::Acquire) {
                    for page in 0..PAGES {
                        assert_eq!(word(page).load(Ordering::Relaxed), round, "a store to page {page} was taken back");
                        word(page).store(round + 1, Ordering::Relaxed);
                    }
                    round += 1;
                }
                round
            });
            // A loaded machine starts the thread late.
            while word(0).load(Ordering::Relaxed) == 0 && !counter.is_finished() {
                std::thread::yield_now();
            }
            for _ in 0..untorn_testing::cases(300, 30_000) {
                make_dirty(file.as_fd(), 0, (PAGES * PAGE) as u64).unwrap();
                let watched = make_dirty(file.as_fd(), PAGE as u64, PAGE as u64 + 1);
                watched.unwrap();
                // SAFETY: a new mapping, of this test alone.
                let start = unsafe {
                    let flags = MapFlags::SHARED;
                    mmap(ptr::null_mut(), PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0).unwrap()
                };
                touch(start.cast(), PAGES * PAGE).unwrap();
                // SAFETY: as above.
                unsafe { munmap(start, PAGES * PAGE).unwrap() };
            }
            done.store(true, Ordering::Release);
            counter.join().unwrap()
        });
        assert!(rounds > 0);
        assert_eq!(make_dirty(file.as_fd(), 0, 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        file.set_len(PAGE as u64).unwrap();
        let beyond = make_dirty(file.as_fd(), PAGE as u64, PAGE as u64).unwrap_err();
        assert_eq!(beyond.raw_os_error(), Some(libc::EIO), "a page that the file does not have");
    }

    #[test]
    fn both_ways_to_make_a_page_dirty_do() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 * PAGE as u64).unwrap();
        let dirty = || super::super::cached::dirty_pages(file.as_fd(), 0, 4 * PAGE as u64);
        let ways: [fn(*mut u8, usize) -> io::Result<()>; 2] = [|start, len| Ok(populate(start, len)?), touch];
        for way in ways {
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4 * PAGE], 0).unwrap();
            file.sync_all().unwrap();
            if dirty() != Some(0) {
                untorn_testing::skip!(
                    "this kernel, or the file system of temporary files, does not tell what is dirty"
                );
            }
            let theirs = map(&file, MapKind::ReadWrite);
            way(theirs.at(PAGE as u64), 2 * PAGE).unwrap();
            // A file system may keep the four pages as one unit.
            assert!(dirty().is_some_and(|dirty| dirty >= 2), "{:?}", dirty());
        }
    }

    /// What a program that loads and stores for itself sees.
    #[test]
    fn a_lost_page_reads_as_zeros_and_takes_stores_that_go_nowhere() {
        for dir in ["/dev/shm".into(), std::env::temp_dir()] {
            let file = tempfile::tempfile_in(dir).unwrap();
            file.set_len(4 * PAGE as u64).unwrap();
            let map = map(&file, MapKind::ReadWrite);
            for page in 0..4 {
                store(&map, page * PAGE, page as u8 + 1);
            }
            assert_eq!(map.lost(), None);
            file.set_len(PAGE as u64).unwrap();
            // SAFETY: this thread's own.
            unsafe { errno().write(77) };
            assert_eq!(load(&map, 2 * PAGE + 9), 0);
            // SAFETY: as above.
            assert_eq!(unsafe { errno().read() }, 77, "the handler changed errno");
            assert_eq!(map.lost(), Some(2 * PAGE as u64));
            store(&map, 2 * PAGE, 7);
            store(&map, PAGE, 8);
            assert_eq!([load(&map, 0), load(&map, PAGE), load(&map, 2 * PAGE), load(&map, 3 * PAGE)], [1, 8, 7, 0]);
            assert_eq!(map.lost(), Some(2 * PAGE as u64), "the first loss is told");
            assert!(!super::super::fault::none_lost());
            assert_eq!(file.metadata().unwrap().len(), PAGE as u64, "a lost store made the file longer");
        }
    }

    #[test]
    fn a_map_knows_nothing_of_what_its_predecessor_lost() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 * PAGE as u64).unwrap();
        for _ in 0..1000 {
            let map = map(&file, MapKind::Read);
            map.note_lost(0);
            assert_eq!(map.lost(), Some(0));
        }
        assert_eq!(map(&file, MapKind::Read).lost(), None);
    }

    #[test]
    fn a_page_that_the_medium_cannot_read_is_lost() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            untorn_testing::skip!("there is no file system in memory");
        };
        file.set_len(4 * PAGE as u64).unwrap();
        let map = map(&file, MapKind::ReadWrite);
        store(&map, 0, 1);
        let start = map.at(0) as usize;
        let _manager = match Userfault::poisoning(start..start + 4 * PAGE, start + 2 * PAGE) {
            Ok(manager) => manager,
            Err(why) => untorn_testing::skip!("no page can be poisoned here: {why}"),
        };
        assert_eq!(load(&map, 2 * PAGE + 5), 0);
        assert_eq!(map.lost(), Some(2 * PAGE as u64));
        assert_eq!(load(&map, 0), 1);
    }
}
