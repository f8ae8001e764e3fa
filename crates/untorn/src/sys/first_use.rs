//! A value of the whole process that is made where it is first needed.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Threads that need the value at once each create one, and all use the first that is entered. No thread waits for
/// another, unlike with the lazy values of the standard library: a child forked meanwhile would wait for a thread that
/// it does not have.
pub struct FirstUse<T: 'static> {
    /// Never dropped.
    entered: AtomicPtr<T>,
}

impl<T: Send + Sync> FirstUse<T> {
    /// Creates an empty value.
    pub const fn new() -> Self {
        FirstUse { entered: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value, if it was created. Safe in a signal handler.
    #[inline]
    pub(crate) fn made(&self) -> Option<&'static T> {
        // SAFETY: null, or leaked by `enter`; nobody changes it or gives it back.
        unsafe { self.entered.load(Ordering::Acquire).as_ref() }
    }

    /// The value; it is created on first use.
    #[inline]
    pub fn get(&self, make: impl FnOnce() -> T) -> &'static T {
        self.made().unwrap_or_else(|| self.enter(Box::new(make())))
    }

    #[cold]
    fn enter(&self, made: Box<T>) -> &'static T {
        let made = Box::into_raw(made);
        let first = match self.entered.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(first) => {
                // SAFETY: from `into_raw`, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                first
            }
        };
        // SAFETY: a box that this function, in one thread or another, leaked; nobody changes it or gives it back.
        unsafe { &*first }
    }
}

impl<T: Send + Sync> Default for FirstUse<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_needed_while_it_is_made_is_there_for_both() {
        static VALUE: FirstUse<u64> = FirstUse::new();
        // What a lazy value of the standard library never answers: who makes it needs it, as a forked child may.
        let outer = VALUE.get(|| {
            assert_eq!(*VALUE.get(|| 5), 5);
            7
        });
        assert!(*outer == 5 && ptr::eq(outer, VALUE.get(|| 9)));
    }
}
