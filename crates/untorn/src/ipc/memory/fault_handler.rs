//! Handling a store to a protected page, in the thread that stores.
//!
//! All of this runs in a signal handler.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::control::{Control, PAGE};
use crate::ipc::message;
use crate::sys::socket::{Line, send};
use crate::sys::userfault::Userfault;
use crate::sys::{fault, incarnation};

/// A page that stays inaccessible although stores to it are let through has failed otherwise: its memory, or the device
/// that it was swapped out to. After so many faults in a row it is given up.
const HOPELESS: u32 = 10_000;

/// Serves the faults of one process.
pub(super) struct FaultHandler {
    pub(super) control: Arc<Control>,
    pub(super) tracker: Arc<Userfault>,
    /// The process. One forked from it has neither the memory nor the control block.
    pub(super) process: u64,
    /// Where the process has the shared memory.
    pub(super) base: usize,
    pub(super) slot: usize,
    pub(super) line: Arc<Line>,
    /// The process has lost touch with the others for good.
    pub(super) evicted: Arc<AtomicBool>,
    /// Faults in a row that found nothing to do.
    pub(super) idle: AtomicU32,
}

impl fault::FaultHandler for FaultHandler {
    fn serve(&self, offset: u64) -> bool {
        if self.process != incarnation() {
            return false;
        }
        let page = offset / PAGE as u64;
        if page >= self.control.pages() {
            return false; // beyond the end, where there is nothing to serve
        }
        // The signal does not tell a load from a store. A page that is present is only kept from stores; one that was
        // not may have been loaded from, and if it is a store it traps again. (A load may find here that the page has
        // become present since it trapped. The page then counts as dirty without a store, which costs a copy and
        // harms nothing.)
        if self.control.present().get(page) { self.open(page) } else { self.fetch(page) }
    }
}

impl FaultHandler {
    /// Has the serving process fill a page.
    pub(super) fn fetch(&self, page: u64) -> bool {
        for round in 0_u32.. {
            let seen = self.control.fills();
            if self.control.present().get(page) {
                break;
            }
            if self.control.lost() == Some(page) || self.evicted.load(Ordering::Relaxed) {
                return false;
            }
            // Said again from time to time, for the one it was said to may have gone.
            if round % 4 == 0 {
                let _ = send(self.line.as_fd(), &message::fill(page), &[]);
            }
            self.control.await_fill(seen);
        }
        true
    }

    /// Lets stores of this process to a page through. False if that is not to be had.
    pub(super) fn open(&self, page: u64) -> bool {
        if self.evicted.load(Ordering::Relaxed) {
            return false;
        }
        self.control.enter(self.slot, page, &self.evicted);
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Entered);
        let (done, was_writable) = self.let_through(page);
        self.control.leave(self.slot);
        let idle = if was_writable { self.idle.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if !was_writable {
            self.idle.store(0, Ordering::Relaxed);
        }
        done && idle < HOPELESS
    }

    /// The same for a thread that has passed the gate; and whether they were let through before.
    fn let_through(&self, page: u64) -> (bool, bool) {
        // A process that is cut off waits for nobody who has passed the gate, but what follows needs memory that it
        // still has.
        if self.evicted.load(Ordering::SeqCst) {
            return (false, false);
        }
        // Both before the first store can proceed: see the control block.
        self.control.dirty().set(page);
        let was_writable = self.control.writable(self.slot).set(page);
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Dirty);
        let done = self.tracker.protect(self.base + page as usize * PAGE, PAGE, false);
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Opened);
        (done.is_ok(), was_writable)
    }

    /// Does something while no cut is being made, and none begun; if the process is cut off, at once, and then no
    /// page can be opened for it.
    pub(super) fn between_cuts<T>(&self, act: impl FnOnce(&BetweenCuts<'_>) -> T) -> T {
        self.control.enter_between_cuts(self.slot, &self.evicted);
        act(&BetweenCuts(self))
    }
}

/// The time between two cuts, which lasts as long as this does: nothing is committed, and nothing rolled back.
pub(crate) struct BetweenCuts<'a>(&'a FaultHandler);

impl BetweenCuts<'_> {
    /// Lets stores of this process to a page through. False if that is not to be had.
    pub(crate) fn open(&self, page: u64) -> bool {
        self.0.let_through(page).0
    }
}

impl Drop for BetweenCuts<'_> {
    fn drop(&mut self) {
        self.0.control.leave(self.0.slot);
    }
}
