//! Reading: the file, with the log's entries laid over it. A read takes no fence and no memory. It waits for no lock,
//! unless writers keep overtaking it or it is too long to track optimistically; then it is [`locked`](super::locked).

use super::Core;
use super::block_range::Link;
use super::meta::Meta;
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::storage::{Medium, MediumFile, last_in_page};
use crate::sync::clean_bits::CleanReadGuard;
use crate::sync::page_seqlock::{PageState, ReadGuard};
use crate::sys::sync::{Ordering, fence};

/// Optimistic tries of a read before it takes locks.
pub(super) const TRIES: u32 = 64;

/// Covers that a read keeps its glimpses of on the stack: a few for most, and as many as the longest entry has blocks.
const FEW: usize = 16;
const MANY: usize = 512;

/// How an optimistic try came out.
enum Try {
    Whole,
    /// A writer got in between.
    Disturbed,
    /// There are more covers than it can keep glimpses of, and there will be at the next try.
    TooLong,
}

/// What a reader goes by for some bytes.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// The slot that stands for the cover; `None` if nothing was ever written near.
    pub(super) slot: Option<&'a PageState>,
    pub(super) read_guard: ReadGuard,
    /// The entry to lay over the file, and its epoch.
    pub(super) entry: Option<(&'a Meta, u64)>,
    /// The bytes of the file that the cover is.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Seen<'_> {
    /// Whether the entry, if there was one, still is what it was: before its place in the log is used for something
    /// else, its old use is forgotten.
    pub(super) fn entry_is_there(&self) -> bool {
        self.entry.is_none_or(|(meta, epoch)| meta.what().is_some() && meta.epoch.load(Ordering::Relaxed) == epoch)
    }
}

impl<M: Medium> Core<M> {
    /// The common case: bytes of one clean block. False if it is another. No more than three words are loaded besides
    /// the bytes, all of them near; to wait for the block's slot would take as long as to wait for the bytes.
    #[inline(always)]
    pub(super) fn read_calm(&self, offset: u64, dst: &mut [u8]) -> bool {
        let Some(last) = last_in_page(offset, dst.len()) else { return false };
        let Some(read_guard) = self.begin_clean_read(last) else { return false };
        let held = self.data.try_read(offset, dst) && read_guard.validate(&self.head.sequence);
        if held {
            self.count_read();
        }
        held
    }

    /// [`read_calm`](Core::read_calm) on its own: what its copy calls would make room for itself in a short one too.
    #[inline(never)]
    pub(super) fn read_long_calm(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.read_calm(offset, dst)
    }

