//! State of one process.
//!
//! A forked child has a copy of its parent's, with things that mean nothing there and with locks that threads of the
//! parent may have held at that moment, for ever. So each process has its own, and of its parent's it tries the lock
//! at most.
#![allow(unsafe_code)]

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::incarnation;

/// A state per process, for this process and for the processes that it was forked from.
pub struct PerProcess<T: 'static> {
    /// That of this process, or of the one it was forked from, until it is first needed. They are never dropped.
    newest: AtomicPtr<OfProcess<T>>,
}

struct OfProcess<T: 'static> {
    process: (u64, u32),
    forked_from: Option<&'static OfProcess<T>>,
    state: T,
}

/// Identifies this process. The kernel reuses process numbers; the second part is unique only if the kernel wipes
/// memory on fork.
fn this_process() -> (u64, u32) {
    (incarnation(), process::id())
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// Creates it; no process has a state yet.
    pub const fn new() -> Self {
        PerProcess { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    fn ours(&self) -> &'static OfProcess<T> {
        let process = this_process();
        loop {
            let found = self.newest.load(Ordering::Acquire);
            // SAFETY: null, or leaked by this function, now or in a process that this one is descended from.
            let known: Option<&'static OfProcess<T>> = unsafe { found.as_ref() };
            if let Some(ours) = known.filter(|known| known.process == process) {
                return ours;
            }
            let ours = Box::into_raw(Box::new(OfProcess { process, forked_from: known, state: T::default() }));
            if self.newest.compare_exchange(found, ours, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: from `into_raw`, and no other thread has seen it.
                drop(unsafe { Box::from_raw(ours) });
            }
        }
    }

    /// The state of this process; it is created on first use. Threads that need it at once may each create one, and all
    /// get the same.
    pub fn get(&self) -> &'static T {
        &self.ours().state
    }
}

impl<T: Default + Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default + Send> PerProcess<Mutex<T>> {
    /// The state of this process, while no other thread has it.
    pub fn lock(&self) -> MutexGuard<'static, T> {
        // What it guards is whole whenever a panic can come.
        self.get().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process that this one was forked from had a state at the fork. If the lock was held at that moment,
    /// this cannot be known, and the answer is that it may have.
    pub fn was_inherited(&self, has: impl Fn(&T) -> bool) -> bool {
        let mut parent = self.ours().forked_from;
        std::iter::from_fn(|| parent.inspect(|this| parent = this.forked_from))
            .any(|parent| parent.state.try_lock().map_or(true, |state| has(&state)))
    }
}

/// A step that is done once, also on behalf of forked children.
///
/// Threads wait for the one that does it. A child forked meanwhile does not wait: it starts again with the parts that
/// the thread had finished.
pub struct OnceForAll {
    done: AtomicBool,
    turn: PerProcess<Mutex<()>>,
}

impl OnceForAll {
    /// Creates it, not done yet.
    pub const fn new() -> Self {
        OnceForAll { done: AtomicBool::new(false), turn: PerProcess::new() }
    }

    /// Whether the step is done.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Does it, unless it is done.
    ///
    /// # Errors
    /// Those of `act`; then it is not done.
    pub fn run<E>(&self, act: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.is_done() {
            return Ok(());
        }
        let _turn = self.turn.lock();
        if !self.is_done() {
            act()?;
            self.done.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Default for OnceForAll {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::in_forked_child;

    #[test]
    fn a_child_that_is_forked_while_it_is_done_does_it_by_itself() {
        static ONCE: OnceForAll = OnceForAll::new();
        let mut times = 0;
        let act = || {
            times += 1;
            // What a `Once` of the standard library never comes back from: the thread that does it is not there.
            let child = in_forked_child(|| {
                let mut again = 0;
                let act = || {
                    again += 1;
                    Ok::<_, ()>(())
                };
                let done = ONCE.run(act).is_ok() && ONCE.run(|| Err(())).is_ok();
                i32::from(!(done && again == 1))
            });
            assert_eq!(child, Some(0));
            Ok::<_, ()>(())
        };
        ONCE.run(act).unwrap();
        assert!(times == 1 && ONCE.run(|| Err(())).is_ok());
        assert_eq!(in_forked_child(|| i32::from(ONCE.run(|| Err(())).is_err())), Some(0));
    }

    #[test]
    fn a_failed_initialization_is_not_done() {
        static ONCE: OnceForAll = OnceForAll::new();
        assert_eq!(ONCE.run(|| Err(7)), Err(7));
        assert!(!ONCE.is_done() && ONCE.run(|| Ok::<_, ()>(())).is_ok() && ONCE.is_done());
    }

    #[test]
    fn a_child_has_a_state_of_its_own_whoever_held_the_lock() {
        static STATE: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
        STATE.lock().push(1);
        assert!(!STATE.was_inherited(|_| true), "this process has it by itself");
        let of_parent = |expected: bool| {
            in_forked_child(|| {
                let told = STATE.was_inherited(|state| state.contains(&2)) == expected;
                i32::from(!(told && STATE.lock().is_empty()))
            })
        };
        assert_eq!(of_parent(false), Some(0));
        let held = STATE.lock();
        assert_eq!(of_parent(true), Some(0), "nobody can tell what it had");
        drop(held);
        STATE.lock().push(2);
        assert_eq!(of_parent(true), Some(0));
    }

    #[test]
    fn a_reused_process_number_is_not_its_ancestor() {
        static STATE: PerProcess<Mutex<u32>> = PerProcess::new();
        *STATE.lock() = 5;
        let found = STATE.newest.load(Ordering::Acquire);
        // SAFETY: leaked above.
        let parent: &'static OfProcess<_> = unsafe { &*found };
        assert_eq!(parent.process, this_process());
        let child = in_forked_child(|| {
            // As if the child had the number of its parent.
            let process = (parent.process.0, process::id());
            let copy = OfProcess { process, forked_from: None, state: Mutex::new(5) };
            STATE.newest.store(Box::into_raw(Box::new(copy)), Ordering::Release);
            *STATE.lock() as i32
        });
        assert_eq!(child, Some(0));
    }
}
