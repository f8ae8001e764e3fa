//! `atomic-read`: reads of settled and reflected pages, compared with memcpy.

use untorn::options::ReadPolicy;
use untorn::{AtomicFile, Durability, EngineKind};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{Case, Cases, FILE, Setup, add_scaling, count, has_background, is_pmem, notes};
use crate::error::Result;
use crate::measure::{Arm, Plan, interleave};
use crate::model::Looks;
use crate::offsets::{Offsets, Region};
use crate::raw::{Raw, Target};
use crate::report::{CopyRow, Row};
use crate::rig::Rig;

/// The place of the bytes that a row reads, and whether reads deploy them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// All in the data file.
    Settled,
    /// All in the sidecar; reads gather them.
    Gathered,
    /// All in the sidecar; the read deploys them. Each page is read once, because the next read finds it settled.
    Deployed,
}

impl State {
    /// The variants of an engine. Reads of the hybrid-log engine never deploy.
    fn of(engine: EngineKind) -> &'static [State] {
        match engine {
            EngineKind::HybridLog => &[State::Settled, State::Gathered],
            _ => &[State::Settled, State::Gathered, State::Deployed],
        }
    }

    fn policy(self) -> ReadPolicy {
        if self == State::Deployed { ReadPolicy::Deploy } else { ReadPolicy::Gather }
    }

    fn name(self) -> &'static str {
        if self == State::Settled { "settled" } else { "reflected" }
    }

    fn prepare<T: Target>(self, rig: &Rig<'_, T>, file: &AtomicFile) -> Result<()> {
        if self == State::Settled { rig.settle(file) } else { rig.reflect(file) }
    }
}

/// `atomic-read`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "atomic-read",
    "reads of settled and reflected pages, compared with memcpy from an identical mapping",
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
        "len",
        "seconds",
        "ops",
        "seed",
    ],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
);

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let cases = Case::all(job.args, &Cases::COPIES);
    let rig = job.rig(target, &cases, 1, 0, progress)?;
    let mut rows = run(&rig, &cases, progress)?;
    add_scaling(&mut rows);
    let notes = notes(&rows);
    Ok(Outcome { rows, notes })
}

fn run<T: Target>(rig: &Rig<'_, T>, cases: &[Case], progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let durability = if is_pmem(rig.target) { Durability::PerWrite } else { Durability::PerCommit };
    // The fence order concerns writers only, so measure one order unless more are requested.
    let mut setups = Setup::all(rig, durability);
    if rig.args.orders.is_empty() {
        setups.dedup_by_key(|setup| (setup.engine, setup.log_policy));
    }
    let states: usize = setups.iter().map(|setup| State::of(setup.engine).len()).sum();
    let total = (states * (cases.len() + 2)) as u64;
    let mut done = 0;
    let mut step = |what: &str| {
        progress(done, total, what);
        done += 1;
    };
    let mut rows = Vec::new();
    for setup in &setups {
        for &state in State::of(setup.engine) {
            let setup = Setup { read_policy: state.policy(), ..*setup };
            step("writing every page once");
            let file = rig.fresh(FILE, &setup.options(rig.args))?;
            let mut timed = time(rig, &setup, state, &file, cases, &mut step)?;
            file.close()?;
            step("counting fences, flushes and bytes");
            let (file, counters) = rig.counted(FILE, &setup.options(rig.args))?;
            state.prepare(rig, &file)?;
            for (index, (case, row)) in cases.iter().zip(&mut timed).enumerate() {
                if state == State::Deployed && index > 0 {
                    state.prepare(rig, &file)?;
                }
                let plan = state.fit(rig, case, rig.counting(case.threads, case.size));
                let arm = Arm::new(state.batch(rig, &plan), |buf, offset| file.read_at(buf, offset), || Ok(()));
                let walk = |thread| state.walk(rig, case, &plan, thread, 0);
                count(row, &plan, &counters, &arm, walk, || Ok(()))?;
            }
            file.close()?;
            rows.extend(timed.into_iter().map(Row::from));
        }
    }
    progress(total, total, "done");
    Ok(rows)
}

fn time<T: Target>(
    rig: &Rig<'_, T>,
    setup: &Setup,
    state: State,
    file: &AtomicFile,
    cases: &[Case],
    step: &mut dyn FnMut(&str),
) -> Result<Vec<CopyRow>> {
    let engine = file.info().engine;
    let mut rows = Vec::new();
    let looks = Looks::new(rig.file_len);
    for (index, case) in cases.iter().enumerate() {
        step(&case.describe(&format!("{engine}, {}, {}", state.name(), setup.read_policy)));
        if state == State::Deployed || index == 0 {
            state.prepare(rig, file)?;
        }
        let mut plan = state.fit(rig, case, rig.timed(case.threads, case.size, 3, false));
        plan.background = has_background(engine);
        let batch = state.batch(rig, &plan);
        let mut arms = vec![
            Arm::new(batch, |buf, offset| file.read_at(buf, offset), || Ok(())),
            Arm::new(batch, |buf, offset| rig.raw.read(buf, offset), || Ok(())),
        ];
        // A model of gathering would be the engine itself.
        if state == State::Settled {
            arms.push(Arm::new(batch, |buf, offset| looks.read(&rig.raw, buf, offset), || Ok(())));
        }
        let series = interleave(&plan, &arms, |thread, round| state.walk(rig, case, &plan, thread, round))?;
        let mut row = setup.row(engine, case, &series);
        if let Some(model) = series.get(2) {
            row.compare_to_model(&series[0], &series[1], model);
        }
        row.state = Some(state.name());
        row.read_policy = Some(setup.read_policy.as_str());
        rows.push(row);
    }
    Ok(rows)
}

impl State {
    /// Limits a plan to the existing pages if each may be read only once.
    fn fit<T: Target>(self, rig: &Rig<'_, T>, case: &Case, mut plan: Plan) -> Plan {
        if self == State::Deployed {
            let places = Region::of_thread(rig.file_len, 0, case.threads).len / case.size.next_multiple_of(4096) as u64;
            // One extra round, because the warm-up reads pages too.
            let share = places / (plan.rounds as u64 + 1);
            plan.limit.ops = plan.limit.ops.min(share).max(1);
            let batch = u64::from(self.batch(rig, &plan));
            plan.limit.ops = plan.limit.ops / batch * batch;
        }
        plan
    }

    fn batch<T: Target>(self, rig: &Rig<'_, T>, plan: &Plan) -> u32 {
        // Reads never wait for a device, so the batch is that of a fast medium.
        let most = rig.args.ops.map_or(64, |ops| ops.min(64));
        if self == State::Deployed { most.min(plan.limit.ops) as u32 } else { most as u32 }
    }

    fn walk<T: Target>(self, rig: &Rig<'_, T>, case: &Case, plan: &Plan, thread: usize, round: usize) -> Offsets {
        match self {
            State::Deployed => {
                let region = Region::of_thread(rig.file_len, thread, case.threads);
                Offsets::each_page(case.pattern, region, case.size, plan.limit.ops.saturating_mul(round as u64))
            }
            _ => case.walk(rig.args, rig.file_len, thread, round),
        }
    }
}
