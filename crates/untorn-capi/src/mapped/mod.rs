//! [`MappedFiles`]: finds the open file for an address, without a lock.
//!
//! A program written against `mmap` holds an address, not a handle. This index gives each mapped file an address range,
//! and finds the file and offset for an address. It is Acumen's index of *MmapInfos* with its cache of the most
//! recently used ones (§IV-B, §IV-E), and Libnvmmio's tree of per-file metadata with the cache of each thread (§3.5).
//! Instead of a red-black tree under a read-write lock it is an immutable sorted table that is replaced as a whole, so
//! a reader takes no lock and never waits.

mod range;
mod view;

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;

pub(crate) use self::view::{Position, View};
use self::view::{Row, Table};
use rustix::param::page_size;
use untorn_core::testing::storage::Access;
use untorn_core::testing::{FirstUse, incarnation};
use untorn_core::{AtomicFile, Error, Result};

use self::range::AddressRange;

/// The files mapped in this process, found by address.
///
/// The addresses are *names*, not memory. The range of a mapping is reserved without access, so a plain load or store
/// through it faults at once. If the data file itself were readable there, a load could return a slice whose valid copy
/// is in the sidecar; stale data is worse than a fault. Access goes through [`view`](MappedFiles::view): find the
/// address, then read or write the file found.
///
/// One file may be mapped any number of times, overlapping or at an offset. Each mapping has its own range; all share
/// the file's one state.
///
/// A forked child still finds its parent's mappings, so that it does not mistake their addresses for memory. But the
/// files found belong to the parent, and every call on them fails with [`Error::Forked`]. The child can map its own
/// files, whatever the parent's threads were doing here at the fork, as soon as the parent had mapped its first file.
/// Before that, the parent sets up the index for a few milliseconds, and a fork in that moment leaves the child without
/// one.
///
/// ```ignore
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let file = AtomicFile::create(dir.path().join("f"), 8192)?;
/// let files = MappedFiles::global();
/// let whole = files.map(&file, 0, 8192)?;
/// let second_page = files.map(&file, 4096, 4096)?;
///
/// let view = files.view();
/// let place = view.find(whole.address() + 4100).unwrap();
/// assert_eq!((place.offset(), place.left()), (4100, 4092));
/// place.file().write_at(b"shared", place.offset())?;
/// let same = view.find(second_page.address() + 4).unwrap();
/// assert_eq!(same.offset(), 4100);
/// drop(view);
///
/// files.unmap(whole.address());
/// files.unmap(second_page.address());
/// # Ok(()) }
/// ```
pub(crate) struct MappedFiles {
    table: ArcSwap<Table>,
    /// Readers never look at it.
    change: ArcSwap<Change>,
}

/// Held to replace the table. A forked child has its own: its parent's may be held for ever, by a thread that it does
/// not have.
struct Change {
    process: u64,
    alone: Mutex<()>,
}

impl Change {
    fn of(process: u64) -> Arc<Self> {
        Arc::new(Change { process, alone: Mutex::default() })
    }
}

/// A range of addresses that stands for a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    address: usize,
    len: usize,
    offset: u64,
    access: Access,
}

impl Mapping {
    /// The first address, on a page boundary.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// The requested length in bytes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The file offset of the first address.
    #[cfg(test)]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

/// The parts that a mapping keeps alive: the file and the reservation.
struct Entry {
    mapping: Mapping,
    /// The process that mapped it.
    process: u64,
    file: AtomicFile,
    range: AddressRange,
}

impl fmt::Debug for MappedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.table.load().rows.iter().map(|row| row.entry.mapping)).finish()
    }
}

impl Default for MappedFiles {
    fn default() -> Self {
        Self::new()
    }
}

impl MappedFiles {
    /// Creates an index without mappings.
    pub(crate) fn new() -> Self {
        MappedFiles {
            table: ArcSwap::from_pointee(Table { rows: Box::default() }),
            change: ArcSwap::new(Change::of(incarnation())),
        }
    }

