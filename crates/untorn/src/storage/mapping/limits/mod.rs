//! Which accesses to a mapped file are admitted, and where.
//!
//! # Protocol
//! A thread that makes the file longer first shows the address of a window that covers the new length
//! ([`move_to`](Limits::move_to)), then the limit ([`set`](Limits::set), with release). A reader loads the limit first
//! (acquire), then the address. So the window that it finds covers the limit that it has checked, or a longer one.

use std::ptr;

use super::super::last_in_page;
use crate::sys::sync::{AtomicU64, Ordering};

pub(super) struct Limits {
    /// The address of the file's first byte, in the newest window.
    base: AtomicU64,
    /// Where loads must end: at the length, or 0 if a page was lost.
    loads_to: AtomicU64,
    /// Where stores must end: as for loads, and 0 for a file opened for reading.
    stores_to: AtomicU64,
}

impl Limits {
    /// Admits nothing.
    pub(super) fn new(base: u64) -> Self {
        Limits { base: AtomicU64::new(base), loads_to: AtomicU64::new(0), stores_to: AtomicU64::new(0) }
    }

    /// Sends accesses to another window, which covers all that the one before does.
    pub(super) fn move_to(&self, base: u64) {
        self.base.store(base, Ordering::Release);
    }

    /// Sets the limits. The newest window covers them.
    pub(super) fn set(&self, loads_to: u64, stores_to: u64) {
        self.loads_to.store(loads_to, Ordering::Release);
        self.stores_to.store(stores_to, Ordering::Release);
    }

    /// The address of an offset, wherever that is: not to be accessed.
    #[inline(always)]
    pub(super) fn address(&self, offset: u64) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.base.load(Ordering::Relaxed).wrapping_add(offset) as usize)
    }

    /// The address of a range that may be loaded from.
    #[inline(always)]
    pub(super) fn load(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let limit = self.loads_to.load(Ordering::Acquire);
        if within(offset, len, limit) { Some(self.address(offset)) } else { None }
    }

    /// The same of a range within a page.
    #[inline(always)]
    pub(super) fn load_in_page(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let last = last_in_page(offset, len)?;
        if last < self.loads_to.load(Ordering::Acquire) { Some(self.address(offset)) } else { None }
    }

    /// The address of a range that may be stored to.
    #[inline(always)]
    pub(super) fn store(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let limit = self.stores_to.load(Ordering::Acquire);
        if within(offset, len, limit) { Some(self.address(offset)) } else { None }
    }
}

/// Whether `len` bytes at `offset` end by `limit`.
#[inline(always)]
fn within(offset: u64, len: usize, limit: u64) -> bool {
    // The second comparison doesn't overflow, since the first has ordered the two.
    offset <= limit && len as u64 <= limit - offset
}

#[cfg(all(test, loom))]
mod models;
