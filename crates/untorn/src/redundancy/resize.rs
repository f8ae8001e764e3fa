//! Resize: the known state of the remaining pages is carried over to another length.
//!
//! Each length of a file has its own redundancy file, created beside the one before and put in its place before the
//! file changes. Covered pages stay covered, and known damage stays known: covering a damaged page as it is would make
//! the damage permanent.
//!
//! # Invariants
//!
//! 1. An unchanged page keeps its checksum and its mark. The checksum of a short last page counts the missing bytes as
//!    zeros, so it is the same when the file has grown. A page that is cut is compared first, and gets the checksum of
//!    the rest.
//! 2. Added pages read as zeros, and are covered as zeros. A store to them is announced, which needs the new redundancy
//!    file. Pages that a sidecar already has by then are marked: they may hold unannounced stores.
//! 3. A stripe that keeps its pages, or also gets pages of zeros, keeps its parity, damaged or not. The parity of any
//!    other stripe is computed from compared pages, which are rebuilt from the old parity if needed and possible. If it
//!    is not possible, the stripe gets a parity that does not match its checksum, so that nothing is rebuilt from it.
//! 4. The new redundancy file says that stores are in progress, or tracked, so nothing depends on the file's time until
//!    a pass has recorded it. After a crash, a redundancy file of another length than the file's is carried over once
//!    more; that of a plain file only to the length that it names. Pages that one of the lengths cuts, and pages that
//!    it does not include, are marked.
//! 5. An engine that shrinks a file punches a hole at once, and the length follows later. Until then the old parity
//!    speaks of the punched bytes too, and rebuilds nothing without them. The other pages of their stripes are
//!    therefore compared, and rebuilt if needed and possible, before the hole is announced.

use std::ops::Range;

use super::ScrubFindings;
use super::file::{Fill, Filling, create, is_of};
use super::format::Left;
use super::holes::{Holes, Room};
use super::layout::Geometry;
use super::table::Tables;
use super::uncovered_since::UncoveredSince;
use super::{Inner, Mode, Redundancy};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::format::sidecar::attach::is_named;
use crate::simd::xor;
use crate::storage::{Access, Medium, MediumFile};

/// What is to be told of yet, and since when pages are uncovered.
#[derive(Default)]
pub(super) struct Troubles {
    were_unknown: Vec<u64>,
    spoilt: Vec<u64>,
    uncovered_since: Option<UncoveredSince>,
    found: Option<ScrubFindings>,
}

impl<M: Medium> Redundancy<M> {
    /// Puts a companion file for another length in the place of this one, durably; what it says of pages that stay is
    /// carried over. This one is of no further use then. The other is locked, so that nobody has it between the two.
    ///
    /// # Errors
    /// [`Error::Invalid`] while a program stores to pages that it announced, or for a length of which the tracker does
    /// not find all stores; those of creating, reading, writing and flushing.
    pub(super) fn renew(&self, len: u64) -> Result<M::File> {
        let data = self.medium.open(&self.path, Access::Read, 0)?;
        let mut inner = self.lock();
        let inner = &mut *inner;
        self.check_resize(inner, len)?;
        self.note_stores(inner)?;
        let (settings, history) = (inner.superblock.settings(), inner.superblock.history);
        let make =
            |filling| create(&*self.medium, &self.path, &self.side_path, &data, len, &settings, history, filling);
        if inner.failed.is_some() {
            // What is in memory may be on no medium.
            return make(Filling::marked(Room::All));
        }
        let to = Geometry { len, ..self.geometry };
        let (from, was) = (self.geometry.len, inner.superblock.left);
        let fill: Fill<'_, M::File> = &mut |side, tables| self.carry(inner, to, side, tables);
        let is_tracked = matches!(self.mode, Mode::Tracked(_)) || was == Left::Tracked;
        let left = if is_tracked { Left::Tracked } else { Left::Storing };
        make(Filling {
            left,
            room: self.room,
            fill: Some(fill),
            is_first: false,
            resized_from: Some(from).filter(|_| data.len() != len),
        })
    }

