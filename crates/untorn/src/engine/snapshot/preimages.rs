//! Pages as held snapshots have them, kept once they change: their *pre-images*.
//!
//! # Invariants
//!
//! 1. Snapshots have numbers, in the order of their taking. A pre-image of a page counts for every snapshot with a
//!    number above that of the page's pre-image before it, and up to its own.
//! 2. A page gets a pre-image once between two snapshots, however often it changes.
//! 3. A pre-image goes when no snapshot is left that it counts for. Its last snapshot is always a held one: a cut-off
//!    range that comes later, for the snapshots that are left, would hide it otherwise.
//! 4. Memory has at most the limit's bytes of them. The others are in a file without a name, whose space the kernel
//!    frees when the process ends.
//! 5. A *cut-off range* stands for the pre-images of all pages of a range that have none of their own for its snapshot:
//!    they are zeros. So a shrink takes no memory for holes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::spill::Spill;
use crate::error::Result;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Pages are spread over as many maps, so that writers of unrelated pages rarely meet.
const SHARDS: usize = 16;

pub(super) type Page = [u8; PAGE];

enum Image {
    Zeros,
    Memory(Box<Page>),
    /// By its place in the spill file.
    Spilled(u64),
}

/// A pre-image and the last snapshot that it counts for.
struct PreImage {
    upto: u64,
    image: Image,
}

type Shard = HashMap<u64, Vec<PreImage>>;

/// Pages that a shrink cut off, and that were zeros unless they have a pre-image for the same snapshot.
#[derive(Debug, PartialEq, Eq)]
struct CutOff {
    upto: u64,
    pages: Range<u64>,
}

/// All pre-images of one file.
pub(super) struct PreImages {
    shards: [Mutex<Shard>; SHARDS],
    cut_offs: Mutex<Vec<CutOff>>,
    /// How many there are: mostly none, which reads find without the lock.
    cut_off_count: AtomicU64,
    /// The last snapshot that is held; 0 if none is.
    newest: AtomicU64,
    /// Bytes in memory, and in memory and the spill file together.
    in_memory: AtomicU64,
    bytes: AtomicU64,
    memory_limit: u64,
    path: PathBuf,
    spill: Mutex<Option<Spill>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section leaves its value whole at every point at which it could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PreImages {
    pub(super) fn new(path: &Path, memory_limit: u64) -> Self {
        PreImages {
            shards: Default::default(),
            cut_offs: Mutex::default(),
            cut_off_count: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            in_memory: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            memory_limit,
            path: path.to_owned(),
            spill: Mutex::new(None),
        }
    }

    /// The last snapshot that is held; 0 if none is.
    #[inline(always)]
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    pub(super) fn set_newest(&self, snapshot: u64) {
        self.newest.store(snapshot, Ordering::Release);
    }

    /// Bytes that they may take in memory.
    pub(super) fn memory_limit(&self) -> u64 {
        self.memory_limit
    }

    /// Bytes that pre-images take, in memory and in the spill file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes of pre-images that count for each of these snapshots. One that counts for several is in the sum of
    /// each.
    pub(super) fn bytes_for(&self, snapshots: &BTreeSet<u64>) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for shard in &self.shards {
            for list in lock(shard).values() {
                let mut before = 0;
                for kept in list {
                    let bytes = if matches!(kept.image, Image::Zeros) { 0 } else { PAGE as u64 };
                    for snapshot in snapshots.range(before + 1..=kept.upto) {
                        *sums.entry(*snapshot).or_default() += bytes;
                    }
                    before = kept.upto;
                }
            }
        }
        sums
    }

