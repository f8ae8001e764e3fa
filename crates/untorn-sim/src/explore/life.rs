//! One life of a machine: a script of operations on one file, crashed everywhere; what each crash leaves is recovered
//! and checked, and now and then lives on, to be crashed again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use untorn::options::{Order, ReadPolicy};
use untorn::testing::storage::{Barrier, Latched, Medium};
use untorn::{AtomicFile, Options};

use super::config::{Config, PATH, redo_from};
use super::model::{Allowed, Bytes, Event, Model};
use super::ops::{Generator, Op, Phase, perform};
use super::recorder::{Point, Recorder};
use super::report::Violation;
use super::shared::Shared;
use crate::choice::Choice;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};
use crate::schedule;

/// The effort that is spent on a life's crashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// All images are tried where there are no more than this; the same for how many are sampled otherwise.
    pub(crate) cap: u64,
    pub(crate) samples: u32,
    /// One image in this many lives on.
    pub(crate) afterlife: u64,
    /// Lives after the first.
    pub(crate) depth: u32,
}

/// The data that every life of a case shares.
pub(crate) struct Context<'a> {
    pub(crate) config: Config,
    pub(crate) muted: Option<Barrier>,
    pub(crate) effort: Effort,
    /// Slots of a lane.
    pub(crate) slots: u32,
    /// Percentage of writes from which on the hybrid policy has redo.
    pub(crate) redo_from: u8,
    pub(crate) shared: &'a Shared,
}

/// A wrong state, on its way up to the case that reports it.
pub(crate) struct Finding {
    pub(crate) what: String,
    /// Operations and crashes, from the last to the first.
    pub(crate) operations: Vec<String>,
    pub(crate) instant: String,
    pub(crate) choice: String,
}

impl Finding {
    pub(crate) fn new(what: String) -> Box<Self> {
        Box::new(Finding { what, operations: Vec::new(), instant: String::new(), choice: String::new() })
    }

    /// The same finding, in the image that this choice leaves of a crash at this point.
    pub(crate) fn at(mut self: Box<Self>, point: &Point, choice: &Choice) -> Box<Self> {
        if self.instant.is_empty() {
            self.instant = describe(point);
            self.choice = point.state.describe(choice);
            if !self.operations.is_empty() {
                self.operations.push("— the crash".to_owned());
            }
        } else {
            let kept = point.state.describe(choice);
            let kept = kept.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n");
            self.operations.push(format!("— crash {}; kept of the pending writes:\n{kept}", describe(point)));
        }
        self
    }

    /// The parts that a report shows of it.
    pub(crate) fn violation(self, replay: String, config: String) -> Violation {
        let operations = self.operations.into_iter().rev().collect();
        Violation { replay, config, operations, instant: self.instant, choice: self.choice, finding: self.what }
    }
}

pub(crate) type Found<T> = Result<T, Box<Finding>>;

thread_local! {
    static GUARDED: Cell<u32> = const { Cell::new(0) };
}

/// Whether a panic of this thread would become a finding.
pub(crate) fn is_guarded() -> bool {
    GUARDED.get() > 0 || schedule::is_virtual()
}

/// Runs engine code and turns a panic into a finding.
pub(crate) fn guarded<T>(what: &str, run: impl FnOnce() -> T) -> Found<T> {
    GUARDED.set(GUARDED.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(GUARDED.get() - 1);
    result.map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned());
        Finding::new(format!("{what} panicked: {text}"))
    })
}

/// One machine, from its start to its end.
pub(crate) struct Life<'a> {
    context: &'a Context<'a>,
    medium: SimMedium,
    recorder: Arc<Recorder>,
    model: Model,
    options: Options,
    file: Option<AtomicFile>,
    seed: u64,
    generation: u32,
    /// Operations so far, for the report.
    log: Vec<String>,
}

impl<'a> Life<'a> {
    /// A machine on which a file may hold one of these states.
    pub(crate) fn new(context: &'a Context<'a>, medium: SimMedium, states: Vec<Bytes>, seed: u64) -> Self {
        if let Some(barrier) = context.muted {
            medium.mutate(barrier);
        }
        let recorder = Recorder::attach(&medium);
        Life {
            context,
            recorder,
            medium,
            model: Model::new(&context.config, states),
            options: context.config.options(context.slots, context.redo_from),
            file: None,
            seed,
            generation: 0,
            log: Vec::new(),
        }
    }

    /// Opens or creates the file.
    pub(crate) fn start(&mut self, op: &Op, missing: bool, tested: bool) -> Found<()> {
        let result = self.start_inner(op, missing, tested);
        self.finish_report(result)
    }

