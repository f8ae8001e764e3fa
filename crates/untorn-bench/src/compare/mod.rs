//! Compares any systems by one runner: in turns, in one process, under the same walk and with the same durability.
//!
//! A system is a [`Contender`]. It sets a [`Store`] up in a directory of its own, and the store gives each thread a
//! [`Worker`]: a closure that does one operation at the place it is given. [`run`] measures a list of [`Point`]s, each
//! with all contenders in turns, and makes a row of each contender at each point:
//!
//! 1. A warm-up round, which also finds out how long an operation takes.
//! 2. Timed rounds. In each, every contender runs one slice; odd rounds run them in reverse order. Ratios are those of
//!    the slices of one round.
//! 3. If an operation is so short that a look at the clock would be a large part of it, the latencies come from rounds
//!    of their own after the timed ones.
//! 4. A short pass on a medium that counts, for contenders that can be counted.
//!
//! The first contender is the baseline of `ratio`. The first one whose name begins with "untorn" is that of
//! `ratio_to_untorn`.

mod alone;
mod cost;
mod files;
pub(crate) mod keyvalue;
mod maps;
mod mixed;
pub(crate) mod rivals;
mod single;
mod slice;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use untorn::testing::storage::MediumKind;

pub(crate) use self::alone::{Alone, run_alone};
pub(crate) use self::files::{Atomic, LogLimit, Raws};
pub(crate) use self::maps::{Map, Msync, Shared};
pub(crate) use self::mixed::{Mixed, is_write};
pub(crate) use self::single::{Single, run_singles};
pub(crate) use self::slice::{Slice, Worker};
pub(crate) use self::table::TABLE;

use self::cost::Cost;
use self::slice::{Latencies, Turn};
use crate::args::Pattern;
use crate::benches::Progress;
use crate::benches::benchmark::{Job, Outcome};
use crate::counting::Counters;
use crate::cpu::quiesce;
use crate::error::{Error, Result};
use crate::offsets::{Offsets, Region, mix};
use crate::report::{ComparisonRow, PerOp, Row};
use crate::rig::is_fast;
use crate::stats::{median, pairwise};

/// One system under comparison.
pub(crate) trait Contender {
    /// Its name in the rows. Names of untorn begin with "untorn".
    fn name(&self) -> String;

    /// The durability of an operation that has returned, and the call that gives it.
    fn durability(&self) -> String;

    /// Why it cannot run here, if it cannot: for example on this medium. It is then left out with a note.
    fn missing(&self, _setting: &Setting) -> Option<String> {
        None
    }

    /// Makes its store in the empty directory of the setting, with every record written once and durable.
    ///
    /// # Errors
    /// Those of the system.
    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>>;

    /// The same on a medium that counts fences, flushes and bytes, if there is one for the system.
    ///
    /// # Errors
    /// Those of the system.
    fn set_up_counted(&self, _setting: &Setting) -> Result<Option<(Box<dyn Store>, Counters)>> {
        Ok(None)
    }
}

/// The store of a contender. Dropping it closes it; the runner removes its directory.
pub(crate) trait Store {
    /// What a thread does. The number is that of the thread, from 0 on.
    ///
    /// # Errors
    /// Those of the system.
    fn worker(&self, thread: usize) -> Result<Box<dyn Worker + '_>>;

    /// Finishes work that the store has left for later, so that the counted pass includes it.
    ///
    /// # Errors
    /// Those of the system.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Closes the store after the last operation.
    ///
    /// # Errors
    /// Those of the system.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The size and the place of the store that a contender sets up.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// An empty directory of its own.
    pub(crate) dir: PathBuf,
    /// The medium of the directory.
    pub(crate) kind: MediumKind,
    /// Records of the store. A worker's places are the numbers of records.
    pub(crate) records: u64,
    /// Bytes of a record.
    pub(crate) size: usize,
    /// Threads that work on the store, each on records of its own.
    pub(crate) threads: usize,
    /// The order of places.
    pub(crate) pattern: Pattern,
    /// The seed of everything random.
    pub(crate) seed: u64,
}

impl Setting {
    /// Bytes of all records, in whole pages.
    pub(crate) fn len(&self) -> u64 {
        (self.records * self.size as u64).next_multiple_of(4096)
    }

    fn walk(&self, thread: usize, round: usize) -> Offsets {
        let len = self.records / self.threads as u64;
        let region = Region { base: thread as u64 * len, len };
        Offsets::new(self.pattern, region, 1, mix(self.seed) ^ mix((round * 1024 + thread) as u64))
    }
}

