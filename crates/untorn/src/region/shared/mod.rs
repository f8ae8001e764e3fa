//! [`SharedRegion`]: a region's pages as plain memory of several processes, committed together.
//!
//! # Invariants
//!
//! 1. One working copy holds the pages and the states that say which of them are allocated ([`pages`]). So a cut has
//!    both at one instant, a rollback restores both, and both outlive the process that changed them.
//! 2. A commit of the store ([`backing`]) follows the cut. It allocates and frees pages where the states differ from
//!    the last commit, and has the contents of the cut's changed pages that are allocated. If it fails, the store is at
//!    the commit before, and the next cut includes all of it again.
//! 3. An allocated page holds its last commit, or is in the next cut. Any other page holds nothing of meaning: it
//!    becomes allocated only after it was cleared to zeros.
//! 4. The process that takes over opens the store at its last commit, whose pages tell what waited for that commit
//!    alone. It needs no state of the process that served before.
//! 5. The processes meet at a rendezvous of the store's file, and name their region there. The process that takes over
//!    checks that it finds the same file, region and last commit. So no page ever goes to another region or store, and
//!    no commit mixes with a commit of a process that does not share the region.

mod backing;
mod pages;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use self::backing::Committed;
use self::pages::{ALLOCATED, Layout, Refused, States};
use super::map::RegionMapOptions;
use crate::engine::misaligned;
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::ipc::memory::{Opener, SharedMemory};
use crate::ipc::rendezvous::in_directory;
use crate::region::engine::PAGE;
use crate::region::exclusion::place_of;
use crate::region::store::RegionStore;
use crate::storage::{self, detect};

/// How long another process may take to make a store.
const STORE_CREATION_TIMEOUT: Duration = Duration::from_secs(10);

/// A region as plain memory that several processes store to at once. Each process sees the others' stores and
/// allocations.
///
/// A [`pmsync`](SharedRegion::pmsync) by any process makes the stores of *all* processes, up to one instant, durable
/// together with the pages allocated and freed until then. The commit has a store whole or not at all, together with
/// everything that happened before it. Threads go on storing meanwhile. After a crash of the machine, or when the last
/// process ends, the region is at its last commit.
///
/// A process may join and leave at any time, and may be killed at any instruction. Its stores, allocations and frees
/// stay; the next commit includes them, or a rollback discards them. One process has the store open and serves the
/// others. When it dies, another one takes over. See [`SharedMap`](crate::shared::SharedMap), which does the same for
/// a file.
///
/// Page *n* is always at byte 4096·*n* from [`as_ptr`](SharedRegion::as_ptr). There are no slices, because other
/// processes store at any time.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// use std::sync::atomic::Ordering;
/// use untorn::region::{RegionMapOptions, RegionStore, SharedRegion};
/// let store = RegionStore::create(&path)?;
/// drop(store.create_region("tickets")?);
/// store.close()?;
/// let region = match SharedRegion::open(&path, "tickets") { // in each process
///     Err(error) if error.errno() == 1 => return Ok(()), // userfaultfd is forbidden here, as `untorn doctor` says
///     region => region?,
/// };
/// let page = region.alloc_page()?;
/// region.words(page * 4096, 1)?[0].fetch_add(1, Ordering::SeqCst);
/// region.pmsync()?; // the page and what is on it, and whatever other processes had stored
/// region.close()?;
/// # Ok(()) }
/// ```
///
/// Processes share one region of a store at a time. While they do, no process can open the store in another way
/// ([`Error::InUse`]).
///
/// - No commit has a store to a page that is not allocated.
/// - A freed page stays in memory, for readers that still look at it, until it is allocated again.
/// - A commit by another process may have a part of an allocation of several pages, as of several stores.
/// - A commit or a rollback waits for allocations in progress. An allocation of very many pages clears those that are
///   in memory and takes milliseconds.
/// - If a process is killed in the middle of an allocation, its pages may be unusable for the others until a rollback,
///   or until all processes have left.
/// - A rollback discards the changes of all processes, so they must agree on when to call it.
///
/// - The processes must run as one user and trust each other.
/// - SIGBUS must not be blocked in a thread that stores. A SIGBUS handler that the program installs later must call the
///   one it replaces.
/// - A forked child does not have the memory.
///
/// Source: the Region System paper, §II-C and §V-C; write protection replaces its interrupts to all processors.
pub struct SharedRegion {
    copy: SharedMemory,
    states: States,
    store: PathBuf,
    name: String,
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRegion").field("store", &self.store).field("name", &self.name).finish_non_exhaustive()
    }
}

impl SharedRegion {
    /// Shares a region of a store, with default [`RegionMapOptions`].
    ///
    /// # Errors
    /// See [`RegionMapOptions::share`].
    pub fn open(store: impl AsRef<Path>, name: &str) -> Result<Self> {
        RegionMapOptions::new().share(store, name)
    }

