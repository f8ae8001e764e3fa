//! Measuring arms interleaved, in short slices.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::offsets::Offsets;

/// What ends a slice, whichever comes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) time: Duration,
    pub(crate) ops: u64,
}

/// What a slice did.
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
    /// Repeats `batch` times `op`, once `end`. The clock is read once in a batch: where an operation takes a tenth of a
    /// microsecond, reading it each time would be a large part of what is measured.
    pub(crate) fn new(
        batch: u32,
        op: impl Fn(&mut [u8], u64) -> untorn::Result<()> + Sync + 'a,
        end: impl Fn() -> untorn::Result<()> + Sync + 'a,
    ) -> Self {
        Arm(Box::new(move |mut offsets, buf, limit| {
            let start = Instant::now();
            let mut ops = 0;
            loop {
                for _ in 0..batch {
                    op(black_box(&mut *buf), offsets.next())?;
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
    /// Slices of each arm that count. One more before them warms the caches and the branch predictor.
    pub(crate) rounds: usize,
    pub(crate) limit: Limit,
}

/// A buffer whose first byte lies on a cache line, filled with bytes that are not all alike.
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

/// Operations per second of each arm (outer) in each round (inner), all threads together.
///
/// The threads start each slice together. Every other round runs the arms in reverse, so that a drift of the machine
/// favours none. `offsets` gives the walk of a thread in a round, the same for all arms.
pub(crate) fn interleave(
    plan: &Plan,
    arms: &[Arm<'_>],
    offsets: impl Fn(usize, usize) -> Offsets + Sync,
) -> untorn::Result<Vec<Vec<f64>>> {
    let rates = Mutex::new(vec![vec![0.0; plan.rounds]; arms.len()]);
    let failure = Mutex::new(None);
    let failed = AtomicBool::new(false);
    let together = Barrier::new(plan.threads);
    let worker = |thread: usize| {
        let mut buffer = Buffer::new(plan.size);
        for round in 0..=plan.rounds {
            for turn in 0..arms.len() {
                let arm = if round % 2 == 0 { turn } else { arms.len() - 1 - turn };
                let walk = offsets(thread, round);
                together.wait();
                // A thread that failed keeps coming to the barrier, else the others would wait there for ever.
                if failed.load(Ordering::Relaxed) {
                    continue;
                }
                match arms[arm].run(walk, buffer.bytes(), plan.limit) {
                    Ok(tally) if round > 0 => {
                        let rate = tally.ops as f64 / tally.elapsed.as_secs_f64().max(1e-9);
                        rates.lock().unwrap_or_else(PoisonError::into_inner)[arm][round - 1] += rate;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        failed.store(true, Ordering::Relaxed);
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
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
        None => Ok(rates.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Runs one arm for a fixed number of operations a thread and returns how many that were in all.
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
        let plan = Plan { threads: 2, size: 64, rounds: 4, limit: LIMIT };
        let rates = interleave(&plan, &arms, walk).unwrap();
        assert_eq!(rates.len(), 2);
        assert!(rates.iter().all(|arm| arm.len() == 4 && arm.iter().all(|&rate| rate > 0.0)));
        drop(arms);
        // Five rounds with the warm-up, two threads, twenty operations in batches of ten.
        assert_eq!((ours.into_inner(), raw.into_inner(), ends.into_inner()), (200, 200, 20));
    }

    #[test]
    fn an_error_on_one_thread_ends_the_run_on_all() {
        let fail = |_: &mut [u8], offset: u64| match offset {
            0..0x8_0000 => Ok(()),
            _ => Err(untorn::Error::ReadOnly { path: "f".into() }),
        };
        let plan = Plan { threads: 2, size: 64, rounds: 3, limit: LIMIT };
        let result = interleave(&plan, &[Arm::new(1, fail, || Ok(()))], walk);
        assert!(matches!(result, Err(untorn::Error::ReadOnly { .. })));
    }

    #[test]
    fn a_fixed_run_counts_the_operations_of_all_threads() {
        let plan = Plan { threads: 2, size: 64, rounds: 1, limit: LIMIT };
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
