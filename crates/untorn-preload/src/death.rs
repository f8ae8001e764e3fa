//! A test build dies where it is told to: `UNTORN_PRELOAD_DEATH` names a step of an append, and after how many of
//! them. With a third number it sends itself that signal instead of SIGKILL; or, if it is 0, takes its time, as it
//! may anywhere.

use core::sync::atomic::{AtomicU64, Ordering};

use untorn_ring::Step;

use crate::raw;

/// The step, counted from 1, and how often it is reached before.
static DEATH: AtomicU64 = AtomicU64::new(0);
static BEFORE: AtomicU64 = AtomicU64::new(0);
static SIGNAL: AtomicU64 = AtomicU64::new(libc::SIGKILL as u64);

/// Reads what the environment says: the number of the step, the number of times, the signal, with colons between them.
pub(crate) fn set_up() {
    let Some(text) = untorn_ring::environment::variable(untorn_wire::DEATH) else { return };
    let text = text.to_string_lossy();
    let mut numbers = text.split(':').map(str::parse::<u64>);
    if let (Some(Ok(step)), Some(Ok(times))) = (numbers.next(), numbers.next()) {
        BEFORE.store(times, Ordering::Relaxed);
        if let Some(Ok(signal)) = numbers.next() {
            SIGNAL.store(signal, Ordering::Relaxed);
        }
        DEATH.store(step + 1, Ordering::Relaxed);
    }
}

/// A step is reached.
pub(crate) fn reached(step: Step) {
    if DEATH.load(Ordering::Relaxed) != step as u64 + 1 || BEFORE.fetch_sub(1, Ordering::Relaxed) != 0 {
        return;
    }
    if SIGNAL.load(Ordering::Relaxed) == 0 {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        // SAFETY: a time that is read.
        let _ = unsafe { raw::call(libc::SYS_nanosleep, [&raw const time as usize, 0, 0, 0, 0, 0]) };
        return;
    }
    let process = raw::getpid() as usize;
    // SAFETY: takes numbers.
    let _ = unsafe { raw::call(libc::SYS_kill, [process, SIGNAL.load(Ordering::Relaxed) as usize, 0, 0, 0, 0]) };
}
