//! Every call of the medium fails, one at a time and in each way it can, under one script of operations.
//!
//! A dry run counts the calls. Then the script runs anew up to the failure, for each call and each way to fail. The
//! documentation of [`AtomicFile`] promises what must hold after it: for the handle, for the file after a kill and
//! after a power cut, and for the rest of the script.
//!
//! `cargo test` takes a sample that follows from `UNTORN_SEED`; `UNTORN_FAULTS=all` tries everything, and
//! `UNTORN_FAULTS=TOKEN` one case again, or all whose token begins so.

pub(crate) mod machine;
pub(crate) mod script;

use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use untorn::options::{Layout, LogPolicy, Order};
use untorn::testing::storage::{Medium, MediumClass};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options, Result};
use untorn_sim::script::{Bytes, Content, Op};
use untorn_sim::{CrashState, Instant, Rng, SimMedium, Step, Verdict};

use crate::common::errno;
use machine::{Machine, PATH, read_all};
use script::script;

const EIO: i32 = 5;
const EINTR: i32 = 4;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// Cases that `cargo test` tries.
const SAMPLE: usize = 200;
/// Cases that it tries with `UNTORN_LONG=1`.
const LONG_SAMPLE: usize = 600;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) class: MediumClass,
    durability: Durability,
    order: Order,
    engine: Engine,
}

/// The engine, and what only one of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Reflection(Layout),
    Shadow,
    HybridLog(LogPolicy),
}

impl Setup {
    pub(crate) fn all() -> Vec<Setup> {
        let mut all = Vec::new();
        for class in [MediumClass::Block, MediumClass::PersistentMemory] {
            for durability in [Durability::PerCommit, Durability::PerWrite] {
                for order in [Order::OneFence, Order::TwoFence] {
                    let mut engines = vec![
                        Engine::Reflection(Layout::Dense),
                        Engine::Reflection(Layout::Sparse),
                        Engine::Shadow,
                        Engine::HybridLog(LogPolicy::Redo),
                    ];
                    if class == MediumClass::PersistentMemory {
                        engines.push(Engine::HybridLog(LogPolicy::Undo));
                    }
                    all.extend(engines.into_iter().map(|engine| Setup { class, durability, order, engine }));
                }
            }
        }
        all
    }

    /// The fewest slots, so that cuts are frequent and a wide commit is spilled; and of the hybrid log chunks so
    /// small, and so few at first, that the log grows and is used again.
    pub(crate) fn options(&self) -> Options {
        let options = Options::new().durability(self.durability).order(self.order).max_len(64 << 10);
        match self.engine {
            Engine::Reflection(layout) => options.engine(EngineKind::Reflection).layout(layout).record_area(2, 4),
            Engine::Shadow => options.engine(EngineKind::Shadow).record_area(2, 4),
            // Background work is not part of the script.
            Engine::HybridLog(policy) => {
                options.engine(EngineKind::HybridLog).log_policy(policy).record_area(1, 4).checkpoint_threads(0)
            }
        }
    }

    /// The content of the file after an operation that succeeded.
    pub(crate) fn after(&self, before: &Content, op: &Op) -> Content {
        let engine = match self.engine {
            Engine::Reflection(_) => EngineKind::Reflection,
            Engine::Shadow => EngineKind::Shadow,
            Engine::HybridLog(_) => EngineKind::HybridLog,
        };
        before.after(op, engine, self.durability)
    }
}

impl Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = if self.class == MediumClass::Block { "block" } else { "pmem" };
        write!(f, "{class}/{}/{}/", self.durability, self.order)?;
        match self.engine {
            Engine::Reflection(layout) => write!(f, "{layout}"),
            Engine::Shadow => write!(f, "shadow"),
            Engine::HybridLog(policy) => write!(f, "hybrid-log-{policy}"),
        }
    }
}

/// The way in which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Without an effect, with this errno.
    Refused(i32),
    /// After this many bytes of a write.
    Partly(usize),
    /// As a failed writeback, by this seed.
    Lost(u64),
}

