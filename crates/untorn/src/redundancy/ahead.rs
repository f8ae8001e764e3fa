//! Reading the pages and the parity of many stripes at once, as the medium holds them.
//!
//! A device returns a megabyte in one read hardly later than a page. A scrub therefore reads many stripes in as few
//! reads as their places allow, and judges them one by one.
//!
//! # Invariants
//!
//! 1. A place that cannot be read costs no other page its verdict: the pages of such a read are read again one by one.
//! 2. A hole is not read. It holds zeros, so its pages are judged like any others.
//! 3. What is read ahead accuses nothing. A stripe that seems wrong is read again under the lock.
//! 4. While the scrub judges what is in memory, two threads read the two parts that come next, into buffers that were
//!    used before. So the device does not wait for the checksums, and always has another request to go on with. The
//!    threads take no lock that the scrub holds. A scrub with a rate, which sleeps, and one of a simulated file, whose
//!    reads have an order, read by themselves.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::thread::{Scope, ScopedJoinHandle};

use super::Redundancy;
use super::layout::Geometry;
use super::update::Stripe;
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::options::{Checksum, StripeLayout};
use crate::storage::{Medium, MediumFile};
use crate::sys::direct::PageBuffer;

/// Data pages that are read ahead, about: 4 MiB.
const PAGES: u64 = 1024;

/// Pages that follow each other and are read at once, at least, where the pages of a stripe are spread: 256 KiB.
const RUN: u64 = 64;

/// How much of a second's worth a scrub with a rate reads at once, as a divisor.
const SHARE: u64 = 8;

/// Parts that are read while the scrub judges one.
const DEPTH: usize = 2;

/// The part that a scrub has in memory, and those that threads read for it meanwhile.
pub(super) struct Reader<'scope, 'env, M: Medium> {
    redundancy: &'env Redundancy<M>,
    rate: Option<u64>,
    scope: &'scope Scope<'scope, 'env>,
    now: Ahead,
    /// In the order of the stripes.
    next: VecDeque<ScopedJoinHandle<'scope, Ahead>>,
    /// The first stripe behind those.
    end: u64,
    spare: Vec<Ahead>,
}

impl<'scope, 'env, M: Medium> Reader<'scope, 'env, M> {
    pub(super) fn new(redundancy: &'env Redundancy<M>, rate: Option<u64>, scope: &'scope Scope<'scope, 'env>) -> Self {
        Reader { redundancy, rate, scope, now: Ahead::default(), next: VecDeque::new(), end: 0, spare: Vec::new() }
    }

    /// Has a stripe in memory, with some that follow.
    ///
    /// # Errors
    /// Those of reading that are not about a place.
    pub(super) fn stripe(&mut self, stripe: u64) -> Result<&Ahead> {
        if self.now.stripes.contains(&stripe) {
            return Ok(&self.now);
        }
        while let Some(next) = self.next.pop_front() {
            let ahead = next.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.spare.push(std::mem::replace(&mut self.now, ahead));
            if self.now.stripes.contains(&stripe) {
                break;
            }
        }
        self.redundancy.read_ahead(&mut self.now, stripe, self.rate)?;
        self.end = self.end.max(self.now.stripes.end);
        self.begin_next();
        Ok(&self.now)
    }

    /// Has threads read what follows. Without a thread the scrub reads it when it comes by.
    fn begin_next(&mut self) {
        let redundancy = self.redundancy;
        if self.rate.is_some() || !redundancy.pages.is_on_device() {
            return;
        }
        while self.next.len() < DEPTH && self.end < redundancy.geometry.stripes() {
            let from = self.end;
            let mut ahead = self.spare.pop().unwrap_or_default();
            let read = move || {
                // After an error nothing of it is there, so that the scrub reads it itself and meets the error again.
                redundancy.read_ahead(&mut ahead, from, None).ok();
                ahead
            };
            let Ok(next) = std::thread::Builder::new().spawn_scoped(self.scope, read) else { return };
            self.next.push_back(next);
            self.end = redundancy.stripes_at_once(from, None).end;
        }
    }
}

