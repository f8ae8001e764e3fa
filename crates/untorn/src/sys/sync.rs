//! What threads share and how they wait for each other: the standard library's, by names that a model checker has too.
//!
//! The lock-free cores (page locks, lanes, group commit, calm pages, the registry of open files) import from here and
//! not from the standard library. Under `--cfg loom` the file beside this one takes its place, and `cargo xtask loom`
//! runs the code that ships, not a copy of it, through its interleavings.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, Weak};
pub(crate) use std::thread::sleep;

pub(crate) use zerocopy::FromZeros as Zeroed;

pub(crate) use super::zeroed::{ZeroedArray, ZeroedBox};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// This thread's number: threads count up from 0 in the order in which they first ask.
#[inline(always)]
pub(crate) fn thread_number() -> usize {
    // Every read and every write asks. All that it takes to give the number the first time is elsewhere, for with it
    // the compiler would make the look-up two calls instead of one load.
    match NUMBER.get() {
        usize::MAX => number_this_thread(),
        number => number,
    }
}

#[cold]
#[inline(never)]
fn number_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// A value of its own that starts as zeros.
#[cfg(test)]
pub(crate) fn zeroed<T: Zeroed>() -> T {
    T::new_zeroed()
}
