//! The control block: shared words that all processes use, and that outlive each of them.
//!
//! Each page has these bits. *Dirty*: it may differ from the last commit. *In flight*: a running commit has a copy of
//! it. *Pending*: that copy is not made yet, so no thread may store to the page. *Present*: the working copy has the
//! page. And for each process, *writable*: stores of that process to the page do not fault.
//!
//! # Invariants at every instant, whichever process is killed
//!
//! - A page that is writable in some process is dirty, and its writable bit is set. Both are set before the kernel is
//!   asked to allow stores, and cleared after it was asked to stop them.
//! - A page that is neither dirty nor in flight equals the last commit: see [`dirty`].
//! - A bit of a page gets its memory before the page does. Bits of pages that no process ever touched take none, and
//!   are clear.
//!
//! # Why there is no model of it
//!
//! A process that stores to a page sets bits under the gate. Only the process that serves changes the words otherwise.
//! The only lock-free protocol is the [`gate`]'s.

mod bits;
mod dirty;
mod gate;

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub(super) use self::bits::Bits;
use self::bits::pages_of;
pub(super) use self::gate::{CLOSED, COPYING, OPEN};
use crate::ipc::rendezvous::MEMBERS;
use crate::ipc::wait::{sleep_on, wake_all};
use crate::ipc::words::{self, set_random_name, set_text, text};
use crate::sys::shared::SharedPages;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"untornWC");
/// Of the block's layout and of the messages; processes of different versions don't share.
pub(super) const VERSION: u64 = 5;

// The block begins with two pages of words of 32 bits, each of what changes often in a cache line of its own.
const GATE: usize = 0;
const FILLS: usize = 16;
const MEMBER: usize = 1024;
/// Words of 32 bits of a member: how many of its threads are in the gate, and whether it takes part.
const MEMBER_STRIDE: usize = 16;
const HALVES: usize = 2048;

// Then come a page of words of 64 bits, and the bitmaps.
const WORDS_AT: usize = HALVES * 4;
const WORD_MAGIC: usize = 0;
const WORD_VERSION: usize = 1;
const WORD_ID: usize = 2;
const WORD_RESERVED: usize = 4;
const WORD_LEN: usize = 5;
const WORD_COMMIT: usize = 6;
const WORD_ROLLING_BACK: usize = 7;
const WORD_LOST: usize = 8;
const WORD_COMMITTING: usize = 9;
const WORD_BACKING: usize = 10;
const WORD_SESSIONS: usize = 12;
const WORD_POISONED: usize = 15;
const WORD_CAUSE: usize = 16;
const CAUSE_WORDS: usize = 64;
const WORD_NEGOTIATED: usize = WORD_CAUSE + CAUSE_WORDS;
const NEGOTIATED_WORDS: usize = 128;
const BITMAPS_AT: usize = WORDS_AT + PAGE;

/// The block.
pub(super) struct Control {
    memory: SharedPages,
    /// Pages that the address space of each process has room for.
    reserved: u64,
}

/// Where the bitmaps lie in a block for so many pages.
#[derive(Clone, Copy)]
struct Layout {
    words: usize,
    summary: usize,
}

impl Layout {
    fn new(reserved: u64) -> Self {
        let words = reserved.div_ceil(64).next_multiple_of(512) as usize;
        Layout { words, summary: words.div_ceil(64).next_multiple_of(512) }
    }

    /// The offset of a bitmap in bytes: dirty, in flight, pending, present, then one for each member.
    fn bitmap(&self, index: usize) -> usize {
        BITMAPS_AT + (self.summary + index * self.words) * 8
    }

    fn total(&self) -> usize {
        self.bitmap(4 + MEMBERS)
    }
}

const DIRTY: usize = 0;
const IN_FLIGHT: usize = 1;
const PENDING: usize = 2;
const PRESENT: usize = 3;

