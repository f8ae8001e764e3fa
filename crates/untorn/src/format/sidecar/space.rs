//! Which pages of a mapped file have space: where a store into a hole could raise a signal, space is allocated before
//! the store.

use super::PAGE;
use crate::error::Result;
use crate::storage::{MediumClass, MediumFile};
use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Ordering};

/// Which pages of a file are known to have space, a bit each; for media where a store into a hole could fail by a
/// signal.
pub(crate) struct Space {
    known: GrowingArray<AtomicU64>,
}

impl Space {
    /// For a file of so many pages.
    pub(crate) fn new(pages: u64) -> std::io::Result<Self> {
        Ok(Space { known: GrowingArray::new(pages.div_ceil(64))? })
    }

    /// Makes room for a file of so many pages. Nothing is known of a page without room, so its space is asked for
    /// again.
    pub(crate) fn fit(&self, pages: u64) -> std::io::Result<()> {
        self.known.fit(pages.div_ceil(64))
    }

    fn group(&self, page: u64) -> Option<&AtomicU64> {
        self.known.get((page / 64) as usize)
    }

    /// Makes sure the page at byte `offset` of `file`, within it and not known to have space, has it. Only where a
    /// store into a hole could end in a signal is anything allocated; elsewhere it is noted that there will be
    /// something to give back.
    #[cold]
    pub(crate) fn ensure<F: MediumFile>(&self, file: &F, offset: u64, class: MediumClass) -> Result<()> {
        match class {
            MediumClass::PersistentMemory => self.allocate(file, offset / PAGE),
            MediumClass::Block => {
                self.learn(offset);
                Ok(())
            }
        }
    }

    /// Notes that the page at byte `offset` has space.
    pub(crate) fn learn(&self, offset: u64) {
        let page = offset / PAGE;
        if let Some(group) = self.group(page) {
            group.fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
    }

    fn allocate<F: MediumFile>(&self, file: &F, page: u64) -> Result<()> {
        let Some(group) = self.group(page) else {
            return file.allocate(page * PAGE, PAGE.min(file.len().saturating_sub(page * PAGE)));
        };
        let known = group.load(Ordering::Relaxed);
        // A group nobody touched yet is allocated whole, to be asked for once and to stay contiguous; in one that was,
        // the others may have been given back on purpose.
        let (first, last) = if known == 0 { (page / 64 * 64, page / 64 * 64 + 64) } else { (page, page + 1) };
        let end = (last * PAGE).min(file.len());
        file.allocate(first * PAGE, end - first * PAGE)?;
        // Only what lies within the file now: it may grow, and what it grows by has no space yet.
        let given = end.div_ceil(PAGE) - first;
        group.fetch_or((u64::MAX >> (64 - given)) << (first % 64), Ordering::Relaxed);
        Ok(())
    }

    /// Notes that the page at byte `offset` lost its space.
    pub(crate) fn forget(&self, offset: u64) {
        let page = offset / PAGE;
        if let Some(group) = self.group(page) {
            group.fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
        }
    }

    /// Whether the page at byte `offset` is known to have space.
    #[inline]
    pub(crate) fn knows(&self, offset: u64) -> bool {
        let page = offset / PAGE;
        self.group(page).is_some_and(|group| group.load(Ordering::Relaxed) & 1 << (page % 64) != 0)
    }
}
