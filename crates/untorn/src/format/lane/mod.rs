//! Lanes: rings of record lines, one for each thread that writes at the same time.
//!
//! A thread keeps its lane, so writers of different pages share no cache line. Only a *cut* of all lanes together frees
//! space in a lane: retiring one lane alone would let an older record of another lane roll a page back.

use std::io;

use super::record::{ChecksumSeed, LINE, Line, Record, encode};
use crate::error::Result;
use crate::storage::MediumFile;
use crate::sync::slots::{AllSlots, ThreadSlot, ThreadSlotState, ThreadSlots};
use crate::sync::word_lock::WordLock;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedArray};

/// The volatile state of a lane, a cache line of its own. All zeros is an empty lane.
#[derive(Debug, Zeroed)]
#[repr(C, align(64))]
pub(crate) struct LaneState {
    word_lock: WordLock,
    /// Sequence number of the lane's last record.
    last: AtomicU64,
    /// Lines ever appended; the next one goes to slot `head % slots`.
    head: AtomicU64,
    /// Lines given up by cuts. `head - tail` lines are live.
    tail: AtomicU64,
    /// When the last commit was made whose record it has, in nanoseconds since 1970.
    time: AtomicU64,
}

impl ThreadSlotState for LaneState {
    #[inline(always)]
    fn word_lock(&self) -> &WordLock {
        &self.word_lock
    }
}

/// A lane held by this thread; dropping it lets it go.
pub(crate) type Lane<'a> = ThreadSlot<'a, LaneState>;

/// The lanes of one sidecar.
pub(crate) struct Lanes {
    thread_slots: ThreadSlots<LaneState>,
    /// For each line of each lane the pages it names, plus 1: two words, 0 for none.
    named: ZeroedArray<AtomicU64>,
    /// Byte offset of the first lane in the sidecar.
    at: u64,
    /// Lines of each lane, a power of two.
    slots: u64,
}

/// Where a lane's next record goes, and what goes before it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    lane: usize,
    line: u64,
    /// Sequence number of the record before it.
    pub(crate) last: u64,
}

impl Lanes {
    /// Empty lanes whose first begins at byte `at` of the sidecar. Both numbers are powers of two.
    pub(crate) fn new(at: u64, lanes: u32, slots: u32) -> io::Result<Self> {
        Ok(Lanes {
            thread_slots: ThreadSlots::new(lanes as usize)?,
            named: ZeroedArray::reserve(2 * lanes as usize * slots as usize)?,
            at,
            slots: u64::from(slots),
        })
    }