impl Control {
    /// A new block for shared memory of `len` bytes that can grow to `reserved` pages.
    ///
    /// # Errors
    /// Those of making shared memory.
    pub(super) fn create(len: u64, reserved: u64) -> io::Result<Self> {
        let total = Layout::new(reserved).total();
        let control = Control { memory: SharedPages::create("untorn-control", total as u64, total)?, reserved };
        control.memory.allocate(0, BITMAPS_AT as u64)?;
        control.allocate_summary(len.div_ceil(PAGE as u64))?;
        let words = control.words();
        set_random_name(&words[WORD_ID..][..2])?;
        words[WORD_RESERVED].store(reserved, Ordering::Relaxed);
        words[WORD_LEN].store(len, Ordering::Relaxed);
        words[WORD_VERSION].store(VERSION, Ordering::Relaxed);
        words[WORD_MAGIC].store(MAGIC, Ordering::Release);
        Ok(control)
    }

    /// A block that another process has made.
    ///
    /// # Errors
    /// Text if it isn't one; those of `mmap(2)`.
    pub(super) fn join(file: OwnedFd, reserved: u64) -> io::Result<Self> {
        if reserved == 0 || reserved > 1 << 40 {
            return Err(io::Error::other("the process that serves it sent an impossible size of the working copy"));
        }
        let total = Layout::new(reserved).total();
        let control = Control { memory: SharedPages::map(file, total)?, reserved };
        // First its size: beyond its end there is nothing to look at.
        if control.memory.file_len()? < total as u64
            || control.words()[WORD_MAGIC].load(Ordering::Acquire) != MAGIC
            || control.words()[WORD_VERSION].load(Ordering::Relaxed) != VERSION
            || control.words()[WORD_RESERVED].load(Ordering::Relaxed) != reserved
        {
            return Err(io::Error::other(
                "the process that serves it sent a working copy of another version; use the same version of untorn in \
                 every process",
            ));
        }
        Ok(control)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Makes sure that dirty pages can be found among the first `pages`. The bits themselves get their memory when a
    /// page first gets its own: see [`allocate`](Control::allocate).
    ///
    /// # Errors
    /// Those of `fallocate(2)`.
    pub(super) fn allocate_summary(&self, pages: u64) -> io::Result<()> {
        self.memory.allocate(BITMAPS_AT as u64, (pages.div_ceil(64).div_ceil(64) * 8).max(8))
    }

    /// Makes sure that the bits of these pages can be set, those of the members excepted.
    ///
    /// # Errors
    /// Those of `fallocate(2)`.
    pub(super) fn allocate(&self, pages: &Range<u64>) -> io::Result<()> {
        (DIRTY..=PRESENT).try_for_each(|index| self.allocate_bits(index, pages))
    }

    /// The same for the bits of a member.
    ///
    /// # Errors
    /// Those of `fallocate(2)`.
    pub(super) fn allocate_member(&self, slot: usize, pages: &Range<u64>) -> io::Result<()> {
        self.allocate_bits(4 + slot, pages)
    }

    fn allocate_bits(&self, index: usize, pages: &Range<u64>) -> io::Result<()> {
        let at = Layout::new(self.reserved).bitmap(index) as u64;
        let (from, to) = (pages.start / 64 * 8, pages.end.div_ceil(64) * 8);
        self.memory.allocate(at + from, to - from)
    }

    /// The words of a bitmap in which there may be bits, in rows: those that have memory.
    fn words_in_memory(&self, index: usize) -> impl Iterator<Item = usize> {
        let at = Layout::new(self.reserved).bitmap(index) as u64;
        let end = at + self.pages().div_ceil(64) * 8;
        let mut next = at;
        std::iter::from_fn(move || {
            // If the kernel does not tell, there may be some anywhere.
            let from = self.memory.memory_from(next).unwrap_or(Some(next)).filter(|from| *from < end)?;
            next = (from / PAGE as u64 + 1) * PAGE as u64;
            Some((from - at) as usize / 8..(next.min(end) - at) as usize / 8)
        })
        .flatten()
    }

    /// Whether one of these pages is present.
    pub(super) fn has_present(&self, pages: &Range<u64>) -> bool {
        let present = self.present();
        present.words[(pages.start / 64) as usize..pages.end.div_ceil(64) as usize]
            .iter()
            .zip(pages.start / 64..)
            .any(|(word, at)| pages_of(at as usize, word.load(Ordering::SeqCst)).any(|page| pages.contains(&page)))
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words(WORDS_AT, PAGE / 8)
    }

    fn half(&self, index: usize) -> &AtomicU32 {
        &self.memory.halves(0, HALVES)[index]
    }

    fn bits(&self, index: usize) -> Bits<'_> {
        let layout = Layout::new(self.reserved);
        let summary = if index == DIRTY { self.memory.words(BITMAPS_AT, layout.summary) } else { &[] };
        Bits { words: self.memory.words(layout.bitmap(index), layout.words), summary }
    }

