//! The fast path of the common write: under redo, on persistent memory, within one block that has no entry of the open
//! epoch yet.

use super::block_range::Link;
use super::format::{Header, Kind, check_of, sum_of};
use super::lanes::LaneState;
use super::meta::Extent;
use super::{Core, barriers};
use crate::engine::check_range;
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sys::copy::prefetch_hint;

/// Bytes up to which a write goes through the cache. Its lines are written back later, many at once: the locked
/// instruction with which the next write begins would wait for streaming stores to drain, which takes longer than
/// such a write.
const SMALL: usize = 256;

impl<M: Medium> Core<M> {
    /// Does such a write; false, with nothing done, if it is another.
    #[inline(always)]
    pub(super) fn write_single(&self, offset: u64, bytes: &[u8]) -> Result<bool> {
        let (block, from) = (offset / PAGE, offset % PAGE);
        let end = from + bytes.len() as u64;
        if self.class != MediumClass::PersistentMemory || self.logs_undo() || end > PAGE || bytes.is_empty() {
            return Ok(false);
        }
        let Some(slot) = self.index.get(block) else { return Ok(false) };
        // What will be stored to takes long to get hold of, so it is asked for before the first lock.
        prefetch_hint(slot);
        if let Some(unit) = self.chunks.guess(self.lanes.mine()) {
            prefetch_hint(&self.chunks.metas[unit as usize]);
            if bytes.len() <= SMALL {
                self.side.prefetch_to_store(self.chunks.header_at(unit));
                self.side.prefetch_to_store(self.chunks.bytes_at(unit) + from);
            }
        }
        let lane = self.lane();
        check_range(self.path(), offset, bytes.len() as u64, self.len())?;
        let home = block * PAGE;
        // The policy may have changed on the way to the lane.
        if self.logs_undo() || !self.space.knows(home) {
            return Ok(false);
        }
        let Some(unit) = self.chunks.take_next(lane.state, self.epoch()) else { return Ok(false) };
        slot.lock(true, self.relax());
        let link = Link(slot.bitmap());
        if !self.is_free(link, block) {
            slot.unlock_disturbed();
            self.chunks.put_back(lane.state);
            return Ok(false);
        }
        if link.is_at_home_alone() {
            // A redo entry of this block alone has dirty it, and its link goes when the block becomes clean again.
            self.clean.mark_dirty(block);
        }
        let new = self.redo_link(unit, 0);
        let stored = self.store_single(lane.state, block, new, from, bytes);
        if let Err(error) = stored {
            // No store fails here unless a page of the log is lost.
            slot.unlock_disturbed();
            return Err(self.handle_state.poison(error));
        }
        slot.publish(new.0, slot.version() + 1);
        lane.state.count_write();
        Ok(true)
    }

    /// Whether a new entry can take the place of what a locked block's link names. One that is committed goes home
    /// first.
    #[inline(always)]
    fn is_free(&self, link: Link, block: u64) -> bool {
        // Under redo no undo entry is of use any more.
        link.is_at_home_alone() || link.class() == 0 && matches!(self.open_entry(block, link), Ok(false))
    }

    #[inline(always)]
    fn store_single(&self, lane: &LaneState, block: u64, link: Link, from: u64, bytes: &[u8]) -> Result<()> {
        let (epoch, unit) = (self.epoch(), link.unit());
        let (header_at, bytes_at) = (self.chunks.header_at(unit), self.chunks.bytes_at(unit) + from);
        let delta = Extent { offset: from as u32, end: from as u32 + bytes.len() as u32 };
        let header = Header {
            epoch,
            block,
            kind: Kind::Redo,
            class: 0,
            offset: delta.offset,
            len: delta.len(),
            inline: false,
            sum: self.certifies().then(|| sum_of(bytes)),
            after: None,
            proves: self.durable(),
        };
        let line = header.encode(self.checksum_seed, header_at);
        if bytes.len() <= SMALL {
            self.side.store(bytes_at, bytes)?;
            self.side.store(header_at, &line)?;
            if !lane.remember([(bytes_at, bytes.len() as u64), (header_at, line.len() as u64)]) {
                self.write_back(lane);
                self.medium.order();
            }
        } else {
            self.side.write(bytes_at, bytes)?;
            self.side.write(header_at, &line)?;
            // Streaming stores are not ordered with the store that publishes them.
            self.medium.order();
        }
        let check = check_of(&line);
        self.chunks.metas[unit as usize].set(link, epoch, block, delta, check);
        lane.add(check);
        Ok(())
    }

    /// Starts writing back what a lane has stored through the cache.
    pub(super) fn write_back(&self, lane: &LaneState) {
        lane.forget(|offset, len| self.side.flush(barriers::LOG_LINES, offset, len));
    }
}
