//! [`RegionMap`]: a region's pages as plain memory.
//!
//! Page *n* is at byte 4096·*n* of one address reservation, whatever pages are allocated and freed. A page is loaded
//! into memory when the program first asks for it. The program cannot touch pages that are not loaded or not allocated.
//!
//! # Invariants
//!
//! 1. An open page holds the region's bytes for it (the last commit, or what was parked since), and stores since. No
//!    slice of a page exists while it is closed, freed or rolled back, because that takes `&mut self`.
//! 2. The page tables find a page that was stored to, and it is in `stored` from then until it is committed, rolled
//!    back, freed or parked. So a commit has every store; a page in `stored` without a store costs only its bytes.
//! 3. Only the engine knows which pages are allocated and which are freed; a commit takes only contents from memory.
//! 4. A page that is not in `stored` or `kept` may be the store's own page, mapped privately. It is the one that
//!    the last commit names: only a commit of a page that was stored to, or freed and so closed, has it name another.
//!    A page that was stored to is the process's own until the memory file has its bytes.

mod options;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use self::options::RegionMapOptions;
use crate::engine::misaligned;
use crate::error::{Error, Result};
use crate::options::DirtyTracking;
use crate::region::engine::RegionInfo;
use crate::region::engine::{AnyRegion, PAGE, Page, Stored};
use crate::region::store::RegionSnapshot;
use crate::sys::paged::{Opening, Paged};
use crate::sys::runs::Runs;
use crate::sys::tracking::KEPT;

/// Pages that are brought into memory at once.
const BATCH: u64 = 1024;

/// Pages that are copied at once.
const COPIED: u64 = 64;

/// Pages in a row of the store from which on they are mapped and not copied: a mapping costs as much as a few copies,
/// and a process can have only so many. In tests each page is.
const SHOWN: usize = if cfg!(test) { 1 } else { 4 };

/// A region as plain memory: the program loads and stores freely, then calls [`pmsync`](RegionMap::pmsync).
///
/// A commit makes every store since the last one durable, together with the pages allocated and freed since. A crash,
/// [`rollback`](RegionMap::rollback), or dropping the map discards what is not committed.
///
/// Page *n* is always at byte 4096·*n* of an address range that is reserved once. A page is loaded into memory when the
/// program first asks for it. Touching a page that was not loaded, or is not allocated, is a SIGSEGV. While a region is
/// mapped, its [`Region`](crate::region::Region) handles refuse to read and change it.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let store = untorn::region::RegionStore::create(dir.path().join("store"))?;
/// let mut tree = store.create_region("tree")?.map()?;
/// let (root, leaf) = (tree.alloc_page()?, tree.alloc_page()?);
/// *tree.view_mut::<u64>(root * 4096)? = leaf;
/// tree.page_mut(leaf)?[..5].copy_from_slice(b"hello");
/// tree.pmsync()?; // both pages and all that is on them, or after a crash nothing of it
/// tree.page_mut(leaf)?[0] = b'j';
/// tree.free_page(root)?;
/// tree.rollback()?;
/// assert_eq!(*tree.view::<u64>(root * 4096)?, leaf);
/// assert_eq!(&tree.page(leaf)?[..5], b"hello");
/// # Ok(()) }
/// ```
///
/// # How
/// Pages that the store has in a row, four or more, are mapped privately and not copied. Loading them takes no memory
/// but the page cache's, and a page is copied at the first store to it. Other pages are copied into a memory file, and
/// so are all pages under [`DirtyTracking::PageTable`], on persistent memory (DAX), and beyond 8192 mapped rows.
///
/// The page tables tell which pages were stored to. A commit copies those to free pages of the store and never
/// overwrites committed ones. The map takes as much memory as the copied pages, and once more the stored pages, of
/// which up to 64 MiB stay in memory after the commit.
///
/// - Reading into the map with `read(2)` counts as storing to it.
/// - A forked child has a copy of the stored and uncommitted pages. In other pages it may see anything that the parent
///   commits, to this region or another one. Its stores never reach the store file, and its calls fail with
///   [`Error::Forked`].
/// - A page whose memory is lost reads as zeros from then on, and the next commit fails; see
///   [`LostPage`](crate::options::LostPage).
///
/// Before Linux 6.15 each run of consecutive loaded pages takes one mapping. A process can have 65,530 of them; loading
/// a page beyond that fails with ENOMEM.
///
/// Source: the Region System paper, §V; `pmmap` is [`pin`](RegionMap::pin).
pub struct RegionMap {
    memory: Paged,
    pub(super) region: Arc<dyn AnyRegion>,
    /// Whether pages of the store are mapped where they can be.
    shows: bool,
    /// Bytes that the region can have, or the reservation has, if that is fewer.
    limit: u64,
    /// What was stored to and is not committed, as far as the page tables have been asked.
    stored: Runs,
    /// What of the process's own pages is committed.
    kept: Runs,
    /// Pages whose stores were given to the engine, to be committed: bringing them in brings these.
    parked: BTreeSet<u64>,
    /// Pages that pointers point to, and how often they were pinned.
    pinned: BTreeMap<u64, u32>,
}

