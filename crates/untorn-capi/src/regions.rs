//! The regions that this process has open through `untorn/region.h`, by descriptor and by address.
//!
//! A forked child has a copy of its parent's, whose locks threads of the parent may have held for ever. So each process has
//! its own, which begins empty.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use untorn_core::{Error, RegionMap, RegionStore, SharedRegion};

use crate::abi;
use crate::errors::{Failure, Result};
use crate::mapping::{HINTS, errno};

/// Bytes of a page.
const PAGE: usize = 4096;

/// The flag of `region_open`, as it comes.
const REGION_SHARED: c_int = abi::REGION_SHARED as c_int;

/// One open region, for all descriptors of it.
struct Opened {
    store: PathBuf,
    name: String,
    /// Taken out by the call that closes it. Calls on one region take turns here.
    map: Mutex<Option<Memory>>,
    /// Whether other processes may have it too.
    shared: bool,
}

/// The memory of a region.
enum Memory {
    Own(RegionMap),
    /// With how often this process has each page mapped.
    Shared(SharedRegion, BTreeMap<u64, u32>),
}

impl Memory {
    fn alloc(&mut self) -> Result<u64> {
        Ok(match self {
            Memory::Own(map) => map.alloc_page()?,
            Memory::Shared(region, _) => region.alloc_page()?,
        })
    }

