//! Writing: fill the invalid copies, certify, fence, publish.

use std::sync::atomic::Ordering;

use super::slices::{Part, SLICE, parts, runs, touched};
use super::{Reflection, barriers};
use crate::engine::{Piece, check_range};
use crate::error::Result;
use crate::log::lane::Lane;
use crate::log::record::{DataSum, Entry, Record, encode_single, lines};
use crate::medium::{Medium, MediumClass, MediumFile};
use crate::options::{Durability, Order};
use crate::sharing::page::PageState;
use crate::sidecar::PAGE;

/// In per-commit mode on persistent memory, writes up to this many bytes go through the cache and are flushed when the
/// epoch commits; larger ones are non-temporal. A non-temporal store must be drained before the page is published, which
/// costs more than writing a few cached lines back later (measured: `untorn bench atomic-commit`).
const CACHED: usize = 512;

/// All parts of a write that fall into one page.
pub(super) struct PageParts<'a> {
    pub(super) page: u64,
    pub(super) mask: u64,
    pub(super) parts: Vec<Part<'a>>,
}

/// Bytes of some slices of a page, in an image of it.
type Saved = (u64, u64, Box<[u8; PAGE as usize]>);

/// Groups the parts of sorted pieces by page.
pub(super) fn by_page<'a>(pieces: &[Piece<'a>]) -> Vec<PageParts<'a>> {
    let mut pages: Vec<PageParts<'a>> = Vec::new();
    for part in pieces.iter().flat_map(|piece| parts(piece.offset, piece.bytes)) {
        let mask = touched(part.from, part.to());
        match pages.last_mut() {
            Some(last) if last.page == part.page => {
                last.mask |= mask;
                last.parts.push(part);
            }
            _ => pages.push(PageParts { page: part.page, mask, parts: vec![part] }),
        }
    }
    pages
}

/// Whole slices ready to be stored: `bytes` begins with slice `first` of the page.
#[derive(Clone, Copy)]
pub(super) struct Staged<'a> {
    pub(super) first: u64,
    pub(super) bytes: &'a [u8],
    /// The bytes are exactly the slices to be written, in one run: what they are for nearly every write. Asking the mask
    /// instead would put some fifty instructions before the first store, more than fit beside the wait for the previous
    /// write's fence.
    pub(super) one_run: bool,
}

/// The bitmap after a write: slices it does not touch keep what is visible, those it does are now in the copy that is
/// invalid at the last commit.
#[inline]
pub(super) fn written(visible: u64, valid: u64, mask: u64) -> u64 {
    visible & !mask | !valid & mask
}

impl<'a> Staged<'a> {
    fn run(&self, start: u64, len: u64) -> &'a [u8] {
        let from = ((start - self.first) * SLICE) as usize;
        &self.bytes[from..from + (len * SLICE) as usize]
    }
}

