//! Waiting for a shared word that another process changes: awake at first, then asleep.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use crate::sys::FirstUse;

/// How often a waiter looks again at most before it goes to sleep, which is some 80 µs: longer than waking a thread
/// takes that has a processor to itself. It does not call `sched_yield(2)` instead, each call of which gives a whole
/// turn away: beside busy threads 200 of them took five seconds (Linux 6.18).
pub(super) const SPINS: u32 = 3000;

/// Looks up to so many times whether something has come about.
pub(super) fn spin(rounds: u32, come: impl Fn() -> bool) -> bool {
    (0..rounds).any(|_| {
        std::hint::spin_loop();
        come()
    }) || come()
}

/// Spins for a while for an event that the other side may be slow to cause.
///
/// That pays where the other side runs on another processor (2 µs for a call), and is worse than nothing where it
/// waits for this one (57 µs, of 25 µs at either side). Nobody can tell which it is, so a waiter remembers how it
/// went: for as long as can be after a success, shorter and shorter after failures, and every 64th time as long as
/// can be to see whether that has changed. The word belongs to the waiter, with the count in its upper half.
pub(super) fn spin_if_it_pays(memory: &AtomicU32, come: impl Fn() -> bool) -> bool {
    const OFTEN: u32 = 64;
    static MOST: FirstUse<u32> = FirstUse::new();
    let most = *MOST.get(|| match std::thread::available_parallelism() {
        // Whoever is waited for has no other processor.
        Ok(one) if one.get() == 1 => 0,
        _ => SPINS,
    });
    let word = memory.load(Ordering::Relaxed);
    let turn = word >> 16;
    let rounds = if turn.is_multiple_of(OFTEN) { most } else { (word & 0xffff).min(most) };
    let come = spin(rounds, come);
    let next = if come { most } else { (word & 0xffff).min(rounds) / 4 };
    memory.store(turn.wrapping_add(1) << 16 | next, Ordering::Relaxed);
    come
}

/// Wakes all who sleep on a word, which was changed before.
pub(super) fn wake_all(word: &AtomicU32) {
    // It fails for no word that is mapped.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Sleeps until a word changes, or for the limit, of less than a second.
pub(super) fn sleep_on(word: &AtomicU32, seen: u32, limit: Option<Duration>) {
    let limit = limit.map(|limit| rustix::fs::Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() });
    // A change, a signal, the limit: the caller looks again whatever it was.
    let _ = futex::wait(word, futex::Flags::empty(), seen, limit.as_ref());
}
