//! Reading: gather, or deploy and copy. A read of settled pages takes no lock, no fence, no allocation, no system call.

use super::Reflection;
use super::slices::{SLICE, runs, touched};
use crate::engine::check_range;
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::options::ReadPolicy;
use crate::storage::{Medium, MediumFile, last_in_page};
use crate::sync::page_seqlock::ReadGuard;
use crate::sys::sync::{Ordering, fence};

/// Optimistic tries of a read before it takes the pages' locks: enough that a single busy writer never forces it, few
/// enough that many cannot starve it.
const TRIES: u32 = 64;

/// Pages a read keeps its glimpses of on the stack; a longer one allocates.
const FEW: usize = 16;

impl<M: Medium> Reflection<M> {
    /// The common case: bytes of one clean page; false if it is another. No more than three words are loaded besides
    /// the bytes, all of them near; to wait for a page's state would take as long as to wait for the bytes.
    #[inline(always)]
    pub(super) fn read_calm(&self, offset: u64, dst: &mut [u8]) -> bool {
        let Some(last) = last_in_page(offset, dst.len()) else { return false };
        let Some(clean) = self.state.begin_clean_read(offset / PAGE, last) else { return false };
        self.data.try_read(offset, dst) && clean.validate(&self.state.head().sequence)
    }

    /// [`read_calm`](Reflection::read_calm) on its own: what its copy calls would make room for itself in a short one
    /// too.
    #[inline(never)]
    pub(super) fn read_long_calm(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.read_calm(offset, dst)
    }

    pub(super) fn read_range(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.read_in_tries(offset, dst).map_err(|error| self.unless_lost(error))
    }

    fn read_in_tries(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let head = self.state.head();
        for try_number in 0..TRIES {
            let resizes = head.resizes.load(Ordering::Acquire);
            let len = head.len.load(Ordering::Acquire);
            if offset.checked_add(dst.len() as u64).is_none_or(|end| end > len) {
                return Err(self.out_of_range(offset, dst.len() as u64, len));
            }
            if resizes.is_multiple_of(2) && self.read_once(offset, dst)? {
                // A shrink punches holes where this read may have been copying; then the length decides anew.
                fence(Ordering::Acquire);
                if head.resizes.load(Ordering::Relaxed) == resizes {
                    return Ok(());
                }
            }
            self.medium.relax(try_number);
        }
        self.read_locked(offset, dst)
    }

    #[cold]
    fn out_of_range(&self, offset: u64, len: u64, file_len: u64) -> Error {
        self.handle_state.unless_forked(Error::OutOfRange { path: self.path.clone(), offset, len, file_len })
    }

    /// One optimistic try; false if a writer got in between.
    #[inline]
    fn read_once(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        let from = offset % PAGE;
        let page = offset / PAGE;
        if dst.is_empty() {
            return Ok(true);
        }
        if from + dst.len() as u64 <= PAGE {
            let state = &self.state.pages[page as usize];
            let Some(read_guard) = state.read_guard() else { return Ok(false) };
            if read_guard.bitmap == 0 {
                self.data.read(offset, dst)?;
            } else {
                self.read_reflected(page, from, read_guard.bitmap, dst)?;
            }
            if !state.validate(read_guard) {
                return Ok(false);
            }
            if read_guard.bitmap == 0 {
                // So that the next reader need not come this way.
                self.try_to_calm(page);
            }
            return Ok(true);
        }
        let count = ((from + dst.len() as u64).div_ceil(PAGE)) as usize;
        if count <= FEW {
            self.read_pages(offset, dst, &mut [None; FEW][..count])
        } else {
            self.read_pages(offset, dst, &mut vec![None; count])
        }
    }

