//! [`SharedRegion`]: a region's pages as plain memory of several processes, committed together.
//!
//! # What makes it sound
//! 1. The pages and the states that say which of them are allocated ([`pages`]) lie in one working copy. So a cut has both of
//!    one instant, a rollback takes both back, and both outlive the process that changed them.
//! 2. A commit of the store ([`backing`]) is what the cut says: it allocates and frees where the states differ from the last
//!    commit, and has the contents of those pages of the cut that are allocated in it. If it fails the store is at the commit
//!    before, and the next cut has all of it again.
//! 3. What an allocated page holds is its last commit, or the page is in the next cut. What another page holds means
//!    nothing: it becomes allocated only once it is zeros.
//! 4. Whoever comes to serve opens the store at its last commit, whose pages say what waited for that commit alone: no state
//!    of the process that served before is needed.
//! 5. Processes meet at a place of the store's file, where they say which region they mean, and who comes to serve looks
//!    whether it finds that file, that region and its last commit. So no page ever goes to another region or store, and
//!    nothing is ever mixed with what somebody else has committed.

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
use crate::ipc::memory::{Opener, WorkingCopy};
use crate::region::engine::PAGE;
use crate::region::exclusion::place_of;
use crate::region::store::RegionStore;
use crate::storage::{self, detect};

/// How long another process may take to make a store.
const PATIENCE: Duration = Duration::from_secs(10);

/// A region as plain memory that several processes store to at once, each seeing the others' stores and allocations.
///
/// A [`pmsync`](SharedRegion::pmsync) by any of them makes *all* processes' stores up to one instant durable together, with the
/// pages allocated and freed until that instant; a store is in it whole or not at all, and so is everything that happened
/// before it. Threads go on storing meanwhile. After a crash of the machine, or when the last process ends, the region is as
/// the last commit left it.
///
/// A process may come and go at any time, and be killed at any instruction: what it stored, allocated and freed stays, and is
/// committed with the next commit or rolled back. One of the processes has the store open and serves the others; when it dies,
/// another one takes its place. See [`SharedMap`](crate::SharedMap), which does the same for a file.
///
/// Page *n* is always 4096·*n* bytes from [`as_ptr`](SharedRegion::as_ptr). There are no slices: other processes store at any
/// time.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// use std::sync::atomic::Ordering;
/// use untorn::{RegionMapOptions, RegionStore, SharedRegion};
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
/// One region of a store is shared at a time: as long as it is, nobody opens the store otherwise ([`Error::InUse`]).
///
/// What is stored to a page that is not allocated is in no commit. A page that was freed stays in memory, for those who still
/// look at it, until it is allocated again. An allocation of several pages, as several stores, may be in a commit of another
/// process in part. A commit or a rollback waits for the allocations under way: one of very many pages, which clears those of
/// them that are in memory, takes milliseconds. Of a process that is killed in the middle of an allocation the pages may be lost to the others until a
/// rollback, or until all have left. A rollback takes back what all processes did, so they have to agree when.
///
/// The processes are one user's and trust each other. SIGBUS must not be blocked in a thread that stores, and a handler for
/// it that the program installs later has to call the one it replaces. A forked child does not have the memory.
///
/// Source: the Region System paper, §II-C and §V-C, whose interrupts to all processors are replaced by write protection.
pub struct SharedRegion {
    copy: WorkingCopy,
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

