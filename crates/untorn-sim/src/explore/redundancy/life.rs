//! A life of a machine with a protected file.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use untorn::redundancy::{Damage, ProtectOptions, Protected, StripeLayout};
use untorn::testing::storage::{Access, Barrier, Medium, MediumClass, MediumFile};

use super::super::companion::{self, PATH};
use super::super::finding::{Finding, Found, guarded, tried, wrong};
use super::super::life::{Pace, Paced, Plan, Subject};
use super::super::recorder::Point;
use super::super::search::Case;
use super::super::shared::Shared;
use super::check::{Expected, Memory, check, contents, damage, open};
use super::config::Config;
use super::ops::{Generator, LEN, Model, Op, PAGES, bytes_of, range};
use crate::file::SimFile;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

const SYNC: Barrier = Barrier::new("somebody-else.sync");

type Life<'a> = super::super::life::Life<'a, Config>;

const PACE: Pace =
    Pace { caps: &[16, 64], samples: &[8, 16, 32], afterlives: &[10, 40], creations: 8, tested: 5, ..Pace::USUAL };

impl Subject for Config {
    type Handle = (Protected, Arc<Memory>);
    type Model = Model;
    type Expected = Expected;
    type Script = Generator;

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        let medium = SimMedium::new(case.config.medium);
        let bytes: Vec<u8> = (0..PAGES).flat_map(|page| bytes_of(page, 0)).collect();
        medium.install(PATH, &bytes);
        PACE.run(case, shared, medium, Model::default())
    }

    fn inherit(_: &Life<'_>, expected: &Expected) -> Model {
        expected.model.clone()
    }

    /// The file is protected again, unless it is unknown here which pages are still damaged.
    fn begin(life: &mut Life<'_>, expected: &Expected, _killed: bool, mut rng: Rng) -> Found<Option<Plan<Generator>>> {
        let certain = expected.stored.is_empty() && expected.foreign.is_empty() && life.model.rotten.is_empty();
        if !certain || life.model.side_rotten {
            return check(life.config(), &life.medium, expected, &mut rng).map(|()| None);
        }
        let phases = rng.below(4);
        if rng.one_in(2) {
            life.look(expected)?;
        }
        life.protect(true, expected.unprotected)?;
        Ok(Some(Plan { script: life.config().script(rng), untested: 0, tested: phases }))
    }

    fn step(life: &mut Life<'_>, script: &mut Generator, tested: bool) -> Found<()> {
        let op = script.next(&life.model);
        life.operation(&op, script, tested)
    }

    /// An image of the same bytes may differ in the time of its files.
    fn digest(expected: &Expected, medium: &SimMedium) -> Found<u64> {
        let modified = tried("opening the file", || companion::modified(medium))?;
        Ok(expected.model.digest() ^ mix(modified))
    }

    fn recover(life: &Life<'_>, medium: &SimMedium, expected: &Expected, seed: u64) -> Found<()> {
        check(life.config(), medium, expected, &mut Rng::new(seed))
    }

    /// Continues with a tool that looks at the file, or with another life.
    fn after_kill(life: &Life<'_>, point: &Point, expected: &Expected, rng: &mut Rng) -> Found<()> {
        if point.decisive() && life.generation == 0 && rng.one_in(3) {
            let mut next = Life::new(life.context, point.state.killed(), expected.model.clone(), rng.next_u64());
            next.generation = life.context.effort.depth;
            return next.live(|life| life.look(expected).map(|()| None));
        }
        if !life.lives_on(rng) {
            return Ok(());
        }
        life.next_life(point.state.killed(), expected, true, rng.next_u64())
    }
}

impl Paced for Config {
    fn create(life: &mut Life<'_>, tested: bool) -> Found<()> {
        life.protect(tested, true)
    }

    fn script(&self, rng: Rng) -> Generator {
        Generator {
            rng,
            spread: self.layout == StripeLayout::Spread,
            fails: self.medium == MediumClass::Block && !self.is_tracked() && !self.canary,
            synchronous: self.is_synchronous(),
            rots: !self.canary,
        }
    }
}

