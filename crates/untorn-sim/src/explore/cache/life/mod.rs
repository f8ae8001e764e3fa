//! One life of a machine with files behind a log: a script of operations, crashed everywhere; what each crash leaves is
//! recovered and checked, and now and then lives on, to be crashed again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use untorn::Durability;
use untorn::testing::storage::{Barrier, Medium, MediumClass};

use super::super::life::{Effort, Finding, Found, describe, guarded};
use super::super::recorder::{Point, Recorder};
use super::super::scripted::Case;
use super::super::shared::Shared;
use super::allowed::{Allowed, show};
use super::config::Config;
use super::generator::Generator;
use super::model::Model;
use super::ops::{Op, State};
use super::subject::{DIRECT, LOG, Subject};
use crate::choice::Choice;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

/// The barrier with which an operation that went past the log syncs the file.
const PAST: &str = "cache.past";

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
        cap: *rng.pick(&[8, 32, 128]),
        samples: *rng.pick(&[4, 12, 32]),
        afterlife: *rng.pick(&[10, 40, 150]),
        depth: 2,
    };
    let context = Context { config: case.config, muted: case.muted, effort, shared };
    let mut life = Life::new(&context, SimMedium::new(case.config.medium), case.seed);
    let creation = rng.one_in(12);
    let (before, after) = (rng.below(24), 1 + rng.below(8));
    let result = life.create(creation).and_then(|()| life.play(rng, before, after));
    life.report(result).err()
}

impl<'a> Life<'a> {
    fn new(context: &'a Context<'a>, medium: SimMedium, seed: u64) -> Self {
        if let Some(barrier) = context.muted {
            medium.mutate(barrier);
        }
        let recorder = Recorder::attach(&medium);
        let (subject, model, log) = (None, Model::new(context.config.durability), Vec::new());
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
        self.log.push("create the log".to_owned());
        self.recorder.arm(tested);
        let made = guarded("create", || Subject::create(&self.context.config, &self.medium))?;
        self.subject = Some(made.map_err(|error| Finding::new(format!("creating failed: {error}")))?);
        let nothing = Allowed::one(&State::new());
        self.crash(&Allowed { missing: true, ..nothing.clone() }, &nothing)
    }

    /// Opens what an earlier life left, which may be any of these states, and keeps what it sees.
    /// After a kill, what the process did to names may not be durable.
    fn begin(&mut self, allowed: &Allowed, killed: bool) -> Found<()> {
        self.recorder.arm(true);
        if !self.context.config.canary && !self.medium.exists(Path::new(LOG)).unwrap_or(false) {
            if !allowed.missing {
                return Err(Finding::new("the log does not exist after the crash".to_owned()));
            }
            return self.create(true);
        }
        self.log.push("open the log".to_owned());
        self.open()?;
        self.sync_shown(allowed)?;
        let seen = self.see()?;
        if let Some(difference) = allowed.difference(&seen) {
            return Err(Finding::new(format!("after an open, the log {difference}")));
        }
        self.model = Model::of(self.context.config.durability, &seen);
        if killed {
            // A removal is durable now if the log had something of the file.
            self.model.may_be_back(&allowed.states);
        }
        self.crash(allowed, &Allowed::of(self.model.allowed()))
    }

    /// Files that are written through, with durability left to a sync, may show bytes that a failed log has lost. No
    /// program may rely on these bytes before a sync.
    fn sync_shown(&self, allowed: &Allowed) -> Found<()> {
        let subject = self.subject.as_ref().expect("the log was just opened");
        if !allowed.mixed {
            return Ok(());
        }
        let synced = guarded("syncing the files", || subject.sync_shown())?;
        synced.map_err(|error| Finding::new(format!("syncing the files failed: {error}")))
    }

    /// Runs random operations, the first of them without crashes.
    fn play(&mut self, rng: Rng, untested: u64, tested: u64) -> Found<()> {
        let Config { medium, durability, through, canary } = self.context.config;
        let fails = medium == MediumClass::Block && !canary;
        let mut generator = Generator::new(rng, fails, through, through && durability == Durability::PerCommit);
        for number in 0..untested + tested {
            if self.context.shared.stopped() {
                break;
            }
            let op = generator.next(&self.model);
            self.recorder.arm(number >= untested);
            self.operation(&op)?;
        }
        self.recorder.arm(false);
        let subject = self.subject.take();
        guarded("dropping the log", || drop(subject))?;
        self.faults(&self.medium)
    }

