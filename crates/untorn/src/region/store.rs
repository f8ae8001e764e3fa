//! [`RegionStore`] and [`Region`]: named sets of pages, each committed as a whole.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::options::ExclusionCheck;
use crate::region::engine::{self, AnyHeld, AnyRegion, AnyStore, MAX_NAME, MAX_PAGES, PAGE, Page, Store, Stored};
use crate::region::engine::{Audit, RegionInfo, StoreInfo};
use crate::region::exclusion::RegionNotShared;
use crate::region::options::StoreOptions;
use crate::storage::{self, Dax, Latched, Medium, MediumKind, PageCache};

/// A store of named regions in one file, each a set of 4 KiB pages that [`pmsync`](Region::pmsync) commits as a whole.
///
/// The program allocates and frees pages in any order. One process has a store open at a time, or any number of
/// processes that [only read it](StoreOptions::read_only). Handles are cheap to clone, and many threads may use them. A
/// program writes a region by copies, or [maps](Region::map) it and stores to it.
///
/// Dropping the store without [`close`](RegionStore::close) has the effect of a crash. Every region is at its last
/// `pmsync`. After the next open a background scan finds the free space, while the store serves everything.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// use untorn::region::RegionStore;
/// let store = RegionStore::create(&path)?;
/// let ledger = store.create_region("ledger")?;
/// let page = ledger.alloc_page()?;
/// ledger.write_at(b"balance: 100", page * 4096)?;
/// ledger.pmsync()?; // the page, its bytes and all else that changed: after a crash all of it is there, or none
/// ledger.write_at(b"balance: 999", page * 4096)?;
/// ledger.rollback()?;
/// let mut bytes = [0; 12];
/// ledger.read_at(&mut bytes, page * 4096)?;
/// assert_eq!(&bytes, b"balance: 100");
/// drop(ledger);
/// store.close()?;
/// # Ok(()) }
/// ```
///
/// Source: the Region System paper, §V; the interface is that of its Table II.
#[derive(Clone)]
pub struct RegionStore {
    store: Arc<Box<dyn AnyStore>>,
}

/// An open set of pages with a name. Handles to one region in a process, cloned or opened again, share one state,
/// including uncommitted changes. The last handle's drop discards uncommitted changes.
///
/// Page numbers run from 0 to the region's maximum. Offsets are in bytes: page *n* begins at 4096·*n*.
///
/// Source: the Region System paper, §V-A.
#[derive(Clone)]
pub struct Region {
    pub(crate) region: Arc<dyn AnyRegion>,
}

/// A region as it was at one commit, for as long as this is held. Commits go on meanwhile.
///
/// [`Region::snapshot`] and [`RegionMap::snapshot`](crate::region::RegionMap::snapshot) take one; any number may be
/// held, of different commits. Commits never store over pages of an earlier one, so a snapshot costs no copy. The store
/// keeps the pages that it needs until it is dropped. If the store has no space, all its snapshots end, and the commit
/// goes on. A snapshot keeps the region open.
pub struct RegionSnapshot {
    held: Box<dyn AnyHeld>,
}

impl fmt::Debug for RegionSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSnapshot").field("name", &self.name()).field("commit", &self.commit()).finish()
    }
}

impl RegionSnapshot {
    pub(crate) fn new(held: Box<dyn AnyHeld>) -> Self {
        RegionSnapshot { held }
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        self.held.name()
    }

    /// The number of the commit that it shows.
    pub fn commit(&self) -> u64 {
        self.held.commit()
    }

    /// The pages that were allocated at that commit, in ascending order.
    pub fn pages(&self) -> Vec<u64> {
        self.held.pages()
    }

    /// Fills `buf` from a byte offset with the bytes of the commit. The range may span consecutive pages.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] beyond the region's maximum.
    /// - [`Error::Invalid`] if a page was not allocated at that commit.
    /// - [`Error::SnapshotEnded`] if the store had no space.
    /// - [`Error::Io`] from reading; [`Error::Forked`] in a forked child.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.held.read(offset, buf)
    }

    /// Reads one page.
    ///
    /// # Errors
    /// As for [`read_at`](RegionSnapshot::read_at).
    pub fn read_page(&self, page: u64, buf: &mut [u8; 4096]) -> Result<()> {
        self.held.read(offset_of(page), buf)
    }
}

