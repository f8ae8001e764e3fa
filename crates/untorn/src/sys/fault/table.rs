//! The watched ranges, in a table that a signal handler may search at any instant.
//!
//! # Protocol
//! Slots are never freed or moved, so a reference to one is always good. A slot's range is set by `take` and emptied by
//! `give_back`. A visitor (a handler) that finds an address in a slot announces itself in `visitors` and looks again;
//! `give_back` empties the range and then waits until there is no visitor. All four steps are sequentially consistent,
//! so either the visitor's second look finds the range empty, or `give_back` sees the visitor and waits for it. While
//! somebody visits, therefore, the range stays what it is and stays mapped.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::{FaultHandler, HARMED};
use crate::sys::FirstUse;

/// Slots of a chunk: more than most programs have files open.
const SLOTS: usize = 64;

/// One watched range, or none.
pub(super) struct Slot {
    /// Whether it belongs to a watch.
    taken: AtomicBool,
    writable: AtomicBool,
    /// Serves the faults of the range, if somebody does. Set before the range is, and cleared after the last visitor
    /// has gone.
    fault_handler: AtomicPtr<Box<dyn FaultHandler>>,
    start: AtomicUsize,
    /// Where the range ends; 0 if there is none. Set last, and cleared first.
    end: AtomicUsize,
    /// The offset of the first page lost, plus 1; 0 if none was.
    lost: AtomicU64,
    /// Handlers that are looking at it.
    visitors: AtomicUsize,
}

struct Chunk {
    slots: [Slot; SLOTS],
    /// How many of them are free, give or take those that are being taken or given back: a hint that spares a process
    /// with thousands of files a look at every slot.
    free: AtomicUsize,
    /// The next chunk, entered by whoever found all slots taken.
    next: FirstUse<Chunk>,
}

static FIRST: Chunk = Chunk::new();

impl Slot {
    const fn new() -> Self {
        Slot {
            taken: AtomicBool::new(false),
            writable: AtomicBool::new(false),
            fault_handler: AtomicPtr::new(ptr::null_mut()),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            visitors: AtomicUsize::new(0),
        }
    }

    pub(super) fn lost(&self) -> Option<u64> {
        self.lost.load(Ordering::Acquire).checked_sub(1)
    }

    /// Notes a loss at an offset, unless there was one before.
    pub(super) fn note(&self, offset: u64) {
        if self.lost.compare_exchange(0, offset + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            // After the note, which whoever sees the count looks for.
            HARMED.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the address lies in the range, as far as one look tells.
    fn contains(&self, address: usize) -> bool {
        // The end first: if it is that of a range, so is the start.
        address < self.end.load(Ordering::SeqCst) && address >= self.start.load(Ordering::SeqCst)
    }

    fn fill(&self, start: usize, len: usize, writable: bool, fault_handler: Option<Box<dyn FaultHandler>>) {
        self.writable.store(writable, Ordering::Relaxed);
        let fault_handler =
            fault_handler.map_or(ptr::null_mut(), |fault_handler| Box::into_raw(Box::new(fault_handler)));
        self.fault_handler.store(fault_handler, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(start + len, Ordering::SeqCst);
    }

    /// Empties the slot for the next watch. False if a visitor stays: the slot is then never used again.
    pub(super) fn give_back(&self) -> bool {
        self.end.store(0, Ordering::SeqCst);
        for round in 0_u32.. {
            if self.visitors.load(Ordering::SeqCst) == 0 {
                break;
            }
            match round {
                0..64 => std::hint::spin_loop(),
                64..20_064 => thread::sleep(Duration::from_micros(50)),
                _ => return false,
            }
        }
        if self.lost.swap(0, Ordering::SeqCst) != 0 {
            HARMED.0.fetch_sub(1, Ordering::SeqCst);
        }
        let fault_handler = self.fault_handler.swap(ptr::null_mut(), Ordering::Acquire);
        if !fault_handler.is_null() {
            // SAFETY: it came from a box in `fill`, the swap gives it to nobody else, and the last visitor has gone.
            drop(unsafe { Box::from_raw(fault_handler) });
        }
        self.taken.store(false, Ordering::Release);
        if let Some(chunk) = chunk_of(self) {
            chunk.free.fetch_add(1, Ordering::Relaxed);
        }
        true
    }
}

impl Chunk {
    const fn new() -> Self {
        Chunk { slots: [const { Slot::new() }; SLOTS], free: AtomicUsize::new(SLOTS), next: FirstUse::new() }
    }
}

/// The chunk that a slot is in.
fn chunk_of(slot: &Slot) -> Option<&'static Chunk> {
    let mut chunks = std::iter::successors(Some(&FIRST), |chunk| chunk.next.made());
    chunks.find(|chunk| chunk.slots.as_ptr_range().contains(&ptr::from_ref(slot)))
}

/// A slot for the range.
pub(super) fn take(
    start: usize,
    len: usize,
    writable: bool,
    fault_handler: Option<Box<dyn FaultHandler>>,
) -> &'static Slot {
    let mut chunk = &FIRST;
    loop {
        let free =
            |slot: &&Slot| slot.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let slot = if chunk.free.load(Ordering::Relaxed) == 0 { None } else { chunk.slots.iter().find(free) };
        if let Some(slot) = slot {
            chunk.free.fetch_sub(1, Ordering::Relaxed);
            slot.fill(start, len, writable, fault_handler);
            return slot;
        }
        chunk = chunk.next.get(Chunk::new);
    }
}

/// A watched range that stays as it is until this is dropped.
pub(super) struct Visit {
    slot: &'static Slot,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) writable: bool,
}

impl Visit {
    pub(super) fn note(&self, offset: u64) {
        self.slot.note(offset);
    }

