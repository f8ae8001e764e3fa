//! A gate that threads pass on each write and that another thread closes now and then, to be alone.
//!
//! A thread that has a slot of its own passes with two plain stores and two loads. What orders its store before its
//! load is the closer's business: it makes all threads of the process execute a barrier (`membarrier(2)`). Where the
//! kernel has none, and for threads that share a slot, passing costs a locked instruction.
//!
//! # Invariants
//!
//! 1. A slot's `busy` belongs to the thread that owns the slot. A slot never changes its owner.
//! 2. A thread says that it is inside before it looks whether the gate is closed; the closer says that it is closed
//!    before it looks who is inside. One of the two sees the other.
//! 3. So while the gate is closed no thread is inside, and none enters.

use std::io;
use std::sync::atomic::compiler_fence;

use super::word_lock::WordLock;
use crate::sys::barrier_of_all_threads;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedArray, ZeroedBox, fence, thread_number};

#[derive(Zeroed)]
#[repr(C, align(64))]
struct Slot {
    /// The number of the owner, plus 1; 0 while there is none.
    owner: AtomicU64,
    /// 1 while the owner is inside.
    busy: AtomicU64,
    /// Held by any other thread while it is inside.
    shared: WordLock,
}

#[derive(Zeroed)]
#[repr(C, align(64))]
struct Notice {
    /// 1 while the gate is closed, or about to be.
    closed: AtomicU64,
    /// Held by the thread that closes it.
    closing: WordLock,
}

/// The gate.
pub(crate) struct WriterGate {
    slots: ZeroedArray<Slot>,
    notice: ZeroedBox<Notice>,
    /// Whether a closer can make all threads execute a barrier.
    asymmetric: bool,
}

/// A thread inside.
pub(crate) enum Inside<'a> {
    Owner(&'a AtomicU64),
    Other(&'a WordLock),
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self {
            Inside::Owner(busy) => busy.store(0, Ordering::Release),
            Inside::Other(shared) => shared.release(),
        }
    }
}

/// A closed gate; dropping it opens the gate.
pub(crate) struct Closed<'a>(&'a WriterGate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.slots.iter().for_each(|slot| slot.shared.release());
        self.0.notice.closed.store(0, Ordering::Release);
        self.0.notice.closing.release();
    }
}

impl WriterGate {
    /// One with a power of two of slots.
    ///
    /// # Errors
    /// Those of reserving memory.
    pub(crate) fn new(slots: usize) -> io::Result<Self> {
        let asymmetric = !cfg!(loom) && barrier_of_all_threads::is_available();
        Ok(WriterGate { slots: ZeroedArray::reserve(slots)?, notice: ZeroedBox::new()?, asymmetric })
    }

    /// Makes entering cost a locked instruction, and closing no system call.
    pub(crate) fn entered_by_locked_instructions(self) -> Self {
        WriterGate { asymmetric: false, ..self }
    }

    /// Enters, once the gate is open.
    #[inline(always)]
    pub(crate) fn enter(&self, relax: impl FnMut(u32)) -> Inside<'_> {
        let thread = thread_number();
        let slot = &self.slots[thread & (self.slots.len() - 1)];
        if slot.owner.load(Ordering::Relaxed) == thread as u64 + 1 && self.announce(slot) {
            return Inside::Owner(&slot.busy);
        }
        self.enter_slowly(slot, thread as u64 + 1, relax)
    }

    /// Says that the owner of a slot is inside. False, and it is not, if the gate is closed.
    #[inline(always)]
    fn announce(&self, slot: &Slot) -> bool {
        slot.busy.store(1, Ordering::Relaxed);
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst)
        } else {
            fence(Ordering::SeqCst)
        }
        let open = self.notice.closed.load(Ordering::Acquire) == 0;
        if !open {
            slot.busy.store(0, Ordering::Release);
        }
        open
    }

    #[cold]
    fn enter_slowly<'a>(&'a self, slot: &'a Slot, thread: u64, mut relax: impl FnMut(u32)) -> Inside<'a> {
        let own = |slot: &Slot| slot.owner.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed);
        let is_owner = own(slot).is_ok() || slot.owner.load(Ordering::Relaxed) == thread;
        let mut round = 0;
        loop {
            if self.notice.closed.load(Ordering::SeqCst) == 0 {
                if is_owner {
                    if self.announce(slot) {
                        return Inside::Owner(&slot.busy);
                    }
                } else if slot.shared.try_acquire() {
                    // A closer takes this lock too: it has not yet, and waits for this thread.
                    return Inside::Other(&slot.shared);
                }
            }
            relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Closes the gate and waits until every thread is out.
    ///
    /// # Errors
    /// Those of the barrier of all threads; the gate is open then.
    pub(crate) fn close(&self, mut relax: impl FnMut(u32)) -> io::Result<Closed<'_>> {
        self.notice.closing.acquire(&mut relax);
        self.notice.closed.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.asymmetric {
            barrier_of_all_threads::execute().inspect_err(|_| {
                self.notice.closed.store(0, Ordering::Release);
                self.notice.closing.release();
            })?;
        }
        for slot in self.slots.iter() {
            let mut round = 0;
            while slot.busy.load(Ordering::Acquire) != 0 {
                relax(round);
                round = round.saturating_add(1);
            }
            slot.shared.acquire(&mut relax);
        }
        Ok(Closed(self))
    }
}

#[cfg(all(test, not(loom)))]
mod litmus;
#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// Two words that a thread inside makes differ for a moment, with and without the barrier of all threads.
    #[test]
    fn a_closer_is_alone() {
        for asymmetric in [true, false] {
            // Fewer slots than threads, so that some share one.
            let mut gate = WriterGate::new(2).unwrap();
            gate.asymmetric &= asymmetric;
            let (one, two, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
            let relax = |_| thread::yield_now();
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            let _inside = gate.enter(relax);
                            one.fetch_add(1, Ordering::Relaxed);
                            two.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                let mut seen = 0;
                for _ in 0..200 {
                    // A loaded machine starts the threads late.
                    while one.load(Ordering::Relaxed) == seen {
                        thread::yield_now();
                    }
                    let closed = gate.close(relax).unwrap();
                    seen = one.load(Ordering::Relaxed);
                    for _ in 0..20 {
                        assert_eq!((one.load(Ordering::Relaxed), two.load(Ordering::Relaxed)), (seen, seen));
                    }
                    drop(closed);
                }
                done.store(true, Ordering::Relaxed);
            });
        }
    }
}
