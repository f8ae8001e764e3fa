//! Storing: slices go to the copy that is invalid, with space made for them first.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::slices::{Part, SLICE, runs};
use super::write::PageParts;
use super::{Reflection, barriers};
use crate::error::Result;
use crate::format::record::{DataSum, Entry};
use crate::format::sidecar::PAGE;
use crate::options::{Durability, Order};
use crate::storage::{Medium, MediumClass, MediumFile};

/// Whole slices ready to be stored: `bytes` begins with slice `first` of the page.
#[derive(Clone, Copy)]
pub(super) struct Staged<'a> {
    pub(super) first: u64,
    pub(super) bytes: &'a [u8],
    /// The bytes are exactly the slices to be written, in one run: what they are for nearly every write. Asking the
    /// mask instead would put some fifty instructions before the first store, more than fit beside the wait for the
    /// previous write's fence.
    pub(super) one_run: bool,
}

impl<'a> Staged<'a> {
    /// A part that covers whole units of a copy.
    #[inline(always)]
    pub(super) fn aligned(part: Part<'a>) -> Self {
        Staged { first: part.from / SLICE, bytes: part.bytes, one_run: true }
    }

    pub(super) fn run(&self, start: u64, len: u64) -> &'a [u8] {
        let from = ((start - self.first) * SLICE) as usize;
        &self.bytes[from..from + (len * SLICE) as usize]
    }

    /// The checksum over the slices of a mask.
    #[inline(always)]
    pub(super) fn sum(&self, mask: u64) -> DataSum {
        let mut sum = DataSum::default();
        if self.one_run {
            sum.add(self.bytes);
        } else {
            runs(mask).for_each(|(start, len)| sum.add(self.run(start, len)));
        }
        sum
    }
}

/// The bitmap after a write: slices it does not touch keep what is visible, those it does are now in the copy that is
/// invalid at the last commit.
#[inline]
pub(super) fn written(visible: u64, valid: u64, mask: u64) -> u64 {
    visible & !mask | !valid & mask
}

impl<M: Medium> Reflection<M> {
    /// Fills the invalid copies of all pages. The caller holds their locks.
    pub(super) fn store_pages(&self, pages: &[PageParts<'_>]) -> Result<(Vec<Entry>, DataSum)> {
        // Neighbours in one call. A page by itself gets its space when it is stored to.
        for run in pages.chunk_by(|one, next| next.page == one.page + 1).filter(|run| run.len() > 1) {
            self.claim_home(run[0].page..run[0].page + run.len() as u64)?;
        }
        let mut entries = Vec::with_capacity(pages.len());
        let mut sum = DataSum::default();
        let mut image = [0; PAGE as usize];
        for PageParts { page, mask, parts } in pages {
            let visible = self.state.pages[*page as usize].bitmap();
            let valid = self.committed_bitmap(*page);
            let staged = match parts.as_slice() {
                [part] if part.aligned(self.unit.bytes()) => Staged::aligned(*part),
                parts => self.stage(*page, visible, *mask, parts, &mut image)?,
            };
            self.store(*page, valid, *mask, staged)?;
            if self.sums_writes() {
                runs(*mask).for_each(|(start, len)| sum.add(staged.run(start, len)));
            }
            entries.push(Entry { page: *page, bitmap: written(visible, valid, *mask), mask: *mask });
        }
        Ok((entries, sum))
    }

    fn sums_writes(&self) -> bool {
        self.order == Order::OneFence && self.durability == Durability::PerWrite
    }

    /// Builds the slices of a mask out of parts that may cover them partly or not at all: the rest comes from the valid
    /// copy. The mask has every slice that a part touches, one at least.
    fn stage<'i>(
        &self,
        page: u64,
        visible: u64,
        mask: u64,
        parts: &[Part<'_>],
        image: &'i mut [u8],
    ) -> Result<Staged<'i>> {
        let first = u64::from(mask.trailing_zeros());
        let slices = u64::from(64 - mask.leading_zeros()) - first;
        let image = &mut image[..(slices * SLICE) as usize];
        let within = |start: u64, len: u64| {
            let from = ((start - first) * SLICE) as usize;
            from..from + (len * SLICE) as usize
        };
        let missing = parts.iter().fold(mask, |missing, part| missing & !part.whole_slices());
        for (start, len) in runs(missing) {
            self.copy_slices(page, visible, start, len, &mut image[within(start, len)])?;
        }
        for part in parts {
            let at = (part.from - first * SLICE) as usize;
            image[at..at + part.bytes.len()].copy_from_slice(part.bytes);
        }
        Ok(Staged { first, bytes: image, one_run: u64::from(mask.count_ones()) == slices })
    }