    fn free(&mut self, page: u64) -> Result<()> {
        match self {
            Memory::Own(map) => map.free_page(page)?,
            Memory::Shared(_, pins) if pins.contains_key(&page) => {
                return Err(errno(libc::EBUSY, format!("this process has page {page} mapped; unmap it first")));
            }
            Memory::Shared(region, _) => region.free_page(page)?,
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        match self {
            Memory::Own(map) => map.pmsync()?,
            Memory::Shared(region, _) => region.pmsync()?,
        };
        Ok(())
    }

    fn pin(&mut self, first: u64, count: u64) -> Result<*mut u8> {
        match self {
            Memory::Own(map) => Ok(map.pin(first, count)?),
            Memory::Shared(region, pins) => {
                let (offset, len) = (first.saturating_mul(PAGE as u64), count.saturating_mul(PAGE as u64));
                // Whether they are all there.
                region.words(offset, usize::try_from(len / 8).unwrap_or(usize::MAX))?;
                for page in first..first + count {
                    *pins.entry(page).or_default() += 1;
                }
                // It lies within the memory of the region, whose bytes fit an address.
                Ok(region.as_ptr().wrapping_add(offset as usize))
            }
        }
    }

    fn unpin(&mut self, first: u64, count: u64) -> Result<()> {
        match self {
            Memory::Own(map) => map.unpin(first, count)?,
            Memory::Shared(_, pins) => {
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
        return Err(Failure::invalid("O_EXCL would be true for one of the processes only; make the region first"));
    }
    let opened = if create { SharedRegion::open_or_create(store, name) } else { SharedRegion::open(store, name) };
    Ok(Memory::Shared(opened?, BTreeMap::new()))
}

/// A range of pages that a program has at an address.
struct Mapped {
    region: Arc<Opened>,
    first: u64,
    pages: u64,
}

#[derive(Default)]
struct Table {
    stores: BTreeMap<PathBuf, RegionStore>,
    descriptors: BTreeMap<c_int, Arc<Opened>>,
    /// Several that begin at one address are a stack.
    mapped: BTreeMap<usize, Vec<Mapped>>,
}

/// What one process has open.
pub(crate) struct Regions {
    process: u32,
    table: Mutex<Table>,
}

/// That of this process, or of the one it was forked from, until it is first needed. It is never dropped.
static REGIONS: AtomicPtr<Regions> = AtomicPtr::new(ptr::null_mut());

/// What this process has open.
pub(crate) fn regions() -> &'static Regions {
    let process = process::id();
    loop {
        let found = REGIONS.load(Ordering::Acquire);
        // SAFETY: null, or leaked by this function, now or in a process that this one is descended from.
        let known: Option<&'static Regions> = unsafe { found.as_ref() };
        if let Some(regions) = known.filter(|regions| regions.process == process) {
            return regions;
        }
        let ours = Box::into_raw(Box::new(Regions { process, table: Mutex::default() }));
        if REGIONS.compare_exchange(found, ours, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: from `into_raw`, and no other thread has seen it.
            drop(unsafe { Box::from_raw(ours) });
        }
    }
}

impl Opened {
    /// Calls `body` with the map, when every call before it on this region is through.
    fn with<T>(&self, body: impl FnOnce(&mut Memory) -> Result<T>) -> Result<T> {
        let mut map = self.map.lock().map_err(|_| {
            let message = format!("an earlier call on region {:?} failed inside untorn; close it", self.name);
            errno(libc::EIO, message)
        })?;
        body(map.as_mut().ok_or_else(closed)?)
    }
}

fn closed() -> Failure {
    errno(libc::EBADF, "the region is being closed")
}

fn is(error: &Error, number: c_int) -> bool {
    error.errno() == number
}

impl Table {
    /// The store, opened or made if it is not open.
    fn store(&mut self, path: &Path, create: bool) -> Result<&RegionStore> {
        if !self.stores.contains_key(path) {
            let store = match RegionStore::open(path) {
                Err(error) if create && is(&error, libc::ENOENT) => match RegionStore::create(path) {
                    // Another process was quicker.
                    Err(error) if is(&error, libc::EEXIST) => RegionStore::open(path),
                    made => made,
                },
                opened => opened,
            };
            self.stores.insert(path.to_owned(), store?);
        }
        self.stores.get(path).ok_or_else(closed)
    }

    /// Closes the store if nothing in it is open.
    fn let_go(&mut self, path: &Path) -> Result<()> {
        if self.descriptors.values().any(|region| region.store == path) {
            return Ok(());
        }
        self.stores.remove(path).map_or(Ok(()), |store| Ok(store.close()?))
    }

    fn region(&self, rd: c_int) -> Result<&Arc<Opened>> {
        self.descriptors.get(&rd).ok_or_else(|| errno(libc::EBADF, format!("{rd} is no open region")))
    }
}

impl Regions {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic in between leaves what is entered, and no more.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn region(&self, rd: c_int) -> Result<Arc<Opened>> {
        self.table().region(rd).cloned()
    }

    pub(crate) fn open(&self, store: &Path, name: &str, flags: c_int) -> Result<c_int> {
        let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | REGION_SHARED;
        if flags & !known != 0 {
            let unknown = flags & !known;
            return Err(Failure::invalid(format!(
                "{unknown:#x} are no flags of a region; pass O_CREAT, O_EXCL, REGION_SHARED or 0"
            )));
        }
        let (create, exclusive) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
        let shared = flags & REGION_SHARED != 0;
        let mut table = self.table();
        let rd =
            (0..).find(|rd| !table.descriptors.contains_key(rd)).ok_or_else(|| errno(libc::EMFILE, "none is left"))?;
        let found = table.descriptors.values().find(|region| region.store == store && region.name == name).cloned();
        let region = match found {
            Some(_) if create && exclusive => {
                return Err(errno(libc::EEXIST, format!("there is a region {name:?}, and it is open")));
            }
            Some(region) if region.shared != shared => {
                let how = if shared { "without" } else { "with" };
                return Err(errno(libc::EBUSY, format!("this process has region {name:?} open {how} REGION_SHARED")));
            }
            Some(region) => region,
            None if shared => {
                let map = Mutex::new(Some(share(store, name, create, exclusive)?));
                Arc::new(Opened { store: store.to_owned(), name: name.to_owned(), map, shared })
            }
            None => {
                let of_store = table.store(store, create)?;
                let opened = match of_store.open_region(name) {
                    Ok(_) if create && exclusive => Err(errno(libc::EEXIST, format!("there is a region {name:?}"))),
                    Err(error) if create && is(&error, libc::ENOENT) => Ok(of_store.create_region(name)?),
                    opened => opened.map_err(Failure::from),
                };
                match opened.and_then(|region| Ok(region.map()?)) {
                    Ok(map) => {
                        let map = Mutex::new(Some(Memory::Own(map)));
                        Arc::new(Opened { store: store.to_owned(), name: name.to_owned(), map, shared })
                    }
                    Err(failure) => {
                        // The error of opening is the one that helps.
                        let _ = table.let_go(store);
                        return Err(failure);
                    }
                }
            }
        };
        table.descriptors.insert(rd, region);
        Ok(rd)
    }

    pub(crate) fn close(&self, rd: c_int) -> Result<()> {
        let mut table = self.table();
        let region = Arc::clone(table.region(rd)?);
        let is_last = table.descriptors.values().filter(|other| Arc::ptr_eq(other, &region)).count() == 1;
        let mapped = |mapped: &Mapped| Arc::ptr_eq(&mapped.region, &region);
        if is_last && table.mapped.values().flatten().any(mapped) {
            let message = format!("pages of region {:?} are mapped; unmap them first", region.name);
            return Err(errno(libc::EBUSY, message));
        }
        table.descriptors.remove(&rd);
        if !is_last {
            return Ok(());
        }
        // One that a call left in the middle can still be ended: the region is that of its last commit.
        drop(region.map.lock().unwrap_or_else(PoisonError::into_inner).take());
        table.let_go(&region.store)
    }

    pub(crate) fn delete(&self, store: &Path, name: &str) -> Result<()> {
        let mut table = self.table();
        let deleted = table.store(store, false)?.delete_region(name).map_err(Failure::from);
        let let_go = table.let_go(store);
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
            return Err(Failure::invalid("a region has one state, that all see; pass MAP_SHARED"));
        }
        let fixed = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
        let unserved = flags & !(libc::MAP_TYPE | libc::MAP_FIXED_NOREPLACE | HINTS);
        if unserved != 0 {
            return Err(errno(libc::EOPNOTSUPP, format!("the mmap flags {unserved:#x} are not supported here")));
        }
        let first = page_of(page)?;
        if nbytes == 0 {
            return Err(Failure::invalid("a mapping has at least one byte"));
        }
        let pages = nbytes.div_ceil(PAGE) as u64;
        // Both at once: whoever closes the region looks for what is mapped of it under the same lock.
        let mut table = self.table();
        let region = Arc::clone(table.region(rd)?);
        let address = region.with(|map| {
            let address = map.pin(first, pages)?;
            if fixed && address.addr() != va.addr() {
                map.unpin(first, pages)?;
                return Err(errno(
                    libc::EEXIST,
                    "the region has another address; its pages lie side by side from one on",
                ));
            }
            Ok(address)
        })?;
        table.mapped.entry(address.addr()).or_default().push(Mapped { region, first, pages });
        Ok(address.cast())
    }

    pub(crate) fn unmap(&self, va: *mut c_void) -> Result<()> {
        let mut table = self.table();
        let none =
            || Failure::invalid(format!("nothing is mapped at {:#x}; pass the address that pmmap returned", va.addr()));
        let mapped = table.mapped.get_mut(&va.addr()).ok_or_else(none)?;
        // What a call left in the middle can only be closed, and that only once nothing is mapped.
        if let Some(Mapped { region, first, pages }) = mapped.last().filter(|mapped| !mapped.region.map.is_poisoned()) {
            region.with(|map| map.unpin(*first, *pages))?;
        }
        mapped.pop();
        if mapped.is_empty() {
            table.mapped.remove(&va.addr());
        }
        Ok(())
    }
}

fn page_of(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| Failure::invalid(format!("{number} is no page number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_a_call_left_in_the_middle_can_be_closed() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let regions = Regions { process: process::id(), table: Mutex::default() };
        let rd = regions.open(&store, "r", libc::O_CREAT).unwrap();
        regions.alloc(rd).unwrap();
        let address = regions.map(ptr::null_mut(), rd, 0, PAGE, libc::MAP_SHARED).unwrap();
        let region = regions.region(rd).unwrap();
        let call = std::thread::spawn(move || region.with(|_| -> Result<()> { panic!("as if untorn had a bug") }));
        assert!(call.join().is_err());
        assert_eq!(regions.sync(rd).unwrap_err().errno(), libc::EIO);
        regions.unmap(address).unwrap();
        regions.close(rd).unwrap();
        let rd = regions.open(&store, "r", 0).unwrap();
        assert_eq!(regions.alloc(rd).unwrap(), 0, "nothing was committed");
        regions.close(rd).unwrap();
    }
}