    /// Lets the range's keeper serve a fault, if there is one that can.
    pub(super) fn serve(&self, address: usize) -> bool {
        // SAFETY: null, or a box that `fill` leaked before it set the range, and that `give_back` leaves alone as
        // long as this visit lasts.
        let fault_handler = unsafe { self.slot.fault_handler.load(Ordering::Acquire).cast_const().as_ref() };
        fault_handler.is_some_and(|fault_handler| fault_handler.serve((address - self.start) as u64))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.slot.visitors.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The watched range that an address lies in. Safe in a signal handler: it takes no lock and allocates nothing.
pub(super) fn visit(address: usize) -> Option<Visit> {
    let mut chunk = Some(&FIRST);
    while let Some(here) = chunk {
        for slot in here.slots.iter().filter(|slot| slot.contains(address)) {
            slot.visitors.fetch_add(1, Ordering::SeqCst);
            let visit = Visit {
                slot,
                end: slot.end.load(Ordering::SeqCst),
                start: slot.start.load(Ordering::SeqCst),
                writable: slot.writable.load(Ordering::Relaxed),
            };
            if (visit.start..visit.end).contains(&address) {
                return Some(visit);
            }
        }
        chunk = here.next.made();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const PAGE: usize = 4096;

    /// Far from anything that is ever mapped, and from the addresses of other tests.
    const START: usize = 1 << 41;

    /// A visitor who gets no CPU stays longer than anybody would wait for it; here it is known to go.
    fn is_given_back(slot: &Slot) -> bool {
        (0..100).any(|_| slot.give_back())
    }

    #[test]
    fn every_range_is_found_beyond_the_first_chunk() {
        let slots: Vec<_> = (0..3 * SLOTS).map(|n| take(START + 2 * n * PAGE, PAGE, n % 2 == 0, None)).collect();
        for n in 0..slots.len() {
            let start = START + 2 * n * PAGE;
            for address in [start, start + PAGE - 1] {
                let visit = visit(address).unwrap();
                assert_eq!((visit.start, visit.end, visit.writable), (start, start + PAGE, n % 2 == 0));
            }
            assert!(visit(start + PAGE).is_none());
        }
        assert!(slots.iter().all(|slot| is_given_back(slot)));
        assert!(visit(START).is_none());
        // Given back, they are taken again before there is another chunk.
        let chunks = || std::iter::successors(Some(&FIRST), |chunk| chunk.next.made()).count();
        let before = chunks();
        for _ in 0..10 * SLOTS {
            assert!(is_given_back(take(START, PAGE, true, None)));
        }
        assert!(chunks() <= before + 1, "other tests take slots too, but few");
    }

    #[test]
    fn a_range_stays_while_somebody_visits() {
        const AT: usize = START << 1;
        let slot = take(AT, PAGE, true, None);
        let held = visit(AT).unwrap();
        let left = AtomicBool::new(false);
        thread::scope(|scope| {
            let gone = scope.spawn(|| {
                assert!(is_given_back(slot));
                assert!(left.load(Ordering::SeqCst), "it did not wait");
            });
            while visit(AT).is_some() {
                thread::yield_now();
            }
            left.store(true, Ordering::SeqCst);
            drop(held);
            gone.join().unwrap();
        });
    }

    #[test]
    fn no_visitor_sees_a_mixture_of_two_ranges() {
        const AT: usize = START << 2;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..20_000 {
                    // One below, one above the address between them, which is never in either.
                    let at = if n % 2 == 0 { AT } else { AT + 2 * PAGE };
                    assert!(is_given_back(take(at, PAGE, false, None)));
                }
                stop.store(true, Ordering::SeqCst);
            });
            while !stop.load(Ordering::SeqCst) {
                assert!(visit(AT + PAGE).is_none());
                drop(visit(AT));
            }
        });
    }
}
