//! Where the chunks of a log are in the sidecar, and the space of the disk that they have.

use crate::error::Result;
use crate::format::record::LINE;
use crate::format::sidecar::PAGE;
use crate::storage::{MediumClass, MediumFile};
use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed};

/// Pages of units that are written ahead of the first use of one on a block medium: as many as the log has used, within
/// these limits.
const FEWEST_AHEAD: u64 = 16;
const MOST_AHEAD: u64 = 128;

/// The known state of a chunk's space.
#[derive(Zeroed)]
#[repr(C)]
struct State {
    /// One of the three below.
    space: AtomicU64,
    /// On a block medium, how many of its units have pages that were written; those behind them may be allocated only.
    written: AtomicU64,
}

/// The space of a chunk that was there when the log was opened: an older session may have given it back, or have been
/// killed before it got any. It is asked for before the first store.
const UNKNOWN: u64 = 0;
/// It has space.
const PREALLOCATED: u64 = 1;
/// Its space was given back to the file system, or there was none for it. Only a free chunk is ever hollow.
const PUNCHED: u64 = 2;

/// The places and the space of all chunks.
pub(super) struct ChunkSpace {
    class: MediumClass,
    /// Byte offset of the first.
    at: u64,
    /// Units of each, a power of two.
    units: u64,
    /// Which one.
    shift: u32,
    states: GrowingArray<State>,
}

impl ChunkSpace {
    /// The space of chunks of so many units, from byte `at` on, with room for the states of `room` chunks.
    pub(super) fn new(class: MediumClass, at: u64, units: u64, room: u64) -> std::io::Result<Self> {
        Ok(ChunkSpace { class, at, units, shift: units.trailing_zeros(), states: GrowingArray::new(room)? })
    }

    /// Makes room for so many chunks.
    pub(super) fn fit(&self, chunks: u64) -> std::io::Result<()> {
        self.states.fit(chunks)
    }

    /// Byte offset of a chunk.
    pub(super) fn start(&self, chunk: u64) -> u64 {
        self.at + chunk * chunk_len(self.units)
    }

    /// The chunk of a unit.
    #[inline(always)]
    pub(super) fn chunk_of(&self, unit: u64) -> u64 {
        unit >> self.shift
    }

    /// Which unit of its chunk it is.
    #[inline(always)]
    fn index_in(&self, unit: u64) -> u64 {
        unit & (self.units - 1)
    }

    /// Byte offset of the header of an entry, by its first unit.
    #[inline]
    pub(super) fn header_at(&self, unit: u64) -> u64 {
        self.start(self.chunk_of(unit)) + self.index_in(unit) * LINE
    }

    /// Byte offset of the bytes of an entry.
    #[inline]
    pub(super) fn bytes_at(&self, unit: u64) -> u64 {
        self.start(self.chunk_of(unit)) + headers_len(self.units) + self.index_in(unit) * PAGE
    }

    /// Whether the space of a chunk is known to be gone.
    pub(super) fn is_punched(&self, chunk: u64) -> bool {
        self.states[chunk as usize].space.load(Ordering::Relaxed) == PUNCHED
    }

    /// Gives a new chunk its space.
    ///
    /// # Errors
    /// No space, or what else the file system says.
    pub(super) fn give<F: MediumFile>(&self, side: &F, chunk: u64) -> Result<()> {
        self.allocate(side, chunk)?;
        self.states[chunk as usize].space.store(PREALLOCATED, Ordering::Relaxed);
        Ok(())
    }

    /// Sees to it that a free chunk has space. The caller holds the lock on what is free.
    pub(super) fn preallocate<F: MediumFile>(&self, side: &F, chunk: u64) -> Result<()> {
        let state = &self.states[chunk as usize];
        let given = match state.space.load(Ordering::Relaxed) {
            PREALLOCATED => return Ok(()),
            // It was written before, or never, and then its first entries pay for it.
            UNKNOWN => {
                if self.class == MediumClass::Block {
                    state.written.store(self.written_before(side, chunk), Ordering::Relaxed);
                }
                side.allocate(self.start(chunk), chunk_len(self.units))
            }
            _ => self.allocate(side, chunk),
        };
        match &given {
            Ok(()) => state.space.store(PREALLOCATED, Ordering::Relaxed),
            Err(error) if error.is_for_want_of_space() => {
                state.space.store(PUNCHED, Ordering::Relaxed);
                // Others may need the last of the disk that it got. If this fails, the chunk keeps it.
                let _ = side.punch(self.start(chunk), chunk_len(self.units));
            }
            Err(_) => {}
        }
        given
    }

