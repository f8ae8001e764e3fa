//! One life of a machine with a region store: a script of operations, crashed everywhere; what each crash leaves is
//! recovered and checked, and now and then lives on, to be crashed again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use untorn::testing::storage::{Barrier, Medium, MediumClass};

use super::super::life::{Effort, Finding, Found, describe, guarded};
use super::super::recorder::{Point, Recorder};
use super::super::scripted::Case;
use super::super::shared::{Shared, digest};
use super::config::Config;
use super::ops::{Generator, Model, Op, State};
use super::subject::{PATH, Subject};
use crate::choice::Choice;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

/// The states that a crash may leave.
#[derive(Clone, Debug, Hash)]
struct Allowed {
    states: Vec<State>,
    /// No store at all.
    missing: bool,
}

impl Allowed {
    fn one(state: &State) -> Self {
        Allowed { states: vec![state.clone()], missing: false }
    }

    fn digest(&self) -> u64 {
        digest(self)
    }

    fn difference(&self, found: &State) -> Option<String> {
        (!self.states.contains(found))
            .then(|| format!("differs from every allowed state: {found:?}, not {:?}", self.states))
    }
}

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
    subject: Option<Subject>,
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
        cap: *rng.pick(&[16, 64, 256]),
        samples: *rng.pick(&[8, 16, 48]),
        afterlife: *rng.pick(&[10, 40, 150]),
        depth: 2,
    };
    let context = Context { config: case.config, muted: case.muted, effort, shared };
    let mut life = Life::new(&context, SimMedium::new(case.config.medium), case.seed);
    let creation = rng.one_in(12);
    let (before, after) = (rng.below(8), 1 + rng.below(4));
    let result = life.create(creation).and_then(|()| life.play(rng, before, after));
    life.report(result).err()
}

impl<'a> Life<'a> {
    fn new(context: &'a Context<'a>, medium: SimMedium, seed: u64) -> Self {
        if let Some(barrier) = context.muted {
            medium.mutate(barrier);
        }
        let recorder = Recorder::attach(&medium);
        let (subject, model, log) = (None, Model::default(), Vec::new());
        Life { context, medium, recorder, subject, model, seed, generation: 0, phases: 0, log }
    }

    /// Puts the operations of this life in front of what a finding says already.
    fn report<T>(&mut self, result: Found<T>) -> Found<T> {
        result.map_err(|mut finding| {
            finding.operations.extend(self.log.drain(..).rev());
            finding
        })
    }

    fn create(&mut self, tested: bool) -> Found<()> {
        self.log.push("create the store".to_owned());
        self.recorder.arm(tested);
        let made = guarded("create", || Subject::create(&self.context.config, &self.medium))?;
        self.subject = Some(made.map_err(|error| Finding::new(format!("creating failed: {error}")))?);
        self.crash(&Allowed { states: vec![State::new()], missing: true }, &Allowed::one(&State::new()))
    }

    /// Opens what an earlier life left, which may be any of these states, and keeps what it sees.
    fn begin(&mut self, allowed: &Allowed) -> Found<()> {
        self.recorder.arm(true);
        if !self.medium.exists(Path::new(PATH)).unwrap_or(false) {
            if !allowed.missing {
                return Err(Finding::new("the store does not exist after the crash".to_owned()));
            }
            return self.create(true);
        }
        self.log.push("open the store".to_owned());
        self.open()?;
        let seen = self.see()?;
        if let Some(difference) = allowed.difference(&seen) {
            return Err(Finding::new(format!("after an open, the store {difference}")));
        }
        self.model = Model::of(seen.clone());
        self.crash(allowed, &Allowed::one(&seen))
    }

    /// Runs random phases, the first of them without crashes.
    fn play(&mut self, rng: Rng, untested: u64, tested: u64) -> Found<()> {
        let fails = self.context.config.medium == MediumClass::Block && !self.context.config.canary;
        let mut generator = Generator::new(rng, fails);
        for phase in 0..untested + tested {
            if self.context.shared.stopped() {
                break;
            }
            let ops = generator.phase(&mut self.model.clone());
            for op in &ops {
                self.recorder.arm(phase >= untested);
                self.operation(op)?;
            }
        }
        self.recorder.arm(false);
        let subject = self.subject.take();
        guarded("dropping the store", || drop(subject))?;
        self.faults(&self.medium)
    }

    fn operation(&mut self, op: &Op) -> Found<()> {
        self.log.push(op.to_string());
        let before = self.model.durable.clone();
        self.model.apply(op);
        match *op {
            Op::Reopen { clean } => {
                self.end(clean)?;
                self.open()?;
            }
            Op::PmsyncFails { nth, .. } => self.without_a_flush(op, nth, |life| life.attempt(op))?,
            Op::ReopenFails { clean, nth } => {
                self.end(clean)?;
                self.without_a_flush(op, nth, Life::try_open)?;
            }
            _ => {
                self.attempt(op)?.map_err(|error| Finding::new(format!("{op} failed: {error}")))?;
            }
        }
        let during = Allowed { states: vec![before, self.model.durable.clone()], missing: false };
        let opened = matches!(op, Op::Reopen { .. } | Op::PmsyncFails { .. } | Op::ReopenFails { .. });
        // The content that the program sees is compared now and then, since that reads every page, and always after
        // an open.
        if opened || mix(self.seed ^ self.log.len() as u64).is_multiple_of(8) {
            let seen = self.see()?;
            let unfailing = !matches!(op, Op::PmsyncFails { .. });
            let expected = if opened { &during.states[1] } else { &self.model.all_visible() };
            if unfailing && seen != *expected {
                return Err(Finding::new(format!("without a crash, the store holds {seen:?}, not {expected:?}")));
            }
            if opened {
                if let Some(difference) = during.difference(&seen) {
                    return Err(Finding::new(format!("without a crash, the store {difference}")));
                }
                self.model = Model::of(seen);
            }
        }
        let after = Allowed::one(&self.model.durable);
        self.crash(&during, &after)
    }