    fn start_inner(&mut self, op: &Op, missing: bool, tested: bool) -> Found<()> {
        self.log.push(op.to_string());
        self.recorder.arm(tested);
        let before = match op {
            // A file that is being created may be missing or still empty.
            Op::Create { len } => Allowed::new([Bytes::default(), Arc::new(vec![0; *len as usize])], true),
            _ => Allowed::new(self.model.pairs.iter().map(|pair| pair.kept.clone()), missing),
        };
        self.recorder.tick();
        let opened = self.medium.exists(Path::new(PATH)).unwrap_or(false);
        if !opened && missing && *op == Op::Open {
            return Ok(());
        }
        let result = guarded(&format!("{op}"), || match op {
            Op::Create { len } => self.options.create_on(self.medium.clone(), PATH, *len),
            _ => self.open(&self.medium),
        })?;
        let file = result.map_err(|error| Finding::new(format!("{op} failed: {error}")))?;
        let points = self.recorder.take();
        if let Op::Create { len } = op {
            self.model = Model::new(&self.context.config, [Arc::new(vec![0; *len as usize])]);
        }
        self.file = Some(file);
        // The program keeps the content that it sees now, whatever was allowed before.
        self.recorder.arm(false);
        let seen = self.read_all()?;
        if let Some(difference) = self.model.visible().difference(&seen) {
            return Err(Finding::new(format!("after {op}, the file {difference}")));
        }
        self.model.saw(&seen);
        self.crash(&points, 0, |_| Arc::new(before.clone()))?;
        if tested {
            self.recorder.arm(true);
            self.recorder.returned(&self.medium);
            let points = self.recorder.take();
            let after = Arc::new(self.model.allowed());
            self.crash(&points, 1, |_| after.clone())?;
        }
        Ok(())
    }

    /// Runs the script. Returns early once the exploration has seen enough.
    pub(crate) fn play(&mut self, script: &[Phase]) -> Found<()> {
        let mut result = Ok(());
        if self.file.is_some() {
            for (index, phase) in script.iter().enumerate() {
                if self.context.shared.stopped() {
                    break;
                }
                result = self.phase(phase, 2 + index as u64);
                if result.is_err() {
                    break;
                }
            }
        }
        self.recorder.arm(false);
        self.note_reached(&self.medium);
        let file = self.file.take();
        let result = result.and_then(|()| guarded("dropping the handle", || drop(file)));
        let result = result.and_then(|()| self.faults(&self.medium));
        self.finish_report(result)
    }

    /// Puts the operations of this life in front of what a finding says already.
    fn finish_report<T>(&mut self, result: Found<T>) -> Found<T> {
        result.map_err(|mut finding| {
            finding.operations.extend(self.log.drain(..).rev());
            finding
        })
    }

