//! The gate: a thread that makes a page writable gives way to cuts here.
//!
//! A thread announces that it is inside before it looks at the gate. A cut closes the gate before it looks which
//! threads are inside. All four steps are sequentially consistent, so one of the two sees the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use super::{Control, GATE};
use crate::ipc::wait::{SPINS, sleep_on, spin, wake_all};

// The two low bits of the gate say what a cut is doing; the others count its steps, so that no waiter misses one.
/// Stores proceed.
pub(in super::super) const OPEN: u32 = 0;
/// Nobody may make a page writable.
pub(in super::super) const CLOSED: u32 = 1;
/// Nobody may make a pending page writable.
pub(in super::super) const COPYING: u32 = 2;
const PHASE: u32 = 3;
const STEP: u32 = 4;

impl Control {
    /// Counts this thread in as one of `slot` that makes `page` writable, as soon as no cut forbids it. It must
    /// [`leave`](Control::leave). One whose process is cut off does not wait: perhaps nobody is left to open the
    /// gate. It must not go on to what a cut forbids, so it looks at `evicted` again.
    pub(in super::super) fn enter(&self, slot: usize, page: u64, evicted: &AtomicBool) {
        self.enter_unless(slot, evicted, |gate| self.keeps_out(gate, page));
    }

    /// The same for any page, as soon as no cut is being made at all. None is begun then before it leaves.
    pub(in super::super) fn enter_between_cuts(&self, slot: usize, evicted: &AtomicBool) {
        self.enter_unless(slot, evicted, |gate| gate & PHASE != OPEN);
    }

    fn enter_unless(&self, slot: usize, evicted: &AtomicBool, keeps_out: impl Fn(u32) -> bool) {
        let keeps_out = |gate| keeps_out(gate) && !evicted.load(Ordering::SeqCst);
        let gate = self.half(GATE);
        loop {
            self.active(slot).fetch_add(1, Ordering::SeqCst);
            let seen = gate.load(Ordering::SeqCst);
            if !keeps_out(seen) {
                return;
            }
            self.leave(slot);
            let moved_on = || gate.load(Ordering::SeqCst) != seen || !keeps_out(seen);
            // As long as a cut takes.
            if spin(SPINS, moved_on) {
                continue;
            }
            while !moved_on() {
                // Whoever closed the gate may be gone; another one then opens it, and wakes all.
                sleep_on(gate, seen, Some(Duration::from_millis(20)));
            }
        }
    }

    /// Whether a gate keeps a page from becoming writable.
    fn keeps_out(&self, gate: u32, page: u64) -> bool {
        match gate & PHASE {
            OPEN => false,
            COPYING => self.pending().get(page),
            _ => true,
        }
    }

    /// Counts this thread out.
    pub(in super::super) fn leave(&self, slot: usize) {
        let last = self.active(slot).fetch_sub(1, Ordering::SeqCst) == 1;
        // Whoever waits for that has closed the gate before, and looked at the count after: as in `enter`.
        if last && self.half(GATE).load(Ordering::SeqCst) & PHASE == CLOSED {
            let _ = futex::wake(self.active(slot), futex::Flags::empty(), 1);
        }
    }

    /// Waits for the threads of a member that are making a page writable, but not long. The gate is closed.
    pub(in super::super) fn await_leaving(&self, slot: usize) {
        let active = self.active(slot);
        if !spin(SPINS, || active.load(Ordering::SeqCst) == 0) {
            sleep_on(active, active.load(Ordering::SeqCst), Some(Duration::from_millis(1)));
        }
    }

    /// Moves the gate on.
    pub(in super::super) fn set_gate(&self, phase: u32) {
        let gate = self.half(GATE);
        let before = gate.load(Ordering::SeqCst);
        gate.store((before & !PHASE).wrapping_add(STEP) | phase, Ordering::SeqCst);
        if phase != CLOSED {
            wake_all(gate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PAGE;
    use super::*;

    /// As where the process that served was killed in the middle of a rollback, and none can take its place.
    #[test]
    fn an_evicted_process_does_not_wait_for_a_closed_gate() {
        let (control, evicted) = (Control::create(PAGE as u64, 1).unwrap(), AtomicBool::new(false));
        control.set_gate(CLOSED);
        std::thread::scope(|scope| {
            let threads = [
                scope.spawn(|| control.enter(3, 0, &evicted)),
                scope.spawn(|| control.enter_between_cuts(3, &evicted)),
            ];
            std::thread::sleep(Duration::from_millis(50));
            assert!(!threads.iter().any(|thread| thread.is_finished()), "the gate is closed");
            evicted.store(true, Ordering::SeqCst);
        });
        assert_eq!(control.active(3).load(Ordering::SeqCst), 2);
    }
}
