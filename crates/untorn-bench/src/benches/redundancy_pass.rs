//! `redundancy-pass`: the cost of finding out that no page was stored to.

use std::time::{Duration, Instant};

use untorn::redundancy::{ProtectOptions, track};
use untorn::testing::storage::{Access, Dax, Medium, MediumKind};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::redundancy::UNWATCHED;
use crate::cpu::process_time;
use crate::error::Result;
use crate::raw::Target;
use crate::report::{PassRow, Row};
use crate::rig::Rig;
use crate::stats::{median, quantile};

const ROUNDS: usize = 31;
const FEWEST_ROUNDS: usize = 5;

/// `redundancy-pass`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "redundancy-pass",
    "processor time of a redundancy pass over an unmodified file",
    &["len", "seconds"],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
)
.of_len(4 << 30);

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    if job.detected.kind == MediumKind::PersistentMemory {
        return Err(job.wrong_medium(UNWATCHED));
    }
    let rig = job.rig(target, &[], 1, 0, progress)?;
    Ok(Outcome { rows: run(&rig, progress)?, notes: Vec::new() })
}

fn run<T: Target>(rig: &Rig<'_, T>, progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let path = rig.place("raw");
    let options = ProtectOptions::new().on_demand();
    let mut rows = Vec::new();
    let mut row = |tracking, what, times: Vec<(f64, f64)>| {
        let (cpu, wall): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
        rows.push(Row::Pass(PassRow {
            tracking,
            what,
            file_len: rig.file_len,
            cpu_ms: median(&cpu),
            cpu_ms_low: quantile(&cpu, 0.25),
            cpu_ms_high: quantile(&cpu, 0.75),
            wall_ms: median(&wall),
            cpu_ms_per_gib: median(&cpu) / (rig.file_len as f64 / f64::from(1 << 30)),
            passes: cpu.len(),
        }));
    };
    // A shared mapping, on whatever medium.
    let mapped = Dax::new(MediumKind::AssumedPmem).open(&path, Access::ReadWrite, rig.file_len)?;
    progress(0, 3, "mapping every page");
    super::redundancy::touch(&mapped, rig.file_len)?;
    let tracker = track(mapped.address(), rig.file_len as usize)?;
    tracker.take()?;
    row("page-tables", "look", time(rig.args.seconds, || tracker.take().map(drop))?);
    drop(tracker);
    progress(1, 3, "covering the mapping");
    let protected = options.mapping(mapped.address(), rig.file_len as usize)?;
    protected.sync()?;
    row("page-tables", "pass", time(rig.args.seconds, || protected.sync())?);
    protected.close()?;
    drop(mapped);
    progress(2, 3, "covering the file");
    let protected = options.open(&path)?;
    protected.sync()?;
    row("announced", "pass", time(rig.args.seconds, || protected.sync())?);
    protected.close()?;
    progress(3, 3, "done");
    Ok(rows)
}

/// Milliseconds of processor time and of elapsed time of each pass.
fn time(seconds: Option<f64>, pass: impl Fn() -> untorn::Result<()>) -> Result<Vec<(f64, f64)>> {
    let mut times = Vec::new();
    let start = Instant::now();
    loop {
        let (cpu, begun) = (process_time(), Instant::now());
        pass()?;
        times.push((milliseconds(process_time() - cpu), milliseconds(begun.elapsed())));
        let is_enough = match seconds {
            Some(seconds) => start.elapsed().as_secs_f64() >= seconds && times.len() >= FEWEST_ROUNDS,
            None => times.len() == ROUNDS,
        };
        if is_enough {
            return Ok(times);
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
