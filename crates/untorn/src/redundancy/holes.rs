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
//! 3. Parity is stored only where the redundancy file has space, and the side that stores to the file guarantees it:
//!    - **An engine** has space for all parity before its first store, since an acknowledged commit must need no more
//!      ([`Room::All`]). Each redundancy file that it makes for another length has it too.
//!    - **A plain file** has space for the parity of what exists when it is protected ([`Room::OfData`]). An
//!      announcement allocates the rest before the store, so a full disk is an error of that call, and nothing is
//!      marked or stored.
//!    - Stores that **page tables** find were not announced: the pass that covers them allocates the space.
//!    - A **repair** allocates it before it rebuilds parity.
//! 4. Space needs no barrier of its own. The flush that makes parity durable makes its space durable; an allocation
//!    that a crash loses is made again, for no process remembers it.

use std::iter;
use std::ops::Range;

use super::layout::Geometry;
use super::{Inner, Redundancy};
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
    /// For its tables, and for the parity of stripes with data. The pages are a whole file.
    OfData,
}

impl Room {
    /// Allocates it, for the redundancy of this file.
    ///
    /// # Errors
    /// Those of allocating, and of asking for holes.
    pub(super) fn allocate<F: MediumFile>(self, side: &F, geometry: &Geometry, data: &F) -> Result<()> {
        match self {
            Room::All => side.allocate(0, geometry.side_len()),
            Room::OfData => {
                let parts = occupied(geometry, data)?;
                parts.into_iter().try_for_each(|part| side.allocate(part.start, part.end - part.start))
            }
        }
    }
}

/// Tables, and the parity of stripes with data.
fn occupied<F: MediumFile>(geometry: &Geometry, data: &F) -> Result<Vec<Range<u64>>> {
    let mut parts: Vec<Range<u64>> = iter::once(0..geometry.parity_at(0)).collect();
    let mut at = 0;
    while at < geometry.len {
        let Some(found) = data.data_from(at)?.filter(|found| found.start < geometry.len) else { break };
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
}

impl Holes {
    /// Whether a range is a hole, from its first byte to its last.
    ///
    /// # Errors
    /// Those of asking.
    pub(super) fn has(
        &mut self,
        range: &Range<u64>,
        data_from: impl Fn(u64) -> Result<Option<Range<u64>>>,
    ) -> Result<bool> {
        let told = self.told.iter().find(|(from, data)| (*from..data.end).contains(&range.start));
        if let Some((_, data)) = told {
            return Ok(range.end <= data.start);
        }
        let data = data_from(range.start)?.unwrap_or(u64::MAX..u64::MAX);
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
            if !holes.has(&self.geometry.bytes_of(page), |offset| self.pages.data_from(offset))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the parity of a stripe is a hole of the redundancy file.
    pub(super) fn is_parity_hole(&self, holes: &mut Holes, stripe: u64) -> Result<bool> {
        let at = self.geometry.parity_at(stripe);
        holes.has(&(at..at + PAGE), |offset| self.side.data_from(offset))
    }

    /// Makes sure that there is space for the parity of stripes.
    ///
    /// # Errors
    /// Those of allocating it: nothing was changed.
    pub(super) fn make_room(&self, inner: &mut Inner, stripes: impl Iterator<Item = u64>) -> Result<()> {
        if self.has_all_room {
            return Ok(());
        }
        for stripe in stripes {
            let chunk = stripe / CHUNK;
            if !inner.room.contains(&chunk) {
                let end = ((chunk + 1) * CHUNK).min(self.geometry.stripes());
                let (from, to) = (self.geometry.parity_at(chunk * CHUNK), self.geometry.parity_at(end));
                self.side.allocate(from, to - from)?;
                inner.room.insert(chunk);
            }
        }
        Ok(())
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
