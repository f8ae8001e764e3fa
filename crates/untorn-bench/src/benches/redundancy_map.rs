//! The key-value workload of `redundancy` over an [`AtomicMap`]: the cost of periodic redundancy for a program that
//! commits its stores, compared with the same program without redundancy, in turns.
//!
//! Each thread has its own map, commits it, and runs a due pass itself. The program therefore pays the whole cost of
//! a pass, whatever its number of threads, and an arm does nothing outside its turn.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use untorn::redundancy::ProtectOptions;
use untorn::{AtomicMap, Options};

use super::redundancy::{FIELD, Load, RECORD, work};
use crate::cpu::process_time;
use crate::error::{Error, Result};
use crate::offsets::mix;
use crate::raw::Target;
use crate::report::{RedundancyRow, Row};
use crate::rig::Rig;
use crate::stats::median;

/// Operations of a thread per commit.
const COMMIT: u64 = 1000;

/// The state of one thread.
struct Shard {
    map: AtomicMap,
    /// When its next pass is due, on its arm's clock.
    due: Duration,
    passes: Vec<f64>,
}

/// One side of the comparison.
struct Arm {
    shards: Vec<Shard>,
    period: Option<Duration>,
    /// The number of passes per thread.
    needed: usize,
    /// Its running time.
    clock: Duration,
    cpu: Duration,
    ops: u64,
    slices: usize,
}

/// A turn of one arm.
struct Turn {
    number: u64,
    start: Instant,
    /// Its clock at the start of the turn.
    clock: Duration,
    limit: Duration,
}

impl Shard {
    fn serve(&mut self, load: &Load, seed: u64, turn: &Turn, arm: (Option<Duration>, usize)) -> Result<u64> {
        let (mut record, value) = ([0; RECORD as usize], [0xa5; FIELD]);
        let (period, needed) = arm;
        let records = self.map.len() as u64 / RECORD;
        for ops in 0.. {
            let now = turn.start.elapsed();
            match period.filter(|_| self.due <= turn.clock + now) {
                Some(period) => {
                    let begun = Instant::now();
                    self.map.sync_redundancy()?;
                    self.passes.push(begun.elapsed().as_secs_f64());
                    self.due = turn.clock + turn.start.elapsed() + period;
                    if self.passes.len() >= needed {
                        return Ok(ops);
                    }
                }
                None if now >= turn.limit => return Ok(ops),
                None => {}
            }
            let random = mix(seed.wrapping_add(ops));
            let at = (load.zipf.key(random) % records * RECORD) as usize;
            if mix(random) % 100 < load.reads {
                record.copy_from_slice(&self.map[at..at + RECORD as usize]);
                black_box(&record);
            } else {
                let field = at + (random % (RECORD / FIELD as u64)) as usize * FIELD;
                self.map[field..field + FIELD].copy_from_slice(black_box(&value));
            }
            if ops % COMMIT == COMMIT - 1 {
                self.map.commit()?;
            }
            work(load.turns);
        }
        Ok(0)
    }
}

impl Arm {
    fn new(dir: &Path, load: &Load, period: Option<Duration>, least: Duration) -> Result<Self> {
        std::fs::create_dir(dir).map_err(|source| Error::io("create", dir, source))?;
        let len = (load.len / load.threads as u64 / RECORD).max(1) * RECORD;
        let options = match period {
            Some(_) => Options::new().redundancy(ProtectOptions::new().layout(load.layout).on_demand()),
            None => Options::new(),
        };
        let shard = |nth: usize| -> Result<Shard> {
            let path = dir.join(nth.to_string());
            std::fs::write(&path, vec![0x5a; len as usize]).map_err(|source| Error::io("write", &path, source))?;
            let map = options.map(&path)?;
            if period.is_some() {
                map.sync_redundancy()?;
            }
            Ok(Shard { map, due: period.unwrap_or(Duration::MAX), passes: Vec::new() })
        };
        let shards = (0..load.threads).map(shard).collect::<Result<_>>()?;
        let whole = |period: Duration| (least.as_secs_f64() / period.as_secs_f64().max(1e-9)).round().max(1.0) as usize;
        let (clock, cpu) = (Duration::ZERO, Duration::ZERO);
        Ok(Arm { shards, period, needed: period.map_or(0, whole), clock, cpu, ops: 0, slices: 0 })
    }

