//! Systems that each do one long operation in a round, such as opening a file after a crash.

use std::time::Instant;

use super::cost::Cost;
use super::slice::Latencies;
use super::{Measured, Point, row};
use crate::benches::benchmark::Job;
use crate::cpu::quiesce;
use crate::error::Result;
use crate::report::Row;

/// A system with one long operation.
pub(crate) trait Single {
    /// Its name in the rows. Names of untorn begin with "untorn".
    fn name(&self) -> String;

    /// The durability of an operation that has returned, and the call that gives it.
    fn durability(&self) -> String;

    /// Restores what the operation needs. It is not timed.
    ///
    /// # Errors
    /// Those of the system.
    fn prepare(&mut self) -> Result<()>;

    /// The operation.
    ///
    /// # Errors
    /// Those of the system.
    fn go(&mut self) -> Result<()>;

    /// Checks the outcome and removes it. It is not timed.
    ///
    /// # Errors
    /// Those of the system.
    fn finish(&mut self) -> Result<()>;
}

/// Measures so many rounds after one that does not count, in each of which every system does its operation once. The
/// first system is the baseline.
///
/// # Errors
/// Those of the systems.
pub(crate) fn run_singles(
    job: &Job<'_>,
    point: &Point,
    systems: &mut [Box<dyn Single + '_>],
    rounds: usize,
) -> Result<Vec<Row>> {
    let overhead = Cost::of_looking()?;
    let mut measured = Vec::new();
    for _ in systems.iter() {
        let latencies = Latencies::new()?;
        measured.push(Measured { per_s: Vec::new(), latencies, cost: Cost::default(), ops: 0 });
    }
    for round in 0..=rounds {
        for turn in 0..systems.len() {
            let at = if round % 2 == 0 { turn } else { systems.len() - 1 - turn };
            let (system, measured) = (&mut systems[at], &mut measured[at]);
            system.prepare()?;
            quiesce();
            let (before, start) = (Cost::now()?, Instant::now());
            system.go()?;
            let took = start.elapsed();
            let cost = Cost::now()? - before - overhead;
            system.finish()?;
            if round > 0 {
                measured.per_s.push(1.0 / took.as_secs_f64().max(1e-9));
                measured.latencies.record(took);
                measured.cost = measured.cost + cost;
                measured.ops += 1;
            }
        }
    }
    let base = measured.first().map(|first| first.per_s.clone()).unwrap_or_default();
    let baseline = systems.first().map(|system| system.name()).unwrap_or_default();
    let untorn = systems.iter().position(|system| system.name().starts_with("untorn"));
    let untorn = untorn.map(|at| measured[at].per_s.clone());
    let mut rows = Vec::new();
    for (system, measured) in systems.iter().zip(measured) {
        let per_op = measured.cost.per_op(measured.ops);
        let system = (system.name(), system.durability());
        let row = row(job, point, system, measured, per_op, (&baseline, &base), untorn.as_deref());
        rows.push(Row::Comparison(Box::new(row)));
    }
    Ok(rows)
}