impl StoreOptions {
    /// Creates a store without regions and opens it.
    ///
    /// # Errors
    /// [`Error::Io`] with EEXIST if the name is taken; [`Error::InUse`] if another process is creating it; those of
    /// [`open`](StoreOptions::open).
    pub fn create(&self, path: impl AsRef<Path>) -> Result<RegionStore> {
        let path = storage::absolute(path.as_ref())?;
        self.validate(&path)?;
        engine::create(&Latched::new(PageCache::new()), &path, &self.settings)?;
        self.open(path)
    }

    /// Opens a store.
    ///
    /// # Errors
    /// - [`Error::Io`] with ENOENT if the file does not exist.
    /// - [`Error::InUse`] while another process, or another handle of this process that is not a clone, has it open, or
    ///   processes [share](crate::region::SharedRegion) a region of it.
    /// - [`Error::Corrupt`] for a file that is not a store, or a truncated store.
    /// - [`Error::Unsupported`] for a store of a later version.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<RegionStore> {
        let path = &storage::resolve(path.as_ref())?;
        let unshared = RegionNotShared { path };
        // Before it is locked too, as those who share a region are who has the lock.
        unshared.check_exclusion()?;
        self.open_checked(path, &unshared)
    }

    /// Opens a store if the admission lets it.
    ///
    /// # Errors
    /// As for [`open`](StoreOptions::open), but for those who share; those of the admission.
    pub(crate) fn open_checked(&self, path: &Path, exclusion: &dyn ExclusionCheck) -> Result<RegionStore> {
        let detected = storage::detect(path)?;
        match detected.kind {
            MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
                self.open_with(Dax::new(detected.kind), path, Some(exclusion))
            }
            MediumKind::Block | MediumKind::Volatile => self.open_with(PageCache::new(), path, Some(exclusion)),
        }
    }

    fn open_with<M: Medium>(
        &self,
        medium: M,
        path: &Path,
        exclusion: Option<&dyn ExclusionCheck>,
    ) -> Result<RegionStore> {
        let medium = Arc::new(Latched::new(medium));
        Ok(RegionStore { store: Arc::new(Box::new(Store::open(medium, path, self.settings, exclusion)?)) })
    }

    /// Like [`create`](StoreOptions::create), on a custom medium; for simulators.
    ///
    /// # Errors
    /// As for [`create`](StoreOptions::create).
    pub fn create_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<RegionStore> {
        let path = path.as_ref();
        self.validate(path)?;
        let medium = Arc::new(Latched::new(medium));
        engine::create(&*medium, path, &self.settings)?;
        Ok(RegionStore { store: Arc::new(Box::new(Store::open(medium, path, self.settings, None)?)) })
    }

    /// Like [`open`](StoreOptions::open), on a custom medium; for simulators.
    ///
    /// # Errors
    /// As for [`open`](StoreOptions::open).
    pub fn open_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<RegionStore> {
        self.open_with(medium, path.as_ref(), None)
    }
}

impl RegionStore {
    /// The highest page maximum that a region can be created with.
    pub const MAX_PAGES: u64 = MAX_PAGES;

    /// The page maximum that [`create_region`](RegionStore::create_region) uses: 64 TiB of pages.
    pub const DEFAULT_PAGES: u64 = 1 << 34;