/// The value on the horizontal axis of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct X {
    /// The quantity, for example "threads".
    pub name: &'static str,
    /// Its unit; empty if it has none.
    pub unit: &'static str,
    /// A number, or the name of a category.
    pub value: XValue,
}

/// A number or the name of a category.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum XValue {
    /// A number: the plot has lines.
    Number(f64),
    /// A category: the plot has bars.
    Category(String),
}

impl X {
    /// A number.
    pub(crate) fn number(name: &'static str, unit: &'static str, value: f64) -> Self {
        X { name, unit, value: XValue::Number(value) }
    }

    /// A category.
    #[allow(dead_code, reason = "some figures have categories")]
    pub(crate) fn category(name: &'static str, value: impl Into<String>) -> Self {
        X { name, unit: "", value: XValue::Category(value.into()) }
    }
}

/// One place on the horizontal axis of one workload.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// The workload; each has a panel in the plot.
    pub(crate) workload: String,
    /// The place on the horizontal axis.
    pub(crate) x: X,
    /// Records, at least one for each thread.
    pub(crate) records: u64,
    /// Bytes of a record.
    pub(crate) size: usize,
    /// Number of threads.
    pub(crate) threads: usize,
    /// The order of places.
    pub(crate) pattern: Pattern,
}

/// Slices of a run: their number and length.
#[derive(Clone, Copy, Debug)]
struct Plan {
    rounds: usize,
    slice: Duration,
    /// Operations of a thread in a slice, at most.
    ops: u64,
}

impl Plan {
    /// On a disk a slice is long enough for dozens of flushes.
    fn new(job: &Job<'_>, contenders: usize) -> Plan {
        let (slice, rounds) = match (is_fast(job.detected.kind), job.args.quick) {
            (true, false) => (Duration::from_millis(15), 21),
            (true, true) => (Duration::from_millis(10), 5),
            (false, false) => (Duration::from_millis(200), 15),
            (false, true) => (Duration::from_millis(50), 3),
        };
        let rounds = match job.args.seconds {
            Some(seconds) => ((seconds / slice.as_secs_f64()) as usize / contenders.max(1)).max(3),
            None => rounds,
        };
        Plan { rounds, slice, ops: job.args.ops.unwrap_or(u64::MAX) }
    }
}

/// Measures every point with all contenders that can run.
///
/// # Errors
/// [`Error::Usage`] for a system that is not among them, and those of the systems.
pub(crate) fn run(
    job: &Job<'_>,
    contenders: &[Box<dyn Contender>],
    points: &[Point],
    progress: &mut Progress<'_>,
) -> Result<Outcome> {
    job.args.validate(&[], &[], job.file_len())?;
    let (mut outcome, contenders) = (Outcome::default(), chosen(job, contenders)?);
    if let Some(point) = points.iter().find(|point| point.threads == 0 || point.records < point.threads as u64) {
        let (threads, records) = (point.threads, point.records);
        return Err(Error::usage(format!("{threads} threads cannot share {records} records; use 1 to {records}")));
    }
    let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(job.dir());
    let dir = made.map_err(|source| Error::io("create a directory in", &job.dir(), source))?;
    let total = points.len() as u64;
    for (done, point) in (0..).zip(points) {
        let what = format!("{}, {} {}{}", point.workload, point.x.name, value(&point.x), point.x.unit);
        progress(done, total, &what);
        let place = dir.path().join(done.to_string());
        let (rows, notes) = measure(job, &contenders, point, &place)?;
        outcome.rows.extend(rows.into_iter().map(|row| Row::Comparison(Box::new(row))));
        for note in notes {
            if !outcome.notes.contains(&note) {
                outcome.notes.push(note);
            }
        }
        std::fs::remove_dir_all(&place).map_err(|source| Error::io("remove", &place, source))?;
    }
    progress(total, total, "done");
    Ok(outcome)
}