    /// What a reader of a clean block has to find unchanged after its copy, by the last byte it reads; `None` if the
    /// block is not clean, if the file does not have that byte, or if its length is changing.
    #[inline(always)]
    fn begin_clean_read(&self, last: u64) -> Option<CleanReadGuard<'_>> {
        let head = &*self.head;
        let sequence = head.sequence.read()?;
        if last >= head.len.load(Ordering::Acquire) {
            return None;
        }
        self.clean.read_guard(last / PAGE, sequence)
    }

    /// Bytes of one block that stays at home, though it is not clean: one that the open epoch has written to under
    /// undo, for instance. False if it is another.
    fn read_home_block(&self, offset: u64, dst: &mut [u8]) -> bool {
        let Some((last, resizes)) = self.look_at_len(offset, dst.len()) else { return false };
        let block = last / PAGE;
        let Some(slot) = self.index.get(block) else { return false };
        let Some(read_guard) = slot.read_guard() else { return false };
        let link = Link(read_guard.bitmap);
        // A cover of several blocks is locked by its first slot, so only a slot that stands for itself will do.
        let held = link.is_at_home_alone()
            && self.data.try_read(offset, dst)
            && slot.validate(read_guard)
            && self.head.resizes.load(Ordering::Relaxed) == resizes
            && self.handle_state.readable().is_ok();
        if held {
            self.try_to_calm(block, slot, link);
        }
        held
    }

    /// The last byte of a range within one block, and what tells later whether the length is still the same; `None`
    /// if the file does not have that range, or if its length is changing.
    #[inline(always)]
    fn look_at_len(&self, offset: u64, len: usize) -> Option<(u64, u64)> {
        let last = last_in_page(offset, len)?;
        let head = &*self.head;
        let resizes = head.resizes.load(Ordering::Acquire);
        if resizes & 1 != 0 || last >= head.len.load(Ordering::Acquire) { None } else { Some((last, resizes)) }
    }

    pub(super) fn read_range(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        if !self.view.is_empty() {
            return self.read_view(offset, dst);
        }
        self.count_read();
        if self.read_home_block(offset, dst) {
            return Ok(());
        }
        self.read_in_tries(offset, dst).map_err(|error| self.handle_state.unless_lost(error))
    }

    fn read_in_tries(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        for round in 0..TRIES {
            let resizes = self.head.resizes.load(Ordering::Acquire);
            let len = self.len();
            if offset.checked_add(dst.len() as u64).is_none_or(|end| end > len) {
                return Err(self.out_of_range(offset, dst.len() as u64, len));
            }
            if resizes.is_multiple_of(2) {
                match self.read_once(offset, dst)? {
                    Try::Whole => {
                        fence(Ordering::Acquire);
                        if self.head.resizes.load(Ordering::Relaxed) == resizes {
                            return Ok(());
                        }
                    }
                    Try::Disturbed => {}
                    Try::TooLong => break,
                }
            }
            self.medium.relax(round);
        }
        self.read_locked(offset, dst)
    }

    #[cold]
    pub(super) fn out_of_range(&self, offset: u64, len: u64, file_len: u64) -> Error {
        self.handle_state.unless_forked(Error::OutOfRange { path: self.path().to_owned(), offset, len, file_len })
    }

    fn read_once(&self, offset: u64, dst: &mut [u8]) -> Result<Try> {
        match ((offset % PAGE + dst.len() as u64).div_ceil(PAGE)) as usize {
            0..=FEW => self.read_block_ranges(offset, dst, &mut [None; FEW]),
            _ if self.read_clean_blocks(offset, dst)? => Ok(Try::Whole),
            _ => self.read_block_ranges(offset, dst, &mut [None; MANY]),
        }
    }

    /// Bytes of any number of blocks that all are clean, before the copy and after it. False if they are not.
    fn read_clean_blocks(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        let blocks = offset / PAGE..(offset + dst.len() as u64).div_ceil(PAGE);
        let Some(sequence) = self.head.sequence.read() else { return Ok(false) };
        if !self.clean.are_clean(blocks.clone()) {
            return Ok(false);
        }
        self.data.read(offset, dst)?;
        Ok(self.clean.stayed_clean(blocks, &self.head.sequence, sequence))
    }

    /// All glimpses are taken before the first copy and checked after the last, so all bytes are of one instant.
    fn read_block_ranges<'a>(&'a self, offset: u64, dst: &mut [u8], seen: &mut [Option<Seen<'a>>]) -> Result<Try> {
        let end = offset + dst.len() as u64;
        let (mut at, mut count) = (offset, 0);
        while at < end {
            let Some(room) = seen.get_mut(count) else { return Ok(Try::TooLong) };
            *room = self.look(at / PAGE);
            let Some(Seen { end, .. }) = room else { return Ok(Try::Disturbed) };
            at = *end;
            count += 1;
        }
        let mut at = offset;
        for seen in seen[..count].iter().flatten() {
            let here = seen.end.min(end);
            self.gather(seen, at, &mut dst[(at - offset) as usize..(here - offset) as usize])?;
            at = here;
        }
        // The loads of the copies must not move below the second looks.
        fence(Ordering::Acquire);
        let validate = |seen: &Seen<'_>| {
            let slot_holds = match seen.slot {
                Some(slot) => slot.validate(seen.read_guard),
                None => self.index.get(seen.start / PAGE).is_none(),
            };
            slot_holds && seen.entry_is_there()
        };
        if !seen[..count].iter().flatten().all(validate) {
            return Ok(Try::Disturbed);
        }
        self.handle_state.readable()?;
        for seen in seen[..count].iter().flatten() {
            if let Some(slot) = seen.slot {
                self.try_to_calm(seen.start / PAGE, slot, Link(seen.read_guard.bitmap));
            }
        }
        Ok(Try::Whole)
    }

    /// Lets a block, and all others of its cover, count as clean again if they are and if nobody is in the way, so
    /// that the next reader need look at no slot. `slot` stands for the cover, and had this link; and if not, nothing
    /// happens.
    pub(super) fn try_to_calm(&self, block: u64, slot: &PageState, link: Link) {
        // Mostly it is not clean, or the reader would not have come this way; but a neighbour can have sent it here.
        if !self.clean.is_dirty(block) || !self.rests(block, link) || !slot.try_hold() {
            return;
        }
        if Link(slot.bitmap()) == link { self.unlock_calmed(block, slot, link) } else { slot.unlock() }
    }

    /// Lets go of a cover whose lock is held, by the slot that stands for it, and lets its blocks count as clean
    /// again if they are.
    pub(super) fn unlock_calmed(&self, block: u64, slot: &PageState, link: Link) {
        // Under the lock nobody stores to the cover by way of a slot, nor links an entry of it; and an entry that has
        // gone home nobody carries again.
        if self.clean.is_dirty(block) && self.rests(block, link) && self.handle_state.readable().is_ok() {
            let head = link.head(block);
            self.clean.mark_clean(head..head + (1 << link.class()), &self.head.sequence);
            if link.is_redo() && link.class() == 0 {
                // A link like this says that the block is dirty; and the next write need not find out that it is stale.
                slot.publish(0, slot.version() + 1);
                return;
            }
        }
        slot.unlock();
    }

    /// Whether what a link names is of no more use: to a reader, because it is at home, or to the open epoch, which is
    /// likely to write again to what it has written to.
    fn rests(&self, block: u64, link: Link) -> bool {
        if link.is_redo() {
            self.live(link, link.head(block)).is_none()
        } else {
            link.is_none() || self.meta(link).epoch.load(Ordering::Acquire) != self.epoch()
        }
    }

    /// What to go by for the cover of a block; `None` while it is being changed.
    pub(super) fn look(&self, block: u64) -> Option<Seen<'_>> {
        let alone =
            |slot, read_guard| Seen { slot, read_guard, entry: None, start: block * PAGE, end: (block + 1) * PAGE };
        let Some(slot) = self.index.get(block) else { return Some(alone(None, ReadGuard::default())) };
        let mut seen = alone(Some(slot), slot.read_guard()?);
        let link = Link(seen.read_guard.bitmap);
        let head = link.head(block);
        if link.class() > 0 {
            let first = self.index.get(head)?;
            let (start, end) = (head * PAGE, (head + (1 << link.class())) * PAGE);
            seen = Seen { slot: Some(first), read_guard: first.read_guard()?, entry: None, start, end };
            if Link(seen.read_guard.bitmap) != link {
                return None;
            }
        }
        if link.is_redo() {
            seen.entry = self.live(link, head);
        }
        Some(seen)
    }

    /// Copies bytes of one cover: what its entry has from there, the rest from home.
    pub(super) fn gather(&self, seen: &Seen<'_>, offset: u64, dst: &mut [u8]) -> Result<()> {
        let Some((meta, _)) = seen.entry else { return self.data.read(offset, dst) };
        let unit = Link(seen.read_guard.bitmap).unit();
        let delta = meta.delta();
        let (end, len) = (offset + dst.len() as u64, dst.len());
        // The log's part, in bytes of `dst`. While the entry is being given up the delta may be another's; nobody
        // believes the bytes then, but they must be somewhere.
        let from = (seen.start + u64::from(delta.offset)).clamp(offset, end) - offset;
        let to = (seen.start + u64::from(delta.end)).clamp(offset + from, end) - offset;
        let (before, rest) = dst.split_at_mut(from as usize);
        let (logged, after) = rest.split_at_mut((to - from) as usize);
        if !before.is_empty() {
            self.data.read(offset, before)?;
        }
        if !logged.is_empty() {
            let skip = offset + from - seen.start - u64::from(delta.offset);
            self.read_logged(unit, meta.is_inline(), delta, skip, logged)?;
        }
        if to < len as u64 { self.data.read(offset + to, after) } else { Ok(()) }
    }
}
