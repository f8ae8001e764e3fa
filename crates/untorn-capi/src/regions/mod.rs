//! The regions that this process has open through `untorn/region.h`, by descriptor and by address.
//!
//! A forked child has a copy of its parent's table, whose locks may be held forever by threads that the child does
//! not have. Each process therefore has its own, which begins empty.
//!
//! # Locks, in the order in which they are taken
//! 1. The stores: a call that opens, closes or deletes a region takes them.
//! 2. The table: a call takes it for a look, and never waits for a region while it holds it.
//! 3. A region's memory: every call on the region takes it shared, and the call that closes the region takes it
//!    exclusively.
//! 4. The turn of a region that only this process uses: calls on it run one after the other. Or the pins of a shared
//!    region, for as long as a look takes.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use untorn_core::Error;
use untorn_core::region::{RegionMap, RegionStore, SharedRegion};
use untorn_core::testing::PerProcess;

use crate::abi;
use crate::errors::{Failure, Result};
use crate::mapping::{HINTS, errno};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// The flag of `region_open`, as it comes.
const REGION_SHARED: c_int = abi::REGION_SHARED as c_int;

/// One open region, for all descriptors of it.
struct Opened {
    store: PathBuf,
    name: String,
    /// Taken out by the call that closes it.
    memory: RwLock<Option<Memory>>,
    /// Whether other processes may have it too.
    shared: bool,
    /// Calls under way that map pages or end a mapping. They begin and end with the table locked.
    moving: AtomicUsize,
}

/// How often this process has each page mapped.
type Pins = BTreeMap<u64, u32>;

/// The memory of a region.
enum Memory {
    Own(Mutex<RegionMap>),
    Shared(SharedRegion, Mutex<Pins>),
}

/// A map, when every call before this one is through.
fn turn(map: &Mutex<RegionMap>) -> Result<MutexGuard<'_, RegionMap>> {
    map.lock().map_err(|_| {
        errno(
            libc::EIO,
            "an earlier call on the region panicked inside untorn; close the region \
                                             and open it again",
        )
    })
}

