//! The space of the log: chunks of units. Lanes get chunks and fill them in order; a chunk is freed as a whole.
//!
//! A chunk is a few pages of headers followed by as many units of 4 KiB; a header's place tells its units. A lane fills
//! one chunk after another. When a cut retires every epoch that a full chunk has entries of, the chunk is free: no
//! entry is freed singly, and no durable word says that an entry is free.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;

use super::chunk_space::{ChunkSpace, chunk_len};
use super::lanes::LaneState;
use super::meta::Meta;
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::storage::{MediumClass, MediumFile};
use crate::sync::word_lock::lock;
use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, fence};

/// Chunks by which a log grows at most at a time, unless it must hold more.
const STEP: u64 = 32;

/// The volatile state of a chunk.
#[derive(Zeroed)]
#[repr(C, align(64))]
struct ChunkState {
    /// Units handed out.
    used: AtomicU64,
    /// The last epoch that has an entry here.
    last: AtomicU64,
    /// 1 while a lane fills it.
    held: AtomicU64,
}

/// Bits of the number that tells how often a chunk was used, as links know it.
const LAP_BITS: u32 = 16;

struct Free {
    chunks: VecDeque<u64>,
    total: u64,
}

/// The chunks of one log.
pub(super) struct Chunks {
    /// Units of each, a power of two.
    pub(super) units: u64,
    pub(super) metas: GrowingArray<Meta>,
    states: GrowingArray<ChunkState>,
    /// Where they are, and what of the disk they have.
    space: ChunkSpace,
    /// How often each chunk was begun anew. Apart from its state, for all threads read it.
    laps: GrowingArray<AtomicU64>,
    free: Mutex<Free>,
    /// As in `free`, to be read without it.
    total: AtomicU64,
    available: AtomicU64,
    /// Chunks that lanes fill. No checkpoint frees them.
    held: AtomicU64,
    most: u64,
    class: MediumClass,
}

impl Chunks {
    /// Those of a sidecar that is written to up to byte `len`; all are free. The log may take `most` bytes.
    pub(super) fn new(class: MediumClass, at: u64, units: u64, len: u64, most: u64) -> std::io::Result<Self> {
        let chunk = chunk_len(units);
        let total = len.saturating_sub(at) / chunk;
        // An older session may have allowed more than this one does.
        let most = most.div_ceil(chunk).max(total).max(2);
        // Most logs stay within the first segment of each table.
        let room = total.max(STEP);
        Ok(Chunks {
            units,
            metas: GrowingArray::new(room * units)?,
            states: GrowingArray::new(room)?,
            space: ChunkSpace::new(class, at, units, room)?,
            laps: GrowingArray::new(room)?,
            free: Mutex::new(Free { chunks: (0..total).collect(), total }),
            total: AtomicU64::new(total),
            available: AtomicU64::new(total),
            held: AtomicU64::new(0),
            most,
            class,
        })
    }

    /// The largest class an entry can have.
    pub(super) fn top_class(&self) -> u8 {
        self.units.trailing_zeros() as u8
    }

    pub(super) fn total(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }

    /// Whether the log is as long as it may be.
    pub(super) fn is_at_its_most(&self) -> bool {
        self.total() == self.most
    }

    /// How many chunks there may be.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// Chunks that are free, with space or without.
    pub(super) fn available(&self) -> u64 {
        self.available.load(Ordering::Acquire)
    }

    /// Chunks that are full, or that no lane fills any more: a checkpoint frees them.
    pub(super) fn reclaimable(&self) -> u64 {
        self.total().saturating_sub(self.available() + self.held.load(Ordering::Acquire))
    }

    /// A lane begins to fill a chunk.
    fn hold(&self, chunk: u64) {
        self.held.fetch_add(1, Ordering::AcqRel);
        self.states[chunk as usize].held.store(1, Ordering::Relaxed);
    }

