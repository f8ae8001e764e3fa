//! Checkpoints: what is committed goes home, and the log becomes free.

use super::chunks::Extent;
use super::cover::Link;
use super::format::Kind;
use super::{Core, barriers};
use crate::error::Result;
use crate::medium::{Medium, MediumFile};
use crate::sharing::gate::lock;
use crate::sharing::page::PageState;
use crate::sidecar::PAGE;
use crate::sidecar::ledger::Ledger;
use crate::sys::sync::Ordering;

/// Covers whose bytes are on their way home at once: what they stored is ordered once for all of them.
const BATCH: usize = 32;

/// Bytes carried home in one piece.
const PIECE: usize = 64 << 10;

impl<M: Medium> Core<M> {
    /// Copies the bytes of an entry to where they belong. The caller has locked its cover, and its epoch is durable.
    pub(super) fn carry_home(&self, link: Link) -> Result<()> {
        let meta = self.meta(link);
        let delta = meta.delta();
        let from = self.chunks.bytes_at(link.unit()) + u64::from(delta.offset);
        let to = meta.block.load(Ordering::Acquire) * PAGE + u64::from(delta.offset);
        // What lies behind the end of the file was cut off, and is nobody's.
        let len = u64::from(delta.len()).min(self.data.len().saturating_sub(to));
        let mut small = [0; PAGE as usize];
        let mut large = Vec::new();
        let image: &mut [u8] = if len <= PAGE {
            &mut small
        } else {
            large.resize(PIECE, 0);
            &mut large
        };
        let mut done = 0;
        while done < len {
            let here = (len - done).min(image.len() as u64);
            let piece = &mut image[..here as usize];
            self.side.read(from + done, piece)?;
            self.data.write(to + done, piece)?;
            done += here;
        }
        Ok(())
    }

    /// Takes everything home that is durable, and gives its space in the log free.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let _cutting = self.head.cutting.lock(self.relax());
        self.standing.writable()?;
        let upto = self.durable();
        if upto == self.head.cut.load(Ordering::Relaxed) {
            return Ok(());
        }
        for chunk in 0..self.chunks.total() {
            self.carry_chunk_home(chunk, upto)?;
        }
        self.cut(upto)
    }

    /// Takes home the entries of a chunk whose epoch is `upto` or before.
    pub(super) fn carry_chunk_home(&self, chunk: u64, upto: u64) -> Result<()> {
        let mut batch: Vec<(u64, Link)> = Vec::with_capacity(BATCH);
        let first = chunk * self.chunks.units;
        let mut unit = first;
        while unit < first + self.chunks.used(chunk) {
            let meta = &self.chunks.metas[unit as usize];
            let here = unit;
            let Some((kind, class)) = meta.what() else {
                unit += 1;
                continue;
            };
            unit += 1 << class;
            if kind == Kind::Undo || meta.epoch.load(Ordering::Acquire) > upto {
                continue;
            }
            let (block, link) = (meta.block.load(Ordering::Acquire), Link::new(here, class, kind));
            let Some(slot) = self.index.get(block).filter(|slot| slot.bitmap() == link.0) else { continue };
            if !slot.try_hold() {
                // Whoever has it may be waiting for one that this thread holds.
                self.unlink(&mut batch)?;
                slot.lock(false, self.relax());
            }
            // Only under the lock is the epoch certain: what was seen of it above may be that of an entry which stood here
            // before, while the new one was being described.
            if slot.bitmap() != link.0 || meta.epoch.load(Ordering::Acquire) > upto {
                slot.unlock();
                continue;
            }
            if let Err(error) = self.carry_home(link) {
                slot.unlock();
                self.unlink(&mut batch)?;
                return Err(error);
            }
            batch.push((block, link));
            if batch.len() == BATCH {
                self.unlink(&mut batch)?;
            }
        }
        self.unlink(&mut batch)
    }

    /// Lets go of covers whose bytes were carried home, with nothing left of them in the log.
    fn unlink(&self, batch: &mut Vec<(u64, Link)>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        // The bytes are visible at home before the slots say that they are there.
        self.medium.order();
        batch.drain(..).try_for_each(|(block, link)| self.dissolve(block, link))
    }

    /// Says, durably, that everything up to an epoch is at home, and frees the chunks that need not be kept for it. The
    /// caller holds the cut gate.
    pub(super) fn cut(&self, upto: u64) -> Result<()> {
        self.fence(barriers::CHECKPOINT_HOME, &[&self.data])?;
        let mut ledger = lock(&self.ledger, self.relax());
        ledger.retirement.cut = upto;
        // That of an epoch up to the cut, or of one behind it whose record then gives it again.
        ledger.retirement.len = self.head.committed_len.load(Ordering::Acquire);
        ledger.write_cut(&self.side).map_err(|error| self.standing.poison(error))?;
        // Nobody writes the other copy before this one is durable: a power cut could tear both.
        self.fence(barriers::CHECKPOINT_CUT, &[&self.side])?;
        drop(ledger);
        self.head.cut.store(upto, Ordering::Release);
        self.chunks.free_below(upto, self.relax());
        Ok(())
    }

    /// Writes down, durably, how long the log is now, so that one that was cut off is noticed. Its new length is durable.
    pub(super) fn note_log_length(&self, ledger: &mut Ledger) -> Result<()> {
        ledger.write_cut(&self.side).map_err(|error| self.standing.poison(error))?;
        self.fence(barriers::LOG_GROW, &[&self.side])
    }

    /// Takes home what is durable of a range.
    pub(super) fn checkpoint_range(&self, offset: u64, len: u64) -> Result<()> {
        let (mut block, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
        while block < end {
            let Some(slot) = self.index.get(block) else {
                block += 1;
                continue;
            };
            let link = Link(slot.bitmap());
            if link.is_redo() {
                let head = link.head(block);
                self.checkpoint_cover(head, link)?;
                block = head + (1 << link.class());
            } else {
                block += 1;
            }
        }
        Ok(())
    }

    fn checkpoint_cover(&self, head: u64, link: Link) -> Result<()> {
        // Until it is unlinked the entry stays what it is, and a lane keeps its epoch from ending.
        let lane = self.lane();
        let slot = self.slot(head)?;
        slot.lock(false, self.relax());
        if slot.bitmap() != link.0 || self.meta(link).epoch.load(Ordering::Acquire) > self.durable() {
            slot.unlock();
            return Ok(());
        }
        if let Err(error) = self.carry_home(link) {
            slot.unlock();
            return Err(error);
        }
        self.unlink(&mut vec![(head, link)])?;
        drop(lane);
        Ok(())
    }

    /// Calls `each` with the bytes of every entry that reads must look at.
    pub(super) fn each_linked(&self, mut each: impl FnMut(Extent)) {
        for chunk in 0..self.chunks.total() {
            let first = chunk * self.chunks.units;
            for unit in first..first + self.chunks.used(chunk) {
                let meta = &self.chunks.metas[unit as usize];
                let Some((Kind::Redo, class)) = meta.what() else { continue };
                let link = Link::new(unit, class, Kind::Redo);
                let block = meta.block.load(Ordering::Acquire);
                if self.index.get(block).map(PageState::bitmap) == Some(link.0) {
                    each(meta.delta());
                }
            }
        }
    }
}
