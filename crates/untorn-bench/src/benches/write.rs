//! `atomic-write` and `atomic-commit`: writes, compared with raw copies.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use untorn::options::LogPolicy;
use untorn::{AtomicFile, Durability, EngineKind};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{Case, Cases, FILE, RAW_NOTE, Setup, add_scaling, count, has_background, is_pmem, notes};
use crate::error::Result;
use crate::measure::{Arm, Series, interleave};
use crate::model::Model;
use crate::raw::{Raw, Target};
use crate::report::{CopyRow, Row};
use crate::rig::Rig;
use crate::stats::{median, pairwise};

/// `atomic-write`: each write is durable before the next.
pub(super) const EACH: Benchmark = Benchmark::new(
    "atomic-write",
    "atomic writes, each durable on return, compared with raw copies with a fence each",
    &[
        "size",
        "threads",
        "engine",
        "order",
        "pattern",
        "durability",
        "log-policy",
        "log-size",
        "redo-from",
        "checkpointers",
        "len",
        "seconds",
        "ops",
        "seed",
    ],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, false, progress)),
);

/// `atomic-commit`: a commit after every few writes.
pub(super) const EPOCHS: Benchmark = Benchmark::new(
    "atomic-commit",
    "writes with a commit every 100, compared with raw copies with a fence every 100",
    &[
        "size",
        "threads",
        "engine",
        "order",
        "pattern",
        "log-policy",
        "log-size",
        "redo-from",
        "checkpointers",
        "commit-every",
        "len",
        "seconds",
        "ops",
        "seed",
    ],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, true, progress)),
);

fn begin<T: Target>(target: T, job: &Job<'_>, epochs: bool, progress: &mut Progress<'_>) -> Result<Outcome> {
    let cases = Case::all(job.args, &Cases::COPIES);
    // The model of the protocol is measured on separate files.
    let rig = job.rig(target, &cases, 1, u64::from(job.is_pmem()), progress)?;
    let default = if job.is_pmem() { Durability::PerWrite } else { Durability::PerCommit };
    let mut rows = match epochs {
        true => run(&rig, &cases, Durability::PerCommit, Some(job.args.commit_every()), progress)?,
        false => run(&rig, &cases, job.args.durability.unwrap_or(default), None, progress)?,
    };
    add_scaling(&mut rows);
    let notes = notes(&rows).into_iter().chain(job.if_block(RAW_NOTE)).collect();
    Ok(Outcome { rows, notes })
}

