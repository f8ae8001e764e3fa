//! `idle`: an open but unused file.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use untorn::options::LogPolicy;
use untorn::{Durability, EngineKind};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{FILE, Setup};
use crate::args::Pattern;
use crate::cpu::process_time;
use crate::error::{Error, Result};
use crate::measure::Buffer;
use crate::offsets::{Offsets, Region};
use crate::raw::Target;
use crate::report::{IdleRow, Row};
use crate::rig::Rig;

const SECONDS: f64 = 3.0;

/// Writes before the idle time, enough to start all background work.
const WRITES: u64 = 10_000;
const SIZE: usize = 4096;

/// `idle`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "idle",
    "processor time of an open but unused file",
    &[
        "engine",
        "order",
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
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
);

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let rig = job.rig(target, &[], 1, 0, progress)?;
    Ok(Outcome { rows: run(&rig, progress)?, notes: Vec::new() })
}

fn run<T: Target>(rig: &Rig<'_, T>, progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let setups = Setup::all_of(rig, Durability::PerCommit, &[EngineKind::HybridLog]);
    let total = 2 * setups.len() as u64;
    let mut rows = Vec::new();
    for (index, setup) in setups.iter().enumerate() {
        progress(2 * index as u64, total, "writing every page once");
        let file = rig.fresh(FILE, &setup.options(rig.args))?;
        let region = Region::of_thread(rig.file_len, 0, 1);
        let mut offsets = Offsets::new(Pattern::Random, region, SIZE, rig.args.seed());
        let mut buffer = Buffer::new(SIZE);
        let writes = rig.args.ops.unwrap_or(WRITES);
        for number in 1..=writes {
            file.write_at(buffer.bytes(), offsets.next())?;
            if number.is_multiple_of(rig.args.commit_every().into()) {
                file.sync()?;
            }
        }
        file.sync()?;
        progress(2 * index as u64 + 1, total, "idling");
        let idle = Duration::from_secs_f64(rig.args.seconds.unwrap_or(SECONDS));
        let (start, cpu, sleeps) = (Instant::now(), process_time(), sleeps()?);
        std::thread::sleep(idle);
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), (process_time() - cpu).as_secs_f64());
        let after = self::sleeps()?;
        rows.push(Row::Idle(IdleRow {
            engine: file.info().engine.as_str(),
            log_policy: setup.log_policy.map(LogPolicy::as_str),
            file_len: rig.file_len,
            written: writes * SIZE as u64,
            threads: after.threads,
            seconds,
            cpu_seconds: cpu,
            cpu_share: cpu / seconds,
            wakeups: after.sleeps.saturating_sub(sleeps.sleeps),
        }));
        file.close()?;
    }
    progress(total, total, "done");
    Ok(rows)
}

/// The threads of this process, and their number of voluntary context switches.
struct Sleeps {
    threads: usize,
    sleeps: u64,
}

fn sleeps() -> Result<Sleeps> {
    let tasks = Path::new("/proc/self/task");
    let entries = fs::read_dir(tasks).map_err(|source| Error::io("list", tasks, source))?;
    let mut sum = Sleeps { threads: 0, sleeps: 0 };
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("list", tasks, source))?;
        // Skip a thread that has ended meanwhile.
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        sum.threads += 1;
        sum.sleeps += voluntary_switches(&status);
    }
    Ok(sum)
}

fn voluntary_switches(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_to_sleep_is_counted() {
        let switches = || voluntary_switches(&fs::read_to_string("/proc/thread-self/status").unwrap());
        let (before, start) = (switches(), Instant::now());
        // A thread that is kept off its processor for longer than it meant to sleep does not go to sleep any more.
        // That round then adds no switch.
        while switches() < before + 5 {
            assert!(start.elapsed() < Duration::from_secs(60), "{before} to {}", switches());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(sleeps().unwrap().threads >= 1);
    }
}