/// The contenders that the user wants, with the baseline and untorn.
fn chosen<'c>(job: &Job<'_>, contenders: &'c [Box<dyn Contender>]) -> Result<Vec<&'c dyn Contender>> {
    let names: Vec<String> = contenders.iter().map(|contender| contender.name()).collect();
    if let Some(unknown) = job.args.systems.iter().find(|&wanted| !names.contains(wanted)) {
        return Err(Error::usage(format!("{unknown:?} is not a system; use some of: {}", names.join(" "))));
    }
    let untorn = names.iter().position(|name| name.starts_with("untorn"));
    let is_wanted = |at: usize| {
        job.args.systems.is_empty() || job.args.systems.contains(&names[at]) || at == 0 || Some(at) == untorn
    };
    Ok((0..names.len()).filter(|&at| is_wanted(at)).map(|at| contenders[at].as_ref()).collect())
}

fn value(x: &X) -> String {
    match &x.value {
        XValue::Number(number) => number.to_string(),
        XValue::Category(name) => name.clone(),
    }
}

/// What the slices of a contender gave.
struct Measured {
    per_s: Vec<f64>,
    latencies: Latencies,
    cost: Cost,
    ops: u64,
}

/// Measures a point. Returns its rows, and notes on contenders that cannot run.
fn measure(
    job: &Job<'_>,
    contenders: &[&dyn Contender],
    point: &Point,
    place: &Path,
) -> Result<(Vec<ComparisonRow>, Vec<String>)> {
    let setting = |name: &str| setting(job, point, place, name);
    let (mut notes, mut running) = (Vec::new(), Vec::new());
    for &contender in contenders {
        let name = contender.name();
        let setting = setting(&name)?;
        match contender.missing(&setting) {
            Some(why) => notes.push(left_out(job, &name, &why)?),
            None => running.push((contender, contender.set_up(&setting)?, setting)),
        }
    }
    let plan = Plan::new(job, running.len());
    let mut measured = Vec::new();
    {
        let mut turns = Vec::new();
        for (_, store, setting) in &running {
            turns.push((workers(store.as_ref(), point.threads)?, setting));
        }
        for _ in &turns {
            let latencies = Latencies::new()?;
            measured.push(Measured { per_s: Vec::new(), latencies, cost: Cost::default(), ops: 0 });
        }
        take_turns(&plan, &mut turns, &mut measured)?;
    }
    let base = measured.first().map(|first| first.per_s.clone()).unwrap_or_default();
    let untorn = running.iter().position(|(contender, ..)| contender.name().starts_with("untorn"));
    let untorn = untorn.map(|at| measured[at].per_s.clone());
    let baseline = running.first().map(|(contender, ..)| contender.name()).unwrap_or_default();
    let mut rows = Vec::new();
    for ((contender, store, _), measured) in running.into_iter().zip(measured) {
        let name = contender.name();
        store.settle()?;
        store.close()?;
        let mut per_op = measured.cost.per_op(measured.ops);
        let counted = setting(&format!("{name}-counted"))?;
        if let Some((store, counters)) = contender.set_up_counted(&counted)? {
            count(&mut per_op, store.as_ref(), &counters, &counted, job)?;
            store.close()?;
        }
        let system = (contender.name(), contender.durability());
        rows.push(row(job, point, system, measured, per_op, (&baseline, &base), untorn.as_deref()));
    }
    Ok((rows, notes))
}

/// The note on a system that cannot run here.
///
/// # Errors
/// [`Error::Usage`] if the user named the system.
pub(crate) fn left_out(job: &Job<'_>, name: &str, why: &str) -> Result<String> {
    if job.args.systems.iter().any(|wanted| wanted == name) {
        return Err(Error::usage(format!("cannot compare {name}: {why}; omit it from --system, or mend that")));
    }
    Ok(format!("without {name}: {why}"))
}

/// Makes a directory for a contender, and the setting for its store there.
fn setting(job: &Job<'_>, point: &Point, place: &Path, name: &str) -> Result<Setting> {
    let dir = place.join(name);
    std::fs::create_dir_all(&dir).map_err(|source| Error::io("create", &dir, source))?;
    let Point { records, size, threads, pattern, .. } = *point;
    Ok(Setting { dir, kind: job.detected.kind, records, size, threads, pattern, seed: job.args.seed() })
}

