//! A life of a machine with files behind a log.

use std::path::Path;

use untorn::Durability;
use untorn::testing::storage::{Medium, MediumClass};

use super::super::finding::{Finding, Found, guarded, tried, wrong};
use super::super::life::{Pace, Paced, Plan, Subject};
use super::super::recorder::Point;
use super::super::search::Case;
use super::super::shared::{Shared, digest};
use super::allowed::{Allowed, show};
use super::config::Config;
use super::generator::Generator;
use super::model::Model;
use super::opened::{DIRECT, LOG, Opened};
use super::ops::{Op, State};
use crate::medium::SimMedium;
use crate::rng::Rng;

/// The barrier with which an operation that went past the log syncs the file.
const PAST: &str = "cache.past";

type Life<'a> = super::super::life::Life<'a, Config>;

const PACE: Pace = Pace { caps: &[8, 32, 128], samples: &[4, 12, 32], untested: 24, tested: 8, ..Pace::USUAL };

impl Subject for Config {
    type Handle = Opened;
    type Model = Model;
    type Expected = Allowed;
    type Script = Generator;

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        PACE.run(
            case,
            shared,
            SimMedium::new(case.config.medium),
            Model::new(case.config.durability).like(&case.config),
        )
    }

    fn inherit(life: &Life<'_>, _: &Allowed) -> Model {
        Model::new(life.config().durability).like(life.config())
    }

    fn begin(life: &mut Life<'_>, allowed: &Allowed, killed: bool, mut rng: Rng) -> Found<Option<Plan<Generator>>> {
        let phases = rng.below(4);
        life.resume(allowed, killed)?;
        Ok(Some(Plan { script: life.config().script(rng), untested: 0, tested: phases }))
    }

    fn step(life: &mut Life<'_>, script: &mut Generator, tested: bool) -> Found<()> {
        let op = script.next(&life.model);
        life.recorder.arm(tested);
        life.operation(&op)
    }

    fn digest(allowed: &Allowed, _: &SimMedium) -> Found<u64> {
        Ok(digest(allowed))
    }

    fn recover(life: &Life<'_>, medium: &SimMedium, allowed: &Allowed, _seed: u64) -> Found<()> {
        if life.is_logless(medium) {
            return if allowed.missing { Ok(()) } else { wrong("the log does not exist after the crash") };
        }
        let opened = tried("opening after the crash", || Opened::open(life.config(), medium))?;
        allowed.check("the recovered store", &see(&opened)?)
    }

    fn after_kill(life: &Life<'_>, point: &Point, allowed: &Allowed, rng: &mut Rng) -> Found<()> {
        // A killed process may have been writing past the log, or without one. Its bytes are visible, but not
        // durable before the next sync of the file; the same holds for a name that it was changing.
        let certain = point.before.is_none() || allowed.torn.is_none() && !allowed.direct;
        if !life.lives_on(rng) || !certain {
            return Ok(());
        }
        life.next_life(point.state.killed(), allowed, true, rng.next_u64())
    }
}

impl Paced for Config {
    fn create(life: &mut Life<'_>, tested: bool) -> Found<()> {
        life.log.push("create the log".to_owned());
        life.recorder.arm(tested);
        life.handle = Some(tried("creating", || Opened::create(life.config(), &life.medium))?);
        let nothing = Allowed::one(&State::new());
        life.crash(&Allowed { missing: true, ..nothing.clone() }, &nothing)
    }

    fn script(&self, rng: Rng) -> Generator {
        let (through, fails) = (self.is_through(), self.medium == MediumClass::Block && !self.is_canary());
        Generator::new(rng, fails, through, through && self.durability == Durability::PerCommit)
    }
}

