//! Holes of a data file, and of its redundancy file.
//!
//! A hole reads as zeros and takes no space. The parity of a stripe of holes is a hole of the redundancy file: it takes
//! neither space nor a read. Of all that redundancy keeps, only the entries of the tables remain.
//!
//! # Invariants
//!
//! 1. A page counts as a hole if it is one at an instant after the pass was told of the stores to it, and before it
//!    takes any later note of them. A store that comes after that instant is announced, or found again, like one that
//!    comes after a read.
//! 2. The file system tells of a hole only what is one for programs. Whatever a crash brings back instead, a pass
//!    makes durable what programs see before it clears the marks.
//! 3. Parity is stored only where the redundancy file has space. It has space from the beginning for the parity of
//!    what exists then ([`Room::OfData`]). The rest it gets before the store that needs it:
//!    - **An engine** claims it when a program writes, before it stores anything ([`Redundancy::claim`]). So a full
//!      disk is an error of that write, and nothing has changed. Whatever comes later (the commit, bringing home, a
//!      checkpoint, recovery) stores only to pages that were claimed, or that existed, so it needs no more space.
//!    - **A plain file** gets it when a store is announced, so a full disk is an error of that call, and nothing is
//!      marked or stored.
//!    - Stores that **page tables** find were not announced: the pass that covers them allocates the space.
//!    - A **repair** allocates it before it rebuilds parity.
//!    - A range that is **punched** needs none: its stripes are holes, or have had space before.
//! 4. A claim is durable before the write that it is for ([`ROOM`](super::sidecar_barriers::ROOM)): whatever fills the
//!    disk after a crash, recovery finds the space. It stays claimed in a redundancy file for another length.
//! 5. What an engine has in its sidecar when it opens a file is claimed too, since it goes home without a write. If
//!    there is any when the file gets its redundancy file, that has space for all parity at once ([`Room::All`]), and
//!    so has one that is made anew after a crash amid a change of the length.
//! 6. The space of a plain file's parity needs no barrier. The flush that makes parity durable makes its space durable;
//!    an allocation that a crash loses is made again, for no process remembers it.

use std::iter;
use std::ops::Range;

use super::layout::Geometry;
use super::{Inner, Redundancy, sidecar_barriers};
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::storage::{Medium, MediumFile};

/// Stripes whose parity gets its space at once: 256 KiB.
const CHUNK: u64 = 64;

/// Answers that are kept.
const KEPT: usize = 64;

/// How much space a redundancy file has from the beginning.
#[derive(Clone, Copy)]
pub(super) enum Room {
    /// All that it can ever need.
    All,
    /// For its tables, and for the parity of stripes with data.
    OfData {
        /// The offset of the pages in the file that has them.
        from: u64,
    },
}

impl Room {
    /// Allocates it, for the redundancy of this file.
    ///
    /// # Errors
    /// Those of allocating, and of asking for holes.
    pub(super) fn allocate<F: MediumFile>(self, side: &F, geometry: &Geometry, data: &F) -> Result<()> {
        match self {
            Room::All => side.allocate(0, geometry.side_len()),
            Room::OfData { from } => {
                let parts = occupied(geometry, data, from)?;
                parts.into_iter().try_for_each(|part| side.allocate(part.start, part.end - part.start))
            }
        }
    }
}

/// Tables, and the parity of stripes with data.
fn occupied<F: MediumFile>(geometry: &Geometry, data: &F, from: u64) -> Result<Vec<Range<u64>>> {
    let mut parts: Vec<Range<u64>> = iter::once(0..geometry.parity_at(0)).collect();
    let within = |found: Range<u64>| found.start.saturating_sub(from)..found.end.saturating_sub(from);
    let mut at = 0;
    while at < geometry.len {
        let found = data.data_from(from + at)?.map(within);
        let Some(found) = found.filter(|found| found.start < geometry.len) else { break };
        let pages = found.start.max(at) / PAGE..found.end.min(geometry.len).div_ceil(PAGE);
        let stripes = geometry.stripes_of(pages);
        parts.extend(stripes.into_iter().map(|run| geometry.parity_at(run.start)..geometry.parity_at(run.end)));
        at = found.end.max(at + 1);
    }
    parts.sort_unstable_by_key(|part| part.start);
    parts.dedup_by(|next, before| {
        let touches = next.start <= before.end;
        if touches {
            before.end = before.end.max(next.end);
        }
        touches
    });
    Ok(parts)
}

/// What a file system told of the holes of a file, at about one instant.
#[derive(Default)]
pub(super) struct Holes {
    /// Where it was asked, and the first range behind that which is no hole.
    told: Vec<(u64, Range<u64>)>,
    of_pages: bool,
}