impl Life<'_> {
    fn expected(&self) -> Expected {
        let model = self.model.clone();
        Expected { model, stored: BTreeSet::new(), failed: false, foreign: BTreeSet::new(), unprotected: false }
    }

    /// Opens the file, which may not be protected yet.
    fn protect(&mut self, tested: bool, unprotected: bool) -> Found<()> {
        self.log.push("open".to_owned());
        self.recorder.arm(tested);
        let during = Expected { unprotected, ..self.expected() };
        self.open()?;
        self.crash(&during, &self.expected())?;
        self.recorder.arm(tested);
        self.cover()?;
        self.crash(&self.expected(), &self.expected())
    }

    fn open(&mut self) -> Found<()> {
        self.handle = Some(tried("opening", || open(self.config(), &self.medium))?);
        Ok(())
    }

    fn protected(&self) -> &Protected {
        &self.handle().0
    }

    fn cover(&mut self) -> Found<()> {
        tried("covering", || self.protected().sync())?;
        self.covered()
    }

    /// After a pass, the pages that were stored to are covered, except in stripes with damage that cannot be
    /// repaired.
    fn covered(&mut self) -> Found<()> {
        let coverage = tried("reading the coverage", || self.protected().coverage())?;
        if coverage.uncovered > 0 && self.model.is_repairable() {
            return wrong(format!("after a whole pass, some pages are not covered: {coverage:?}"));
        }
        self.model.fresh.clear();
        if coverage.uncovered > 0 {
            // They stay so: nothing near them is calm.
            self.model.fresh.extend(0..PAGES);
        }
        self.settle();
        Ok(())
    }

    /// Forgets the damage of pages that have their bytes again.
    fn settle(&mut self) {
        let now = contents(&self.medium);
        self.model.rotten.retain(|page, truth| now[*page as usize] != *truth);
        let rotten = &self.model.rotten;
        self.model.hopeless.retain(|page| rotten.contains_key(page));
    }

    fn file(&self) -> Found<SimFile> {
        tried("opening the file", || self.medium.open(Path::new(PATH), Access::ReadWrite, LEN as u64))
    }

    fn operation(&mut self, op: &Op, generator: &mut Generator, tested: bool) -> Found<()> {
        self.recorder.arm(tested);
        self.log.push(op.to_string());
        let mut during = self.expected();
        let failed = |error: untorn::Error| Finding::new(format!("{op} failed: {error}"));
        match op {
            Op::Store(pages) => {
                let before = self.model.hopeless.clone();
                for (page, _) in pages {
                    during.stored.insert(*page);
                    let stripe = generator.stripe_of(*page);
                    let near = |other: &u64| generator.stripe_of(*other) == stripe && other != page;
                    let hopeless: Vec<u64> = self.model.rotten.keys().copied().filter(near).collect();
                    self.model.hopeless.extend(hopeless);
                }
                // A damaged page beside a page that is being stored to may already have any content.
                during.model.hopeless = self.model.hopeless.clone();
                during.model.hopeless.extend(during.stored.iter().filter(|page| self.model.rotten.contains_key(page)));
                if self.config().is_synchronous() {
                    // Once it is made, the difference is in the parity, and the damaged page still is too.
                    self.model.hopeless = before;
                }
                self.store(pages).map_err(failed)?;
                for (page, _) in pages {
                    self.model.rotten.remove(page);
                    self.model.hopeless.remove(page);
                    self.model.fresh.insert(*page);
                }
                if self.config().is_synchronous() {
                    self.covered()?;
                }
            }
            Op::Cover => self.cover()?,
            Op::CoverFails(nth) => {
                self.without_a_flush(op, *nth, |life| guarded("covering", || life.protected().sync()))?;
                self.let_go()?;
                // A table block may be torn, and with it what is known of the pages in it.
                during.model.hopeless.extend(self.model.rotten.keys());
                self.reopen(false)?;
            }
            Op::StoreFails(nth, page, tag) => {
                during.stored.insert(*page);
                during.failed = true;
                self.without_a_flush(op, *nth, |life| {
                    let result = guarded("storing", || life.store(&[(*page, *tag)]))?;
                    // The next call reports a failure of covering.
                    Ok(result.and_then(|()| life.protected().coverage().map(drop)))
                })?;
                self.let_go()?;
                // A table block may be torn, and with it what is known of the pages in it.
                during.model.hopeless.extend(self.model.rotten.keys());
                self.model.rotten.remove(page);
                self.model.hopeless.remove(page);
                self.reopen(false)?;
            }
            Op::Rot(page) => {
                let truth = contents(&self.medium)[*page as usize].clone();
                damage(&self.medium, *page, &mut generator.rng);
                self.model.rotten.insert(*page, truth);
                // It comes between two operations.
                during = self.expected();
            }
            Op::RotSide(page) => {
                let name = companion::path(&self.medium).map_err(failed)?.unwrap_or_default();
                let at = page * 4096 + generator.rng.below(4096);
                let byte = self.medium.peek(&name).and_then(|bytes| bytes.get(at as usize).copied());
                if let Some(byte) = byte {
                    self.medium.rot(&name, at, &[byte ^ 1 << generator.rng.below(8)]);
                    self.model.side_rotten = true;
                }
                during = self.expected();
            }
            Op::Scrub => self.scrub()?,
            Op::Repair => self.repair()?,
            Op::Reopen { clean } => {
                if !clean && self.config().is_tracked() {
                    // From here on it is unknown whether they are damaged.
                    during.model.hopeless.extend(self.model.rotten.keys());
                }
                self.reopen(*clean)?;
            }
            Op::ThereAndBack(page) => {
                during.stored.insert(*page);
                let held = contents(&self.medium)[*page as usize].clone();
                let other: Vec<u8> = held.iter().map(|byte| !byte).collect();
                self.store_bytes(*page, &other).map_err(failed)?;
                self.store_bytes(*page, &held).map_err(failed)?;
                self.reopen(false)?;
                self.reopen(true)?;
            }
            Op::Stick(page, other, tag) => {
                let truth = contents(&self.medium)[*page as usize].clone();
                damage(&self.medium, *page, &mut generator.rng);
                self.model.rotten.insert(*page, truth);
                self.model.hopeless.insert(*page);
                during = Expected { stored: BTreeSet::from([*other]), ..self.expected() };
                if self.config().is_synchronous() {
                    // With synchronous covering, this page is not beyond repair.
                    self.model.hopeless.remove(page);
                }
                for tag in [*tag, 1 - tag.min(&1)] {
                    self.store(&[(*other, tag)]).map_err(failed)?;
                    self.model.fresh.insert(*other);
                    self.cover()?;
                }
            }
            Op::Foreign(page, tag) => {
                self.end(true)?;
                self.crash(&during, &self.expected())?;
                // A power cut that takes the file's time and not the bytes makes a lost write of it, by all that can
                // be told: no crash here.
                let file = self.file()?;
                file.allocate(range(*page).start as u64, range(*page).len() as u64).map_err(failed)?;
                file.store(range(*page).start as u64, &bytes_of(*page, *tag)).map_err(failed)?;
                file.flush(SYNC, 0, LEN as u64);
                file.sync(SYNC).map_err(failed)?;
                drop(file);
                during.foreign.insert(*page);
                self.recorder.arm(tested);
                self.reopen(true)?;
            }
        }
        self.crash(&during, &self.expected())
    }

    fn store(&self, pages: &[(u64, u64)]) -> untorn::Result<()> {
        pages.iter().try_for_each(|(page, tag)| self.store_bytes(*page, &bytes_of(*page, *tag)))
    }

    /// Stores as the program does: it announces each store first, except for the canary that must be convicted.
    fn store_bytes(&self, page: u64, bytes: &[u8]) -> untorn::Result<()> {
        let file = self.medium.open(Path::new(PATH), Access::ReadWrite, LEN as u64)?;
        let (protected, memory) = self.handle();
        let at = range(page);
        let told = !self.config().is_tracked() && !self.config().canary;
        let stores = if told { Some(protected.announce(at.start as u64..at.end as u64)?) } else { None };
        memory.note(page);
        // A store to a hole of persistent memory finds no space otherwise.
        file.allocate(at.start as u64, at.len() as u64)?;
        file.store(at.start as u64, bytes)?;
        drop(stores);
        Ok(())
    }

    fn end(&mut self, clean: bool) -> Found<()> {
        match self.handle.take() {
            Some((protected, _)) if clean => {
                tried("closing", || protected.close())?;
                self.settle();
            }
            handle => drop(handle),
        }
        Ok(())
    }

    fn reopen(&mut self, clean: bool) -> Found<()> {
        let forgets = !clean && self.handle.is_some() && self.config().is_tracked();
        self.end(clean)?;
        self.open()?;
        let coverage = tried("reading the coverage", || self.protected().coverage())?;
        // They are covered as they are from now on.
        self.model.rotten.retain(|page, _| forgets || !coverage.unknown.contains(page));
        self.model.hopeless.retain(|page| forgets || !coverage.unknown.contains(page));
        if forgets {
            if let Some(page) = self.model.rotten.keys().find(|page| !coverage.unknown.contains(page))
                && self.model.is_repairable()
            {
                return wrong(format!("damaged page {page} was accepted as valid after a crash"));
            }
            self.model.rotten.clear();
            self.model.hopeless.clear();
        }
        self.cover()
    }

    fn scrub(&mut self) -> Found<()> {
        let report = tried("scrubbing", || self.protected().scrub())?;
        let mut found = BTreeSet::new();
        for damage in &report.damage {
            match damage {
                Damage::Page(range) => drop(found.insert(range.offset / 4096)),
                other if !self.model.side_rotten => {
                    return wrong(format!("without a crash, the scrub reported {other:?}"));
                }
                _ => {}
            }
        }
        let rotten: BTreeSet<u64> = self.model.rotten.keys().copied().collect();
        if found != rotten && !(self.model.side_rotten && found.is_subset(&rotten)) {
            return wrong(format!("without a crash, the scrub reported pages {found:?} as damaged, not {rotten:?}"));
        }
        Ok(())
    }

    fn repair(&mut self) -> Found<()> {
        let before = contents(&self.medium);
        let report = tried("repairing", || self.protected().repair())?;
        let after = contents(&self.medium);
        let touched = (0..PAGES).filter(|page| before[*page as usize] != after[*page as usize]);
        if touched.clone().any(|page| self.model.rotten.get(&page) != Some(&after[page as usize])) {
            return wrong(format!("without a crash, a repair changed undamaged pages: {report:?}"));
        }
        if !report.lost.is_empty() && (touched.count() > 0 || self.model.is_repairable()) {
            return wrong(format!(
                "without a crash, a repair reported lost pages wrongly, or changed pages anyway: {report:?}"
            ));
        }
        self.settle();
        if report.lost.is_empty() {
            if !self.model.rotten.is_empty() && self.model.is_repairable() {
                return wrong(format!("without a crash, a repair left damage: {report:?}"));
            }
            // Skipped pages may still be damaged.
            self.model.side_rotten &= report.scrub.skipped > 0;
        }
        Ok(())
    }

    /// A tool scrubs and repairs the file before a process protects it again.
    fn look(&mut self, expected: &Expected) -> Found<()> {
        if companion::path(&self.medium).map_or(true, |found| found.is_none()) {
            return Ok(());
        }
        self.log.push("scrub and repair by a tool".to_owned());
        self.recorder.arm(true);
        tried("scrubbing and repairing", || {
            let looked = ProtectOptions::new().look_on(self.medium.clone(), PATH)?;
            looked.repair()?;
            looked.scrub()
        })?;
        self.crash(expected, expected)
    }
}
