//! The processor time of this process, including its background threads.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of all threads of this process since it began.
pub(crate) fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Processor time of this thread since it began.
pub(crate) fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The duration of one sample of the background work, and the maximum processor time in it that counts as quiet. The
/// sample itself takes some microseconds.
const LOOK: Duration = Duration::from_micros(500);
const QUIET: Duration = Duration::from_micros(50);

/// The maximum number of samples; after that, background work that never ends is accepted.
const LOOKS: u32 = 200;

/// Waits until no thread of this process except the caller is running.
pub(crate) fn quiesce() {
    // Require two quiet samples in a row: a runnable thread may not get a processor during one sample.
    let mut quiet = 0;
    for _ in 0..LOOKS {
        let before = process_time();
        std::thread::sleep(LOOK);
        quiet = if process_time() - before <= QUIET { quiet + 1 } else { 0 };
        if quiet == 2 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn work_in_the_background_is_seen_and_waited_for() {
        let before = process_time();
        let finished = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..20_000_000_u64).for_each(|n| assert!(black_box(n) == n));
                finished.store(true, Ordering::Release);
            });
            while !finished.load(Ordering::Acquire) {
                quiesce();
            }
        });
        assert!(process_time() > before);
    }
}