    /// Creates a store with default [`StoreOptions`].
    ///
    /// # Errors
    /// See [`StoreOptions::create`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        StoreOptions::new().create(path)
    }

    /// Opens a store with default [`StoreOptions`].
    ///
    /// # Errors
    /// See [`StoreOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        StoreOptions::new().open(path)
    }

    /// The path of the store's file.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Creates a region without pages and opens it. The region is durable when the call returns.
    ///
    /// # Errors
    /// See [`create_region_of`](RegionStore::create_region_of).
    pub fn create_region(&self, name: &str) -> Result<Region> {
        self.create_region_of(name, Self::DEFAULT_PAGES)
    }

    /// Like [`create_region`](RegionStore::create_region), with page numbers below `max_pages`, which is 1 to
    /// [`MAX_PAGES`](RegionStore::MAX_PAGES). A smaller maximum gives a page table with fewer levels. A page takes no
    /// space before it is allocated.
    ///
    /// # Errors
    /// [`Error::Io`] with EEXIST if a region has this name. [`Error::Invalid`] if:
    ///
    /// - the name is empty, longer than 255 bytes, or has control characters;
    /// - `max_pages` is out of range;
    /// - the store already has as many regions as it was created for.
    pub fn create_region_of(&self, name: &str, max_pages: u64) -> Result<Region> {
        self.check_name(name)?;
        if max_pages == 0 || max_pages > MAX_PAGES {
            return Err(self.invalid(format!("a region can have 1 to {MAX_PAGES} pages, not {max_pages}")));
        }
        Ok(Region { region: self.store.create_region(name, max_pages)? })
    }

    /// Opens a region. If this process already has it open, the result is another handle to the same state.
    ///
    /// After a crash this brings the region to its last commit, unless the scan has already done so.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOENT if the region does not exist; [`Error::Corrupt`] if its bytes contradict themselves.
    pub fn open_region(&self, name: &str) -> Result<Region> {
        Ok(Region { region: self.store.open_region(name)? })
    }

    /// Deletes a region and all its pages, durably.
    ///
    /// # Errors
    /// [`Error::InUse`] while a handle has it open; [`Error::Io`] with ENOENT if it does not exist.
    pub fn delete_region(&self, name: &str) -> Result<()> {
        self.store.delete_region(name)
    }

    /// All regions by name. A damaged region is listed together with what is wrong.
    ///
    /// # Errors
    /// Those of reading the store.
    pub fn list(&self) -> Result<Vec<RegionInfo>> {
        self.store.list()
    }

    /// The current state of the store.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn info(&self) -> Result<StoreInfo> {
        self.store.info()
    }

    /// Finishes the scan for free space after a crash, if it still runs.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a region that cannot be read. While such a region exists, the store allocates only space
    /// by which the file grows.
    pub fn scan(&self) -> Result<()> {
        self.store.scan()
    }

    /// Reads the whole store and checks that every page has exactly one owner, that none is lost, and that each page
    /// with a known digest has the committed bytes. Commits wait meanwhile.
    ///
    /// # Errors
    /// Errors of reading. Damage is in [`Audit::findings`].
    pub fn audit(&self) -> Result<Audit> {
        self.store.audit()
    }

    /// Closes the store and writes its free map for the next open, which then does not need to scan. No commit waits
    /// for it.
    ///
    /// # Errors
    /// [`Error::InUse`] while a region or another handle of the store is open: the store stays open there, and this
    /// handle is dropped. After any other error the store is closed, and the next open scans.
    pub fn close(self) -> Result<()> {
        let path = self.path().to_owned();
        let Some(store) = Arc::into_inner(self.store) else {
            return Err(Error::InUse {
                path,
                holder: "this process, through another handle or an open \
                                                     region"
                    .to_owned(),
            });
        };
        store.close()
    }

    fn check_name(&self, name: &str) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            let what = format!(
                "the region name {name:?} is invalid; a name has 1 to {MAX_NAME} bytes and no control \
                                characters"
            );
            return Err(self.invalid(what));
        }
        Ok(())
    }

    fn invalid(&self, what: String) -> Error {
        Error::Invalid { path: self.path().to_owned(), what }
    }
}

impl fmt::Debug for RegionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionStore").field("path", &self.path()).finish()
    }
}

impl Region {
    /// Bytes of a page.
    pub const PAGE: u64 = PAGE;

    /// Its name.
    pub fn name(&self) -> &str {
        self.region.name()
    }

    /// Allocates the free page with the lowest number. It reads as zeros, and the next [`pmsync`](Region::pmsync) makes
    /// it part of the region.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has no free page.
    pub fn alloc_page(&self) -> Result<u64> {
        self.region.alloc(None, 1)
    }

    /// Allocates `count` consecutive pages at the lowest free place and returns the first page number. Until the
    /// commit, each takes some memory, but not a page of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no `count` consecutive pages are free.
    pub fn alloc_pages(&self, count: u64) -> Result<u64> {
        self.region.alloc(None, count)
    }

