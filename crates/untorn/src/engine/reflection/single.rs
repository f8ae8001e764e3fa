//! A commit of one page: the path that is counted and timed.
//!
//! While a fence waits, the CPU works on, for some hundred instructions and up to the first locked one. So all that can
//! be is worked out before the first lock is taken, from the state as it looks then: where the bytes will go (to start
//! the address translation), their checksum, and the whole record, called a *draft*. Under the locks the draft is
//! compared with the state. Nearly always it still fits; if not, it is made anew. What remains to be done between two
//! fences is to take two locks, to compare four words and to store.

use std::sync::atomic::Ordering;

use super::put::Staged;
use super::slices::{Part, SLICE, touched};
use super::{Reflection, barriers};
use crate::engine::check_range;
use crate::error::Result;
use crate::log::lane::{Lane, Position};
use crate::log::record::{DataSum, Entry, Line, encode_single};
use crate::medium::{Medium, MediumFile};
use crate::options::Order;
use crate::sharing::page::PageState;
use crate::sidecar::PAGE;

/// A record over one page as it has to be if the state is this.
pub(super) struct Draft {
    /// Its place in a lane, and the lane's last number.
    position: Position,
    seq: u64,
    /// Length of the file.
    len: u64,
    /// The page's bitmap before.
    valid: u64,
    /// Checksum of the data, unless the data is fenced before the record.
    sum: Option<u64>,
    line: Line,
}

impl<M: Medium> Reflection<M> {
    /// Per-write mode, one page.
    #[inline(always)]
    pub(super) fn write_part(&self, part: Part<'_>) -> Result<()> {
        if !part.aligned() {
            return self.write_ragged(part);
        }
        let Some(state) = self.state.pages.get(part.page as usize) else {
            return self.check_pieces(&[part.piece()]).map(drop);
        };
        self.foresee(part, state.bitmap(), false);
        let mask = touched(part.from, part.to());
        // Over the bytes as they came: a struct around them would be stored and loaded again, and a load of what was
        // just stored in two halves waits for the fence.
        let sum = match self.order {
            Order::OneFence => Some(DataSum::of(part.bytes)),
            Order::TwoFence => None,
        };
        let draft = self.draft(self.lanes.guess(), state, part.page, mask, sum);
        let lane = self.lane(1)?;
        let len = self.state.head().len.load(Ordering::Acquire);
        check_range(&self.path, part.offset(), part.bytes.len() as u64, len)?;
        state.lock(false, self.relax());
        if let Err(error) = self.commit_page(&lane, state, part.page, mask, Staged::aligned(part), draft) {
            state.unlock();
            return Err(self.unless_lost(error));
        }
        Ok(())
    }

    /// The same for bytes that cover slices partly: what these hold besides is known only under the page's lock.
    #[inline(never)]
    fn write_ragged(&self, part: Part<'_>) -> Result<()> {
        let lane = self.lane(1)?;
        let len = self.state.head().len.load(Ordering::Acquire);
        check_range(&self.path, part.offset(), part.bytes.len() as u64, len)?;
        let state = &self.state.pages[part.page as usize];
        state.lock(false, self.relax());
        let mask = touched(part.from, part.to());
        let outcome = self.with_image(state.bitmap(), part, |staged| {
            let draft = self.draft(lane.position(), state, part.page, mask, self.certificate(staged, mask));
            self.commit_page(&lane, state, part.page, mask, staged, draft)
        });
        outcome.map_err(|error| {
            state.unlock();
            self.unless_lost(error)
        })
    }

    /// Starts the address translation of the page that bytes will be stored to if `valid` is its bitmap at the last
    /// commit. A store through the cache (`cached`) wants its line; a non-temporal one over a cached line is slow, so
    /// another line of the page stands for it.
    #[inline(always)]
    pub(super) fn foresee(&self, part: Part<'_>, valid: u64, cached: bool) {
        let within = if cached { part.from } else { (part.from + PAGE / 2) % PAGE };
        if valid & 1 << (part.from / SLICE) != 0 {
            self.data.prefetch(part.page * PAGE + within);
        } else if let Some(at) = self.places.reflection(part.page) {
            self.side.prefetch(at + within);
        }
    }

    /// The checksum a record carries over its data, by the order.
    pub(super) fn certificate(&self, staged: Staged<'_>, mask: u64) -> Option<u64> {
        match self.order {
            Order::OneFence => Some(staged.sum(mask).get()),
            Order::TwoFence => None,
        }
    }

    /// The record over one page as the state is now, for a place in a lane.
    #[inline(always)]
    pub(super) fn draft(&self, position: Position, state: &PageState, page: u64, mask: u64, sum: Option<u64>) -> Draft {
        let (valid, len) = (state.bitmap(), self.state.head().len.load(Ordering::Relaxed));
        let seq = self.number(position, state.version());
        let entry = Entry { page, bitmap: valid ^ mask, mask };
        let line = encode_single(self.seal, self.lanes.offset(position), seq, entry, sum, len);
        Draft { position, seq, len, valid, sum, line }
    }

    #[inline(always)]
    fn number(&self, position: Position, version: u64) -> u64 {
        self.state.head().floor.load(Ordering::Relaxed).max(position.last).max(version) + 1
    }

    /// Makes new bytes for some slices of one page durable and visible. The caller holds the page's lock and a lane with
    /// room for a line; on success the page is unlocked.
    #[inline(always)]
    pub(super) fn commit_page(
        &self,
        lane: &Lane<'_>,
        state: &PageState,
        page: u64,
        mask: u64,
        staged: Staged<'_>,
        mut draft: Draft,
    ) -> Result<()> {
        let position = lane.position();
        let fits = draft.position == position
            && draft.seq == self.number(position, state.version())
            && draft.valid == state.bitmap()
            && draft.len == self.state.head().len.load(Ordering::Relaxed);
        if !fits {
            draft = self.draft(position, state, page, mask, draft.sum);
        }
        self.put(page, draft.valid, mask, staged)?;
        if draft.sum.is_none() {
            self.fence(barriers::WRITE_DATA).map_err(|error| self.poison(error))?;
        }
        self.lanes.append_line(lane, &self.side, &draft.line, Some(page)).map_err(|error| self.poison(error))?;
        self.record_fence()?;
        self.publish(page, state, draft.valid ^ mask, draft.seq);
        lane.finish(draft.seq);
        Ok(())
    }
}
