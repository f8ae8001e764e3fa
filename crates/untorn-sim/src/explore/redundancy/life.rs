//! One life of a machine with a protected file: a script of operations, crashed everywhere.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use untorn::redundancy::{Damage, ProtectOptions, Protected};
use untorn::testing::storage::{Access, Barrier, Medium, MediumClass, MediumFile};

use super::super::life::{Effort, Finding, Found, describe, guarded};
use super::super::recorder::{Point, Recorder};
use super::super::scripted::Case;
use super::super::shared::Shared;
use super::check::{Expected, Memory, PATH, check, companion, contents, damage, open};
use super::config::Config;
use super::ops::{Generator, LEN, Model, Op, PAGES, bytes_of, range};
use crate::choice::Choice;
use crate::file::SimFile;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

const SYNC: Barrier = Barrier::new("somebody-else.sync");

/// The data that every life of a case shares.
struct Context<'a> {
    config: Config,
    muted: Option<Barrier>,
    effort: Effort,
    shared: &'a Shared,
}

struct Life<'a> {
    context: &'a Context<'a>,
    medium: SimMedium,
    recorder: Arc<Recorder>,
    protected: Option<(Protected, Arc<Memory>)>,
    model: Model,
    seed: u64,
    generation: u32,
    phases: u64,
    log: Vec<String>,
}

/// Runs a case to its first violation.
pub(super) fn run(case: &Case<Config>, shared: &Shared) -> Option<Box<Finding>> {
    let mut rng = Rng::derive(case.seed, 1);
    let effort = Effort {
        cap: *rng.pick(&[16, 64]),
        samples: *rng.pick(&[8, 16, 32]),
        afterlife: *rng.pick(&[10, 40]),
        depth: 2,
    };
    let context = Context { config: case.config, muted: case.muted, effort, shared };
    let medium = SimMedium::new(case.config.medium);
    let bytes: Vec<u8> = (0..PAGES).flat_map(|page| bytes_of(page, 0)).collect();
    medium.install(PATH, &bytes);
    let mut life = Life::new(&context, medium, case.seed);
    let creation = rng.one_in(8);
    let (before, after) = (rng.below(8), 1 + rng.below(5));
    let result = life.begin(creation, true).and_then(|()| life.play(rng, before, after));
    life.report(result).err()
}

impl<'a> Life<'a> {
    fn new(context: &'a Context<'a>, medium: SimMedium, seed: u64) -> Self {
        if let Some(barrier) = context.muted {
            medium.mutate(barrier);
        }
        let recorder = Recorder::attach(&medium);
        let (protected, model, log) = (None, Model::default(), Vec::new());
        Life { context, medium, recorder, protected, model, seed, generation: 0, phases: 0, log }
    }

    /// Puts the operations of this life in front of what a finding says already.
    fn report<T>(&mut self, result: Found<T>) -> Found<T> {
        result.map_err(|mut finding| {
            finding.operations.extend(self.log.drain(..).rev());
            finding
        })
    }

    fn expected(&self) -> Expected {
        let model = self.model.clone();
        Expected { model, stored: BTreeSet::new(), failed: false, foreign: BTreeSet::new(), unprotected: false }
    }

    /// Opens the file, which may not be protected yet.
    fn begin(&mut self, tested: bool, unprotected: bool) -> Found<()> {
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
        let opened = guarded("opening", || open(&self.context.config, &self.medium))?;
        self.protected = Some(opened.map_err(|error| Finding::new(format!("opening failed: {error}")))?);
        Ok(())
    }

    fn protected(&self) -> &Protected {
        &self.protected.as_ref().expect("the file is protected while a script runs").0
    }

    fn cover(&mut self) -> Found<()> {
        let covered = guarded("covering", || self.protected().sync())?;
        covered.map_err(|error| Finding::new(format!("covering failed: {error}")))?;
        self.covered()
    }