    fn attempt(&mut self, op: &Op) -> Found<untorn::Result<()>> {
        let subject = self.subject.as_mut().expect("a store is open while a script runs");
        guarded(&op.to_string(), || subject.perform(op))
    }

    fn end(&mut self, clean: bool) -> Found<()> {
        let subject = self.subject.take().expect("a store is open while a script runs");
        let ended = guarded("closing", || subject.end(clean))?;
        ended.map_err(|error| Finding::new(format!("closing failed: {error}")))
    }

    fn try_open(&mut self) -> Found<untorn::Result<()>> {
        let opened = guarded("opening", || Subject::open(&self.context.config, &self.medium))?;
        Ok(opened.map(|subject| self.subject = Some(subject)))
    }

    fn open(&mut self) -> Found<()> {
        self.try_open()?.map_err(|error| Finding::new(format!("opening failed: {error}")))
    }

    /// Does something during which a flush fails, and opens the store again, on a machine whose page cache holds what
    /// its disk does not.
    fn without_a_flush(
        &mut self,
        op: &Op,
        nth: u32,
        act: impl FnOnce(&mut Self) -> Found<untorn::Result<()>>,
    ) -> Found<()> {
        self.recorder.trip(nth, mix(self.seed ^ mix(self.phases)));
        let result = act(self)?;
        match (result, self.recorder.tripped()) {
            (Ok(()), false) | (Err(_), true) => {}
            (Ok(()), true) => return Err(Finding::new(format!("{op}: succeeded although a flush failed"))),
            (Err(error), false) => return Err(Finding::new(format!("{op}: failed although no flush failed: {error}"))),
        }
        let subject = self.subject.take();
        guarded("dropping the store", || drop(subject))?;
        self.open()
    }

    fn see(&mut self) -> Found<State> {
        let subject = self.subject.as_mut().expect("a store is open while it is read");
        see(subject)
    }

    /// Crashes the machine at every point recorded since the last call, and checks what is left: something of
    /// `during`, and of `after` once the operation has returned.
    fn crash(&mut self, during: &Allowed, after: &Allowed) -> Found<()> {
        self.recorder.returned(&self.medium);
        self.recorder.arm(false);
        self.note_reached(&self.medium);
        self.faults(&self.medium)?;
        self.phases += 1;
        let Effort { cap, samples, .. } = self.context.effort;
        for (index, point) in (0_u64..).zip(self.recorder.take()) {
            let allowed = if point.before.is_some() { during } else { after };
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
                self.check(&point, choice, allowed, afterlife).map_err(|finding| finding.at(&point, choice))?;
            }
            if self.lives_on(&mut rng) {
                let seed = rng.next_u64();
                self.next_life(point.state.killed(), allowed, seed).map_err(|mut finding| {
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

    fn check(&self, point: &Point, choice: &Choice, allowed: &Allowed, afterlife: bool) -> Found<()> {
        let image = point.state.image(choice);
        if !self.context.shared.note(image.digest(), allowed.digest()) {
            return Ok(());
        }
        self.context.shared.recoveries.fetch_add(1, Ordering::Relaxed);
        let medium = image.boot();
        if afterlife {
            return self.next_life(medium, allowed, mix(self.seed ^ choice.digest()));
        }
        self.recover(&medium, allowed)
    }

    fn recover(&self, medium: &SimMedium, allowed: &Allowed) -> Found<()> {
        if !medium.exists(Path::new(PATH)).unwrap_or(false) {
            return if allowed.missing {
                Ok(())
            } else {
                Err(Finding::new("the store does not exist after the crash".to_owned()))
            };
        }
        let opened = guarded("recovery", || Subject::open(&self.context.config, medium))?;
        let mut subject = opened.map_err(|error| Finding::new(format!("the store does not open: {error}")))?;
        let seen = see(&mut subject)?;
        self.note_reached(medium);
        if let Some(difference) = allowed.difference(&seen) {
            return Err(Finding::new(format!("the recovered store {difference}")));
        }
        let audit = guarded("the audit", || subject.audit())?;
        let wrong = audit.map_err(|error| Finding::new(format!("the audit failed: {error}")))?;
        if let Some(wrong) = wrong {
            return Err(Finding::new(format!("the audit of the recovered store found: {wrong}")));
        }
        self.faults(medium)
    }

    /// Recovery under the eyes of the recorder, so that it is crashed too, then a few more operations.
    fn next_life(&self, medium: SimMedium, allowed: &Allowed, seed: u64) -> Found<()> {
        let mut life = Life::new(self.context, medium, seed);
        life.generation = self.generation + 1;
        let mut rng = Rng::new(seed);
        let phases = rng.below(4);
        let result = life.begin(allowed).and_then(|()| life.play(rng, 0, phases));
        life.report(result)
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

fn see(subject: &mut Subject) -> Found<State> {
    let read = guarded("reading all regions", || subject.read())?;
    let read = read.map_err(|error| Finding::new(format!("reading all regions failed: {error}")))?;
    read.map_err(|what| Finding::new(format!("the store is damaged: {what}")))
}