fn look(pins: &Mutex<Pins>) -> MutexGuard<'_, Pins> {
    // A panic under the lock leaves valid counts: each count of a page changes in one step.
    pins.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn alloc(&self) -> Result<u64> {
        Ok(match self {
            Memory::Own(map) => turn(map)?.alloc_page()?,
            Memory::Shared(region, _) => region.alloc_page()?,
        })
    }

    fn free(&self, page: u64) -> Result<()> {
        match self {
            Memory::Own(map) => turn(map)?.free_page(page)?,
            Memory::Shared(region, pins) => {
                let pins = look(pins);
                if pins.contains_key(&page) {
                    return Err(errno(libc::EBUSY, format!("this process has page {page} mapped; unmap it first")));
                }
                region.free_page(page)?;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        match self {
            Memory::Own(map) => turn(map)?.pmsync()?,
            // The others go on meanwhile.
            Memory::Shared(region, _) => region.pmsync()?,
        };
        Ok(())
    }

    /// The same while other threads store.
    fn sync_beside_stores(&self) -> Result<()> {
        match self {
            Memory::Own(map) => turn(map)?.pmsync_beside_stores()?,
            Memory::Shared(region, _) => region.pmsync()?,
        };
        Ok(())
    }

    /// The number of pages from the first one on, which are allocated or freed, and committed, for there to be so many.
    fn fit(&self, pages: Option<u64>) -> Result<u64> {
        let Memory::Own(map) = self else {
            return Err(errno(libc::EBUSY, "this process has the region open with REGION_SHARED"));
        };
        let mut map = turn(map)?;
        let there = map.pages()?;
        let Some(pages) = pages else { return Ok(there.last().map_or(0, |last| last + 1)) };
        for page in there.iter().filter(|page| **page >= pages) {
            map.free_page(*page)?;
        }
        let mut next = 0;
        for page in there.into_iter().filter(|page| *page < pages).chain([pages]) {
            if page > next {
                map.alloc_at(next, page - next)?;
            }
            next = page + 1;
        }
        map.pmsync()?;
        Ok(pages)
    }

    fn pin(&self, first: u64, count: u64) -> Result<*mut u8> {
        match self {
            Memory::Own(map) => Ok(turn(map)?.pin(first, count)?),
            Memory::Shared(region, pins) => {
                let (offset, len) = (first.saturating_mul(PAGE as u64), count.saturating_mul(PAGE as u64));
                let mut pins = look(pins);
                // Fails unless all pages exist.
                region.words(offset, usize::try_from(len / 8).unwrap_or(usize::MAX))?;
                for page in first..first + count {
                    *pins.entry(page).or_default() += 1;
                }
                // It lies within the memory of the region, whose bytes fit an address.
                Ok(region.as_ptr().wrapping_add(offset as usize))
            }
        }
    }

    fn unpin(&self, first: u64, count: u64) -> Result<()> {
        match self {
            // A map whose call panicked can only be closed, and only once nothing is mapped.
            Memory::Own(map) if map.is_poisoned() => {}
            Memory::Own(map) => turn(map)?.unpin(first, count)?,
            Memory::Shared(_, pins) => {
                let mut pins = look(pins);
                for page in first..first + count {
                    if let Some(times) = pins.get_mut(&page).filter(|times| **times > 1) {
                        *times -= 1;
                    } else {
                        pins.remove(&page);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Opens a region's memory for this process and others.
fn share(store: &Path, name: &str, create: bool, exclusive: bool) -> Result<Memory> {
    if create && exclusive {
        return Err(Failure::invalid(
            "O_CREAT | O_EXCL cannot be combined with REGION_SHARED; create the region first",
        ));
    }
    let opened = if create { SharedRegion::open_or_create(store, name) } else { SharedRegion::open(store, name) };
    Ok(Memory::Shared(opened?, Mutex::default()))
}

/// A range of pages that a program has at an address.
struct Mapped {
    region: Arc<Opened>,
    first: u64,
    pages: u64,
}

/// Counts a call in that maps pages or ends a mapping, until it is dropped. The table is locked when it is made.
struct Moving<'a>(&'a Opened);

impl<'a> Moving<'a> {
    fn begin(region: &'a Opened) -> Self {
        region.moving.fetch_add(1, Ordering::SeqCst);
        Moving(region)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The stores that are open, by path.
type Stores = BTreeMap<PathBuf, RegionStore>;

#[derive(Default)]
struct Table {
    descriptors: BTreeMap<c_int, Arc<Opened>>,
    /// Several that begin at one address are a stack.
    mapped: BTreeMap<usize, Vec<Mapped>>,
}

/// The stores and regions that one process has open.
#[derive(Default)]
pub(crate) struct Regions {
    stores: Mutex<Stores>,
    table: Mutex<Table>,
}

/// The stores and regions that this process has open.
pub(crate) fn regions() -> &'static Regions {
    static REGIONS: PerProcess<Regions> = PerProcess::new();
    REGIONS.get()
}

impl Opened {
    fn new(store: &Path, name: &str, memory: Memory, shared: bool) -> Arc<Self> {
        let (store, name, memory) = (store.to_owned(), name.to_owned(), RwLock::new(Some(memory)));
        Arc::new(Opened { store, name, memory, shared, moving: AtomicUsize::new(0) })
    }

    /// Calls `body` with the memory, which is not closed meanwhile.
    fn with<T>(&self, body: impl FnOnce(&Memory) -> Result<T>) -> Result<T> {
        // A panic in a call has its turn poisoned, where it could leave something in the middle.
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        body(memory.as_ref().ok_or_else(closed)?)
    }
}

fn closed() -> Failure {
    errno(libc::EBADF, "the region is being closed")
}

fn is(error: &Error, number: c_int) -> bool {
    error.errno() == number
}

/// The store, opened or made if it is not open.
fn store_at<'a>(stores: &'a mut Stores, path: &Path, create: bool) -> Result<&'a RegionStore> {
    if !stores.contains_key(path) {
        let store = match RegionStore::open(path) {
            Err(error) if create && is(&error, libc::ENOENT) => match RegionStore::create(path) {
                // Another process was quicker.
                Err(error) if is(&error, libc::EEXIST) => RegionStore::open(path),
                made => made,
            },
            opened => opened,
        };
        stores.insert(path.to_owned(), store?);
    }
    stores.get(path).ok_or_else(closed)
}

impl Table {
    fn region(&self, rd: c_int) -> Result<&Arc<Opened>> {
        self.descriptors.get(&rd).ok_or_else(|| errno(libc::EBADF, format!("{rd} is not an open region descriptor")))
    }

    /// Whether pages of a region are mapped, or about to be.
    fn has_mapped(&self, region: &Arc<Opened>) -> bool {
        let mapped = |mapped: &Mapped| Arc::ptr_eq(&mapped.region, region);
        region.moving.load(Ordering::SeqCst) > 0 || self.mapped.values().flatten().any(mapped)
    }
}

impl Regions {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic in between leaves what is entered, and no more.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stores(&self) -> MutexGuard<'_, Stores> {
        // As above.
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn region(&self, rd: c_int) -> Result<Arc<Opened>> {
        self.table().region(rd).cloned()
    }

    /// Closes a store if nothing in it is open.
    fn let_go(&self, stores: &mut Stores, path: &Path) -> Result<()> {
        if self.table().descriptors.values().any(|region| region.store == path) {
            return Ok(());
        }
        stores.remove(path).map_or(Ok(()), |store| Ok(store.close()?))
    }

    pub(crate) fn open(&self, store: &Path, name: &str, flags: c_int) -> Result<c_int> {
        let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | REGION_SHARED;
        if flags & !known != 0 {
            let unknown = flags & !known;
            return Err(Failure::invalid(format!(
                "the flags {unknown:#x} are not valid for a region; pass O_CREAT, O_EXCL, REGION_SHARED or 0"
            )));
        }
        let (create, exclusive) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
        let shared = flags & REGION_SHARED != 0;
        let mut stores = self.stores();
        let same = |region: &&Arc<Opened>| region.store == store && region.name == name;
        let found = self.table().descriptors.values().find(same).cloned();
        let region = match found {
            Some(_) if create && exclusive => {
                return Err(errno(libc::EEXIST, format!("the region {name:?} exists and is open")));
            }
            Some(region) if region.shared != shared => {
                let how = if shared { "without" } else { "with" };
                return Err(errno(
                    libc::EBUSY,
                    format!(
                        "this process already has region {name:?} open {how} \
                                                       REGION_SHARED; open it the same way"
                    ),
                ));
            }
            Some(region) => region,
            None if shared => Opened::new(store, name, share(store, name, create, exclusive)?, shared),
            None => {
                let of_store = store_at(&mut stores, store, create)?;
                let opened = match of_store.open_region(name) {
                    Ok(_) if create && exclusive => Err(errno(libc::EEXIST, format!("the region {name:?} exists"))),
                    Err(error) if create && is(&error, libc::ENOENT) => Ok(of_store.create_region(name)?),
                    opened => opened.map_err(Failure::from),
                };
                match opened.and_then(|region| Ok(region.map()?)) {
                    Ok(map) => Opened::new(store, name, Memory::Own(Mutex::new(map)), shared),
                    Err(failure) => {
                        // The error of opening is the one that helps.
                        let _ = self.let_go(&mut stores, store);
                        return Err(failure);
                    }
                }
            }
        };
        let mut table = self.table();
        let rd = (0..).find(|rd| !table.descriptors.contains_key(rd)).ok_or_else(|| {
            errno(
                libc::EMFILE,
                "no region \
                                                                                                    descriptor is \
                                                                                                    left; close \
                                                                                                    another region \
                                                                                                    first",
            )
        })?;
        table.descriptors.insert(rd, region);
        Ok(rd)
    }

    pub(crate) fn close(&self, rd: c_int) -> Result<()> {
        let mut stores = self.stores();
        let mut table = self.table();
        let region = Arc::clone(table.region(rd)?);
        let is_last = table.descriptors.values().filter(|other| Arc::ptr_eq(other, &region)).count() == 1;
        if is_last && table.has_mapped(&region) {
            let message = format!("pages of region {:?} are mapped; unmap them first", region.name);
            return Err(errno(libc::EBUSY, message));
        }
        table.descriptors.remove(&rd);
        drop(table);
        if !is_last {
            return Ok(());
        }
        // The write lock waits for the calls that have begun. A region whose call panicked can still be closed: its
        // content is that of its last commit.
        drop(region.memory.write().unwrap_or_else(PoisonError::into_inner).take());
        self.let_go(&mut stores, &region.store)
    }

    pub(crate) fn delete(&self, store: &Path, name: &str) -> Result<()> {
        let mut stores = self.stores();
        let deleted = store_at(&mut stores, store, false)?.delete_region(name).map_err(Failure::from);
        let let_go = self.let_go(&mut stores, store);
        deleted.and(let_go)
    }

    pub(crate) fn alloc(&self, rd: c_int) -> Result<u64> {
        self.region(rd)?.with(Memory::alloc)
    }

    pub(crate) fn free(&self, rd: c_int, page: i64) -> Result<()> {
        let page = page_of(page)?;
        self.region(rd)?.with(|map| map.free(page))
    }

    pub(crate) fn sync(&self, rd: c_int) -> Result<()> {
        self.region(rd)?.with(Memory::sync)
    }

    pub(crate) fn sync_beside_stores(&self, rd: c_int) -> Result<()> {
        self.region(rd)?.with(Memory::sync_beside_stores)
    }

    /// Maps all pages of a region, which has `pages` of them from then on, or as many as it has. Returns the address
    /// and the length in bytes.
    pub(crate) fn map_from_the_first(&self, rd: c_int, pages: Option<u64>) -> Result<(usize, usize)> {
        let pages = self.region(rd)?.with(|memory| memory.fit(pages))?;
        if pages == 0 {
            return Err(Failure::invalid("the region has no page; pass PMEM_FILE_CREATE and a length"));
        }
        let len = usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(PAGE);
        let address = self.map(std::ptr::null_mut(), rd, 0, len, libc::MAP_SHARED)?;
        Ok((address.expose_provenance(), len))
    }

    /// Ends the mapping at an address, and closes the descriptor.
    pub(crate) fn end(&self, rd: c_int, address: usize) -> Result<()> {
        let unmapped = self.unmap(std::ptr::without_provenance_mut(address));
        unmapped.and(self.close(rd))
    }

    pub(crate) fn map(
        &self,
        va: *mut c_void,
        rd: c_int,
        page: i64,
        nbytes: usize,
        flags: c_int,
    ) -> Result<*mut c_void> {
        let kind = flags & libc::MAP_TYPE;
        if kind != libc::MAP_SHARED && kind != libc::MAP_SHARED_VALIDATE {
            return Err(Failure::invalid("a region cannot be mapped privately; pass MAP_SHARED"));
        }
        let fixed = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
        let unserved = flags & !(libc::MAP_TYPE | libc::MAP_FIXED_NOREPLACE | HINTS);
        if unserved != 0 {
            return Err(errno(libc::EOPNOTSUPP, format!("the mmap flags {unserved:#x} are not supported")));
        }
        let first = page_of(page)?;
        if nbytes == 0 {
            return Err(Failure::invalid("nbytes is 0; map at least one byte"));
        }
        let pages = nbytes.div_ceil(PAGE) as u64;
        let table = self.table();
        let region = Arc::clone(table.region(rd)?);
        // The call that closes the region looks for this under the same lock.
        let moving = Moving::begin(&region);
        drop(table);
        let address = region.with(|memory| {
            let address = memory.pin(first, pages)?;
            if fixed && address.addr() != va.addr() {
                memory.unpin(first, pages)?;
                return Err(errno(
                    libc::EEXIST,
                    "the region is at another address; all its pages are contiguous from one base address",
                ));
            }
            Ok(address)
        })?;
        let mut table = self.table();
        let mapped = Mapped { region: Arc::clone(&region), first, pages };
        table.mapped.entry(address.addr()).or_default().push(mapped);
        drop(moving);
        Ok(address.cast())
    }

    pub(crate) fn unmap(&self, va: *mut c_void) -> Result<()> {
        let mut table = self.table();
        let none =
            || Failure::invalid(format!("nothing is mapped at {:#x}; pass the address that pmmap returned", va.addr()));
        let at = table.mapped.get_mut(&va.addr()).ok_or_else(none)?;
        let mapped = at.pop().ok_or_else(none)?;
        if at.is_empty() {
            table.mapped.remove(&va.addr());
        }
        let region = Arc::clone(&mapped.region);
        let moving = Moving::begin(&region);
        drop(table);
        let unpinned = region.with(|memory| memory.unpin(mapped.first, mapped.pages));
        // The call that closes the region always finds this call under way, or its result.
        let mut table = self.table();
        if unpinned.is_err() {
            table.mapped.entry(va.addr()).or_default().push(mapped);
        }
        drop(moving);
        unpinned
    }
}

fn page_of(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| {
        Failure::invalid(format!(
            "{number} is not a page number; page numbers start at \
                                                                0"
        ))
    })
}

#[cfg(test)]
mod tests;
