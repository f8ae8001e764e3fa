//! The state of each working thread: the chunk it fills, and its part of the open epoch's digest.

use super::format::Digest;
use crate::format::record::LINE;
use crate::sync::slots::ThreadSlotState;
use crate::sync::word_lock::WordLock;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed};

/// A lane; all zeros is one that did nothing yet. Two cache lines, for neighbours are fetched in pairs.
#[derive(Zeroed)]
#[repr(C, align(128))]
pub(super) struct LaneState {
    word_lock: WordLock,
    /// The chunk it fills, and 1 more; 0 for none.
    chunk: AtomicU64,
    /// Its part of the open epoch's digest.
    count: AtomicU64,
    sum: AtomicU64,
    /// 1 if something of the open epoch is certified by no checksum.
    uncertain: AtomicU64,
    /// Writes in the open epoch.
    writes: AtomicU64,
    /// Stores through the cache that nobody has written back yet: how many, and of each the first line and the number
    /// of lines.
    remembered: AtomicU64,
    lines: [AtomicU64; REMEMBERED],
}

/// Stores through the cache that a lane remembers: so many that the wait for their lines is short for each, so few
/// that a commit has little to write back.
const REMEMBERED: usize = 32;

const LINES_BITS: u32 = 8;

impl ThreadSlotState for LaneState {
    #[inline(always)]
    fn word_lock(&self) -> &WordLock {
        &self.word_lock
    }
}

/// Reads since the last commit, by threads that share this counter; approximate, for they do not exclude each other.
#[derive(Zeroed)]
#[repr(C, align(128))]
pub(super) struct ReadCount(AtomicU64);

impl ReadCount {
    #[inline(always)]
    pub(super) fn add(&self) {
        // Not one atomic addition: that would cost more than a short read does.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> u64 {
        // Not one atomic exchange either: a commit takes all of these counters, mostly of threads that there are not,
        // and each exchange would wait for the last, and for a line to itself that only had to be looked at.
        let count = self.0.load(Ordering::Relaxed);
        if count != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
        count
    }
}

/// For the holder of the lane, or of all.
impl LaneState {
    #[inline]
    pub(super) fn chunk(&self) -> Option<u64> {
        self.chunk.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn set_chunk(&self, chunk: Option<u64>) {
        self.chunk.store(chunk.map_or(0, |chunk| chunk + 1), Ordering::Relaxed);
    }

    /// Counts a write.
    #[inline]
    pub(super) fn count_write(&self) {
        self.writes.store(self.writes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts a header in.
    #[inline]
    pub(super) fn add(&self, check: u64) {
        let mut digest = self.digest();
        digest.add(check);
        self.set_digest(digest);
    }

    /// Counts a header in whose place another was.
    pub(super) fn replace(&self, old: u64, new: u64) {
        self.sum.store(self.digest().sum.wrapping_sub(old).wrapping_add(new), Ordering::Relaxed);
    }

    /// Counts a header out again.
    pub(super) fn remove(&self, check: u64) {
        let Digest { count, sum } = self.digest();
        self.set_digest(Digest { count: count.wrapping_sub(1), sum: sum.wrapping_sub(check) });
    }

    /// Remembers two stores through the cache, given by offset and length. False if the next two might find no place:
    /// then all are to be [forgotten](LaneState::forget).
    #[inline]
    pub(super) fn remember(&self, stores: [(u64, u64); 2]) -> bool {
        let count = self.remembered.load(Ordering::Relaxed) as usize;
        for (place, (offset, len)) in stores.into_iter().enumerate() {
            let (first, last) = (offset / LINE, (offset + len - 1) / LINE);
            self.lines[(count + place) % REMEMBERED].store(first << LINES_BITS | (last - first + 1), Ordering::Relaxed);
        }
        self.remembered.store(count as u64 + 2, Ordering::Relaxed);
        count + 2 < REMEMBERED
    }

    /// Calls `each` with the bytes of every store remembered, and forgets them.
    pub(super) fn forget(&self, mut each: impl FnMut(u64, u64)) {
        let count = self.remembered.load(Ordering::Relaxed) as usize;
        for line in &self.lines[..count.min(REMEMBERED)] {
            let line = line.load(Ordering::Relaxed);
            each((line >> LINES_BITS) * LINE, (line & ((1 << LINES_BITS) - 1)) * LINE);
        }
        self.remembered.store(0, Ordering::Relaxed);
    }

    pub(super) fn set_uncertain(&self) {
        self.uncertain.store(1, Ordering::Relaxed);
    }

    pub(super) fn is_uncertain(&self) -> bool {
        self.uncertain.load(Ordering::Relaxed) != 0
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn digest(&self) -> Digest {
        Digest { count: self.count.load(Ordering::Relaxed), sum: self.sum.load(Ordering::Relaxed) }
    }

    fn set_digest(&self, digest: Digest) {
        self.count.store(digest.count, Ordering::Relaxed);
        self.sum.store(digest.sum, Ordering::Relaxed);
    }

    /// Forgets the epoch, which has been committed or taken back.
    pub(super) fn start_epoch(&self) {
        self.set_digest(Digest::default());
        self.uncertain.store(0, Ordering::Relaxed);
        self.writes.store(0, Ordering::Relaxed);
    }
}
