//! The open handles of this process, found by the address that the program has.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use untorn_core::testing::PerProcess;

use crate::abi::{UNTORN_EOWNERDEAD, UNTORN_EPOISONED};
use crate::errors::{Failure, Result};

/// An open handle, until the call that ends it takes it out.
type Slot<T> = Arc<RwLock<Option<T>>>;

/// The words for the handles of one family in error messages.
pub(crate) struct Words {
    pub(crate) noun: &'static str,
    /// The address to pass.
    pub(crate) pass: &'static str,
    /// The remedy for a handle that cannot be used any more.
    pub(crate) anew: &'static str,
}

/// The handles that the calls of one family have opened in this process.
pub(crate) struct ByAddress<T: 'static> {
    words: Words,
    /// Held for as long as a look takes, never during a call.
    open: PerProcess<Mutex<BTreeMap<usize, Slot<T>>>>,
}

impl<T: Send + Sync> ByAddress<T> {
    pub(crate) const fn new(words: Words) -> Self {
        ByAddress { words, open: PerProcess::new() }
    }

    /// Explains why this process has no handle at the address.
    fn none_at(&self, address: usize) -> Failure {
        let Words { noun, pass, anew } = &self.words;
        if address == 0 {
            return Failure::invalid(format!("the address of the {noun} is NULL"));
        }
        if self.open.was_inherited(|open| open.contains_key(&address)) {
            return Failure::new(
                UNTORN_EOWNERDEAD,
                format!(
                    "the {noun} at {address:#x} belongs to the parent process and cannot be used after fork(2); \
                         {anew}"
                ),
            );
        }
        Failure::invalid(format!("no {noun} starts at {address:#x}; {pass}"))
    }

    fn slot(&self, address: usize) -> Result<Slot<T>> {
        let slot = self.open.lock().get(&address).cloned();
        slot.ok_or_else(|| self.none_at(address))
    }

    /// Enters one.
    pub(crate) fn enter(&self, address: *mut c_void, one: T) {
        let before = self.open.lock().insert(address.addr(), Arc::new(RwLock::new(Some(one))));
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
                format!("an earlier call on the {noun} at {address:#x} panicked inside untorn; end it and {anew}");
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
        let slot = self.open.lock().remove(&address).ok_or_else(|| self.none_at(address))?;
        // A handle whose call panicked can still be ended: the file is that of the last commit.
        let one = slot.write().unwrap_or_else(PoisonError::into_inner).take();
        one.ok_or_else(|| self.none_at(address))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::ptr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use untorn_core::AtomicMap;

    use super::*;
    use crate::abi::UNTORN_EINVAL;

    /// Maps of one test alone: the tests of a process run at once, and where one has ended a map another may put its
    /// own.
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
    fn ending_a_map_waits_for_the_calls_that_use_it() {
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
