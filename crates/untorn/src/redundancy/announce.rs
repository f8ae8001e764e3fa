//! Announced stores: their pages are marked before the stores are made, and can be covered afterwards.

use std::collections::btree_map::Entry;
use std::ops::Range;
use std::time::Instant;

use super::format::Left;
use super::{Inner, Mode, Redundancy, barriers, sidecar_barriers};
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::storage::Medium;

impl<M: Medium> Redundancy<M> {
    /// Marks the pages of these bytes uncovered, durably, before they are stored to. They are not covered until they
    /// are [released](Redundancy::release).
    ///
    /// # Errors
    /// Those of writing and flushing; where stores are covered at once, those of [`remember`](Redundancy::remember)
    /// too. Nothing may be stored then.
    pub(crate) fn announce(&self, bytes: Range<u64>) -> Result<()> {
        let pages = self.geometry.pages_of(&bytes);
        self.stay_within(pages.end - pages.start)?;
        let mut inner = self.usable()?;
        let inner = &mut *inner;
        if !inner.begun {
            let begun = self.take_over(inner);
            self.note_failure(inner, begun)?;
        }
        if !self.has_engine {
            // Before anything is changed: without it nothing may be stored. An engine has claimed it.
            self.claim_stripes(inner, &self.geometry.stripes_of(pages.clone()))?;
        }
        let before = match self.mode {
            Mode::Synchronous => self.remember(inner, &bytes)?,
            _ => {
                self.make_readable(inner, &bytes)?;
                Vec::new()
            }
        };
        let mut fresh = false;
        let now = matches!(self.mode, Mode::Synchronous).then(Instant::now);
        for page in pages.clone() {
            if !inner.tables.uncovered().has(page) {
                fresh = true;
                if let Some(now) = now {
                    inner.uncovered_since.stored(page, now);
                }
            }
            inner.tables.set_uncovered(page, true);
            inner.premarked.put(page, false);
        }
        if fresh && self.of_sidecar {
            self.premark(inner, pages.end);
        }
        let quiet = inner.superblock.left == Left::Announced && !pages.is_empty();
        if fresh || quiet {
            let mut written = inner.tables.write(&self.side).map(drop);
            if quiet {
                // Until this is durable nobody stores, so it need not come before the marks or behind them.
                inner.superblock.left = Left::Storing;
                written = written.and_then(|()| self.write_superblock(inner, barriers::ANNOUNCE));
            }
            let barrier = if self.of_sidecar { sidecar_barriers::ANNOUNCE } else { barriers::ANNOUNCE };
            let durable = written.and_then(|()| self.medium.fence(barrier, &[&self.side]));
            self.note_failure(inner, durable)?;
        }
        for page in pages {
            inner.stored.put(page, true);
            self.expect_anew(inner, page);
            *inner.storing.entry(page).or_default() += 1;
        }
        inner.before.extend(before);
        self.note_count(inner);
        Ok(())
    }

    /// Gives back covered pages that are to be stored to in part and cannot be read, as parity can as long as they
    /// are covered: such a store fails, and would leave a page that is marked and has nothing but what it had. What
    /// is stored to whole needs none of it, and only the first page and the last can be stored to in part. One that
    /// is marked already was looked at when it was, if not [ahead](super::premark).
    fn make_readable(&self, inner: &mut Inner, bytes: &Range<u64>) -> Result<()> {
        let pages = self.geometry.pages_of(bytes);
        let ends = [pages.start, pages.end.saturating_sub(1)];
        for page in ends.iter().take(usize::try_from(pages.end - pages.start).unwrap_or(ends.len()).min(ends.len())) {
            let range = self.geometry.bytes_of(*page);
            let is_whole = bytes.start <= range.start && range.end <= bytes.end;
            if is_whole || inner.tables.uncovered().has(*page) && !inner.premarked.has(*page) {
                continue;
            }
            let mut held = [0; PAGE as usize];
            let is_there = self.pages.read(range.start, &mut held[..(range.end - range.start) as usize])?;
            if !is_there && !self.give_back(inner, *page)? {
                self.note_damaged(inner, *page);
                tracing::error!(path = %self.path.display(), page, "a page that is about to be stored to cannot be \
                                                                    read, and parity cannot rebuild it");
            }
        }
        Ok(())
    }

    /// Tells that the file's time may change from now on, though no byte does, until it is
    /// [calm](Redundancy::end_touch).
    ///
    /// # Errors
    /// Those of writing and flushing.
    pub(super) fn begin_touch(&self) -> Result<()> {
        let mut inner = self.usable()?;
        let inner = &mut *inner;
        if !inner.begun {
            let begun = self.take_over(inner);
            self.note_failure(inner, begun)?;
        }
        if inner.superblock.left == Left::Announced {
            inner.superblock.left = Left::Storing;
            let written = self.write_superblock(inner, barriers::ANNOUNCE);
            let durable = written.and_then(|()| self.medium.fence(barriers::ANNOUNCE, &[&self.side]));
            self.note_failure(inner, durable)?;
        }
        inner.touching += 1;
        Ok(())
    }

    /// Tells that it will not any more. The next pass notes it.
    pub(super) fn end_touch(&self) {
        self.lock().touching -= 1;
    }

    /// Tells that the stores of an [announcement](Redundancy::announce) were made. Where they are covered at once, they
    /// are, save in pages that somebody else is still storing to.
    ///
    /// # Errors
    /// Those of covering. The stores are made and their pages marked whatever it says.
    pub(crate) fn release(&self, bytes: Range<u64>) -> Result<()> {
        let mut inner = self.lock();
        let mut made = Vec::new();
        for page in self.geometry.pages_of(&bytes) {
            if let Entry::Occupied(mut storing) = inner.storing.entry(page) {
                *storing.get_mut() -= 1;
                if *storing.get() == 0 {
                    storing.remove();
                    made.push(page);
                }
            }
        }
        if !matches!(self.mode, Mode::Synchronous) || made.is_empty() {
            return Ok(());
        }
        self.unless_failed(&inner)?;
        let result = self.cover_differences(&mut inner, &made);
        let is_done = self.note_failure(&mut inner, result)?;
        drop(inner);
        if is_done { Ok(()) } else { self.cover().map(drop) }
    }
}
