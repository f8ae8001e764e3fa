//! Each contender by itself, from its start on: what it does over time, with nobody else between. Work in the
//! background goes on from slice to slice, so a log that fills up is seen to do so.

use std::time::Duration;

use super::cost::Cost;
use super::slice::{self, Latencies, Turn};
use super::{Contender, Measured, Point, chosen, left_out, row, setting, workers};
use crate::benches::Progress;
use crate::benches::benchmark::{Job, Outcome};
use crate::cpu::quiesce;
use crate::error::{Error, Result};
use crate::report::Row;

/// The slices of such a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// How many.
    pub(crate) slices: usize,
    /// How long each is.
    pub(crate) time: Duration,
    /// Operations of all threads after which the run ends.
    pub(crate) most_ops: u64,
}

/// Measures a point with each contender that can run, one after the other. A ratio compares slices at the same time
/// after the start of each.
///
/// # Errors
/// [`Error::Usage`] for a system that is not among them, and those of the systems.
pub(crate) fn run_alone(
    job: &Job<'_>,
    contenders: &[Box<dyn Contender>],
    point: &Point,
    plan: &Alone,
    progress: &mut Progress<'_>,
) -> Result<Outcome> {
    job.args.validate(&[], &[], job.file_len())?;
    let (mut outcome, contenders) = (Outcome::default(), chosen(job, contenders)?);
    if point.threads == 0 || point.records < point.threads as u64 {
        let (threads, records) = (point.threads, point.records);
        return Err(Error::usage(format!("{threads} threads cannot share {records} records; use 1 to {records}")));
    }
    let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(job.dir());
    let dir = made.map_err(|source| Error::io("create a directory in", &job.dir(), source))?;
    let overhead = Cost::of_looking()?;
    let (mut all, total) = (Vec::new(), contenders.len() as u64);
    for (done, &contender) in (0..).zip(&contenders) {
        let name = contender.name();
        progress(done, total, &format!("{}, {name}", point.workload));
        let setting = setting(job, point, dir.path(), &name)?;
        if let Some(why) = contender.missing(&setting) {
            outcome.notes.push(left_out(job, &name, &why)?);
            continue;
        }
        let store = contender.set_up(&setting)?;
        quiesce();
        let mut measured = Measured { per_s: Vec::new(), latencies: Latencies::new()?, cost: Cost::default(), ops: 0 };
        let mut workers = workers(store.as_ref(), point.threads)?;
        for round in 1..=plan.slices {
            let left = plan.most_ops.saturating_sub(measured.ops) / point.threads as u64;
            if left == 0 {
                break;
            }
            let ops = job.args.ops.map_or(left, |most| left.min(most));
            let turn = Turn { time: plan.time, ops, batch: 1, clocked: true };
            let before = Cost::now()?;
            let done = slice::all(&mut workers, &turn, |thread| setting.walk(thread, round))?;
            measured.cost = measured.cost + (Cost::now()? - before - overhead);
            measured.per_s.push(done.per_s);
            measured.ops += done.ops;
            if let Some(latencies) = &done.latencies {
                measured.latencies.add(latencies)?;
            }
        }
        drop(workers);
        store.settle()?;
        store.close()?;
        std::fs::remove_dir_all(&setting.dir).map_err(|source| Error::io("remove", &setting.dir, source))?;
        all.push((contender, measured));
    }
    let base = all.first().map(|(contender, first)| (contender.name(), first.per_s.clone())).unwrap_or_default();
    let untorn = all.iter().find(|(contender, _)| contender.name().starts_with("untorn"));
    let untorn = untorn.map(|(_, measured)| measured.per_s.clone());
    for (contender, measured) in all {
        let per_op = measured.cost.per_op(measured.ops);
        let system = (contender.name(), contender.durability());
        let row = row(job, point, system, measured, per_op, (&base.0, &base.1), untorn.as_deref());
        outcome.rows.push(Row::Comparison(Box::new(row)));
    }
    progress(total, total, "done");
    Ok(outcome)
}
