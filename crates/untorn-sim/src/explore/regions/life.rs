//! A life of a machine with a region store.

use std::path::Path;

use untorn::testing::storage::{Medium, MediumClass};

use super::super::finding::{Finding, Found, differs, guarded, tried, wrong};
use super::super::life::{Pace, Paced, Plan, Subject};
use super::super::search::Case;
use super::super::shared::{Shared, digest};
use super::config::Config;
use super::ops::{Generator, Model, Op, State};
use super::store::{Opened, PATH};
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

type Life<'a> = super::super::life::Life<'a, Config>;

/// The states that a crash may leave.
#[derive(Clone, Debug, Hash)]
pub(in crate::explore) struct Allowed {
    states: Vec<State>,
    /// No store at all.
    missing: bool,
}

impl Allowed {
    fn one(state: &State) -> Self {
        Allowed { states: vec![state.clone()], missing: false }
    }

    fn check(&self, when: &str, found: &State) -> Found<()> {
        if self.states.contains(found) {
            return Ok(());
        }
        differs(format!("{when} differs from every allowed state: {found:?}, not {:?}", self.states))
    }
}

impl Subject for Config {
    type Handle = Opened;
    type Model = Model;
    type Expected = Allowed;
    type Script = Generator;

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        Pace::USUAL.run(case, shared, SimMedium::new(case.config.medium), Model::default())
    }

    fn inherit(_: &Life<'_>, _: &Allowed) -> Model {
        Model::default()
    }

    fn begin(life: &mut Life<'_>, allowed: &Allowed, _killed: bool, mut rng: Rng) -> Found<Option<Plan<Generator>>> {
        let phases = rng.below(4);
        life.resume(allowed)?;
        Ok(Some(Plan { script: life.config().script(rng), untested: 0, tested: phases }))
    }

    /// Runs a random phase.
    fn step(life: &mut Life<'_>, script: &mut Generator, tested: bool) -> Found<()> {
        for op in script.phase(&mut life.model.clone()) {
            life.recorder.arm(tested);
            life.operation(&op)?;
        }
        Ok(())
    }

    fn digest(allowed: &Allowed, _: &SimMedium) -> Found<u64> {
        Ok(digest(allowed))
    }

    fn recover(life: &Life<'_>, medium: &SimMedium, allowed: &Allowed, _seed: u64) -> Found<()> {
        if !medium.exists(Path::new(PATH)).unwrap_or(false) {
            return if allowed.missing { Ok(()) } else { wrong("the store does not exist after the crash") };
        }
        let mut store = tried("opening after the crash", || Opened::open(life.config(), medium))?;
        allowed.check("the recovered store", &see(&mut store)?)?;
        match tried("the audit", || store.audit())? {
            Some(fault) => wrong(format!("the audit of the recovered store found: {fault}")),
            None => Ok(()),
        }
    }
}

impl Paced for Config {
    fn create(life: &mut Life<'_>, tested: bool) -> Found<()> {
        life.log.push("create the store".to_owned());
        life.recorder.arm(tested);
        life.handle = Some(tried("creating", || Opened::create(life.config(), &life.medium))?);
        life.crash(&Allowed { states: vec![State::new()], missing: true }, &Allowed::one(&State::new()))
    }

    fn script(&self, rng: Rng) -> Generator {
        Generator::new(rng, self.medium == MediumClass::Block && !self.canary)
    }
}

impl Life<'_> {
    /// Opens what an earlier life left, which may be any of these states, and keeps what it sees.
    fn resume(&mut self, allowed: &Allowed) -> Found<()> {
        self.recorder.arm(true);
        if !self.medium.exists(Path::new(PATH)).unwrap_or(false) {
            if !allowed.missing {
                return wrong("the store does not exist after the crash");
            }
            return Config::create(self, true);
        }
        self.log.push("open the store".to_owned());
        self.open()?;
        let seen = self.see()?;
        allowed.check("after an open, the store", &seen)?;
        self.model = Model::of(seen.clone());
        self.crash(allowed, &Allowed::one(&seen))
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
            Op::PmsyncFails { nth, .. } => {
                self.without_a_flush(op, nth, |life| life.attempt(op))?;
                self.open()?;
            }
            Op::ReopenFails { clean, nth } => {
                self.end(clean)?;
                self.without_a_flush(op, nth, Life::try_open)?;
                self.open()?;
            }
            _ => self.attempt(op)?.map_err(|error| Finding::new(format!("{op} failed: {error}")))?,
        }
        if let (Op::Hold(region), Some(store)) = (op, &self.handle)
            && let (Some(held), Some(durable)) = (store.held(), before.get(region))
            && held != durable
        {
            return wrong(format!("a snapshot holds {held:?}, not the last commit, {durable:?}"));
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
                return wrong(format!("without a crash, the store holds {seen:?}, not {expected:?}"));
            }
            if opened {
                during.check("without a crash, the store", &seen)?;
                self.model = Model::of(seen);
            }
        }
        let after = Allowed::one(&self.model.durable);
        self.crash(&during, &after)
    }

    fn attempt(&mut self, op: &Op) -> Found<untorn::Result<()>> {
        let store = self.handle.as_mut().expect("a store is open while a script runs");
        guarded(op, || store.perform(op))
    }

    fn end(&mut self, clean: bool) -> Found<()> {
        let store = self.handle.take();
        tried("closing", || store.map_or(Ok(()), |store| store.end(clean)))
    }

    fn try_open(&mut self) -> Found<untorn::Result<()>> {
        self.let_go()?;
        let opened = guarded("opening", || Opened::open(self.config(), &self.medium))?;
        Ok(opened.map(|store| self.handle = Some(store)))
    }

    fn open(&mut self) -> Found<()> {
        self.try_open()?.map_err(|error| Finding::new(format!("opening failed: {error}")))
    }

    fn see(&mut self) -> Found<State> {
        see(self.handle.as_mut().expect("a store is open while it is read"))
    }
}

fn see(store: &mut Opened) -> Found<State> {
    let read = tried("reading all regions", || store.read())?;
    read.map_err(|what| Finding::new(format!("the store is damaged: {what}")))
}
