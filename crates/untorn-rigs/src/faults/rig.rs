//! Enumerates the cases, runs them on every core, and collects the results.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use nix::libc;

use super::calls::{CALLS, Call, How};
use super::failures;
use super::judge::{Allowed, Check, Failure, judge};
use super::report::Report;
use super::script::{Place, Setup, script};
use super::tracer::{Action, End, Entry, trace};
use super::verbs::FAILING;
use super::victim::{HANGS, READY, Role};
use crate::error::{Error, Result};

/// The number of attempts at a case whose call is not made.
const MEETINGS: usize = 4;

/// How to start a process that calls [`victim`](super::victim()) with the arguments that follow these.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its first arguments.
    pub words: Vec<String>,
}

/// The selection of cases to try.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workload.
    pub program: Program,
    /// Only failures of this call.
    pub only: Option<String>,
    /// Only this case, in every setup that has it, or in the one that its name begins with.
    pub replay: Option<String>,
    /// Only about this many of the cases, selected by this seed.
    pub sample: Option<(usize, u64)>,
    /// Number of processes at once.
    pub jobs: usize,
}

/// One call, by its number in the workload, failing in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    setup: Setup,
    row: usize,
    /// Counted from 1.
    number: usize,
    how: How,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.setup, CALLS[self.row].name, self.number, self.how)
    }
}

/// A case of the script, or one of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    Script(Case),
    Verb(failures::Case),
}

impl Chosen {
    fn row(&self) -> usize {
        match self {
            Chosen::Script(case) => case.row,
            Chosen::Verb(case) => case.row,
        }
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chosen::Script(case) => case.fmt(f),
            Chosen::Verb(case) => case.fmt(f),
        }
    }
}

/// The results.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Total number of cases.
    pub total: usize,
    /// Cases tried. Each runs in a process that continues after the failure. Cases with a state of their own also run
    /// in a process that exits after it.
    pub tried: usize,
    /// Tried cases in which an operation reported the failure.
    pub told: usize,
    /// Cases whose call was not made: the kernel decides whether a page is in memory, and how many pages are written
    /// again when a file is opened after a crash.
    pub unmet: usize,
    /// The number of calls of each kind in all setups, and the number of their cases.
    pub calls: BTreeMap<&'static str, (usize, usize)>,
    /// System calls of the workload that are never made to fail, by number.
    pub spared: BTreeMap<i64, usize>,
    /// The token and description of each violation.
    pub violations: Vec<(String, String)>,
}

impl Outcome {
    /// Whether there is no violation, and almost all cases were tried.
    pub fn clean(&self) -> bool {
        self.violations.is_empty() && self.tried > 0 && self.unmet <= self.tried / 20
    }
}

/// The record of one process.
struct Life {
    reports: Vec<Report>,
    /// The number of reports received before the chosen call failed.
    failed_at: Option<usize>,
    /// The number of calls in the script, by row.
    counts: Vec<usize>,
    spared: BTreeMap<i64, usize>,
}

