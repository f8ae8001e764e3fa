//! The store: creating, finding and deleting regions, and the thread that looks for free space after a crash.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::io::Errno;

use super::audit::Audit;
use super::format::{NODES_AT, Node, PAGE, VALID};
use super::load::Loaded;
use super::region::Access;
use super::{AnyRegion, AnyStore, Core, Region, RegionInfo, StoreInfo, barriers, locked, table};
use crate::error::{Error, Result};
use crate::storage::{Medium, MediumFile};

/// The system's error about a file, said of a region.
pub(super) fn about(store: &Path, operation: &'static str, name: &str, errno: Errno) -> Error {
    let mut path = store.as_os_str().to_owned();
    path.push("#");
    path.push(name);
    Error::io(operation, Path::new(&path), errno)
}

/// An open store.
pub(crate) struct Store<M: Medium> {
    core: Arc<Core<M>>,
    scanner: Mutex<Option<JoinHandle<()>>>,
}

impl<M: Medium> Store<M> {
    pub(super) fn new(core: Core<M>) -> Self {
        let core = Arc::new(core);
        core.complete_if_scanned();
        let scanning = !locked(&core.space).is_complete() && core.settings.background;
        let scanner = if scanning { Self::start_scanner(&core) } else { None };
        Store { core, scanner: Mutex::new(scanner) }
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Core<M> {
        &self.core
    }

    fn start_scanner(core: &Arc<Core<M>>) -> Option<JoinHandle<()>> {
        let theirs = Arc::clone(core);
        let scan = move || {
            if let Err(error) = theirs.scan() {
                tracing::warn!(store = %theirs.path().display(), %error, "cannot scan the store for free pages; the \
                                                                          store may grow more than it needs to");
            }
        };
        match std::thread::Builder::new().name("untorn-scan".to_owned()).spawn(scan) {
            Ok(thread) => Some(thread),
            Err(error) => {
                // The file only grows more than it need.
                tracing::warn!(store = %core.path().display(), %error, "cannot start the thread that scans for free \
                                                                        pages; the store may grow more than it needs \
                                                                        to");
                None
            }
        }
    }

    fn stop_scanner(&self) {
        if self.core.handle_state.ours().is_err() {
            // The thread is the parent's, and perhaps it held the lock.
            return;
        }
        self.core.stop.store(true, Ordering::Release);
        if let Some(thread) = locked(&self.scanner).take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }

    fn find(&self, name: &str) -> Result<Arc<Region<M>>> {
        let found = locked(&self.core.directory).find(name).cloned();
        found.ok_or_else(|| self.about("find the region", name, Errno::NOENT))
    }

    fn about(&self, operation: &'static str, name: &str, errno: Errno) -> Error {
        about(self.core.path(), operation, name, errno)
    }

    fn in_use(&self, holder: String) -> Error {
        Error::InUse { path: self.core.path().to_owned(), holder }
    }
}

impl<M: Medium> AnyStore for Store<M> {
    fn path(&self) -> &Path {
        self.core.path()
    }

    fn create_region(&self, name: &str, max_pages: u64) -> Result<Arc<dyn AnyRegion>> {
        let core = &self.core;
        core.handle_state.writable()?;
        core.gets_log(name, max_pages)?;
        let _naming = locked(&core.naming);
        let (is_there, free, slots) = {
            let directory = locked(&core.directory);
            (directory.find(name).is_some(), directory.first_free(), directory.len())
        };
        if is_there {
            return Err(self.about("create the region", name, Errno::EXIST));
        }
        let number = free.ok_or_else(|| {
            let what = format!(
                "the store already has the {slots} regions it was created for; create a store with more \
                                regions"
            );
            Error::Invalid { path: core.path().to_owned(), what }
        })?;
        let node = Node { name: name.to_owned(), uid: core.medium.unique()?, max_pages };
        let at = number * PAGE;
        let table = table::first_leaf(core, max_pages)?;
        let written = core.file.write(at, &node.encode(table.first().copied().unwrap_or(0)));
        written.inspect_err(|_| core.release_pages(table.iter().copied()))?;
        core.fence(barriers::NODE)?;
        core.file.write(at, &VALID.to_le_bytes()).map_err(|error| core.handle_state.poison(error))?;
        core.fence(barriers::CREATED)?;
        let region = Arc::new(Region::new(number, node.name, node.uid, max_pages, true));
        locked(&region.state).summary = Some((0, 0));
        locked(&core.directory).insert(Arc::clone(&region));
        Access::by_copies(core, &region)
    }

