//! `hybrid-policy`: reads and writes mixed, under each logging policy (the Libnvmmio paper, Fig. 6).

use untorn::options::{LogPolicy, Order, ReadPolicy};
use untorn::{AtomicFile, Durability, EngineKind};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{Case, Cases, Setup, add_scaling, count, notes};
use super::write::carry_home;
use crate::args::Pattern;
use crate::compare::is_write;
use crate::error::Result;
use crate::measure::{Arm, Series, interleave};
use crate::raw::{Raw, Target};
use crate::report::{CopyRow, Row};
use crate::rig::Rig;
use crate::stats::median;

/// The policies compared, each on its own file.
const ALL: [LogPolicy; 3] = [LogPolicy::Undo, LogPolicy::Redo, LogPolicy::Hybrid];

const READS: [u32; 6] = [0, 20, 40, 60, 80, 100];

/// `hybrid-policy`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "hybrid-policy",
    "4 KiB reads and writes under undo, redo and hybrid logging, from 0 % to 100 % reads",
    &[
        "size",
        "threads",
        "order",
        "pattern",
        "log-policy",
        "log-size",
        "redo-from",
        "checkpointers",
        "commit-every",
        "reads",
        "len",
        "seconds",
        "ops",
        "seed",
    ],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
);

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    if !job.is_pmem() {
        return Err(job.wrong_medium(
            "use a --dir on persistent memory, or set UNTORN_ASSUME_PMEM=1: on other media the log is always redo",
        ));
    }
    let cases = Case::all(job.args, &Cases { sizes: &[4096], threads: &[1], patterns: &[Pattern::Random] });
    // Each policy is measured on its own file, all open at once.
    let rig = job.rig(target, &cases, ALL.len() as u64, 0, progress)?;
    let mut rows = run(&rig, &cases, progress)?;
    add_scaling(&mut rows);
    let notes = notes(&rows);
    Ok(Outcome { rows, notes })
}

fn run<T: Target>(rig: &Rig<'_, T>, cases: &[Case], progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let policies = match &rig.args.log_policies[..] {
        // A quick run too needs all three: one is compared with the better of the others.
        [] => ALL.to_vec(),
        given => given.to_vec(),
    };
    let mixes = rig.args.choose(&rig.args.reads, &READS);
    let orders = rig.args.choose(&rig.args.orders, &[Order::OneFence]);
    let total = (orders.len() * (1 + cases.len() * mixes.len() + policies.len())) as u64;
    let mut done = 0;
    let mut step = |what: &str| {
        progress(done, total, what);
        done += 1;
    };
    let mut rows = Vec::new();
    for &order in &orders {
        let setup = |&policy: &LogPolicy| Setup {
            engine: EngineKind::HybridLog,
            order,
            durability: Durability::PerCommit,
            read_policy: ReadPolicy::Gather,
            log_policy: Some(policy),
        };
        let setups: Vec<Setup> = policies.iter().map(setup).collect();
        step("writing every page of each file");
        let fresh = |setup: &Setup| Ok((*setup, rig.fresh(setup.name(), &setup.options(rig.args))?));
        let files: Vec<(Setup, AtomicFile)> = setups.iter().map(fresh).collect::<Result<_>>()?;
        let mut timed = Vec::new();
        for case in cases {
            for &reads in &mixes {
                step(&case.describe(&format!("{reads} % reads, {order}")));
                timed.extend(time(rig, &files, case, reads)?);
            }
        }
        files.into_iter().try_for_each(|(_, file)| file.close())?;
        for setup in &setups {
            step("counting fences, flushes and bytes");
            count_policy(rig, setup, cases, &mut timed)?;
        }
        rows.extend(timed.into_iter().map(|(_, row)| Row::from(row)));
    }
    progress(total, total, "done");
    Ok(rows)
}

impl Setup {
    /// The name of the file of a policy.
    fn name(&self) -> &'static str {
        self.log_policy.unwrap_or_default().as_str()
    }
}

/// Times every policy and the raw file side by side. Returns the rows with their cases.
fn time<T: Target>(
    rig: &Rig<'_, T>,
    files: &[(Setup, AtomicFile)],
    case: &Case,
    reads: u32,
) -> Result<Vec<(Case, CopyRow)>> {
    // Start every mix after a phase of only writes, so that an adaptive policy has to adapt.
    files.iter().try_for_each(|(_, file)| rig.write_through(file))?;
    let raw = &rig.raw;
    let mut arms: Vec<Arm<'_>> = files.iter().map(|(_, file)| arm(rig, file, reads)).collect();
    arms.push(Arm::numbered(
        rig.args.commit_every(),
        |buf, offset, number| if is_write(number, reads) { raw.write(buf, offset) } else { raw.read(buf, offset) },
        || raw.fence(),
    ));
    let plan = rig.timed(case.threads, case.size, arms.len(), true);
    let mut series = interleave(&plan, &arms, |thread, round| case.walk(rig.args, rig.file_len, thread, round))?;
    let raw = series.pop().unwrap_or_default();
    let share = share_of_better(files, &series);
    let row = |((setup, _), ours): (&(Setup, AtomicFile), Series)| {
        let mut row = setup.row(EngineKind::HybridLog, case, &[ours, raw.clone()]);
        row.commit_every = Some(rig.args.commit_every());
        row.reads_percent = Some(reads);
        row.share_of_better = share.filter(|_| setup.log_policy == Some(LogPolicy::Hybrid));
        (*case, row)
    };
    Ok(files.iter().zip(series).map(row).collect())
}

/// The ratio of hybrid to the better of the two others (the one with the higher median over all rounds), round by
/// round.
fn share_of_better(files: &[(Setup, AtomicFile)], series: &[Series]) -> Option<f64> {
    let of = |policy| {
        let at = files.iter().position(|(setup, _)| setup.log_policy == Some(policy))?;
        Some(&series[at].per_s)
    };
    let (undo, redo, hybrid) = (of(LogPolicy::Undo)?, of(LogPolicy::Redo)?, of(LogPolicy::Hybrid)?);
    let better = if median(undo) > median(redo) { undo } else { redo };
    Some(crate::stats::pairwise(hybrid, better).median)
}

fn arm<'a, T: Target>(rig: &Rig<'_, T>, file: &'a AtomicFile, reads: u32) -> Arm<'a> {
    Arm::numbered(
        rig.args.commit_every(),
        move |buf, offset, number| match is_write(number, reads) {
            true => file.write_at(buf, offset),
            false => file.read_at(buf, offset),
        },
        || file.sync().map(drop),
    )
}

fn count_policy<T: Target>(
    rig: &Rig<'_, T>,
    setup: &Setup,
    cases: &[Case],
    rows: &mut [(Case, CopyRow)],
) -> Result<()> {
    let (file, counters) = rig.counted(setup.name(), &setup.options(rig.args))?;
    for case in cases {
        let mine = |of: &Case, row: &CopyRow| of == case && row.log_policy == Some(setup.name());
        for (_, row) in rows.iter_mut().filter(|(of, row)| mine(of, row)) {
            let arm = arm(rig, &file, row.reads_percent.unwrap_or(0));
            let plan = rig.counting(case.threads, case.size);
            let walk = |thread| case.walk(rig.args, rig.file_len, thread, 0);
            count(row, &plan, &counters, &arm, walk, || carry_home(&file))?;
        }
    }
    file.close()?;
    Ok(())
}