/// Tries every case, or the requested ones. A run takes minutes, so it passes each violation to `tell` at once.
///
/// # Errors
/// [`Error::Missing`] if processes may not be traced, and any error that prevents the workload from starting.
pub fn run(settings: &Settings, tell: &(dyn Fn(&str) + Sync)) -> Result<Outcome> {
    if let Some(name) = settings.only.as_ref().filter(|name| !CALLS.iter().any(|call| call.name == **name)) {
        let names: Vec<_> = CALLS.iter().map(|call| call.name).collect();
        return Err(Error::failed(format!("select the call {name:?}"), format!("use one of: {}", names.join(" "))));
    }
    let mut outcome = Outcome::default();
    let mut cases = Vec::new();
    for setup in Setup::all() {
        let life = undisturbed(&settings.program, setup)?;
        for (row, call) in CALLS.iter().enumerate().filter(|(_, call)| setup.place != Place::Ring || of_ring(call)) {
            let numbers = 1..=life.counts[row];
            let case = move |number, how| Chosen::Script(Case { setup, row, number, how });
            let new = numbers.flat_map(|number| call.ways().map(move |how| case(number, how)));
            let before = cases.len();
            cases.extend(new);
            if cases.len() > before {
                let tally = outcome.calls.entry(call.name).or_default();
                *tally = (tally.0 + life.counts[row], tally.1 + cases.len() - before);
            }
        }
        for (number, count) in life.spared {
            *outcome.spared.entry(number).or_default() += count;
        }
    }
    for verb in FAILING {
        let counts = failures::undisturbed(&settings.program, verb)?;
        for ((row, call), count) in CALLS.iter().enumerate().zip(counts).filter(|(_, count)| *count > 0) {
            let case = |number, how| Chosen::Verb(failures::Case { verb, row, number, how });
            let before = cases.len();
            cases.extend((1..=count).flat_map(|number| call.ways().map(move |how| case(number, how))));
            let tally = outcome.calls.entry(call.name).or_default();
            *tally = (tally.0 + count, tally.1 + cases.len() - before);
        }
    }
    outcome.total = cases.len();
    let chosen = choose(settings, cases)?;
    let (next, outcome) = (AtomicUsize::new(0), Mutex::new(outcome));
    let broken = Mutex::new(None);
    let locked = || outcome.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for _ in 0..settings.jobs.max(1) {
            scope.spawn(|| {
                while let Some(case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let attempted = match case {
                        Chosen::Script(case) => attempt(&settings.program, case, settings.replay.is_some()),
                        Chosen::Verb(case) => met(|| failures::attempt(&settings.program, case)),
                    };
                    match attempted {
                        Ok(Ok(Course::Unmet)) => locked().unmet += 1,
                        Ok(Ok(course)) => {
                            let mut outcome = locked();
                            outcome.tried += 1;
                            outcome.told += usize::from(course == Course::Told);
                        }
                        Ok(Err(what)) => {
                            tell(&format!("violation: --replay '{case}': {what}"));
                            let mut outcome = locked();
                            outcome.tried += 1;
                            outcome.violations.push((case.to_string(), what));
                        }
                        Err(error) => {
                            // The rig itself failed, so skip the rest.
                            next.store(chosen.len(), Ordering::Relaxed);
                            *broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        }
                    }
                }
            });
        }
    });
    match broken.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => {
            let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
            outcome.violations.sort();
            Ok(outcome)
        }
    }
}

/// With io_uring, only its own calls are tried: the others are the same as without it.
fn of_ring(call: &Call) -> bool {
    call.name.starts_with("io_uring") || call.name == "mmap"
}

fn choose(settings: &Settings, cases: Vec<Chosen>) -> Result<Vec<Chosen>> {
    let named = |case: &Chosen| match (&settings.only, &settings.replay) {
        (_, Some(token)) => {
            let name = case.to_string();
            name == *token || name.split_once(':').is_some_and(|(_, rest)| rest == token)
        }
        (Some(only), None) => CALLS[case.row()].name == only,
        (None, None) => true,
    };
    let mut chosen: Vec<Chosen> = cases.into_iter().filter(named).collect();
    if let Some((wanted, seed)) = settings.sample {
        let stride = chosen.len().div_ceil(wanted.max(1)).max(1);
        let from = untorn_sim::Rng::new(seed).below(stride as u64) as usize;
        chosen = chosen.into_iter().skip(from).step_by(stride).collect();
    }
    match (chosen.is_empty(), &settings.replay, &settings.only) {
        (false, ..) => Ok(chosen),
        (true, Some(token), _) => {
            // An outdated token must not look like a fixed violation.
            let how = token.rsplit(':').next().unwrap_or_default();
            let why = How::from_str(how).err().unwrap_or_else(|| "no case has this token on this machine".to_owned());
            Err(Error::failed(format!("replay {token:?}"), why))
        }
        (true, None, only) => Err(Error::failed(
            "select cases",
            format!("the workload makes no call {}", only.as_deref().unwrap_or("at all")),
        )),
    }
}

