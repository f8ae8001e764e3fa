//! [`RegionStore`] and [`Region`]: named, unordered pages that are committed together.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::options::{Admission, Order};
use crate::region::engine::{
    self, AnyRegion, AnyStore, MAX_NAME, MAX_NODES, MAX_PAGES, PAGE, Page, Settings, Store, Stored,
};
use crate::region::engine::{Audit, RegionInfo, StoreInfo};
use crate::region::exclusion::Unshared;
use crate::storage::{self, Dax, Latched, Medium, MediumKind, PageCache};

/// A store of named regions in one file, each a set of 4 KiB pages that [`pmsync`](Region::pmsync) commits as a whole.
///
/// Pages are allocated and freed in any order, unlike the bytes of a file. One process has a store open at a time, or any number
/// that [only read it](StoreOptions::read_only); its handles are cheap to clone and may be used from many threads. A region is
/// written by copies, or [mapped](Region::map) and stored to.
///
/// Dropping the store without [`close`](RegionStore::close) leaves it as a crash does: every region at its last `pmsync`, and
/// the free space to be found by a scan in the background after the next open, during which the store serves everything.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// use untorn::RegionStore;
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

/// A named set of pages, open. Handles of one region, cloned or opened again by the same process, share one state, changes
/// that are not committed included; those are lost with the last handle.
///
/// Pages have numbers from 0 up to what the region was created for. Offsets are in bytes: page *n* begins at 4096·*n*.
///
/// Source: the Region System paper, §V-A.
#[derive(Clone)]
pub struct Region {
    pub(crate) region: Arc<dyn AnyRegion>,
}

/// How a store is created and opened; builds up like [`Options`](crate::Options).
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let store = untorn::StoreOptions::new().max_regions(16).create(dir.path().join("small"))?;
/// assert_eq!(store.info()?.max_regions, 16);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    settings: Settings,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let (order, nodes, max_len, grow_by) = (None, 1024, 1 << 40, 256);
        StoreOptions { settings: Settings { order, nodes, max_len, grow_by, background: true, read_only: false } }
    }
}

impl StoreOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fences of a commit: one, with a digest of every page, or two. Without it, one on a disk, where each is a flush, and two
    /// on persistent memory, where digests cost more than the fence.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = Some(order);
        self
    }

    /// The most regions that a new store can have, 1 to 65536; each takes 4 KiB of address space, and 4 KiB of the disk once
    /// it is there (on persistent memory from the start). 1024 without it.
    #[must_use]
    pub fn max_regions(mut self, regions: u32) -> Self {
        self.settings.nodes = regions;
        self
    }

    /// The most bytes the store may have while open; a longer one is refused. 1 TiB without it.
    #[must_use]
    pub fn max_len(mut self, bytes: u64) -> Self {
        self.settings.max_len = bytes;
        self
    }

    /// Bytes by which the file grows at least when pages run out, if the disk has them; each time costs a flush. Rounded up to
    /// pages. 1 MiB without it, and never less than an eighth of the file.
    #[must_use]
    pub fn grow_by(mut self, bytes: u64) -> Self {
        self.settings.grow_by = bytes.div_ceil(PAGE);
        self
    }

    /// Whether a thread looks for free space after a crash; it is found at [`RegionStore::scan`] and
    /// [`close`](RegionStore::close) otherwise. True without it.
    #[must_use]
    pub fn background_scan(mut self, background: bool) -> Self {
        self.settings.background = background;
        self
    }

    /// Whether the store is only looked at: nothing in it is changed, not even by recovery, and others may read it at the same
    /// time. What changes it fails with [`Error::ReadOnly`]. False without it.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.settings.read_only = read_only;
        self
    }

    fn validate(&self, path: &Path) -> Result<()> {
        if (1..=MAX_NODES).contains(&self.settings.nodes) {
            return Ok(());
        }
        let what = format!("a store may have 1 to {MAX_NODES} regions, not {}", self.settings.nodes);
        Err(Error::Invalid { path: path.to_owned(), what })
    }

    /// Creates a store without regions and opens it.
    ///
    /// # Errors
    /// EEXIST if the name is taken, [`Error::InUse`] if another process is making it; those of
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
    /// [`Error::Io`] with ENOENT if there is none; [`Error::InUse`] while another process, or another handle of this one that
    /// is no clone, has it, or processes [share](crate::SharedRegion) a region of it; [`Error::Corrupt`] for a file that is no store, or one that was cut short;
    /// [`Error::Unsupported`] for one of a later version.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<RegionStore> {
        let path = &storage::resolve(path.as_ref())?;
        let unshared = Unshared { path };
        // Before it is locked too, as those who share a region are who has the lock.
        unshared.admit()?;
        self.open_admitted(path, &unshared)
    }

    /// Opens a store if the admission lets it.
    ///
    /// # Errors
    /// As for [`open`](StoreOptions::open), but for those who share; those of the admission.
    pub(crate) fn open_admitted(&self, path: &Path, admission: &dyn Admission) -> Result<RegionStore> {
        let detected = storage::detect(path)?;
        match detected.kind {
            MediumKind::PersistentMemory | MediumKind::AssumedPmem => {
                self.open_with(Dax::new(detected.kind), path, Some(admission))
            }
            MediumKind::Block | MediumKind::Volatile => self.open_with(PageCache::new(), path, Some(admission)),
        }
    }

    fn open_with<M: Medium>(&self, medium: M, path: &Path, admission: Option<&dyn Admission>) -> Result<RegionStore> {
        let medium = Arc::new(Latched::new(medium));
        Ok(RegionStore { store: Arc::new(Box::new(Store::open(medium, path, self.settings, admission)?)) })
    }

    /// [`create`](StoreOptions::create) on a medium of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn create_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<RegionStore> {
        let path = path.as_ref();
        self.validate(path)?;
        let medium = Arc::new(Latched::new(medium));
        engine::create(&*medium, path, &self.settings)?;
        Ok(RegionStore { store: Arc::new(Box::new(Store::open(medium, path, self.settings, None)?)) })
    }

    /// [`open`](StoreOptions::open) on a medium of one's own: for simulators.
    ///
    /// # Errors
    /// As there.
    pub fn open_on<M: Medium>(&self, medium: M, path: impl AsRef<Path>) -> Result<RegionStore> {
        self.open_with(medium, path.as_ref(), None)
    }
}

