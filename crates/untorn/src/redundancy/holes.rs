//! Holes of the data file, and of the redundancy file.
//!
//! A hole reads as zeros and takes no space. What redundancy keeps of it takes none either, but for the entries of
//! the tables: the parity of a stripe of holes is a hole of the redundancy file.
//!
//! # Invariants
//!
//! 1. A hole is one at an instant after the pass was told which pages were stored to. A store that comes later is
//!    announced, or found again, like one that comes after a read.
//! 2. Parity is written only where the redundancy file has space. An announcement allocates that space before the
//!    store, so a full disk is an error of that call and nothing is stored. An engine has it allocated together with
//!    the space of the file. Stores that page tables find are not announced: for these the pass allocates it.

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

/// Where the redundancy file of a data file needs space from the beginning: tables, and parity of stripes with data.
/// The first page of the data is at `from` in its file.
///
/// # Errors
/// Those of asking.
pub(super) fn occupied<F: MediumFile>(geometry: &Geometry, data: &F, from: u64) -> Result<Vec<Range<u64>>> {
    let mut parts: Vec<Range<u64>> = iter::once(0..geometry.parity_at(0)).collect();
    let (mut at, end) = (from, from + geometry.len);
    while at < end {
        let Some(found) = data.data_from(at)?.filter(|found| found.start < end) else { break };
        let pages = (found.start.max(at) - from) / PAGE..(found.end.min(end) - from).div_ceil(PAGE);
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

    /// Makes sure that there is space for the parity of bytes that are about to be allocated.
    ///
    /// # Errors
    /// Those of allocating it: nothing was changed.
    pub(super) fn allocate_for(&self, bytes: &Range<u64>) -> Result<()> {
        let mut inner = self.usable()?;
        self.make_room(&mut inner, self.geometry.stripes_of(self.geometry.pages_of(bytes)).into_iter().flatten())
    }

    /// Makes sure that there is space for the parity of stripes.
    ///
    /// # Errors
    /// Those of allocating it: nothing was changed.
    pub(super) fn make_room(&self, inner: &mut Inner, stripes: impl Iterator<Item = u64>) -> Result<()> {
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
