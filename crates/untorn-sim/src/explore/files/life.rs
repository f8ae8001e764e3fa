//! A life of a machine with one file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::vec::IntoIter;

use untorn::options::{LogPolicy, Order, ReadPolicy};
use untorn::testing::storage::{Latched, Medium};
use untorn::testing::{ReaderView, reader_view};
use untorn::{AtomicFile, EngineKind, Error, Options};

use super::super::finding::{Finding, Found, differs, guarded, tried, wrong};
use super::super::life::{Plan, Subject};
use super::super::recorder::Point;
use super::super::search::Case;
use super::super::shared::Shared;
use super::config::{Config, PATH, redo_from};
use super::model::{Allowed, Event, Model};
use super::ops::{Generator, Phase};
use super::script::run;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};
use crate::schedule;
use crate::script::{Bytes, Op, perform, read_snapshot};

type Life<'a> = super::super::life::Life<'a, Config>;

/// The file as it must be, and how it is opened.
pub(in crate::explore) struct File {
    pub(super) options: Options,
    /// Whether closing it keeps the sidecar.
    pub(super) keeps_sidecar: bool,
    pub(super) states: Model,
    /// A snapshot that is held over several operations, as a reader has it, and its bytes.
    pub(super) held: Option<(ReaderView, Vec<u8>)>,
    pub(super) numbers: Numbers,
}

/// The commit numbers that the program has been told.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    /// The highest before this phase, and the bytes of that commit, if they are known.
    last: (u64, Option<Bytes>),
    /// Those of this phase, with the model time when they were told.
    told: Vec<(u32, u64)>,
}

impl Numbers {
    pub(super) fn tell(&mut self, clock: u32, number: u64) {
        self.told.push((clock, number));
    }

    /// The promises that a crash at this model time must respect.
    fn respected(&self, allowed: Allowed, clock: u32) -> Allowed {
        let told = self.told.iter().filter(|(at, _)| *at < clock).map(|(_, number)| *number).max();
        match told.filter(|number| *number > self.last.0) {
            Some(number) => allowed.after(number, None),
            None => allowed.after(self.last.0, self.last.1.clone()),
        }
    }

    /// Ends the phase, after which the file has these bytes at its last commit, if they are known.
    fn settle(&mut self, stands: Option<Bytes>) {
        let told = self.told.drain(..).map(|(_, number)| number).max();
        if let Some(number) = told.filter(|number| *number >= self.last.0) {
            self.last = (number, stands);
        }
    }
}

impl Subject for Config {
    type Handle = AtomicFile;
    type Model = File;
    type Expected = Allowed;
    type Script = IntoIter<Phase>;

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        run(case, shared)
    }

    fn inherit(life: &Life<'_>, allowed: &Allowed) -> File {
        let File { options, keeps_sidecar, .. } = &life.model;
        let states = Model::new(life.config(), allowed.states.clone());
        let numbers = Numbers { last: (allowed.commit, allowed.stood.clone()), told: Vec::new() };
        File { options: options.clone(), keeps_sidecar: *keeps_sidecar, states, held: None, numbers }
    }

    fn begin(
        life: &mut Life<'_>,
        allowed: &Allowed,
        _killed: bool,
        mut rng: Rng,
    ) -> Found<Option<Plan<IntoIter<Phase>>>> {
        // The file stores none of these choices, so it must be recoverable under any.
        let options = life.model.options.clone();
        life.model.keeps_sidecar = rng.one_in(2);
        life.model.options = options
            .keep_sidecar(life.model.keeps_sidecar)
            .plain_at_close(Rng::derive(life.seed, 8).one_in(2))
            .order(*rng.pick(&[Order::OneFence, Order::TwoFence]))
            .read_policy(*rng.pick(&[ReadPolicy::Gather, ReadPolicy::Deploy]))
            .redo_threshold_percent(redo_from(life.seed));
        life.start(&Op::Open, allowed.missing, true)?;
        let Some(len) = life.handle.as_ref().map(AtomicFile::len).filter(|len| *len >= 100) else { return Ok(None) };
        let mut generator = Generator::new(life.config(), rng, len, life.seed | 1 << 63);
        let phases = generator.rng.below(4);
        Ok(Some(Plan::all(generator.script(life.config().threads, 1, phases))))
    }

    fn step(life: &mut Life<'_>, script: &mut IntoIter<Phase>, _tested: bool) -> Found<()> {
        script.next().map_or(Ok(()), |phase| life.phase(&phase))
    }

    fn digest(allowed: &Allowed, _medium: &SimMedium) -> Found<u64> {
        Ok(allowed.digest())
    }

    fn recover(life: &Life<'_>, medium: &SimMedium, allowed: &Allowed, seed: u64) -> Found<()> {
        if !medium.exists(Path::new(PATH)).unwrap_or(false) {
            return if allowed.missing { Ok(()) } else { wrong("the file does not exist after the crash") };
        }
        // Whatever filled the disk meanwhile.
        medium.leave_room(Some(0));
        let file = match guarded("opening after the crash, on a full disk", || life.open(medium))? {
            // A file that nobody has written to yet has no sidecar, or half of one.
            Err(_) if medium.refused_new() => {
                medium.leave_room(None);
                tried("opening after the crash", || life.open(medium))?
            }
            opened => tried("opening after the crash, on a full disk", || opened)?,
        };
        let bytes = read_all(&file)?;
        if let Some(misnumbered) = allowed.misnumbered(numbered(life, &file), &bytes) {
            return wrong(misnumbered);
        }
        if seed.is_multiple_of(2) {
            guarded("dropping the handle, on a full disk", || drop(file))?;
        } else {
            tried("settling the file on a full disk", || file.settle())?;
        }
        allowed.difference(&bytes).map_or(Ok(()), |difference| differs(format!("the recovered file {difference}")))
    }
}