    /// The index of this process, which the C functions use.
    pub(crate) fn global() -> &'static MappedFiles {
        static GLOBAL: FirstUse<MappedFiles> = FirstUse::new();
        GLOBAL.get(MappedFiles::new)
    }

    /// Maps `len` bytes of `file` from `offset` for reading and writing, at an address the kernel chooses.
    ///
    /// # Errors
    /// As for [`map_near`](MappedFiles::map_near).
    #[cfg(test)]
    pub(crate) fn map(&self, file: &AtomicFile, offset: u64, len: usize) -> Result<Mapping> {
        self.map_near(None, file, offset, len, Access::ReadWrite)
    }

    /// Maps `len` bytes of `file` from `offset`, at the address `near` if that is on a page boundary and the range is
    /// free there, elsewhere otherwise. The range may reach beyond the end of the file: its bytes exist once the file
    /// has grown. The index keeps a handle to the file until [`unmap`](MappedFiles::unmap).
    ///
    /// # Errors
    /// [`Error::Invalid`] if `len` is 0, `offset` is not a multiple of the page size, or their sum exceeds the largest
    /// file offset. [`Error::Io`] if the address space has no room.
    pub(crate) fn map_near(
        &self,
        near: Option<usize>,
        file: &AtomicFile,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Mapping> {
        let invalid = |what: String| Error::Invalid { path: file.path().to_owned(), what };
        let page = page_size();
        if len == 0 {
            return Err(invalid("cannot map 0 bytes; map at least one".to_owned()));
        }
        if !offset.is_multiple_of(page as u64) {
            return Err(invalid(format!(
                "cannot map from offset {offset}; a mapping must start at a multiple of {page} \
                                        bytes"
            )));
        }
        let reserved = len
            .checked_next_multiple_of(page)
            .filter(|&reserved| offset.checked_add(reserved as u64).is_some_and(|end| end <= i64::MAX as u64))
            .ok_or_else(|| {
                invalid(format!(
                    "cannot map {len} bytes from offset {offset}: they end beyond the largest \
                                            file offset, 2^63 - 1"
                ))
            })?;
        let range = AddressRange::reserve(near, reserved)
            .map_err(|errno| Error::io("reserve address space for", file.path(), errno))?;
        let start = range.address();
        let mapping = Mapping { address: start, len, offset, access };
        let entry = Entry { mapping, process: incarnation(), file: file.clone(), range };
        let row = Row { start, end: start + reserved, entry: Arc::new(entry) };
        self.replace(|rows| {
            let at = rows.partition_point(|other| other.start < start);
            rows.insert(at, row);
        });
        Ok(mapping)
    }

    /// The current mappings, to find addresses in. It takes no lock.
    pub(crate) fn view(&self) -> View {
        View { table: self.table.load() }
    }

    /// Ends the mapping that starts at `address` and returns its file handle, to close, settle or drop. `None` if no
    /// mapping of this process starts there.
    ///
    /// It waits for every [`view`](MappedFiles::view) that any thread took before. The returned handle is therefore
    /// the last one if the caller holds no other. A thread that calls this while it keeps a view waits for itself
    /// forever.
    pub(crate) fn unmap(&self, address: usize) -> Option<AtomicFile> {
        let row = self.replace(|rows| {
            let at = rows.binary_search_by_key(&address, |row| row.start).ok()?;
            // A forked child would wait forever for the views of its parent's threads, which do not exist in the
            // child.
            (rows[at].entry.process == incarnation()).then(|| rows.remove(at))
        })?;
        let mut entry = row.entry;
        for round in 0_u32.. {
            // Older tables hold the entry as long as a view of them lives, the current one does not.
            match Arc::try_unwrap(entry) {
                Ok(Entry { file, range, .. }) => {
                    drop(range);
                    return Some(file);
                }
                Err(shared) => entry = shared,
            }
            match round {
                0..64 => std::hint::spin_loop(),
                64..256 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(50)),
            }
        }
        None
    }

    fn change(&self) -> Arc<Change> {
        let process = incarnation();
        loop {
            let found = self.change.load_full();
            if found.process == process {
                return found;
            }
            self.change.compare_and_swap(&found, Change::of(process));
            // The parent's is not to be dropped: one of the parent's threads may have held it.
            mem::forget(found);
        }
    }

    fn replace<T>(&self, change: impl FnOnce(&mut Vec<Row>) -> T) -> T {
        // A panic in between leaves the old table in place, which is whole.
        let ours = self.change();
        let _alone = ours.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = self.table.load().rows.to_vec();
        let result = change(&mut rows);
        self.table.store(Arc::new(Table { rows: rows.into_boxed_slice() }));
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use untorn_core::testing::in_forked_child;

    use super::*;

    const PAGE: usize = 4096;

    fn file(pages: u64) -> (tempfile::TempDir, AtomicFile) {
        let dir = tempfile::tempdir().unwrap();
        let file = AtomicFile::create(dir.path().join("f"), pages * 4096).unwrap();
        (dir, file)
    }

    fn at(files: &MappedFiles, address: usize) -> Option<(u64, usize)> {
        files.view().find(address).map(|place| (place.offset(), place.left()))
    }

    #[test]
    fn every_address_of_a_mapping_is_found_and_no_other() {
        let (_dir, file) = file(4);
        let files = MappedFiles::new();
        let mapping = files.map(&file, PAGE as u64, PAGE + 10).unwrap();
        let start = mapping.address();
        assert_eq!(at(&files, start), Some((4096, PAGE + 10)));
        assert_eq!(at(&files, start + PAGE + 9), Some((8201, 1)));
        assert_eq!(at(&files, start + PAGE + 10), Some((8202, 0)), "the rest of the last page is mapped and empty");
        assert_eq!(at(&files, start + 2 * PAGE - 1), Some((12287, 0)));
        assert_eq!(at(&files, start + 2 * PAGE), None);
        assert_eq!(at(&files, start - 1), None);
        assert_eq!(at(&files, 0), None);
        assert_eq!(at(&files, usize::MAX), None);
    }

    #[test]
    fn mappings_of_one_file_share_its_state() {
        let (_dir, file) = file(4);
        let files = MappedFiles::new();
        let whole = files.map(&file, 0, 4 * PAGE).unwrap();
        let again = files.map(&file, 0, 4 * PAGE).unwrap();
        let tail = files.map(&file, 2 * PAGE as u64, 2 * PAGE).unwrap();
        assert_ne!(whole.address(), again.address());
        let view = files.view();
        let place = view.find(whole.address() + 2 * PAGE + 5).unwrap();
        place.file().write_at(b"seen by all", place.offset()).unwrap();
        for address in [again.address() + 2 * PAGE + 5, tail.address() + 5] {
            let place = view.find(address).unwrap();
            let mut buf = [0; 11];
            place.file().read_at(&mut buf, place.offset()).unwrap();
            assert_eq!(&buf, b"seen by all");
        }
    }

    #[test]
    fn unmap_returns_the_handle_once_and_keeps_the_other_mappings() {
        let (dir, file) = file(2);
        let files = MappedFiles::new();
        let first = files.map(&file, 0, PAGE).unwrap();
        let second = files.map(&file, 0, PAGE).unwrap();
        drop(file);
        assert!(files.unmap(first.address() + 1).is_none());
        let handle = files.unmap(first.address()).unwrap();
        assert!(files.unmap(first.address()).is_none());
        assert_eq!(at(&files, first.address()), None);
        assert_eq!(at(&files, second.address()), Some((0, PAGE)));
        handle.close().unwrap();
        files.unmap(second.address()).unwrap().settle().unwrap();
        AtomicFile::open(dir.path().join("f")).unwrap().close().unwrap();
    }

    #[test]
    fn arguments_no_mapping_can_have_are_refused() {
        let (_dir, file) = file(1);
        let files = MappedFiles::new();
        for (offset, len) in [(0, 0), (1, PAGE), (0, usize::MAX), (i64::MAX as u64 + 1, PAGE), (1 << 62, 1 << 62)] {
            assert!(matches!(files.map(&file, offset, len), Err(Error::Invalid { .. })), "{offset} {len}");
        }
        assert!(matches!(files.map(&file, 0, 1 << 60), Err(Error::Io { .. })), "no machine has that many addresses");
        assert_eq!(format!("{files:?}"), "[]");
    }

    #[test]
    fn a_free_address_asked_for_is_the_address_given() {
        let (_dir, file) = file(1);
        let files = MappedFiles::new();
        // Other tests of this process may take the address in between; they do not take it every time.
        let free = (0..100).find_map(|_| {
            let free = files.map(&file, 0, 64 * PAGE).unwrap().address();
            files.unmap(free);
            let again = files.map_near(Some(free), &file, 0, PAGE, Access::Read).unwrap();
            (again.address() == free).then_some(free)
        });
        let free = free.unwrap();
        let elsewhere = files.map_near(Some(free), &file, 0, PAGE, Access::Read).unwrap();
        assert_ne!(elsewhere.address(), free, "a mapping never replaces another");
        assert_eq!(files.view().find(free).unwrap().access(), Access::Read);
    }

    #[test]
    fn finding_is_right_while_others_map_and_unmap() {
        let (_dir, file) = file(8);
        let files = MappedFiles::new();
        let stays: Vec<Mapping> = (0..8).map(|page| files.map(&file, page * 4096, PAGE).unwrap()).collect();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..4 {
                let (files, stays, stop) = (&files, &stays, &stop);
                scope.spawn(move || {
                    let mut turn = reader;
                    while !stop.load(Ordering::Relaxed) {
                        let mapping = stays[turn % stays.len()];
                        let found = at(files, mapping.address() + turn % PAGE);
                        assert_eq!(found, Some((mapping.offset() + (turn % PAGE) as u64, PAGE - turn % PAGE)));
                        turn += 7;
                    }
                });
            }
            for round in 0..2000 {
                let mapping = files.map(&file, 0, PAGE * (1 + round % 5)).unwrap();
                assert_eq!(at(&files, mapping.address()), Some((0, mapping.len())));
                assert!(files.unmap(mapping.address()).is_some());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// A child that was forked off while its parent had the lock, and a view.
    #[test]
    fn a_forked_child_maps_beside_what_its_parent_left() {
        let (dir, theirs) = file(2);
        let files = MappedFiles::new();
        let mapping = files.map(&theirs, 0, PAGE).unwrap();
        let (view, change) = (files.view(), files.change());
        let alone = change.alone.lock().unwrap();
        let code = in_forked_child(|| {
            let refused = |address| {
                let view = files.view();
                let place = view.find(address).unwrap();
                let write = place.file().write_at(b"no", place.offset());
                let read = place.file().read_at(&mut [0], place.offset());
                matches!((write, read), (Err(Error::Forked { .. }), Err(Error::Forked { .. })))
            };
            if !refused(mapping.address()) || files.unmap(mapping.address()).is_some() {
                return 1;
            }
            let own = AtomicFile::create(dir.path().join("own"), 8192).unwrap();
            let mine = files.map(&own, 4096, PAGE).unwrap();
            if at(&files, mine.address() + 3) != Some((4099, PAGE - 3)) || !refused(mapping.address()) {
                return 2;
            }
            drop(own);
            let handle = files.unmap(mine.address()).unwrap();
            handle.write_at(b"mine", 4096).unwrap();
            handle.settle().unwrap();
            if at(&files, mine.address()).is_some() { 3 } else { 0 }
        });
        assert_eq!(code, Some(0));
        drop((view, alone));
        assert!(files.unmap(mapping.address()).is_some());
    }

    #[test]
    fn unmap_waits_for_a_view_of_another_thread() {
        let (_dir, file) = file(1);
        let files = MappedFiles::new();
        let mapping = files.map(&file, 0, PAGE).unwrap();
        drop(file);
        let gone = AtomicBool::new(false);
        thread::scope(|scope| {
            let view = files.view();
            let place = view.find(mapping.address()).unwrap();
            scope.spawn(|| {
                let handle = files.unmap(mapping.address()).unwrap();
                gone.store(true, Ordering::SeqCst);
                handle.settle().unwrap();
            });
            thread::sleep(Duration::from_millis(20));
            assert!(!gone.load(Ordering::SeqCst));
            place.file().write_at(b"still open", place.offset()).unwrap();
            drop(view);
        });
        assert!(gone.load(Ordering::SeqCst));
    }
}