    /// After a pass, the pages that were stored to are covered, except in stripes with damage that cannot be
    /// repaired.
    fn covered(&mut self) -> Found<()> {
        let coverage = self
            .protected()
            .coverage()
            .map_err(|error| Finding::new(format!("reading the coverage failed: {error}")))?;
        if coverage.uncovered > 0 && self.model.is_repairable() {
            return Err(Finding::new(format!("after a whole pass, some pages are not covered: {coverage:?}")));
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

    /// Runs random steps, the first of them without crashes.
    fn play(&mut self, rng: Rng, untested: u64, tested: u64) -> Found<()> {
        let config = self.context.config;
        let mut generator = Generator {
            rng,
            spread: config.layout == untorn::redundancy::StripeLayout::Spread,
            fails: config.medium == MediumClass::Block && !config.is_tracked() && !config.canary,
            synchronous: config.is_synchronous(),
            rots: !config.canary,
        };
        for step in 0..untested + tested {
            if self.context.shared.stopped() {
                break;
            }
            let op = generator.next(&self.model);
            self.operation(&op, &mut generator, step >= untested)?;
        }
        self.recorder.arm(false);
        self.protected = None;
        self.faults(&self.medium)
    }

    fn file(&self) -> Found<SimFile> {
        let opened = self.medium.open(Path::new(PATH), Access::ReadWrite, LEN as u64);
        opened.map_err(|error| Finding::new(format!("opening the file failed: {error}")))
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
                if self.context.config.is_synchronous() {
                    // Once it is made, the difference is in the parity, and the damaged page still is too.
                    self.model.hopeless = before;
                }
                self.store(pages).map_err(failed)?;
                for (page, _) in pages {
                    self.model.rotten.remove(page);
                    self.model.hopeless.remove(page);
                    self.model.fresh.insert(*page);
                }
                if self.context.config.is_synchronous() {
                    self.covered()?;
                }
            }
            Op::Cover => self.cover()?,
            Op::CoverFails(nth) => {
                self.recorder.trip(*nth, mix(self.seed ^ mix(self.phases)));
                let result = guarded("covering", || self.protected().sync())?;
                if result.is_ok() == self.recorder.tripped() {
                    return Err(Finding::new(format!(
                        "{op}: the result does not match whether the flush failed: {result:?}"
                    )));
                }
                self.protected = None;
                // A table block may be torn, and with it what is known of the pages in it.
                during.model.hopeless.extend(self.model.rotten.keys());
                self.reopen(false)?;
            }
            Op::StoreFails(nth, page, tag) => {
                during.stored.insert(*page);
                during.failed = true;
                self.recorder.trip(*nth, mix(self.seed ^ mix(self.phases)));
                let result = guarded("storing", || self.store(&[(*page, *tag)]))?;
                // The next call reports a failure of covering.
                let result = result.and_then(|()| self.protected().coverage().map(drop));
                if result.is_ok() == self.recorder.tripped() {
                    return Err(Finding::new(format!(
                        "{op}: the result does not match whether the flush failed: {result:?}"
                    )));
                }
                self.protected = None;
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
                let name = companion(&self.medium).map_err(failed)?.unwrap_or_default();
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
                if !clean && self.context.config.is_tracked() {
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
                if self.context.config.is_synchronous() {
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
        let (protected, memory) = self.protected.as_ref().expect("the file is protected while a script runs");
        let at = range(page);
        let told = !self.context.config.is_tracked() && !self.context.config.canary;
        let stores = if told { Some(protected.announce(at.start as u64..at.end as u64)?) } else { None };
        memory.note(page);
        file.store(at.start as u64, bytes)?;
        drop(stores);
        Ok(())
    }

    fn end(&mut self, clean: bool) -> Found<()> {
        let Some((protected, _)) = self.protected.take() else { return Ok(()) };
        if clean {
            let closed = guarded("closing", || protected.close())?;
            closed.map_err(|error| Finding::new(format!("closing failed: {error}")))?;
            self.settle();
        }
        Ok(())
    }

    fn reopen(&mut self, clean: bool) -> Found<()> {
        let forgets = !clean && self.protected.is_some() && self.context.config.is_tracked();
        self.end(clean)?;
        self.open()?;
        let coverage = self
            .protected()
            .coverage()
            .map_err(|error| Finding::new(format!("reading the coverage failed: {error}")))?;
        // They are covered as they are from now on.
        self.model.rotten.retain(|page, _| forgets || !coverage.unknown.contains(page));
        self.model.hopeless.retain(|page| forgets || !coverage.unknown.contains(page));
        if forgets {
            if let Some(page) = self.model.rotten.keys().find(|page| !coverage.unknown.contains(page))
                && self.model.is_repairable()
            {
                return Err(Finding::new(format!("damaged page {page} was accepted as valid after a crash")));
            }
            self.model.rotten.clear();
            self.model.hopeless.clear();
        }
        self.cover()
    }

    fn scrub(&mut self) -> Found<()> {
        let report = guarded("scrubbing", || self.protected().scrub())?;
        let report = report.map_err(|error| Finding::new(format!("scrubbing failed: {error}")))?;
        let mut found = BTreeSet::new();
        for damage in &report.damage {
            match damage {
                Damage::Page(range) => drop(found.insert(range.offset / 4096)),
                other if !self.model.side_rotten => {
                    return Err(Finding::new(format!("without a crash, the scrub reported {other:?}")));
                }
                _ => {}
            }
        }
        let rotten: BTreeSet<u64> = self.model.rotten.keys().copied().collect();
        if found != rotten && !(self.model.side_rotten && found.is_subset(&rotten)) {
            return Err(Finding::new(format!(
                "without a crash, the scrub reported pages {found:?} as damaged, not {rotten:?}"
            )));
        }
        Ok(())
    }

    fn repair(&mut self) -> Found<()> {
        let before = contents(&self.medium);
        let report = guarded("repairing", || self.protected().repair())?;
        let report = report.map_err(|error| Finding::new(format!("repairing failed: {error}")))?;
        let after = contents(&self.medium);
        let touched = (0..PAGES).filter(|page| before[*page as usize] != after[*page as usize]);
        if touched.clone().any(|page| self.model.rotten.get(&page) != Some(&after[page as usize])) {
            return Err(Finding::new(format!("without a crash, a repair changed undamaged pages: {report:?}")));
        }
        if !report.lost.is_empty() && (touched.count() > 0 || self.model.is_repairable()) {
            return Err(Finding::new(format!(
                "without a crash, a repair reported lost pages wrongly, or changed pages anyway: {report:?}"
            )));
        }
        self.settle();
        if report.lost.is_empty() {
            if !self.model.rotten.is_empty() && self.model.is_repairable() {
                return Err(Finding::new(format!("without a crash, a repair left damage: {report:?}")));
            }
            // Skipped pages may still be damaged.
            self.model.side_rotten &= report.scrub.skipped > 0;
        }
        Ok(())
    }

    /// Crashes the machine at every point recorded since the last call, and checks what is left.
    fn crash(&mut self, during: &Expected, after: &Expected) -> Found<()> {
        self.recorder.returned(&self.medium);
        self.recorder.arm(false);
        self.note_reached(&self.medium);
        self.faults(&self.medium)?;
        self.phases += 1;
        let Effort { cap, samples, .. } = self.context.effort;
        for (index, point) in (0_u64..).zip(self.recorder.take()) {
            let expected = if point.before.is_some() { during } else { after };
            let mut rng = Rng::new(mix(self.seed ^ mix(self.phases << 32 | index)));
            let (cap, samples) = if point.decisive() { (cap, samples) } else { (cap.min(8), samples.div_ceil(6)) };
            let choices: Vec<Choice> = match point.state.choices(cap) {
                Some(choices) => choices.collect(),
                None => {
                    let fixed = [point.state.everything(), point.state.nothing()];
                    fixed.into_iter().chain((0..samples).map(|_| point.state.sample(&mut rng))).collect()
                }
            };
            for choice in &choices {
                if self.context.shared.stopped() {
                    return Ok(());
                }
                let afterlife = self.lives_on(&mut rng);
                self.check(&point, choice, expected, afterlife).map_err(|finding| finding.at(&point, choice))?;
            }
            let tool = point.decisive() && self.generation == 0 && rng.one_in(3);
            if tool || self.lives_on(&mut rng) {
                let seed = rng.next_u64();
                self.after_kill(point.state.killed(), expected, seed, tool).map_err(|mut finding| {
                    finding.operations.push(format!("— all processes killed, {}", describe(&point)));
                    finding
                })?;
            }
        }
        Ok(())
    }

    /// Whether an image lives on; decided before anything is known of it, so that a replay decides alike.
    fn lives_on(&self, rng: &mut Rng) -> bool {
        let deep_enough = self.generation < self.context.effort.depth;
        rng.one_in(self.context.effort.afterlife << (2 * self.generation)) && deep_enough
    }

    fn check(&self, point: &Point, choice: &Choice, expected: &Expected, afterlife: bool) -> Found<()> {
        let image = point.state.image(choice);
        let digest = image.digest();
        let medium = image.boot();
        // An image of the same bytes may differ in the time of its files.
        let modified = self.modified(&medium)?;
        if !self.context.shared.note(digest, expected.model.digest() ^ mix(modified)) {
            return Ok(());
        }
        self.context.shared.recoveries.fetch_add(1, Ordering::Relaxed);
        let seed = mix(self.seed ^ choice.digest());
        if afterlife {
            return self.next_life(medium, expected, seed);
        }
        check(&self.context.config, &medium, expected, &mut Rng::new(seed))?;
        self.note_reached(&medium);
        self.faults(&medium)
    }

    fn modified(&self, medium: &SimMedium) -> Found<u64> {
        let stamp = medium.open(Path::new(PATH), Access::Read, 0).and_then(|file| file.stamp());
        stamp.map(|stamp| stamp.modified).map_err(|error| Finding::new(format!("the file cannot be opened: {error}")))
    }

    /// Continues after all processes were killed: with a tool that looks at the file, or with another life.
    fn after_kill(&self, medium: SimMedium, expected: &Expected, seed: u64, tool: bool) -> Found<()> {
        if !tool {
            return self.next_life(medium, expected, seed);
        }
        let mut life = Life::new(self.context, medium, seed);
        life.generation = self.context.effort.depth;
        let result = life.look(expected);
        life.report(result)
    }

    /// The file is protected again under the eyes of the recorder, so that this is crashed too, then a few more steps.
    fn next_life(&self, medium: SimMedium, expected: &Expected, seed: u64) -> Found<()> {
        let mut life = Life::new(self.context, medium, seed);
        life.generation = self.generation + 1;
        life.model = expected.model.clone();
        // Here it is unknown which pages are still damaged.
        let certain = expected.stored.is_empty() && expected.foreign.is_empty() && life.model.rotten.is_empty();
        if !certain || life.model.side_rotten {
            return check(&self.context.config, &life.medium, expected, &mut Rng::new(seed));
        }
        let mut rng = Rng::new(seed);
        let phases = rng.below(4);
        let looks = rng.one_in(2);
        let result = if looks { life.look(expected) } else { Ok(()) };
        let result =
            result.and_then(|()| life.begin(true, expected.unprotected)).and_then(|()| life.play(rng, 0, phases));
        life.report(result)
    }

    /// A tool scrubs and repairs the file before a process protects it again.
    fn look(&mut self, expected: &Expected) -> Found<()> {
        if companion(&self.medium).map_or(true, |found| found.is_none()) {
            return Ok(());
        }
        self.log.push("scrub and repair by a tool".to_owned());
        self.recorder.arm(true);
        let mended = guarded("looking", || {
            let looked = ProtectOptions::new().look_on(self.medium.clone(), PATH)?;
            looked.repair()?;
            looked.scrub()
        })?;
        mended.map_err(|error| Finding::new(format!("opening without changes failed: {error}")))?;
        self.crash(expected, expected)
    }

    fn note_reached(&self, medium: &SimMedium) {
        if let Some(barrier) = self.context.muted
            && medium.reached().contains(&barrier)
        {
            self.context.shared.reached.store(true, Ordering::Relaxed);
        }
    }

    fn faults(&self, medium: &SimMedium) -> Found<()> {
        match medium.faults().first() {
            Some(fault) => Err(Finding::new(format!("{fault}"))),
            None => Ok(()),
        }
    }
}
