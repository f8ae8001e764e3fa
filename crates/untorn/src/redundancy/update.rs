//! Covering: computing checksums and parity of the pages that were stored to.

use std::collections::BTreeSet;
use std::time::Instant;

use super::format::Left;
use super::holes::Holes;
use super::{Inner, LeftAlone, Mode, Redundancy, barriers};
use crate::error::{Error, ProtectionProblem, Result};
use crate::format::sidecar::PAGE;
use crate::simd::parity;
use crate::storage::{Barrier, Medium, MediumFile};

/// The barriers of one way to cover.
pub(super) struct Sites {
    pub(super) data: Barrier,
    pub(super) tables: Barrier,
    pub(super) marks: Barrier,
}

const SITES: Sites = Sites { data: barriers::COVER_DATA, tables: barriers::COVER_TABLES, marks: barriers::COVER_MARKS };

/// Pages of holes that cost a pass about as much as one page that it reads.
const HOLES_FOR_A_PAGE: u64 = 512;

/// The bytes of one stripe, as they are read once and then checked, summed and folded.
pub(super) struct Stripe {
    pub(super) pages: Vec<u64>,
    bytes: Vec<u8>,
    /// Their checksums; nothing of one that cannot be read.
    pub(super) sums: Vec<Option<u64>>,
}

impl Stripe {
    pub(super) fn new(pages: Vec<u64>, bytes: Vec<u8>, sums: Vec<Option<u64>>) -> Self {
        Stripe { pages, bytes, sums }
    }

    pub(super) fn bytes(&self, nth: usize) -> &[u8] {
        &self.bytes[nth * PAGE as usize..][..PAGE as usize]
    }

    /// Exclusive or of all pages, but the one that is left out.
    pub(super) fn fold(&self, without: Option<usize>) -> Vec<u8> {
        let others = (0..self.pages.len()).filter(|nth| Some(*nth) != without);
        let mut folded = vec![0; PAGE as usize];
        parity(&mut folded, &others.map(|nth| self.bytes(nth)).collect::<Vec<_>>());
        folded
    }

    /// Whether all pages could be read, but the one that is left out.
    pub(super) fn is_there(&self, without: Option<usize>) -> bool {
        (0..self.pages.len()).all(|nth| Some(nth) == without || self.sums[nth].is_some())
    }

    /// Puts other bytes in the place of a page's.
    pub(super) fn replace(&mut self, nth: usize, bytes: &[u8], sum: u64) {
        self.bytes[nth * PAGE as usize..][..PAGE as usize].copy_from_slice(bytes);
        self.sums[nth] = Some(sum);
    }
}

impl<M: Medium> Redundancy<M> {
    /// Reads all pages of a stripe, as programs see them or as the medium holds them.
    pub(super) fn read_stripe(&self, stripe: u64, stored: bool) -> Result<Stripe> {
        let pages: Vec<u64> = self.geometry.members(stripe).collect();
        let mut bytes = vec![0; pages.len() * PAGE as usize];
        let mut sums = Vec::with_capacity(pages.len());
        for (page, bytes) in pages.iter().zip(bytes.chunks_exact_mut(PAGE as usize)) {
            sums.push(if stored { self.read_stored(*page, bytes) } else { self.read(*page, bytes) }?);
        }
        Ok(Stripe { pages, bytes, sums })
    }

    /// The same of a stripe of holes, without a read, and without its bytes: zeros.
    fn hole_stripe(&self, stripe: u64, of_zeros: u64) -> Stripe {
        let pages: Vec<u64> = self.geometry.members(stripe).collect();
        let sums = vec![Some(of_zeros); pages.len()];
        Stripe { pages, bytes: Vec::new(), sums }
    }

    /// Covers what was stored to before the call, in batches. Pages that somebody announced and is still storing to
    /// are left out, with their stripes. Returns how many pages were covered. Who calls goes by its return, so it
    /// does not leave for a file that is about to change: whoever changes it waits.
    ///
    /// # Errors
    /// Those of reading, writing and flushing. After them, and after any other failure on the way, nothing more is
    /// promised.
    pub(crate) fn cover(&self) -> Result<u64> {
        self.usable()?.left_alone.values_mut().for_each(|stripe| stripe.left = 0);
        self.pass_unless(|| false)
    }

