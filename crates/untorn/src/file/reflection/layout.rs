//! Where a page's bitmap and its reflection page stand in the sidecar.
//!
//! *Dense* is Eq. 1 of the Acumen paper behind the sidecar's superblock area: chunks of one meta page (512 bitmaps of
//! 8 bytes) and 512 reflection pages. *Sparse* is the compact form of §IV-F: chunks of one meta page (256 entries of
//! page number and bitmap) and 256 reflection pages handed out on demand.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::barriers;
use crate::error::{Error, Result};
use crate::format::sidecar::space::Space;
use crate::format::sidecar::{DENSE_PAGES, PAGE, SPARSE_PAGES};
use crate::options::Layout;
use crate::storage::{MediumClass, MediumFile};
use crate::sync::word_lock::lock;
use crate::sys::growing::GrowingArray;

/// Bytes of a chunk of either form.
const DENSE_CHUNK: u64 = (DENSE_PAGES + 1) * PAGE;
const SPARSE_CHUNK: u64 = (SPARSE_PAGES + 1) * PAGE;
const SPARSE_ENTRY: u64 = 16;
/// The most slots a sparse sidecar can have, in whole chunks: their numbers, and one more, are counted in 32 bits.
const MAX_SLOTS: u32 = u32::MAX - (SPARSE_PAGES as u32 - 1);

/// Above this length [`Layout::Auto`] is sparse: the dense form's address arithmetic is cheaper, but rebuilding from it
/// at open reads 8 bytes for every page of the file, touched or not.
const AUTO_SPARSE: u64 = 16 << 30;

/// Pages of a file of `len` bytes.
pub(super) fn pages(len: u64) -> u64 {
    len.div_ceil(PAGE)
}

/// The layout that a wish stands for.
pub(super) fn choose(wish: Layout, len: u64) -> Layout {
    match wish {
        Layout::Auto if len > AUTO_SPARSE => Layout::Sparse,
        Layout::Auto => Layout::Dense,
        chosen => chosen,
    }
}

/// Bytes of a sidecar for a file of `len` bytes, at its smallest.
pub(super) fn initial_len(layout: Layout, chunks_at: u64, len: u64) -> u64 {
    match layout {
        Layout::Sparse => chunks_at,
        _ => chunks_at + pages(len).div_ceil(DENSE_PAGES) * DENSE_CHUNK,
    }
}

/// Bytes a sidecar may grow to for a file that may grow to `len` bytes.
pub(super) fn reserve(layout: Layout, chunks_at: u64, len: u64) -> u64 {
    match layout {
        Layout::Sparse => chunks_at + pages(len).div_ceil(SPARSE_PAGES) * SPARSE_CHUNK,
        dense => initial_len(dense, chunks_at, len),
    }
}

/// The places of all pages.
pub(super) enum Places {
    /// Computed.
    Dense {
        /// Byte offset of the first chunk.
        at: u64,
        /// Chunks whose pages got reflection pages since the file was opened: their meta pages may be holes still.
        used: Mutex<BTreeSet<u64>>,
    },
    /// Looked up.
    Sparse(Sparse),
}

/// The sparse form's index: page to slot, in memory only, rebuilt from the meta pages at open.
pub(super) struct Sparse {
    at: u64,
    /// Slot + 1 for each page, 0 for a page without one.
    slot_of: GrowingArray<AtomicU32>,
    free: Mutex<FreeSlots>,
}

#[derive(Default)]
struct FreeSlots {
    /// Slots the sidecar has room for.
    total: u32,
    /// Slots handed out so far, from 0; those below that came back are in `returned`.
    next: u32,
    returned: VecDeque<u32>,
    /// Slots of chunks that were holes when the sidecar was opened, in ranges: they name no page.
    holes: Vec<Range<u32>>,
    /// Slots that a failed write may have left naming this page, or none: nobody else may have them.
    doubtful: Vec<(u64, u32)>,
}

fn slot_chunk(at: u64, slot: u32) -> u64 {
    at + u64::from(slot) / SPARSE_PAGES * SPARSE_CHUNK
}