/// Consecutive stripes that are in memory.
#[derive(Default)]
pub(super) struct Ahead {
    stripes: Range<u64>,
    runs: Vec<Run>,
    parity: Run,
}

/// Consecutive pages that are in memory.
#[derive(Default)]
struct Run {
    pages: Range<u64>,
    buffer: PageBuffer,
    /// Those that cannot be read.
    bad: BTreeSet<u64>,
}

/// Where pages come from.
struct Source<'a> {
    data_from: &'a dyn Fn(u64) -> Result<Option<Range<u64>>>,
    /// Fills a buffer; false if some place cannot be read.
    read: &'a dyn Fn(u64, &mut [u8]) -> Result<bool>,
}

impl Run {
    /// Reads pages that have these bytes of a source, of which the first begins a page. A page that is cut is filled up
    /// with zeros.
    fn read(&mut self, pages: Range<u64>, bytes: Range<u64>, from: &Source<'_>) -> Result<()> {
        let len = (pages.end - pages.start) * PAGE;
        if (self.buffer.bytes().len() as u64) < len {
            self.buffer = PageBuffer::new(pages.end - pages.start);
        }
        self.pages = pages;
        self.bad.clear();
        let mut at = bytes.start;
        while at < bytes.end {
            let data = (from.data_from)(at)?.filter(|data| data.start < bytes.end);
            let start = data.as_ref().map_or(bytes.end, |data| (data.start / PAGE * PAGE).max(at));
            self.part(&bytes, at..start).fill(0);
            at = start;
            if let Some(data) = data {
                let end = data.end.next_multiple_of(PAGE).clamp(at + 1, bytes.end);
                // Apart from a last page that is cut: what is read straight into place is whole pages.
                let whole = (at + (end - at) / PAGE * PAGE).max(at);
                for part in [at..whole, whole..end] {
                    self.read_part(&bytes, part, from)?;
                }
                at = end;
            }
        }
        let behind = (bytes.end - bytes.start) as usize..len as usize;
        self.buffer.bytes_mut()[behind].fill(0);
        Ok(())
    }

    fn read_part(&mut self, bytes: &Range<u64>, part: Range<u64>, from: &Source<'_>) -> Result<()> {
        if part.is_empty() || (from.read)(part.start, self.part(bytes, part.clone()))? {
            return Ok(());
        }
        for at in part.clone().step_by(PAGE as usize) {
            let page = at..(at + PAGE).min(part.end);
            if !(from.read)(at, self.part(bytes, page))? {
                self.bad.insert(self.pages.start + (at - bytes.start) / PAGE);
            }
        }
        Ok(())
    }

    fn part(&mut self, bytes: &Range<u64>, part: Range<u64>) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[(part.start - bytes.start) as usize..(part.end - bytes.start) as usize]
    }

    /// The bytes of a page that was read; nothing if it cannot be.
    fn page(&self, page: u64) -> Option<&[u8]> {
        let is_there = self.pages.contains(&page) && !self.bad.contains(&page);
        is_there.then(|| &self.buffer.bytes()[((page - self.pages.start) * PAGE) as usize..][..PAGE as usize])
    }
}

impl Ahead {
    /// The pages of a stripe that was read, and their checksums.
    pub(super) fn stripe(&self, geometry: &Geometry, checksum: Checksum, stripe: u64) -> Stripe {
        let pages: Vec<u64> = geometry.members(stripe).collect();
        let mut bytes = Vec::with_capacity(pages.len() * PAGE as usize);
        let mut sums = Vec::with_capacity(pages.len());
        for page in &pages {
            let found = self.runs.iter().find_map(|run| run.page(*page));
            bytes.extend_from_slice(found.unwrap_or(&[0; PAGE as usize]));
            sums.push(found.map(|found| checksum.of(found)));
        }
        Stripe::new(pages, bytes, sums)
    }

    /// Its parity; nothing if it cannot be read.
    pub(super) fn parity(&self, stripe: u64) -> Option<&[u8]> {
        self.parity.page(stripe)
    }
}