    /// Allocates exactly the `count` pages from `page` on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them is allocated, was freed since the last [`pmsync`](Region::pmsync), or is
    /// beyond the region's maximum.
    pub fn alloc_at(&self, page: u64, count: u64) -> Result<()> {
        self.region.alloc(Some(page), count).map(drop)
    }

    /// Frees a page. Readers do not see it any more, and the next [`pmsync`](Region::pmsync) removes it from the
    /// region. Neither its number nor its space is reused before that.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the page is not allocated.
    pub fn free_page(&self, page: u64) -> Result<()> {
        self.region.free(page)
    }

    /// Reads one page.
    ///
    /// # Errors
    /// As for [`read_at`](Region::read_at).
    pub fn read_page(&self, page: u64, buf: &mut [u8; 4096]) -> Result<()> {
        self.region.read(offset_of(page), buf)
    }

    /// Fills `buf` from a byte offset, including uncommitted changes. The range may span consecutive pages.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the region's maximum; [`Error::Invalid`] if a page is not allocated; [`Error::Io`]
    /// if it cannot be read.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.region.read(offset, buf)
    }

    /// Replaces one page. The new page stays in memory until the next [`pmsync`](Region::pmsync) writes it to the
    /// medium.
    ///
    /// # Errors
    /// As for [`write_at`](Region::write_at).
    pub fn write_page(&self, page: u64, bytes: &[u8; 4096]) -> Result<()> {
        self.region.write(offset_of(page), bytes)
    }

    /// Writes `buf` at a byte offset, as [`write_page`](Region::write_page) does. The range may span consecutive pages.
    ///
    /// # Errors
    /// As for [`read_at`](Region::read_at), and [`Error::Poisoned`] after a failed flush. After an error nothing was
    /// written.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.region.write(offset, buf)
    }

    /// Commits all changes of this region since the last `pmsync`: pages written, allocated, freed. After a crash at
    /// any instant the region holds this commit or the one before, and this one once the call has returned. Returns the
    /// number of the commit; if nothing changed, that of the last one.
    ///
    /// # Errors
    /// [`Error::Io`] when the disk is full or a write fails: nothing was committed, no change is lost, and a later call
    /// may succeed. A failed flush poisons the store; only opening it again tells whether the whole commit is durable.
    pub fn pmsync(&self) -> Result<u64> {
        self.region.pmsync(&Stored::default())
    }

    /// Takes a snapshot of the last commit: reads of it give the same bytes for as long as it is held, while the
    /// program changes and commits the region. Uncommitted changes are not in it. It copies nothing.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = untorn::region::RegionStore::create(dir.path().join("store"))?;
    /// let region = store.create_region("ledger")?;
    /// region.alloc_page()?;
    /// region.write_at(b"100", 0)?;
    /// region.pmsync()?;
    /// let snapshot = region.snapshot()?;
    /// region.write_at(b"200", 0)?;
    /// region.pmsync()?;
    /// let mut bytes = [0; 3];
    /// snapshot.read_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"100");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InUse`] while the region is mapped ([`RegionMap::snapshot`](crate::region::RegionMap::snapshot) takes
    /// one then); errors of reading the region, if that is necessary.
    pub fn snapshot(&self) -> Result<RegionSnapshot> {
        Ok(RegionSnapshot::new(self.region.hold()?))
    }

    /// Discards all changes since the last [`pmsync`](Region::pmsync).
    ///
    /// # Errors
    /// Errors of reading the region, if that is necessary.
    pub fn rollback(&self) -> Result<()> {
        self.region.rollback()
    }

    /// The region's name, size and last commit.
    ///
    /// # Errors
    /// Errors of reading the region, if that is necessary.
    pub fn info(&self) -> Result<RegionInfo> {
        self.region.info()
    }

    /// All allocated pages in ascending order, including uncommitted changes.
    ///
    /// # Errors
    /// Errors of reading the region, if that is necessary.
    pub fn pages(&self) -> Result<Vec<u64>> {
        self.region.pages()
    }
}

/// Where a page begins; of one beyond any region, an offset that is too.
fn offset_of(page: u64) -> u64 {
    page.saturating_mul(PAGE)
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("name", &self.name()).finish_non_exhaustive()
    }
}

const _: () = assert!(size_of::<Page>() == Region::PAGE as usize);
