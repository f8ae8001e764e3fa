//! The in-memory state of a log entry: where its bytes belong, and how far its checkpoint has come.

use super::block_range::Link;
use super::format::Kind;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, fence};

/// What is known in memory of one entry, by its first unit.
#[derive(Zeroed)]
#[repr(C)]
pub(super) struct Meta {
    pub(super) epoch: AtomicU64,
    pub(super) block: AtomicU64,
    /// The bytes in the entry: offset in the upper half, length in the lower.
    delta: AtomicU64,
    /// Undo: the bytes of the cover that entries of the epoch hold, this one's and others'.
    hull: AtomicU64,
    /// Class, kind, whether there is an entry at all and whether it is inline, how far it is on its way home, and of
    /// which use of the chunk it is: whoever claims an entry that was given up, and whose place another has by now,
    /// must not get that one.
    what: AtomicU64,
    /// The check of its header.
    pub(super) check: AtomicU64,
}

/// Bytes of a cover, `offset..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u32,
    pub(super) end: u32,
}

impl Extent {
    pub(super) fn len(self) -> u32 {
        self.end - self.offset
    }

    /// The smallest that has both.
    pub(super) fn with(self, other: Extent) -> Extent {
        Extent { offset: self.offset.min(other.offset), end: self.end.max(other.end) }
    }

    pub(super) fn has(self, other: Extent) -> bool {
        self.offset <= other.offset && other.end <= self.end
    }

    fn pack(self) -> u64 {
        u64::from(self.offset) << 32 | u64::from(self.end)
    }

    fn unpack(word: u64) -> Extent {
        Extent { offset: (word >> 32) as u32, end: word as u32 }
    }
}

const TAKEN: u64 = 1 << 8;
const UNDO: u64 = 1 << 9;
/// Somebody carries it home.
const CARRIED: u64 = 1 << 10;
/// It is at home.
const GONE: u64 = 1 << 11;
/// Its bytes stand behind its header.
const INLINE: u64 = 1 << 12;
/// The lap of its links, from here on.
const LAP: u32 = 16;

/// Whose business it is to carry an entry home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The caller's, who then says [how it came out](Meta::settle).
    Mine,
    /// Somebody else's, who is at it.
    Others,
    /// Nobody's any more.
    Done,
}

impl Meta {
    /// Describes a new entry, which this link names. That there is one comes last: whoever finds it finds the rest.
    pub(super) fn set(&self, link: Link, epoch: u64, block: u64, delta: Extent, check: u64) {
        self.describe(link, epoch, block, delta, check, 0);
    }

    /// The same for an entry whose bytes stand behind its header.
    pub(super) fn set_inline(&self, link: Link, epoch: u64, block: u64, delta: Extent, check: u64) {
        self.describe(link, epoch, block, delta, check, INLINE);
    }

    #[inline(always)]
    fn describe(&self, link: Link, epoch: u64, block: u64, delta: Extent, check: u64, inline: u64) {
        self.block.store(block, Ordering::Relaxed);
        self.set_delta(delta);
        self.set_hull(delta);
        self.check.store(check, Ordering::Relaxed);
        // Whoever finds this epoch finds that an older entry, which had its place, is gone.
        self.epoch.store(epoch, Ordering::Release);
        let kind = if link.is_redo() { 0 } else { UNDO };
        self.what.store(link.lap() << LAP | TAKEN | kind | inline | u64::from(link.class()), Ordering::Release);
    }

    /// Says that there is no entry, nor was one.
    pub(super) fn clear(&self) {
        self.what.store(0, Ordering::Release);
    }

    pub(super) fn delta(&self) -> Extent {
        Extent::unpack(self.delta.load(Ordering::Acquire))
    }

    pub(super) fn set_delta(&self, delta: Extent) {
        self.delta.store(delta.pack(), Ordering::Release);
    }

    pub(super) fn hull(&self) -> Extent {
        Extent::unpack(self.hull.load(Ordering::Relaxed))
    }

    pub(super) fn set_hull(&self, hull: Extent) {
        self.hull.store(hull.pack(), Ordering::Relaxed);
    }

    /// Claims the redo entry that a link names, to carry it home. Of several who want to, one gets it.
    pub(super) fn claim(&self, link: Link) -> Claim {
        let what = self.what.load(Ordering::Acquire);
        // An entry is given up, and its place used anew, only when it is at home.
        if what & (TAKEN | GONE) != TAKEN || what >> LAP != link.lap() {
            return Claim::Done;
        }
        let free = what & CARRIED == 0;
        if free && self.what.compare_exchange(what, what | CARRIED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // Whoever reads one of the bytes stored from here on finds the write that made the entry. On x86 this costs
            // nothing.
            fence(Ordering::Release);
            return Claim::Mine;
        }
        Claim::Others
    }

    /// Says of a claimed entry whether it is at home now, where everybody can see it.
    pub(super) fn settle(&self, at_home: bool) {
        let what = self.what.load(Ordering::Relaxed) & !CARRIED;
        self.what.store(if at_home { what | GONE } else { what }, Ordering::Release);
    }

    /// Whether there is an entry that readers must look at.
    pub(super) fn is_live(&self) -> bool {
        self.what.load(Ordering::Acquire) & (TAKEN | UNDO | GONE) == TAKEN
    }

    /// Whether its bytes stand behind its header.
    pub(super) fn is_inline(&self) -> bool {
        self.what.load(Ordering::Acquire) & INLINE != 0
    }

    /// Kind and class; `None` if there is no entry.
    pub(super) fn what(&self) -> Option<(Kind, u8)> {
        let what = self.what.load(Ordering::Acquire);
        let kind = if what & UNDO != 0 { Kind::Undo } else { Kind::Redo };
        (what & TAKEN != 0).then_some((kind, what as u8))
    }
}