impl<M: Medium> Redundancy<M> {
    /// The stripes that are read with one: as many as a scrub of this rate reads at once.
    fn stripes_at_once(&self, stripe: u64, rate: Option<u64>) -> Range<u64> {
        let width = u64::from(self.geometry.stripe);
        let least = if self.geometry.layout == StripeLayout::Spread { RUN } else { 1 };
        let allowed = rate.map_or(u64::MAX, |rate| rate / SHARE / (width * PAGE));
        let count = (PAGES / width).max(least).min(allowed).max(1);
        stripe..(stripe + count).min(self.geometry.stripes())
    }

    /// Has a stripe in memory, and those that follow: as many as a scrub of this rate reads at once.
    ///
    /// # Errors
    /// Those of reading that are not about a place.
    pub(super) fn read_ahead(&self, ahead: &mut Ahead, stripe: u64, rate: Option<u64>) -> Result<()> {
        if ahead.stripes.contains(&stripe) {
            return Ok(());
        }
        // Until all of it is there.
        ahead.stripes = 0..0;
        let stripes = self.stripes_at_once(stripe, rate);
        let runs = self.geometry.runs(stripes.clone());
        ahead.runs.resize_with(runs.len(), Run::default);
        let data = Source {
            data_from: &|offset| self.pages.data_from(offset, false),
            read: &|offset, bytes| self.pages.read_stored(offset, bytes),
        };
        for (run, pages) in ahead.runs.iter_mut().zip(runs) {
            let bytes = pages.start * PAGE..(pages.end * PAGE).min(self.geometry.len);
            run.read(pages, bytes, &data)?;
        }
        let side = Source {
            data_from: &|offset| self.side.data_from(offset),
            read: &|offset, bytes| self.side.read_stored_unless_bad(offset, bytes),
        };
        let parity = self.geometry.parity_at(stripes.start)..self.geometry.parity_at(stripes.end);
        ahead.parity.read(stripes.clone(), parity, &side)?;
        ahead.stripes = stripes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A file of 40 pages and a bit, with a hole and two pages that cannot be read.
    #[test]
    fn many_pages_take_one_read_and_a_bad_page_costs_no_other() {
        let byte = |page: u64| if (10..20).contains(&page) { 0 } else { page as u8 + 1 };
        let (bad, end) = ([25, 40], 40 * PAGE + 100);
        let reads = RefCell::new(Vec::new());
        let data_from = |offset: u64| {
            let (hole, end) = (10 * PAGE..20 * PAGE, 40 * PAGE + 100);
            Ok(match offset {
                _ if offset >= end => None,
                _ if offset < hole.start => Some(offset..hole.start),
                _ => Some(offset.max(hole.end)..end),
            })
        };
        let read = |offset: u64, dst: &mut [u8]| {
            reads.borrow_mut().push((offset, dst.len()));
            for (at, to) in (offset..).zip(&mut *dst) {
                *to = byte(at / PAGE);
            }
            let pages = offset / PAGE..(offset + dst.len() as u64).div_ceil(PAGE);
            Ok(!bad.iter().any(|bad| pages.contains(bad)))
        };
        let source = Source { data_from: &data_from, read: &read };
        let mut run = Run::default();
        for (pages, expected) in [(2..9, 1), (0..25, 2), (12..17, 0), (0..41, 2 + 20 + 2), (26..40, 1)] {
            reads.borrow_mut().clear();
            run.read(pages.clone(), pages.start * PAGE..(pages.end * PAGE).min(end), &source).unwrap();
            assert_eq!(reads.borrow().len(), expected, "{pages:?}: {:?}", reads.borrow());
            for page in pages.clone() {
                let expected = |at: usize| if page * PAGE + at as u64 >= end { 0 } else { byte(page) };
                match run.page(page) {
                    None => assert!(bad.contains(&page), "{page}"),
                    Some(bytes) => {
                        assert!(!bad.contains(&page), "{page}");
                        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "{page}");
                    }
                }
            }
            assert!(run.page(pages.end).is_none());
        }
    }
}