impl fmt::Debug for RegionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionMap").field("region", &self.name()).finish_non_exhaustive()
    }
}

impl RegionMap {
    /// The region's name.
    pub fn name(&self) -> &str {
        self.region.name()
    }

    /// The dirty tracking in use: [`WriteProtect`](DirtyTracking::WriteProtect) or
    /// [`PageTable`](DirtyTracking::PageTable).
    pub fn dirty_tracking(&self) -> DirtyTracking {
        self.memory.tracking().method()
    }

    /// The region's name, size and last commit.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn info(&self) -> Result<RegionInfo> {
        self.region.info()
    }

    /// Takes a snapshot of the last commit: see [`Region::snapshot`](crate::region::Region::snapshot). Stores since are
    /// not in it.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn snapshot(&self) -> Result<RegionSnapshot> {
        Ok(RegionSnapshot::new(self.region.hold()?))
    }

    /// All allocated pages in ascending order, including uncommitted changes.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn pages(&self) -> Result<Vec<u64>> {
        self.region.pages()
    }

    /// Allocates the free page with the lowest number. It holds zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has no free page.
    pub fn alloc_page(&mut self) -> Result<u64> {
        self.region.alloc(None, 1)
    }

    /// Allocates `count` consecutive pages at the lowest free place and returns the first page number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no `count` consecutive pages are free.
    pub fn alloc_pages(&mut self, count: u64) -> Result<u64> {
        self.region.alloc(None, count)
    }

    /// Allocates exactly the `count` pages from `page` on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them is allocated, was freed since the last commit, or is beyond the region's
    /// maximum.
    pub fn alloc_at(&mut self, page: u64, count: u64) -> Result<()> {
        self.region.alloc(Some(page), count).map(drop)
    }

    /// Frees a page. The program cannot touch it any more, and the next commit removes it from the region. Neither its
    /// number nor its space is reused before that.
    ///
    /// # Errors
    /// [`Error::InUse`] if the page is [pinned](RegionMap::pin); [`Error::Invalid`] if it is not allocated.
    pub fn free_page(&mut self, page: u64) -> Result<()> {
        self.region.writable()?;
        if self.pinned.contains_key(&page) {
            let holder = format!("this process, which has page {page} of region {:?} mapped", self.name());
            return Err(Error::InUse { path: self.path().to_owned(), holder });
        }
        if page < self.limit / PAGE {
            // A page that is not allocated is not open either.
            self.close(page..page + 1)?;
        }
        self.region.free(page)
    }

    /// Returns a range of bytes, and loads its pages if needed. The range may span consecutive pages.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the region's maximum or the reserved address range; [`Error::Invalid`] if a page is
    /// not allocated; [`Error::Io`] if a page cannot be read or there is no memory for it.
    pub fn bytes(&self, offset: u64, len: usize) -> Result<&[u8]> {
        let range = self.bring_in(offset, len)?;
        self.memory.bytes(&range).ok_or_else(|| gone(self.path()))
    }

    /// Like [`bytes`](RegionMap::bytes), for stores too.
    ///
    /// # Errors
    /// As for [`bytes`](RegionMap::bytes).
    pub fn bytes_mut(&mut self, offset: u64, len: usize) -> Result<&mut [u8]> {
        Ok(self.bytes_and_region(offset, len)?.0)
    }

    /// Returns one page.
    ///
    /// # Errors
    /// As for [`bytes`](RegionMap::bytes).
    pub fn page(&self, page: u64) -> Result<&[u8; 4096]> {
        self.view(page.saturating_mul(PAGE))
    }

    /// Returns one page, for stores too.
    ///
    /// # Errors
    /// As for [`bytes`](RegionMap::bytes).
    pub fn page_mut(&mut self, page: u64) -> Result<&mut [u8; 4096]> {
        self.view_mut(page.saturating_mul(PAGE))
    }

    /// Returns the bytes at an offset as a value of a plain-bytes type.
    ///
    /// # Errors
    /// As for [`bytes`](RegionMap::bytes), and [`Error::Invalid`] if the offset is not a multiple of the type's
    /// alignment.
    pub fn view<T: FromBytes + KnownLayout + Immutable>(&self, offset: u64) -> Result<&T> {
        let bytes = self.bytes(offset, size_of::<T>())?;
        T::ref_from_bytes(bytes).map_err(|_| misaligned::<T>(self.path(), offset))
    }

    /// Like [`view`](RegionMap::view), for stores too.
    ///
    /// # Errors
    /// As for [`view`](RegionMap::view).
    pub fn view_mut<T: FromBytes + IntoBytes + KnownLayout>(&mut self, offset: u64) -> Result<&mut T> {
        let (bytes, region) = self.bytes_and_region(offset, size_of::<T>())?;
        T::mut_from_bytes(bytes).map_err(|_| misaligned::<T>(region.path(), offset))
    }

    /// Returns `count` values of one type from an offset on.
    ///
    /// # Errors
    /// As for [`view`](RegionMap::view).
    pub fn slice_of<T: FromBytes + Immutable>(&self, offset: u64, count: usize) -> Result<&[T]> {
        let bytes = self.bytes(offset, count.saturating_mul(size_of::<T>()))?;
        <[T]>::ref_from_bytes_with_elems(bytes, count).map_err(|_| misaligned::<T>(self.path(), offset))
    }

    /// Like [`slice_of`](RegionMap::slice_of), for stores too.
    ///
    /// # Errors
    /// As for [`view`](RegionMap::view).
    pub fn slice_of_mut<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        offset: u64,
        count: usize,
    ) -> Result<&mut [T]> {
        let (bytes, region) = self.bytes_and_region(offset, count.saturating_mul(size_of::<T>()))?;
        <[T]>::mut_from_bytes_with_elems(bytes, count).map_err(|_| misaligned::<T>(region.path(), offset))
    }

    /// Loads `count` pages and keeps them in memory for access through pointers. Until as many calls of
    /// [`unpin`](RegionMap::unpin), the program can load from and store to them, and cannot free them. Returns the
    /// address of the first page, which is the same each time it is pinned.
    ///
    /// No store through the pointer may run while a method that takes `&mut self` runs, other than
    /// [`pmsync_beside_stores`](RegionMap::pmsync_beside_stores), or while a slice of the page is lent. Otherwise a
    /// commit or rollback may get half of the store or lose it, and recovery may drop a commit whose bytes do not match
    /// its digest.
    ///
    /// # Errors
    /// As for [`bytes`](RegionMap::bytes); after an error nothing is pinned.
    pub fn pin(&mut self, page: u64, count: u64) -> Result<*mut u8> {
        let len = count.saturating_mul(PAGE);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.bring_in(page.saturating_mul(PAGE), len)?;
        for page in page..page + count {
            *self.pinned.entry(page).or_default() += 1;
        }
        Ok(self.memory.address(page))
    }

    /// Undoes one [`pin`](RegionMap::pin). After the last `unpin` of a page, pointers cannot touch it any more. The
    /// stores made to it are still part of the next commit. The page stays accessible if the system runs out of
    /// resources to close it, or if the map can no longer commit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of the pages is not pinned. [`Error::Io`] if the page tables cannot be read; the call
    /// may be repeated. After an error all pages are pinned as before.
    pub fn unpin(&mut self, page: u64, count: u64) -> Result<()> {
        self.region.ours()?;
        let pages = page..page.saturating_add(count);
        if let Some(loose) = pages.clone().find(|page| !self.pinned.contains_key(page)) {
            return Err(self.invalid(format!("page {loose} is not pinned")));
        }
        // A map that commits no more keeps its pages as they are; else no pointer to them could ever be taken back.
        if self.region.writable().is_ok() && self.check_memory().is_ok() {
            let last: Vec<u64> = pages.clone().filter(|page| self.pinned.get(page) == Some(&1)).collect();
            self.put_away(&last)?;
        }
        for page in pages {
            if let Some(count) = self.pinned.get_mut(&page) {
                *count -= 1;
                if *count == 0 {
                    self.pinned.remove(&page);
                }
            }
        }
        Ok(())
    }

    /// Commits. When it returns, every store since the last commit is durable, together with the pages allocated and
    /// freed. Returns the number of the commit; if nothing changed, that of the last one. The cost grows with the
    /// number of stored pages.
    ///
    /// # Errors
    /// [`Error::Io`] when the disk is full or a write fails: nothing was committed, no change is lost, and a later call
    /// may succeed. A failed flush poisons the store, and a lost page poisons the map; then only opening the store
    /// again tells whether the whole commit is durable.
    pub fn pmsync(&mut self) -> Result<u64> {
        self.note_all_stores()?;
        let page_of = |page: u64| -> Option<(u64, &Page)> {
            Some((page, self.memory.bytes(&(page * PAGE..(page + 1) * PAGE))?.try_into().ok()?))
        };
        let pages: Vec<(u64, &Page)> = self.stored_pages().into_iter().filter_map(page_of).collect();
        let check = || self.check_memory();
        let commit = self.region.pmsync(&Stored { pages, check: Some(&check) })?;
        let stored = self.committed();
        if let Err(error) = self.give_back(&stored) {
            // The commit is durable. What could not be given back stays in memory.
            tracing::warn!(path = %self.path().display(), %error, "cannot release committed pages; they stay in \
                                                                   memory");
        }
        Ok(commit)
    }

    /// Commits as [`pmsync`](RegionMap::pmsync) does, while other threads may store through pointers to
    /// [pinned](RegionMap::pin) pages. Every store that ended before the call is in the commit. A store that runs
    /// meanwhile is in it whole, in part or not at all, and whole in the next commit.
    ///
    /// It copies each stored page before it writes it to the store. It releases no committed page, so each page that
    /// was ever stored to stays in memory until a [`pmsync`](RegionMap::pmsync), a [`rollback`](RegionMap::rollback) or
    /// the last [`unpin`](RegionMap::unpin). Under [`DirtyTracking::PageTable`] it also compares all of these pages
    /// with the last commit.
    ///
    /// # Errors
    /// As for [`pmsync`](RegionMap::pmsync).
    pub fn pmsync_beside_stores(&mut self) -> Result<u64> {
        self.note_all_stores()?;
        let pages = self.stored_pages();
        // The page's digest and its bytes in the store are those of the copy, whatever is stored meanwhile.
        let copies: Vec<(u64, Box<Page>)> =
            pages.into_iter().filter_map(|page| Some((page, self.memory.copy_of(page)?))).collect();
        // Pages that stay in memory after their commit count as stored to again.
        let stay = self.memory.tracking().method() == DirtyTracking::PageTable;
        let is_changed = |(page, copy): &&(u64, Box<Page>)| !(stay && self.is_committed(*page, copy));
        let pages: Vec<(u64, &Page)> = copies.iter().filter(is_changed).map(|(page, copy)| (*page, &**copy)).collect();
        let check = || self.check_memory();
        let commit = self.region.pmsync(&Stored { pages, check: Some(&check) })?;
        // No page is given back: a store between its copy and its release would be lost.
        self.committed();
        Ok(commit)
    }

    /// Discards every store since the last commit, and the pages allocated and freed since. This also ends the pins of
    /// pages that no longer exist.
    ///
    /// # Errors
    /// [`Error::Io`] if the committed bytes cannot be read back. Some stores may already be discarded; the call may be
    /// repeated.
    pub fn rollback(&mut self) -> Result<()> {
        self.note_all_stores()?;
        for page in self.region.fresh()? {
            if page < self.limit / PAGE {
                self.close(page..page + 1)?;
            }
            self.pinned.remove(&page);
        }
        self.region.rollback()?;
        let parked = self.memory.open_among(self.parked.iter().copied());
        let mut committed: Page = [0; PAGE as usize];
        let path = self.path().to_owned();
        let failed = |error| Error::io("restore a page of", &path, error);
        for page in self.stored_pages().into_iter().chain(parked) {
            // Nothing of it was committed since it was opened, so the last commit names the page that was mapped then.
            let is_kept = !self.kept.within(slice::from_ref(&(page * PAGE..(page + 1) * PAGE))).is_empty();
            let is_as_mapped =
                !is_kept && !self.parked.contains(&page) && self.memory.show_again(page).map_err(failed)?;
            if is_as_mapped {
                continue;
            }
            self.region.read(page * PAGE, &mut committed)?;
            self.memory.restore(page, &committed).map_err(failed)?;
        }
        let stored = std::mem::take(&mut self.stored);
        self.kept = self.kept.without(&stored);
        self.parked.clear();
        Ok(())
    }
}

