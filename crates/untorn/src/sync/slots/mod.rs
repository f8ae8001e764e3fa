//! Thread slots, from which threads change a file. One thread at a time takes a slot. A thread that needs all others to
//! be idle takes all slots together.
//!
//! A thread keeps its slot, so unrelated threads share no cache line.

use std::io;
use std::ops::Deref;

use super::word_lock::WordLock;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedArray, ZeroedBox, thread_number};

/// What a thread slot has of its own. Aligned to a cache line, or neighbours would share one.
pub(crate) trait ThreadSlotState: Zeroed + Send + Sync {
    /// Closed while somebody has the thread slot.
    fn word_lock(&self) -> &WordLock;
}

/// What all threads look at, in a cache line of its own.
#[derive(Debug, Zeroed)]
#[repr(C, align(64))]
struct Notice {
    /// Threads that take every thread slot or have them all. While there are any nobody else takes one, or busy
    /// threads would hand the thread slots round among themselves for ever.
    collectors: AtomicU64,
    /// The thread slots below this were taken before; nobody takes another without saying so here first.
    reach: AtomicU64,
}

/// A power of two of thread slots.
pub(crate) struct ThreadSlots<S> {
    states: ZeroedArray<S>,
    notice: ZeroedBox<Notice>,
}

/// A thread slot held by this thread; dropping it lets it go.
#[derive(Debug)]
pub(crate) struct ThreadSlot<'a, S: ThreadSlotState> {
    pub(crate) state: &'a S,
    /// Its place among all.
    pub(crate) index: usize,
}

impl<S: ThreadSlotState> Drop for ThreadSlot<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.state.word_lock().release();
    }
}

impl<S: ThreadSlotState> ThreadSlots<S> {
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        Ok(ThreadSlots { states: ZeroedArray::reserve(count)?, notice: ZeroedBox::new()? })
    }

    /// What each has, whoever holds it.
    #[inline(always)]
    pub(crate) fn states(&self) -> &[S] {
        &self.states
    }

    /// How many were ever taken, counted by the last of them.
    pub(crate) fn reach(&self) -> u64 {
        self.notice.reach.load(Ordering::Acquire)
    }

    /// Which one this thread tries first.
    #[inline(always)]
    pub(crate) fn home(&self) -> usize {
        thread_number() & (self.states.len() - 1)
    }

    /// What this thread's own thread slot has, whoever holds it.
    #[inline(always)]
    pub(crate) fn mine(&self) -> &S {
        &self.states[self.home()]
    }

    /// A free thread slot, this thread's own if it is.
    #[inline(always)]
    pub(crate) fn acquire(&self, relax: impl FnMut(u32)) -> ThreadSlot<'_, S> {
        match self.try_acquire() {
            Some(thread_slot) => thread_slot,
            None => self.acquire_other(relax),
        }
    }

    /// This thread's own, if it is free.
    #[inline(always)]
    pub(crate) fn try_acquire(&self) -> Option<ThreadSlot<'_, S>> {
        let index = self.home();
        self.announce(index);
        let state = &self.states[index];
        (!self.are_collected() && state.word_lock().try_acquire()).then(|| ThreadSlot { state, index })
    }

    #[inline(always)]
    fn are_collected(&self) -> bool {
        self.notice.collectors.load(Ordering::SeqCst) != 0
    }

    /// Says that a thread slot may be taken from now on. Either whoever collects them hears of it, or this thread
    /// then finds that they are being collected: each says what it does before it looks.
    #[inline(always)]
    fn announce(&self, index: usize) {
        if self.notice.reach.load(Ordering::Acquire) <= index as u64 {
            self.notice.reach.fetch_max(index as u64 + 1, Ordering::SeqCst);
        }
    }

    #[cold]
    fn acquire_other(&self, mut relax: impl FnMut(u32)) -> ThreadSlot<'_, S> {
        let (home, mut round) = (self.home(), 0);
        loop {
            let steps = if self.are_collected() { 0 } else { self.states.len() };
            for step in 1..=steps {
                let index = (home + step) & (self.states.len() - 1);
                self.announce(index);
                let state = &self.states[index];
                if !self.are_collected() && !state.word_lock().is_locked() && state.word_lock().try_acquire() {
                    return ThreadSlot { state, index };
                }
            }
            relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Every thread slot: while they are held, nothing is under way from any.
    pub(crate) fn acquire_all(&self, mut relax: impl FnMut(u32)) -> AllSlots<'_, S> {
        self.notice.collectors.fetch_add(1, Ordering::SeqCst);
        // This thread's own is among them, if only so that it can be worked from.
        self.announce(self.home());
        let reach = self.notice.reach.load(Ordering::SeqCst) as usize;
        let mut all = AllSlots { thread_slots: Vec::with_capacity(reach), notice: &self.notice };
        for (index, state) in self.states[..reach].iter().enumerate() {
            state.word_lock().acquire(&mut relax);
            all.thread_slots.push(ThreadSlot { state, index });
        }
        all
    }
}

/// Every thread slot that was ever taken; nobody takes another until this is dropped.
pub(crate) struct AllSlots<'a, S: ThreadSlotState> {
    thread_slots: Vec<ThreadSlot<'a, S>>,
    notice: &'a Notice,
}

impl<'a, S: ThreadSlotState> AllSlots<'a, S> {
    /// Lets all go but one, given by its place.
    pub(crate) fn keep(mut self, index: usize) -> ThreadSlot<'a, S> {
        self.thread_slots.swap_remove(index)
    }
}

impl<'a, S: ThreadSlotState> Deref for AllSlots<'a, S> {
    type Target = [ThreadSlot<'a, S>];

    fn deref(&self) -> &[ThreadSlot<'a, S>] {
        &self.thread_slots
    }
}

impl<S: ThreadSlotState> Drop for AllSlots<'_, S> {
    fn drop(&mut self) {
        self.notice.collectors.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod models;