    /// The same, with the store made if there is none, and the region.
    ///
    /// # Errors
    /// As for [`open`](SharedRegion::open), and those of [`RegionStore::create`] and [`RegionStore::create_region`].
    pub fn open_or_create(store: impl AsRef<Path>, name: &str) -> Result<Self> {
        let since = Instant::now();
        loop {
            match RegionStore::create(store.as_ref()).and_then(RegionStore::close) {
                // Another process is making it.
                Err(Error::InUse { .. }) if !store.as_ref().exists() && since.elapsed() < PATIENCE => {
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

    /// Pages that can be in memory: those with lower numbers. As the process that came first said
    /// ([`RegionMapOptions::reserve`]), and no more than the region can have.
    pub fn max_pages(&self) -> u64 {
        self.states.layout.pages
    }

    /// The number of the last commit; 0 in a forked child.
    pub fn last_commit(&self) -> u64 {
        self.copy.last_commit()
    }

    /// Whether this process is the one that has the store open and serves the others, at this moment.
    pub fn is_serving(&self) -> bool {
        self.copy.is_serving()
    }

    /// The first byte of page 0, at an address of this process that stays the same.
    pub fn as_ptr(&self) -> *mut u8 {
        self.copy.address()
    }

    /// Allocates a page that is free, as a rule the lowest. It holds zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none; [`Error::Forked`]; [`Error::Io`] once a page of the memory was lost, and
    /// [`Error::Poisoned`] once nothing more is promised, or the process has lost touch with the others.
    pub fn alloc_page(&self) -> Result<u64> {
        self.alloc_pages(1)
    }

    /// Allocates `count` pages in a row and returns the first.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they fit nowhere; otherwise as for [`alloc_page`](SharedRegion::alloc_page).
    pub fn alloc_pages(&self, count: u64) -> Result<u64> {
        self.copy.check()?;
        let found = match count {
            0 => None,
            _ => self.states.allocate(&self.copy, None, count).map_err(|refused| self.refusal(refused))?,
        };
        found.ok_or_else(|| self.invalid(format!("no {count} of its {} pages in a row are free", self.max_pages())))
    }

    /// Allocates these `count` pages.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them is allocated, was freed since the last commit, or is beyond
    /// [`max_pages`](SharedRegion::max_pages): nothing is allocated then. [`Error::Forked`].
    pub fn alloc_at(&self, page: u64, count: u64) -> Result<()> {
        self.copy.check()?;
        if count == 0 || page.checked_add(count).is_none_or(|end| end > self.max_pages()) {
            return Err(self.invalid(format!("its pages in memory are numbered below {}", self.max_pages())));
        }
        self.states.allocate(&self.copy, Some(page), count).map(drop).map_err(|refused| self.refusal(refused))
    }

    fn refusal(&self, refused: Refused) -> Error {
        match refused {
            Refused::Taken(page) => self.invalid(format!(
                "page {page} is allocated, or was before the last commit; a freed page is free after the next"
            )),
            Refused::Lost(error) => error,
        }
    }

    /// Frees a page, which leaves the region with the next commit: its number is not given out before. That no other process
    /// still uses it is for the processes to agree on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not allocated; [`Error::Forked`].
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

    /// Every page that is allocated, ascending; others may allocate and free meanwhile.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn pages(&self) -> Result<Vec<u64>> {
        self.copy.check()?;
        let pages = self.states.pages(&self.copy);
        self.copy.check()?;
        Ok(pages)
    }

    /// `count` words of 64 bits from `offset` on, which all processes load and store whole.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond [`max_pages`](SharedRegion::max_pages); [`Error::Invalid`] where a page is not allocated,
    /// and unless `offset` is a multiple of 8; [`Error::Forked`].
    pub fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64]> {
        self.check(offset, count.saturating_mul(8))?;
        if !offset.is_multiple_of(8) {
            return Err(misaligned::<AtomicU64>(&self.store, offset));
        }
        Ok(self.copy.words(offset as usize, count))
    }

    /// Copies bytes out. A store of another thread or process meanwhile may be in the copy in part.
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words).
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len())?;
        self.copy.load(offset as usize, buf)
    }

    /// Copies bytes in: stores like any other, of which a commit meanwhile may hold the first ones only.
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words).
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len())?;
        self.copy.store(offset as usize, buf)
    }

    /// Reads up to `len` bytes from where a descriptor stands and stores them from `offset` on: see
    /// [`SharedMap::read_from`](crate::SharedMap::read_from).
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words), and [`Error::Io`] with what `read(2)` says.
    pub fn read_from(&self, source: impl AsFd, offset: u64, len: usize) -> Result<usize> {
        self.check(offset, len)?;
        self.copy.read_from(source.as_fd(), offset as usize, len)
    }

    /// Lets system calls, of any of the processes, load from a range of bytes and store to it until the next commit, by
    /// whomever, of which it is part.
    ///
    /// # Errors
    /// As for [`words`](SharedRegion::words); [`Error::Poisoned`].
    pub fn open_to_kernel(&self, range: Range<u64>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        self.check(range.start, usize::try_from(len).unwrap_or(usize::MAX))?;
        self.copy.open_range(range)
    }

    /// Makes all stores of all processes, up to one instant after this call began, durable together, among them this thread's
    /// before the call, and with them the pages allocated and freed. Returns the number of the commit; processes that commit at
    /// once may share one.
    ///
    /// # Errors
    /// [`Error::Io`] with the reason of the process that serves: nothing is committed then, unless the flush failed:
    /// every call of every process is refused after that, until all have left, for nobody knows which commit the
    /// store is at. [`Error::Poisoned`] when nothing more is promised, as then, and when somebody who does not share the
    /// region changed it while no process served it; [`Error::Io`] once a page of the memory was lost; [`Error::Forked`].
    pub fn pmsync(&self) -> Result<u64> {
        let done = self.copy.commit();
        self.states.look_again();
        done
    }

    /// Takes back what all processes stored, allocated and freed since the last commit.
    ///
    /// # Errors
    /// As for [`pmsync`](SharedRegion::pmsync).
    pub fn rollback(&self) -> Result<()> {
        let done = self.copy.roll_back().map(drop);
        self.states.look_again();
        done
    }

    /// Leaves. What this process did and nobody committed stays in the memory; it goes when the last process has left.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if this process had lost touch with the others; [`Error::Forked`].
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
    /// Maps a region of a store that this process does not have open, together with other processes that do the same. The
    /// region is there already; [`SharedRegion::open_or_create`] makes it. Of the options only
    /// [`reserve`](RegionMapOptions::reserve) counts, as the process that came first gave it: 4 GiB without it. Each process
    /// has page tables for all of it, 2 MiB for 1 GiB.
    ///
    /// They meet in the directory of sidecars beside the store, so all of them have to see that and be allowed to write to it.
    ///
    /// # Errors
    /// ENOENT if there is no such store or region; [`Error::InUse`] if the store is open otherwise in any process, or another
    /// region of it is shared, or this process shares this one already; [`Error::Io`] with what is missing where the kernel or
    /// the process's rights do not allow it (userfaultfd, Linux 5.19); those of [`RegionStore::open`] and
    /// [`RegionStore::open_region`].
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
        match std::fs::create_dir(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create", &dir, error));
            }
            _ => {}
        }
        let reserve = self.reserved_to_share();
        let opener = Committed { store: store.clone(), identity, name: name.to_owned(), create, reserve };
        let place = place_of(identity);
        let copy = WorkingCopy::open(&store, &dir, &place, with(opener), 0).map_err(|error| {
            // Only if nothing is in it; if it stays, the error is the one that helps.
            let _ = std::fs::remove_dir(&dir);
            explained(error)
        })?;
        let states = States::new(Layout::of_len(copy.len()));
        Ok(SharedRegion { copy, states, store, name: name.to_owned() })
    }
}

/// Says what else may have a store in use.
fn explained(error: Error) -> Error {
    match error {
        Error::InUse { path, holder } if holder == "another process, or this one" => {
            let holder = format!("{holder}, which has it open");
            Error::InUse { path, holder }
        }
        Error::InUse { path, holder } if holder == "another handle of this process" => {
            let holder = format!("{holder}, which shares a region of it, and one process shares one");
            Error::InUse { path, holder }
        }
        other => other,
    }
}