impl Life<'_> {
    /// Opens or creates the file.
    pub(super) fn start(&mut self, op: &Op, missing: bool, tested: bool) -> Found<()> {
        self.log.push(op.to_string());
        self.recorder.arm(tested);
        let before = match op {
            // A file that is being created may be missing or still empty.
            Op::Create { len } => Allowed::new([Bytes::default(), Arc::new(vec![0; *len as usize])], true),
            _ => Allowed::new(self.model.states.pairs.iter().map(|pair| pair.kept.clone()), missing),
        };
        let before = self.model.numbers.respected(before, 0);
        self.recorder.tick();
        let opened = self.medium.exists(Path::new(PATH)).unwrap_or(false);
        if !opened && missing && *op == Op::Open {
            return Ok(());
        }
        let file = tried(op, || match op {
            Op::Create { len } => self.model.options.create_on(self.medium.clone(), PATH, *len),
            _ => self.open(&self.medium),
        })?;
        let points = self.recorder.take();
        if let Op::Create { len } = op {
            self.model.states = Model::new(self.config(), [Arc::new(vec![0; *len as usize])]);
        }
        self.handle = Some(file);
        // The program keeps the content that it sees now, whatever was allowed before.
        self.recorder.arm(false);
        self.see(&format!("after {op}"))?;
        self.see_number(&before)?;
        self.crash_at(&points, 0, |_| &before)?;
        self.phases = 1;
        if tested {
            self.recorder.arm(true);
            self.recorder.returned(&self.medium);
            let after = self.model.numbers.respected(self.model.states.allowed(), u32::MAX);
            self.crash_at(&self.recorder.take(), self.phases, |_| &after)?;
        }
        Ok(())
    }

    fn phase(&mut self, phase: &Phase) -> Found<()> {
        self.phases += 1;
        let mut rng = Rng::derive(mix(self.seed ^ self.phases), 7);
        self.hold_snapshot(&mut rng)?;
        self.recorder.arm(phase.tested);
        for (thread, ops) in phase.threads.iter().enumerate() {
            for op in ops {
                let name =
                    if phase.threads.len() > 1 { format!("thread {}: {op}", thread + 1) } else { op.to_string() };
                self.log.push(name);
            }
        }
        let history = match &phase.threads[..] {
            [ops] if matches!(ops[..], [Op::Close | Op::Settle | Op::Drop]) => vec![vec![self.reopen(&ops[0])?]],
            [ops] => match &ops[..] {
                [Op::FlushFails { op, nth }] => vec![self.flush_fails(op, *nth)?],
                ops => vec![self.alone(ops)?],
            },
            threads => {
                // Now and then a third thread takes a snapshot meanwhile.
                let third = rng.one_in(3).then(|| vec![Op::Snapshot]);
                let threads: Vec<_> = threads.iter().cloned().chain(third).collect();
                self.together(&threads, mix(self.seed ^ self.phases))?
            }
        };
        self.recorder.arm(false);
        self.check_snapshot(&mut rng)?;
        self.faults(&self.medium)?;
        let points = self.recorder.take();
        let after = self.model.states.linearize(&history, self.recorder.clock());
        if after.is_empty() {
            return wrong("the results of the reads fit no order of the operations");
        }
        let mut allowed = BTreeMap::new();
        for Point { clock, .. } in &points {
            let at = || self.model.numbers.respected(self.model.states.allowed_at(&history, *clock), *clock);
            allowed.entry(*clock).or_insert_with(at);
        }
        self.crash_at(&points, self.phases, |point| &allowed[&point.clock])?;
        self.model.states.pairs = after;
        // A look at the file settles which order it was.
        if self.model.states.pairs.len() > 1 {
            self.see("without a crash")?;
        }
        self.end_numbers();
        Ok(())
    }

    /// The number of the last commit as this phase ends, and what that commit has.
    fn end_numbers(&mut self) {
        let Some(file) = &self.handle else { return };
        // Threads number their commits apart from each other, and what a flush failed to take may be committed later.
        let stands = match &self.model.states.pairs[..] {
            [only] if self.config().threads == 1 && self.config().engine != EngineKind::Passthrough => {
                Some(only.kept.clone())
            }
            _ => None,
        };
        let number = numbered(self, file);
        self.model.numbers.tell(0, number);
        self.model.numbers.settle(stands);
    }

    /// The number of a file that was just opened must respect what the program has been told.
    fn see_number(&mut self, allowed: &Allowed) -> Found<()> {
        let number = numbered(self, self.handle());
        if number < allowed.commit {
            return wrong(allowed.misnumbered(number, &[]).unwrap_or_default());
        }
        self.end_numbers();
        Ok(())
    }

    /// Takes a snapshot now and then, which must be of the last commit.
    fn hold_snapshot(&mut self, rng: &mut Rng) -> Found<()> {
        if self.model.held.is_some() || !rng.one_in(3) || self.config().engine == EngineKind::Passthrough {
            return Ok(());
        }
        let view = tried("taking a snapshot", || reader_view(self.handle()))?;
        let bytes = tried("reading a snapshot", || read_snapshot(view.snapshot()))?;
        if let Some(difference) = self.model.states.allowed().difference(&bytes) {
            return differs(format!("the snapshot {difference}"));
        }
        self.model.held = Some((view, bytes));
        self.check_home()
    }

    /// The held snapshot, if there is one, must have the bytes that it had. Gives it up now and then.
    fn check_snapshot(&mut self, rng: &mut Rng) -> Found<()> {
        let Some((view, bytes)) = &self.model.held else { return Ok(()) };
        let seen = tried("reading a held snapshot", || read_snapshot(view.snapshot()))?;
        if let Some(difference) = Allowed::new([Arc::new(bytes.clone())], false).difference(&seen) {
            return differs(format!("the held snapshot {difference}"));
        }
        self.check_home()?;
        if rng.one_in(4) {
            self.model.held = None;
        }
        Ok(())
    }

    /// A reader in another process copies a page out of the data file if it was there and has no mark since: it must
    /// have the bytes of the snapshot.
    fn check_home(&self) -> Found<()> {
        let Some((view, bytes)) = &self.model.held else { return Ok(()) };
        let file = self.medium.peek(PATH).unwrap_or_default();
        for page in view.home() {
            let at = page as usize * 4096;
            let end = (at + 4096).min(bytes.len());
            if file.get(at..end) != Some(&bytes[at..end]) {
                return differs(format!("page {page} of the data file, which a reader takes for the snapshot's"));
            }
        }
        Ok(())
    }

    /// Looks at the file, which must be as it may be, and keeps what is seen.
    fn see(&mut self, when: &str) -> Found<()> {
        let seen = read_all(self.handle())?;
        if let Some(difference) = self.model.states.visible().difference(&seen) {
            return differs(format!("{when}, the file {difference}"));
        }
        self.model.states.saw(&seen);
        Ok(())
    }

    fn event(&self, op: &Op) -> Found<Event> {
        let began = self.recorder.tick();
        let value = tried(op, || perform(op, self.handle()))?;
        let returned = Some(self.recorder.tick());
        self.recorder.returned(&self.medium);
        Ok(Event { op: op.clone(), began, returned, value })
    }

    fn alone(&self, ops: &[Op]) -> Found<Vec<Event>> {
        ops.iter().map(|op| self.event(op)).collect()
    }

    fn together(&self, threads: &[Vec<Op>], seed: u64) -> Found<Vec<Vec<Event>>> {
        let tasks = threads
            .iter()
            .map(|ops| -> Box<dyn FnOnce() -> Found<Vec<Event>> + Send + '_> { Box::new(|| self.alone(ops)) })
            .collect();
        guarded("the schedule", || schedule::run(seed, tasks))?.into_iter().collect()
    }

    /// Ends the handle and opens the file again.
    fn reopen(&mut self, op: &Op) -> Found<Event> {
        self.model.held = None;
        let began = self.recorder.tick();
        let file = self.handle.take();
        tried(op, || end(op, file))?;
        if *op == Op::Settle || *op == Op::Close && !self.model.keeps_sidecar {
            self.settled()?;
            if *op == Op::Close {
                self.switch_engines()?;
            }
        }
        self.open_again(op, began)
    }

    /// Opens the plain file with each engine in turn, as programs do that do not agree on one. The first leaves a
    /// sidecar with a commit of its own, which the second gives up.
    fn switch_engines(&mut self) -> Found<()> {
        if self.config().engine == EngineKind::Passthrough {
            return Ok(());
        }
        for (engine, keeps) in [(EngineKind::HybridLog, true), (EngineKind::Reflection, false)] {
            let options = self.model.options.clone().engine(engine).keep_sidecar(keeps).log_policy(LogPolicy::Redo);
            let file = tried("opening with another engine", || options.open_on(self.medium.clone(), PATH))?;
            if engine == EngineKind::HybridLog && !file.is_empty() {
                tried("committing with another engine", || {
                    let mut byte = [0];
                    file.read_at(&mut byte, 0)?;
                    file.write_at(&byte, 0)?;
                    file.sync()
                })?;
            }
            let number = file.last_commit().number;
            tried("closing with another engine", || file.close())?;
            let told = self.recorder.tick();
            self.model.numbers.tell(told, number);
        }
        Ok(())
    }

    /// Runs an operation during which a flush fails, then drops the handle and opens the file again, on a machine whose
    /// page cache holds what its disk does not.
    fn flush_fails(&mut self, op: &Op, nth: u32) -> Found<Vec<Event>> {
        self.model.held = None;
        let began = self.recorder.tick();
        let failed = self.without_a_flush(op, nth, |life| {
            if *op == Op::Close {
                let file = life.handle.take();
                guarded(op, || end(op, file))
            } else {
                Ok(guarded(op, || perform(op, life.handle()))?.map(drop))
            }
        })?;
        let returned = (!failed).then(|| self.recorder.tick());
        let failed = Event { op: op.clone(), began, returned, value: None };
        let began = self.recorder.tick();
        self.let_go()?;
        Ok(vec![failed, self.open_again(&Op::Drop, began)?])
    }

    fn open_again(&mut self, op: &Op, began: u32) -> Found<Event> {
        self.handle = Some(tried("opening again", || self.open(&self.medium))?);
        let before = self.model.numbers.respected(Allowed::default(), u32::MAX);
        let number = numbered(self, self.handle());
        if number < before.commit {
            return wrong(before.misnumbered(number, &[]).unwrap_or_default());
        }
        let returned = Some(self.recorder.tick());
        self.recorder.returned(&self.medium);
        Ok(Event { op: op.clone(), began, returned, value: None })
    }

    /// Opens the file as programs do, where no schedule stands against it.
    fn open(&self, medium: &SimMedium) -> untorn::Result<AtomicFile> {
        match self.open_with(&self.model.options, medium) {
            // A crash while the other engine had it.
            Err(Error::OtherEngine { .. }) => {
                let options = self.model.options.clone().engine(EngineKind::Auto).keep_sidecar(false);
                self.open_with(&options, medium)?.close()?;
                self.open_with(&self.model.options, medium)
            }
            opened => opened,
        }
    }

    fn open_with(&self, options: &Options, medium: &SimMedium) -> untorn::Result<AtomicFile> {
        if self.config().loses_flushes() {
            options.open_on(Latched::new(medium.clone()), PATH)
        } else {
            options.open_on(medium.clone(), PATH)
        }
    }

    /// A settled file is a plain one: its own bytes are the state, now and after a crash, and no sidecar is left.
    fn settled(&self) -> Found<()> {
        let state = self.medium.crash_state();
        let visible = self.model.states.visible();
        let mut machines = vec![self.medium.clone()];
        for choice in [state.nothing(), state.everything()] {
            machines.push(state.image(&choice).boot());
        }
        for (index, medium) in machines.iter().enumerate() {
            let bytes = medium.peek(PATH).unwrap_or_default();
            if let Some(difference) = visible.difference(&bytes) {
                let when = ["", " and a crash that loses all pending writes", " and a crash that loses nothing"][index];
                return differs(format!("after settle{when}, the plain file {difference}"));
            }
        }
        Ok(())
    }
}

/// Lets a file go in one of the ways there are.
fn end(op: &Op, file: Option<AtomicFile>) -> untorn::Result<()> {
    match (op, file) {
        (Op::Close, Some(file)) => file.close(),
        (Op::Settle, Some(file)) => file.settle(),
        _ => Ok(()),
    }
}

/// The number of the last commit; `None` where no promise is kept.
fn numbered(life: &Life<'_>, file: &AtomicFile) -> u64 {
    if life.config().engine == EngineKind::Passthrough { 0 } else { file.last_commit().number }
}

fn read_all(file: &AtomicFile) -> Found<Vec<u8>> {
    let mut bytes = vec![0; file.len() as usize];
    tried("reading the whole file", || file.read_at(&mut bytes, 0))?;
    Ok(bytes)
}