    /// A free lane, this thread's own if it is.
    #[inline(always)]
    pub(crate) fn acquire(&self, relax: impl FnMut(u32)) -> Lane<'_> {
        self.thread_slots.acquire(relax)
    }

    /// This thread's own lane, if it is free.
    pub(crate) fn try_acquire(&self) -> Option<Lane<'_>> {
        self.thread_slots.try_acquire()
    }

    /// Every lane that was ever taken: while they are held, no write and no record is under way anywhere.
    pub(crate) fn acquire_all(&self, relax: impl FnMut(u32)) -> AllSlots<'_, LaneState> {
        self.thread_slots.acquire_all(relax)
    }

    /// Every page named by the live lines of a lane up to `head`, a value of [`Lane::head`].
    ///
    /// It goes by the copy in memory, not only because that is nearer: a line that was read is in the CPU's cache,
    /// and a non-temporal store over a cached line costs half a fence more.
    #[inline]
    pub(crate) fn live_pages(&self, index: usize, head: u64) -> impl Iterator<Item = u64> {
        let lines = self.thread_slots.states()[index].tail.load(Ordering::Acquire)..head;
        let names = lines.flat_map(move |line| {
            let slot = 2 * self.slot(index, line);
            &self.named[slot..slot + 2]
        });
        names.filter_map(|name| name.load(Ordering::Relaxed).checked_sub(1))
    }

    /// The highest sequence number of any lane.
    pub(crate) fn last(&self) -> u64 {
        self.thread_slots.states().iter().map(|state| state.last.load(Ordering::Acquire)).max().unwrap_or(0)
    }

    /// When the last commit was made of which any lane has, or had, the record.
    pub(crate) fn last_time(&self) -> u64 {
        self.thread_slots.states().iter().map(|state| state.time.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Gives up the lines of every lane before the head it had at a checkpoint. The checkpoint is durable.
    pub(crate) fn retire(&self, heads: &[u64]) {
        for (state, &head) in self.thread_slots.states().iter().zip(heads) {
            state.tail.store(head, Ordering::Release);
        }
    }

    /// Lines that a lane has room for before a checkpoint.
    #[inline]
    pub(crate) fn free(&self, lane: &Lane<'_>) -> u64 {
        self.slots - (lane.head() - lane.state.tail.load(Ordering::Acquire))
    }

    /// The slot of a line of a lane, among those of all lanes.
    #[inline(always)]
    fn slot(&self, lane: usize, line: u64) -> usize {
        lane * self.slots as usize + (line & (self.slots - 1)) as usize
    }

    /// Byte offset of a line of a lane.
    #[inline(always)]
    fn line_at(&self, lane: usize, line: u64) -> u64 {
        self.at + self.slot(lane, line) as u64 * LINE
    }

    /// Byte offset of a position, for the seal of the record there.
    #[inline(always)]
    pub(crate) fn offset(&self, position: Position) -> u64 {
        self.line_at(position.lane, position.line)
    }

    /// Where the next record of this thread will probably go: in its own lane.
    #[inline(always)]
    pub(crate) fn guess(&self) -> Position {
        let lane = self.thread_slots.home();
        self.thread_slots.states()[lane].position(lane)
    }

    #[inline(always)]
    fn name(&self, line_at: u64, pages: [Option<u64>; 2]) {
        let slot = ((line_at - self.at) / LINE) as usize;
        let names = self.named.get(2 * slot..).and_then(|names| names.first_chunk());
        if let Some([first, second]) = names {
            first.store(pages[0].map_or(0, |page| page + 1), Ordering::Relaxed);
            second.store(pages[1].map_or(0, |page| page + 1), Ordering::Relaxed);
        }
    }

    /// Stores a record's only line at the [offset](Lanes::offset) of the lane's position, durable at the next fence. It
    /// names `page`, or no page a checkpoint need know of. The caller has seen that there is room.
    #[inline(always)]
    pub(crate) fn append_line<F: MediumFile>(
        &self,
        lane: &Lane<'_>,
        file: &F,
        at: u64,
        line: &Line,
        page: Option<u64>,
    ) -> Result<()> {
        file.write(at, line)?;
        self.name(at, [page, None]);
        lane.state.head.store(lane.head() + 1, Ordering::Release);
        Ok(())
    }

    /// Stores a record of any number of lines. The caller has seen that there is room.
    pub(crate) fn append<F: MediumFile>(
        &self,
        lane: &Lane<'_>,
        file: &F,
        checksum_seed: ChecksumSeed,
        record: &Record,
    ) -> Result<()> {
        let lines = encode(checksum_seed, self.offset(lane.position()), record);
        let head = lane.head();
        let page = |n: usize| record.entries.get(n).map(|entry| entry.page);
        for (n, line) in lines.iter().enumerate() {
            let at = self.line_at(lane.index, head + n as u64);
            file.write(at, line)?;
            self.name(at, if n == 0 { [page(0), None] } else { [page(2 * n - 1), page(2 * n)] });
        }
        lane.state.head.store(head + lines.len() as u64, Ordering::Release);
        Ok(())
    }
}

impl LaneState {
    #[inline(always)]
    fn position(&self, lane: usize) -> Position {
        Position { lane, line: self.head.load(Ordering::Relaxed), last: self.last.load(Ordering::Relaxed) }
    }
}

impl Lane<'_> {
    /// Where its next record goes.
    #[inline(always)]
    pub(crate) fn position(&self) -> Position {
        self.state.position(self.index)
    }

    /// Sequence number of the last record.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.state.last.load(Ordering::Relaxed)
    }

    /// Notes that the record of this number is durable and published.
    #[inline]
    pub(crate) fn finish(&self, seq: u64) {
        self.state.last.store(seq, Ordering::Release);
    }

    /// The same for a commit that was made at this time: what copies slices home is none.
    #[inline]
    pub(crate) fn finish_commit(&self, seq: u64, time: u64) {
        self.state.time.store(time, Ordering::Relaxed);
        self.finish(seq);
    }

    /// Lines appended so far.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.state.head.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_let_go_is_left_to_whoever_takes_them_all() {
        let lanes = Lanes::new(0, 2, 4).unwrap();
        let held = std::cell::Cell::new(Some(lanes.acquire(|_| panic!("a free lane must not wait"))));
        let all = lanes.acquire_all(|_| {
            drop(held.take());
            // What a writer would do at once.
            assert!(lanes.try_acquire().is_none());
        });
        assert!(!all.is_empty());
        assert!(held.take().is_none(), "it had to wait");
        drop(all);
        assert!(lanes.try_acquire().is_some());
    }
}
