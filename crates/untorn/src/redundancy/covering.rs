//! When stores are covered: the work of the covering task.
//!
//! A pass comes a period after the last one, or as soon as more pages are uncovered than the [pace](Pace) allows.
//! Announced stores are counted as they are announced, and wake the task. Page tables tell of stores only if somebody
//! asks, and to ask is to scan them. For a mapping with a cap the task therefore asks in between:
//!
//! - as late as half of the time that the cap would last at the rate at which pages became uncovered lately;
//! - at least every [`SELDOM`], but without a scan while the process has had no page fault since: the first store to a
//!   page that is not uncovered is one;
//! - at most so often that asking takes a twentieth of the time.
//!
//! A mapping without a cap is asked about in passes only.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::RedundancyService;
use super::threads::is_final;
use crate::engine::redundancy::Pace;
use crate::error::Result;
use crate::sys::page_faults;

/// The longest time between two looks at a mapping with a cap.
const SELDOM: Duration = Duration::from_millis(100);

/// The shortest.
const OFTEN: Duration = Duration::from_millis(1);

/// The longest time from a pass that covered nothing, with more pages than the cap uncovered, to the next one. Somebody
/// may have stored to the pages at that moment only.
const RETRY: Duration = Duration::from_secs(1);

/// A look takes one part in so many of the time between two looks, at most.
const SHARE: u32 = 20;

/// What a task remembers from one time to the next.
pub(super) struct Covering(Mutex<State>);

struct State {
    /// When the last pass was over.
    passed: Instant,
    /// When the uncovered pages were last counted, and how many they were.
    counted: (Instant, u64),
    /// Page faults of the process before that.
    faults: u64,
    /// How long it took to count them.
    cost: Duration,
}

impl Covering {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Covering(Mutex::new(State { passed: now, counted: (now, 0), faults: 0, cost: Duration::ZERO }))
    }

    /// Does a pass if it is due. How long to wait before this is called again, if it is not woken before; `None` if
    /// every other call fails.
    pub(super) fn go_on(&self, service: &dyn RedundancyService) -> Option<Duration> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = service.pace();
        let looks = service.is_looked_for() && pace.cap().is_some();
        let period = || match pace.period() {
            period if pace.is_raised() => Some(period.map_or(RETRY, |period| period.min(RETRY))),
            period => period,
        };
        let is_over = |state: &State| period().is_some_and(|period| state.passed.elapsed() >= period);
        let mut rate = 0.0;
        if looks && !pace.is_exceeded() && !is_over(&state) {
            rate = state.look(pace, page_faults(), || service.count_uncovered());
        }
        if pace.is_exceeded() || is_over(&state) {
            let began = Instant::now();
            let covered = pass(service)?;
            pace.note_pass(covered, began.elapsed());
            pace.passed(covered);
            let before = std::mem::replace(&mut state.passed, Instant::now());
            state.counted = (state.passed, pace.count());
            rate = per_second(covered, state.passed - before);
        }
        let rest = period().map_or(Duration::MAX, |period| period.saturating_sub(state.passed.elapsed()));
        Some(if looks { rest.min(state.next_look(pace, rate)) } else { rest })
    }
}

impl State {
    /// Has the uncovered pages counted, unless the process has had no page fault since. How many become uncovered in a
    /// second.
    fn look(&mut self, pace: &Pace, faults: u64, count: impl FnOnce() -> Result<()>) -> f64 {
        if std::mem::replace(&mut self.faults, faults) == faults {
            return 0.0;
        }
        let began = Instant::now();
        if let Err(error) = count() {
            // The pass at the end of the period fails likewise, and its error is reported.
            tracing::debug!(%error, "cannot count uncovered pages");
        }
        let count = pace.count();
        self.cost = began.elapsed();
        let (before, had) = std::mem::replace(&mut self.counted, (began, count));
        per_second(count.saturating_sub(had), began - before)
    }

    /// How long to wait for the next look.
    fn next_look(&self, pace: &Pace, rate: f64) -> Duration {
        let left = pace.limit().saturating_sub(pace.count()) as f64;
        let lasts = Duration::try_from_secs_f64(left / rate / 2.0).unwrap_or(SELDOM);
        lasts.min(SELDOM).max(OFTEN.max(self.cost * SHARE))
    }
}

fn per_second(pages: u64, time: Duration) -> f64 {
    pages as f64 / time.as_secs_f64().max(1e-9)
}

/// Covers what there is. How many pages it covered; `None` if every other call fails.
fn pass(service: &dyn RedundancyService) -> Option<u64> {
    match service.pass() {
        Ok(pages) => {
            if pages > 0 {
                tracing::debug!(path = %service.path().display(), pages, "updated the checksums and parity of stored \
                                                                          pages");
            }
            Some(pages)
        }
        Err(error) => {
            tracing::error!(path = %service.path().display(), %error, "cannot bring the redundancy up to date");
            if is_final(&error) {
                return None;
            }
            // A device that was full may have space the next time.
            service.failed(error);
            Some(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redundancy::Part;

    fn state(passed: Duration) -> State {
        let before = Instant::now().checked_sub(passed).unwrap();
        State { passed: before, counted: (before, 0), faults: 0, cost: Duration::ZERO }
    }

    #[test]
    fn an_idle_process_is_not_looked_at() {
        let (pace, mut state, mut looks) = (Pace::default(), state(Duration::from_secs(1)), 0);
        pace.set_cap(Some(100));
        for (faults, seen) in [(7, 1), (7, 1), (7, 1), (8, 2), (8, 2), (9, 3)] {
            state.look(&pace, faults, || {
                looks += 1;
                Ok(())
            });
            assert_eq!(looks, seen);
            assert_eq!(state.next_look(&pace, 0.0), SELDOM);
        }
    }

    #[test]
    fn a_look_comes_before_the_cap_is_reached() {
        let (pace, mut state) = (Pace::default(), state(Duration::from_millis(100)));
        pace.set_cap(Some(1000));
        let rate = state.look(&pace, 1, || {
            pace.note(Part::Data, 500);
            Ok(())
        });
        // 500 pages in 100 ms and a little: the other half lasts as long again.
        assert!((2500.0..=5000.0).contains(&rate), "{rate}");
        let next = state.next_look(&pace, rate);
        assert!(next >= Duration::from_millis(50) && next <= SELDOM, "{next:?}");
        assert_eq!(state.next_look(&pace, 1e9), OFTEN);
        // It never takes more than its share of the time.
        state.cost = Duration::from_millis(20);
        assert_eq!(state.next_look(&pace, 1e9), Duration::from_millis(20 * u64::from(SHARE)));
        state.cost = Duration::ZERO;
        pace.note(Part::Data, 1000);
        assert_eq!(state.next_look(&pace, 1.0), OFTEN);
    }
}