    /// Several pages at one instant: all glimpses are taken before the first copy and checked after the last.
    fn read_pages(&self, offset: u64, dst: &mut [u8], read_guards: &mut [Option<ReadGuard>]) -> Result<bool> {
        let first = offset / PAGE;
        for (n, read_guard) in read_guards.iter_mut().enumerate() {
            *read_guard = self.state.pages[first as usize + n].read_guard();
            if read_guard.is_none() {
                return Ok(false);
            }
        }
        let mut from = offset % PAGE;
        let mut rest = &mut *dst;
        for (n, read_guard) in read_guards.iter().flatten().enumerate() {
            let here = ((PAGE - from) as usize).min(rest.len());
            let (part, after) = std::mem::take(&mut rest).split_at_mut(here);
            let page = first + n as u64;
            if read_guard.bitmap == 0 {
                self.data.read(page * PAGE + from, part)?;
            } else {
                self.read_reflected(page, from, read_guard.bitmap, part)?;
            }
            rest = after;
            from = 0;
        }
        let validate =
            |(n, read_guard): (usize, &ReadGuard)| self.state.pages[first as usize + n].validate(*read_guard);
        Ok(read_guards.iter().flatten().enumerate().all(validate))
    }

    /// Copies bytes of a page some of whose slices are valid in the reflection page, by the policy.
    fn read_reflected(&self, page: u64, from: u64, bitmap: u64, dst: &mut [u8]) -> Result<()> {
        let wanted = touched(from, from + dst.len() as u64);
        if bitmap & wanted != 0 && self.read_policy == ReadPolicy::Deploy && self.writable().is_ok() {
            // The glimpse this read goes by is stale then; the next try finds the slices at home. If it fails, for want
            // of space or because the file was poisoned just now, the bytes are still where they were.
            let _ = self.deploy_page(page);
        }
        self.gather(page, from, bitmap, dst)
    }

    /// Copies each byte from the copy that is valid by `bitmap`.
    fn gather(&self, page: u64, from: u64, bitmap: u64, dst: &mut [u8]) -> Result<()> {
        let to = from + dst.len() as u64;
        let wanted = touched(from, to);
        let at = self.places.reflection(page);
        for (set, reflected) in [(wanted & bitmap, true), (wanted & !bitmap, false)] {
            for (start, len) in runs(set) {
                let begin = (start * SLICE).max(from);
                let end = ((start + len) * SLICE).min(to);
                let part = &mut dst[(begin - from) as usize..(end - from) as usize];
                match at {
                    Some(at) if reflected => self.side.read(at + begin, part)?,
                    _ => self.data.read(page * PAGE + begin, part)?,
                }
            }
        }
        Ok(())
    }

    /// Copies whole slices from where they are valid by `bitmap`; beyond the end of the file they are zeros.
    pub(super) fn copy_slices(&self, page: u64, bitmap: u64, start: u64, len: u64, dst: &mut [u8]) -> Result<()> {
        let end = self.state.head().len.load(Ordering::Relaxed);
        let offset = page * PAGE + start * SLICE;
        let within = (end.saturating_sub(offset) as usize).min((len * SLICE) as usize);
        let (inside, beyond) = dst.split_at_mut(within);
        beyond.fill(0);
        if inside.is_empty() { Ok(()) } else { self.gather(page, start * SLICE, bitmap, inside) }
    }

    /// The way out for a read that writers keep overtaking: it locks the pages like a writer.
    #[cold]
    fn read_locked(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        // Holding a lane keeps the length as it is.
        let lane = self.lanes.acquire(self.relax());
        let len = self.state.head().len.load(Ordering::Acquire);
        check_range(&self.path, offset, dst.len() as u64, len)?;
        let pages = offset / PAGE..(offset + dst.len() as u64).div_ceil(PAGE);
        let state = |page: u64| &self.state.pages[page as usize];
        pages.clone().for_each(|page| state(page).lock(false, self.relax()));
        let mut outcome = Ok(());
        let mut done = 0;
        for page in pages.clone() {
            let from = (offset + done) % PAGE;
            let len = (PAGE - from).min(dst.len() as u64 - done);
            let part = &mut dst[done as usize..(done + len) as usize];
            outcome = outcome.and_then(|()| self.gather(page, from, state(page).bitmap(), part));
            done += len;
        }
        pages.for_each(|page| state(page).unlock());
        drop(lane);
        outcome
    }
}
