//! The volatile state of one page: a lock, a version, and the bitmap that readers use.
//!
//! # Protocol
//! The word holds LOCKED (a writer owns the page), PUBLISHING (its bitmap or its visible bytes are changing) and a
//! version that grows with every publication. Readers take no lock: they load the word, load the bitmap, copy, and load
//! the word again. If the version moved or PUBLISHING was set, they try again. That is sound for two reasons:
//!
//! - A writer stores only into copies that the published bitmap calls invalid, or sets PUBLISHING first.
//! - A writer that changes several pages sets PUBLISHING on all of them before it publishes the first, so a reader of
//!   several pages cannot see one changed and the other not.

use std::ptr;

use crate::sys::copy::prefetch;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, fence};

const LOCKED: u64 = 1;
const PUBLISHING: u64 = 2;
const VERSION_SHIFT: u32 = 2;

/// The state of one page; all zeros is unlocked, version 0, all slices valid in the data file.
#[derive(Debug, Zeroed)]
#[repr(C)]
pub(crate) struct PageState {
    word: AtomicU64,
    bitmap: AtomicU64,
}

/// What a reader must find unchanged after its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadGuard {
    word: u64,
    pub(crate) bitmap: u64,
}

impl PageState {
    /// The bitmap now, without a promise that it stays. Under the page's lock it does.
    #[inline]
    pub(crate) fn bitmap(&self) -> u64 {
        self.bitmap.load(Ordering::Acquire)
    }

    /// The version now. Under the page's lock it stays.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.word.load(Ordering::Relaxed) >> VERSION_SHIFT
    }

    /// Starts bringing the state near, for a lock that is about to be taken.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(ptr::from_ref(self).cast());
    }

    /// Locks the page for writing; with `publishing` readers are kept out from the start.
    #[inline]
    pub(crate) fn lock(&self, publishing: bool, relax: impl FnMut(u32)) {
        let flags = if publishing { LOCKED | PUBLISHING } else { LOCKED };
        if !self.try_lock(flags) {
            self.lock_slowly(flags, relax);
        }
        // Whoever reads one of the bytes stored from here on finds, when it looks at the page again, the flag if it
        // was set, and else all that was published before: the bytes go where an older bitmap calls them valid, and a
        // reader that still goes by that one must notice. On x86 the locked instruction sees to it and this costs
        // nothing.
        fence(Ordering::Release);
    }

    /// Locks the page if it is free, with readers let in.
    pub(crate) fn try_hold(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        // Strong, unlike that of who tries again.
        word & LOCKED == 0
            && self.word.compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn try_lock(&self, flags: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word & LOCKED == 0
            && self.word.compare_exchange_weak(word, word | flags, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slowly(&self, flags: u64, mut relax: impl FnMut(u32)) {
        let mut round = 0;
        while !self.try_lock(flags) {
            relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Keeps readers out until [`publish`](PageState::publish). For the holder of the lock only.
    #[inline]
    pub(crate) fn begin_publishing(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) | PUBLISHING, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Makes a new bitmap visible, sets the version and unlocks. For the holder of the lock only.
    #[inline]
    pub(crate) fn publish(&self, bitmap: u64, version: u64) {
        self.bitmap.store(bitmap, Ordering::Release);
        self.word.store(version << VERSION_SHIFT, Ordering::Release);
    }

    /// Unlocks with nothing changed. For the holder of the lock only.
    #[inline]
    pub(crate) fn unlock(&self) {
        self.word.store(self.version() << VERSION_SHIFT, Ordering::Release);
    }

    /// Unlocks with the bitmap unchanged, but with a version of its own: visible bytes were stored to meanwhile, so a
    /// copy begun before the lock is not to be trusted. For the holder of the lock only.
    pub(crate) fn unlock_disturbed(&self) {
        self.publish(self.bitmap(), self.version() + 1);
    }

    /// Sets the bitmap while the file is being opened, before anyone else can see it.
    pub(crate) fn restore(&self, bitmap: u64) {
        self.bitmap.store(bitmap, Ordering::Relaxed);
    }

    /// The state to copy by; `None` while it is being changed.
    #[inline]
    pub(crate) fn read_guard(&self) -> Option<ReadGuard> {
        let word = self.word.load(Ordering::Acquire);
        if word & PUBLISHING != 0 {
            return None;
        }
        Some(ReadGuard { word, bitmap: self.bitmap.load(Ordering::Acquire) })
    }

    /// The state to copy by, for the holder of the lock.
    pub(crate) fn read_locked(&self) -> ReadGuard {
        ReadGuard { word: self.word.load(Ordering::Relaxed), bitmap: self.bitmap.load(Ordering::Relaxed) }
    }

    /// Whether what was copied since the read guard is what it promised.
    #[inline]
    pub(crate) fn validate(&self, read_guard: ReadGuard) -> bool {
        // The loads of the copy must not move below the second load of the word.
        fence(Ordering::Acquire);
        let word = self.word.load(Ordering::Relaxed);
        // Whether a writer has the lock makes no difference as long as it does not publish.
        (word ^ read_guard.word) & !LOCKED == 0
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::sync::zeroed;

    #[test]
    fn a_glimpse_survives_a_lock_but_not_a_publication() {
        let page: PageState = zeroed();
        let read_guard = page.read_guard().unwrap();
        page.lock(false, |_| panic!("free page must not wait"));
        assert!(page.validate(read_guard));
        page.begin_publishing();
        assert!(!page.validate(read_guard));
        assert_eq!(page.read_guard(), None);
        page.publish(5, 1);
        assert!(!page.validate(read_guard));
        assert_eq!(page.read_guard().unwrap().bitmap, 5);
    }

    #[test]
    fn a_version_tells_two_publications_of_one_bitmap_apart() {
        let page: PageState = zeroed();
        let read_guard = page.read_guard().unwrap();
        for version in 1..=2 {
            page.lock(false, |_| ());
            page.publish(version & 1, version);
        }
        assert_eq!(page.bitmap(), read_guard.bitmap);
        assert!(!page.validate(read_guard));
    }

    #[test]
    fn a_disturbed_page_keeps_its_bitmap_but_no_glimpse() {
        let page: PageState = zeroed();
        page.lock(false, |_| ());
        page.publish(9, 7);
        let read_guard = page.read_guard().unwrap();
        page.lock(true, |_| ());
        page.unlock_disturbed();
        assert!(!page.validate(read_guard));
        assert_eq!(page.bitmap(), 9);
    }

    #[test]
    fn unlock_keeps_version_and_bitmap() {
        let page: PageState = zeroed();
        page.lock(false, |_| ());
        page.publish(9, 7);
        let read_guard = page.read_guard().unwrap();
        page.lock(true, |_| ());
        assert_eq!(page.read_guard(), None);
        page.unlock();
        assert_eq!(page.read_guard(), Some(read_guard));
        assert_eq!(page.version(), 7);
    }
}
