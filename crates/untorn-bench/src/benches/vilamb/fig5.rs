//! `vilamb-fig5`: insertions and removals of key-value stores, by one thread and by several (§4.3).

use std::sync::Arc;

use super::maps::{Kind, Map};
use super::{
    Benchmark, Job, Load, Memory, NOTE, OPTIONS, Operation, Outcome, Progress, Result, compare_load, together,
};
use crate::args::Pattern;
use crate::compare::{Point, Setting, X};
use crate::offsets::mix;

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-fig5",
    "Vilamb, figure 5: insertions and removals of key-value stores, without redundancy, behind stores, at once",
    OPTIONS,
    run,
)
.of_len(256 << 20);

const PERIODS: [f64; 3] = [1.0, 5.0, 10.0];

const STORE_NOTE: &str = "the paper has five stores of PMDK (ctree, btree, rbtree, rtree, hashmap) in transactions. \
                          Here a crit-bit tree and a hash map with chains, whose stores are not transactions. A \
                          store that is full, or empty, begins anew within the measured time, by insertions that are \
                          not counted as removals";

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserts {
    Only,
    /// Removals only.
    Never,
}

/// Changes of a store.
pub(super) struct Changes {
    kind: Kind,
    inserts: Inserts,
}

impl Changes {
    pub(super) fn new(kind: Kind, inserts: Inserts) -> Self {
        Changes { kind, inserts }
    }

    pub(super) fn name(&self) -> String {
        let what = if self.inserts == Inserts::Only { "insertions" } else { "removals" };
        format!("{}, {what}", self.kind.as_str())
    }
}

/// Keys of a store from which they are removed, at most: to put them in again is measured too.
const MOST: u64 = 100_000;

/// A key of a round. Every round has others.
fn key(round: u64, nth: u64) -> u64 {
    mix(round << 40 | nth)
}

/// The part of a thread.
fn part(setting: &Setting, thread: usize) -> (u64, u64) {
    let len = setting.len() / setting.threads as u64 / 4096 * 4096;
    (thread as u64 * len, len)
}

impl Changes {
    /// Keys of a full store.
    fn keys(&self, map: &Map<'_>) -> u64 {
        if self.inserts == Inserts::Only { map.keys() } else { map.keys().min(MOST) }
    }

    fn fill(&self, map: &mut Map<'_>, round: u64) -> Result<()> {
        (0..self.keys(map)).try_for_each(|nth| map.insert(key(round, nth)))
    }
}

impl Load for Changes {
    fn prepare(&self, memory: Memory<'_>, setting: &Setting) -> Result<()> {
        for thread in 0..setting.threads {
            let (base, len) = part(setting, thread);
            let mut map = Map::empty(self.kind, memory, base, len)?;
            if self.inserts == Inserts::Never {
                self.fill(&mut map, 0)?;
            }
        }
        Ok(())
    }

    fn operation<'a>(&'a self, memory: Memory<'a>, thread: usize, setting: &'a Setting) -> Result<Operation<'a>> {
        let (base, len) = part(setting, thread);
        let mut map = Map::attach(self.kind, memory, base, len)?;
        let (keys, mut round, mut done) = (self.keys(&map), 0, 0);
        Ok(Box::new(move |_| {
            if done == keys {
                (round, done) = (round + 1, 0);
                map.clear()?;
                if self.inserts == Inserts::Never {
                    self.fill(&mut map, round)?;
                }
            }
            done += 1;
            match self.inserts {
                Inserts::Only => map.insert(key(round, done - 1)),
                Inserts::Never => map.remove(key(round, done - 1)).map(drop),
            }
        }))
    }
}

/// A point for each number of threads.
pub(super) fn points(job: &Job<'_>, workload: &str, threads: &[usize]) -> Vec<Point> {
    let point = |threads: usize| Point {
        workload: workload.to_owned(),
        x: X::number("threads", "", threads as f64),
        records: job.file_len() / 64,
        size: 64,
        threads,
        pattern: Pattern::Random,
    };
    job.args.choose(&job.args.threads, threads).into_iter().map(point).collect()
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut outcomes = Vec::new();
    for kind in Kind::ALL {
        for (inserts, threads) in [(Inserts::Only, &[1, 2, 4, 8, 16, 32][..]), (Inserts::Never, &[1])] {
            let load = Changes::new(kind, inserts);
            let points = points(job, &load.name(), threads);
            outcomes.push(compare_load(job, &PERIODS, Arc::new(load), &points, progress));
        }
    }
    together(outcomes, &[NOTE, STORE_NOTE])
}