    /// Gives a chunk its space. On a block medium its headers are written once, not only allocated: to overwrite what
    /// was allocated but never written would cost a journal commit of the file system at every flush. So are the pages
    /// of its units, but not before they are used: short entries never use them.
    fn allocate<F: MediumFile>(&self, side: &F, chunk: u64) -> Result<()> {
        side.allocate(self.start(chunk), chunk_len(self.units))?;
        if self.class == MediumClass::Block {
            self.states[chunk as usize].written.store(0, Ordering::Relaxed);
            write_zeros(side, self.start(chunk), headers_len(self.units))?;
        }
        Ok(())
    }

    /// Writes the pages ahead of an entry that takes `wanted` units, the last of which no entry has used before: the
    /// longer the log, the more, so that one journal commit serves many entries and a short log stays cheap. The caller
    /// holds the lane that fills the chunk.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) from the file system.
    #[inline]
    pub(super) fn write_ahead<F: MediumFile>(&self, side: &F, unit: u64, wanted: u64) -> Result<()> {
        let state = &self.states[self.chunk_of(unit) as usize];
        let (first, written) = (self.index_in(unit), state.written.load(Ordering::Relaxed));
        let end = first + wanted;
        if end <= written {
            return Ok(());
        }
        let ahead = (end + unit.clamp(FEWEST_AHEAD, MOST_AHEAD)).min(self.units);
        // Not those of the entry itself, which are about to be written. Inline entries have passed over those before.
        for units in [written..first, end..ahead] {
            if !units.is_empty() {
                write_zeros(side, self.bytes_at(unit - first + units.start), (units.end - units.start) * PAGE)?;
            }
        }
        state.written.store(ahead, Ordering::Relaxed);
        Ok(())
    }

    /// Units of a chunk whose pages an earlier session has written.
    fn written_before<F: MediumFile>(&self, side: &F, chunk: u64) -> u64 {
        let at = self.bytes_at(chunk * self.units);
        match side.data_from(at) {
            Ok(Some(data)) if data.start <= at => ((data.end - at) / PAGE).min(self.units),
            _ => 0,
        }
    }

    /// The chunks whose headers are in no hole: those that anybody has written to. A log may be as long as its owner
    /// likes, and recovery costs what it holds.
    pub(super) fn with_headers<F: MediumFile>(&self, side: &F, total: u64) -> Vec<u64> {
        let (mut chunks, mut chunk) = (Vec::new(), 0);
        while chunk < total {
            let Some(data) = side.next_data(self.start(chunk)) else { break };
            if data < self.start(chunk) + headers_len(self.units) {
                chunks.push(chunk);
                chunk += 1;
            } else {
                chunk = ((data - self.at) / chunk_len(self.units)).max(chunk + 1);
            }
        }
        chunks
    }

    /// Gives the space of a free chunk back to the file system, and has it forgotten before. Returns the bytes freed.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) from the file system.
    pub(super) fn punch<F: MediumFile>(&self, side: &F, chunk: u64, forget: impl FnOnce()) -> Result<u64> {
        if self.states[chunk as usize].space.swap(PUNCHED, Ordering::Relaxed) == PUNCHED {
            return Ok(0);
        }
        forget();
        side.punch(self.start(chunk), chunk_len(self.units))?;
        Ok(chunk_len(self.units))
    }
}

/// The bytes of a sidecar up to the end of the last chunk that is not a hole. A log may be as long as its owner likes,
/// and costs what it holds: chunks behind that are made again when they are needed.
pub(super) fn written_len<F: MediumFile>(side: &F, at: u64, units: u64) -> u64 {
    let chunk = chunk_len(units);
    let (whole, mut next) = (side.len().saturating_sub(at) / chunk, 0);
    while next < whole {
        let Some(data) = side.next_data(at + next * chunk) else { break };
        next = (data - at) / chunk + 1;
    }
    at + next.min(whole) * chunk
}

fn write_zeros<F: MediumFile>(side: &F, at: u64, len: u64) -> Result<()> {
    let zeros = [0; 64 << 10];
    for offset in (0..len).step_by(zeros.len()) {
        side.write(at + offset, &zeros[..(len - offset).min(zeros.len() as u64) as usize])?;
    }
    Ok(())
}

/// Bytes of the headers of a chunk.
pub(super) fn headers_len(units: u64) -> u64 {
    (units * LINE).next_multiple_of(PAGE)
}

/// Bytes of a chunk.
pub(super) fn chunk_len(units: u64) -> u64 {
    headers_len(units) + units * PAGE
}
