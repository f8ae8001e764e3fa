//! Measures arms interleaved, in short slices.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cpu::{process_time, quiesce};
use crate::offsets::Offsets;

/// The limits of a slice; the first one reached ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) time: Duration,
    pub(crate) ops: u64,
}

/// The result of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub(crate) ops: u64,
    pub(crate) elapsed: Duration,
}

type Slice<'a> = dyn Fn(Offsets, &mut [u8], Limit) -> untorn::Result<Tally> + Sync + 'a;

/// One side of a comparison. The loop around the operation is compiled with it; only the call for a whole slice is
/// dynamic.
pub(crate) struct Arm<'a>(Box<Slice<'a>>);

impl<'a> Arm<'a> {
    /// Repeats `batch` times `op`, then `end` once. It reads the clock once per batch: for operations of a tenth of a
    /// microsecond, reading it each time would be a large part of the result.
    pub(crate) fn new(
        batch: u32,
        op: impl Fn(&mut [u8], u64) -> untorn::Result<()> + Sync + 'a,
        end: impl Fn() -> untorn::Result<()> + Sync + 'a,
    ) -> Self {
        Self::numbered(batch, move |buf, offset, _| op(buf, offset), end)
    }

    /// The same, with the index of the operation within its batch passed to `op`.
    pub(crate) fn numbered(
        batch: u32,
        op: impl Fn(&mut [u8], u64, u32) -> untorn::Result<()> + Sync + 'a,
        end: impl Fn() -> untorn::Result<()> + Sync + 'a,
    ) -> Self {
        Arm(Box::new(move |mut offsets, buf, limit| {
            let start = Instant::now();
            let mut ops = 0;
            loop {
                for number in 0..batch {
                    op(black_box(&mut *buf), offsets.next(), number)?;
                }
                end()?;
                ops += u64::from(batch);
                let elapsed = start.elapsed();
                if elapsed >= limit.time || ops >= limit.ops {
                    return Ok(Tally { ops, elapsed });
                }
            }
        }))
    }

    /// Runs one slice.
    pub(crate) fn run(&self, offsets: Offsets, buf: &mut [u8], limit: Limit) -> untorn::Result<Tally> {
        (self.0)(offsets, buf, limit)
    }
}

/// How to measure a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) threads: usize,
    /// Bytes of each thread's buffer.
    pub(crate) size: usize,
    /// Counted slices per arm. One more slice before them warms the caches and the branch predictor.
    pub(crate) rounds: usize,
    pub(crate) limit: Limit,
    /// Whether an arm leaves work to background threads, for which the next slice must not pay.
    pub(crate) background: bool,
}

/// A buffer aligned to a cache line, filled with varying bytes.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let bytes: Vec<u8> = (0..len + 64).map(|i| (i as u8).wrapping_mul(31).wrapping_add(7)).collect();
        let start = bytes.as_ptr().align_offset(64).min(64);
        Buffer { bytes, start, len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// The rates of an arm in each round, all threads together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// Operations per second.
    pub(crate) per_s: Vec<f64>,
    /// Operations per second of processor time, including background work until it was done.
    pub(crate) per_cpu_s: Vec<f64>,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    per_s: f64,
    ops: u64,
    cpu: Duration,
}