    /// The page image is kept off the stack frame of aligned writes.
    #[inline(never)]
    pub(super) fn with_image<T>(
        &self,
        visible: u64,
        mask: u64,
        part: Part<'_>,
        go: impl FnOnce(Staged<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut image = [0; PAGE as usize];
        go(self.stage(part.page, visible, mask, &[part], &mut image)?)
    }

    /// Stores slices into the copies that `valid` calls invalid.
    #[inline(always)]
    pub(super) fn store(&self, page: u64, valid: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        if mask & valid == 0 {
            self.store_reflection(page, mask, staged)
        } else if mask & !valid == 0 {
            self.store_data(page, mask, staged)
        } else {
            self.store_both(page, valid, mask, staged)
        }
    }

    /// Slices some of which go to the one copy and some to the other. Not inlined, like the end of the file below: the
    /// store of a single run, between two locks and a fence, is to be as short as it can be.
    #[inline(never)]
    fn store_both(&self, page: u64, valid: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        let staged = Staged { one_run: false, ..staged };
        // Space for both before a store to either, so that want of it finds nothing half done.
        self.data_room(page)?;
        self.store_reflection(page, mask & !valid, staged)?;
        self.store_data(page, mask & valid, staged)
    }

    /// Space for everything that a write to these pages stores.
    #[cold]
    pub(super) fn make_room(&self, pages: &[PageParts<'_>]) -> Result<()> {
        for &PageParts { page, mask, .. } in pages {
            let valid = self.committed_bitmap(page);
            if mask & !valid != 0 {
                self.reflection_room(page)?;
            }
            if mask & valid != 0 {
                self.data_room(page)?;
            }
        }
        Ok(())
    }

    /// Space for a reflection page. Returns where it is.
    #[inline(always)]
    fn reflection_room(&self, page: u64) -> Result<u64> {
        let at = match self.places.reflection(page) {
            Some(at) => at,
            None => self.take_place(page)?,
        };
        if !self.side_space.knows(at) {
            self.make_space(page, at)?;
        }
        // Whoever deploys the slices takes no space then.
        if !self.data_space.knows(page * PAGE) {
            self.claim_home(page..page + 1)?;
        }
        Ok(at)
    }

    #[inline(always)]
    fn store_reflection(&self, page: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        let at = self.reflection_room(page)?;
        if staged.one_run {
            return self.side.write(at + staged.first * SLICE, staged.bytes);
        }
        self.side.write_lines(at + staged.first * SLICE, staged.bytes, mask >> staged.first)
    }

    #[cold]
    fn take_place(&self, page: u64) -> Result<u64> {
        let at = self.places.provide(&self.side, &self.sidecar, &self.side_space, self.class, page, self.relax())?;
        // The entry that says so was stored past the cache. In per-commit mode it is another thread's fence that has to
        // cover it.
        self.medium.order();
        Ok(at)
    }

    /// Makes room for a reflection page and, on any medium, for the meta page its bitmap will be written to: a
    /// checkpoint must not fail for want of space.
    #[cold]
    fn make_space(&self, page: u64, at: u64) -> Result<()> {
        if let Some(meta) = self.places.bitmap(page).filter(|&meta| !self.side_space.knows(meta)) {
            let meta_page = meta / PAGE * PAGE;
            if self.side.own_space(meta_page, PAGE) < PAGE {
                self.side.allocate(meta_page, PAGE)?;
                self.side_space.gave();
            }
            self.side_space.learn(meta);
            self.places.note_used(page);
            if self.durability == Durability::PerWrite {
                self.side_space.sync(&self.side, barriers::WRITE_SPACE).map_err(|error| self.poison(error))?;
            }
        }
        self.side_space.ensure(&self.side, at, self.class)
    }

    /// Space in the data file for the slices that reflection pages get.
    #[cold]
    fn claim_home(&self, pages: Range<u64>) -> Result<()> {
        match self.durability {
            Durability::PerCommit => self.data_space.claim(&self.data, pages, self.class),
            Durability::PerWrite => self.data_space.claim_durably(&self.data, pages, self.class, || {
                self.data.sync(barriers::WRITE_SPACE).map_err(|error| self.poison(error))
            }),
        }
    }

    #[inline(always)]
    fn data_room(&self, page: u64) -> Result<()> {
        if self.class == MediumClass::PersistentMemory && !self.data_space.knows(page * PAGE) {
            self.data_space.ensure(&self.data, page * PAGE, self.class)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn store_data(&self, page: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        self.data_room(page)?;
        let at = page * PAGE + staged.first * SLICE;
        if at + staged.bytes.len() as u64 > self.state.head().len.load(Ordering::Relaxed) {
            return self.store_data_to_the_end(page, mask, staged);
        }
        if staged.one_run {
            return self.data.write(at, staged.bytes);
        }
        self.data.write_lines(at, staged.bytes, mask >> staged.first)
    }

    /// The last slice reaches beyond the end of the file; the data file must not grow by it.
    #[cold]
    fn store_data_to_the_end(&self, page: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        let end = self.state.head().len.load(Ordering::Relaxed);
        runs(mask).try_for_each(|(start, len)| {
            let (at, bytes) = (page * PAGE + start * SLICE, staged.run(start, len));
            self.data.write(at, &bytes[..(end.saturating_sub(at) as usize).min(bytes.len())])
        })
    }
}