    fn shard(&self, page: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(page % SHARDS as u64) as usize])
    }

    /// The last snapshot of the first cut-off range that counts for this one; `None` if none does.
    fn cut_off_for(&self, page: u64, snapshot: u64) -> Option<u64> {
        if self.cut_off_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let ranges = lock(&self.cut_offs);
        let counting = ranges.iter().filter(|cut| cut.upto >= snapshot && cut.pages.contains(&page));
        counting.map(|cut| cut.upto).min()
    }

    /// Notes that all pages of a range have a pre-image for the newest snapshot, or are zeros.
    pub(super) fn note_cut_off(&self, pages: Range<u64>) {
        let mut ranges = lock(&self.cut_offs);
        let upto = self.newest();
        if upto == 0 || pages.is_empty() {
            return;
        }
        let meets =
            |cut: &&mut CutOff| cut.upto == upto && cut.pages.start <= pages.end && pages.start <= cut.pages.end;
        match ranges.iter_mut().find(meets) {
            Some(cut) => cut.pages = cut.pages.start.min(pages.start)..cut.pages.end.max(pages.end),
            None => ranges.push(CutOff { upto, pages }),
        }
        self.cut_off_count.store(ranges.len() as u64, Ordering::Release);
    }

    /// Whether a page has a pre-image for this snapshot.
    pub(super) fn has(&self, page: u64, snapshot: u64) -> bool {
        let own = self.shard(page).get(&page).is_some_and(|list| list.iter().any(|kept| kept.upto >= snapshot));
        own || self.cut_off_for(page, snapshot).is_some()
    }

    /// Adds the pre-image of a page for all snapshots up to one, unless the page has it by now.
    ///
    /// # Errors
    /// Those of the spill file.
    pub(super) fn add(&self, page: u64, upto: u64, bytes: &Page) -> Result<()> {
        let image = self.place(bytes)?;
        let mut shard = self.shard(page);
        let newest = self.newest();
        let is_needed =
            newest != 0 && !shard.get(&page).is_some_and(|list| list.iter().any(|kept| kept.upto >= newest));
        if is_needed {
            // The last snapshot may have been released since the caller looked.
            shard.entry(page).or_default().push(PreImage { upto: upto.min(newest), image });
        } else {
            drop(shard);
            self.free(image);
        }
        Ok(())
    }

    fn place(&self, bytes: &Page) -> Result<Image> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Image::Zeros);
        }
        let image = if self.in_memory.fetch_add(PAGE as u64, Ordering::Relaxed) < self.memory_limit {
            Image::Memory(Box::new(*bytes))
        } else {
            self.in_memory.fetch_sub(PAGE as u64, Ordering::Relaxed);
            let mut spill = lock(&self.spill);
            let spill = match &mut *spill {
                Some(spill) => spill,
                none => none.insert(Spill::beside(&self.path)?),
            };
            Image::Spilled(spill.add(bytes)?)
        };
        self.bytes.fetch_add(PAGE as u64, Ordering::Relaxed);
        Ok(image)
    }

    fn free(&self, image: Image) {
        match image {
            Image::Zeros => return,
            Image::Memory(_) => drop(self.in_memory.fetch_sub(PAGE as u64, Ordering::Relaxed)),
            Image::Spilled(at) => {
                if let Some(spill) = &mut *lock(&self.spill) {
                    spill.remove(at);
                }
            }
        }
        self.bytes.fetch_sub(PAGE as u64, Ordering::Relaxed);
    }

    /// Copies bytes from `from` of a page's pre-image for a snapshot, if it has one. Says whether it has.
    ///
    /// # Errors
    /// Those of reading the spill file.
    pub(super) fn read(&self, page: u64, snapshot: u64, from: usize, dst: &mut [u8]) -> Result<bool> {
        let shard = self.shard(page);
        let found = shard.get(&page).and_then(|list| list.iter().find(|kept| kept.upto >= snapshot));
        let cut = self.cut_off_for(page, snapshot);
        let own = found.filter(|kept| cut.is_none_or(|upto| kept.upto <= upto));
        match own.map(|kept| &kept.image) {
            None if cut.is_some() => dst.fill(0),
            None => return Ok(false),
            Some(Image::Zeros) => dst.fill(0),
            Some(Image::Memory(bytes)) => dst.copy_from_slice(&bytes[from..from + dst.len()]),
            Some(Image::Spilled(at)) => {
                if let Some(spill) = &*lock(&self.spill) {
                    spill.read(*at, from, dst)?;
                }
            }
        }
        Ok(true)
    }

    /// The first of these pages whose pre-image for a snapshot is not all zeros.
    pub(super) fn first_in(&self, pages: Range<u64>, snapshot: u64) -> Option<u64> {
        let counts = |list: &Vec<PreImage>| {
            let image = list.iter().find(|kept| kept.upto >= snapshot).map(|kept| &kept.image);
            image.is_some_and(|image| !matches!(image, Image::Zeros))
        };
        let kept: u64 = self.shards.iter().map(|shard| lock(shard).len() as u64).sum();
        if kept < pages.end.saturating_sub(pages.start) {
            let first = |shard: &Mutex<Shard>| {
                let shard = lock(shard);
                shard.iter().filter(|(page, list)| pages.contains(*page) && counts(list)).map(|(page, _)| *page).min()
            };
            return self.shards.iter().filter_map(first).min();
        }
        let mut pages = pages;
        pages.find(|page| self.shard(*page).get(page).is_some_and(counts))
    }

    /// Frees what none of the held snapshots needs, whose numbers are given. The newest of them has been
    /// [set](Self::set_newest).
    pub(super) fn sweep(&self, held: &BTreeSet<u64>) {
        for shard in &self.shards {
            let mut freed = Vec::new();
            lock(shard).retain(|_, list| {
                let mut before = 0;
                let mut kept = Vec::with_capacity(list.len());
                for PreImage { upto, image } in list.drain(..) {
                    let last = held.range(before + 1..=upto).next_back();
                    before = upto;
                    match last {
                        Some(&upto) => kept.push(PreImage { upto, image }),
                        None => freed.push(image),
                    }
                }
                *list = kept;
                !list.is_empty()
            });
            freed.into_iter().for_each(|image| self.free(image));
        }
        let mut ranges = lock(&self.cut_offs);
        ranges.retain(|cut| held.range(..=cut.upto).next().is_some());
        self.cut_off_count.store(ranges.len() as u64, Ordering::Release);
        drop(ranges);
        if held.is_empty() {
            // A writer that is adding one right now finds that no snapshot is held, and frees its place again.
            let mut spill = lock(&self.spill);
            if spill.as_ref().is_some_and(Spill::is_empty) {
                *spill = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(fill: u8) -> Page {
        [fill; PAGE]
    }

    fn byte(images: &PreImages, number: u64, snapshot: u64) -> Option<u8> {
        let mut byte = [0xee];
        images.read(number, snapshot, 7, &mut byte).unwrap().then_some(byte[0])
    }

    /// Three snapshots, and a page that changed before the second, after it and after the third.
    #[test]
    fn each_snapshot_finds_the_pre_image_that_counts_for_it() {
        for memory_limit in [0, 1 << 20] {
            let dir = tempfile::tempdir().unwrap();
            let images = PreImages::new(&dir.path().join("f"), memory_limit);
            for (snapshot, fill) in [(1, 10), (2, 0), (3, 30)] {
                images.set_newest(snapshot);
                assert!(!images.has(5, snapshot));
                images.add(5, snapshot, &page(fill)).unwrap();
                // It changed again: the first pre-image stays.
                images.add(5, snapshot, &page(99)).unwrap();
            }
            let all = |images: &PreImages| [1, 2, 3, 4].map(|snapshot| byte(images, 5, snapshot));
            assert_eq!(all(&images), [Some(10), Some(0), Some(30), None]);
            assert_eq!(byte(&images, 7, 1), None);
            assert_eq!(images.bytes(), 2 * PAGE as u64, "zeros take none");
            for pages in [5..6, 0..1 << 40] {
                let found = [1, 2, 3, 4].map(|snapshot| images.first_in(pages.clone(), snapshot));
                assert_eq!(found, [Some(5), None, Some(5), None], "{pages:?}");
            }
            assert_eq!((images.first_in(0..5, 1), images.first_in(6..1 << 40, 1)), (None, None));
            images.add(6, 3, &page(7)).unwrap();
            let bytes = |held: &[u64]| images.bytes_for(&held.iter().copied().collect());
            let page_of = |count: u64| count * PAGE as u64;
            assert_eq!(bytes(&[1, 2, 3]), [(1, page_of(2)), (2, page_of(1)), (3, page_of(2))].into());
            assert_eq!(bytes(&[3]), [(3, page_of(2))].into());
            images.sweep(&BTreeSet::from([1, 3]));
            assert_eq!([1, 3].map(|snapshot| byte(&images, 5, snapshot)), [Some(10), Some(30)]);
            images.sweep(&BTreeSet::from([3]));
            assert_eq!(byte(&images, 5, 3), Some(30));
            assert_eq!(images.bytes(), 2 * PAGE as u64);
            images.set_newest(0);
            images.sweep(&BTreeSet::new());
            assert_eq!((images.bytes(), images.in_memory.load(Ordering::Relaxed)), (0, 0));
            assert!(lock(&images.spill).is_none());
            images.add(5, 3, &page(1)).unwrap();
            assert_eq!(images.bytes(), 0, "no snapshot is held, so nothing is kept");
        }
    }

    /// Shrinks before each of three snapshots: a page with a pre-image of its own, and pages that were zeros.
    /// The second of two snapshots is released after a page changed, and before a shrink.
    #[test]
    fn a_pre_image_is_not_hidden_by_a_later_cut_off_range() {
        let dir = tempfile::tempdir().unwrap();
        for sweeps_first in [true, false] {
            let images = PreImages::new(&dir.path().join("f"), 1 << 20);
            images.set_newest(2);
            if sweeps_first {
                images.set_newest(1);
                images.sweep(&BTreeSet::from([1]));
            }
            images.add(5, 2, &page(50)).unwrap();
            images.set_newest(1);
            images.sweep(&BTreeSet::from([1]));
            images.note_cut_off(0..10);
            assert_eq!([5, 6].map(|page| byte(&images, page, 1)), [Some(50), Some(0)]);
        }
    }

    #[test]
    fn a_cut_off_range_stands_for_pages_of_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let images = PreImages::new(&dir.path().join("f"), 1 << 20);
        images.note_cut_off(0..100);
        assert_eq!(byte(&images, 5, 1), None, "nothing is held");
        images.set_newest(1);
        images.add(5, 1, &page(10)).unwrap();
        images.note_cut_off(3..1 << 40);
        images.note_cut_off(2..50);
        assert_eq!(*lock(&images.cut_offs), [CutOff { upto: 1, pages: 2..1 << 40 }]);
        let of_one = |number| byte(&images, number, 1);
        assert_eq!([1, 2, 5, 1 << 39].map(of_one), [None, Some(0), Some(10), Some(0)]);
        assert!(images.has(2, 1) && !images.has(2, 2) && !images.has(1, 1));
        // The file grew again, and page 6 has other bytes when the next snapshot is taken.
        images.set_newest(2);
        images.add(6, 2, &page(20)).unwrap();
        images.add(6, 2, &page(99)).unwrap();
        images.note_cut_off(4..8);
        assert_eq!([1, 2, 3].map(|snapshot| byte(&images, 6, snapshot)), [Some(0), Some(20), None]);
        assert_eq!([1, 2, 3].map(|snapshot| byte(&images, 5, snapshot)), [Some(10), Some(0), None]);
        assert_eq!(images.bytes(), 2 * PAGE as u64);
        images.sweep(&BTreeSet::from([2]));
        assert_eq!([5, 6, 7].map(|number| byte(&images, number, 2)), [Some(0), Some(20), Some(0)]);
        images.set_newest(0);
        images.sweep(&BTreeSet::new());
        assert_eq!((images.bytes(), images.cut_off_count.load(Ordering::Relaxed)), (0, 0));
    }
}
