//! Pages that are opened as those of another file, so that nothing is copied before the program stores to them: a
//! private mapping of that file in the place of the pages.
//!
//! # Invariants
//! 1. While a page is *shown*, its owner keeps the part of the other file as it is until the program has stored to the
//!    page. From then on the process has a page of its own there, and the other file may change.
//! 2. The process's own page of a shown one is let go of only if nobody sees what the other file has by then. The page
//!    is closed, or the own file is mapped in its place (settling and restoring), or the owner knows that the other
//!    file has not changed. A closed page that opens again is mapped anew, of one file or the other.
//! 3. A page is never taken for the process's own without being so: its owner would commit it, and the other file would
//!    change under it. Pages that were opened since the last look are forgotten as own ones, and no look guesses.
//! 4. A mapping has no trackers when it is made, and no page of it is lent before it is tracked.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::PoisonError;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::{CHUNK, Open, Opening, PAGE, Paged, guard, protect};
use crate::sys::map::FileMap;
use crate::sys::runs::Runs;
use crate::sys::tracking::Tracking;

/// Runs of shown pages. Each takes up to two mappings, of the 65,530 that a process may have.
const MOST: usize = 8192;

impl Opening<'_> {
    /// Opens closed pages, which hold the bytes of another file from an offset on: see the invariants.
    ///
    /// # Errors
    /// ENOMEM if that would take too many mappings; those of `mmap(2)` and of tracking. The pages are closed then.
    pub(crate) fn show(&mut self, pages: Range<u64>, other: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        let Paged { file, memory, tracking, .. } = self.memory;
        let open = &mut *self.open;
        if open.shown.iter().count() >= MOST {
            return Err(Errno::NOMEM.into());
        }
        // The own file takes their place one day.
        open.fit(file, &pages)?;
        for chunk in pages.start / CHUNK..pages.end.div_ceil(CHUNK) {
            open.prepare(memory, chunk)?;
        }
        place(memory, &pages, other, offset)?;
        open.shown.add(&runs(&pages));
        open.newly_shown.add(&runs(&pages));
        if let Err(error) = tracking.watch_again(bytes(&pages)) {
            // Else they are closed the next time that they are opened.
            let _ = open.cover_all(file, memory, tracking, pages, false);
            return Err(error);
        }
        open.note(pages, true);
        Ok(())
    }
}

impl Paged {
    /// Bytes of the pages that were opened as another file's since this was last asked. None of them was the process's
    /// own then, whatever they were before.
    pub(crate) fn take_newly_shown(&mut self) -> Runs {
        std::mem::take(&mut self.open.get_mut().unwrap_or_else(PoisonError::into_inner).newly_shown)
    }

    /// Lets go of what the process has of its own of an open page, if that is shown and the other file has not changed.
    /// Returns whether it is shown.
    ///
    /// # Errors
    /// Those of `madvise(2)`: no bytes are lost then.
    pub(crate) fn show_again(&mut self, page: u64) -> io::Result<bool> {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        if open.shown.within(&[bytes(&(page..page + 1))]).is_empty() {
            return Ok(false);
        }
        self.memory.release(page * PAGE, PAGE).map(|()| true)
    }

    /// Pages that the memory file has bytes of.
    #[cfg(test)]
    pub(crate) fn copied_pages(&self) -> u64 {
        rustix::fs::fstat(&self.file).unwrap().st_blocks as u64 / (PAGE / 512)
    }
}

impl Open {
    /// Maps the own file in the place of what is shown among pages, which are open then or closed. Returns the others.
    pub(super) fn cover_all(
        &mut self,
        file: &OwnedFd,
        memory: &FileMap,
        tracking: &Tracking,
        pages: Range<u64>,
        open: bool,
    ) -> io::Result<Vec<Range<u64>>> {
        if self.shown.is_empty() || pages.is_empty() {
            return Ok(vec![pages]);
        }
        let shown = self.shown.within(&[bytes(&pages)]);
        for run in shown.iter() {
            let pages = run.start / PAGE..run.end / PAGE;
            place(memory, &pages, file.as_fd(), run.start)?;
            self.shown = self.shown.without(&runs(&pages));
            if !open {
                // What was there is gone: from here on they are closed.
                if !self.guards || self.mixed || guard(memory, pages.clone(), true).is_err() {
                    self.mixed = self.guards;
                    // If it fails, touching them is no SIGSEGV, and finds zeros.
                    let _ = protect(memory, pages.clone(), false);
                }
                self.note(pages, false);
            }
            tracking.watch_again(run.clone())?;
        }
        Ok(runs(&pages).without(&shown).iter().map(|run| run.start / PAGE..run.end / PAGE).collect())
    }
}

fn bytes(pages: &Range<u64>) -> Range<u64> {
    pages.start * PAGE..pages.end * PAGE
}

fn runs(pages: &Range<u64>) -> Runs {
    std::iter::once(bytes(pages)).collect()
}

/// Maps a part of a file in the place of pages.
fn place(memory: &FileMap, pages: &Range<u64>, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
    let (at, len) = (memory.at(pages.start * PAGE), (pages.end - pages.start) * PAGE);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: pages of the reservation, of which nobody has a slice: they are closed, or their owner is borrowed
    // exclusively. What the process had there of its own is let go of, which the caller means.
    unsafe { mmap(at.cast(), len as usize, ProtFlags::READ | ProtFlags::WRITE, flags, file, offset) }?;
    Ok(())
}