/// Runs the workload without failures: it must be correct. Counts its calls.
fn undisturbed(program: &Program, setup: Setup) -> Result<Life> {
    let dir = Lodging::new(setup.place)?;
    let unsound = |what| Error::failed(format!("run the workload {setup} without failures"), what);
    let life = live(program, setup, Role::GoOn, &dir, None)?.map_err(unsound)?;
    judge(setup, None, &life.reports, false).map_err(unsound)?;
    Ok(life)
}

/// The outcome of a case without a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// An operation reported the failure.
    Told,
    /// All operations succeeded.
    GotOver,
    /// The workload did not make the call this time.
    Unmet,
}

/// Tries one case. Returns its outcome or the violation.
fn attempt(program: &Program, case: &Case, stop_always: bool) -> Result<Check<Course>> {
    let course = met(|| attempt_as(program, case, Role::GoOn))?
        .map_err(|what| format!("if the process continues after the failure: {what}"));
    // If nothing failed, a process that stops would have done the same.
    if course != Ok(Course::Told) || !(stop_always || CALLS[case.row].leaves_its_own(case.how)) {
        return Ok(course);
    }
    Ok(met(|| attempt_as(program, case, Role::Stop))?
        .map_err(|what| format!("if the process exits after the failure: {what}")))
}

/// Tries a case until its call is made.
fn met(mut attempt: impl FnMut() -> Result<Check<Course>>) -> Result<Check<Course>> {
    let mut course = Ok(Course::Unmet);
    for _ in 0..MEETINGS {
        course = attempt()?;
        if course != Ok(Course::Unmet) {
            break;
        }
    }
    Ok(course)
}

fn attempt_as(program: &Program, case: &Case, role: Role) -> Result<Check<Course>> {
    let dir = Lodging::new(case.setup.place)?;
    let life = match live(program, case.setup, role, &dir, Some(case))? {
        Ok(life) => life,
        Err(what) => return Ok(Err(what)),
    };
    if life.failed_at.is_some_and(|at| at > script().len()) {
        // This time the script made fewer such calls, and the failed call belongs to the final examination.
        return Ok(Ok(Course::Unmet));
    }
    let duty = CALLS[case.row].duty(case.how, case.setup.makes_room());
    let failure = life.failed_at.map(|at| Failure { how: case.how, duty, at });
    let course = match failure {
        None => Course::Unmet,
        Some(_) if life.reports.iter().any(|report| matches!(report, Report::Failed { .. })) => Course::Told,
        Some(_) => Course::GotOver,
    };
    match judge(case.setup, failure, &life.reports, role == Role::Stop) {
        Ok(allowed) if course == Course::Told && role == Role::Stop => {
            Ok(examined(program, case.setup, &dir, &allowed)?.map(|()| course))
        }
        judged => Ok(judged.map(|_| course)),
    }
}

fn examined(program: &Program, setup: Setup, dir: &Lodging, allowed: &Allowed) -> Result<Check<()>> {
    Ok(live(program, setup, Role::Examine, dir, None)?.and_then(|life| allowed.examine(&life.reports)))
}