    fn open_region(&self, name: &str) -> Result<Arc<dyn AnyRegion>> {
        self.core.handle_state.ours()?;
        let _naming = locked(&self.core.naming);
        let region = self.find(name)?;
        let access = Access::by_copies(&self.core, &region);
        access.map_err(|error| self.core.handle_state.unless_lost(error))
    }

    fn delete_region(&self, name: &str) -> Result<()> {
        let core = &self.core;
        core.handle_state.writable()?;
        let _naming = locked(&core.naming);
        let region = self.find(name)?;
        let mut state = locked(&region.state);
        if state.handle.strong_count() > 0 {
            return Err(self.in_use(format!("this process, which has its region {name:?} open")));
        }
        let loaded = core.load(&region, &mut state);
        core.file.write(region.node * PAGE, &[0; 8]).map_err(|error| core.handle_state.poison(error))?;
        core.fence(barriers::DELETED)?;
        state.deleted = true;
        core.forget_log(&region);
        match (loaded, state.loaded.take()) {
            (Ok(()), Some(Loaded { table, .. })) => {
                let of_pages = table.entries().filter_map(|(_, entry)| entry.stored());
                core.release_pages(table.own_pages().chain(of_pages));
            }
            // What it had is found by the scan after the next open.
            _ => core.untidy.store(true, Ordering::Release),
        }
        locked(&core.directory).remove(&region);
        core.mark_counted(&region);
        core.complete_if_scanned();
        Ok(())
    }

    fn list(&self) -> Result<Vec<RegionInfo>> {
        self.core.handle_state.ours()?;
        let mut list: Vec<RegionInfo> = self.core.regions().iter().map(|region| self.core.describe(region)).collect();
        list.sort_by(|one, two| one.name.cmp(&two.name));
        Ok(list)
    }

    fn info(&self) -> Result<StoreInfo> {
        let core = &self.core;
        core.handle_state.ours()?;
        let directory = locked(&core.directory);
        let space = locked(&core.space);
        Ok(StoreInfo {
            path: core.path().to_owned(),
            len: space.pages() * PAGE,
            max_regions: directory.len() as u32,
            regions: directory.count() as u32,
            free_pages: space.free(),
            used_pages: NODES_AT + directory.len() as u64 + space.used(),
            scanning: !space.is_complete(),
            recovered: !core.was_clean,
            order: core.order,
            damage: directory.damage().map(str::to_owned).collect(),
        })
    }

    fn scan(&self) -> Result<()> {
        self.core.handle_state.ours()?;
        self.core.scan().map_err(|error| self.core.handle_state.unless_lost(error))
    }

    fn audit(&self) -> Result<Audit> {
        self.core.handle_state.ours()?;
        self.core.audit().map_err(|error| self.core.handle_state.unless_lost(error))
    }

    fn close(&self) -> Result<()> {
        let core = &self.core;
        core.handle_state.ours()?;
        let _naming = locked(&core.naming);
        let open = core.regions().into_iter().find(|region| locked(&region.state).handle.strong_count() > 0);
        if let Some(region) = open {
            return Err(self.in_use(format!("this process, which has its region {:?} open", region.name)));
        }
        self.stop_scanner();
        if core.settings.read_only {
            return Ok(());
        }
        core.stop.store(false, Ordering::Release);
        core.handle_state.writable()?;
        if let Err(error) = core.scan() {
            // Every commit is as durable as it was; only what is free is not known, and the next open looks again.
            tracing::warn!(store = %core.path().display(), %error, "cannot write the free map at close; the next open \
                                                                    scans the store");
            return Ok(());
        }
        core.leave_map()
    }
}

impl<M: Medium> Drop for Store<M> {
    fn drop(&mut self) {
        self.stop_scanner();
    }
}