    /// It does not fill it any more.
    fn unhold(&self, chunk: u64) {
        self.states[chunk as usize].held.store(0, Ordering::Release);
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// Chunks that are free and, as far as is known, have space.
    pub(super) fn ready(&self, relax: impl FnMut(u32)) -> u64 {
        let free = lock(&self.free, relax);
        free.chunks.iter().filter(|&&chunk| !self.space.is_punched(chunk)).count() as u64
    }

    /// Byte offset of the header of an entry, by its first unit.
    #[inline]
    pub(super) fn header_at(&self, unit: u64) -> u64 {
        self.space.header_at(unit)
    }

    /// Byte offset of the bytes of an entry.
    #[inline]
    pub(super) fn bytes_at(&self, unit: u64) -> u64 {
        self.space.bytes_at(unit)
    }

    /// How often the chunk of a unit was begun anew, as far as a link knows it.
    #[inline(always)]
    pub(super) fn lap(&self, unit: u64) -> u64 {
        self.laps.get(self.space.chunk_of(unit) as usize).map_or(0, |lap| lap.load(Ordering::Acquire))
            & ((1 << LAP_BITS) - 1)
    }

    /// Units handed out of a chunk so far.
    pub(super) fn used(&self, chunk: u64) -> u64 {
        self.states[chunk as usize].used.load(Ordering::Acquire)
    }

    /// Room for an entry of `wanted` units, for the holder of a lane, from the chunk that the lane fills, one that
    /// another lane let go of with room left, or a free one; `None` if there is none of these, or no space for it. With
    /// `for_bytes` the pages of the units are to be used, and not only the headers.
    ///
    /// # Errors
    /// What giving a chunk its space comes upon, other than that there is none.
    pub(super) fn take<F: MediumFile>(
        &self,
        lane: &LaneState,
        side: &F,
        wanted: u64,
        for_bytes: bool,
        epoch: u64,
        mut relax: impl FnMut(u32),
    ) -> Result<Option<u64>> {
        let unit = self.take_any(lane, side, wanted, epoch, &mut relax)?;
        if let Some(unit) = unit.filter(|_| for_bytes && self.class == MediumClass::Block)
            && let Err(error) = self.space.write_ahead(side, unit, wanted)
        {
            self.give_back(lane, [(unit, wanted)].into_iter(), relax);
            return Err(error);
        }
        Ok(unit)
    }

    fn take_any<F: MediumFile>(
        &self,
        lane: &LaneState,
        side: &F,
        wanted: u64,
        epoch: u64,
        mut relax: impl FnMut(u32),
    ) -> Result<Option<u64>> {
        if let Some(chunk) = lane.chunk() {
            let state = &self.states[chunk as usize];
            let used = state.used.load(Ordering::Relaxed);
            if used + wanted <= self.units {
                state.last.store(epoch, Ordering::Relaxed);
                state.used.store(used + wanted, Ordering::Release);
                return Ok(Some(chunk * self.units + used));
            }
            lane.set_chunk(None);
            self.unhold(chunk);
        }
        // First what is left of others, or lanes that are told to let go would each begin a chunk again and again.
        let adopted = self.adopt(lane, wanted, epoch, &mut relax);
        if adopted.is_some() {
            return Ok(adopted);
        }
        let Some(chunk) = self.next_chunk(side, relax)? else { return Ok(None) };
        let state = &self.states[chunk as usize];
        self.forget(chunk);
        state.last.store(epoch, Ordering::Relaxed);
        state.used.store(wanted, Ordering::Release);
        lane.set_chunk(Some(chunk));
        Ok(Some(chunk * self.units))
    }

    /// Has whoever still reads what was in a free chunk find that it is gone, before anything becomes of the bytes.
    fn forget(&self, chunk: u64) {
        let first = (chunk * self.units) as usize;
        self.laps[chunk as usize].fetch_add(1, Ordering::AcqRel);
        (first..first + self.units as usize).for_each(|unit| self.metas[unit].clear());
        // Streaming stores are not ordered with those before them.
        fence(Ordering::SeqCst);
    }

    /// The next unit of the chunk that a lane fills, for its holder, if there is one.
    #[inline(always)]
    pub(super) fn take_next(&self, lane: &LaneState, epoch: u64) -> Option<u64> {
        let chunk = lane.chunk()?;
        let state = self.states.get(chunk as usize)?;
        let used = state.used.load(Ordering::Relaxed);
        if used == self.units {
            return None;
        }
        state.last.store(epoch, Ordering::Relaxed);
        state.used.store(used + 1, Ordering::Release);
        Some(chunk * self.units + used)
    }

    /// The unit that the holder of a lane will probably take next.
    #[inline(always)]
    pub(super) fn guess(&self, lane: &LaneState) -> Option<u64> {
        let chunk = lane.chunk()?;
        let used = self.states.get(chunk as usize)?.used.load(Ordering::Relaxed);
        (used < self.units).then(|| chunk * self.units + used)
    }

    /// Gives back the unit that the holder of the lane took last, of which nothing was said yet.
    pub(super) fn put_back(&self, lane: &LaneState) {
        if let Some(chunk) = lane.chunk() {
            let state = &self.states[chunk as usize];
            state.used.store(state.used.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
    }

    /// Room in a chunk that another lane let go of before it was full: there may be more lanes than chunks.
    #[cold]
    fn adopt(&self, lane: &LaneState, wanted: u64, epoch: u64, relax: impl FnMut(u32)) -> Option<u64> {
        // Under this lock no chunk becomes free meanwhile, and no other lane takes it.
        let free = lock(&self.free, relax);
        for chunk in 0..free.total {
            let state = &self.states[chunk as usize];
            let idle = state.held.load(Ordering::Acquire) == 0;
            let used = state.used.load(Ordering::Acquire);
            if idle && used != 0 && used + wanted <= self.units {
                self.hold(chunk);
                state.last.store(epoch, Ordering::Relaxed);
                state.used.store(used + wanted, Ordering::Release);
                lane.set_chunk(Some(chunk));
                return Some(chunk * self.units + used);
            }
        }
        None
    }

    /// Takes units back of a write that got some and then no more, or they would be lost to the open epoch, and a log
    /// that holds nothing could be full of them. By first unit and number of units, in the order in which the lane took
    /// them.
    #[cold]
    pub(super) fn give_back(
        &self,
        lane: &LaneState,
        taken: impl DoubleEndedIterator<Item = (u64, u64)>,
        relax: impl FnMut(u32),
    ) {
        let mut free = lock(&self.free, relax);
        for (unit, units) in taken.rev() {
            let (chunk, first) = (unit / self.units, unit % self.units);
            let (state, mine) = (&self.states[chunk as usize], lane.chunk() == Some(chunk));
            // Another lane may have gone on in it, where this one had let go of it.
            let last = state.used.load(Ordering::Acquire) == first + units;
            if !last || !mine && state.held.load(Ordering::Acquire) != 0 {
                continue;
            }
            state.used.store(first, Ordering::Release);
            if first == 0 {
                if mine {
                    lane.set_chunk(None);
                    self.unhold(chunk);
                }
                free.chunks.push_back(chunk);
            }
        }
        self.available.store(free.chunks.len() as u64, Ordering::Release);
    }

    /// A free chunk, with space, that is free no longer, but a lane's. `None` if none is free, or no space is left
    /// for those that are: of others that are not free, a checkpoint may make some.
    fn next_chunk<F: MediumFile>(&self, side: &F, relax: impl FnMut(u32)) -> Result<Option<u64>> {
        let mut free = lock(&self.free, relax);
        let Some(place) = self.place_with_space(side, &free)? else { return Ok(None) };
        let chunk = free.chunks.remove(place);
        if let Some(chunk) = chunk {
            // Whoever looks under the lock for a chunk with room left must not find one that is being begun without a
            // lane.
            self.hold(chunk);
        }
        self.available.store(free.chunks.len() as u64, Ordering::Release);
        Ok(chunk)
    }

    /// Where among the free chunks the next one stands. One that has its space already comes before one that would
    /// take some of the disk's.
    fn place_with_space<F: MediumFile>(&self, side: &F, free: &Free) -> Result<Option<usize>> {
        // A disk has them written in a ring; memory likes to get the one back that it saw last.
        let turn = |turn: usize| match self.class {
            MediumClass::Block => turn,
            MediumClass::PersistentMemory => free.chunks.len() - 1 - turn,
        };
        let mut places = (0..free.chunks.len()).map(turn);
        while let Some(place) = places.find(|&place| !self.space.is_punched(free.chunks[place])) {
            if self.has_space(side, free.chunks[place])? {
                return Ok(Some(place));
            }
        }
        // If there is no space for one of these, there is none for the next.
        let Some(place) = (0..free.chunks.len()).map(turn).next() else { return Ok(None) };
        Ok(self.has_space(side, free.chunks[place])?.then_some(place))
    }

    /// Whether a free chunk has space, or gets some. The caller holds the lock on what is free.
    fn has_space<F: MediumFile>(&self, side: &F, chunk: u64) -> Result<bool> {
        match self.space.preallocate(side, chunk) {
            Err(error) if error.is_for_want_of_space() => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Frees every chunk that no lane fills and that has no entries of an epoch above `checkpoint`. The cut is durable.
    pub(super) fn free_below(&self, checkpoint: u64, relax: impl FnMut(u32)) {
        let mut free = lock(&self.free, relax);
        for chunk in 0..free.total {
            let state = &self.states[chunk as usize];
            let idle = state.held.load(Ordering::Acquire) == 0 && state.used.load(Ordering::Acquire) != 0;
            if idle && state.last.load(Ordering::Relaxed) <= checkpoint {
                state.used.store(0, Ordering::Release);
                free.chunks.push_back(chunk);
            }
        }
        self.available.store(free.chunks.len() as u64, Ordering::Release);
    }

    /// Lets go of the chunk that a lane fills, so that it can become free.
    pub(super) fn let_go(&self, lane: &LaneState) {
        if let Some(chunk) = lane.chunk() {
            lane.set_chunk(None);
            self.unhold(chunk);
        }
    }

    /// Makes room in the tables for so many chunks, before anybody can be given one of them.
    fn fit(&self, chunks: u64) -> std::io::Result<()> {
        self.metas.fit(chunks * self.units)?;
        self.states.fit(chunks)?;
        self.space.fit(chunks)?;
        self.laps.fit(chunks)
    }

    /// Makes the log at `path` longer by at least one chunk, doubling it while it is short. False if it may not grow.
    ///
    /// # Errors
    /// No space or memory, or what `sync` comes upon, which makes the new length durable.
    pub(super) fn grow<F: MediumFile>(
        &self,
        side: &F,
        path: &Path,
        sync: impl FnOnce() -> Result<()>,
        relax: impl FnMut(u32),
    ) -> Result<bool> {
        let mut free = lock(&self.free, relax);
        let old = free.total;
        let new = (old + old.clamp(2, STEP)).min(self.most);
        if new == old {
            return Ok(false);
        }
        self.fit(new).map_err(|error| Error::io("reserve memory for the log", path, error))?;
        // It may be longer already, by chunks that are holes.
        if side.len() < self.space.start(new) {
            side.set_len(self.space.start(new))?;
        }
        (old..new).try_for_each(|chunk| self.space.give(side, chunk))?;
        sync()?;
        free.chunks.extend(old..new);
        free.total = new;
        self.total.store(new, Ordering::Release);
        self.available.store(free.chunks.len() as u64, Ordering::Release);
        Ok(true)
    }

    /// Gives one of the free chunks that lack space some. False if none does.
    ///
    /// # Errors
    /// No space, or what else the file system says.
    pub(super) fn furnish_one<F: MediumFile>(&self, side: &F, relax: impl FnMut(u32)) -> Result<bool> {
        let free = lock(&self.free, relax);
        let Some(&chunk) = free.chunks.iter().find(|&&chunk| self.space.is_punched(chunk)) else { return Ok(false) };
        self.space.preallocate(side, chunk).map(|()| true)
    }

    /// The chunks whose headers are in no hole: those that anybody has written to. A log may be as long as its owner
    /// likes, and recovery costs what it holds.
    pub(super) fn with_headers<F: MediumFile>(&self, side: &F) -> Vec<u64> {
        self.space.with_headers(side, self.total())
    }

    /// Gives the space of every free chunk back to the file system. Returns the bytes freed, those counted in of
    /// which it is not known that they were a hole already.
    ///
    /// # Errors
    /// [`Error::Io`] from the file system.
    pub(super) fn punched<F: MediumFile>(&self, side: &F, relax: impl FnMut(u32)) -> Result<u64> {
        let free = lock(&self.free, relax);
        let mut freed = 0;
        for &chunk in &free.chunks {
            freed += self.space.punch(side, chunk, || self.forget(chunk))?;
        }
        Ok(freed)
    }

    /// The error of an epoch that does not fit.
    #[cold]
    pub(super) fn full(&self, path: &Path) -> Error {
        let what = format!(
            "the open epoch does not fit in the log ({} chunks of {} bytes); commit more often, or open the file with \
             a larger log size",
            self.most,
            self.units * PAGE
        );
        Error::Invalid { path: path.to_owned(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Medium, PageCache};
    use crate::sys::sync::ZeroedBox;

    /// Between the moment in which a lane takes a free chunk and that in which it has it, another one looks for room
    /// in chunks that nobody fills.
    #[test]
    fn a_chunk_that_is_being_begun_is_adopted_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let file = PageCache::new().create(&dir.path().join("log"), 2 * chunk_len(16), 0).unwrap();
        let chunks = Chunks::new(MediumClass::Block, 0, 16, 2 * chunk_len(16), 0).unwrap();
        let (other, never): (ZeroedBox<LaneState>, _) = (ZeroedBox::new().unwrap(), |_| panic!("nobody has it"));
        let chunk = chunks.next_chunk(&file, never).unwrap().unwrap();
        chunks.states[chunk as usize].used.store(1, Ordering::Release);
        assert_eq!(chunks.adopt(&other, 1, 1, never), None);
        chunks.unhold(chunk);
        assert_eq!(chunks.adopt(&other, 1, 1, never), Some(chunk * 16 + 1));
    }
}
