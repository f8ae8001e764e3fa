//! How often stores are covered: once in a period, and sooner if more pages are uncovered than the cap allows.
//!
//! The cap is Viyojit's dirty budget: a battery that covers so many pages suffices. It is soft. A pass begins as soon
//! as the cap is known to be exceeded. What a program stores until the pass has covered the pages before exceeds it.
//!
//! # Invariants
//! 1. A count above the limit wakes the covering task once. The task takes notice after its pass, so a program whose
//!    every store exceeds the limit does not wake it again and again.
//! 2. If a pass leaves more pages than the cap uncovered, another follows at once, as long as passes cover any. If one
//!    covers none (the pages are being stored to, or are damaged), the limit is as many pages more as the cap allows.
//!    Pages that cannot be covered then cause no endless row of passes. Otherwise the limit is the cap.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The cap that nobody set.
const NONE: u64 = u64::MAX;

/// The parts of a file whose uncovered pages count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Data,
    Sidecar,
}

/// The pace at which one open file is covered.
pub(crate) struct Pace {
    cap: AtomicU64,
    limit: AtomicU64,
    /// Uncovered pages of each [`Part`], as last noted.
    counts: [AtomicU64; 2],
    /// The most that both were together.
    peak: AtomicU64,
    exceeded: AtomicBool,
    /// Pages that the last pass covered which covered any, and its microseconds, plus 1; 0 if there was none.
    last_pass: [AtomicU64; 2],
    task: Mutex<ByTask>,
}

/// What the covering task goes by. The lock is held while the limit changes, and not while the task is woken.
#[derive(Default)]
struct ByTask {
    /// `None` is when somebody asks for it, or the cap is exceeded.
    period: Option<Duration>,
    /// Has the task look at its pace now; nothing, if the file has no such task.
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            cap: AtomicU64::new(NONE),
            limit: AtomicU64::new(NONE),
            counts: Default::default(),
            peak: AtomicU64::new(0),
            exceeded: AtomicBool::new(false),
            last_pass: Default::default(),
            task: Mutex::default(),
        }
    }
}

impl Pace {
    fn task(&self) -> MutexGuard<'_, ByTask> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the pace a task that goes by it.
    pub(crate) fn begin(&self, period: Option<Duration>, wake: Arc<dyn Fn() + Send + Sync>) {
        *self.task() = ByTask { period, wake: Some(wake) };
        // What was noted before woke nobody, and the task may have to look for stores.
        if self.cap().is_some() {
            self.wake();
        }
    }

    /// Whether a task goes by this pace.
    pub(crate) fn has_task(&self) -> bool {
        self.task().wake.is_some()
    }

    pub(crate) fn period(&self) -> Option<Duration> {
        self.task().period
    }

    /// Has the next pass come so long after the last one.
    pub(crate) fn set_period(&self, period: Option<Duration>) {
        self.task().period = period;
        self.wake();
    }

    pub(crate) fn cap(&self) -> Option<u64> {
        Some(self.cap.load(Ordering::Relaxed)).filter(|cap| *cap != NONE)
    }

    pub(crate) fn set_cap(&self, pages: Option<u64>) {
        let cap = pages.unwrap_or(NONE);
        let task = self.task();
        self.cap.store(cap, Ordering::Relaxed);
        self.limit.store(cap, Ordering::Relaxed);
        drop(task);
        // The task may look for stores from now on.
        self.wake();
        self.look();
    }

    /// The uncovered pages as last noted.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The most uncovered pages that were noted at one time.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Takes note of a pass that covered so many pages in this time.
    pub(crate) fn note_pass(&self, pages: u64, time: Duration) {
        if pages > 0 {
            let time = time.as_micros().min(u128::from(u64::MAX - 1)) as u64 + 1;
            for (last, now) in self.last_pass.iter().zip([pages, time]) {
                last.store(now, Ordering::Relaxed);
            }
        }
    }

    /// The pages of the last pass, and its time.
    pub(crate) fn last_pass(&self) -> (u64, Option<Duration>) {
        let [pages, time] = [0, 1].map(|which: usize| self.last_pass[which].load(Ordering::Relaxed));
        (pages, time.checked_sub(1).map(Duration::from_micros))
    }

