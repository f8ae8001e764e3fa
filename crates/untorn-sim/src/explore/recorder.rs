//! Takes the state of a machine before every call that changes something, to be crashed afterwards.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use untorn::Error;
use untorn::testing::storage::Barrier;

use crate::crash::CrashState;
use crate::instant::{Instant, Step, Verdict};
use crate::medium::SimMedium;

/// A machine at one instant.
pub(crate) struct Point {
    pub(crate) state: CrashState,
    /// Model time.
    pub(crate) clock: u32,
    /// Calls that change something, counted from the recorder's start.
    pub(crate) call: u32,
    /// The call that was about to happen; `None` for the instant after an operation returned.
    pub(crate) before: Option<(Step, Option<Barrier>)>,
}

impl Point {
    /// Whether fewer effects are pending after this instant, or fewer states allowed. The images of all instants before
    /// are among those of the next such one, so these are examined more closely.
    pub(crate) fn decisive(&self) -> bool {
        self.before.is_none_or(|(step, _)| step.persists())
    }

    /// The instant of the crash, in words.
    pub(crate) fn describe(&self) -> String {
        match self.before {
            Some((step, Some(barrier))) => format!("before {step:?} {barrier:?}, change {}", self.call),
            Some((step, None)) => format!("before {step:?}, change {}", self.call),
            None => format!("after the operation returned, change {}", self.call),
        }
    }
}

#[derive(Default)]
struct Points {
    points: Vec<Point>,
    calls: u32,
    /// Version of the machine and model time of the last point.
    last: (u64, u32),
    armed: bool,
    /// Flushes until one fails, and what decides over its sectors.
    trip: Option<(u32, u64)>,
}

/// Records the crash points of one machine.
#[derive(Default)]
pub(crate) struct Recorder {
    clock: AtomicU32,
    points: Mutex<Points>,
}

impl Recorder {
    /// Hooks a new recorder into a machine, not armed yet.
    pub(crate) fn attach(medium: &SimMedium) -> Arc<Self> {
        let recorder = Arc::new(Recorder::default());
        let hooked = recorder.clone();
        medium.set_hook(Box::new(move |instant: &Instant<'_>| {
            if instant.step.changes() {
                hooked.record(instant);
            }
            hooked.verdict(instant)
        }));
        recorder
    }

    fn lock(&self) -> MutexGuard<'_, Points> {
        self.points.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, instant: &Instant<'_>) {
        let clock = self.clock();
        let mut points = self.lock();
        points.calls += 1;
        let now = (instant.version(), clock);
        if points.armed && points.last != now {
            points.last = now;
            let before = Some((instant.step, instant.barrier));
            let call = points.calls;
            points.points.push(Point { state: instant.crash_state(), clock, call, before });
        }
    }

    /// Fails the flush of a file whose turn it is.
    fn verdict(&self, instant: &Instant<'_>) -> Verdict {
        let mut points = self.lock();
        let Some((left, seed)) = points.trip.filter(|_| matches!(instant.step, Step::Fence | Step::Sync)) else {
            return Verdict::Allow;
        };
        points.trip = (left > 1).then_some((left - 1, seed));
        if left > 1 {
            return Verdict::Allow;
        }
        Verdict::LoseDirty { seed, error: Error::io("flush", instant.path, std::io::Error::from_raw_os_error(5)) }
    }

    /// Makes the `nth` flush of a file from now on fail; which of its sectors are lost follows from the seed.
    pub(crate) fn trip(&self, nth: u32, seed: u64) {
        self.lock().trip = Some((nth, seed));
    }

    /// Lets flushes succeed again. Returns whether one failed.
    pub(crate) fn tripped(&self) -> bool {
        self.lock().trip.take().is_none()
    }

    /// Records the instant after an operation returned.
    pub(crate) fn returned(&self, medium: &SimMedium) {
        let state = medium.crash_state();
        let clock = self.clock();
        let mut points = self.lock();
        if points.armed {
            let call = points.calls;
            points.points.push(Point { state, clock, call, before: None });
        }
    }

    /// Whether crash points are recorded from now on.
    pub(crate) fn arm(&self, armed: bool) {
        self.lock().armed = armed;
    }

    /// Model time now.
    pub(crate) fn clock(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Model time now; it is later afterwards.
    pub(crate) fn tick(&self) -> u32 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether one of the points recorded since the last were taken is before this barrier.
    pub(crate) fn saw(&self, barrier: &str) -> bool {
        let is_before = |point: &Point| matches!(point.before, Some((_, Some(passed))) if passed.name() == barrier);
        self.lock().points.iter().any(is_before)
    }

    /// The points recorded since the last call.
    pub(crate) fn take(&self) -> Vec<Point> {
        std::mem::take(&mut self.lock().points)
    }
}