/// Runs each arm in each round.
///
/// The threads start each slice together, and no slice starts before the last one's background work is done. Every
/// other round runs the arms in reverse, so that a drift of the machine favours none. `offsets` gives a thread's walk
/// in a round, the same for all arms.
pub(crate) fn interleave(
    plan: &Plan,
    arms: &[Arm<'_>],
    offsets: impl Fn(usize, usize) -> Offsets + Sync,
) -> untorn::Result<Vec<Series>> {
    let cells = Mutex::new(vec![vec![Cell::default(); plan.rounds]; arms.len()]);
    let failure = Mutex::new(None);
    let failed = AtomicBool::new(false);
    let together = Barrier::new(plan.threads);
    let worker = |thread: usize| {
        let mut buffer = Buffer::new(plan.size);
        for round in 0..=plan.rounds {
            for turn in 0..arms.len() {
                let arm = if round % 2 == 0 { turn } else { arms.len() - 1 - turn };
                let walk = offsets(thread, round);
                // The other threads are then asleep at the barrier.
                let cpu = (thread == 0).then(process_time);
                together.wait();
                // A failed thread keeps arriving at the barriers; otherwise the others would wait there forever.
                if !failed.load(Ordering::Relaxed) {
                    match arms[arm].run(walk, buffer.bytes(), plan.limit) {
                        Ok(tally) if round > 0 => {
                            let cell = &mut cells.lock().unwrap_or_else(PoisonError::into_inner)[arm][round - 1];
                            cell.per_s += tally.ops as f64 / tally.elapsed.as_secs_f64().max(1e-9);
                            cell.ops += tally.ops;
                        }
                        Ok(_) => {}
                        Err(error) => {
                            failed.store(true, Ordering::Relaxed);
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                    }
                }
                together.wait();
                if let Some(before) = cpu {
                    if plan.background {
                        quiesce();
                    }
                    if round > 0 {
                        let cell = &mut cells.lock().unwrap_or_else(PoisonError::into_inner)[arm][round - 1];
                        cell.cpu = process_time() - before;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..plan.threads {
            let worker = &worker;
            scope.spawn(move || worker(thread));
        }
        worker(0);
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => {
            let cells = cells.into_inner().unwrap_or_else(PoisonError::into_inner);
            Ok(cells.iter().map(|rounds| Series::of(rounds)).collect())
        }
    }
}

impl Series {
    fn of(rounds: &[Cell]) -> Self {
        let per_cpu_s = |cell: &Cell| cell.ops as f64 / cell.cpu.as_secs_f64().max(1e-9);
        Series {
            per_s: rounds.iter().map(|cell| cell.per_s).collect(),
            per_cpu_s: rounds.iter().map(per_cpu_s).collect(),
        }
    }
}

/// Runs one arm for a fixed number of operations per thread. Returns the total.
pub(crate) fn run_once(plan: &Plan, arm: &Arm<'_>, offsets: impl Fn(usize) -> Offsets + Sync) -> untorn::Result<u64> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let walk = offsets(thread);
                scope.spawn(move || arm.run(walk, Buffer::new(plan.size).bytes(), plan.limit))
            })
            .collect();
        let mut ops = 0;
        for thread in threads {
            match thread.join() {
                Ok(tally) => ops += tally?.ops,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(ops)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::args::Pattern;
    use crate::offsets::Region;

    const LIMIT: Limit = Limit { time: Duration::MAX, ops: 20 };

    fn walk(thread: usize, round: usize) -> Offsets {
        let region = Region::of_thread(1 << 20, thread, 2);
        Offsets::new(Pattern::Random, region, 64, (thread * 100 + round) as u64)
    }

    #[test]
    fn every_arm_runs_in_every_round_on_every_thread() {
        let (ours, raw, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let arms = [Arm::new(10, |_, _| count(&ours), || count(&ends)), Arm::new(10, |_, _| count(&raw), || Ok(()))];
        let plan = Plan { threads: 2, size: 64, rounds: 4, limit: LIMIT, background: true };
        let rates = interleave(&plan, &arms, walk).unwrap();
        assert_eq!(rates.len(), 2);
        for rates in rates.iter().flat_map(|arm| [&arm.per_s, &arm.per_cpu_s]) {
            assert!(rates.len() == 4 && rates.iter().all(|&rate| rate > 0.0));
        }
        drop(arms);
        // Five rounds with the warm-up, two threads, twenty operations in batches of ten.
        assert_eq!((ours.into_inner(), raw.into_inner(), ends.into_inner()), (200, 200, 20));
    }

    #[test]
    fn operations_are_numbered_within_their_batch() {
        let numbers = Mutex::new(Vec::new());
        let note = |_: &mut [u8], _, number| {
            numbers.lock().unwrap().push(number);
            Ok(())
        };
        let plan =
            Plan { threads: 1, size: 64, rounds: 1, limit: Limit { time: Duration::MAX, ops: 6 }, background: false };
        assert_eq!(run_once(&plan, &Arm::numbered(3, note, || Ok(())), |thread| walk(thread, 0)).unwrap(), 6);
        assert_eq!(numbers.into_inner().unwrap(), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn an_error_on_one_thread_ends_the_run_on_all() {
        let fail = |_: &mut [u8], offset: u64| match offset {
            0..0x8_0000 => Ok(()),
            _ => Err(untorn::Error::ReadOnly { path: "f".into() }),
        };
        let plan = Plan { threads: 2, size: 64, rounds: 3, limit: LIMIT, background: false };
        let result = interleave(&plan, &[Arm::new(1, fail, || Ok(()))], walk);
        assert!(matches!(result, Err(untorn::Error::ReadOnly { .. })));
    }

    #[test]
    fn a_fixed_run_counts_the_operations_of_all_threads() {
        let plan = Plan { threads: 2, size: 64, rounds: 1, limit: LIMIT, background: false };
        let arm = Arm::new(8, |_, _| Ok(()), || Ok(()));
        assert_eq!(run_once(&plan, &arm, |thread| walk(thread, 0)).unwrap(), 48);
    }

    #[test]
    fn buffers_start_on_a_cache_line() {
        for len in [1, 64, 4096] {
            let mut buffer = Buffer::new(len);
            assert_eq!(buffer.bytes().as_ptr() as usize % 64, 0);
            assert_eq!(buffer.bytes().len(), len);
        }
    }
}