/// Byte offset of a slot's meta entry: page number + 1, then bitmap.
fn slot_entry(at: u64, slot: u32) -> u64 {
    slot_chunk(at, slot) + u64::from(slot) % SPARSE_PAGES * SPARSE_ENTRY
}

fn slot_page(at: u64, slot: u32) -> u64 {
    slot_chunk(at, slot) + PAGE + u64::from(slot) % SPARSE_PAGES * PAGE
}

impl Places {
    /// Of a file that has so many pages.
    pub(super) fn new(layout: Layout, at: u64, pages: u64) -> std::io::Result<Self> {
        Ok(match layout {
            Layout::Sparse => Places::Sparse(Sparse { at, slot_of: GrowingArray::new(pages)?, free: Mutex::default() }),
            _ => Places::Dense { at, used: Mutex::default() },
        })
    }

    /// Makes room for so many pages.
    pub(super) fn fit(&self, pages: u64) -> std::io::Result<()> {
        match self {
            Places::Sparse(sparse) => sparse.slot_of.fit(pages),
            Places::Dense { .. } => Ok(()),
        }
    }

    /// Byte offset of a page's reflection page, if it has one.
    #[inline(always)]
    pub(super) fn reflection(&self, page: u64) -> Option<u64> {
        match self {
            // Eq. 1: one meta page more for every 512 pages begun.
            Places::Dense { at, .. } => Some(at + page * PAGE + (page / DENSE_PAGES + 1) * PAGE),
            Places::Sparse(sparse) => sparse.reflection(page),
        }
    }

    /// Byte offset of a page's bitmap, if it has one.
    #[inline(always)]
    pub(super) fn bitmap(&self, page: u64) -> Option<u64> {
        match self {
            Places::Dense { at, .. } => Some(at + page / DENSE_PAGES * DENSE_CHUNK + page % DENSE_PAGES * 8),
            Places::Sparse(sparse) => sparse.bitmap(page),
        }
    }

    /// Calls `found` with every page that has a reflection page of its own and with its bitmap in the sidecar: in the
    /// dense form every page, in the sparse form those with a slot. Rebuilds the sparse form's index on the way.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if two slots name one page, a slot names a page beyond what the file may grow to, there are
    /// more slots than can be counted, or the last chunk, of either form, is not whole.
    pub(super) fn load<F: MediumFile>(
        &self,
        side: &F,
        path: &Path,
        max_pages: u64,
        mut found: impl FnMut(u64, u64),
    ) -> Result<()> {
        let (at, chunk) = match self {
            Places::Dense { at, .. } => (*at, DENSE_CHUNK),
            Places::Sparse(sparse) => (sparse.at, SPARSE_CHUNK),
        };
        // It grows by whole chunks. The bitmaps of one that is not whole would not be read, here and at the next open,
        // and what is left of it would be taken for slots when a sparse sidecar grows over it.
        let rest = side.len().saturating_sub(at) % chunk;
        if rest != 0 {
            let what = format!("the sidecar has {} bytes, and its last {rest} bytes are not a whole chunk", side.len());
            return Err(Error::Corrupt { path: path.to_owned(), offset: Some(side.len() - rest), what });
        }
        match self {
            Places::Dense { .. } => self.walk(side, max_pages, found),
            Places::Sparse(sparse) => sparse.load(side, path, max_pages, &mut found),
        }
    }

    /// Notes that a page has a reflection page now, and perhaps no bitmap in the sidecar yet.
    pub(super) fn note_used(&self, page: u64) {
        if let Places::Dense { used, .. } = self {
            lock(used, |_| std::thread::yield_now()).insert(page / DENSE_PAGES);
        }
    }