impl How {
    /// The failures that the medium's contract allows for a call of this kind. Loads, stores and fences of persistent
    /// memory are instructions.
    fn all(class: MediumClass, step: Step) -> Vec<How> {
        let block = class == MediumClass::Block;
        if step == Step::Flush || !block && matches!(step, Step::Read | Step::Write | Step::Store | Step::Fence) {
            return Vec::new();
        }
        let mut all = vec![How::Refused(EIO), How::Refused(ENOSPC), How::Refused(EDQUOT)];
        match step {
            Step::Write | Step::Store => all.extend([How::Partly(8), How::Partly(64), How::Partly(1000)]),
            Step::Fence | Step::Sync if block => all.extend([How::Lost(1), How::Lost(2), How::Lost(3)]),
            // The real media call again what a signal interrupts, except for these.
            Step::Open | Step::Create | Step::SetLen => all.push(How::Refused(EINTR)),
            _ => {}
        }
        all
    }

    fn errno(self) -> i32 {
        match self {
            How::Refused(errno) => errno,
            How::Partly(_) => ENOSPC,
            How::Lost(_) => EIO,
        }
    }

    fn verdict(self, instant: &Instant<'_>) -> Verdict {
        let error = errno(instant, self.errno());
        match self {
            How::Refused(_) => Verdict::Refuse(error),
            How::Partly(bytes) => Verdict::WriteSome { bytes, error },
            How::Lost(seed) => Verdict::LoseDirty { seed, error },
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    setup: Setup,
    /// The call that fails, counted from 0.
    call: usize,
    step: Step,
    how: How,
}

impl Case {
    /// Whether an operation may succeed all the same: if the disk gives no longer log, a checkpoint makes room in it.
    fn is_got_over(&self) -> bool {
        matches!(self.setup.engine, Engine::HybridLog(_)) && matches!(self.how.errno(), ENOSPC | EDQUOT)
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = format!("{:?}", self.how).to_lowercase();
        write!(f, "{}:{:?}-{}:{how}", self.setup, self.step, self.call)
    }
}

/// The one call that fails, and what came by so far.
#[derive(Default)]
struct Tap {
    calls: Vec<Step>,
    fails: Option<(usize, How)>,
    failed: Option<Step>,
}

/// A run of the script on one machine.
struct Run {
    machine: Machine,
    tap: Arc<Mutex<Tap>>,
    /// `None` as long as there is no file.
    model: Option<Content>,
    rng: Rng,
}

type Check<T> = std::result::Result<T, String>;

fn is_one_of(what: &str, found: &[u8], allowed: &[Bytes]) -> Check<()> {
    if allowed.iter().any(|bytes| bytes.as_slice() == found) {
        return Ok(());
    }
    let first = |bytes: &Bytes| bytes.iter().zip(found).position(|(one, two)| one != two);
    let differences: Vec<_> = allowed.iter().map(|bytes| (bytes.len(), first(bytes))).collect();
    Err(format!("{what}: {} bytes that differ from each allowed state (length, place): {differences:?}", found.len()))
}

impl Run {
    fn new(setup: Setup, fails: Option<(usize, How)>, seed: u64) -> Self {
        let machine = Machine::new(setup);
        let tap = Arc::new(Mutex::new(Tap { fails, ..Tap::default() }));
        let hooked = tap.clone();
        machine.medium.set_hook(Box::new(move |instant| {
            let mut tap = hooked.lock().unwrap();
            let call = tap.calls.len();
            tap.calls.push(instant.step);
            match tap.fails {
                Some((at, how)) if at == call => {
                    tap.failed = Some(instant.step);
                    how.verdict(instant)
                }
                _ => Verdict::Allow,
            }
        }));
        Run { machine, tap, model: None, rng: Rng::new(seed) }
    }

    fn open(&self, medium: &SimMedium) -> Result<AtomicFile> {
        self.machine.open(medium, false)
    }

    /// The kind of call that failed.
    fn failed(&self) -> Option<Step> {
        self.tap.lock().unwrap().failed
    }

    /// The whole script, with everything checked from the failure on; or from the start, but then the checks' own calls
    /// count too.
    fn play(&mut self, case: Option<&Case>, checked: bool) -> Check<()> {
        let mut since = None;
        for (number, op) in script().into_iter().enumerate() {
            let before = self.model.clone();
            let empty = Content::committed(Bytes::default());
            let known = before.as_ref().unwrap_or(&empty);
            let op = op.fit(known.now.len() as u64);
            let after = self.machine.setup.after(known, &op);
            let failed_before = self.failed();
            let result = self.machine.operate(&op);
            let place = |what: String| format!("operation {number}, {op:?}: {what}");
            if self.failed().is_some() && failed_before.is_none() {
                let case = case.expect("only a case makes a call fail");
                since = Some(number);
                self.after_failure(case, &op, before, after, result).map_err(place)?;
            } else {
                result.map_err(|error| place(format!("fails although no call does: {error}")))?;
                self.model = Some(after);
            }
            let near = since.is_some_and(|since| number < since + 4);
            if since.is_some() || checked {
                self.look(near).map_err(place)?;
            }
        }
        if since.is_some() || checked { self.end() } else { Ok(()) }
    }

    /// The handle shows what the model says, and a power cut now would leave the last commit.
    fn look(&mut self, cut: bool) -> Check<()> {
        let model = self.model.clone().expect("there is a file by now");
        let seen = read_all(self.machine.file.as_ref().expect("open between operations"))?;
        is_one_of("the handle shows", &seen, &[model.now])?;
        if cut {
            let state = self.machine.medium.crash_state();
            self.cut(&state, 1, &[model.kept], false)?;
        }
        match self.machine.medium.faults().first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(()),
        }
    }

    /// Checks what a failed operation may leave: the handle, the file after a kill, the file after a power cut.
    fn after_failure(
        &mut self,
        case: &Case,
        op: &Op,
        before: Option<Content>,
        after: Content,
        result: Result<()>,
    ) -> Check<()> {
        assert_eq!(self.failed(), Some(case.step), "the script does not repeat itself");
        let flush = matches!(case.step, Step::Fence | Step::Sync | Step::SyncDir | Step::DistrustCache);
        if let Err(error) = &result {
            // After a commit that is durable, the error of closing says so beside its cause.
            let told = matches!(error, Error::Io { .. } | Error::NotClosed { .. }) && error.errno() == case.how.errno();
            if !told {
                return Err(format!("the error is {error}"));
            }
        } else if !matches!(op, Op::Drop) && !matches!(case.step, Step::Unlink | Step::Punch) && !case.is_got_over() {
            // A dropped handle has no caller to report to, and an extra file or hole is nothing to report.
            return Err("it succeeds".to_owned());
        }
        let state = self.machine.medium.crash_state();
        let mut allowed = vec![after.kept.clone()];
        let mut missing = false;
        match &before {
            Some(before) => allowed.push(before.kept.clone()),
            // A file that is being created may be missing, or empty yet.
            None => {
                allowed.push(Bytes::default());
                missing = true;
            }
        }
        let mut poisoned = true;
        match (&self.machine.file, &result) {
            (Some(_), Ok(())) => {
                self.model = Some(after.clone());
                allowed = vec![after.kept];
                poisoned = false;
            }
            (Some(file), Err(_)) => {
                let before = before.expect("a handle has a file");
                let seen = read_all(file)?;
                let took_effect = after.now != before.now && seen == *after.now;
                let now = if took_effect { &after } else { &before };
                is_one_of("after the failure the handle shows", &seen, std::slice::from_ref(&now.now))?;
                let again = seen.get(..3.min(seen.len())).unwrap_or_default();
                match file.write_at(again, 0) {
                    Ok(()) if flush => return Err("a write succeeds after a failed flush".to_owned()),
                    Ok(()) => {
                        if took_effect && !matches!(op, Op::Eager(_) | Op::Resize { .. }) {
                            return Err("it takes effect, and the handle is good".to_owned());
                        }
                        allowed = vec![now.kept.clone()];
                        self.model = Some(now.clone());
                        poisoned = false;
                    }
                    Err(Error::Poisoned { .. }) => {}
                    Err(error) => return Err(format!("the next write: {error}")),
                }
            }
            (None, _) => {}
        }
        let killed = state.killed();
        if !missing || killed.exists(Path::new(PATH)).unwrap_or(false) {
            self.recover(&killed, &allowed).map_err(|what| format!("killed, then {what}"))?;
        }
        self.cut(&state, 3, &allowed, missing)?;
        if poisoned {
            self.start_over(&allowed, op, missing)?;
        }
        Ok(())
    }

    /// Lets the handle go and opens the file anew, with the page cache as it is.
    fn start_over(&mut self, allowed: &[Bytes], op: &Op, missing: bool) -> Check<()> {
        drop(self.machine.file.take());
        if missing && !self.machine.medium.exists(Path::new(PATH)).unwrap_or(false) {
            self.machine.operate(op).map_err(|error| format!("created again: {error}"))?;
        } else {
            self.machine.file =
                Some(self.open(&self.machine.medium).map_err(|error| format!("opened again: {error}"))?);
        }
        let found = read_all(self.machine.file.as_ref().expect("just opened"))?;
        is_one_of("opened again, it shows", &found, allowed)?;
        self.model = Some(Content::committed(Arc::new(found)));
        Ok(())
    }

    /// Power cuts: the extremes, and some between.
    fn cut(&mut self, state: &CrashState, samples: usize, allowed: &[Bytes], missing: bool) -> Check<()> {
        let mut choices = vec![state.nothing(), state.everything()];
        choices.extend((0..samples).map(|_| state.sample(&mut self.rng)));
        for choice in choices {
            let medium = state.image(&choice).boot();
            if missing && !medium.exists(Path::new(PATH)).unwrap_or(false) {
                continue;
            }
            let told = |what| format!("after a power cut, {what}; of what was pending:\n{}", state.describe(&choice));
            self.recover(&medium, allowed).map_err(told)?;
        }
        Ok(())
    }

    /// Opens the file on another machine. A later power cut must leave the content that is seen there.
    fn recover(&mut self, medium: &SimMedium, allowed: &[Bytes]) -> Check<()> {
        let file = self.open(medium).map_err(|error| format!("it does not open: {error}"))?;
        let found = read_all(&file)?;
        is_one_of("the file holds", &found, allowed)?;
        let state = medium.crash_state();
        for choice in [state.nothing(), state.sample(&mut self.rng)] {
            let again = self.open(&state.image(&choice).boot()).map_err(|error| format!("it opens once: {error}"))?;
            is_one_of("what was recovered, after a second power cut", &read_all(&again)?, &[Arc::new(found.clone())])?;
        }
        Ok(())
    }

    /// A clean end: the plain file is what the program saw.
    fn end(&mut self) -> Check<()> {
        let model = self.model.clone().expect("there is a file by now");
        self.machine.operate(&Op::Close).map_err(|error| format!("the last close: {error}"))?;
        self.look(true)?;
        self.machine.operate(&Op::Settle).map_err(|error| format!("the last settle: {error}"))?;
        is_one_of("settled, it holds", &self.machine.medium.peek(PATH).unwrap_or_default(), &[model.now])
    }
}

/// Every case of a setup.
fn cases(setup: Setup) -> Vec<Case> {
    let mut run = Run::new(setup, None, 0);
    let whole = |what: String| panic!("{setup}, with nothing failing: {what}");
    Run::new(setup, None, 0).play(None, true).unwrap_or_else(whole);
    run.play(None, false).unwrap_or_else(whole);
    let calls = run.tap.lock().unwrap().calls.clone();
    let numbered = calls.into_iter().enumerate();
    numbered
        .flat_map(|(call, step)| {
            How::all(setup.class, step).into_iter().map(move |how| Case { setup, call, step, how })
        })
        .collect()
}

fn judge(case: &Case) -> Check<()> {
    let seed = case.call as u64;
    let mut run = Run::new(case.setup, Some((case.call, case.how)), seed);
    let played = catch_unwind(AssertUnwindSafe(|| run.play(Some(case), false)));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!("panicked: {}", text.unwrap_or_else(|| "see above".to_owned())))
    })
}