impl Life<'_> {
    /// Whether a machine has no log that it should have.
    fn is_logless(&self, medium: &SimMedium) -> bool {
        !self.config().is_canary() && !medium.exists(Path::new(LOG)).unwrap_or(false)
    }

    /// Opens what an earlier life left, which may be any of these states, and keeps what it sees.
    /// After a kill, what the process did to names may not be durable.
    fn resume(&mut self, allowed: &Allowed, killed: bool) -> Found<()> {
        self.recorder.arm(true);
        if self.is_logless(&self.medium) {
            if !allowed.missing {
                return wrong("the log does not exist after the crash");
            }
            return Config::create(self, true);
        }
        self.log.push("open the log".to_owned());
        self.open()?;
        self.sync_shown(allowed)?;
        let seen = self.see()?;
        allowed.check("after an open, the log", &seen)?;
        self.model = Model::of_state(self.config().durability, &seen).like(self.config());
        if killed {
            // A removal is durable now if the log had something of the file.
            self.model.may_be_back(&allowed.states);
            self.model.may_be_gone(&allowed.states);
        }
        self.crash(allowed, &Allowed::of(self.model.allowed()))
    }

    /// Files that are written through, with durability left to a sync, may show bytes that a failed log has lost. No
    /// program may rely on these bytes before a sync.
    fn sync_shown(&self, allowed: &Allowed) -> Found<()> {
        if !allowed.mixed {
            return Ok(());
        }
        tried("syncing the files", || self.handle().sync_shown())
    }

    fn operation(&mut self, op: &Op) -> Found<()> {
        self.log.push(op.to_string());
        let mut before = self.model.allowed();
        if self.model.atomic {
            let mut between = self.model.clone();
            between.close_by(op);
            before.extend(between.allowed());
        }
        let mut grown = self.model.grown();
        let (was, leaving) = (self.model.committed(), self.model.leaving.clone());
        self.model.apply(op);
        for (name, ranges) in self.model.grown() {
            grown.entry(name).or_default().extend(ranges);
        }
        match *op {
            Op::Reopen => self.reopen()?,
            Op::DrainFails(nth) => self.drain_fails(op, nth)?,
            Op::ReopenFails(nth) => self.reopen_fails(op, nth)?,
            Op::ReopenMissing(name) => self.reopen_missing(name)?,
            _ => self.attempt(op)?.map_err(|error| Finding::new(format!("{op} failed: {error}")))?,
        }
        if let Some(name) = self.handle.as_mut().and_then(|opened| opened.refused.take()) {
            self.model.refuse(name);
        }
        let seen_past = self.recorder.saw(PAST);
        let torn = op.goes_past(&self.model, seen_past).map(|name| {
            let of = |state: &State| state.get(&name).cloned().unwrap_or_default();
            (name, of(&was), of(&self.model.committed()))
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
            return wrong(format!("without a crash, the log shows {seen}, not {expected}"));
        }
        let after = self.allowed();
        self.crash(&during, &after)
    }

    /// The states that a crash may leave, given these.
    fn allowed_of(&self, states: Vec<State>) -> Allowed {
        let mixed = self.config().is_through() && self.config().durability == Durability::PerCommit;
        Allowed { mixed, grown: self.model.grown(), ..Allowed::of(states) }
    }

    /// The states that a crash may leave now.
    fn allowed(&self) -> Allowed {
        self.allowed_of(self.model.allowed())
    }

    fn attempt(&mut self, op: &Op) -> Found<untorn::Result<()>> {
        let opened = self.handle.as_mut().expect("the log is open while a script runs");
        guarded(op, || opened.perform(op))
    }

    fn try_open(&mut self) -> Found<untorn::Result<()>> {
        self.let_go()?;
        let opened = guarded("opening", || Opened::open(self.config(), &self.medium))?;
        Ok(opened.map(|opened| self.handle = Some(opened)))
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
        if !self.without_a_flush(op, nth, |life| life.attempt(op))? {
            self.model.synced();
            return Ok(());
        }
        match guarded("listing the failed files", || self.handle().failed())? {
            Some(failed) if !failed.is_empty() => self.model.stuck.extend(failed),
            _ => self.take_what_is_left()?,
        }
        Ok(())
    }

    fn reopen_fails(&mut self, op: &Op, nth: u32) -> Found<()> {
        self.let_go()?;
        self.model.drop_open();
        self.trip(nth);
        let replayed = guarded("replaying", || Opened::replay(self.config(), &self.medium, None))?;
        if let Ok(Some(name)) = replayed {
            self.recorder.tripped();
            return self.kept(name);
        }
        match (replayed.map(drop).and(self.try_open()?), self.recorder.tripped()) {
            (Ok(()), _) => self.model.synced(),
            (Err(_), true) => self.take_what_is_left()?,
            (Err(error), false) => return wrong(format!("{op}: failed although no flush failed: {error}")),
        }
        self.model.stuck.clear();
        self.model.demoted.clear();
        Ok(())
    }

    /// Replays while a file is not to be found, then as usual.
    fn reopen_missing(&mut self, missing: u8) -> Found<()> {
        self.let_go()?;
        self.model.drop_open();
        match tried("replaying", || Opened::replay(self.config(), &self.medium, Some(missing)))? {
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
        tried("writing without the log", || Opened::write_direct(&self.medium, name))?;
        let mut state = self.model.visible();
        // Until it has synced its write, a crash may leave a part of it, for instance a length without the byte.
        let torn = state.get_mut(&name).map(|content| {
            let before = content.clone();
            content.resize(content.len().max(1), 0);
            content[0] = DIRECT;
            (name, before, content.clone())
        });
        self.model.restart(&state);
        self.model.may_be_gone(&replayed.states);
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
        allowed.check("after a failed flush, the log", &seen)?;
        self.model.restart(&seen);
        self.model.may_be_gone(&allowed.states);
        Ok(())
    }

    fn see(&self) -> Found<State> {
        see(self.handle())
    }
}

fn see(opened: &Opened) -> Found<State> {
    let read = tried("reading all files", || opened.read())?;
    read.map_err(|what| Finding::new(format!("the log is damaged: {what}")))
}

#[cfg(test)]
mod tests;