    pub(super) fn dirty(&self) -> Bits<'_> {
        self.bits(DIRTY)
    }

    pub(super) fn in_flight(&self) -> Bits<'_> {
        self.bits(IN_FLIGHT)
    }

    pub(super) fn pending(&self) -> Bits<'_> {
        self.bits(PENDING)
    }

    pub(super) fn present(&self) -> Bits<'_> {
        self.bits(PRESENT)
    }

    pub(super) fn writable(&self, slot: usize) -> Bits<'_> {
        self.bits(4 + slot)
    }

    /// Which shared memory this is, among all there ever were.
    pub(super) fn name(&self) -> String {
        words::name(&self.words()[WORD_ID..])
    }

    /// Pages there is room for.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of the shared memory.
    pub(super) fn len(&self) -> u64 {
        // Whatever a process that went wild may have stored there.
        self.words()[WORD_LEN].load(Ordering::Acquire).min(self.reserved * PAGE as u64)
    }

    pub(super) fn set_len(&self, len: u64) {
        self.words()[WORD_LEN].store(len, Ordering::Release);
    }

    /// Pages of the shared memory.
    pub(super) fn pages(&self) -> u64 {
        self.len().div_ceil(PAGE as u64)
    }

    /// The number of the last commit.
    pub(super) fn commit(&self) -> u64 {
        self.words()[WORD_COMMIT].load(Ordering::Acquire)
    }

    pub(super) fn set_commit(&self, number: u64) {
        self.words()[WORD_COMMIT].store(number, Ordering::Release);
    }

    /// The number that the commit under way has if it succeeds; that of an earlier one, or 0, if none is.
    pub(super) fn committing(&self) -> u64 {
        self.words()[WORD_COMMITTING].load(Ordering::SeqCst)
    }

    pub(super) fn set_committing(&self, number: u64) {
        self.words()[WORD_COMMITTING].store(number, Ordering::SeqCst);
    }

    /// Which backing it is.
    pub(super) fn backing(&self) -> [u64; 2] {
        [0, 1].map(|index| self.words()[WORD_BACKING + index].load(Ordering::SeqCst))
    }

    pub(super) fn set_backing(&self, identity: [u64; 2]) {
        for (index, word) in identity.into_iter().enumerate() {
            self.words()[WORD_BACKING + index].store(word, Ordering::SeqCst);
        }
    }

    /// In which sessions the processes had the backing that served: the last one that is known to have begun, and the
    /// one that may have begun after it.
    pub(super) fn sessions(&self) -> [u64; 2] {
        [0, 1].map(|index| self.words()[WORD_SESSIONS + index].load(Ordering::SeqCst))
    }

    /// In this order: whoever is killed in between leaves what was right before.
    pub(super) fn set_sessions(&self, begun: u64, next: u64) {
        self.words()[WORD_SESSIONS].store(begun, Ordering::SeqCst);
        self.words()[WORD_SESSIONS + 1].store(next, Ordering::SeqCst);
    }

    /// Whether some dirty pages have been brought back to the last commit, and others not yet.
    pub(super) fn rolling_back(&self) -> bool {
        self.words()[WORD_ROLLING_BACK].load(Ordering::SeqCst) != 0
    }

    pub(super) fn set_rolling_back(&self, now: bool) {
        self.words()[WORD_ROLLING_BACK].store(now.into(), Ordering::SeqCst);
    }

    /// A page that there was no memory for, if there was one.
    pub(super) fn lost(&self) -> Option<u64> {
        self.words()[WORD_LOST].load(Ordering::SeqCst).checked_sub(1)
    }

    pub(super) fn set_lost(&self, page: u64) {
        self.words()[WORD_LOST].store(page + 1, Ordering::SeqCst);
    }

    /// Why nothing more is promised, if so.
    pub(super) fn poisoned(&self) -> Option<String> {
        let len = self.words()[WORD_POISONED].load(Ordering::SeqCst);
        (len != 0).then(|| text(&self.words()[WORD_CAUSE..][..CAUSE_WORDS], len))
    }

    /// Notes that nothing more is promised, unless it was noted before.
    pub(super) fn poison(&self, cause: &str) {
        let words = self.words();
        if words[WORD_POISONED].load(Ordering::SeqCst) != 0 {
            return;
        }
        set_text(&words[WORD_CAUSE..][..CAUSE_WORDS], cause);
        let len = cause.len().clamp(1, CAUSE_WORDS * 8);
        words[WORD_POISONED].store(len as u64, Ordering::SeqCst);
    }

    /// On what terms the process that came first opened the backing.
    pub(super) fn negotiated(&self) -> String {
        let len = self.words()[WORD_NEGOTIATED].load(Ordering::Relaxed);
        text(&self.words()[WORD_NEGOTIATED + 1..][..NEGOTIATED_WORDS], len)
    }

    /// Notes them, before anybody else takes part.
    pub(super) fn set_negotiated(&self, negotiated: &str) {
        set_text(&self.words()[WORD_NEGOTIATED + 1..][..NEGOTIATED_WORDS], negotiated);
        self.words()[WORD_NEGOTIATED].store(negotiated.len() as u64, Ordering::Relaxed);
    }

    /// How many threads of a member are making a page writable just now.
    pub(super) fn active(&self, slot: usize) -> &AtomicU32 {
        self.half(MEMBER + slot * MEMBER_STRIDE)
    }

    /// Whether a member takes part: its process maps the shared memory.
    pub(super) fn attached(&self, slot: usize) -> bool {
        self.half(MEMBER + slot * MEMBER_STRIDE + 1).load(Ordering::SeqCst) != 0
    }

    pub(super) fn set_attached(&self, slot: usize, now: bool) {
        self.half(MEMBER + slot * MEMBER_STRIDE + 1).store(now.into(), Ordering::SeqCst);
    }

    /// Resets all the bits of a member.
    pub(super) fn reset_member(&self, slot: usize) {
        self.active(slot).store(0, Ordering::SeqCst);
        let writable = self.writable(slot);
        self.words_in_memory(4 + slot).for_each(|word| writable.words[word].store(0, Ordering::SeqCst));
    }

    /// Fills so far: for waiting with [`await_fill`](Control::await_fill).
    pub(super) fn fills(&self) -> u32 {
        self.half(FILLS).load(Ordering::SeqCst)
    }

    /// Waits for the next fill after `seen`, but not long.
    pub(super) fn await_fill(&self, seen: u32) {
        sleep_on(self.half(FILLS), seen, Some(Duration::from_millis(20)));
    }

    /// Tells all who wait for a page that one was filled.
    pub(super) fn tell_filled(&self) {
        self.half(FILLS).fetch_add(1, Ordering::SeqCst);
        wake_all(self.half(FILLS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_sees_the_same_and_another_size_is_refused() {
        let control = Control::create(5 * PAGE as u64, 512).unwrap();
        let file = || control.file().try_clone_to_owned().unwrap();
        let other = Control::join(file(), 512).unwrap();
        control.writable(63).set(4);
        other.poison("a reason");
        control.poison("a later one");
        assert!(other.writable(63).get(4) && !other.writable(62).get(4));
        assert_eq!((other.name(), other.pages()), (control.name(), 5));
        assert_eq!(control.poisoned().as_deref(), Some("a reason"));
        other.reset_member(63);
        assert!(!control.writable(63).get(4));
        for wrong in [0, 1 << 20, u64::MAX] {
            assert!(Control::join(file(), wrong).is_err());
        }
    }
}