fn run<T: Target>(
    rig: &Rig<'_, T>,
    cases: &[Case],
    durability: Durability,
    commit_every: Option<u32>,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>> {
    let setups = Setup::all(rig, durability);
    let total = (setups.len() * (cases.len() + 2)) as u64;
    let mut done = 0;
    let mut step = |what: &str| {
        progress(done, total, what);
        done += 1;
    };
    let mut rows = Vec::new();
    let model = is_pmem(rig.target).then(|| Model::new(rig)).transpose()?;
    for setup in &setups {
        step("writing every page once");
        let file = rig.fresh(FILE, &setup.options(rig.args))?;
        let engine = file.info().engine;
        let mut timed = Vec::new();
        for case in cases {
            step(&case.describe(&setup.describe(engine)));
            let mut arms = arms(rig, &file, durability, commit_every);
            let bound = model.as_ref().filter(|_| Model::<T::Raw>::fits(case.size));
            let bound = bound.and_then(|model| protocol(rig, model, setup, engine, durability, commit_every));
            let has_model = bound.is_some();
            arms.extend(bound);
            let plan = rig.timed(case.threads, case.size, arms.len(), has_background(engine));
            let series = interleave(&plan, &arms, |thread, round| case.walk(rig.args, rig.file_len, thread, round))?;
            let mut row = setup.row(engine, case, &series);
            compare(&mut row, &series, has_model);
            row.commit_every = commit_every.or((durability == Durability::PerCommit).then_some(1));
            timed.push(row);
        }
        file.close()?;
        step("counting fences, flushes and bytes");
        let (file, counters) = rig.counted(FILE, &setup.options(rig.args))?;
        // The first commit after opening may have more to do than any later one.
        file.write_at(&[0], 0)?;
        file.sync()?;
        for (case, row) in cases.iter().zip(&mut timed) {
            let plan = rig.counting(case.threads, case.size);
            let arms = arms(rig, &file, durability, commit_every);
            let walk = |thread| case.walk(rig.args, rig.file_len, thread, 0);
            count(row, &plan, &counters, &arms[0], walk, || carry_home(&file))?;
            row.bytes_per_user_byte = Some(row.bytes_per_op / case.size as f64);
        }
        file.close()?;
        rows.extend(timed.into_iter().map(Row::from));
    }
    progress(total, total, "done");
    Ok(rows)
}

/// Checkpoints the log, so that the counts of a window include the whole cost of its writes. Every batch of an arm ends
/// with a commit if one is needed, so other engines have nothing left to do.
pub(super) fn carry_home(file: &AtomicFile) -> Result<()> {
    if file.info().engine == EngineKind::HybridLog {
        file.sync()?;
        file.reclaim()?;
    }
    Ok(())
}

/// The arms: untorn, raw and, for epochs, bare.
fn arms<'a, T: Target>(
    rig: &'a Rig<'_, T>,
    file: &'a AtomicFile,
    durability: Durability,
    commit_every: Option<u32>,
) -> Vec<Arm<'a>> {
    let raw = &rig.raw;
    let nothing = || Ok(());
    let sync = || file.sync().map(|_| ());
    let raw_each = |buf: &mut [u8], offset| {
        raw.write(buf, offset)?;
        raw.fence()
    };
    match (commit_every, durability) {
        (None, Durability::PerWrite) => vec![
            Arm::new(rig.batch(), |buf, offset| file.write_at(buf, offset), nothing),
            Arm::new(rig.batch(), raw_each, nothing),
        ],
        (None, Durability::PerCommit) => {
            let write_and_sync = move |buf: &mut [u8], offset| {
                file.write_at(buf, offset)?;
                sync()
            };
            vec![Arm::new(rig.batch(), write_and_sync, nothing), Arm::new(rig.batch(), raw_each, nothing)]
        }
        (Some(every), _) => vec![
            Arm::new(every, |buf, offset| file.write_at(buf, offset), sync),
            Arm::new(
                every,
                |buf, offset| {
                    lock_once();
                    raw.write(buf, offset)
                },
                || raw.fence(),
            ),
            Arm::new(every, |buf, offset| raw.write(buf, offset), || raw.fence()),
        ],
    }
}

/// The model of the engine's stores, if there is one.
fn protocol<'a, T: Target>(
    rig: &'a Rig<'_, T>,
    model: &'a Model<T::Raw>,
    setup: &Setup,
    engine: EngineKind,
    durability: Durability,
    commit_every: Option<u32>,
) -> Option<Arm<'a>> {
    let (home, order) = (&rig.raw, setup.order);
    // Undo stores as much, but has to fence before the first store to each block.
    let redoes = engine == EngineKind::HybridLog && setup.log_policy != Some(LogPolicy::Undo);
    let commit = move || model.commit(home, order);
    match (engine, commit_every, durability) {
        (EngineKind::Reflection, None, Durability::PerWrite) => {
            let write = move |buf: &mut [u8], offset| model.reflect(home, order, buf, offset);
            Some(Arm::new(rig.batch(), write, || Ok(())))
        }
        (EngineKind::Reflection, Some(every), _) => {
            Some(Arm::new(every, |buf, offset| model.reflect_later(home, buf, offset), commit))
        }
        (_, Some(every), _) if redoes => Some(Arm::new(every, |buf, offset| model.log(buf, offset), commit)),
        _ => None,
    }
}

/// Adds the results of the arms after the first two to a row.
fn compare(row: &mut CopyRow, series: &[Series], has_model: bool) {
    let (ours, raw) = (&series[0], &series[1]);
    let (bare, model) = match &series[2..] {
        [model] if has_model => (None, Some(model)),
        others => (others.first(), others.get(1)),
    };
    row.bare_ops_per_s = bare.map(|bare| median(&bare.per_s));
    row.bare_ratio = bare.map(|bare| pairwise(&ours.per_s, &bare.per_s).median);
    if let Some(model) = model {
        row.compare_to_model(ours, raw, model);
    }
}

/// One locked instruction on a line that no other thread uses: the minimum cost per write of any scheme with a lock. It
/// drains the preceding non-temporal stores, which is most of its cost.
#[inline(always)]
fn lock_once() {
    let cell = AtomicU64::new(0);
    black_box(&cell).fetch_add(1, Ordering::Relaxed);
}