impl RegionStore {
    /// The highest number of pages that a region can be created for.
    pub const MAX_PAGES: u64 = MAX_PAGES;

    /// Pages that [`create_region`](RegionStore::create_region) creates a region for: 64 TiB.
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

    /// The store's file.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Creates a region without pages, which is there after a crash once the call returns, and opens it.
    ///
    /// # Errors
    /// See [`create_region_of`](RegionStore::create_region_of).
    pub fn create_region(&self, name: &str) -> Result<Region> {
        self.create_region_of(name, Self::DEFAULT_PAGES)
    }

    /// The same for a region whose page numbers are below `max_pages`, 1 to [`MAX_PAGES`](RegionStore::MAX_PAGES). The fewer
    /// there are, the lower is its page table; none of them takes space before it is allocated.
    ///
    /// # Errors
    /// EEXIST if there is a region of this name; [`Error::Invalid`] for a name that is empty, longer than 255 bytes, or has
    /// control characters, for another number of pages, and for a region more than the store was made for.
    pub fn create_region_of(&self, name: &str, max_pages: u64) -> Result<Region> {
        self.check_name(name)?;
        if max_pages == 0 || max_pages > MAX_PAGES {
            return Err(self.invalid(format!("a region may have 1 to {MAX_PAGES} pages, not {max_pages}")));
        }
        Ok(Region { region: self.store.create_region(name, max_pages)? })
    }

    /// Opens a region. If this process has it open, this is another handle to the same state.
    ///
    /// After a crash the region is brought to its last commit here, if the scan has not done so before.
    ///
    /// # Errors
    /// ENOENT if there is none; [`Error::Corrupt`] if its bytes contradict themselves.
    pub fn open_region(&self, name: &str) -> Result<Region> {
        Ok(Region { region: self.store.open_region(name)? })
    }

    /// Deletes a region and all its pages, durably.
    ///
    /// # Errors
    /// [`Error::InUse`] while a handle has it open; ENOENT if there is none.
    pub fn delete_region(&self, name: &str) -> Result<()> {
        self.store.delete_region(name)
    }

    /// All regions, by name. One that is damaged is listed with what is wrong.
    ///
    /// # Errors
    /// Those of reading the store.
    pub fn list(&self) -> Result<Vec<RegionInfo>> {
        self.store.list()
    }