    /// How many pages may be uncovered before a pass begins at once.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether the limit is above the cap, because a pass covered nothing.
    pub(crate) fn is_raised(&self) -> bool {
        self.cap().is_some_and(|cap| self.limit() > cap)
    }

    /// Takes note of how many pages of a part are uncovered.
    pub(crate) fn note(&self, part: Part, pages: u64) {
        self.counts[part as usize].store(pages, Ordering::Relaxed);
        self.peak.fetch_max(self.count(), Ordering::Relaxed);
        self.look();
    }

    /// Wakes the task if the limit is exceeded.
    fn look(&self) {
        if self.count() > self.limit() && !self.exceeded.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        let wake = self.task().wake.clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    /// Whether a pass is due because of the limit.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed) || self.count() > self.limit()
    }

    /// Takes note that a pass is over which covered so many pages.
    pub(crate) fn passed(&self, covered: u64) {
        // Another cap that is set meanwhile stays.
        let task = self.task();
        let (cap, left) = (self.cap.load(Ordering::Relaxed), self.count());
        let limit = if left > cap && covered == 0 { left.saturating_add(cap.max(1)) } else { cap };
        self.limit.store(limit, Ordering::Relaxed);
        drop(task);
        self.exceeded.store(false, Ordering::Relaxed);
        // A store that was noted just before this saw the task at work, and woke nobody.
        self.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> (Pace, Arc<AtomicU64>) {
        let (pace, wakes) = (Pace::default(), Arc::new(AtomicU64::new(0)));
        let counted = wakes.clone();
        pace.begin(Some(Duration::from_secs(1)), Arc::new(move || _ = counted.fetch_add(1, Ordering::Relaxed)));
        (pace, wakes)
    }

    #[test]
    fn the_cap_wakes_once_for_both_parts_together() {
        let (pace, wakes) = counting();
        pace.note(Part::Data, 1 << 40);
        assert_eq!(wakes.swap(0, Ordering::Relaxed), 0, "no cap, no wake");
        pace.note(Part::Data, 5);
        pace.set_cap(Some(10));
        assert_eq!(wakes.swap(0, Ordering::Relaxed), 1, "the task learns of the cap");
        pace.note(Part::Sidecar, 5);
        assert_eq!((wakes.load(Ordering::Relaxed), pace.is_exceeded()), (0, false));
        pace.note(Part::Sidecar, 6);
        pace.note(Part::Data, 7);
        assert_eq!((wakes.swap(0, Ordering::Relaxed), pace.is_exceeded()), (1, true));
        pace.note(Part::Data, 0);
        pace.passed(7);
        assert_eq!((wakes.load(Ordering::Relaxed), pace.is_exceeded(), pace.limit()), (0, false, 10));
        assert_eq!((pace.count(), pace.peak()), (6, 1 << 40));
    }

    #[test]
    fn pages_noted_before_the_task_begins_wake_it() {
        let (pace, wakes) = (Pace::default(), Arc::new(AtomicU64::new(0)));
        pace.note(Part::Data, 100);
        pace.set_cap(Some(10));
        let counted = wakes.clone();
        pace.begin(None, Arc::new(move || _ = counted.fetch_add(1, Ordering::Relaxed)));
        assert_eq!((wakes.load(Ordering::Relaxed), pace.is_exceeded()), (1, true));
    }

    #[test]
    fn pages_that_stay_uncovered_cause_no_row_of_passes() {
        let (pace, wakes) = counting();
        pace.set_cap(Some(10));
        wakes.store(0, Ordering::Relaxed);
        pace.note(Part::Data, 25);
        assert_eq!(wakes.swap(0, Ordering::Relaxed), 1);
        // Those that the program stored to during a pass are covered by the next.
        pace.passed(5);
        assert_eq!((wakes.swap(0, Ordering::Relaxed), pace.limit()), (1, 10));
        pace.passed(0);
        assert_eq!((wakes.load(Ordering::Relaxed), pace.limit()), (0, 35));
        pace.note(Part::Data, 36);
        assert_eq!(wakes.swap(0, Ordering::Relaxed), 1);
        pace.note(Part::Data, 3);
        pace.passed(33);
        assert_eq!((wakes.load(Ordering::Relaxed), pace.limit()), (0, 10));
        // Nothing may be uncovered: the first page wakes.
        pace.set_cap(Some(0));
        assert_eq!(wakes.swap(0, Ordering::Relaxed), 2);
    }
}