    /// Calls `found` with every page that may have a reflection page, and with its bitmap in the sidecar. Of holes it
    /// reads nothing.
    pub(super) fn walk<F: MediumFile>(&self, side: &F, max_pages: u64, mut found: impl FnMut(u64, u64)) -> Result<()> {
        match self {
            Places::Dense { at, used } => {
                let mut used = lock(used, |_| std::thread::yield_now()).clone();
                each_meta_page(side, *at, DENSE_CHUNK, |index, meta| {
                    used.remove(&index);
                    each_bitmap(index, meta, max_pages, &mut found);
                    Ok(())
                })?;
                // Holes, as far as the file system is concerned.
                used.into_iter().for_each(|index| each_bitmap(index, &[0; PAGE as usize], max_pages, &mut found));
                Ok(())
            }
            Places::Sparse(sparse) => sparse.entries(side, |_, entry| {
                if let Some((page, bitmap)) = entry
                    && page < max_pages
                {
                    found(page, bitmap);
                }
                Ok(())
            }),
        }
    }

    /// Makes sure a page has a reflection page. For the holder of the page's lock only.
    ///
    /// # Errors
    /// Those of growing the sidecar; [`Error::Io`] if it has as many slots as can be counted, 16 TiB of them.
    pub(super) fn provide<F: MediumFile>(
        &self,
        side: &F,
        sidecar: &Path,
        space: &Space,
        class: MediumClass,
        page: u64,
        relax: impl FnMut(u32),
    ) -> Result<u64> {
        match self {
            Places::Dense { .. } => {}
            Places::Sparse(sparse) if sparse.slot(page).is_some() => {}
            Places::Sparse(sparse) => sparse.take(side, sidecar, space, class, page, relax)?,
        }
        // Both arms above leave the page with a place.
        Ok(self.reflection(page).unwrap_or(0))
    }

    /// Takes a page's reflection page back: its bitmap is 0, durably, and no live record names the page. For the holder
    /// of the page's lock only; the erasure is durable at the next fence, and only then
    /// [`restock`](Places::restock) may follow.
    pub(super) fn give_up<F: MediumFile>(&self, side: &F, page: u64, relax: impl FnMut(u32)) -> Result<Option<u32>> {
        let Places::Sparse(sparse) = self else { return Ok(None) };
        let Some(slot) = sparse.slot(page) else { return Ok(None) };
        let erased = side.write(slot_entry(sparse.at, slot), &[0; SPARSE_ENTRY as usize]);
        sparse.slot_of[page as usize].store(0, Ordering::Release);
        if let Err(error) = erased {
            lock(&sparse.free, relax).doubtful.push((page, slot));
            return Err(error);
        }
        Ok(Some(slot))
    }

