//! A commit of one page: the path that is counted and timed.
//!
//! While a fence waits, the CPU works on, for some hundred instructions and up to the first locked one. So all that can
//! be is worked out before the first lock is taken, from the state as it looks then: where the bytes will go (to start
//! the address translation), their checksum, and the whole record, called a *draft*. Under the locks the draft is
//! compared with the state. Nearly always it still fits; if not, it is made anew. What remains to be done between two
//! fences is to take two locks, to compare four words and to store.

use std::sync::atomic::Ordering;

use super::slices::{Part, touched};
use super::store::Staged;
use super::{Reflection, barriers};
use crate::engine::check_range;
use crate::error::Result;
use crate::format::lane::{Lane, Position};
use crate::format::record::{DataSum, Entry, Line, encode_single};
use crate::format::sidecar::PAGE;
use crate::options::Order;
use crate::storage::{Medium, MediumFile};
use crate::sync::page_seqlock::PageState;

/// A record over one page as it has to be if the state is this.
pub(super) struct Speculation {
    /// Its place in a lane, and the lane's last number.
    position: Position,
    seq: u64,
    /// Length of the file.
    len: u64,
    /// The page's bitmap before.
    valid: u64,
    /// Checksum of the data, unless the data is fenced before the record.
    sum: Option<u64>,
    /// Byte offset of `line` in the sidecar.
    line_at: u64,
    line: Line,
}

impl<M: Medium> Reflection<M> {
    /// Per-write mode, one page.
    #[inline(always)]
    pub(super) fn write_part(&self, part: Part<'_>) -> Result<()> {
        if !part.aligned(self.unit.bytes()) {
            return self.write_unaligned(part);
        }
        let Some(state) = self.state.pages.get(part.page as usize) else {
            return self.check_pieces(&[part.piece()]).map(drop);
        };
        let mask = touched(part.from, part.to());
        self.prefetch_hint(part, mask, state.bitmap());
        // Over the bytes as they came: a struct around them would be stored and loaded again, and a load of what was
        // just stored in two halves waits for the fence.
        let sum = match self.order {
            Order::OneFence => Some(DataSum::of(part.bytes)),
            Order::TwoFence => None,
        };
        let time = self.medium.commit_time();
        let mut speculation = self.speculation(self.lanes.guess(), state, part.page, mask, sum);
        let lane = self.lane(1)?;
        state.lock(false, self.relax());
        if !self.fits(&speculation, &lane, state) {
            speculation = self.speculation(lane.position(), state, part.page, mask, sum);
        }
        // Where the bytes go is found out only now, by the bitmap that the record goes by: what was foreseen may have
        // been deployed or reclaimed since, and its place may be another page's.
        let stored = check_range(&self.path, part.offset(), part.bytes.len() as u64, speculation.len)
            .and_then(|()| self.store(part.page, speculation.valid, mask, Staged::aligned(part)));
        if let Err(error) = stored {
            self.unlock_unwritten(part.page, state);
            return Err(self.unless_lost(error));
        }
        self.commit_page(&lane, state, part.page, mask, &speculation, Some(time))
    }

    /// The same for bytes that cover a slice partly, or under `shadow` a page: what it holds besides is known only
    /// under the page's lock.
    #[inline(never)]
    fn write_unaligned(&self, part: Part<'_>) -> Result<()> {
        let lane = self.lane(1)?;
        let len = self.state.head().len.load(Ordering::Acquire);
        check_range(&self.path, part.offset(), part.bytes.len() as u64, len)?;
        let state = &self.state.pages[part.page as usize];
        state.lock(false, self.relax());
        let mask = self.copied(part.page, touched(part.from, part.to()), len);
        let outcome = self.with_image(state.bitmap(), mask, part, |staged| {
            let speculation = self.speculation(lane.position(), state, part.page, mask, self.certificate(staged, mask));
            self.store(part.page, speculation.valid, mask, staged)?;
            Ok(speculation)
        });
        match outcome {
            Ok(speculation) => {
                let time = Some(self.medium.commit_time());
                self.commit_page(&lane, state, part.page, mask, &speculation, time)
            }
            Err(error) => {
                self.unlock_unwritten(part.page, state);
                Err(self.unless_lost(error))
            }
        }
    }

    /// Starts the address translation of the pages that a write of whole slices will probably store to: if `valid` is
    /// the page's bitmap at the last commit. A non-temporal store over a cached line is slow, so another line of the
    /// page stands for theirs.
    #[inline(always)]
    pub(super) fn prefetch_hint(&self, part: Part<'_>, mask: u64, valid: u64) {
        let elsewhere = (part.from + PAGE / 2) % PAGE;
        if mask & valid != 0 {
            self.data.prefetch(part.page * PAGE + elsewhere);
        }
        if mask & !valid != 0
            && let Some(page) = self.places.reflection(part.page)
        {
            self.side.prefetch(page + elsewhere);
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
    pub(super) fn speculation(
        &self,
        position: Position,
        state: &PageState,
        page: u64,
        mask: u64,
        sum: Option<u64>,
    ) -> Speculation {
        let (valid, len) = (state.bitmap(), self.state.head().len.load(Ordering::Relaxed));
        let seq = self.number(position, state.version());
        let entry = Entry { page, bitmap: valid ^ mask, mask };
        let line_at = self.lanes.offset(position);
        let line = encode_single(self.checksum_seed, line_at, seq, entry, sum, len);
        Speculation { position, seq, len, valid, sum, line_at, line }
    }

    #[inline(always)]
    fn number(&self, position: Position, version: u64) -> u64 {
        self.state.head().floor.load(Ordering::Relaxed).max(position.last).max(version) + 1
    }

    /// Whether a draft is what would be drafted now. The caller holds the lane and the page's lock.
    #[inline(always)]
    fn fits(&self, speculation: &Speculation, lane: &Lane<'_>, state: &PageState) -> bool {
        let position = lane.position();
        speculation.position == position
            && speculation.seq == self.number(position, state.version())
            && speculation.valid == state.bitmap()
            && speculation.len == self.state.head().len.load(Ordering::Relaxed)
    }

    /// Makes the record of a draft durable, and what it speaks of visible. The caller holds the page's lock and a lane
    /// with room for a line, and has stored the data; the page is unlocked in any case. `time` is that of a commit of
    /// the program's.
    #[inline(always)]
    pub(super) fn commit_page(
        &self,
        lane: &Lane<'_>,
        state: &PageState,
        page: u64,
        mask: u64,
        speculation: &Speculation,
        time: Option<u64>,
    ) -> Result<()> {
        if let Err(error) = self.record_page(lane, page, speculation) {
            state.unlock();
            return Err(self.poison(error));
        }
        self.publish(page, state, speculation.valid ^ mask, speculation.seq);
        match time {
            Some(time) => lane.finish_commit(speculation.seq, time),
            None => lane.finish(speculation.seq),
        }
        Ok(())
    }

    #[inline(always)]
    fn record_page(&self, lane: &Lane<'_>, page: u64, speculation: &Speculation) -> Result<()> {
        if speculation.sum.is_none() {
            self.fence(barriers::WRITE_DATA)?;
        }
        self.lanes.append_line(lane, &self.side, speculation.line_at, &speculation.line, Some(page))?;
        self.record_fence()
    }
}