    /// Whether each thread has done all its passes, and so has run for whole periods.
    fn is_done(&self) -> bool {
        self.shards.iter().all(|shard| shard.passes.len() >= self.needed)
    }

    fn slice(&mut self, load: &Load, number: u64, limit: Duration) -> Result<()> {
        let turn = Turn { number, start: Instant::now(), clock: self.clock, limit };
        let (before, arm) = (process_time(), (self.period, self.needed));
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .shards
                .iter_mut()
                .enumerate()
                .map(|(thread, shard)| {
                    let seed = mix(load.seed) ^ mix(turn.number * 1024 + thread as u64);
                    let turn = &turn;
                    scope.spawn(move || shard.serve(load, seed, turn, arm))
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<u64>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        for ops in results {
            self.ops += ops?;
        }
        self.clock += turn.start.elapsed();
        self.cpu += process_time() - before;
        self.slices += 1;
        Ok(())
    }

    fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.clock.as_secs_f64().max(1e-9)
    }

    fn ops_per_cpu_s(&self) -> f64 {
        self.ops as f64 / self.cpu.as_secs_f64().max(1e-9)
    }
}

/// Compares an [`AtomicMap`] without redundancy with one that is covered, for each period.
pub(super) fn compare<T: Target>(
    rig: &Rig<'_, T>,
    load: &Load,
    offered: Option<u64>,
    periods: &[Duration],
    (limit, least): (Duration, Duration),
) -> Result<Vec<Row>> {
    let mut arms = vec![Arm::new(&rig.place("map-off"), load, None, least)?];
    for (nth, &period) in periods.iter().enumerate() {
        arms.push(Arm::new(&rig.place(&format!("map-{nth}")), load, Some(period), least.max(period))?);
    }
    for round in 0_u64.. {
        for turn in 0..arms.len() {
            let at = if round % 2 == 0 { turn } else { arms.len() - 1 - turn };
            if arms[at].period.is_none() || !arms[at].is_done() {
                arms[at].slice(load, round, limit)?;
            }
        }
        if arms.iter().all(Arm::is_done) {
            break;
        }
    }
    let off = (arms[0].ops_per_s(), arms[0].ops_per_cpu_s());
    let rows = arms.iter().map(|arm| row(load, offered, off, arm)).collect();
    for arm in arms {
        for shard in arm.shards {
            shard.map.settle()?;
        }
    }
    for name in std::iter::once("off".to_owned()).chain((0..periods.len()).map(|nth| nth.to_string())) {
        let dir = rig.place(&format!("map-{name}"));
        std::fs::remove_dir_all(&dir).map_err(|source| Error::io("remove", &dir, source))?;
    }
    Ok(rows)
}

fn row(load: &Load, offered: Option<u64>, off: (f64, f64), arm: &Arm) -> Row {
    let passes: Vec<f64> = arm.shards.iter().flat_map(|shard| shard.passes.iter().copied()).collect();
    Row::Redundancy(Box::new(RedundancyRow {
        workload: load.workload.as_str(),
        system: "atomic-map",
        redundancy: if arm.period.is_some() { "on" } else { "off" },
        period_s: arm.period.map(|period| period.as_secs_f64()),
        file_len: load.len,
        threads: load.threads,
        offered_per_s: offered,
        ops_per_s: arm.ops_per_s(),
        cpu_us_per_op: 1e6 / arm.ops_per_cpu_s(),
        overhead: 1.0 - arm.ops_per_s() / off.0,
        cpu_overhead: 1.0 - arm.ops_per_cpu_s() / off.1,
        seconds: arm.clock.as_secs_f64(),
        passes: passes.len(),
        pass_s: arm.period.map(|_| median(&passes)),
        stripes: None,
        vulnerable_stripes: None,
        mttdl_gain: None,
        full_coverage_s: None,
        over_time: Vec::new(),
        slices: arm.slices,
    }))
}