    /// Whether this is about that file, which has the length that is protected.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure; [`Error::Protection`] for a length that somebody else changed.
    pub(super) fn is_intact_of(&self, file: &M::File) -> Result<bool> {
        let inner = self.usable()?;
        self.check_length()?;
        is_of(&inner.superblock, file)
    }

    /// Whether the companion file has its name: none took its place.
    pub(super) fn is_named(&self) -> Result<bool> {
        is_named(&*self.medium, &self.side_path, &self.side)
    }

    /// Refuses another length while it cannot be given. An engine lets nobody store meanwhile.
    fn check_resize(&self, inner: &Inner, len: u64) -> Result<()> {
        let invalid = |what| Err(Error::Invalid { path: self.path.clone(), what });
        if !inner.storing.is_empty() {
            let what = "the length of a protected file cannot change while announced stores are being made; drop every \
                        `Stores` first";
            return invalid(what.to_owned());
        }
        match &self.mode {
            Mode::Tracked(tracker) if tracker.reach().is_some_and(|reach| len > reach) => {
                let reach = tracker.reach().unwrap_or(0);
                invalid(format!(
                    "stores behind the mapping, which has {reach} bytes, would not be found; map the file with the \
                     most bytes that it will have, or close the handle and map it anew"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Carries over to the tables and the parity of a new redundancy file, in which all pages are marked.
    fn carry(&self, inner: &mut Inner, to: Geometry, side: &M::File, tables: &mut Tables) -> Result<()> {
        self.carry_room(inner, to, side)?;
        let from = self.geometry;
        let zeros = vec![0; PAGE as usize];
        let mut holes = Holes::default();
        let mut store = |stripe: u64, parity: &[u8]| -> Result<()> {
            if parity == zeros {
                return Ok(());
            }
            // The parity of data has its space by now; that of what was punched may have none.
            let mut members = to.members(stripe).map(|page| to.bytes_of(page));
            if members.try_fold(true, |all, bytes| {
                Ok::<_, Error>(all && holes.has(&bytes, |offset, of_pages| self.pages.data_from(offset, of_pages))?)
            })? {
                side.allocate(to.parity_at(stripe), PAGE)?;
            }
            side.write(to.parity_at(stripe), parity)
        };
        let of_zeros = self.checksum.of(&zeros);
        // A sidecar may be longer than what was spoken of, and have there what it was once used for. Nobody says so
        // of a data file.
        let there = if self.of_sidecar {
            self.pages.stamp()?.size.saturating_sub(self.pages.begins_at()).div_ceil(PAGE)
        } else {
            0
        };
        for page in 0..to.pages() {
            let stays = page < from.pages();
            tables.set_sum(page, if stays { inner.tables.sum(page) } else { of_zeros });
            let is_marked = if stays { !self.speaks_of(inner, page) } else { inner.doubts || page < there };
            tables.set_uncovered(page, is_marked);
        }
        for stripe in 0..to.stripes() {
            let stay: Vec<u64> = to.members(stripe).filter(|page| *page < from.pages()).collect();
            let is_cut = |page: &u64| to.bytes_of(*page).end < from.bytes_of(*page).end;
            if stay.is_empty() {
                tables.set_parity_sum(stripe, of_zeros);
            } else if stripe < from.stripes()
                && from.members(stripe).eq(stay.iter().copied())
                && !stay.iter().any(is_cut)
            {
                tables.set_parity_sum(stripe, inner.tables.parity_sum(stripe));
                if let Some((parity, _)) = self.read_parity(stripe, false)? {
                    store(stripe, &parity)?;
                }
            } else {
                let mut parity = zeros.clone();
                let mut is_known = true;
                for page in stay {
                    let is_covered = self.speaks_of(inner, page);
                    match self.as_covered(inner, page)? {
                        Some(mut bytes) => {
                            let range = to.bytes_of(page);
                            bytes[(range.end - range.start) as usize..].fill(0);
                            if is_covered && is_cut(&page) {
                                tables.set_sum(page, self.checksum.of(&bytes));
                            }
                            xor(&mut parity, &bytes);
                        }
                        None => {
                            is_known = false;
                            if is_cut(&page) {
                                // No bytes have this checksum but those that were lost with what was cut.
                                tables.set_sum(page, !inner.tables.sum(page));
                            }
                        }
                    }
                }
                let sum = self.checksum.of(&parity);
                tables.set_parity_sum(stripe, if is_known { sum } else { !sum });
                store(stripe, &parity)?;
            }
        }
        for page in inner.stored.iter_from(0).take_while(|page| *page < to.pages()) {
            tables.set_uncovered(page, true);
        }
        Ok(())
    }

    /// Rebuilds damaged pages that share a stripe with bytes that are about to be punched, as long as parity can.
    ///
    /// # Errors
    /// Those of reading, writing and flushing. That a page is lost is noted, and no error: it was lost before.
    pub(super) fn mend_beside(&self, hole: &Range<u64>) -> Result<()> {
        let mut inner = self.usable()?;
        let inner = &mut *inner;
        if !inner.begun {
            let begun = self.take_over(inner);
            self.note_failure(inner, begun)?;
        }
        let mut held = vec![0; PAGE as usize];
        for stripe in self.geometry.stripes_of(self.geometry.pages_of(hole)).into_iter().flatten() {
            for page in self.geometry.members(stripe) {
                let bytes = self.geometry.bytes_of(page);
                let is_punched = hole.start <= bytes.start && bytes.end <= hole.end;
                if is_punched || !self.speaks_of(inner, page) {
                    continue;
                }
                let is_whole = self.read(page, &mut held)? == Some(inner.tables.sum(page));
                if !is_whole && !self.give_back(inner, page)? {
                    self.note_damaged(inner, page);
                    tracing::error!(path = %self.path.display(), page, "a page beside a hole that is about to be \
                                                                        punched is damaged, and parity cannot rebuild \
                                                                        it");
                }
            }
        }
        Ok(())
    }

    /// The bytes of a page that its checksum speaks of, which it is given back if it is damaged; of one that is
    /// marked, those that it has. Nothing, if they are lost.
    fn as_covered(&self, inner: &mut Inner, page: u64) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; PAGE as usize];
        let sum = self.read(page, &mut bytes)?;
        if !self.speaks_of(inner, page) {
            return Ok(sum.map(|_| bytes));
        }
        if sum == Some(inner.tables.sum(page)) {
            return Ok(Some(bytes));
        }
        // It may have been stored to since the page tables were asked.
        self.note_stores(inner)?;
        if !self.speaks_of(inner, page) {
            return Ok(sum.map(|_| bytes));
        }
        let is_back = self.give_back(inner, page)? && self.read(page, &mut bytes)? == Some(inner.tables.sum(page));
        Ok(is_back.then_some(bytes))
    }

    /// Has pages count as marked of which nothing is known in a file that is `len` bytes long: those that are not
    /// whole in both lengths.
    pub(super) fn doubt_beyond(&self, len: u64) {
        let mut inner = self.lock();
        let known = len.min(self.geometry.len) / PAGE;
        inner.doubts = true;
        inner.unknown.extend(known..self.geometry.pages());
    }

    /// What was come upon before the length changed, and is to be told of yet.
    pub(super) fn troubles(&self) -> Troubles {
        let inner = self.lock();
        let (were_unknown, spoilt) = (inner.were_unknown.clone(), inner.spoilt.iter().copied().collect());
        Troubles {
            were_unknown,
            spoilt,
            uncovered_since: Some(inner.uncovered_since.of_length(self.geometry.pages())),
            found: self.scrubs.found(),
        }
    }

    /// Takes note of it for those pages that there still are.
    pub(super) fn inherit(&self, Troubles { were_unknown, spoilt, uncovered_since, found }: Troubles) {
        self.scrubs.set_found(found);
        let mut inner = self.lock();
        let pages = self.geometry.pages();
        if let Some(uncovered_since) = uncovered_since {
            // What is marked has been so since before. What was added counts by the same instant, which is too much.
            inner.uncovered_since = uncovered_since.of_length(pages);
        }
        inner.were_unknown.extend(were_unknown.into_iter().filter(|page| *page < pages));
        inner.spoilt.extend(spoilt.into_iter().filter(|page| *page < pages));
    }
}