/// Runs one process to its end. A signal, a panic or a hang is a violation.
fn live(program: &Program, setup: Setup, role: Role, dir: &Lodging, case: Option<&Case>) -> Result<Check<Life>> {
    let mut command = Command::new(&program.path);
    // Trace the case's call, or all calls to count them; for an examiner, a call that it never makes.
    let asked = match (case, role) {
        (Some(case), _) => CALLS[case.row].number.to_string(),
        (None, Role::Examine) => libc::SYS_reboot.to_string(),
        (None, _) => String::new(),
    };
    command.args(&program.words).args([role.as_str(), &setup.to_string()]).arg(dir.file()).arg(asked);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("UNTORN_ASSUME_PMEM", if setup.place == Place::Memory { "1" } else { "0" });
    command.env("RUST_BACKTRACE", "0");
    let mut child = command.spawn().map_err(Error::io_at("run", &program.path))?;
    let (input, output, complaints) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut input), Some(mut output), Some(mut complaints)) = (input, output, complaints) else {
        return Err(Error::failed("run the workload", "its pipes are missing"));
    };
    let mut ready = [0; READY.len()];
    output.read_exact(&mut ready).map_err(Error::system("read the workload's ready message"))?;
    let mut meddler = Meddler { case, output: &output, calls: Vec::new(), failed: None, torn: None };
    let end = trace(&mut child, || input.write_all(&[0]), &mut |entry| meddler.meddle(entry))?;
    let Meddler { calls, failed, .. } = meddler;
    let (mut said, mut complaint) = (String::new(), String::new());
    output.read_to_string(&mut said).map_err(Error::system("read the workload's output"))?;
    complaints.read_to_string(&mut complaint).map_err(Error::system("read the workload's output"))?;
    match end {
        End::Exited(0) => {}
        End::Exited(HANGS) => return Ok(Err("the workload hangs".to_owned())),
        End::Exited(code) => return Ok(Err(format!("the workload exited with code {code}: {}", complaint.trim()))),
        End::Killed(signal) => return Ok(Err(format!("signal {signal} killed the workload: {}", complaint.trim()))),
    }
    let reports = match said.lines().map(str::parse).collect() {
        Ok(reports) => reports,
        Err(what) => return Ok(Err(what)),
    };
    let lines = |bytes: u64| said.bytes().take(bytes as usize).filter(|byte| *byte == b'\n').count();
    let (mut counts, mut spared) = (vec![0; CALLS.len()], BTreeMap::new());
    // The final examination is not part of the script.
    let len = script().len();
    for (entry, _) in calls.iter().filter(|(_, said)| lines(*said) <= len) {
        match Call::row(entry) {
            Some(row) => counts[row] += 1,
            None => *spared.entry(entry.number).or_default() += 1,
        }
    }
    Ok(Ok(Life { reports, failed_at: failed.map(lines), counts, spared }))
}

/// Decides about each traced call of one process.
struct Meddler<'a> {
    case: Option<&'a Case>,
    output: &'a ChildStdout,
    /// The calls made, each with the number of report bytes before it.
    calls: Vec<(Entry, u64)>,
    /// The number of report bytes before the chosen call.
    failed: Option<u64>,
    /// The thread whose next write fails, and its errno.
    torn: Option<(i32, i32)>,
}

impl Meddler<'_> {
    fn meddle(&mut self, entry: &Entry) -> Action {
        if entry.number == libc::SYS_pwrite64
            && let Some((_, errno)) = self.torn.take_if(|(thread, _)| *thread == entry.thread)
        {
            return Action::Answer(-i64::from(errno));
        }
        // FIONREAD on a pipe never fails.
        let said = rustix::io::ioctl_fionread(self.output).unwrap_or(0);
        self.calls.push((*entry, said));
        if let Some(case) = self.case
            && self.failed.is_none()
            && Call::row(entry) == Some(case.row)
            && self.calls.iter().filter(|(entry, _)| Call::row(entry) == Some(case.row)).count() == case.number
        {
            self.failed = Some(said);
            return fail(case.how, entry, &mut self.torn);
        }
        match entry.number {
            // Answer flushes as the filter does.
            libc::SYS_fsync | libc::SYS_fdatasync => Action::Answer(0),
            _ => Action::Run,
        }
    }
}

/// Has a call fail. After a torn write the next one of the thread is to fail with the errno that comes into `torn`.
pub(super) fn fail(how: How, entry: &Entry, torn: &mut Option<(i32, i32)>) -> Action {
    let half = entry.arguments[2].div_ceil(2);
    match how {
        How::Errno(errno) => Action::Answer(-i64::from(errno)),
        How::Short => Action::Shorten(half),
        // One byte cannot be halved, and a write of zero bytes is the error itself.
        How::Torn(errno) if entry.arguments[2] < 2 => Action::Answer(-i64::from(errno)),
        How::Torn(errno) => {
            *torn = Some((entry.thread, errno));
            Action::Shorten(half)
        }
    }
}

/// A process's own directory.
struct Lodging(tempfile::TempDir);

impl Lodging {
    fn new(place: Place) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let base = if place == Place::Memory && memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::tempdir_in(&base).map_err(Error::io_at("create a directory in", &base))?;
        Ok(Lodging(dir))
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("data")
    }
}
