//! Repair: pages from the parity of their stripe, parity and tables from the pages.
//!
//! A repair first checks everything. If a single page cannot be rebuilt, it changes nothing: a user with a backup may
//! want the file as it is.
//!
//! A repair on request also replaces unknown pages ([`Replaces::Modified`]). It follows the same invariants:
//!
//! 1. Parity vouches for a page if no other page of its stripe differs, and the rebuilt bytes match the checksum. The
//!    page then gets the bytes that it was last covered with.
//! 2. If parity cannot vouch for one page that differs, no page is replaced: a file of two versions helps nobody.
//! 3. A page is named in the superblock before it is replaced. After a crash it counts as damaged, so that any repair
//!    finishes what was requested. Pages that are neither named nor listed stay unknown.

use std::collections::BTreeSet;
use std::sync::MutexGuard;

use super::format::{Left, MAX_INTENTS};
use super::scrub::StripeFindings;
use super::table::Scope;
use super::update::Stripe;
use super::{Inner, Mode, Redundancy, barriers};
use super::{RepairReport, ScrubReport};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::options::Damage;
use crate::storage::{Barrier, Medium, MediumFile};

/// The pages that a repair may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replaces {
    /// Damaged pages.
    Damaged,
    /// Also pages that are [unknown](Inner::unknown): they may be what another program wrote.
    Modified,
}

/// What is to be written: pages, and parity of stripes.
struct Plan {
    pages: Vec<(u64, Vec<u8>)>,
    /// Those of them that were unknown.
    modified: BTreeSet<u64>,
    parities: Vec<(u64, Vec<u8>)>,
}

