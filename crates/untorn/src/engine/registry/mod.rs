//! One state for each open file of this process, found by the file's identity.
//!
//! A forked child has a copy of its parent's registry. Its handles are not usable there, and threads of the parent may
//! have held its locks at the fork, forever. So each process has its own registry.

use std::collections::HashMap;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::{Engine, Shared};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::storage::Identity;
use crate::sys::incarnation;
use crate::sys::sync::{Arc, Mutex, MutexGuard, Ordering, Weak, fence, sleep};

/// Held by the shared state of an open file until the last of it is gone.
#[derive(Default)]
pub(crate) struct Lease {
    _held: Arc<()>,
    /// Where the state is found, and in which process; nowhere for one that is not shared.
    shared_entry: Weak<Mutex<Entry>>,
    process: u64,
}

impl Lease {
    /// The place of the state, if it belongs to this process. While it is [`lock`]ed, nobody looks at the state there.
    pub(super) fn shared_entry(&self) -> Option<SharedEntry> {
        self.shared_entry.upgrade().filter(|_| self.process == incarnation())
    }
}

/// What is known of a file that is or was open.
#[derive(Default)]
pub(super) struct Entry {
    shared: Weak<Shared>,
    held: Arc<()>,
}

impl Entry {
    /// Has nobody find the state any more.
    pub(super) fn forget(&mut self) {
        self.shared = Weak::default();
    }

    /// Whether the engine of the file, if there was one, has let go of everything.
    fn is_let_go(&self) -> bool {
        let let_go = Arc::strong_count(&self.held) == 1;
        // A count is loaded without any order, but who finds it so low must have seen all that was done before it fell.
        fence(Ordering::Acquire);
        let_go
    }
}

/// The lock is held while the file is opened, so that of two threads that open one file at once the second waits and
/// shares.
type SharedEntry = Arc<Mutex<Entry>>;

#[derive(Default)]
struct Registry {
    process: u64,
    /// Places by device, inode and time of birth: what shared a file with other processes may still be here when the
    /// file is gone, and its inode number another one's.
    shared_entries: Mutex<HashMap<(u64, u64, u64), SharedEntry>>,
}

/// The registry of this process, or of the one it was forked from, until it is first needed.
static OPEN: ArcSwapOption<Registry> = ArcSwapOption::const_empty();

fn registry() -> std::sync::Arc<Registry> {
    let process = incarnation();
    loop {
        let found = OPEN.load_full();
        if let Some(registry) = found.as_ref().filter(|registry| registry.process == process) {
            return registry.clone();
        }
        OPEN.compare_and_swap(&found, Some(std::sync::Arc::new(Registry { process, ..Registry::default() })));
        // The parent's is not to be dropped: one of the parent's threads may have been changing it.
        std::mem::forget(found);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while a lock was held leaves a map or an entry, both whole at every instant.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file's shared state, opening it with `open` if this process does not have it open yet.
///
/// # Errors
/// Those of `open`; [`Error::InUse`] if the file is open with options that contradict these.
pub(crate) fn shared(
    path: &Path,
    identity: Identity,
    options: &Options,
    open: impl FnOnce() -> Result<Box<dyn Engine>>,
) -> Result<Arc<Shared>> {
    registry().shared(path, identity, options, open)
}

/// The open state of a file, if this process has it open.
pub(crate) fn find(identity: Identity) -> Option<Arc<Shared>> {
    let shared_entry = registry().known_entry(identity)?;
    lock(&shared_entry).shared.upgrade()
}

/// Does something with the open state of a file, if this process has it open. No thread opens or closes the
/// file meanwhile.
pub(crate) fn with<R>(identity: Identity, act: impl FnOnce(&Shared) -> R) -> Option<R> {
    let shared_entry = registry().known_entry(identity)?;
    let entry = lock(&shared_entry);
    entry.shared.upgrade().map(|shared| act(&shared))
}

/// The same, without waiting for a thread that is opening or closing the file.
pub(crate) fn try_with<R>(identity: Identity, act: impl FnOnce(&Shared) -> R) -> Option<R> {
    let shared_entry = registry().known_entry(identity)?;
    let entry = shared_entry.try_lock().ok()?;
    entry.shared.upgrade().map(|shared| act(&shared))
}

/// Whether nobody of this process is opening or closing the file.
#[cfg(test)]
pub(crate) fn is_free(identity: Identity) -> bool {
    registry().shared_entry(identity).try_lock().is_ok()
}

impl Registry {
    /// See [`shared`].
    fn shared(
        &self,
        path: &Path,
        identity: Identity,
        options: &Options,
        open: impl FnOnce() -> Result<Box<dyn Engine>>,
    ) -> Result<Arc<Shared>> {
        let shared_entry = self.shared_entry(identity);
        let mut entry = lock(&shared_entry);
        if let Some(shared) = entry.shared.upgrade() {
            if options.exclusive || shared.exclusive {
                let holder = "this process, and a map cannot share its file with another handle".to_owned();
                return Err(Error::InUse { path: path.to_owned(), holder });
            }
            if options.shared != shared.several && (options.shared || !shared.admits_unshared) {
                let how =
                    if shared.several { "shared with other processes" } else { "not shared with other processes" };
                let holder = format!(
                    "this process, {how}, and all handles of one file in a process must be of one \
                                      kind"
                );
                return Err(Error::InUse { path: path.to_owned(), holder });
            }
            if let Some(how) = shared.other_commit_log(options) {
                let holder = format!("this process, {how}, and all handles of one file have one commit log");
                return Err(Error::InUse { path: path.to_owned(), holder });
            }
            // The process that serves a shared file keeps its redundancy, and may be another one.
            let wants_it = !options.shared && (options.redundancy.is_some() || options.verify_reads.is_some());
            let keeps_none = wants_it && shared.engine.redundancy().is_none();
            if keeps_none || !shared.engine.accepts(options) {
                let holder = "this process, with other options".to_owned();
                return Err(Error::InUse { path: path.to_owned(), holder });
            }
            return Ok(shared);
        }
        // The last handle may be gone and its thread still closing the file.
        while !entry.is_let_go() {
            sleep(Duration::from_micros(50));
        }
        let engine = open()?;
        let lease =
            Lease { _held: entry.held.clone(), shared_entry: Arc::downgrade(&shared_entry), process: self.process };
        let shared = Arc::new(Shared {
            engine,
            exclusive: options.exclusive,
            several: options.shared,
            admits_unshared: options.admits_unshared,
            may_end: options.exclusion.is_some(),
            lease,
        });
        entry.shared = Arc::downgrade(&shared);
        Ok(shared)
    }

    /// The place of a file, if it has one.
    fn known_entry(&self, identity: Identity) -> Option<SharedEntry> {
        lock(&self.shared_entries).get(&(identity.device, identity.inode, identity.birth)).cloned()
    }

    fn shared_entry(&self, identity: Identity) -> SharedEntry {
        let mut shared_entries = lock(&self.shared_entries);
        // Places nobody is looking at and whose file is closed for good are forgotten on the way.
        shared_entries.retain(|_, shared_entry| {
            Arc::strong_count(shared_entry) > 1 || {
                let entry = lock(shared_entry);
                entry.shared.strong_count() > 0 || !entry.is_let_go()
            }
        });
        shared_entries.entry((identity.device, identity.inode, identity.birth)).or_default().clone()
    }
}

#[cfg(all(test, loom))]
mod models;
