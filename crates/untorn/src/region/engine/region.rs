//! An open region: its pages, and the uncommitted changes of the program.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard};

use super::commit::Stored;
use super::format::{Entry, PAGE, Page};
use super::held::Pin;
use super::load::Loaded;
use super::working::{Pending, Working};
use super::{AnyHeld, AnyRegion, Core, Region, RegionInfo, State, locked};
use crate::engine::commits::stream::Commits;
use crate::error::{Error, Result};
use crate::storage::{self, Medium, MediumClass, MediumFile, MediumKind};
use crate::sys::file::is_dax;

/// What all handles of one region share. When the last is gone, what was not committed is.
pub(super) struct Handle<M: Medium> {
    core: Arc<Core<M>>,
    region: Arc<Region<M>>,
    session: u64,
}

/// One way to a region: by copies, of which there may be many, or through the one mapping it has, if it has one.
/// While it does, the pages as the program sees them are in the mapping's memory, and every other way is closed.
pub(super) struct Access<M: Medium> {
    handle: Arc<Handle<M>>,
    through_mapping: bool,
}

impl<M: Medium> Handle<M> {
    /// The handle that programs share, of a region that could be read.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it could not.
    pub(super) fn of(core: &Arc<Core<M>>, region: &Arc<Region<M>>) -> Result<Arc<Self>> {
        let mut state = locked(&region.state);
        if let Some(handle) = state.handle.upgrade() {
            return Ok(handle);
        }
        core.load(region, &mut state)?;
        // The last handle may be gone and not yet have cleared up; what it had not committed is gone with it.
        state.working.discard();
        state.log = match &state.loaded {
            Some(loaded) => core.open_log(region, loaded)?,
            None => None,
        };
        state.session += 1;
        let handle = Arc::new(Handle { core: Arc::clone(core), region: Arc::clone(region), session: state.session });
        state.handle = Arc::downgrade(&handle);
        Ok(handle)
    }
}

impl<M: Medium> Access<M> {
    /// The way by copies.
    ///
    /// # Errors
    /// As for [`Handle::of`].
    pub(super) fn by_copies(core: &Arc<Core<M>>, region: &Arc<Region<M>>) -> Result<Arc<dyn AnyRegion>> {
        Ok(Arc::new(Access { handle: Handle::of(core, region)?, through_mapping: false }))
    }

    pub(super) fn core(&self) -> &Core<M> {
        &self.handle.core
    }

    pub(super) fn region(&self) -> &Region<M> {
        &self.handle.region
    }

    fn invalid(&self, what: &str) -> Error {
        Error::Invalid { path: self.path().to_owned(), what: format!("region {:?}: {what}", self.region().name) }
    }

    fn absent(&self, logical: u64) -> Error {
        self.invalid(&format!("page {logical} is not allocated; allocate it first"))
    }

    /// The region's state, if this is a way to it now.
    fn state(&self) -> Result<MutexGuard<'_, State<M>>> {
        self.core().handle_state.ours()?;
        let state = locked(&self.region().state);
        if state.mapped != self.through_mapping {
            let holder = format!("this process, which has its region {:?} mapped", self.region().name);
            return Err(Error::InUse { path: self.path().to_owned(), holder });
        }
        Ok(state)
    }

    /// Runs `act` on the region at its last commit and the changes since.
    fn with<T>(&self, act: impl FnOnce(&mut Loaded, &mut Working) -> Result<T>) -> Result<T> {
        let mut state = self.state()?;
        if state.loaded.is_none() {
            self.core().load(self.region(), &mut state)?;
        }
        let State { loaded: Some(loaded), working, .. } = &mut *state else {
            return Err(self.invalid("the region was deleted; open or create another one"));
        };
        act(loaded, working).map_err(|error| self.core().handle_state.unless_lost(error))
    }

    /// The bytes of a page at the last commit.
    fn committed(&self, entry: Entry, logical: u64, page: &mut Page) -> Result<()> {
        match entry.stored() {
            Some(at) => self.core().file.read(at * PAGE, page),
            None if entry.is_allocated() => {
                page.fill(0);
                Ok(())
            }
            None => Err(self.absent(logical)),
        }
    }

    fn parts(&self, offset: u64, len: usize) -> Result<impl Iterator<Item = Part> + use<M>> {
        parts(self.path(), self.region().max_pages, offset, len)
    }
}

impl<M: Medium> AnyRegion for Access<M> {
    fn name(&self) -> &str {
        &self.region().name
    }

    fn path(&self) -> &Path {
        self.core().path()
    }

    fn info(&self) -> Result<RegionInfo> {
        self.core().handle_state.ours()?;
        Ok(self.core().describe(self.region()))
    }