    /// Like [`open`](SharedRegion::open), and creates the store and the region if they do not exist.
    ///
    /// # Errors
    /// As for [`open`](SharedRegion::open), and those of [`RegionStore::create`] and [`RegionStore::create_region`].
    pub fn open_or_create(store: impl AsRef<Path>, name: &str) -> Result<Self> {
        let since = Instant::now();
        loop {
            match RegionStore::create(store.as_ref()).and_then(RegionStore::close) {
                // Another process is making it.
                Err(Error::InUse { .. }) if !store.as_ref().exists() && since.elapsed() < STORE_CREATION_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // It is there, and another process may have it open.
                Err(Error::InUse { .. }) => break,
                Err(error) if error.errno() == libc::EEXIST => break,
                made => break made?,
            }
        }
        RegionMapOptions::new().shared_region(store.as_ref(), name, true, |opener| Arc::new(opener))
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.store
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of pages that can be in memory: those with lower page numbers. The first process sets it
    /// ([`RegionMapOptions::reserve`]); it is at most the region's maximum.
    pub fn max_pages(&self) -> u64 {
        self.states.layout.pages
    }

    /// The number of the last commit; 0 in a forked child.
    pub fn last_commit(&self) -> u64 {
        self.copy.last_commit()
    }

    /// Whether this process currently has the store open and serves the others.
    pub fn is_owner(&self) -> bool {
        self.copy.is_owner()
    }

    /// A pointer to the first byte of page 0. Its address in this process stays the same.
    pub fn as_ptr(&self) -> *mut u8 {
        self.copy.address()
    }

    /// Allocates a free page, usually the one with the lowest number. It holds zeros.
    ///
    /// # Errors
    /// - [`Error::Invalid`] if no page is free.
    /// - [`Error::Io`] after a page of the memory was lost.
    /// - [`Error::Poisoned`] after a failure that ends all promises, or if this process was evicted.
    /// - [`Error::Forked`].
    pub fn alloc_page(&self) -> Result<u64> {
        self.alloc_pages(1)
    }

    /// Allocates `count` consecutive pages and returns the first page number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no `count` consecutive pages are free; otherwise as for
    /// [`alloc_page`](SharedRegion::alloc_page).
    pub fn alloc_pages(&self, count: u64) -> Result<u64> {
        self.copy.check()?;
        let found = match count {
            0 => None,
            _ => self.states.allocate(&self.copy, None, count).map_err(|refused| self.refusal(refused))?,
        };
        found.ok_or_else(|| self.invalid(format!("no {count} consecutive pages of its {} are free", self.max_pages())))
    }

    /// Allocates exactly the `count` pages from `page` on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them is allocated, was freed since the last commit, or is beyond
    /// [`max_pages`](SharedRegion::max_pages); then nothing is allocated. [`Error::Forked`].
    pub fn alloc_at(&self, page: u64, count: u64) -> Result<()> {
        self.copy.check()?;
        if count == 0 || page.checked_add(count).is_none_or(|end| end > self.max_pages()) {
            return Err(self.invalid(format!("its page numbers in memory are 0 to {} - 1", self.max_pages())));
        }
        self.states.allocate(&self.copy, Some(page), count).map(drop).map_err(|refused| self.refusal(refused))
    }

    fn refusal(&self, refused: Refused) -> Error {
        match refused {
            Refused::Taken(page) => self.invalid(format!(
                "page {page} is allocated, or was freed since the last commit; a freed page becomes free with the next \
                 commit"
            )),
            Refused::Lost(error) => error,
        }
    }

    /// Frees a page. It leaves the region with the next commit, and its number is not reused before. The processes must
    /// agree among themselves that none of them still uses it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the page is not allocated; [`Error::Forked`].
    pub fn free_page(&self, page: u64) -> Result<()> {
        self.copy.check()?;
        let freed = self.states.free(&self.copy, page);
        // What was looked at may be the zeros in the place of a lost page.
        self.copy.check()?;
        if freed { Ok(()) } else { Err(self.absent(page)) }
    }

    /// Whether a page is allocated now.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn is_allocated(&self, page: u64) -> Result<bool> {
        self.copy.check()?;
        let state = self.states.state(&self.copy, page);
        self.copy.check()?;
        Ok(state == ALLOCATED)
    }

