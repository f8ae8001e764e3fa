//! The unit of a copy: a slice for the engine `reflection`, a page for the engine `shadow`.
//!
//! # The engine `shadow`
//! `shadow` is copy-on-write of whole pages, as NOVA does it, and the baseline of the Acumen paper. A write of any size
//! builds the new image of each page that it touches, and stores it whole to the place of the two that does not have
//! the page now. The record then says where the page is, and the old place is free.
//!
//! A shadow page is a reflection page whose 64 slices move together. So each rule of the [reflection engine](super)
//! holds as it stands, with one difference: a write covers all slices of a page, not only those that its bytes touch.
//! Format, records, recovery and barriers are the same; the superblock alone says which engine it was.
//!
//! # What is as in NOVA, and what is not
//! 1. Under per-write durability each write stores each page that it touches, with every byte of it. Under per-commit
//!    durability the first write of an epoch does; the later ones of the epoch change the copy, which no commit has.
//! 2. NOVA takes a free page from a pool. Here the free place is the other one of two, which needs no allocator and no
//!    table of places. The bytes stored are the same.
//! 3. NOVA orders data, log entry and the tail of the log by fences, and maps the new page. Here one fence, or two by
//!    [`Order`](crate::options::Order), does for data and record. So this baseline is faster than NOVA, not slower.
//! 4. A page that is being made durable has bytes in both places, so a writer of it waits for the commit.
//!
//! A page that a change of the length has left in two parts stays so, each part moving to the other place. A write of
//! it stores every byte all the same.

use super::Reflection;
use super::slices::{SLICE, touched};
use super::write::PageParts;
use crate::engine::EngineKind;
use crate::format::sidecar::PAGE;
use crate::options::Durability;
use crate::storage::Medium;

/// The unit of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum CopyUnit {
    Slice = SLICE,
    Page = PAGE,
}

impl CopyUnit {
    /// That of an engine whose sidecar has reflection pages.
    pub(super) fn of(engine: EngineKind) -> Self {
        if engine == EngineKind::Shadow { CopyUnit::Page } else { CopyUnit::Slice }
    }

    pub(super) fn engine(self) -> EngineKind {
        match self {
            CopyUnit::Slice => EngineKind::Reflection,
            CopyUnit::Page => EngineKind::Shadow,
        }
    }

    #[inline(always)]
    pub(super) fn bytes(self) -> u64 {
        self as u64
    }
}

impl<M: Medium> Reflection<M> {
    /// The slices that a write stores to whose bytes touch these of a page. The caller holds the page's lock, and a
    /// lane, which keeps the length as it is.
    #[inline]
    pub(super) fn copied(&self, page: u64, touched_slices: u64, len: u64) -> u64 {
        match self.unit {
            CopyUnit::Slice => touched_slices,
            CopyUnit::Page => self.copied_with_page(page, touched_slices, len),
        }
    }

    #[inline(never)]
    fn copied_with_page(&self, page: u64, touched_slices: u64, len: u64) -> u64 {
        // No bit stands for a slice behind the end of the file.
        let whole = touched(0, (len - page * PAGE).min(PAGE));
        let in_epoch = match self.durability {
            Durability::PerWrite => 0,
            Durability::PerCommit => self.state.pages[page as usize].bitmap() ^ self.committed_bitmap(page),
        };
        // The open epoch has a copy of the page already if all its slices differ.
        if in_epoch & whole == whole { touched_slices } else { whole }
    }

    /// [`copied`](Self::copied) for all pages of a write.
    pub(super) fn copy_units(&self, pages: &mut [PageParts<'_>], len: u64) {
        if self.unit == CopyUnit::Page {
            for page in pages {
                page.mask = self.copied_with_page(page.page, page.mask, len);
            }
        }
    }
}
