//! The search through the cases of an exploration: for violations, for those that convict a mutant, for the canary's.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use untorn::testing::storage::{Barrier, MediumClass};

use super::finding::hush;
use super::life::Subject;
use super::report::Violation;
use super::shared::Shared;
use super::tokens::{MEDIA, word_of};
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, Target};
use crate::rng::{Rng, mix};

/// One point of a space of configurations.
pub(super) trait Configuration: Copy + PartialEq + Sync + fmt::Display + FromStr<Err = String> {
    /// Tells the searches for its mutants from those of the others with the same seed.
    const SALT: u64;
    /// The most crash states of one case that the search for a mutant looks at: a mutant is convicted by many short
    /// cases sooner than by a few long ones.
    const STATES: u64 = 4_000;

    /// Whether the second word of a token says that it is of this space, or of its canary.
    fn has_mode(word: &str) -> bool;

    /// Every configuration on these media: of that which is to be right, or of its canary.
    fn all(target: Target, media: &[MediumClass], canary: bool) -> Vec<Self>;

    /// Every barrier that it passes.
    fn barriers(&self) -> Vec<Barrier>;

    /// The number of short scripts, all of which are tried.
    fn shorts(&self) -> u64 {
        0
    }

    /// A script for the search for a mutant, or for the canary's violation.
    fn pick(&self, _canary: bool, rng: &mut Rng) -> Source {
        Source::Seed(rng.next_u64() >> 16)
    }
}

/// The origin of a case's script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// One of all short sequences.
    Short(u64),
    /// A random one.
    Seed(u64),
}

impl Source {
    /// The seed of all random decisions.
    pub(super) fn seed(self) -> u64 {
        match self {
            Source::Short(index) => mix(index),
            Source::Seed(seed) => seed,
        }
    }
}

/// A configuration, a script, and perhaps a barrier that is muted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case<C> {
    pub(super) config: C,
    pub(super) source: Source,
    pub(super) muted: Option<Barrier>,
}

impl<C: Subject> Case<C> {
    /// Runs the case to its first violation.
    fn run(&self, shared: &Shared) -> Option<Violation> {
        C::run(self, shared).map(|finding| finding.violation(self.to_string(), self.config.to_string()))
    }

    /// Whether it has no violation when no barrier is muted.
    fn is_right(&self) -> bool {
        Case { muted: None, ..*self }.run(&Shared::new(C::STATES)).is_none()
    }

    /// The violation that convicts the mutant of the case, and whether the case passes the barrier. A case that never
    /// passes it, or is wrong without the mutation too, says nothing about the mutant.
    fn conviction(&self) -> (Option<Violation>, bool) {
        let shared = Shared::new(C::STATES);
        let found = self.run(&shared);
        let passed = shared.reached.load(Ordering::Relaxed);
        (found.filter(|_| self.muted.is_none() || passed && self.is_right()), passed)
    }
}

impl<C: fmt::Display> fmt::Display for Case<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Short(index) => write!(f, "{}:short-{index}", self.config)?,
            Source::Seed(seed) => write!(f, "{}:seed-{seed}", self.config)?,
        }
        match self.muted {
            Some(barrier) => write!(f, ":mute-{}", barrier.name()),
            None => Ok(()),
        }
    }
}

impl<C: Configuration> FromStr for Case<C> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let config: C = parts.next().unwrap_or_default().parse()?;
        let word = parts.next().unwrap_or_default();
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?} is not a number: {error}"));
        let shorts = config.shorts();
        let source = match word.split_once('-') {
            Some(("short", index)) => Source::Short(number(index)?),
            Some(("seed", seed)) => Source::Seed(number(seed)?),
            _ => return Err(format!("{word:?} is not a script; use short-N or seed-N")),
        };
        if matches!(source, Source::Short(index) if index >= shorts) {
            return Err(format!("this configuration has {shorts} short sequences, counted from 0"));
        }
        let muted = match parts.next() {
            None => None,
            Some(word) => {
                let name = word.strip_prefix("mute-").unwrap_or(word);
                let known = config.barriers().into_iter().find(|barrier| barrier.name() == name);
                Some(known.ok_or_else(|| format!("{config} passes no barrier {name:?}"))?)
            }
        };
        Ok(Case { config, source, muted })
    }
}