#[test]
fn every_call_may_fail_and_nothing_is_torn_or_lost() {
    let seed = std::env::var("UNTORN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let wish = std::env::var("UNTORN_FAULTS").unwrap_or_default();
    let all: Vec<Case> = Setup::all().into_iter().flat_map(cases).collect();
    let total = all.len();
    let chosen: Vec<Case> = match wish.as_str() {
        "all" => all,
        "" => {
            let stride = total.div_ceil(untorn_testing::cases(SAMPLE, LONG_SAMPLE));
            let from = Rng::new(seed).below(stride as u64) as usize;
            all.into_iter().skip(from).step_by(stride).collect()
        }
        token => all.into_iter().filter(|case| case.to_string().starts_with(token)).collect(),
    };
    assert!(!chosen.is_empty(), "no case is called {wish:?}");
    let next = AtomicUsize::new(0);
    let findings = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(what) = judge(case) {
                        findings.lock().unwrap().push(format!("UNTORN_FAULTS='{case}': {what}"));
                    }
                }
            });
        }
    });
    let findings = findings.into_inner().unwrap();
    println!("{} of {total} cases (call, number, failure) tried, UNTORN_SEED={seed}", chosen.len());
    let shown = findings.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(findings.is_empty(), "{} of {} cases are wrong:\n{shown}", findings.len(), chosen.len());
}
