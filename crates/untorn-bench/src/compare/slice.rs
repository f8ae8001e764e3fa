//! One slice of a contender: its threads, its rate and its latencies.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::{Error, Result};
use crate::offsets::Offsets;
use crate::report::Latency;

/// The longest latency that a histogram tells from longer ones, in nanoseconds.
const LONGEST: u64 = 600_000_000_000;

/// Latencies in nanoseconds, with three significant digits.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(super) fn new() -> Result<Self> {
        Histogram::new_with_bounds(1, LONGEST, 3).map(Latencies).map_err(|error| Error::usage(error.to_string()))
    }

    pub(super) fn record(&mut self, took: Duration) {
        self.0.saturating_record((took.as_nanos() as u64).max(1));
    }

    pub(super) fn add(&mut self, others: &Latencies) -> Result<()> {
        self.0.add(&others.0).map_err(|error| Error::usage(error.to_string()))
    }

    pub(super) fn summary(&self) -> Latency {
        let at = |quantile: f64| self.0.value_at_quantile(quantile);
        Latency {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            p99_999: at(0.999_99),
            max: self.0.max(),
            ops: self.0.len(),
        }
    }
}

/// How a slice runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// It ends after this time, or
    pub(super) time: Duration,
    /// after this many operations of each thread.
    pub(super) ops: u64,
    /// Operations between two looks at the clock.
    pub(super) batch: u32,
    /// Whether each operation's latency is recorded.
    pub(super) clocked: bool,
}

/// What a slice of all threads gave.
#[derive(Debug)]
pub(super) struct Done {
    /// Operations per second, all threads together.
    pub(super) per_s: f64,
    pub(super) ops: u64,
    /// The sum of the threads' times.
    pub(super) busy: Duration,
    pub(super) latencies: Option<Latencies>,
}

/// A worker's part of a slice. Only the runner makes it and only [`Worker::slice`] of closures reads it.
#[derive(Debug)]
pub(crate) struct Slice<'a> {
    places: Offsets,
    turn: Turn,
    latencies: Option<&'a mut Latencies>,
}

#[cfg(test)]
impl Slice<'_> {
    /// So many operations, whose latencies nobody records.
    pub(crate) fn of_ops(ops: u64) -> Self {
        let region = crate::offsets::Region { base: 0, len: 100 };
        let places = Offsets::new(crate::args::Pattern::Sequential, region, 1, 1);
        Slice { places, turn: Turn { time: Duration::MAX, ops, batch: 1, clocked: false }, latencies: None }
    }
}

/// What one thread does. Every closure of a place is one; the loop around it is compiled with it, so that only the call
/// of a whole slice is dynamic.
pub(crate) trait Worker: Send {
    /// Runs a slice. Returns the number of operations and their time.
    ///
    /// # Errors
    /// Those of the operation.
    fn slice(&mut self, slice: Slice<'_>) -> Result<(u64, Duration)>;
}

impl<F: FnMut(u64) -> Result<()> + Send> Worker for F {
    fn slice(&mut self, slice: Slice<'_>) -> Result<(u64, Duration)> {
        let Slice { mut places, turn, latencies } = slice;
        let start = Instant::now();
        let (mut ops, mut elapsed) = (0, Duration::ZERO);
        match latencies {
            None => {
                while elapsed < turn.time && ops < turn.ops {
                    for _ in 0..turn.batch {
                        self(places.next())?;
                    }
                    ops += u64::from(turn.batch);
                    elapsed = start.elapsed();
                }
            }
            Some(latencies) => {
                while elapsed < turn.time && ops < turn.ops {
                    self(places.next())?;
                    let now = start.elapsed();
                    latencies.record(now - elapsed);
                    elapsed = now;
                    ops += 1;
                }
            }
        }
        Ok((ops, elapsed))
    }
}

/// A slice of all threads, begun together.
pub(super) fn all(
    workers: &mut [Box<dyn Worker + '_>],
    turn: &Turn,
    walk: impl Fn(usize) -> Offsets + Sync,
) -> Result<Done> {
    let together = Barrier::new(workers.len());
    let one = |thread: usize, worker: &mut Box<dyn Worker + '_>| -> Result<(u64, Duration, Option<Latencies>)> {
        let latencies = turn.clocked.then(Latencies::new).transpose();
        let places = walk(thread);
        together.wait();
        let mut latencies = latencies?;
        let (ops, time) = worker.slice(Slice { places, turn: *turn, latencies: latencies.as_mut() })?;
        Ok((ops, time, latencies))
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> =
            workers.iter_mut().enumerate().map(|(thread, worker)| scope.spawn(move || one(thread, worker))).collect();
        let mut all = Done { per_s: 0.0, ops: 0, busy: Duration::ZERO, latencies: None };
        let mut failure = None;
        for thread in threads {
            match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok((ops, time, latencies)) => {
                    all.per_s += ops as f64 / time.as_secs_f64().max(1e-9);
                    all.ops += ops;
                    all.busy += time;
                    match (&mut all.latencies, latencies) {
                        (Some(all), Some(more)) => all.add(&more)?,
                        (none, more) => *none = more,
                    }
                }
                Err(error) => _ = failure.get_or_insert(error),
            }
        }
        failure.map_or(Ok(all), Err)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Pattern;
    use crate::offsets::Region;

    const TURN: Turn = Turn { time: Duration::MAX, ops: 12, batch: 4, clocked: false };

    fn walk(_: usize) -> Offsets {
        Offsets::new(Pattern::Sequential, Region { base: 0, len: 100 }, 1, 1)
    }

    #[test]
    fn every_thread_does_its_operations_and_each_is_recorded() {
        for clocked in [false, true] {
            let mut seen = [Vec::new(), Vec::new()];
            let [first, second] = &mut seen;
            let mut workers: Vec<Box<dyn Worker + '_>> = vec![
                Box::new(|place| -> Result<()> {
                    first.push(place);
                    Ok(())
                }),
                Box::new(|place| -> Result<()> {
                    second.push(place);
                    Ok(())
                }),
            ];
            let done = all(&mut workers, &Turn { clocked, ..TURN }, walk).unwrap();
            drop(workers);
            assert_eq!((done.ops, done.latencies.is_some()), (24, clocked));
            assert!(done.per_s > 0.0 && done.busy > Duration::ZERO);
            assert!(done.latencies.is_none_or(|latencies| latencies.summary().ops == 24));
            for places in seen {
                assert!(places.len() == 12 && places.windows(2).all(|two| two[1] == (two[0] + 1) % 100), "{places:?}");
            }
        }
    }

    #[test]
    fn an_error_of_one_thread_is_the_slices() {
        let fails = |_| -> Result<()> { Err(Error::usage("no")) };
        let works = |_| -> Result<()> { Ok(()) };
        let mut workers: Vec<Box<dyn Worker>> = vec![Box::new(works), Box::new(fails)];
        assert_eq!(all(&mut workers, &TURN, walk).unwrap_err().to_string(), "no");
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latencies = Latencies::new().unwrap();
        (1..=1000).for_each(|micros| latencies.record(Duration::from_micros(micros)));
        latencies.record(Duration::from_secs(10_000));
        let Latency { p50, p90, p99, max, ops, .. } = latencies.summary();
        let is_near = |value: u64, micros: u64| value.abs_diff(micros * 1000) <= micros * 4;
        assert!(is_near(p50, 500) && is_near(p90, 900) && is_near(p99, 991), "{p50} {p90} {p99}");
        // Longer than the longest counts as the longest.
        assert!(ops == 1001 && max.abs_diff(LONGEST) < LONGEST / 500, "{max}");
    }
}