/// The first range of a file from an offset on that is no hole; of pages, only its first page.
pub(super) fn data_from<F: MediumFile>(file: &F, offset: u64, of_pages: bool) -> Result<Option<Range<u64>>> {
    if of_pages {
        return Ok(file.next_data(offset).map(|data| data..(data / PAGE + 1) * PAGE));
    }
    file.data_from(offset)
}

impl Holes {
    /// For questions about single pages, and not along the file: where data ends is not asked. A file system in memory
    /// looks for it page by page, up to the end of the file.
    pub(super) fn of_pages() -> Self {
        Holes { told: Vec::new(), of_pages: true }
    }

    /// Whether a range is a hole, from its first byte to its last.
    ///
    /// # Errors
    /// Those of asking.
    pub(super) fn has(
        &mut self,
        range: &Range<u64>,
        data_from: impl Fn(u64, bool) -> Result<Option<Range<u64>>>,
    ) -> Result<bool> {
        let told = self.told.iter().find(|(from, data)| (*from..data.end).contains(&range.start));
        if let Some((_, data)) = told {
            return Ok(range.end <= data.start);
        }
        let data = data_from(range.start, self.of_pages)?.unwrap_or(u64::MAX..u64::MAX);
        let is_hole = range.end <= data.start;
        if self.told.len() == KEPT {
            self.told.remove(0);
        }
        self.told.push((range.start, data));
        Ok(is_hole)
    }
}