    fn operation(&mut self, op: &Op) -> Found<()> {
        self.log.push(op.to_string());
        let before = self.model.allowed();
        let mut grown = self.model.grown();
        let (was, leaving) = (self.model.visible(), self.model.leaving.clone());
        self.model.apply(op);
        for (name, ranges) in self.model.grown() {
            grown.entry(name).or_default().extend(ranges);
        }
        match *op {
            Op::Reopen => self.reopen()?,
            Op::DrainFails(nth) => self.drain_fails(op, nth)?,
            Op::ReopenFails(nth) => self.reopen_fails(op, nth)?,
            Op::ReopenMissing(name) => self.reopen_missing(name)?,
            _ => {
                self.attempt(op)?.map_err(|error| Finding::new(format!("{op} failed: {error}")))?;
            }
        }
        let seen_past = self.recorder.saw(PAST);
        let torn = op.goes_past(&self.model, seen_past).map(|name| {
            let of = |state: &State| state.get(&name).cloned().unwrap_or_default();
            (name, of(&was), of(&self.model.visible()))
        });
        let past = matches!(op, Op::SetLen(file, _) if seen_past || self.model.demoted.contains(file));
        let mut states = before;
        let mut after = self.model.allowed();
        // A removal may be durable later than the operations that follow now.
        leaving.or_back(&mut after);
        for state in after {
            if !states.contains(&state) {
                states.push(state);
            }
        }
        let direct = past || op.names_directly();
        let during = Allowed { torn, direct, grown, ..self.allowed_of(states) };
        let seen = self.see()?;
        if seen != self.model.visible() {
            let expected = self.model.visible();
            let (seen, expected) = (show(&seen), show(&expected));
            return Err(Finding::new(format!("without a crash, the log shows {seen}, not {expected}")));
        }
        let after = self.allowed();
        self.crash(&during, &after)
    }

    /// The states that a crash may leave, given these.
    fn allowed_of(&self, states: Vec<State>) -> Allowed {
        let Config { through, durability, .. } = self.context.config;
        let mixed = through && durability == Durability::PerCommit;
        Allowed { mixed, grown: self.model.grown(), ..Allowed::of(states) }
    }

    /// The states that a crash may leave now.
    fn allowed(&self) -> Allowed {
        self.allowed_of(self.model.allowed())
    }

    fn attempt(&mut self, op: &Op) -> Found<untorn::Result<()>> {
        let subject = self.subject.as_mut().expect("the log is open while a script runs");
        guarded(&op.to_string(), || subject.perform(op))
    }

    fn try_open(&mut self) -> Found<untorn::Result<()>> {
        let subject = self.subject.take();
        guarded("dropping the log", || drop(subject))?;
        let opened = guarded("opening", || Subject::open(&self.context.config, &self.medium))?;
        Ok(opened.map(|subject| self.subject = Some(subject)))
    }

    fn open(&mut self) -> Found<()> {
        self.try_open()?.map_err(|error| Finding::new(format!("opening failed: {error}")))
    }

    /// A process that ends leaves everything it wrote to the next.
    fn reopen(&mut self) -> Found<()> {
        self.open()?;
        self.model.stuck.clear();
        Ok(())
    }

    /// Drains while a flush fails. If it is that of a file, the others go on; if it is the log's, it has to be opened
    /// anew, on a machine whose page cache holds what its disk does not.
    fn drain_fails(&mut self, op: &Op, nth: u32) -> Found<()> {
        self.recorder.trip(nth, mix(self.seed ^ mix(self.phases)));
        let result = self.attempt(op)?;
        match (result, self.recorder.tripped()) {
            (Ok(()), false) => {
                self.model.synced();
                return Ok(());
            }
            (Err(_), true) => {}
            (Ok(()), true) => return Err(Finding::new(format!("{op}: succeeded although a flush failed"))),
            (Err(error), false) => return Err(Finding::new(format!("{op}: failed although no flush failed: {error}"))),
        }
        let subject = self.subject.as_ref().expect("the log is open while a script runs");
        match guarded("listing the failed files", || subject.failed())? {
            Some(failed) if !failed.is_empty() => self.model.stuck.extend(failed),
            _ => self.take_what_is_left()?,
        }
        Ok(())
    }

    fn reopen_fails(&mut self, op: &Op, nth: u32) -> Found<()> {
        let subject = self.subject.take();
        guarded("dropping the log", || drop(subject))?;
        self.recorder.trip(nth, mix(self.seed ^ mix(self.phases)));
        let (config, medium) = (&self.context.config, &self.medium);
        let replayed = guarded("replaying", || Subject::replay(config, medium, None))?;
        if let Ok(Some(name)) = replayed {
            self.recorder.tripped();
            return self.kept(name);
        }
        match (replayed.map(drop).and(self.try_open()?), self.recorder.tripped()) {
            (Ok(()), _) => self.model.synced(),
            (Err(_), true) => self.take_what_is_left()?,
            (Err(error), false) => return Err(Finding::new(format!("{op}: failed although no flush failed: {error}"))),
        }
        self.model.stuck.clear();
        self.model.demoted.clear();
        Ok(())
    }

