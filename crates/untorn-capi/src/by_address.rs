//! What this process has open, found by the address that the program has.
//!
//! A forked child has a copy of its parent's, with things that mean nothing there and with locks that threads of the parent
//! may have held at that moment, for ever. So each process has its own, and of its parent's it tries the lock at most.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::abi::{UNTORN_EOWNERDEAD, UNTORN_EPOISONED};
use crate::errors::{Failure, Result};

/// One that is open, until the call that ends it takes it out.
type Slot<T> = Arc<RwLock<Option<T>>>;

/// What errors say of the things of one family.
pub(crate) struct Words {
    pub(crate) noun: &'static str,
    /// Which address to pass.
    pub(crate) pass: &'static str,
    /// What to do where it cannot be used any more.
    pub(crate) anew: &'static str,
}

/// Those that the calls of one family have opened in this process.
pub(crate) struct ByAddress<T: 'static> {
    words: Words,
    /// Those of this process, or of the one it was forked from, until they are first needed. They are never dropped.
    of_process: AtomicPtr<OfProcess<T>>,
}

/// Those of one process.
struct OfProcess<T: 'static> {
    process: u32,
    forked_from: Option<&'static OfProcess<T>>,
    open: Mutex<BTreeMap<usize, Slot<T>>>,
}

impl<T> OfProcess<T> {
    /// Held for as long as a look takes, never during a call.
    fn open(&self) -> MutexGuard<'_, BTreeMap<usize, Slot<T>>> {
        // Nothing panics while it is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one started at the address when this process was forked off. If the lock was held at that moment nobody can
    /// tell, and any may have.
    fn had(&self, address: usize) -> bool {
        self.open.try_lock().map_or(true, |open| open.contains_key(&address))
            || self.forked_from.is_some_and(|parent| parent.had(address))
    }
}

impl<T: Send + Sync> ByAddress<T> {
    pub(crate) const fn new(words: Words) -> Self {
        ByAddress { words, of_process: AtomicPtr::new(ptr::null_mut()) }
    }

