//! The open maps of this process, found by the address that the program has.
//!
//! A forked child has a copy of its parent's, with maps that mean nothing there and with locks that threads of the parent
//! may have held at that moment, for ever. So each process has its own, and of its parent's it tries the lock at most.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use untorn_core::AtomicMap;

use crate::abi::{UNTORN_EOWNERDEAD, UNTORN_EPOISONED};
use crate::errors::{Failure, Result};

/// A map, until the call that ends it takes it out. Calls on one map take turns here.
type Slot = Arc<Mutex<Option<AtomicMap>>>;

/// The maps of one process.
struct Maps {
    process: u32,
    forked_from: Option<&'static Maps>,
    open: Mutex<BTreeMap<usize, Slot>>,
}

/// Those of this process, or of the one it was forked from, until they are first needed. They are never dropped.
static MAPS: AtomicPtr<Maps> = AtomicPtr::new(ptr::null_mut());

/// The maps of this process.
fn maps() -> &'static Maps {
    let process = process::id();
    loop {
        let found = MAPS.load(Ordering::Acquire);
        // SAFETY: null, or leaked by this function, now or in a process that this one is descended from.
        let known: Option<&'static Maps> = unsafe { found.as_ref() };
        if let Some(maps) = known.filter(|maps| maps.process == process) {
            return maps;
        }
        let ours = Box::into_raw(Box::new(Maps::new(process, known)));
        if MAPS.compare_exchange(found, ours, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: from `into_raw`, and no other thread has seen it.
            drop(unsafe { Box::from_raw(ours) });
        }
    }
}

impl Maps {
    fn new(process: u32, forked_from: Option<&'static Maps>) -> Self {
        Maps { process, forked_from, open: Mutex::default() }
    }

    /// Held for as long as a look takes, never during a call on a map.
    fn open(&self) -> MutexGuard<'_, BTreeMap<usize, Slot>> {
        // Nothing panics while it is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why no map of this process starts at the address.
    fn none_at(&self, address: usize) -> Failure {
        if address == 0 {
            return Failure::invalid("the map is NULL");
        }
        if self.forked_from.is_some_and(|parent| parent.had(address)) {
            return Failure::new(
                UNTORN_EOWNERDEAD,
                format!("the map at {address:#x} is of the process that this one was forked from; map the file anew"),
            );
        }
        Failure::invalid(format!(
            "no map starts at {address:#x}; pass the address that untorn_map returned, until it ends"
        ))
    }

    /// Whether a map started at the address when this process was forked off. If the lock was held at that moment nobody
    /// can tell, and any may have.
    fn had(&self, address: usize) -> bool {
        self.open.try_lock().map_or(true, |open| open.contains_key(&address))
            || self.forked_from.is_some_and(|parent| parent.had(address))
    }

    fn enter(&self, mut map: AtomicMap) -> *mut c_void {
        let memory = map.as_mut_ptr();
        self.open().insert(memory.addr(), Arc::new(Mutex::new(Some(map))));
        memory.cast()
    }

    fn with<T>(&self, address: *mut c_void, body: impl FnOnce(&mut AtomicMap) -> Result<T>) -> Result<T> {
        let address = address.addr();
        let slot = self.open().get(&address).cloned().ok_or_else(|| self.none_at(address))?;
        let mut slot = slot.lock().map_err(|_| {
            let message = format!(
                "an earlier call on the map at {address:#x} failed inside untorn; unmap it and map the file anew"
            );
            Failure::new(UNTORN_EPOISONED, message)
        })?;
        body(slot.as_mut().ok_or_else(|| self.none_at(address))?)
    }

    fn take(&self, address: *mut c_void) -> Result<AtomicMap> {
        let address = address.addr();
        let slot = self.open().remove(&address).ok_or_else(|| self.none_at(address))?;
        // One that a call left in the middle can still be ended: the file is that of the last commit.
        let map = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        map.ok_or_else(|| self.none_at(address))
    }
}

/// Enters a map, and returns its address.
pub(crate) fn enter(map: AtomicMap) -> *mut c_void {
    maps().enter(map)
}

/// Calls `body` with the map at an address, when every call before it on that map is through.
pub(crate) fn with<T>(address: *mut c_void, body: impl FnOnce(&mut AtomicMap) -> Result<T>) -> Result<T> {
    maps().with(address, body)
}

/// Takes out the map at an address, when every call before this one on it is through.
pub(crate) fn take(address: *mut c_void) -> Result<AtomicMap> {
    maps().take(address)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::abi::UNTORN_EINVAL;

    /// Maps of one test alone: the tests of a process run at once, and where one has ended a map another may put its own.
    fn apart() -> Maps {
        Maps::new(process::id(), None)
    }

    fn refusal<T>(result: Result<T>) -> (i64, String) {
        let failure = result.err().unwrap();
        (i64::from(failure.code), failure.message)
    }

    #[test]
    fn a_map_that_a_call_left_in_the_middle_can_only_be_ended() {
        let (dir, maps) = (tempfile::tempdir().unwrap(), apart());
        let address = maps.enter(AtomicMap::create(dir.path().join("data"), 100).unwrap());
        assert_eq!(maps.with(address, |map| Ok(map.len())).unwrap(), 100);
        let broken =
            catch_unwind(AssertUnwindSafe(|| maps.with(address, |_| -> Result<()> { panic!("in the middle") })));
        assert!(broken.is_err());
        let (code, message) = refusal(maps.with(address, |map| Ok(map.len())));
        assert!(code == UNTORN_EPOISONED && message.contains("unmap it"), "{code}: {message}");
        maps.take(address).unwrap().discard().unwrap();
        assert_eq!(refusal(maps.take(address)).0, UNTORN_EINVAL);
    }

    #[test]
    fn threads_that_end_a_map_at_once_end_it_once() {
        let (dir, maps) = (tempfile::tempdir().unwrap(), apart());
        for _ in 0..20 {
            let map = AtomicMap::create(dir.path().join("data"), 100).unwrap();
            let address = maps.enter(map).expose_provenance();
            let ended = std::thread::scope(|scope| {
                let ends = || maps.take(ptr::with_exposed_provenance_mut(address)).map(drop).is_ok();
                let threads = [scope.spawn(ends), scope.spawn(ends)];
                threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
            });
            assert_eq!(ended, 1);
            std::fs::remove_file(dir.path().join("data")).unwrap();
        }
    }
}
