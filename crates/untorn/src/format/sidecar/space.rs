//! Which pages of a file have space. A page gets its space before the first store that needs it: on persistent memory a
//! store into a hole could raise a signal, and on any medium a commit is acknowledged only when its bytes have a place
//! at home.
//!
//! # Invariants
//!
//! 1. A page is *known* only while it has space: it is learned after the call that gave it, and forgotten with the
//!    call that takes it away.
//! 2. Every record, of whatever engine, is stored after the space in the data file for all that it covers is durable.
//!    So recovery, a checkpoint, a deployment and a settlement take no space of the disk, whatever fills it meanwhile.
//! 3. The cost follows the holes: a page that has space already is learned with its neighbours in one call, and space
//!    that was given is made durable once.

use std::ops::Range;

use super::PAGE;
use crate::error::Result;
use crate::storage::{Barrier, MediumClass, MediumFile};
use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Ordering};

/// Bytes looked over at once for space that a file has already.
const LOOK: u64 = 16 << 20;

/// Which pages of a file are known to have space, a bit each.
pub(crate) struct Space {
    known: GrowingArray<AtomicU64>,
    /// 1 while pages have got space that no sync of the file covers yet.
    unsynced: AtomicU64,
}

impl Space {
    /// For a file of so many pages.
    pub(crate) fn new(pages: u64) -> std::io::Result<Self> {
        Ok(Space { known: GrowingArray::new(pages.div_ceil(64))?, unsynced: AtomicU64::new(0) })
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
            MediumClass::PersistentMemory => self.claim(file, offset / PAGE..offset / PAGE + 1, class),
            MediumClass::Block => {
                self.learn(offset);
                Ok(())
            }
        }
    }

    /// Makes sure that all of these pages of `file`, within it, have space, whatever the medium: for bytes that are to
    /// find a place there later. What is given is not durable before [`sync`](Space::sync).
    #[inline]
    pub(crate) fn claim<F: MediumFile>(&self, file: &F, pages: Range<u64>, class: MediumClass) -> Result<()> {
        self.each_unknown(file, pages, |unknown| {
            let given = self.give(file, unknown, class)?;
            self.gave();
            Ok(given)
        })
    }

    /// The same for a caller whose commit is this write, so that the space is durable at once. No other thread finds it
    /// known before it is.
    #[inline]
    pub(crate) fn claim_durably<F: MediumFile>(
        &self,
        file: &F,
        pages: Range<u64>,
        class: MediumClass,
        sync: impl Fn() -> Result<()>,
    ) -> Result<()> {
        self.each_unknown(file, pages, |unknown| {
            let given = self.give(file, unknown, class)?;
            sync().map(|()| given)
        })
    }

    #[inline]
    fn each_unknown<F: MediumFile>(
        &self,
        file: &F,
        pages: Range<u64>,
        give: impl FnMut(Range<u64>) -> Result<Range<u64>>,
    ) -> Result<()> {
        match pages.clone().find(|page| !self.knows(page * PAGE)) {
            Some(first) => self.learn_unknown(file, first..pages.end, give),
            None => Ok(()),
        }
    }

    #[cold]
    fn learn_unknown<F: MediumFile>(
        &self,
        file: &F,
        pages: Range<u64>,
        mut give: impl FnMut(Range<u64>) -> Result<Range<u64>>,
    ) -> Result<()> {
        let mut page = pages.start;
        while page < pages.end {
            if self.knows(page * PAGE) {
                page += 1;
                continue;
            }
            let own = file.own_space(page * PAGE, LOOK);
            // The last page may be there in part, and then has all that it can have.
            let is_rest = own > 0 && page * PAGE + own >= file.len();
            let own = if is_rest { own.div_ceil(PAGE) } else { own / PAGE };
            let end = (page..pages.end).find(|page| self.knows(page * PAGE)).unwrap_or(pages.end);
            let known = if own > 0 { page..page + own } else { give(page..end)? };
            page = known.end;
            known.for_each(|page| self.learn(page * PAGE));
        }
        Ok(())
    }

    /// Gives space to the first of these pages, none of which is known to have any, and perhaps to more. Returns those
    /// that have it now.
    fn give<F: MediumFile>(&self, file: &F, unknown: Range<u64>, class: MediumClass) -> Result<Range<u64>> {
        let given = match class {
            MediumClass::PersistentMemory => self.group_of(unknown.start),
            // No more than is needed: a sparse file stays sparse.
            MediumClass::Block => unknown,
        };
        // Only what lies within the file now: it may grow, and what it grows by has no space yet.
        let end = (given.end * PAGE).min(file.len());
        file.allocate(given.start * PAGE, end.saturating_sub(given.start * PAGE))?;
        Ok(given.start..end.div_ceil(PAGE).max(given.start + 1))
    }

    /// Makes the space durable that pages of `file` have got. The caller keeps others from getting some for what it
    /// is about to commit.
    ///
    /// # Errors
    /// Those of the sync, after which nothing may be promised any more.
    #[inline]
    pub(crate) fn sync<F: MediumFile>(&self, file: &F, barrier: Barrier) -> Result<()> {
        if self.unsynced.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        // Before the sync, which covers no space that is given from here on.
        self.unsynced.store(0, Ordering::Release);
        file.sync(barrier)
    }

    /// Notes that a page got space that no sync of the file covers yet.
    pub(crate) fn gave(&self) {
        self.unsynced.store(1, Ordering::Release);
    }

    /// Notes that the page at byte `offset` has space.
    pub(crate) fn learn(&self, offset: u64) {
        let page = offset / PAGE;
        if let Some(group) = self.group(page) {
            group.fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
    }

    /// The pages that are allocated together with one on memory. A group nobody touched yet is allocated whole, to be
    /// asked for once and to stay contiguous; in one that was, the others may have been given back on purpose.
    fn group_of(&self, page: u64) -> Range<u64> {
        match self.group(page).map(|group| group.load(Ordering::Relaxed)) {
            Some(0) => page / 64 * 64..page / 64 * 64 + 64,
            _ => page..page + 1,
        }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::storage::{Medium, PageCache};

    const SYNC: Barrier = Barrier::new("test.sync");

    /// A sparse file gets space for the pages that are claimed and for no other, and is synced once for them. A page
    /// that has its space costs nothing, also after the file was opened again.
    #[test]
    fn space_is_given_once_and_only_where_it_is_claimed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = PageCache::new().create(&path, 256 * PAGE + 100, 1 << 22).unwrap();
        let held = || std::fs::metadata(&path).unwrap().blocks() * 512 / PAGE;
        let before = held();
        let space = Space::new(300).unwrap();
        let is_unsynced = |space: &Space| space.unsynced.load(Ordering::Relaxed) != 0;
        for (pages, given) in [(3..5, 2), (4..8, 5), (0..3, 8), (0..8, 8), (255..257, 10)] {
            space.claim(&file, pages.clone(), MediumClass::Block).unwrap();
            assert!(pages.clone().all(|page| space.knows(page * PAGE)), "{pages:?}");
            // The file system may need a page of its own to note many extents.
            assert!((given..given + 3).contains(&(held() - before)), "{pages:?}");
        }
        assert!(is_unsynced(&space) && !space.knows(8 * PAGE) && !space.knows(254 * PAGE));
        space.sync(&file, SYNC).unwrap();
        space.claim(&file, 0..8, MediumClass::Block).unwrap();
        assert!(!is_unsynced(&space));
        if file.own_space(0, PAGE) == PAGE {
            let again = Space::new(300).unwrap();
            again.claim(&file, 2..8, MediumClass::Block).unwrap();
            again.claim(&file, 255..257, MediumClass::Block).unwrap();
            assert!(!is_unsynced(&again) && again.knows(256 * PAGE) && !again.knows(9 * PAGE));
        }
        space.forget(5 * PAGE);
        file.punch(5 * PAGE, PAGE).unwrap();
        space.claim(&file, 5..6, MediumClass::Block).unwrap();
        assert!(is_unsynced(&space) && (10..13).contains(&(held() - before)));
    }
}