/// The row of a system with this name and durability; `base` is the name and the slices of the baseline, `untorn` the
/// slices of untorn.
fn row(
    job: &Job<'_>,
    point: &Point,
    (system, durability): (String, String),
    measured: Measured,
    per_op: PerOp,
    base: (&str, &[f64]),
    untorn: Option<&[f64]>,
) -> ComparisonRow {
    let ratio = pairwise(&measured.per_s, base.1);
    ComparisonRow {
        figure: job.benchmark.name,
        workload: point.workload.clone(),
        system,
        durability,
        x: point.x.clone(),
        size: point.size,
        records: point.records,
        threads: point.threads,
        ops_per_s: median(&measured.per_s),
        ratio_to_untorn: untorn.map(|untorn| pairwise(&measured.per_s, untorn).median),
        baseline: base.0.to_owned(),
        ratio: ratio.median,
        ratio_low: ratio.low,
        ratio_high: ratio.high,
        latency_ns: measured.latencies.summary(),
        per_op,
        bytes_per_user_byte: None,
        slices_per_s: measured.per_s,
    }
}

fn workers(store: &dyn Store, threads: usize) -> Result<Vec<Box<dyn Worker + '_>>> {
    (0..threads).map(|thread| store.worker(thread)).collect()
}

/// An operation must take this long for the clock to be read at each one in the timed rounds.
const LONG: Duration = Duration::from_micros(5);

/// All rounds of all contenders.
fn take_turns(
    plan: &Plan,
    turns: &mut [(Vec<Box<dyn Worker + '_>>, &Setting)],
    measured: &mut [Measured],
) -> Result<()> {
    let overhead = Cost::of_looking()?;
    // The warm-up tells how long an operation takes.
    let mut batches = Vec::new();
    for (workers, setting) in turns.iter_mut() {
        let turn = Turn { time: plan.slice, ops: plan.ops, batch: 1, clocked: true };
        let done = slice::all(workers, &turn, |thread| setting.walk(thread, 0))?;
        let mean = done.busy.as_secs_f64() / done.ops.max(1) as f64;
        let is_long = mean >= LONG.as_secs_f64();
        let batch = if is_long { 1 } else { (LONG.as_secs_f64() / mean.max(1e-9)).clamp(1.0, 64.0) as u32 };
        batches.push(u64::from(batch).min(plan.ops) as u32);
        quiesce();
    }
    let clocked_rounds = plan.rounds.div_ceil(3);
    for round in 1..=plan.rounds + clocked_rounds {
        let is_timed = round <= plan.rounds;
        for turn in 0..turns.len() {
            let at = if round % 2 == 0 { turn } else { turns.len() - 1 - turn };
            let is_long = batches[at] == 1;
            if !is_timed && is_long {
                continue;
            }
            let (workers, setting) = &mut turns[at];
            let clocked = is_long || !is_timed;
            let turn = Turn { time: plan.slice, ops: plan.ops, batch: if clocked { 1 } else { batches[at] }, clocked };
            let before = Cost::now()?;
            let done = slice::all(workers, &turn, |thread| setting.walk(thread, round))?;
            // The next contender must not pay for work that this one left to its threads.
            quiesce();
            let cost = Cost::now()? - before - overhead;
            let measured = &mut measured[at];
            if let Some(latencies) = &done.latencies {
                measured.latencies.add(latencies)?;
            }
            if is_timed {
                measured.per_s.push(done.per_s);
                measured.cost = measured.cost + cost;
                measured.ops += done.ops;
            }
        }
    }
    Ok(())
}

/// Operations of the counted pass.
const COUNTED: u64 = 2000;
const COUNTED_ON_DISK: u64 = 200;

/// Counts what operations cost on the medium, with the work that they leave for later.
fn count(per_op: &mut PerOp, store: &dyn Store, counters: &Counters, setting: &Setting, job: &Job<'_>) -> Result<()> {
    let most = if is_fast(setting.kind) { COUNTED } else { COUNTED_ON_DISK };
    let ops = job.args.ops.map_or(most, |ops| (ops * 15).min(most));
    let mut workers = workers(store, setting.threads)?;
    // The first operation after opening may have more to do than any later one.
    let first = Turn { time: Duration::MAX, ops: 1, batch: 1, clocked: false };
    slice::all(&mut workers, &first, |thread| setting.walk(thread, 0))?;
    store.settle()?;
    let before = counters.counts();
    let done = slice::all(&mut workers, &Turn { ops, ..first }, |thread| setting.walk(thread, 1))?;
    store.settle()?;
    let (counts, done) = (counters.counts() - before, done.ops as f64);
    per_op.fences = Some((counts.fences + counts.syncs) as f64 / done);
    per_op.flushes = Some(counts.flushes as f64 / done);
    per_op.bytes_stored = Some(counts.bytes as f64 / done);
    Ok(())
}

#[cfg(test)]
mod tests;