impl<M: Medium> Redundancy<M> {
    /// Whether no page of a stripe has a byte that is not a hole's.
    pub(super) fn is_hole(&self, holes: &mut Holes, stripe: u64) -> Result<bool> {
        for page in self.geometry.members(stripe) {
            if !holes.has(&self.geometry.bytes_of(page), |offset, of_pages| self.pages.data_from(offset, of_pages))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the parity of a stripe is a hole of the redundancy file.
    pub(super) fn is_parity_hole(&self, holes: &mut Holes, stripe: u64) -> Result<bool> {
        let at = self.geometry.parity_at(stripe);
        holes.has(&(at..at + PAGE), |offset, of_pages| data_from(&self.side, offset, of_pages))
    }

    /// Makes sure that there is space for the parity of these stripes, ascending, which is about to be stored. That of
    /// data that existed, or of an engine, has it.
    ///
    /// # Errors
    /// Those of allocating it.
    pub(super) fn make_room(&self, inner: &mut Inner, stripes: impl Iterator<Item = u64>) -> Result<()> {
        if matches!(self.room, Room::All) {
            return Ok(());
        }
        let (mut lacking, mut last): (Vec<Range<u64>>, _) = (Vec::new(), (u64::MAX, false));
        for stripe in stripes {
            let chunk = stripe / CHUNK;
            if last.0 != chunk {
                last = (chunk, self.has_room(inner, chunk));
            }
            match lacking.last_mut() {
                _ if last.1 => {}
                Some(run) if run.end == stripe => run.end += 1,
                _ => lacking.push(stripe..stripe + 1),
            }
        }
        lacking.into_iter().try_for_each(|run| self.allocate_parity(&run))
    }

    /// Whether these stripes are known to have space for their parity.
    fn has_parity_space(&self, stripes: &Range<u64>) -> bool {
        let (at, end) = (self.geometry.parity_at(stripes.start), self.geometry.parity_at(stripes.end));
        self.side.own_space(at, end - at) >= end - at
    }

    fn allocate_parity(&self, stripes: &Range<u64>) -> Result<()> {
        if self.has_parity_space(stripes) {
            return Ok(());
        }
        let (at, end) = (self.geometry.parity_at(stripes.start), self.geometry.parity_at(stripes.end));
        self.side.allocate(at, end - at)
    }

    /// Makes sure that there is space for the parity of stripes before anything is stored to their pages; for an
    /// engine, durably. If there is room, their neighbours get theirs too.
    ///
    /// # Errors
    /// Those of allocating it: nothing was changed. Those of the flush, which poisons.
    pub(super) fn claim_stripes(&self, inner: &mut Inner, ranges: &[Range<u64>]) -> Result<()> {
        if matches!(self.room, Room::All) {
            return Ok(());
        }
        let (mut chunks, mut stripes, mut is_given) = (Vec::new(), Vec::new(), false);
        let per_chunk = |range: &Range<u64>| {
            let range = range.clone();
            (range.start / CHUNK..range.end.div_ceil(CHUNK))
                .map(move |chunk| (chunk, range.start.max(chunk * CHUNK)..range.end.min((chunk + 1) * CHUNK)))
        };
        let claimed = ranges.iter().flat_map(per_chunk).try_for_each(|(chunk, wanted)| {
            if self.has_room(inner, chunk) || wanted.clone().all(|stripe| inner.claimed.contains(&stripe)) {
                return Ok(());
            }
            // Data that existed has its own, however full the disk is.
            if !self.has_parity_space(&wanted) {
                // Whatever comes of it, a part may have been given.
                is_given = true;
                if self.allocate_parity(&self.chunk(chunk)).is_ok() {
                    chunks.push(chunk);
                    return Ok(());
                }
                self.allocate_parity(&wanted)?;
            }
            stripes.extend(wanted);
            Ok(())
        });
        if self.has_engine && is_given {
            let durable = self.side.sync(sidecar_barriers::ROOM);
            self.note_failure(inner, durable)?;
        }
        inner.room.extend(chunks);
        inner.claimed.extend(stripes);
        claimed
    }

    /// Makes sure, durably, that there is space for the parity of these bytes. What lies behind the end has none.
    ///
    /// # Errors
    /// As for [`claim_stripes`](Redundancy::claim_stripes).
    pub(super) fn claim(&self, bytes: &Range<u64>) -> Result<()> {
        if matches!(self.room, Room::All) {
            return Ok(());
        }
        let bytes = bytes.start.min(self.len())..bytes.end.min(self.len());
        let stripes = self.geometry.stripes_of(self.geometry.pages_of(&bytes));
        self.claim_stripes(&mut *self.usable()?, &stripes)
    }

    /// Gives the parity of all pages that were claimed its space in a redundancy file for another length.
    ///
    /// # Errors
    /// Those of allocating.
    pub(super) fn carry_room(&self, inner: &Inner, to: Geometry, side: &M::File) -> Result<()> {
        let chunks = inner.room.iter().map(|&chunk| self.chunk(chunk));
        for stripes in chunks.chain(inner.claimed.iter().map(|&stripe| stripe..stripe + 1)) {
            for run in self.geometry.runs(stripes) {
                for stripes in to.stripes_of(run.start.min(to.pages())..run.end.min(to.pages())) {
                    let (at, end) = (to.parity_at(stripes.start), to.parity_at(stripes.end));
                    side.allocate(at, end - at)?;
                }
            }
        }
        Ok(())
    }

    /// The stripes of a chunk.
    fn chunk(&self, chunk: u64) -> Range<u64> {
        chunk * CHUNK..((chunk + 1) * CHUNK).min(self.geometry.stripes())
    }

    /// Whether there is space, which what made it has made durable.
    fn has_room(&self, inner: &mut Inner, chunk: u64) -> bool {
        if inner.room.contains(&chunk) {
            return true;
        }
        // It had it when the redundancy file was opened, and was synced: what is given from then on is noted.
        let has = self.has_engine && self.has_parity_space(&self.chunk(chunk));
        if has {
            inner.room.insert(chunk);
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::scrub::Looked;
    use super::super::{Mode, Scrub, Tracker};
    use super::*;
    use crate::options::Settings;
    use crate::storage::PageCache;

    /// Tells of a store to one page, and then of one that is made in this moment.
    struct Late {
        path: PathBuf,
        asked: AtomicU32,
    }

    impl Late {
        const NEVER: u32 = u32::MAX / 2;
        /// A page that is a hole until somebody asks the second time.
        const PAGE: u64 = 9;
    }

    impl Tracker for Late {
        fn take(&self) -> Result<Vec<Range<u64>>> {
            Ok(match self.asked.fetch_add(1, Ordering::Relaxed) {
                // Of the stripe with damage, and of the one with the late page.
                0 => vec![1..2, 10..11],
                1 => {
                    let file = File::options().write(true).open(&self.path).unwrap();
                    file.write_all_at(&[5; 100], Late::PAGE * PAGE).unwrap();
                    iter::once(Late::PAGE..Late::PAGE + 1).collect()
                }
                _ => Vec::new(),
            })
        }

        fn look(&self) -> Result<Vec<Range<u64>>> {
            Ok(Vec::new())
        }
    }

    /// A pass that finds damage asks the page tables once more, and a page that was a hole is none any more.
    #[test]
    fn a_store_to_a_hole_amid_a_pass_is_covered_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        File::create(&path).unwrap().set_len(20 * PAGE).unwrap();
        let late = Arc::new(Late { path: path.clone(), asked: AtomicU32::new(Late::NEVER) });
        let settings = Settings { stripe: Some(4), batch: Settings::BATCH, ..Settings::default() };
        let mode = Mode::Tracked(Arc::clone(&late) as Arc<dyn Tracker>);
        let redundancy = Redundancy::open(Arc::new(PageCache::new()), &path, mode, settings).unwrap();
        redundancy.cover().unwrap();
        File::options().write(true).open(&path).unwrap().write_all_at(b"damage", 0).unwrap();
        late.asked.store(0, Ordering::Relaxed);
        redundancy.cover().unwrap();
        assert!((2..Late::NEVER).contains(&late.asked.load(Ordering::Relaxed)));
        let mut looked = Looked::nothing();
        redundancy.go_on(&mut Scrub::telling(&mut |_, _| true), &mut looked).unwrap();
        let report = looked.report();
        assert_eq!((report.checked, report.damage), (20, vec![]));
    }
}
