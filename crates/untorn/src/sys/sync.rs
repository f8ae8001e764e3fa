//! What threads share and how they wait for each other: the standard library's, by names that a model checker has too.
//!
//! The lock-free cores (page locks, lanes, group commit, calm pages, the registry of open files) import from here and
//! not from the standard library. Under `--cfg loom` the file beside this one takes its place, and `cargo xtask loom` runs
//! the code that ships, not a copy of it, through its interleavings.

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
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// A value of its own that starts as zeros.
#[cfg(test)]
pub(crate) fn zeroed<T: Zeroed>() -> T {
    T::new_zeroed()
}