    /// All allocated pages in ascending order; other processes may allocate and free meanwhile.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn pages(&self) -> Result<Vec<u64>> {
        self.copy.check()?;
        let pages = self.states.pages(&self.copy);
        self.copy.check()?;
        Ok(pages)
    }

    /// Returns `count` words of 64 bits from `offset` on. All processes load and store each word whole.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond [`max_pages`](SharedRegion::max_pages). [`Error::Invalid`] if a page is not
    /// allocated, or `offset` is not a multiple of 8. [`Error::Forked`].
    pub fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64]> {
        self.check(offset, count.saturating_mul(8))?;
        if !offset.is_multiple_of(8) {
            return Err(misaligned::<AtomicU64>(&self.store, offset));
        }
        Ok(self.copy.words(offset as usize, count))
    }

    /// Copies bytes out. The copy may have a part of a store that another thread or process makes meanwhile.
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words).
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len())?;
        self.copy.load(offset as usize, buf)
    }

    /// Copies bytes in. They are ordinary stores: a commit meanwhile may have only the first of them.
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words).
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len())?;
        self.copy.store(offset as usize, buf)
    }

    /// Reads up to `len` bytes from the descriptor's position and stores them from `offset` on: see
    /// [`SharedMap::read_from`](crate::shared::SharedMap::read_from).
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words), and [`Error::Io`] with the error of `read(2)`.
    pub fn read_from(&self, source: impl AsFd, offset: u64, len: usize) -> Result<usize> {
        self.check(offset, len)?;
        self.copy.read_from(source.as_fd(), offset as usize, len)
    }

    /// Allows system calls of any of the processes to load from and store to a range of bytes until the next commit by
    /// any process. The range is part of that commit.
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words); [`Error::Poisoned`].
    pub fn open_to_kernel(&self, range: Range<u64>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        self.check(range.start, usize::try_from(len).unwrap_or(usize::MAX))?;
        self.copy.open_range(range)
    }

    /// Makes all stores of all processes, up to one instant after this call began, durable together with the pages
    /// allocated and freed. This includes the stores that this thread made before the call. Returns the number of the
    /// commit; processes that commit at once may share one.
    ///
    /// # Errors
    /// - [`Error::Io`] with the error of the process that serves: nothing is committed. After a failed flush, however,
    ///   no process can tell which commit the store is at, so every call of every process fails until all have left.
    /// - [`Error::Poisoned`] after such a failure, and if another program changed the region while no process served
    ///   it.
    /// - [`Error::Io`] after a page of the memory was lost.
    /// - [`Error::Forked`].
    pub fn pmsync(&self) -> Result<u64> {
        let done = self.copy.commit();
        self.states.look_again();
        done
    }

    /// Discards what all processes stored, allocated and freed since the last commit.
    ///
    /// # Errors
    /// As for [`pmsync`](SharedRegion::pmsync).
    pub fn rollback(&self) -> Result<()> {
        let done = self.copy.roll_back().map(drop);
        self.states.look_again();
        done
    }

    /// Leaves the shared region. Uncommitted changes of this process stay in the memory, until the last process has
    /// left.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if this process was evicted; [`Error::Forked`].
    pub fn close(self) -> Result<()> {
        self.copy.leave()
    }

    fn invalid(&self, what: String) -> Error {
        Error::Invalid { path: self.store.clone(), what: format!("region {:?}: {what}", self.name) }
    }

    fn absent(&self, page: u64) -> Error {
        self.invalid(format!("page {page} is not allocated; allocate it first"))
    }

    /// Whether a range of bytes is there.
    fn check(&self, offset: u64, len: usize) -> Result<()> {
        self.copy.check()?;
        let (len, file_len) = (len as u64, self.max_pages() * PAGE);
        let Some(end) = offset.checked_add(len).filter(|end| *end <= file_len) else {
            return Err(Error::OutOfRange { path: self.store.clone(), offset, len, file_len });
        };
        let absent = (offset / PAGE..end.div_ceil(PAGE)).find(|page| self.states.state(&self.copy, *page) != ALLOCATED);
        self.copy.check()?;
        absent.map_or(Ok(()), |page| Err(self.absent(page)))
    }
}

impl RegionMapOptions {
    /// Maps a region of a store that this process does not have open, together with other processes that do the same.
    /// The region must exist; [`SharedRegion::open_or_create`] creates it. Only two options have an effect,
    /// [`commit_log`](RegionMapOptions::commit_log) and [`reserve`](RegionMapOptions::reserve). Of the latter the value
    /// of the first process counts; its default here is 4 GiB. Each process has page tables for all of it, 2 MiB for
    /// 1 GiB.
    ///
    /// The processes meet in the directory of sidecars beside the store, so each must be able to see it and write to
    /// it.
    ///
    /// # Errors
    /// - [`Error::Io`] with ENOENT if there is no such store or region.
    /// - [`Error::InUse`] if any process has the store open in another way, if another region of it is shared, or if
    ///   this process already shares this one.
    /// - [`Error::Io`], which names what is missing, if the kernel or the process's rights do not allow it
    ///   (userfaultfd, Linux 5.19).
    /// - Those of [`RegionStore::open`] and [`RegionStore::open_region`].
    pub fn share(&self, store: impl AsRef<Path>, name: &str) -> Result<SharedRegion> {
        self.shared_region(store.as_ref(), name, false, |opener| Arc::new(opener))
    }

    fn shared_region(
        &self,
        store: &Path,
        name: &str,
        create: bool,
        with: impl FnOnce(Committed) -> Arc<dyn Opener>,
    ) -> Result<SharedRegion> {
        let store = storage::resolve(store)?;
        storage::copy_up(&store);
        let identity = detect(&store)?.identity;
        let dir = sidecar::directory(&store);
        let reserve = self.reserved_to_share();
        let commit_log = self.commit_log_to_share();
        let opener = Committed { store: store.clone(), identity, name: name.to_owned(), create, reserve, commit_log };
        let place = place_of(identity);
        let copy = in_directory(&store, &dir, || SharedMemory::open(&store, &dir, &place, with(opener), 0))?;
        let states = States::new(Layout::of_len(copy.len()));
        Ok(SharedRegion { copy, states, store, name: name.to_owned() })
    }
}