    fn of_process(&self) -> &'static OfProcess<T> {
        let process = process::id();
        loop {
            let found = self.of_process.load(Ordering::Acquire);
            // SAFETY: null, or leaked by this function, now or in a process that this one is descended from.
            let known: Option<&'static OfProcess<T>> = unsafe { found.as_ref() };
            if let Some(ours) = known.filter(|known| known.process == process) {
                return ours;
            }
            let ours = Box::into_raw(Box::new(OfProcess { process, forked_from: known, open: Mutex::default() }));
            if self.of_process.compare_exchange(found, ours, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: from `into_raw`, and no other thread has seen it.
                drop(unsafe { Box::from_raw(ours) });
            }
        }
    }

    /// Why there is none of this process at the address.
    fn none_at(&self, address: usize) -> Failure {
        let Words { noun, pass, anew } = &self.words;
        if address == 0 {
            return Failure::invalid(format!("the address of the {noun} is NULL"));
        }
        if self.of_process().forked_from.is_some_and(|parent| parent.had(address)) {
            return Failure::new(
                UNTORN_EOWNERDEAD,
                format!("the {noun} at {address:#x} is of the process that this one was forked from; {anew}"),
            );
        }
        Failure::invalid(format!("no {noun} starts at {address:#x}; {pass}"))
    }

    fn slot(&self, address: usize) -> Result<Slot<T>> {
        let slot = self.of_process().open().get(&address).cloned();
        slot.ok_or_else(|| self.none_at(address))
    }

    /// Enters one.
    pub(crate) fn enter(&self, address: *mut c_void, one: T) {
        let before = self.of_process().open().insert(address.addr(), Arc::new(RwLock::new(Some(one))));
        // Ended, if nothing is there any more, and not under the lock.
        drop(before);
    }

    /// Calls `body` with the one at an address, when every call before it on that one is through.
    pub(crate) fn with_mut<R>(&self, address: *mut c_void, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let address = address.addr();
        let slot = self.slot(address)?;
        let mut slot = slot.write().map_err(|_| {
            let Words { noun, anew, .. } = &self.words;
            let message =
                format!("an earlier call on the {noun} at {address:#x} failed inside untorn; end it and {anew}");
            Failure::new(UNTORN_EPOISONED, message)
        })?;
        body(slot.as_mut().ok_or_else(|| self.none_at(address))?)
    }

    /// Calls `body` with the one at an address, other calls of this kind meanwhile.
    pub(crate) fn with<R>(&self, address: *mut c_void, body: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        let address = address.addr();
        let slot = self.slot(address)?;
        // A call that has it alone, and can leave it in the middle, is not of the same family.
        let slot = slot.read().unwrap_or_else(PoisonError::into_inner);
        body(slot.as_ref().ok_or_else(|| self.none_at(address))?)
    }

    /// Takes out the one at an address, when every call before this one on it is through.
    pub(crate) fn take(&self, address: *mut c_void) -> Result<T> {
        let address = address.addr();
        let slot = self.of_process().open().remove(&address).ok_or_else(|| self.none_at(address))?;
        // One that a call left in the middle can still be ended: the file is that of the last commit.
        let one = slot.write().unwrap_or_else(PoisonError::into_inner).take();
        one.ok_or_else(|| self.none_at(address))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use untorn_core::AtomicMap;

    use super::*;
    use crate::abi::UNTORN_EINVAL;

    /// Maps of one test alone: the tests of a process run at once, and where one has ended a map another may put its own.
    fn apart() -> ByAddress<AtomicMap> {
        ByAddress::new(Words { noun: "map", pass: "pass another", anew: "map the file anew" })
    }

    fn enter(maps: &ByAddress<AtomicMap>, dir: &tempfile::TempDir) -> *mut c_void {
        let mut map = AtomicMap::create(dir.path().join("data"), 100).unwrap();
        let address = map.as_mut_ptr().cast();
        maps.enter(address, map);
        address
    }

    fn refusal<T>(result: Result<T>) -> (i64, String) {
        let failure = result.err().unwrap();
        (i64::from(failure.code), failure.message)
    }

    #[test]
    fn a_map_that_a_call_left_in_the_middle_can_only_be_ended() {
        let (dir, maps) = (tempfile::tempdir().unwrap(), apart());
        let address = enter(&maps, &dir);
        assert_eq!(maps.with_mut(address, |map| Ok(map.len())).unwrap(), 100);
        let broken =
            catch_unwind(AssertUnwindSafe(|| maps.with_mut(address, |_| -> Result<()> { panic!("in the middle") })));
        assert!(broken.is_err());
        let (code, message) = refusal(maps.with_mut(address, |map| Ok(map.len())));
        assert!(code == UNTORN_EPOISONED && message.contains("end it"), "{code}: {message}");
        maps.take(address).unwrap().discard().unwrap();
        assert_eq!(refusal(maps.take(address)).0, UNTORN_EINVAL);
    }

    #[test]
    fn threads_that_end_a_map_at_once_end_it_once() {
        let (dir, maps) = (tempfile::tempdir().unwrap(), apart());
        for _ in 0..20 {
            let address = enter(&maps, &dir).expose_provenance();
            let ended = std::thread::scope(|scope| {
                let ends = || maps.take(ptr::with_exposed_provenance_mut(address)).map(drop).is_ok();
                let threads = [scope.spawn(ends), scope.spawn(ends)];
                threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
            });
            assert_eq!(ended, 1);
            std::fs::remove_file(dir.path().join("data")).unwrap();
        }
    }

    #[test]
    fn what_calls_share_is_ended_when_they_are_through() {
        let (dir, maps) = (tempfile::tempdir().unwrap(), apart());
        let address = enter(&maps, &dir).expose_provenance();
        let inside = std::sync::Barrier::new(3);
        let through = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    maps.with(ptr::with_exposed_provenance_mut(address), |_| {
                        inside.wait();
                        std::thread::yield_now();
                        through.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    })
                });
            }
            inside.wait();
            let map = maps.take(ptr::with_exposed_provenance_mut(address)).unwrap();
            assert_eq!(through.load(Ordering::SeqCst), 2);
            drop(map);
        });
    }
}
