//! When a process that searches for a server tries again, and when it is evicted.

use std::time::{Duration, Instant};

use super::{EVICTION_ATTEMPTS, EVICTION_TIMEOUT, KILLED_OWNER_TIMEOUT, LONGEST_RETRY_PAUSE, RETRY_PAUSE};
use crate::error::Error;
use crate::ipc::connection::ConnectError;

/// Why this process could not take the place of the one that served. It says nothing of the others: each tries for
/// itself.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(super) why: String,
    /// How long it is worth trying again.
    pub(super) patience: Duration,
}

impl Failure {
    pub(crate) fn shortage(error: impl ToString) -> Self {
        Failure { why: error.to_string(), patience: EVICTION_TIMEOUT }
    }

    pub(crate) fn hopeless(error: impl ToString) -> Self {
        Failure { why: error.to_string(), patience: Duration::ZERO }
    }

    pub(crate) fn of_opening(error: &Error) -> Self {
        let patience = match error {
            Error::InUse { .. } => KILLED_OWNER_TIMEOUT,
            Error::Io { .. } | Error::Poisoned { .. } => EVICTION_TIMEOUT,
            _ => Duration::ZERO,
        };
        Failure { why: error.to_string(), patience }
    }
}

/// The decision after an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Evict,
    /// It leaves it to others for so long, and tries again.
    Retry(Duration),
}

/// A row of failures.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    since: Option<Instant>,
    count: u32,
}

impl Row {
    /// Adds one; whether it is time to give up.
    fn is_enough(&mut self, patience: Duration, now: Instant) -> bool {
        self.count += 1;
        let since = now.duration_since(*self.since.get_or_insert(now));
        // Each attempt to open a file that a killed process keeps takes long, and all others wait for it.
        let often = patience == KILLED_OWNER_TIMEOUT || self.count >= EVICTION_ATTEMPTS;
        patience.is_zero() || since >= patience && often
    }

    /// How long to leave it to others.
    fn rest(&self) -> Duration {
        (RETRY_PAUSE * (1 << self.count.min(8))).min(LONGEST_RETRY_PAUSE)
    }
}

/// The failures of one search, of each kind in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search {
    takeovers: Row,
    returns: Row,
}

impl Search {
    pub(super) fn cannot_take_over(&mut self, patience: Duration, now: Instant) -> Verdict {
        if self.takeovers.is_enough(patience, now) {
            return Verdict::Evict;
        }
        // A file that is still kept will be free for whoever tries next.
        let kept = patience == KILLED_OWNER_TIMEOUT;
        Verdict::Retry(if kept { RETRY_PAUSE } else { self.takeovers.rest() })
    }

    pub(super) fn cannot_return(&mut self, error: &ConnectError, now: Instant) -> Verdict {
        if let ConnectError::Again(_) = error {
            self.returns = Row::default();
            return Verdict::Retry(RETRY_PAUSE);
        }
        // It may pass, but the others wait for this process.
        match self.returns.is_enough(EVICTION_TIMEOUT, now) {
            true => Verdict::Evict,
            false => Verdict::Retry(self.returns.rest()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a process may meet in one turn of a search.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        CannotTakeOver(Duration),
        CannotReturn(fn(String) -> ConnectError),
    }

    const EVENTS: [Event; 6] = [
        Event::CannotTakeOver(Duration::ZERO),
        Event::CannotTakeOver(EVICTION_TIMEOUT),
        Event::CannotTakeOver(KILLED_OWNER_TIMEOUT),
        Event::CannotReturn(ConnectError::Again),
        Event::CannotReturn(ConnectError::Short),
        Event::CannotReturn(ConnectError::Never),
    ];
    /// Between two events: none, part of what a member tries for, and all of what a killed owner is waited for.
    const STEPS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(600), KILLED_OWNER_TIMEOUT];

    /// Failures in a row as the rule counts them: how many, and since when.
    type Counted = (u32, Duration);

    fn count((times, since): Counted, now: Duration) -> Counted {
        (times + 1, if times == 0 { now } else { since })
    }

    fn turn(search: &mut Search, event: Event, now: Instant) -> Verdict {
        match event {
            Event::CannotTakeOver(patience) => search.cannot_take_over(patience, now),
            Event::CannotReturn(error) => search.cannot_return(&error(String::new()), now),
        }
    }

    /// Every sequence of four events, after each number of equal failures that a process may have met before.
    #[test]
    fn a_search_evicts_exactly_after_lasting_failures() {
        type Case = (Search, Duration, [Counted; 2], u32);
        let began = Instant::now();
        let before = |(event, times): (Event, u32)| -> Case {
            let (mut search, mut counted) = (Search::default(), [(0, Duration::ZERO); 2]);
            for _ in 0..times {
                turn(&mut search, event, began);
                let row = usize::from(matches!(event, Event::CannotReturn(_)));
                counted[row] = count(counted[row], Duration::ZERO);
            }
            (search, Duration::ZERO, counted, 0)
        };
        let lasting = [(EVENTS[1], 0), (EVENTS[1], 8), (EVENTS[2], 9), (EVENTS[4], 7), (EVENTS[5], 9)];
        let mut cases: Vec<Case> = lasting.map(before).to_vec();
        let (mut evictions, mut turns) = (0, 0);
        while let Some((search, now, counted, depth)) = cases.pop() {
            for (event, step) in EVENTS.iter().flat_map(|event| STEPS.map(|step| (*event, step))) {
                let (mut search, mut counted, now) = (search, counted, now + step);
                let verdict = turn(&mut search, event, began + now);
                let enough = |(times, since): Counted, patience: Duration| {
                    now - since >= patience && (patience != EVICTION_TIMEOUT || times >= EVICTION_ATTEMPTS)
                };
                let evicted = match event {
                    Event::CannotTakeOver(patience) => {
                        counted[0] = count(counted[0], now);
                        enough(counted[0], patience)
                    }
                    Event::CannotReturn(error) if matches!(error(String::new()), ConnectError::Again(_)) => {
                        counted[1] = (0, now);
                        false
                    }
                    Event::CannotReturn(_) => {
                        counted[1] = count(counted[1], now);
                        enough(counted[1], EVICTION_TIMEOUT)
                    }
                };
                assert_eq!(verdict == Verdict::Evict, evicted, "{event:?} at {now:?} after {counted:?}");
                turns += 1;
                match verdict {
                    Verdict::Evict => evictions += 1,
                    Verdict::Retry(pause) => {
                        assert!((RETRY_PAUSE..=LONGEST_RETRY_PAUSE).contains(&pause), "{pause:?}");
                        if depth < 3 {
                            cases.push((search, now, counted, depth + 1));
                        }
                    }
                }
            }
        }
        assert!(evictions > 1000 && turns > 2 * evictions, "{evictions} evictions in {turns} turns");
    }
}
