//! Changing the length, which belongs to the epoch: it commits or vanishes with it.

use super::{Core, Lane, barriers};
use crate::engine::{Piece, check_growth};
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::options::Durability;
use crate::storage::{Medium, MediumFile};
use crate::sync::word_lock::WordLockGuard;
use crate::sys::sync::Ordering;

/// Zeros written at once where a growth uncovers bytes that the epoch had cut off.
const ZEROS: usize = 64 << 10;

impl<M: Medium> Core<M> {
    pub(super) fn change_len(&self, len: u64) -> Result<()> {
        self.handle_state.writable()?;
        check_growth(self.path(), len, self.max_len)?;
        // One at a time: of two that find the data file too short, the second would cut it to its own length,
        // whatever has been written behind that meanwhile.
        let _resizing = self.lock_resizing();
        self.fit(len)?;
        for attempt in 0.. {
            if self.data.len() < len {
                self.data.set_len(len)?;
                self.data.sync(barriers::RESIZE_GROW).map_err(|error| self.handle_state.poison(error))?;
            }
            let lanes = self.lanes.acquire_all(self.relax());
            let ready = len <= self.len() || self.uncover(&lanes, len)?;
            if ready {
                if len > self.len() {
                    // The file system may have given space only to the part of the last page that was there.
                    self.space.forget(self.len() / PAGE * PAGE);
                }
                match self.durability {
                    Durability::PerCommit => self.show_len(len),
                    // Nobody sees a length that a crash could take back.
                    Durability::PerWrite => self.commit_with(&lanes, len, true, || self.show_len(len))?,
                }
                return Ok(());
            }
            drop(lanes);
            self.make_room(&[Piece { offset: 0, bytes: &[0; ZEROS] }], attempt)?;
        }
        Ok(())
    }

    pub(super) fn lock_resizing(&self) -> WordLockGuard<'_> {
        let (mut relax, mut round) = (self.relax(), 0);
        while self.head.reads_waiting.load(Ordering::Acquire) != 0 {
            relax(round);
            round = round.saturating_add(1);
        }
        self.head.resizing.lock(relax)
    }

    /// The caller holds every lane.
    fn show_len(&self, len: u64) {
        // Readers take no lock; they notice the odd counts, or afterwards that they moved.
        self.head.resizes.fetch_add(1, Ordering::AcqRel);
        self.head.sequence.write_begin();
        self.head.len.store(len, Ordering::Release);
        self.head.longest.fetch_max(len, Ordering::Relaxed);
        self.head.resizes.fetch_add(1, Ordering::AcqRel);
        self.head.sequence.write_end();
    }

    /// Makes the bytes from the end of the file up to `len` zeros, wherever they are. False if the log has no room.
    fn uncover(&self, lanes: &[Lane<'_>], len: u64) -> Result<bool> {
        let (old, longest) = (self.len(), self.head.longest.load(Ordering::Relaxed));
        let committed = self.head.committed_len.load(Ordering::Relaxed);
        // Once the epoch went beyond the committed length, what lies there is its own.
        if len > committed && longest == committed && self.head.stale_tail.load(Ordering::Relaxed) != 0 {
            self.clear_tail()?;
        }
        // What this epoch cut off may come back in a crash, so it stays where it is, and zeros are laid over it.
        let mut uncovered = longest.min(len);
        let zeros = [0; ZEROS];
        while uncovered > old {
            let here = (uncovered - old).min(ZEROS as u64);
            let piece = Piece { offset: uncovered - here, bytes: &zeros[..here as usize] };
            if !self.write_behind_the_end(&lanes[self.lanes.home()], piece)? {
                return Ok(false);
            }
            uncovered -= here;
        }
        Ok(true)
    }

    /// Makes what lies behind the end zeros, once a shorter length has been committed: nothing can bring it back, and
    /// nothing in the log may. The caller holds every lane.
    fn clear_tail(&self) -> Result<()> {
        self.await_durable(self.epoch() - 1)?;
        self.checkpoint()?;
        let (end, physical) = (self.head.committed_len.load(Ordering::Relaxed), self.data.len());
        if physical > end {
            let punched = self.data.punch(end, physical - end);
            // Also if some could not be made: the space is asked for again.
            (end.div_ceil(PAGE)..physical.div_ceil(PAGE)).for_each(|page| self.space.forget(page * PAGE));
            punched?;
            // The holes are durable before a record gives a length beyond them.
            self.data.sync(barriers::RESIZE_GROW).map_err(|error| self.handle_state.poison(error))?;
        }
        self.head.stale_tail.store(0, Ordering::Relaxed);
        Ok(())
    }
}
