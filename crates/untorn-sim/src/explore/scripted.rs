//! Explorations whose cases are a configuration and the seed of a script: of region stores, write caches and
//! redundancy.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use untorn::testing::storage::{Barrier, MediumClass};

use super::config::medium_word;
use super::life::Finding;
use super::report::Violation;
use super::shared::Shared;
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, hush, in_parallel};
use crate::rng::{Rng, mix};

/// One configuration of an exploration with scripts.
pub(super) trait Scripted: Copy + Sync + fmt::Display + FromStr<Err = String> {
    /// The second word of a token: of that which is to be right, and of its canary.
    const WORDS: &'static [&'static str];
    /// The noun for it in errors.
    const NOUN: &'static str;
    /// Tells the searches for its mutants from those of the others with the same seed.
    const SALT: u64;
    /// The most crash states of one case that the search for a mutant looks at.
    const STATES: u64;

    /// Every barrier it passes.
    fn barriers() -> Vec<Barrier>;

    /// Every configuration on these media.
    fn all(media: &[MediumClass], canary: bool) -> Vec<Self>;

    /// Runs a case to its first violation.
    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>>;
}

/// A configuration, the seed of a script, and perhaps a barrier that is muted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case<C> {
    pub(super) config: C,
    pub(super) seed: u64,
    pub(super) muted: Option<Barrier>,
}

impl<C: Scripted> Case<C> {
    fn run(&self, shared: &Shared) -> Option<Violation> {
        C::run(self, shared).map(|finding| finding.violation(self.to_string(), self.config.to_string()))
    }

    /// Whether it has no violation when no barrier is muted.
    fn is_right(&self) -> bool {
        Case { muted: None, ..*self }.run(&Shared::new(C::STATES)).is_none()
    }
}

impl<C: fmt::Display> fmt::Display for Case<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:seed-{}", self.config, self.seed)?;
        match self.muted {
            Some(barrier) => write!(f, ":mute-{}", barrier.name()),
            None => Ok(()),
        }
    }
}

impl<C: Scripted> FromStr for Case<C> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let config = parts.next().unwrap_or_default().parse()?;
        let word = parts.next().unwrap_or_default();
        let seed = word.strip_prefix("seed-").and_then(|seed| seed.parse().ok());
        let seed = seed.ok_or_else(|| format!("{word:?} is not a script; use seed-N"))?;
        let muted = match parts.next() {
            None => None,
            Some(word) => {
                let name = word.strip_prefix("mute-").unwrap_or(word);
                let known = C::barriers().into_iter().find(|barrier| barrier.name() == name);
                Some(known.ok_or_else(|| format!("the {} has no barrier {name:?}", C::NOUN))?)
            }
        };
        Ok(Case { config, seed, muted })
    }
}

/// Explores until `settings.states` distinct states were checked, or too many violations found.
pub(super) fn explore<C: Scripted>(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    hush();
    let shared = Shared::new(settings.states);
    let configs = C::all(&settings.media, false);
    let (next, cases) = (AtomicU64::new(0), AtomicU64::new(0));
    let violations = Mutex::new(Vec::new());
    in_parallel(settings.jobs, || {
        while !shared.stopped() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let config = configs[(index % configs.len() as u64) as usize];
            let case = Case { config, seed: mix(settings.seed ^ mix(index)) >> 16, muted: None };
            let found = case.run(&shared);
            cases.fetch_add(1, Ordering::Relaxed);
            progress("exploring", shared.distinct.load(Ordering::Relaxed), settings.states);
            if let Some(violation) = found {
                let mut violations = violations.lock().unwrap_or_else(PoisonError::into_inner);
                violations.push(violation);
                if violations.len() >= settings.max_violations {
                    shared.stop();
                }
            }
        }
    });
    Outcome {
        states: shared.distinct.load(Ordering::Relaxed),
        recoveries: shared.recoveries.load(Ordering::Relaxed),
        cases: cases.load(Ordering::Relaxed),
        violations: violations.into_inner().unwrap_or_else(PoisonError::into_inner),
        ..Outcome::default()
    }
}

/// Mutes each barrier in turn and looks for the violation that convicts the mutant.
pub(super) fn mutants<C: Scripted>(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    hush();
    let (barriers, configs) = (C::barriers(), C::all(&settings.media, false));
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let results = Mutex::new(Vec::new());
    in_parallel(settings.jobs, || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(&barrier) = barriers.get(index) else { break };
            let (conviction, reached, cases) = search(settings, &configs, Some(barrier));
            let mutant = Mutant { barrier: barrier.name(), conviction, reached, cases };
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, mutant));
            progress("mutants", done.fetch_add(1, Ordering::Relaxed) + 1, barriers.len() as u64);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, mutant)| mutant).collect()
}

/// Looks for the violation of the canary, in each fault model.
pub(super) fn canary<C: Scripted>(settings: &Settings) -> Vec<Canary> {
    hush();
    let on = |&medium| {
        let (conviction, ..) = search(settings, &C::all(&[medium], true), None);
        Canary { medium: medium_word(medium), conviction }
    };
    settings.media.iter().map(on).collect()
}

/// Runs one case again, named by its token; `None` if the token is of something else.
pub(super) fn replay<C: Scripted>(token: &str) -> Option<Result<Option<Violation>, String>> {
    let word = token.split('/').nth(1)?;
    C::WORDS.contains(&word).then(|| Ok(token.parse::<Case<C>>()?.run(&Shared::new(u64::MAX))))
}

/// Runs cases until one is violated or the budget is spent. Returns the violation, whether the muted barrier was
/// passed, and the number of cases.
fn search<C: Scripted>(settings: &Settings, configs: &[C], muted: Option<Barrier>) -> (Option<Violation>, bool, u64) {
    let start = Instant::now();
    let mut rng = Rng::derive(mix(settings.seed ^ C::SALT), 4);
    let (mut reached, mut cases) = (vec![0; configs.len()], 0);
    while cases < settings.mutant_cases && start.elapsed() < settings.mutant_time {
        let index = (cases % configs.len() as u64) as usize;
        let seed = rng.next_u64() >> 16;
        // Once it is known where the barrier is come by, where it seldom is it is looked for seldom.
        let most: u64 = reached.iter().max().copied().unwrap_or(0);
        if most >= 2 && 4 * reached[index] < most && !rng.one_in(4) {
            cases += 1;
            continue;
        }
        let case = Case { config: configs[index], seed, muted };
        let shared = Shared::new(C::STATES);
        let found = case.run(&shared);
        cases += 1;
        let passed = shared.reached.load(Ordering::Relaxed);
        reached[index] += u64::from(passed);
        // A case that never comes by the barrier, or is wrong without the mutation too, says nothing about it.
        if let Some(violation) = found.filter(|_| muted.is_none() || passed && case.is_right()) {
            return (Some(violation), true, cases);
        }
    }
    (None, reached.iter().any(|&times| times > 0), cases)
}

/// Checks that the tokens of each of them survive.
#[cfg(test)]
pub(super) fn tokens_survive<C: Scripted + fmt::Debug + PartialEq>(right: usize, canaries: usize) {
    let media = [MediumClass::PersistentMemory, MediumClass::Block];
    let (all, of_canary) = (C::all(&media, false), C::all(&media, true));
    assert_eq!((all.len(), of_canary.len()), (right, canaries));
    for config in all.into_iter().chain(of_canary) {
        for muted in [None, C::barriers().first().copied()] {
            let case = Case { config, seed: 42, muted };
            assert_eq!(case.to_string().parse(), Ok(case));
        }
    }
}
