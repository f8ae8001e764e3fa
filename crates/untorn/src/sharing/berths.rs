//! Berths: places from which threads change a file, each taken by one thread at a time and all of them together by one
//! that needs everybody else to be still.
//!
//! A thread keeps to its berth, so threads that have nothing to do with each other share no cache line.

use std::io;

use super::gate::Gate;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedArray, ZeroedBox, thread_number};

/// What a berth has of its own. Aligned to a cache line, or neighbours would share one.
pub(crate) trait BerthState: Zeroed + Send + Sync {
    /// Closed while somebody has the berth.
    fn gate(&self) -> &Gate;
}

/// Threads on their way to taking every berth, in a cache line of their own. While there are any nobody else takes one,
/// or busy threads would hand the berths round among themselves for ever.
#[derive(Debug, Zeroed)]
#[repr(C, align(64))]
struct Collectors(AtomicU64);

/// A power of two of berths.
pub(crate) struct Berths<S> {
    states: ZeroedArray<S>,
    collectors: ZeroedBox<Collectors>,
}

/// A berth held by this thread; dropping it lets it go.
#[derive(Debug)]
pub(crate) struct Berth<'a, S: BerthState> {
    pub(crate) state: &'a S,
}

impl<S: BerthState> Drop for Berth<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.state.gate().open();
    }
}

impl<S: BerthState> Berths<S> {
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        Ok(Berths { states: ZeroedArray::reserve(count)?, collectors: ZeroedBox::new()? })
    }

    /// Which one this thread tries first.
    #[inline(always)]
    pub(crate) fn home(&self) -> usize {
        thread_number() & (self.states.len() - 1)
    }

    /// What this thread's own berth has, whoever holds it.
    #[inline(always)]
    pub(crate) fn mine(&self) -> &S {
        &self.states[self.home()]
    }

    /// A free berth, this thread's own if it is.
    #[inline(always)]
    pub(crate) fn acquire(&self, relax: impl FnMut(u32)) -> Berth<'_, S> {
        match self.try_acquire() {
            Some(berth) => berth,
            None => self.acquire_other(relax),
        }
    }

    /// This thread's own, if it is free.
    #[inline(always)]
    pub(crate) fn try_acquire(&self) -> Option<Berth<'_, S>> {
        let index = self.home();
        let state = &self.states[index];
        (!self.are_collected() && state.gate().try_close()).then(|| Berth { state })
    }

    #[inline(always)]
    fn are_collected(&self) -> bool {
        self.collectors.0.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn acquire_other(&self, mut relax: impl FnMut(u32)) -> Berth<'_, S> {
        let (home, mut round) = (self.home(), 0);
        loop {
            let steps = if self.are_collected() { 0 } else { self.states.len() };
            for step in 1..=steps {
                let index = (home + step) & (self.states.len() - 1);
                let state = &self.states[index];
                if !state.gate().is_locked() && state.gate().try_close() {
                    return Berth { state };
                }
            }
            relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Every berth: while they are held, nothing is under way from any.
    pub(crate) fn acquire_all(&self, mut relax: impl FnMut(u32)) -> Vec<Berth<'_, S>> {
        self.collectors.0.fetch_add(1, Ordering::Relaxed);
        let mut all = Vec::with_capacity(self.states.len());
        for state in self.states.iter() {
            state.gate().close(&mut relax);
            all.push(Berth { state });
        }
        self.collectors.0.fetch_sub(1, Ordering::Relaxed);
        all
    }
}

#[cfg(all(test, loom))]
mod models;