impl<M: Medium> Reflection<M> {
    pub(super) fn write_pieces(&self, pieces: &[Piece<'_>]) -> Result<()> {
        if let [piece] = pieces {
            self.foresee(piece.offset, piece.bytes.len());
        }
        self.writable()?;
        if let [piece] = pieces {
            let from = piece.offset % PAGE;
            if !piece.bytes.is_empty() && from + piece.bytes.len() as u64 <= PAGE {
                let part = Part { page: piece.offset / PAGE, from, bytes: piece.bytes };
                return match self.durability {
                    Durability::PerWrite => self.write_part(piece.offset, part),
                    Durability::PerCommit => self.write_part_in_epoch(*piece, part),
                };
            }
        }
        self.write_many(pieces)
    }

    #[inline(never)]
    fn write_many(&self, pieces: &[Piece<'_>]) -> Result<()> {
        // Before anything is computed from the offsets; checked again where the length can no longer change.
        self.check_pieces(pieces)?;
        let pages = by_page(pieces);
        if pages.is_empty() {
            return Ok(());
        }
        match self.durability {
            Durability::PerWrite if lines(pages.len()) > u64::from(self.geometry.slots) => {
                self.write_spilled(pieces, &pages)
            }
            Durability::PerWrite => {
                let lane = self.lane(lines(pages.len()))?;
                let len = self.check_pieces(pieces)?;
                self.lock_all(&pages, false);
                let floor = self.state.head().floor.load(Ordering::Relaxed).max(lane.last());
                let stored = self.store_pages(&pages);
                let committed = stored.and_then(|(entries, sum)| {
                    let seq = self.number_after(floor, &pages);
                    let record = self.data_fence(seq, sum, len, entries)?;
                    self.lanes.append(&lane, &self.side, self.seal, &record).map_err(|error| self.poison(error))?;
                    self.record_fence()?;
                    Ok(record)
                });
                let outcome = self.conclude(&pages, committed);
                if let Ok(seq) = outcome {
                    lane.finish(seq);
                }
                outcome.map(drop)
            }
            Durability::PerCommit => {
                let lane = self.enter_epoch(pieces, &pages)?;
                let outcome = self.write_in_epoch(&pages, || Ok(self.store_pages(&pages)?.0));
                drop(lane);
                outcome
            }
        }
    }

    /// Starts the address translation of the page a write will store to, while the previous write's fence is still under
    /// way: behind the first locked instruction it would have to wait. Measured at random offsets of 1 GiB: 0.68 of raw
    /// instead of 0.54 (64-byte writes, `untorn bench atomic-write`). What the guess is based on may change; then the
    /// hint was for nothing.
    #[inline(always)]
    fn foresee(&self, offset: u64, len: usize) {
        let page = offset / PAGE;
        let Some(state) = self.state.pages.get(page as usize) else { return };
        let in_data = match self.durability {
            Durability::PerWrite => state.bitmap(),
            Durability::PerCommit => self.state.epochs[page as usize].committed.load(Ordering::Relaxed),
        };
        // A store through the cache wants its line. A non-temporal one over a cached line is slow, so another line of the
        // page stands for it.
        let cached = self.durability == Durability::PerCommit && len <= CACHED;
        let line = if cached { offset % PAGE } else { (offset + PAGE / 2) % PAGE };
        if in_data & 1 << (offset % PAGE / SLICE) != 0 {
            self.data.prefetch(page * PAGE + line);
        } else if let Some(at) = self.places.reflection(page) {
            self.side.prefetch(at + line);
        }
    }

    /// Whether all pieces lie within the file; its length, which cannot change while the caller holds a lane.
    pub(super) fn check_pieces(&self, pieces: &[Piece<'_>]) -> Result<u64> {
        let len = self.state.head().len.load(Ordering::Acquire);
        for piece in pieces {
            check_range(&self.path, piece.offset, piece.bytes.len() as u64, len)?;
        }
        Ok(len)
    }

    fn lock_all(&self, pages: &[PageParts<'_>], publishing: bool) {
        for page in pages {
            self.state.pages[page.page as usize].lock(publishing, self.relax());
        }
    }

    /// The number of a record over these pages. The caller holds their locks.
    fn number_after(&self, floor: u64, pages: &[PageParts<'_>]) -> u64 {
        let version = |page: &PageParts<'_>| self.state.pages[page.page as usize].version();
        pages.iter().map(version).fold(floor, u64::max) + 1
    }

    /// Two-fence order: makes the data durable, so that the record need not certify it.
    fn data_fence(&self, seq: u64, sum: DataSum, len: u64, entries: Vec<Entry>) -> Result<Record> {
        let certain = self.order == Order::TwoFence;
        if certain {
            self.fence(barriers::WRITE_DATA).map_err(|error| self.poison(error))?;
        }
        Ok(Record { seq, certain, sum: if certain { 0 } else { sum.get() }, len, entries })
    }

    /// Makes the record durable, and in the one-fence order the data with it.
    #[inline]
    pub(super) fn record_fence(&self) -> Result<()> {
        let barrier = match self.order {
            Order::OneFence => barriers::WRITE,
            Order::TwoFence => barriers::WRITE_RECORD,
        };
        self.fence(barrier).map_err(|error| self.poison(error))
    }

    /// Publishes what was committed, or unlocks the pages unchanged. Returns the record's number.
    fn conclude(&self, pages: &[PageParts<'_>], committed: Result<Record>) -> Result<u64> {
        let state = |page: u64| -> &PageState { &self.state.pages[page as usize] };
        match committed {
            Ok(record) => {
                // All pages are marked before the first is published, so that no reader sees one and not another.
                record.entries.iter().for_each(|entry| state(entry.page).begin_publishing());
                record.entries.iter().for_each(|entry| self.publish(entry.page, entry.bitmap, record.seq));
                Ok(record.seq)
            }
            Err(error) => {
                pages.iter().for_each(|page| state(page.page).unlock());
                Err(error)
            }
        }
    }

    #[inline]
    pub(super) fn publish(&self, page: u64, bitmap: u64, version: u64) {
        self.state.pages[page as usize].publish(bitmap, version);
        if bitmap == 0 {
            self.state.head().emptied.store(1, Ordering::Relaxed);
        }
    }

    /// Fills the invalid copies of all pages. The caller holds their locks.
    pub(super) fn store_pages(&self, pages: &[PageParts<'_>]) -> Result<(Vec<Entry>, DataSum)> {
        let mut entries = Vec::with_capacity(pages.len());
        let mut sum = DataSum::default();
        let mut image = [0; PAGE as usize];
        for PageParts { page, mask, parts } in pages {
            let visible = self.state.pages[*page as usize].bitmap();
            let valid = self.committed_bitmap(*page);
            let staged = match parts.as_slice() {
                [part] if part.aligned() => Staged { first: part.from / SLICE, bytes: part.bytes, one_run: true },
                parts => self.stage(*page, visible, parts, &mut image)?,
            };
            self.put(*page, valid, *mask, staged)?;
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

    /// Builds whole slices out of parts that may cover slices partly: the rest comes from the valid copy.
    fn stage<'i>(&self, page: u64, visible: u64, parts: &[Part<'_>], image: &'i mut [u8]) -> Result<Staged<'i>> {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return Ok(Staged { first: 0, bytes: &[], one_run: false });
        };
        let base = first.from / SLICE * SLICE;
        let image = &mut image[..(last.to().next_multiple_of(SLICE) - base) as usize];
        for part in parts {
            for edge in [part.from, part.to() - 1] {
                let slice = edge / SLICE;
                let whole = part.from <= slice * SLICE && (slice + 1) * SLICE <= part.to();
                if !whole {
                    let at = (slice * SLICE - base) as usize;
                    self.copy_slices(page, visible, slice, 1, &mut image[at..at + SLICE as usize])?;
                }
            }
        }
        for part in parts {
            let at = (part.from - base) as usize;
            image[at..at + part.bytes.len()].copy_from_slice(part.bytes);
        }
        Ok(Staged { first: base / SLICE, bytes: image, one_run: parts.len() == 1 })
    }

    /// Stores slices into the copies that `valid` calls invalid.
    #[inline(always)]
    pub(super) fn put(&self, page: u64, valid: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        if mask & valid == 0 {
            self.put_reflection(page, mask, staged)
        } else if mask & !valid == 0 {
            self.put_data(page, mask, staged)
        } else {
            let staged = Staged { one_run: false, ..staged };
            // Space for both before a store to either, so that want of it finds nothing half done.
            self.data_room(page)?;
            self.put_reflection(page, mask & !valid, staged)?;
            self.put_data(page, mask & valid, staged)
        }
    }

    /// Space for everything that a write to these pages stores.
    #[cold]
    fn make_room(&self, pages: &[PageParts<'_>]) -> Result<()> {
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
            None => self.places.provide(&self.side, &self.side_space, self.class, page, self.relax())?,
        };
        if !self.side_space.knows(at) {
            self.make_space(page, at)?;
        }
        Ok(at)
    }

    #[inline(always)]
    fn put_reflection(&self, page: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        let at = self.reflection_room(page)?;
        if staged.one_run {
            return self.store(&self.side, at + staged.first * SLICE, staged.bytes);
        }
        runs(mask).try_for_each(|(start, len)| self.store(&self.side, at + start * SLICE, staged.run(start, len)))
    }

    /// Makes room for a reflection page and, on any medium, for the meta page its bitmap will be written to: a cut must
    /// not fail for want of space.
    #[cold]
    fn make_space(&self, page: u64, at: u64) -> Result<()> {
        if let Some(meta) = self.places.bitmap(page).filter(|&meta| !self.side_space.knows(meta)) {
            self.side.allocate(meta / PAGE * PAGE, PAGE)?;
            self.side_space.learn(meta);
        }
        self.side_space.ensure(&self.side, at, self.class)
    }

    #[inline(always)]
    fn data_room(&self, page: u64) -> Result<()> {
        if self.class == MediumClass::PersistentMemory && !self.data_space.knows(page * PAGE) {
            self.data_space.ensure(&self.data, page * PAGE, self.class)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn put_data(&self, page: u64, mask: u64, staged: Staged<'_>) -> Result<()> {
        let at = page * PAGE;
        self.data_room(page)?;
        // The last slice may reach beyond the end of the file; the data file must not grow by it.
        let end = self.state.head().len.load(Ordering::Relaxed);
        let store = |offset: u64, bytes: &[u8]| {
            let within = (end.saturating_sub(offset) as usize).min(bytes.len());
            self.store(&self.data, offset, &bytes[..within])
        };
        if staged.one_run {
            return store(at + staged.first * SLICE, staged.bytes);
        }
        runs(mask).try_for_each(|(start, len)| store(at + start * SLICE, staged.run(start, len)))
    }

    #[inline(always)]
    fn store(&self, file: &M::File, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.durability == Durability::PerCommit && bytes.len() <= CACHED {
            file.store(offset, bytes)
        } else {
            file.write(offset, bytes)
        }
    }

    /// Per-write mode, one page: the path that is counted and timed.
    #[inline(always)]
    fn write_part(&self, offset: u64, part: Part<'_>) -> Result<()> {
        let lane = self.lane(1)?;
        let len = self.state.head().len.load(Ordering::Acquire);
        check_range(&self.path, offset, part.bytes.len() as u64, len)?;
        let page = &self.state.pages[part.page as usize];
        page.lock(false, self.relax());
        let valid = page.bitmap();
        let mask = touched(part.from, part.to());
        // No closure on the path of aligned writes: results would be moved once more.
        let outcome = if part.aligned() {
            let staged = Staged { first: part.from / SLICE, bytes: part.bytes, one_run: true };
            self.commit_page(&lane, part.page, mask, len, staged)
        } else {
            self.with_image(valid, part, |staged| self.commit_page(&lane, part.page, mask, len, staged))
        };
        if outcome.is_err() {
            page.unlock();
        }
        outcome
    }

    /// Makes new bytes for some slices of one page durable and visible. The caller holds the page's lock and a lane with
    /// room for a line; on success the page is unlocked.
    #[inline(always)]
    pub(super) fn commit_page(
        &self,
        lane: &Lane<'_>,
        page: u64,
        mask: u64,
        len: u64,
        staged: Staged<'_>,
    ) -> Result<()> {
        let state = &self.state.pages[page as usize];
        let valid = state.bitmap();
        let floor = self.state.head().floor.load(Ordering::Relaxed);
        let seq = floor.max(lane.last()).max(state.version()) + 1;
        self.put(page, valid, mask, staged)?;
        let sum = match self.order {
            Order::OneFence => {
                let mut sum = DataSum::default();
                if staged.one_run {
                    sum.add(staged.bytes);
                } else {
                    runs(mask).for_each(|(start, len)| sum.add(staged.run(start, len)));
                }
                Some(sum.get())
            }
            Order::TwoFence => {
                self.fence(barriers::WRITE_DATA).map_err(|error| self.poison(error))?;
                None
            }
        };
        let entry = Entry { page, bitmap: valid ^ mask, mask };
        let line = encode_single(self.seal, self.lanes.next_offset(lane), seq, entry, sum, len);
        self.lanes.append_line(lane, &self.side, &line, Some(page)).map_err(|error| self.poison(error))?;
        self.record_fence()?;
        self.publish(page, entry.bitmap, seq);
        lane.finish(seq);
        Ok(())
    }

    /// Calls `go` with the part's whole slices, without a copy where it is aligned.
    #[inline]
    fn with_staged<T>(&self, visible: u64, part: Part<'_>, go: impl FnOnce(Staged<'_>) -> Result<T>) -> Result<T> {
        if part.aligned() {
            return go(Staged { first: part.from / SLICE, bytes: part.bytes, one_run: true });
        }
        self.with_image(visible, part, go)
    }

    /// The page image is kept off the stack frame of aligned writes.
    #[inline(never)]
    fn with_image<T>(&self, visible: u64, part: Part<'_>, go: impl FnOnce(Staged<'_>) -> Result<T>) -> Result<T> {
        let mut image = [0; PAGE as usize];
        go(self.stage(part.page, visible, &[part], &mut image)?)
    }

    /// Per-commit mode, one page.
    fn write_part_in_epoch(&self, piece: Piece<'_>, part: Part<'_>) -> Result<()> {
        let mask = touched(part.from, part.to());
        let pages = [PageParts { page: part.page, mask, parts: Vec::new() }];
        let lane = self.enter_epoch(&[piece], &pages)?;
        let visible = self.state.pages[part.page as usize].bitmap();
        let valid = self.committed_bitmap(part.page);
        let outcome = self.write_in_epoch(&pages, || {
            self.with_staged(visible, part, |staged| self.put(part.page, valid, mask, staged))?;
            Ok([Entry { page: part.page, bitmap: written(visible, valid, mask), mask }])
        });
        drop(lane);
        outcome
    }

    /// Takes a lane, which holds the next commit off, and locks all pages with readers kept out, at a moment when no
    /// slice to be written is frozen: a frozen slice has its last durable bytes in one copy and those being made durable
    /// in the other.
    pub(super) fn enter_epoch(&self, pieces: &[Piece<'_>], pages: &[PageParts<'_>]) -> Result<Lane<'_>> {
        let mut round = 0;
        loop {
            let lane = self.lanes.acquire(self.relax());
            self.check_pieces(pieces)?;
            self.lock_all(pages, true);
            let frozen = |page: &PageParts<'_>| {
                self.state.epochs[page.page as usize].frozen.load(Ordering::Acquire) & page.mask != 0
            };
            if !pages.iter().any(frozen) {
                // Before the stores, for a locked instruction would wait for non-temporal ones to drain. If the write
                // fails, the commit finds the page unchanged and passes over it.
                pages.iter().for_each(|page| self.state.mark_dirty(page.page));
                return Ok(lane);
            }
            pages.iter().for_each(|page| self.state.pages[page.page as usize].unlock());
            // The commit under way has let the lanes go already, but the one after it will want them all.
            drop(lane);
            self.medium.relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Makes what `store` stores part of the open epoch and visible, or leaves the pages as they were. The caller holds
    /// their locks, with readers kept out.
    #[inline]
    fn write_in_epoch<E: IntoIterator<Item = Entry>>(
        &self,
        pages: &[PageParts<'_>],
        store: impl FnOnce() -> Result<E>,
    ) -> Result<()> {
        let before = match self.class {
            MediumClass::Block => self.about_to_be_overwritten(pages),
            // No store fails there, and for one page space is made before the first. It may run out between two.
            MediumClass::PersistentMemory if pages.len() > 1 => self.make_room(pages).map(|()| Vec::new()),
            MediumClass::PersistentMemory => Ok(Vec::new()),
        };
        let (before, stored) = match before {
            Ok(before) => (before, store()),
            Err(error) => (Vec::new(), Err(error)),
        };
        match stored {
            Ok(entries) => {
                // Non-temporal stores are not ordered with the store that publishes them.
                self.medium.order();
                for entry in entries {
                    let version = self.state.pages[entry.page as usize].version() + 1;
                    self.publish(entry.page, entry.bitmap, version);
                }
                Ok(())
            }
            Err(error) => {
                let restored = before.iter().try_for_each(|(page, mask, image)| {
                    let staged = Staged { first: 0, bytes: &image[..], one_run: false };
                    self.put(*page, self.committed_bitmap(*page), *mask, staged)
                });
                // What cannot be brought back must not be committed with the rest of the epoch.
                let error = if restored.is_err() { self.poison(error) } else { error };
                self.medium.order();
                pages.iter().for_each(|page| self.state.pages[page.page as usize].unlock_disturbed());
                Err(error)
            }
        }
    }

    /// The slices of these pages that the open epoch holds already, as (page, slices, image of the page): they are
    /// written over in place, and a write that fails halfway must leave them as they were.
    fn about_to_be_overwritten(&self, pages: &[PageParts<'_>]) -> Result<Vec<Saved>> {
        let mut saved = Vec::new();
        for &PageParts { page, mask, .. } in pages {
            let visible = self.state.pages[page as usize].bitmap();
            let again = (visible ^ self.committed_bitmap(page)) & mask;
            if again == 0 {
                continue;
            }
            let mut image = Box::new([0; PAGE as usize]);
            for (start, len) in runs(again) {
                let bytes = &mut image[(start * SLICE) as usize..((start + len) * SLICE) as usize];
                self.copy_slices(page, visible, start, len, bytes)?;
            }
            saved.push((page, again, image));
        }
        Ok(saved)
    }

    /// Per-write mode: a write over more pages than a lane has room for. Alone, its record in a file of its own that is
    /// retired at once.
    fn write_spilled(&self, pieces: &[Piece<'_>], pages: &[PageParts<'_>]) -> Result<()> {
        let _cutting = self.state.head().cut.lock(self.relax());
        let lanes = self.lanes.acquire_all(self.relax());
        let len = self.check_pieces(pieces)?;
        if self.lanes.free(&lanes[0]) == 0 {
            self.cut_holding(&lanes, &[])?;
        }
        self.lock_all(pages, false);
        let floor = self.lanes.last().max(self.state.head().floor.load(Ordering::Relaxed));
        let committed = self.store_pages(pages).and_then(|(entries, sum)| {
            let seq = self.number_after(floor, pages);
            let record = self.data_fence(seq, sum, len, entries)?;
            self.append_spilled(&lanes[0], &record)?;
            self.record_fence()?;
            Ok(record)
        });
        let seq = self.conclude(pages, committed)?;
        lanes[0].finish(seq);
        self.cut_holding(&lanes, &pages.iter().map(|page| page.page).collect::<Vec<_>>())?;
        self.drop_spill();
        Ok(())
    }
}