    /// Replays while a file is not to be found, then as usual.
    fn reopen_missing(&mut self, missing: u8) -> Found<()> {
        let subject = self.subject.take();
        guarded("dropping the log", || drop(subject))?;
        let (config, medium) = (&self.context.config, &self.medium);
        let replayed = guarded("replaying", || Subject::replay(config, medium, Some(missing)))?;
        match replayed.map_err(|error| Finding::new(format!("replaying failed: {error}")))? {
            Some(name) => self.kept(name)?,
            None => {
                self.model.synced();
                self.reopen()?;
            }
        }
        self.model.stuck.clear();
        self.model.demoted.clear();
        Ok(())
    }

    /// A replay could not bring one file the entries that the log has for it. A plain program then writes a byte to
    /// another file, and syncs it. The byte stays, because only the first file is still to be replayed.
    fn kept(&mut self, name: u8) -> Found<()> {
        let replaying = self.allowed();
        self.model.synced();
        let replayed = self.allowed();
        self.crash(&replaying, &replayed)?;
        self.recorder.arm(true);
        let medium = &self.medium;
        let written = guarded("writing without the log", || Subject::write_direct(medium, name))?;
        written.map_err(|error| Finding::new(format!("writing without the log failed: {error}")))?;
        let mut state = self.model.visible();
        // Until it has synced its write, a crash may leave a part of it, for instance a length without the byte.
        let torn = state.get_mut(&name).map(|content| {
            let before = content.clone();
            content.resize(content.len().max(1), 0);
            content[0] = DIRECT;
            (name, before, content.clone())
        });
        self.model.restart(&state);
        let after = self.allowed();
        let states = replayed.states.iter().chain(&after.states).cloned().collect();
        // The log is kept meanwhile.
        self.crash(&Allowed { direct: true, torn, ..self.allowed_of(states) }, &after)?;
        self.recorder.arm(true);
        self.reopen()
    }

    /// Opens the log after a flush of it failed, which may have lost unsynced bytes.
    fn take_what_is_left(&mut self) -> Found<()> {
        let allowed = self.allowed();
        self.open()?;
        self.sync_shown(&allowed)?;
        let seen = self.see()?;
        if let Some(difference) = allowed.difference(&seen) {
            return Err(Finding::new(format!("after a failed flush, the log {difference}")));
        }
        self.model.restart(&seen);
        Ok(())
    }

    fn see(&self) -> Found<State> {
        let subject = self.subject.as_ref().expect("the log is open while it is read");
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
            // A killed process may have been writing past the log, or without one. Its bytes are visible, but not
            // durable before the next sync of the file; the same holds for a name that it was changing.
            let certain = point.before.is_none() || during.torn.is_none() && !during.direct;
            if self.lives_on(&mut rng) && certain {
                let seed = rng.next_u64();
                self.next_life(point.state.killed(), allowed, true, seed).map_err(|mut finding| {
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
            return self.next_life(medium, allowed, false, mix(self.seed ^ choice.digest()));
        }
        self.recover(&medium, allowed)
    }

    fn recover(&self, medium: &SimMedium, allowed: &Allowed) -> Found<()> {
        if !self.context.config.canary && !medium.exists(Path::new(LOG)).unwrap_or(false) {
            return if allowed.missing {
                Ok(())
            } else {
                Err(Finding::new("the log does not exist after the crash".to_owned()))
            };
        }
        let opened = guarded("recovery", || Subject::open(&self.context.config, medium))?;
        let subject = opened.map_err(|error| Finding::new(format!("the log does not open: {error}")))?;
        let seen = see(&subject)?;
        self.note_reached(medium);
        if let Some(difference) = allowed.difference(&seen) {
            return Err(Finding::new(format!("the recovered store {difference}")));
        }
        self.faults(medium)
    }

    /// Recovery under the eyes of the recorder, so that it is crashed too, then a few more operations.
    fn next_life(&self, medium: SimMedium, allowed: &Allowed, killed: bool, seed: u64) -> Found<()> {
        let mut life = Life::new(self.context, medium, seed);
        life.generation = self.generation + 1;
        let mut rng = Rng::new(seed);
        let phases = rng.below(4);
        let result = life.begin(allowed, killed).and_then(|()| life.play(rng, 0, phases));
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

fn see(subject: &Subject) -> Found<State> {
    let read = guarded("reading all files", || subject.read())?;
    let read = read.map_err(|error| Finding::new(format!("reading all files failed: {error}")))?;
    read.map_err(|what| Finding::new(format!("the log is damaged: {what}")))
}

#[cfg(test)]
mod tests;