    /// What is known of the store now.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn info(&self) -> Result<StoreInfo> {
        self.store.info()
    }

    /// Finishes looking for free space after a crash, if that is still under way.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a region that cannot be read: as long as it is there, only space that the file grows by is given
    /// out.
    pub fn scan(&self) -> Result<()> {
        self.store.scan()
    }

    /// Reads all of the store: whether every page has one owner, none is lost, and each has the bytes that were committed,
    /// where its digest is known. Commits wait meanwhile.
    ///
    /// # Errors
    /// Those of reading; what is wrong with the store is in [`Audit::findings`].
    pub fn audit(&self) -> Result<Audit> {
        self.store.audit()
    }

    /// Closes the store and leaves its free map for the next open, which then need not scan. No commit waits for this.
    ///
    /// # Errors
    /// [`Error::InUse`] while a region or another handle of the store is open: it goes on being open there, and this handle is
    /// dropped. Otherwise the store is closed, and after a failed write the next open scans.
    pub fn close(self) -> Result<()> {
        let path = self.path().to_owned();
        let Some(store) = Arc::into_inner(self.store) else {
            return Err(Error::InUse { path, holder: "this process, through another handle of it".to_owned() });
        };
        store.close()
    }

    fn check_name(&self, name: &str) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            let what = format!("a region's name has 1 to {MAX_NAME} bytes and no control characters, unlike {name:?}");
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

    /// Allocates a page: the lowest number that is free. It reads as zeros, and is part of the region from the next
    /// [`pmsync`](Region::pmsync) on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has all its pages.
    pub fn alloc_page(&self) -> Result<u64> {
        self.region.alloc(None, 1)
    }

    /// Allocates `count` pages in a row and returns the first: the lowest where they fit. Until the commit, each takes some
    /// memory, though no page of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they fit nowhere.
    pub fn alloc_pages(&self, count: u64) -> Result<u64> {
        self.region.alloc(None, count)
    }

    /// Allocates these `count` pages.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them is allocated, was freed since the last [`pmsync`](Region::pmsync), or is beyond what
    /// the region was created for.
    pub fn alloc_at(&self, page: u64, count: u64) -> Result<()> {
        self.region.alloc(Some(page), count).map(drop)
    }

    /// Frees a page: it is gone for readers now, and from the region at the next [`pmsync`](Region::pmsync). Neither its number
    /// nor its space is used again before.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not allocated.
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

    /// Fills `buf` from a byte offset, changes that are not committed included. It may span pages that follow each other.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond what the region was created for, [`Error::Invalid`] where a page is not allocated;
    /// [`Error::Io`] if it cannot be read.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.region.read(offset, buf)
    }

    /// Replaces one page. It goes to the medium at the next [`pmsync`](Region::pmsync), until which it takes memory.
    ///
    /// # Errors
    /// As for [`write_at`](Region::write_at).
    pub fn write_page(&self, page: u64, bytes: &[u8; 4096]) -> Result<()> {
        self.region.write(offset_of(page), bytes)
    }

    /// Writes `buf` at a byte offset, as [`write_page`](Region::write_page) does. It may span pages that follow each other.
    ///
    /// # Errors
    /// As for [`read_at`](Region::read_at), and [`Error::Poisoned`] after a failed flush. Nothing was written then.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.region.write(offset, buf)
    }

    /// Commits everything that changed in this region since the last `pmsync`: pages written, allocated, freed. After a crash
    /// at any instant the region is as this commit or as the one before left it, and as this one once the call has
    /// returned. Returns the number of the commit; if nothing changed, that of the last one.
    ///
    /// # Errors
    /// [`Error::Io`] when the disk is full or a write fails: nothing was committed, nothing that changed is lost, and a later
    /// call may succeed. A failed flush poisons the store: only opening it anew tells whether this commit is there, whole.
    pub fn pmsync(&self) -> Result<u64> {
        self.region.pmsync(&Stored::default())
    }

    /// Forgets everything that changed since the last [`pmsync`](Region::pmsync).
    ///
    /// # Errors
    /// Those of reading the region, if it has to be.
    pub fn rollback(&self) -> Result<()> {
        self.region.rollback()
    }

    /// What is known of the region.
    ///
    /// # Errors
    /// Those of reading it, if it has to be.
    pub fn info(&self) -> Result<RegionInfo> {
        self.region.info()
    }

    /// Every page that is allocated, ascending, changes that are not committed included.
    ///
    /// # Errors
    /// Those of reading the region, if it has to be.
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