    /// Hands slots out again whose erasure is durable.
    pub(super) fn restock(&self, slots: Vec<u32>, relax: impl FnMut(u32)) {
        if let Places::Sparse(sparse) = self {
            lock(&sparse.free, relax).returned.extend(slots);
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

impl Sparse {
    // Not inlined: what the dense form computes in their place is shorter than a call.
    #[inline(never)]
    fn reflection(&self, page: u64) -> Option<u64> {
        self.slot(page).map(|slot| slot_page(self.at, slot))
    }

    #[inline(never)]
    fn bitmap(&self, page: u64) -> Option<u64> {
        self.slot(page).map(|slot| slot_entry(self.at, slot) + 8)
    }

    #[inline]
    fn slot(&self, page: u64) -> Option<u32> {
        self.slot_of.get(page as usize)?.load(Ordering::Acquire).checked_sub(1)
    }

    fn take<F: MediumFile>(
        &self,
        side: &F,
        sidecar: &Path,
        space: &Space,
        class: MediumClass,
        page: u64,
        relax: impl FnMut(u32),
    ) -> Result<()> {
        let mut free = lock(&self.free, relax);
        let doubtful = free.doubtful.iter().position(|&(other, _)| other == page);
        let slot = match doubtful.map(|at| free.doubtful.swap_remove(at).1) {
            Some(slot) => slot,
            None => self.next_slot(side, sidecar, space, &mut free)?,
        };
        // The entry needs no fence of its own: its bitmap is 0, so until a record says otherwise it means nothing, and
        // the fence that makes that record durable makes the entry durable too.
        let mut entry = [0; SPARSE_ENTRY as usize];
        entry[..8].copy_from_slice(&(page + 1).to_le_bytes());
        let at = slot_entry(self.at, slot);
        let has_space = if space.knows(at) { Ok(()) } else { space.ensure(side, at, class) };
        if let Err(error) = has_space {
            match doubtful {
                Some(_) => free.doubtful.push((page, slot)),
                None => free.returned.push_back(slot),
            }
            return Err(error);
        }
        if let Err(error) = side.write(at, &entry) {
            free.doubtful.push((page, slot));
            return Err(error);
        }
        self.slot_of[page as usize].store(slot + 1, Ordering::Release);
        Ok(())
    }

    /// A slot that no entry names a page for; the sidecar grows where there is none.
    fn next_slot<F: MediumFile>(&self, side: &F, sidecar: &Path, space: &Space, free: &mut FreeSlots) -> Result<u32> {
        if let Some(slot) = free.returned.pop_front() {
            return Ok(slot);
        }
        while let Some(hole) = free.holes.last_mut() {
            match hole.next() {
                Some(slot) => return Ok(slot),
                None => drop(free.holes.pop()),
            }
        }
        if free.next == free.total {
            if free.total == MAX_SLOTS {
                let full = std::io::ErrorKind::StorageFull;
                return Err(Error::io("allocate another reflection page in", sidecar, full));
            }
            let end = slot_chunk(self.at, free.total) + SPARSE_CHUNK;
            space.fit(pages(end)).map_err(|error| Error::io("reserve memory for", sidecar, error))?;
            side.set_len(end)?;
            // The new length must be durable before a record speaks of bytes beyond the old one: recovery looks for
            // slots only within the length.
            side.sync(barriers::SPARSE_GROW)?;
            free.total += SPARSE_PAGES as u32;
        }
        free.next += 1;
        Ok(free.next - 1)
    }

    /// Calls `each` with every slot and, if it is taken, its page and bitmap. Returns the number of slots.
    fn entries<F: MediumFile>(
        &self,
        side: &F,
        mut each: impl FnMut(u32, Option<(u64, u64)>) -> Result<()>,
    ) -> Result<()> {
        each_meta_page(side, self.at, SPARSE_CHUNK, |index, meta| {
            for (n, bytes) in meta.chunks_exact(SPARSE_ENTRY as usize).enumerate() {
                let entry = word(&bytes[..8]).checked_sub(1).map(|page| (page, word(&bytes[8..])));
                each((index * SPARSE_PAGES) as u32 + n as u32, entry)?;
            }
            Ok(())
        })
    }

    fn load<F: MediumFile>(
        &self,
        side: &F,
        path: &Path,
        max_pages: u64,
        found: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let chunks = side.len().saturating_sub(self.at) / SPARSE_CHUNK;
        if chunks > u64::from(MAX_SLOTS) / SPARSE_PAGES {
            let len = side.len();
            let what = format!("the sidecar has {len} bytes, which is more than {MAX_SLOTS} reflection pages take");
            return Err(Error::Corrupt { path: path.to_owned(), offset: None, what });
        }
        // The file is being opened: nobody else can hold the lock.
        let mut free = lock(&self.free, |_| std::thread::yield_now());
        let mut known = 0;
        self.entries(side, |slot, entry| {
            if slot > known {
                free.holes.push(known..slot);
            }
            known = slot + 1;
            // A slot that holds nothing may name a page beyond what the file can grow to this time.
            let Some((page, bitmap)) = entry.filter(|&(page, bitmap)| bitmap != 0 || page < max_pages) else {
                free.returned.push_back(slot);
                return Ok(());
            };
            let corrupt = |what: String| {
                let offset = Some(slot_entry(self.at, slot));
                Err(Error::Corrupt { path: path.to_owned(), offset, what })
            };
            if page >= max_pages {
                return corrupt(format!("slot {slot} names page {page}, which is beyond the file's end"));
            }
            self.slot_of.fit(page + 1).map_err(|error| Error::io("reserve memory for", path, error))?;
            if self.slot_of[page as usize].swap(slot + 1, Ordering::Relaxed) != 0 {
                return corrupt(format!("slot {slot} names page {page}, which another slot names too"));
            }
            found(page, bitmap);
            Ok(())
        })?;
        free.total = (chunks * SPARSE_PAGES) as u32;
        free.next = known;
        Ok(())
    }
}

/// Calls `found` with the pages of a chunk of the dense form and their bitmaps.
fn each_bitmap(index: u64, meta: &[u8; PAGE as usize], max_pages: u64, found: &mut impl FnMut(u64, u64)) {
    for (page, bytes) in (index * DENSE_PAGES..max_pages).zip(meta.chunks_exact(8)) {
        found(page, word(bytes));
    }
}

/// Calls `each` with the number and the bytes of every meta page that is not a hole: a sidecar may be as long as its
/// owner likes, and costs what it holds.
fn each_meta_page<F: MediumFile>(
    side: &F,
    at: u64,
    chunk: u64,
    mut each: impl FnMut(u64, &[u8; PAGE as usize]) -> Result<()>,
) -> Result<()> {
    let mut meta = [0; PAGE as usize];
    let (chunks, mut index) = (side.len().saturating_sub(at) / chunk, 0);
    while index < chunks {
        let start = at + index * chunk;
        let Some(data) = side.next_data(start) else { break };
        if data >= start + PAGE {
            index = ((data - at) / chunk).max(index + 1);
            continue;
        }
        side.read(start, &mut meta)?;
        each(index, &meta)?;
        index += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Access, Medium, PageCache};

    const AT: u64 = 4 * PAGE;

    /// Does `go` with a sidecar of this length, all a hole. In memory, where a file may be as long as it says.
    fn with_sidecar(len: u64, go: impl FnOnce(&PageCache, &Path)) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("7");
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        go(&PageCache::new(), &path);
    }

    fn sparse() -> Places {
        Places::new(Layout::Sparse, AT, 64).unwrap()
    }

    #[test]
    fn a_sidecar_with_more_slots_than_are_counted_is_refused() {
        with_sidecar(AT + (u64::from(MAX_SLOTS) / SPARSE_PAGES + 1) * SPARSE_CHUNK, |medium, path| {
            let side = medium.open(path, Access::Read, 0).unwrap();
            let error = sparse().load(&side, path, 64, |_, _| panic!("nothing is read")).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        });
        assert!(u64::from(MAX_SLOTS).is_multiple_of(SPARSE_PAGES));
    }

    #[test]
    fn a_sidecar_cut_off_within_a_chunk_is_refused() {
        for (layout, chunk) in [(Layout::Sparse, SPARSE_CHUNK), (Layout::Dense, DENSE_CHUNK)] {
            for (len, sound) in [(0, true), (PAGE, false), (chunk - 1, false), (chunk, true), (chunk + 1, false)] {
                with_sidecar(AT + len, |medium, path| {
                    let side = medium.open(path, Access::Read, 0).unwrap();
                    let places = Places::new(layout, AT, 64).unwrap();
                    let loaded = places.load(&side, path, 64, |_, bitmap| assert_eq!(bitmap, 0));
                    assert_eq!(loaded.is_ok(), sound, "{layout}, {len} bytes: {loaded:?}");
                });
            }
        }
    }

    #[test]
    fn the_last_slot_is_the_last() {
        with_sidecar(AT, |medium, path| {
            let side = medium.open(path, Access::ReadWrite, AT).unwrap();
            let Places::Sparse(sparse) = sparse() else { panic!("asked for the sparse form") };
            let full = FreeSlots { total: MAX_SLOTS, next: MAX_SLOTS, ..FreeSlots::default() };
            *lock(&sparse.free, |_| std::thread::yield_now()) = full;
            let space = Space::new(1024).unwrap();
            let taken = sparse.take(&side, path, &space, MediumClass::Block, 3, |_| std::thread::yield_now());
            let error = taken.unwrap_err();
            assert!(matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull));
            assert_eq!(error.path(), path);
            assert_eq!(sparse.slot(3), None);
        });
    }
}