    fn phase(&mut self, phase: &Phase, index: u64) -> Found<()> {
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
                [Op::FlushFails { op, nth }] => vec![self.without_a_flush(op, *nth, mix(self.seed ^ mix(index)))?],
                ops => vec![self.alone(ops)?],
            },
            _ => self.together(&phase.threads, mix(self.seed ^ index))?,
        };
        self.recorder.arm(false);
        self.faults(&self.medium)?;
        let points = self.recorder.take();
        let end = self.recorder.clock();
        let after = self.model.linearize(&history, end);
        if after.is_empty() {
            return Err(Finding::new("the results of the reads fit no order of the operations".to_owned()));
        }
        let mut cache: BTreeMap<u32, Arc<Allowed>> = BTreeMap::new();
        let model = self.model.clone();
        let mut allowed =
            |clock| cache.entry(clock).or_insert_with(|| Arc::new(model.allowed_at(&history, clock))).clone();
        self.crash(&points, index, &mut allowed)?;
        self.model.pairs = after;
        if self.model.pairs.len() > 1 {
            // A look at the file settles which order it was.
            let seen = self.read_all()?;
            if let Some(difference) = self.model.visible().difference(&seen) {
                return Err(Finding::new(format!("without a crash, the file {difference}")));
            }
            self.model.saw(&seen);
        }
        Ok(())
    }

    fn event(&self, op: &Op, file: &AtomicFile) -> Found<Event> {
        let began = self.recorder.tick();
        let value = guarded(&op.to_string(), || perform(op, file))?
            .map_err(|error| Finding::new(format!("{op} failed: {error}")))?;
        let returned = Some(self.recorder.tick());
        self.recorder.returned(&self.medium);
        Ok(Event { op: op.clone(), began, returned, value })
    }

    fn file(&self) -> &AtomicFile {
        self.file.as_ref().expect("a life plays its script only after it has started")
    }

    fn alone(&self, ops: &[Op]) -> Found<Vec<Event>> {
        ops.iter().map(|op| self.event(op, self.file())).collect()
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
        let began = self.recorder.tick();
        let file = self.file.take().expect("a life plays its script only after it has started");
        let ended = guarded(&op.to_string(), || end(op, file))?;
        ended.map_err(|error| Finding::new(format!("{op} failed: {error}")))?;
        if *op == Op::Settle {
            self.settled()?;
        }
        self.open_again(op)?;
        let returned = Some(self.recorder.tick());
        self.recorder.returned(&self.medium);
        Ok(Event { op: op.clone(), began, returned, value: None })
    }

    /// Runs an operation during which a flush fails, then drops the handle and opens the file again, on a machine whose
    /// page cache holds what its disk does not.
    fn without_a_flush(&mut self, op: &Op, nth: u32, seed: u64) -> Found<Vec<Event>> {
        let began = self.recorder.tick();
        self.recorder.trip(nth, seed);
        let result = if *op == Op::Close {
            let file = self.file.take().expect("a life plays its script only after it has started");
            guarded(&op.to_string(), || end(op, file))?
        } else {
            guarded(&op.to_string(), || perform(op, self.file()))?.map(drop)
        };
        let returned = match (result, self.recorder.tripped()) {
            (Ok(()), false) => Some(self.recorder.tick()),
            (Err(_), true) => None,
            (Ok(()), true) => return Err(Finding::new(format!("{op}: succeeded although its flush {nth} failed"))),
            (Err(error), false) => return Err(Finding::new(format!("{op} failed: {error}"))),
        };
        let failed = Event { op: op.clone(), began, returned, value: None };
        let began = self.recorder.tick();
        let file = self.file.take();
        guarded("dropping the handle", || drop(file))?;
        self.open_again(op)?;
        let returned = Some(self.recorder.tick());
        self.recorder.returned(&self.medium);
        Ok(vec![failed, Event { op: Op::Drop, began, returned, value: None }])
    }

    fn open_again(&mut self, after: &Op) -> Found<()> {
        let opened = guarded("opening again", || self.open(&self.medium))?;
        self.file = Some(opened.map_err(|error| Finding::new(format!("after {after}: the open failed: {error}")))?);
        Ok(())
    }

    /// Opens the file as programs do, where no schedule stands against it.
    fn open(&self, medium: &SimMedium) -> untorn::Result<AtomicFile> {
        if self.context.config.loses_flushes() {
            self.options.open_on(Latched::new(medium.clone()), PATH)
        } else {
            self.options.open_on(medium.clone(), PATH)
        }
    }

    /// A settled file is a plain one: its own bytes are the state, now and after a crash, and no sidecar is left.
    fn settled(&self) -> Found<()> {
        let state = self.medium.crash_state();
        let visible = self.model.visible();
        let mut machines = vec![self.medium.clone()];
        for choice in [state.nothing(), state.everything()] {
            machines.push(state.image(&choice).boot());
        }
        for (index, medium) in machines.iter().enumerate() {
            let bytes = medium.peek(PATH).unwrap_or_default();
            if let Some(difference) = visible.difference(&bytes) {
                let when = ["", " and a crash that loses all pending writes", " and a crash that loses nothing"][index];
                return Err(Finding::new(format!("after settle{when}, the plain file {difference}")));
            }
        }
        Ok(())
    }

    fn read_all(&self) -> Found<Vec<u8>> {
        read_all(self.file())
    }

    fn note_reached(&self, medium: &SimMedium) {
        if let Some(barrier) = self.context.muted {
            let reached = &self.context.shared.reached;
            if !reached.load(Ordering::Relaxed) && medium.reached().contains(&barrier) {
                reached.store(true, Ordering::Relaxed);
            }
        }
    }

    fn faults(&self, medium: &SimMedium) -> Found<()> {
        match medium.faults().first() {
            Some(fault) => Err(Finding::new(format!("{fault}"))),
            None => Ok(()),
        }
    }

    /// Crashes the machine at every point and checks what is left.
    fn crash(&self, points: &[Point], phase: u64, mut allowed: impl FnMut(u32) -> Arc<Allowed>) -> Found<()> {
        let Effort { cap, samples, .. } = self.context.effort;
        for (index, point) in points.iter().enumerate() {
            let allowed = allowed(point.clock);
            let seed = mix(self.seed ^ mix(phase << 32 | index as u64));
            let mut rng = Rng::new(seed);
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
                self.check(point, choice, &allowed, afterlife).map_err(|finding| finding.at(point, choice))?;
            }
            if self.lives_on(&mut rng) {
                let seed = rng.next_u64();
                let result = self.next_life(point.state.killed(), &allowed, seed);
                result.map_err(|mut finding| {
                    finding.operations.push(format!("— all processes killed, {}", describe(point)));
                    finding
                })?;
            }
        }
        Ok(())
    }

    /// Whether an image lives on, and with which seed. Decided before anything is known of the image, so that a replay
    /// decides alike.
    fn lives_on(&self, rng: &mut Rng) -> bool {
        let deep_enough = self.generation < self.context.effort.depth;
        // Fewer of the lives after the first live on again: else one crash would breed thousands.
        rng.one_in(self.context.effort.afterlife << (2 * self.generation)) && deep_enough
    }

    /// Recovers what one choice leaves and checks it.
    fn check(&self, point: &Point, choice: &Choice, allowed: &Allowed, afterlife: bool) -> Found<()> {
        let image = point.state.image(choice);
        if !self.context.shared.note(image.digest(), allowed.digest()) {
            return Ok(());
        }
        self.context.shared.recoveries.fetch_add(1, Ordering::Relaxed);
        let medium = image.boot();
        if afterlife {
            let seed = mix(self.seed ^ choice.digest());
            return self.next_life(medium, allowed, seed);
        }
        self.recover(&medium, allowed)
    }

    fn recover(&self, medium: &SimMedium, allowed: &Allowed) -> Found<()> {
        if !medium.exists(Path::new(PATH)).unwrap_or(false) {
            return if allowed.missing {
                Ok(())
            } else {
                Err(Finding::new("the file does not exist after the crash".to_owned()))
            };
        }
        let found = guarded("recovery", || {
            let file = self.open(medium)?;
            Ok::<_, untorn::Error>(read_all(&file))
        })?;
        self.note_reached(medium);
        let bytes = found.map_err(|error| Finding::new(format!("the file does not open: {error}")))??;
        match allowed.difference(&bytes) {
            Some(difference) => Err(Finding::new(format!("the recovered file {difference}"))),
            None => self.faults(medium),
        }
    }

    /// Recovery under the eyes of the recorder, so that it is crashed too, then a few more operations.
    fn next_life(&self, medium: SimMedium, allowed: &Allowed, seed: u64) -> Found<()> {
        let mut life = Life::new(self.context, medium, allowed.states.clone(), seed);
        life.generation = self.generation + 1;
        let mut rng = Rng::new(seed);
        // The file stores none of these choices, so it must be recoverable under any.
        life.options = life
            .options
            .order(*rng.pick(&[Order::OneFence, Order::TwoFence]))
            .read_policy(*rng.pick(&[ReadPolicy::Gather, ReadPolicy::Deploy]))
            .redo_threshold_percent(redo_from(seed));
        life.start(&Op::Open, allowed.missing, true)?;
        let Some(file) = &life.file else { return Ok(()) };
        let len = file.len();
        if len >= 100 {
            let mut generator = Generator::new(&self.context.config, rng, len, seed | 1 << 63);
            let phases = generator.rng.below(4);
            let script = generator.script(self.context.config.threads, 1, phases);
            return life.play(&script);
        }
        life.play(&[])
    }
}

/// Lets a file go in one of the ways there are.
fn end(op: &Op, file: AtomicFile) -> untorn::Result<()> {
    match op {
        Op::Close => file.close(),
        Op::Settle => file.settle(),
        _ => {
            drop(file);
            Ok(())
        }
    }
}

/// The instant of a crash, in words.
pub(crate) fn describe(point: &Point) -> String {
    match point.before {
        Some((step, Some(barrier))) => format!("before {step:?} {barrier:?}, change {}", point.call),
        Some((step, None)) => format!("before {step:?}, change {}", point.call),
        None => format!("after the operation returned, change {}", point.call),
    }
}

fn read_all(file: &AtomicFile) -> Found<Vec<u8>> {
    let mut bytes = vec![0; file.len() as usize];
    let read = guarded("reading the whole file", || file.read_at(&mut bytes, 0))?;
    read.map_err(|error| Finding::new(format!("reading the whole file failed: {error}")))?;
    Ok(bytes)
}