    /// The same by the way, as the thread does it: without stripes whose pages could not be read a short time ago,
    /// and not to the end if it is to [leave](Redundancy::leave).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn pass(&self) -> Result<u64> {
        self.pass_unless(|| self.is_leaving())
    }

    fn pass_unless(&self, leaves: impl Fn() -> bool) -> Result<u64> {
        // Before it is asked what was stored to: what it does not tell of was stored later.
        let began = Instant::now();
        {
            let mut inner = self.usable()?;
            let is_as_long = self.check_length();
            self.note_failure(&mut inner, is_as_long)?;
            self.note_stores(&mut inner)?;
            let mut due = inner.stored.clone();
            for page in inner.tables.uncovered().iter() {
                due.put(page, true);
            }
            inner.uncovered_since.begin(due);
            self.note_count(&inner);
            inner.left_alone.values_mut().for_each(|stripe| stripe.left = stripe.left.saturating_sub(1));
        }
        let (mut covered, mut from) = (0, 0);
        loop {
            let mut inner = self.usable()?;
            if leaves() {
                return Ok(covered);
            }
            let batch = self.next_batch(&inner, from);
            let Some((stripes, next)) = self.note_failure(&mut inner, batch)? else {
                let given_up = self.give_up_premarked(&mut inner);
                self.note_failure(&mut inner, given_up)?;
                inner.uncovered_since.end(began);
                self.note_count(&inner);
                if inner.superblock.left == Left::Storing && inner.is_quiet() && !self.of_sidecar {
                    // Nothing could be covered, of which the file's time would have been noted.
                    let noted = self.note_quiet(&mut inner);
                    self.note_failure(&mut inner, noted)?;
                }
                return Ok(covered);
            };
            from = next;
            let result = self.cover_stripes(&mut inner, &stripes);
            covered += self.note_failure(&mut inner, result)?;
        }
    }

    /// Fails if somebody else gave a plain file another length: what is behind its old end has no redundancy, and a
    /// page of which a part is gone would be covered as if the program had stored zeros. An engine, and a program by
    /// [`Protected::set_len`](super::Protected::set_len), change the length by [`resize`](super::resize).
    pub(super) fn check_length(&self) -> Result<()> {
        if self.has_engine || self.of_sidecar {
            return Ok(());
        }
        let (protected, now) = (self.geometry.len, self.pages.stamp()?.size);
        if protected == now {
            return Ok(());
        }
        Err(Error::protection(&self.path, ProtectionProblem::OtherLength { protected, now }))
    }

    /// Asks which pages were stored to. What is told here is not told again.
    pub(super) fn note_stores(&self, inner: &mut Inner) -> Result<()> {
        let Mode::Tracked(tracker) = &self.mode else { return Ok(()) };
        let taken = tracker.take();
        for run in self.note_failure(inner, taken)? {
            for page in run.start..run.end.min(self.geometry.pages()) {
                inner.stored.put(page, true);
                self.expect_anew(inner, page);
            }
        }
        Ok(())
    }

    /// A page is stored to: if it was the one that could not be read, now it may be.
    pub(super) fn expect_anew(&self, inner: &mut Inner, page: u64) {
        inner.notified.remove(&page);
        if inner.stuck.contains(&page) {
            inner.left_alone.remove(&self.geometry.stripe_of(page));
        }
    }

    /// Some stripes with pages to be covered, behind `from`, and where to go on: as many as have a batch of them. A
    /// page that is a hole costs no read, so it counts for less.
    ///
    /// # Errors
    /// Those of asking for holes.
    fn next_batch(&self, inner: &Inner, from: u64) -> Result<Option<(Vec<u64>, u64)>> {
        // Of the spread layout, pages that follow each other are of stripes that do.
        let (mut stripes, mut next) = (BTreeSet::new(), None);
        let (mut holes, mut count) = (Holes::of_pages(), 0);
        for page in inner.stored.iter_from(from) {
            let is_hole =
                holes.has(&self.geometry.bytes_of(page), |offset, of_pages| self.pages.data_from(offset, of_pages))?;
            count += if is_hole { 1 } else { HOLES_FOR_A_PAGE };
            stripes.insert(self.geometry.stripe_of(page));
            next = Some(page + 1);
            if count >= self.batch * HOLES_FOR_A_PAGE {
                break;
            }
        }
        let is_calm = |stripe: &u64| {
            inner.left_alone.get(stripe).is_none_or(|alone| alone.left == 0)
                && self.geometry.members(*stripe).all(|page| !inner.storing.contains_key(&page))
        };
        Ok(next.map(|next| (stripes.into_iter().filter(is_calm).collect(), next)))
    }

    /// Notes the file's time, now that all that was announced is made.
    fn note_quiet(&self, inner: &mut Inner) -> Result<()> {
        self.pages.sync(barriers::QUIET_DATA)?;
        inner.superblock.stamp = self.pages.stamp()?;
        inner.superblock.left = Left::Announced;
        self.write_superblock(inner, barriers::QUIET)?;
        self.medium.fence(barriers::QUIET, &[&self.side])
    }

    fn cover_stripes(&self, inner: &mut Inner, stripes: &[u64]) -> Result<u64> {
        // What is stored from here on is announced or found again, so it is covered again.
        let mut covered: Vec<u64> = Vec::new();
        let (mut parities, mut is_any) = (Vec::new(), false);
        // Asked for anew in each batch, under the lock: no announcement comes in between. And asked for anew when the
        // page tables have told of stores: these are of pages that may have been holes before.
        let (mut holes, mut parity_holes) = (Holes::of_pages(), Holes::of_pages());
        let of_zeros = self.checksum.of(&[0; PAGE as usize]);
        for &stripe in stripes {
            let fresh: Vec<u64> = self.geometry.members(stripe).filter(|page| inner.stored.has(*page)).collect();
            for &page in &fresh {
                // Before it is read: a store that comes later is noted again, and must not be forgotten at the end.
                inner.stored.put(page, false);
            }
            let mut is_hole = self.is_hole(&mut holes, stripe)?;
            let mut read = if is_hole { self.hole_stripe(stripe, of_zeros) } else { self.read_stripe(stripe, false)? };
            let strays = |inner: &Inner, read: &Stripe| -> Vec<usize> {
                let differs = |nth: &usize| read.sums[*nth] != Some(inner.tables.sum(read.pages[*nth]));
                let is_clean = |nth: &usize| !fresh.contains(&read.pages[*nth]) && !inner.stored.has(read.pages[*nth]);
                (0..read.pages.len()).filter(is_clean).filter(differs).collect()
            };
            let mut bad = strays(inner, &read);
            if !bad.is_empty() {
                // They may have been stored to since the page tables were asked.
                self.note_stores(inner)?;
                holes = Holes::of_pages();
                if is_hole {
                    is_hole = false;
                    read = self.read_stripe(stripe, false)?;
                }
                bad = strays(inner, &read);
            }
            if !bad.is_empty() && self.restore(inner, stripe, &mut read, &bad)? {
                bad.clear();
            }
            // What was stored to a page that cannot be read is in no parity.
            bad.extend(
                (0..read.pages.len()).filter(|nth| read.sums[*nth].is_none() && !bad.contains(nth)).collect::<Vec<_>>(),
            );
            if !bad.is_empty() {
                self.leave_alone(inner, stripe, &read, &bad);
                for page in fresh {
                    inner.stored.put(page, true);
                    inner.tables.set_uncovered(page, true);
                }
                continue;
            }
            inner.left_alone.remove(&stripe);
            for &page in &read.pages {
                inner.stuck.remove(&page);
            }
            for (&sum, &page) in read.sums.iter().zip(&read.pages) {
                if let Some(sum) = sum
                    && (fresh.contains(&page) || inner.stored.has(page))
                {
                    inner.tables.set_sum(page, sum);
                    inner.tables.set_uncovered(page, true);
                }
            }
            is_any = true;
            covered.extend(fresh);
            if is_hole && self.is_parity_hole(&mut parity_holes, stripe)? {
                // The medium has it already.
                inner.tables.set_parity_sum(stripe, of_zeros);
                continue;
            }
            let parity = if is_hole { vec![0; PAGE as usize] } else { read.fold(None) };
            inner.tables.set_parity_sum(stripe, self.checksum.of(&parity));
            parities.push((stripe, parity));
        }
        if !is_any {
            // Else a scrub would find the medium not to hold what memory says.
            self.write_marks(inner)?;
            return Ok(0);
        }
        self.publish(inner, &parities, covered, &SITES)
    }

    /// Notes that a stripe cannot be covered because of these pages.
    fn leave_alone(&self, inner: &mut Inner, stripe: u64, read: &Stripe, bad: &[usize]) {
        for &nth in bad {
            let page = read.pages[nth];
            self.note_damaged(inner, page);
            if inner.stuck.insert(page) {
                let (path, offset) = (self.path.display(), self.pages.begins_at() + page * PAGE);
                let what = if read.sums[nth].is_some() { "is damaged" } else { "cannot be read" };
                tracing::error!(%path, page, offset, "a page {what}, and parity cannot rebuild it");
            }
        }
        if !read.is_there(None) {
            let alone = inner.left_alone.entry(stripe).or_default();
            alone.pause = (2 * alone.pause).clamp(1, LeftAlone::MOST);
            alone.left = alone.pause + 1;
        }
    }

    /// Writes marks of what cannot be covered, if there are new ones.
    pub(super) fn write_marks(&self, inner: &mut Inner) -> Result<()> {
        let any = inner.tables.write(&self.side)?;
        if any { self.medium.fence(barriers::COVER_MARKS, &[&self.side]) } else { Ok(()) }
    }

    /// Makes durable what pages hold, then the parity and the checksums that speak of it, then that these do: in that
    /// order a crash leaves the marks, or what they say no longer.
    pub(super) fn publish(
        &self,
        inner: &mut Inner,
        parities: &[(u64, Vec<u8>)],
        mut covered: Vec<u64>,
        sites: &Sites,
    ) -> Result<u64> {
        self.pages.sync(sites.data)?;
        self.make_room(inner, parities.iter().map(|(stripe, _)| *stripe))?;
        for (stripe, parity) in parities {
            self.side.write_anew(self.geometry.parity_at(*stripe), parity)?;
        }
        inner.tables.write(&self.side)?;
        if self.mode.is_announced() && !self.of_sidecar {
            // What was announced and is made has not changed the file's time since.
            inner.superblock.stamp = self.pages.stamp()?;
            if inner.is_quiet() {
                inner.superblock.left = Left::Announced;
            }
            self.write_superblock(inner, sites.tables)?;
        }
        self.medium.fence(sites.tables, &[&self.side])?;
        // What came up as stored to since it was read keeps its mark, and is covered by the next pass.
        covered.retain(|page| !inner.stored.has(*page));
        for &page in &covered {
            inner.unknown.remove(&page);
            inner.tables.set_uncovered(page, false);
            inner.uncovered_since.covered(page);
        }
        inner.tables.write(&self.side)?;
        self.medium.fence(sites.marks, &[&self.side])?;
        if self.mode.is_announced() {
            self.note_count(inner);
        }
        Ok(covered.len() as u64)
    }

    /// Restores a page that was not stored to and differs all the same, before its stripe gets other parity. That can
    /// be done where it is the only one and the others have the bytes that the old parity speaks of.
    pub(super) fn restore(&self, inner: &mut Inner, stripe: u64, read: &mut Stripe, bad: &[usize]) -> Result<bool> {
        let [nth] = bad else { return Ok(false) };
        if !inner.mends {
            return Ok(false);
        }
        let page = read.pages[*nth];
        let Some(bytes) = self.rebuild(inner, stripe, read, *nth)? else { return Ok(false) };
        if self.put_back(inner, &[(page, bytes.clone())], &[])?.is_empty() {
            return Ok(false);
        }
        read.replace(*nth, &bytes, inner.tables.sum(page));
        tracing::warn!(path = %self.path.display(), page, "repaired a damaged page from parity");
        self.notify_page(page);
        Ok(true)
    }
}