/// Explores until `settings.states` distinct states were checked, or too many violations found. All short sequences of
/// every configuration come first, random scripts after them.
pub(super) fn explore<C: Subject>(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    hush();
    let shared = Shared::new(settings.states);
    let configs = C::all(settings.target, &settings.media, false);
    let shorts = configs.iter().map(C::shorts).max().unwrap_or(0) * configs.len() as u64;
    let (next, cases) = (AtomicU64::new(0), AtomicU64::new(0));
    let violations = Mutex::new(Vec::new());
    in_parallel(settings.jobs, || {
        while !shared.stopped() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let config = configs[(index % configs.len() as u64) as usize];
            let source = if index < shorts {
                let short = index / configs.len() as u64;
                if short >= config.shorts() {
                    continue;
                }
                Source::Short(short)
            } else {
                Source::Seed(mix(settings.seed ^ mix(index)) >> 16)
            };
            let found = Case { config, source, muted: None }.run(&shared);
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
pub(super) fn mutants<C: Subject>(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    hush();
    let configs = C::all(settings.target, &settings.media, false);
    let barriers = configs.first().map(C::barriers).unwrap_or_default();
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
pub(super) fn canary<C: Subject>(settings: &Settings) -> Vec<Canary> {
    hush();
    let on = |&medium| {
        let (conviction, ..) = search(settings, &C::all(settings.target, &[medium], true), None);
        Canary { medium: word_of(MEDIA, &medium), conviction }
    };
    settings.media.iter().map(on).collect()
}

/// Runs one case again, named by its token, to its first violation.
pub(super) fn replay<C: Subject>(token: &str) -> Result<Option<Violation>, String> {
    hush();
    Ok(token.parse::<Case<C>>()?.run(&Shared::new(u64::MAX)))
}

/// Runs cases until one is violated or the budget is spent. Returns the violation, whether the muted barrier was
/// passed, and the number of cases.
fn search<C: Subject>(settings: &Settings, configs: &[C], muted: Option<Barrier>) -> (Option<Violation>, bool, u64) {
    let start = Instant::now();
    let mut rng = Rng::derive(mix(settings.seed ^ C::SALT), 4);
    let (mut reached, mut cases) = (vec![0; configs.len()], 0);
    let known = settings.try_first.iter().filter_map(|token| token.parse::<Case<C>>().ok());
    for case in known.filter(|case| muted.is_some() && case.muted == muted && configs.contains(&case.config)) {
        cases += 1;
        if let (Some(violation), _) = case.conviction() {
            return (Some(violation), true, cases);
        }
    }
    for round in 0.. {
        if cases >= settings.mutant_cases || start.elapsed() > settings.mutant_time {
            break;
        }
        let index = round % configs.len();
        let config = configs[index];
        let source = config.pick(muted.is_none(), &mut rng);
        // Once it is known where the barrier is come by, where it seldom is it is looked for seldom.
        let most: u64 = reached.iter().max().copied().unwrap_or(0);
        if most >= 2 && 4 * reached[index] < most && !rng.one_in(4) {
            continue;
        }
        let (found, passed) = Case { config, source, muted }.conviction();
        cases += 1;
        reached[index] += u64::from(passed);
        if let Some(violation) = found {
            return (Some(violation), true, cases);
        }
    }
    (None, reached.iter().any(|&times| times > 0), cases)
}

fn in_parallel(jobs: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(&work);
        }
    });
}

#[cfg(test)]
mod tests {
    use untorn::EngineKind;

    use super::super::{cache, covered, files, redundancy, regions};
    use super::*;

    fn tokens_survive<C: Configuration + fmt::Debug + PartialEq>(target: Target, right: usize, canaries: usize) {
        let media = [MediumClass::PersistentMemory, MediumClass::Block];
        let (all, of_canary) = (C::all(target, &media, false), C::all(target, &media, true));
        assert_eq!((all.len(), of_canary.len()), (right, canaries));
        for config in all.into_iter().chain(of_canary) {
            for muted in [None, config.barriers().first().copied()] {
                let case = Case { config, source: Source::Seed(42), muted };
                assert_eq!(case.to_string().parse(), Ok(case));
            }
        }
    }

    #[test]
    fn a_case_survives_its_token() {
        tokens_survive::<files::Config>(Target::Files(EngineKind::Reflection), 64, 64);
        tokens_survive::<files::Config>(Target::Files(EngineKind::HybridLog), 2 * 4 * (3 + 1), 64);
        tokens_survive::<regions::Config>(Target::Regions, 8, 2);
        tokens_survive::<cache::Config>(Target::Cache, 12, 2);
        tokens_survive::<redundancy::Config>(Target::Redundancy, 12, 4);
        tokens_survive::<covered::Config>(Target::Covered, 12, 6);
    }

    /// A known case spares the search. One that does not convict, or that is another mutant's, does not.
    #[test]
    fn a_known_case_is_tried_first_and_must_convict_again() {
        let settings = Settings { target: Target::Regions, ..Settings::default() };
        let configs = regions::Config::all(Target::Regions, &settings.media, false);
        let barrier = configs[0].barriers()[0];
        let (searched, _, cases) = search(&settings, &configs, Some(barrier));
        let token = searched.unwrap().replay;
        let known = |token: &str| {
            let try_first = vec!["no token".to_owned(), token.to_owned()];
            let (found, _, cases) = search(&Settings { try_first, ..settings.clone() }, &configs, Some(barrier));
            (found.unwrap().replay, cases)
        };
        assert_eq!(known(&token), (token.clone(), 1));
        let (sound, _) = token.rsplit_once(":mute-").unwrap();
        assert_eq!(known(sound), (token.clone(), cases));
    }
}