impl<M: Medium> Redundancy<M> {
    /// The state, unless something failed before.
    pub(super) fn usable(&self) -> Result<MutexGuard<'_, Inner>> {
        let inner = self.lock();
        self.unless_failed(&inner).map(|()| inner)
    }

    pub(super) fn unless_failed(&self, inner: &Inner) -> Result<()> {
        match &inner.failed {
            None => Ok(()),
            Some(cause) => Err(Error::Poisoned { path: self.path.clone(), cause: cause.clone() }),
        }
    }

    /// Passes a result on. After a failure on the way memory and medium may differ, so nothing more is done.
    pub(super) fn note_failure<T>(&self, inner: &mut Inner, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| inner.failed = Some(error.to_string()))
    }

    /// Refuses to repair a file whose engine goes by its time, which a repair changes.
    ///
    /// # Errors
    /// [`Error::Invalid`], if the file is only looked at and has an engine.
    pub(super) fn may_repair(&self) -> Result<()> {
        if self.has_engine && matches!(self.mode, Mode::Look | Mode::Report) {
            let what = "a repair changes the file's modification time, which its sidecar records; open it with its \
                        engine to repair it";
            return Err(Error::Invalid { path: self.path.clone(), what: what.to_owned() });
        }
        Ok(())
    }

    /// Refuses to replace modified pages where parity of this file alone cannot vouch for them.
    ///
    /// # Errors
    /// [`Error::Invalid`], if the file has an engine, or if this handle stores to it.
    pub(super) fn may_replace_modified(&self) -> Result<()> {
        let what = if !matches!(self.mode, Mode::Look) {
            "a handle that protects a file has accepted the pages that were modified before it opened the file; close \
             it, and run `untorn repair --force` before the next opening"
        } else if self.has_engine {
            "the file has a sidecar, and a page may have bytes in either of the two, so the parity of the data file \
             cannot vouch for a modified page; choose a version with `untorn recover --trust file` or `--trust sidecar`"
        } else {
            return Ok(());
        };
        Err(Error::Invalid { path: self.path.clone(), what: what.to_owned() })
    }

    /// Like [`repair_found`](Redundancy::repair_found), and replaces unknown pages too.
    ///
    /// # Errors
    /// As there.
    pub(super) fn repair_modified(&self, scrub: ScrubReport) -> Result<RepairReport> {
        self.repair_what(scrub, Replaces::Modified)
    }

    /// Repairs what a scrub of this very length has found. Nobody stores to damaged pages meanwhile, save who announces
    /// it.
    ///
    /// # Errors
    /// Those of reading, writing and flushing. That pages are lost is in the report.
    pub(super) fn repair_found(&self, scrub: ScrubReport) -> Result<RepairReport> {
        self.repair_what(scrub, Replaces::Damaged)
    }

    fn repair_what(&self, scrub: ScrubReport, replaces: Replaces) -> Result<RepairReport> {
        let mut inner = self.usable()?;
        let (mut report, plan) = self.plan(&inner, scrub, replaces)?;
        if report.lost.is_empty() && report.refused.is_empty() {
            let result = self.carry_out(&mut inner, &plan, &mut report);
            self.note_failure(&mut inner, result)?;
        }
        Ok(report)
    }

    /// Finds out what could not be repaired of what a scrub of this very length has found. Nothing is.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn assess_found(&self, scrub: ScrubReport) -> Result<RepairReport> {
        let inner = self.usable()?;
        self.plan(&inner, scrub, Replaces::Damaged).map(|(report, _)| report)
    }

    /// What is to be done about damage, and a report that says what cannot be.
    fn plan(&self, inner: &Inner, mut scrub: ScrubReport, replaces: Replaces) -> Result<(RepairReport, Plan)> {
        let mut report = RepairReport::default();
        let (mut pages, mut modified, mut parities) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut stripes: Vec<u64> = scrub
            .damage
            .iter()
            .filter_map(|damage| match damage {
                Damage::Page(range) => Some(self.geometry.stripe_of(range.offset / PAGE)),
                Damage::Unknown(range) if replaces == Replaces::Modified => {
                    Some(self.geometry.stripe_of(range.offset / PAGE))
                }
                Damage::Parity { stripe } => Some(*stripe),
                _ => None,
            })
            .collect();
        // Not by place, if the length changed meanwhile.
        stripes.sort_unstable();
        stripes.dedup();
        let mut doubted = BTreeSet::new();
        for stripe in stripes {
            let found = self.accuse(inner, stripe)?;
            doubted.extend(found.unknown.iter().filter(|page| !found.damaged.contains(page)));
            let mut read = self.read_stripe(stripe, true)?;
            self.take_back(inner, &mut read);
            let foreign = match replaces {
                Replaces::Damaged => Vec::new(),
                Replaces::Modified => self.modified(inner, &found, &read),
            };
            let wrong: Vec<u64> = found.damaged.iter().chain(&foreign).copied().collect();
            if let [page] = wrong[..]
                && let Some(nth) = read.pages.iter().position(|member| *member == page)
                && found.uncovered.iter().all(|other| *other != page && inner.before.contains_key(other))
                && (replaces == Replaces::Modified || found.unknown.is_empty())
                && !(found.unknown.contains(&page) && inner.tables.uncovered().has(page))
                && let Some(bytes) = self.rebuild(inner, stripe, &read, nth)?
            {
                read.replace(nth, &bytes, inner.tables.sum(page));
                pages.push((page, bytes));
                modified.extend(foreign);
            } else {
                report.lost.extend(found.damaged.iter().map(|page| self.range_of(*page)));
                report.refused.extend(foreign.iter().map(|page| self.range_of(*page)));
            }
            // Of bytes that are what their checksums speak of, though they were read anew and others may have come:
            // parity that is damaged can be made again, and what it would be made of otherwise would be gone for
            // good.
            let agrees = |nth: usize| read.sums[nth] == Some(inner.tables.sum(read.pages[nth]));
            if found.parity && found.damaged.is_empty() {
                if (0..read.pages.len()).all(agrees) {
                    parities.push((stripe, read.fold(None)));
                } else {
                    report.not_rebuilt.push(Damage::Parity { stripe });
                }
            }
        }
        for damage in &mut scrub.damage {
            // Somebody else wrote to the file since the scrub came by.
            if let Damage::Page(range) = *damage
                && doubted.contains(&(range.offset / PAGE))
            {
                *damage = Damage::Unknown(range);
            }
            if let Damage::Unknown(range) = damage {
                doubted.remove(&(range.offset / PAGE));
                report.unknown.push(*range);
            }
        }
        report.unknown.extend(doubted.into_iter().map(|page| self.range_of(page)));
        report.scrub = scrub;
        Ok((report, Plan { pages, modified, parities }))
    }

    /// The unknown pages of a stripe that differ from their checksums, and are not damaged besides.
    fn modified(&self, inner: &Inner, found: &StripeFindings, read: &Stripe) -> Vec<u64> {
        let differs = |page: &u64| {
            let nth = read.pages.iter().position(|member| member == page);
            nth.is_some_and(|nth| read.sums[nth] != Some(inner.tables.sum(*page)))
        };
        found.unknown.iter().filter(|page| !found.damaged.contains(page) && differs(page)).copied().collect()
    }

    fn carry_out(&self, inner: &mut Inner, plan: &Plan, report: &mut RepairReport) -> Result<()> {
        if plan.pages.len() > MAX_INTENTS && matches!(self.mode, Mode::Look) {
            self.list(inner, &plan.pages.iter().map(|(page, _)| *page).collect::<Vec<_>>())?;
        }
        let mut batches = plan.pages.chunks(MAX_INTENTS).peekable();
        while let Some(batch) = batches.next() {
            let next = batches.peek().copied().unwrap_or_default();
            let repaired = self.put_back(inner, batch, next)?;
            // What the device takes no other bytes for, or does not keep.
            let refused = batch.iter().filter(|(page, _)| inner.stuck.contains(page) && !repaired.contains(page));
            report.lost.extend(refused.map(|(page, _)| self.range_of(*page)));
            if matches!(self.mode, Mode::Look) {
                // What was left alone because somebody else has written to the file.
                let is_left = |page: &u64| !inner.stuck.contains(page) && !repaired.contains(page);
                let left = batch.iter().filter(|(page, _)| is_left(page) && !plan.modified.contains(page));
                report.unknown.extend(left.map(|(page, _)| self.range_of(*page)));
            }
            // At once: if a later part fails, there is no report.
            for page in repaired {
                if plan.modified.contains(&page) {
                    tracing::warn!(path = %self.path.display(), page, "replaced a modified page from parity");
                    report.replaced.push(self.range_of(page));
                } else {
                    tracing::warn!(path = %self.path.display(), page, "repaired a damaged page from parity");
                    report.repaired.push(self.range_of(page));
                }
            }
        }
        let replaced: BTreeSet<u64> = report.replaced.iter().map(|range| range.offset).collect();
        report.unknown.retain(|range| !replaced.contains(&range.offset));
        let (rebuilt, refused) = self.rebuild_side(inner, &plan.parities)?;
        report.rebuilt = rebuilt;
        report.not_rebuilt.extend(refused);
        for damage in &report.not_rebuilt {
            tracing::error!(path = %self.path.display(), ?damage, "cannot rebuild a damaged part of the redundancy \
                                                                   file");
        }
        self.forget_list(inner)
    }

    /// The bytes of a page, if the rest of its stripe and its parity give such that its checksum speaks of.
    pub(super) fn rebuild(&self, inner: &Inner, stripe: u64, read: &Stripe, nth: usize) -> Result<Option<Vec<u8>>> {
        let Some((mut bytes, sum)) = self.read_parity(stripe, true)? else { return Ok(None) };
        if sum != inner.tables.parity_sum(stripe) || !read.is_there(Some(nth)) {
            return Ok(None);
        }
        crate::simd::xor(&mut bytes, &read.fold(Some(nth)));
        let page = read.pages[nth];
        let (_, behind) = bytes.split_at(self.range_of(page).len as usize);
        let right = self.checksum.of(&bytes) == inner.tables.sum(page) && behind.iter().all(|&byte| byte == 0);
        Ok(right.then_some(bytes))
    }

    /// Writes the bytes of damaged pages in place, at most [`MAX_INTENTS`] of them. Which of them the medium has by
    /// then: one that is being stored to by now is left to whoever does, and covered as he leaves it; one that the
    /// medium did not take is [stuck](Inner::stuck). `next` are those that are to follow.
    pub(super) fn put_back(
        &self,
        inner: &mut Inner,
        pages: &[(u64, Vec<u8>)],
        next: &[(u64, Vec<u8>)],
    ) -> Result<Vec<u64>> {
        // Named pages are taken for damaged whatever the file's time is, so none is named that may have been written
        // to.
        if self.was_touched(inner)? {
            if !inner.superblock.intents.is_empty() {
                inner.superblock.intents.clear();
                self.write_superblocks(inner, barriers::REPAIR_DONE)?;
            }
            return Ok(Vec::new());
        }
        inner.superblock.intents = pages.iter().map(|(page, _)| *page).collect();
        let left = inner.superblock.left;
        if left == Left::Announced && self.mode.is_announced() {
            // Other pages may be damaged too, and are not named: a crash must not have the file's time speak against
            // them.
            inner.superblock.left = Left::Storing;
        }
        self.write_superblock(inner, barriers::REPAIR_INTENT)?;
        self.medium.fence(barriers::REPAIR_INTENT, &[&self.side])?;
        // The flush took its time, and a mapping may be stored to without a word.
        let stored = match &self.mode {
            Mode::Tracked(tracker) => tracker.look()?,
            _ => Vec::new(),
        };
        let mut repaired = Vec::new();
        for (page, bytes) in pages.iter().filter(|(page, _)| !stored.iter().any(|run| run.contains(page))) {
            let range = self.range_of(*page);
            // Each time, for the write before has changed the file's time itself.
            if self.was_touched(inner)? {
                break;
            }
            let written = self.pages.write(range.offset, &bytes[..range.len as usize]);
            if matches!(self.mode, Mode::Look) {
                inner.seen = self.pages.stamp()?;
            }
            // Of a short page a file system may have to read the rest of its block, and cannot.
            if written? {
                repaired.push(*page);
            } else {
                tracing::error!(path = %self.path.display(), page, "cannot write a rebuilt page");
                inner.stuck.insert(*page);
            }
        }
        self.pages.sync(barriers::REPAIR_DATA)?;
        let repaired = self.that_took(inner, repaired)?;
        // The medium has the bytes that their checksums are of.
        for page in &repaired {
            inner.unknown.remove(page);
        }
        inner.superblock.intents.clear();
        inner.superblock.left = left;
        let was_touched = self.was_touched(inner)?;
        if inner.superblock.left != Left::Tracked && inner.unknown.is_empty() && !was_touched {
            // All other pages are known to be as they were, so the time that only this repair changed is believed
            // again.
            inner.superblock.stamp = if matches!(self.mode, Mode::Look) { inner.seen } else { self.pages.stamp()? };
        } else if !was_touched {
            // The time stays in doubt, and with it all that is not named: also those whose turn has not come yet.
            inner.superblock.intents = next.iter().map(|(page, _)| *page).collect();
        }
        let history = &mut inner.superblock.history;
        history.repaired = history.repaired.saturating_add(repaired.len() as u64);
        for page in &repaired {
            inner.stuck.remove(page);
            inner.notified.remove(page);
            inner.left_alone.remove(&self.geometry.stripe_of(*page));
        }
        self.write_superblocks(inner, barriers::REPAIR_DONE)?;
        Ok(repaired)
    }

    /// Of pages that were written and flushed, those of which the medium has the bytes. The flush says only that the
    /// device took them; one that loses writes says so too, and the cache would show what was written. They are read
    /// as a scrub reads them: whoever is told of a repair is told of what the next scrub finds.
    fn that_took(&self, inner: &mut Inner, written: Vec<u64>) -> Result<Vec<u64>> {
        let mut held = [0; PAGE as usize];
        let mut differing = Vec::new();
        for &page in &written {
            if self.read_stored(page, &mut held)? != Some(inner.tables.sum(page)) {
                differing.push(page);
            }
        }
        if differing.is_empty() {
            return Ok(written);
        }
        // Asked after the reading, as for an accusation: what was stored to meanwhile differs for that.
        let stored = match &self.mode {
            Mode::Tracked(tracker) => tracker.look()?,
            _ if self.was_touched(inner)? => written.iter().map(|page| *page..page + 1).collect(),
            _ => Vec::new(),
        };
        for page in differing.iter().filter(|page| !stored.iter().any(|run| run.contains(page))) {
            tracing::error!(path = %self.path.display(), page, "a rebuilt page was written, but the medium returns \
                                                                other bytes");
            inner.stuck.insert(*page);
        }
        Ok(written.into_iter().filter(|page| !differing.contains(page)).collect())
    }

    /// Writes both copies of the superblock, one after the other: damage to one of them then costs nothing.
    pub(super) fn write_superblocks(&self, inner: &mut Inner, barrier: Barrier) -> Result<()> {
        self.write_superblock(inner, barrier)?;
        self.medium.fence(barrier, &[&self.side])?;
        self.write_superblock(inner, barrier)?;
        self.medium.fence(barrier, &[&self.side])
    }

    /// Writes the next version of the superblock over the older copy; the next fence makes it durable. The other copy
    /// is seen to first: a tear of this one must not meet one that was damaged since.
    pub(super) fn write_superblock(&self, inner: &mut Inner, barrier: Barrier) -> Result<()> {
        if inner.superblock.seq > 0 && !inner.superblock.is_whole(&self.side)? {
            inner.superblock.rewrite(&self.side)?;
            self.medium.fence(barrier, &[&self.side])?;
        }
        inner.superblock.write(&self.side)?;
        inner.superblocks = [true; 2];
        Ok(())
    }

    /// Writes parity pages anew, and copies of tables and of the superblock that are not whole. How many the medium
    /// has by then, and which it does not.
    fn rebuild_side(&self, inner: &mut Inner, parities: &[(u64, Vec<u8>)]) -> Result<(u64, Vec<Damage>)> {
        self.make_room(inner, parities.iter().map(|(stripe, _)| *stripe))?;
        for (stripe, parity) in parities {
            inner.tables.set_parity_sum(*stripe, self.checksum.of(parity));
            // What is not taken is not read either.
            let _ = self.side.write_anew_unless_bad(self.geometry.parity_at(*stripe), parity)?;
        }
        let damaged = self.damaged_tables(inner)?;
        // Where both copies are, what is in memory is written over one of them, and over the other when that is
        // durable.
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for &(block, copy) in &damaged {
            // After a crash the damaged copy may have been the newer one, with marks that the other has not. Once
            // both are whole nothing says so any more, so what was found to differ is marked.
            if inner.superblock.left != Left::Closed
                && let Scope::Pages(pages) = inner.tables.scope(block)
            {
                for page in pages.filter(|page| inner.unknown.contains(page)) {
                    inner.tables.set_uncovered(page, true);
                }
            }
            let is_first = first.last().is_none_or(|(before, _)| *before != block);
            if is_first { first.push((block, copy)) } else { second.push((block, copy)) }
        }
        inner.damaged.clear();
        let superblocks = inner.superblocks.iter().filter(|whole| !**whole).count();
        let all = parities.len() + damaged.len() + superblocks;
        if all == 0 {
            return Ok((0, Vec::new()));
        }
        for copies in [first, second] {
            copies.iter().for_each(|(block, copy)| inner.tables.replace(*block, *copy));
            inner.tables.write(&self.side)?;
            self.medium.fence(barriers::REPAIR_SIDE, &[&self.side])?;
        }
        if matches!(self.mode, Mode::Look) {
            inner.tables.write_twins(&self.side)?;
        }
        self.write_superblocks(inner, barriers::REPAIR_SIDE)?;
        let refused = self.side_that_did_not_take(inner, parities)?;
        Ok((all.saturating_sub(refused.len()) as u64, refused))
    }

    /// Of what was written to the companion file and flushed, what the medium does not have, as of
    /// [pages](Redundancy::that_took).
    fn side_that_did_not_take(&self, inner: &mut Inner, parities: &[(u64, Vec<u8>)]) -> Result<Vec<Damage>> {
        let mut refused = Vec::new();
        for &(stripe, _) in parities {
            let held = self.read_parity(stripe, true)?;
            if held.is_none_or(|(_, sum)| sum != inner.tables.parity_sum(stripe)) {
                refused.push(Damage::Parity { stripe });
            }
        }
        let tables = inner.tables.damaged(&self.side)?;
        refused
            .extend(tables.iter().map(|(block, copy)| Damage::Table { offset: self.geometry.block_at(*block, *copy) }));
        if matches!(self.mode, Mode::Look) {
            // The next scrub by this handle goes by it.
            inner.damaged = tables;
        }
        inner.superblocks = inner.superblock.whole_copies(&self.side)?;
        let superblocks = (0_u64..).zip(inner.superblocks).filter(|(_, whole)| !whole);
        refused.extend(superblocks.map(|(copy, _)| Damage::Table { offset: copy * PAGE }));
        Ok(refused)
    }
}