impl RegionMap {
    fn path(&self) -> &Path {
        self.region.path()
    }

    fn invalid(&self, what: String) -> Error {
        let what = format!("region {:?}: {what}", self.name());
        Error::Invalid { path: self.path().to_owned(), what }
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        Error::io(operation, self.path(), error)
    }

    /// A range of bytes, and the region besides: an error can name the file while the bytes are lent.
    fn bytes_and_region(&mut self, offset: u64, len: usize) -> Result<(&mut [u8], &dyn AnyRegion)> {
        let range = self.bring_in(offset, len)?;
        let region = &*self.region;
        let bytes = self.memory.bytes_mut(&range).ok_or_else(|| gone(region.path()))?;
        Ok((bytes, region))
    }

    /// Opens the pages of a range of bytes that are not.
    fn bring_in(&self, offset: u64, len: usize) -> Result<Range<u64>> {
        // First of all: a forked child may have a lock that a thread of the parent's held.
        self.region.ours()?;
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.limit);
        let Some(end) = end else {
            let path = self.path().to_owned();
            return Err(Error::OutOfRange { path, offset, len: len as u64, file_len: self.limit });
        };
        if self.memory.has(&(offset..end)) {
            return Ok(offset..end);
        }
        let mut opening = self.memory.opening();
        let pages = offset / PAGE..end.div_ceil(PAGE);
        // Batch by batch from the first look on: a range that is far too long ends with its first page that is not
        // there.
        for first in pages.clone().step_by(BATCH as usize) {
            for run in opening.closed(first..pages.end.min(first + BATCH)) {
                self.open_run(&mut opening, run)?;
            }
        }
        Ok(offset..end)
    }

    /// Opens pages in a row: those that the store has in a row too are mapped, the others are copied.
    fn open_run(&self, opening: &mut Opening<'_>, run: Range<u64>) -> Result<()> {
        let file = self.region.mappable().filter(|_| self.shows);
        let (mut copied_to, mut at) = (run.start, run.start);
        if let Some(file) = file {
            let places = self.region.unchanged(run.clone())?;
            for row in places.chunk_by(|one, next| *one != 0 && one + 1 == *next) {
                let pages = at..at + row.len() as u64;
                at = pages.end;
                if row.len() < SHOWN || row[0] == 0 {
                    continue;
                }
                self.copy_in(opening, copied_to..pages.start)?;
                copied_to = pages.start;
                match opening.show(pages.clone(), file, row[0] * PAGE) {
                    Ok(()) => copied_to = pages.end,
                    // A copy takes no mapping.
                    Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {}
                    Err(error) => return Err(self.failed("map pages of", error)),
                }
            }
        }
        self.copy_in(opening, copied_to..run.end)
    }

    fn copy_in(&self, opening: &mut Opening<'_>, pages: Range<u64>) -> Result<()> {
        for first in pages.clone().step_by(COPIED as usize) {
            let mut bytes = vec![0; ((pages.end.min(first + COPIED) - first) * PAGE) as usize];
            self.region.read(first * PAGE, &mut bytes)?;
            opening.check_exclusion(first, &bytes).map_err(|error| self.failed("load a page of", error))?;
        }
        Ok(())
    }

    /// Whether these are the bytes of a page at the last commit, as far as that can be told.
    fn is_committed(&self, page: u64, bytes: &Page) -> bool {
        let mut committed: Page = [0; PAGE as usize];
        // The engine has the parked bytes of a page in the place of the committed ones.
        !self.parked.contains(&page) && self.region.read(page * PAGE, &mut committed).is_ok() && committed == *bytes
    }

    /// Notes that what was stored is committed. Returns it.
    fn committed(&mut self) -> Runs {
        self.parked.clear();
        let stored = std::mem::take(&mut self.stored);
        self.kept = self.kept.union(&stored);
        stored
    }

    fn close(&mut self, pages: Range<u64>) -> Result<()> {
        self.memory.close(pages).map_err(|error| self.failed("close a page of", error))
    }

    /// Gives what was stored to a page to the engine, for the next commit.
    fn park(&mut self, page: u64) -> Result<()> {
        if let Some(bytes) = self.memory.bytes(&(page * PAGE..(page + 1) * PAGE)) {
            self.region.write(page * PAGE, bytes)?;
            self.parked.insert(page);
        }
        Ok(())
    }

    /// Closes pages, ascending, after what was stored to them has been given to the engine.
    fn put_away(&mut self, pages: &[u64]) -> Result<()> {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return Ok(()) };
        self.note_stores(slice::from_ref(&(first * PAGE..(last + 1) * PAGE)))?;
        let stored = self.stored_pages();
        for page in pages.iter().filter(|page| stored.binary_search(page).is_ok()) {
            self.park(*page)?;
        }
        for page in pages {
            if let Err(error) = self.close(*page..page + 1) {
                // What it holds is what the engine has. Those before it are closed, so this is too late to give up.
                tracing::warn!(path = %self.path().display(), page, %error, "cannot release a page; it stays in \
                                                                             memory");
            }
        }
        Ok(())
    }

    fn note_all_stores(&mut self) -> Result<()> {
        self.region.writable()?;
        let extents = self.memory.extents();
        self.note_stores(&extents)
    }

    /// Asks the page tables for stores, and notes them: they tell each only once.
    fn note_stores(&mut self, within: &[Range<u64>]) -> Result<()> {
        // First of all: in a forked child these are the parent's page tables.
        self.region.writable()?;
        self.check_memory()?;
        let shown = self.memory.take_newly_shown();
        if !shown.is_empty() {
            (self.kept, self.stored) = (self.kept.without(&shown), self.stored.without(&shown));
        }
        let own = self.kept.union(&self.stored);
        let (seen, all) = self.memory.tracking().take_stored_exactly(within, &own);
        // What keeps accesses from closed pages looks like a page of the process's own.
        self.stored = self.stored.union(&runs_of(self.memory.open_among(pages_of(&seen))));
        all.map_err(|error| Error::io("find the stores to a region of", self.path(), error))
    }

    /// The pages that were stored to and are still open, ascending.
    fn stored_pages(&self) -> Vec<u64> {
        self.memory.open_among(pages_of(&self.stored))
    }

    /// # Errors
    /// [`Error::Io`] once the memory of a page was lost.
    fn check_memory(&self) -> Result<()> {
        match self.memory.lost() {
            Some(offset) => {
                Err(Error::page_lost("load from or store to the memory of a region of", self.path(), offset))
            }
            None => Ok(()),
        }
    }

    /// After a commit: lets go of memory of the process's own, as [`AtomicMap`](crate::AtomicMap) does.
    fn give_back(&mut self, just_now: &Runs) -> io::Result<()> {
        let cold = match self.memory.tracking().method() {
            // What stays in memory would count as stored to for ever.
            DirtyTracking::PageTable => self.kept.clone(),
            _ if self.kept.bytes() <= KEPT => return Ok(()),
            _ => self.kept.without(just_now),
        };
        for run in runs_of(self.memory.open_among(pages_of(&cold))).iter() {
            self.memory.settle(run.start / PAGE..run.end / PAGE)?;
        }
        self.kept = self.kept.without(&cold);
        Ok(())
    }
}

/// A page that was open just now is not.
#[cold]
fn gone(path: &Path) -> Error {
    Error::io("load a page of", path, io::Error::from_raw_os_error(libc::EFAULT))
}

fn pages_of(runs: &Runs) -> impl Iterator<Item = u64> {
    runs.iter().flat_map(|run| run.start / PAGE..run.end.div_ceil(PAGE))
}

fn runs_of(pages: Vec<u64>) -> Runs {
    pages.into_iter().map(|page| page * PAGE..(page + 1) * PAGE).collect()
}

#[cfg(test)]
mod tests;