    fn alloc(&self, at: Option<u64>, count: u64) -> Result<u64> {
        self.core().handle_state.writable()?;
        let max_pages = self.region().max_pages;
        self.with(|Loaded { table, .. }, working| {
            if count == 0 || count > max_pages {
                return Err(self.invalid(&format!("cannot allocate {count} pages; pass 1 to {max_pages}")));
            }
            let first = match at {
                None => {
                    let full = || self.invalid(&format!("no {count} consecutive pages of its {max_pages} are free"));
                    working.vacancy(table, count, max_pages).ok_or_else(full)?
                }
                Some(first) => {
                    let end = first.checked_add(count).filter(|&end| end <= max_pages);
                    let end = end.ok_or_else(|| self.invalid(&format!("its page numbers are 0 to {max_pages} - 1")))?;
                    if let Some(taken) = (first..end).find(|&page| !working.is_vacant(table, page)) {
                        return Err(self.invalid(&format!(
                            "page {taken} is allocated, or was freed since the last pmsync; a freed page becomes free \
                             with the next pmsync"
                        )));
                    }
                    first
                }
            };
            (first..first + count).for_each(|page| working.allocate(page));
            Ok(first)
        })
    }

    fn free(&self, logical: u64) -> Result<()> {
        self.core().handle_state.writable()?;
        self.with(|Loaded { table, .. }, working| {
            if !working.has(table, logical) {
                return Err(self.absent(logical));
            }
            working.free(logical);
            Ok(())
        })
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let parts = self.parts(offset, dst.len())?;
        self.with(|Loaded { table, .. }, working| {
            for (logical, within, place) in parts {
                let dst = &mut dst[place];
                match working.get(logical) {
                    Some(Pending::Freed) => return Err(self.absent(logical)),
                    Some(Pending::Allocated(None)) => dst.fill(0),
                    Some(Pending::Allocated(Some(page)) | Pending::Written(page)) => {
                        dst.copy_from_slice(&page[within..within + dst.len()]);
                    }
                    None => {
                        let entry = table.entry(logical);
                        match entry.stored() {
                            Some(page) => self.core().file.read(page * PAGE + within as u64, dst)?,
                            None if entry.is_allocated() => dst.fill(0),
                            None => return Err(self.absent(logical)),
                        }
                    }
                }
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.core().handle_state.writable()?;
        let parts: Vec<_> = self.parts(offset, src.len())?.collect();
        self.with(|Loaded { table, .. }, working| {
            // All of it or nothing.
            if let Some((absent, ..)) = parts.iter().find(|(logical, ..)| !working.has(table, *logical)) {
                return Err(self.absent(*absent));
            }
            for (logical, within, place) in parts {
                let src = &src[place];
                let whole = src.len() == PAGE as usize;
                let page = working.change(logical, |page| {
                    if whole { Ok(()) } else { self.committed(table.entry(logical), logical, page) }
                })?;
                let page = page.ok_or_else(|| self.absent(logical))?;
                page[within..within + src.len()].copy_from_slice(src);
            }
            Ok(())
        })
    }

    fn pages(&self) -> Result<Vec<u64>> {
        self.with(|Loaded { table, .. }, working| {
            let mut pages: Vec<u64> = table.entries().map(|(logical, _)| logical).collect();
            pages.retain(|logical| !matches!(working.get(*logical), Some(Pending::Freed)));
            pages.extend(working.changes().allocated);
            pages.sort_unstable();
            Ok(pages)
        })
    }

    fn stored(&self, pages: &[u64]) -> Result<Vec<u64>> {
        self.with(|Loaded { table, .. }, _| {
            Ok(pages.iter().map(|logical| table.entry(*logical).stored().unwrap_or(0)).collect())
        })
    }

    fn read_stored(&self, page: u64, dst: &mut [u8]) -> Result<()> {
        self.core().handle_state.ours()?;
        self.core().file.read(page * PAGE, dst).map_err(|error| self.core().handle_state.unless_lost(error))
    }

    fn unchanged(&self, pages: Range<u64>) -> Result<Vec<u64>> {
        self.with(|Loaded { table, .. }, working| {
            let place = |logical: u64| match working.get(logical) {
                Some(_) => 0,
                None => table.entry(logical).stored().unwrap_or(0),
            };
            Ok(pages.map(place).collect())
        })
    }

    fn mappable(&self) -> Option<BorrowedFd<'_>> {
        let core = self.core();
        // Kernels do not tell the pages of a DAX file from the process's own.
        let file = core.file.descriptor().filter(|file| !is_dax(*file))?;
        // Some say of a file only that it has `MAP_SYNC`.
        let kind = || storage::detect(core.path()).map(|found| found.kind);
        let is_ordinary =
            core.class == MediumClass::Block || kind().is_ok_and(|kind| kind != MediumKind::PersistentMemory);
        is_ordinary.then_some(file)
    }

    fn pmsync(&self, stored: &Stored<'_>) -> Result<u64> {
        let mut state = self.state()?;
        let State { loaded: Some(loaded), working, summary, log, .. } = &mut *state else {
            return Err(self.invalid("the region was deleted; open or create another one"));
        };
        let mut changes = working.changes();
        changes.add(stored);
        let result = self.core().commit(self.region(), loaded, log.as_mut(), &changes);
        let commit = result.map_err(|error| self.core().handle_state.unless_lost(error))?;
        working.committed();
        *summary = Some(loaded.summary());
        Ok(commit)
    }

    fn rollback(&self) -> Result<()> {
        self.with(|_, working| {
            working.discard();
            Ok(())
        })
    }

    fn fresh(&self) -> Result<Vec<u64>> {
        self.with(|_, working| Ok(working.changes().allocated))
    }

    fn ours(&self) -> Result<()> {
        self.core().handle_state.ours()
    }

    fn writable(&self) -> Result<()> {
        self.core().handle_state.writable()
    }

    fn map(&self) -> Result<Arc<dyn AnyRegion>> {
        self.core().handle_state.writable()?;
        let mut state = self.state()?;
        if state.working.len() > 0 {
            return Err(self.invalid("it has uncommitted changes; map it after a pmsync or rollback"));
        }
        state.mapped = true;
        Ok(Arc::new(Access { handle: Arc::clone(&self.handle), through_mapping: true }))
    }

    fn hold(&self) -> Result<Box<dyn AnyHeld>> {
        let (snapshot, pin) = self.with(|Loaded { commit, table }, _| {
            Ok(locked(&self.core().holds).hold(self.region().node, *commit, table))
        })?;
        Ok(Box::new(Held { handle: Arc::clone(&self.handle), snapshot, pin }))
    }

    fn commits(&self, from: u64) -> Result<Box<dyn Commits>> {
        self.stream(from)
    }

    fn consumer(&self, name: &str, from: Option<u64>) -> Result<Box<dyn Commits>> {
        self.consumer_stream(name, from)
    }
}

/// A region at one commit.
struct Held<M: Medium> {
    /// Keeps the region open.
    handle: Arc<Handle<M>>,
    snapshot: u64,
    pin: Arc<Pin>,
}

impl<M: Medium> Held<M> {
    fn has_ended(&self) -> bool {
        !locked(&self.handle.core.holds).has(self.snapshot)
    }

    fn read_parts(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let Handle { core, region, .. } = &*self.handle;
        for (logical, within, place) in parts(core.path(), region.max_pages, offset, dst.len())? {
            let (entry, dst) = (self.pin.entry(logical), &mut dst[place]);
            match entry.stored() {
                Some(page) => core.file.read(page * PAGE + within as u64, dst)?,
                None if entry.is_allocated() => dst.fill(0),
                None => {
                    let what = format!("region {:?}: page {logical} was not allocated at this commit", region.name);
                    return Err(Error::Invalid { path: core.path().to_owned(), what });
                }
            }
        }
        Ok(())
    }
}

impl<M: Medium> AnyHeld for Held<M> {
    fn name(&self) -> &str {
        &self.handle.region.name
    }

    fn path(&self) -> &Path {
        self.handle.core.path()
    }

    fn commit(&self) -> u64 {
        self.pin.commit
    }

    fn pages(&self) -> Vec<u64> {
        self.pin.logical_pages().collect()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.handle.core.handle_state.ours()?;
        let read = self.read_parts(offset, dst);
        // None of the bytes is loaded after this is asked.
        fence(Ordering::Acquire);
        if self.has_ended() {
            let cause = "the store has no space to keep pages back".to_owned();
            return Err(Error::SnapshotEnded { path: self.path().to_owned(), cause });
        }
        read.map_err(|error| self.handle.core.handle_state.unless_lost(error))
    }
}

impl<M: Medium> Drop for Held<M> {
    fn drop(&mut self) {
        let core = &self.handle.core;
        if core.handle_state.ours().is_ok() {
            let free = locked(&core.holds).release(self.snapshot);
            core.release_pages(free);
        }
    }
}

/// One page's part of a range of bytes: the page, the offset in it, place and length in the range.
type Part = (u64, usize, Range<usize>);

/// The parts of a range of bytes of a region.
///
/// # Errors
/// [`Error::OutOfRange`] beyond the region's maximum.
fn parts(path: &Path, max_pages: u64, offset: u64, len: usize) -> Result<impl Iterator<Item = Part> + use<>> {
    let file_len = max_pages * PAGE;
    if offset.checked_add(len as u64).is_none_or(|end| end > file_len) {
        return Err(Error::OutOfRange { path: path.to_owned(), offset, len: len as u64, file_len });
    }
    let mut done = 0;
    Ok(std::iter::from_fn(move || {
        let (at, from) = (offset + done as u64, done);
        let within = (at % PAGE) as usize;
        done = len.min(from + PAGE as usize - within);
        (from < len).then_some((at / PAGE, within, from..done))
    }))
}

impl<M: Medium> Drop for Access<M> {
    fn drop(&mut self) {
        if !self.through_mapping || self.core().handle_state.ours().is_err() {
            return;
        }
        let mut state = locked(&self.region().state);
        state.working.discard();
        state.mapped = false;
    }
}

impl<M: Medium> Drop for Handle<M> {
    fn drop(&mut self) {
        if self.core.handle_state.ours().is_err() {
            return;
        }
        let mut state = locked(&self.region.state);
        if state.session == self.session {
            state.working.discard();
            state.mapped = false;
            state.loaded = None;
            state.log = None;
        }
    }
}
