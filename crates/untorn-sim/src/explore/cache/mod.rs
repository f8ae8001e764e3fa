//! The same exploration for write caches: several files behind one log.
//!
//! One thread uses them. An operation is durable whole or not at all until it returns, and whole from then on; where durability
//! is left to a sync, of all operations since the last one any may be durable, each whole.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use untorn::medium::Barrier;

use super::config::medium_word;
use super::report::Violation;
use super::shared::Shared;
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, hush, in_parallel};
use crate::rng::{Rng, mix};

mod config;
mod life;
mod ops;
mod subject;

use config::{Case, Config};

/// The most crash states of one case that the search for a mutant looks at.
const MUTANT_STATES: u64 = 1500;

/// Explores until `settings.states` distinct states were checked, or too many violations found. The engine of the settings
/// is not looked at.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    hush();
    let shared = Shared::new(settings.states);
    let configs = Config::all(&settings.media, false);
    let (next, cases) = (AtomicU64::new(0), AtomicU64::new(0));
    let violations = Mutex::new(Vec::new());
    in_parallel(settings.jobs, || {
        while !shared.stopped() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let config = configs[(index % configs.len() as u64) as usize];
            let case = Case { config, seed: mix(settings.seed ^ mix(index)) >> 16, muted: None };
            let found = run(&case, &shared);
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

/// Mutes each barrier of the write cache in turn and looks for the violation that convicts the mutant.
pub fn mutants(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    hush();
    let barriers = untorn::engine::cache_barriers();
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let results = Mutex::new(Vec::new());
    in_parallel(settings.jobs, || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(&barrier) = barriers.get(index) else { break };
            let configs = Config::all(&settings.media, false);
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

/// Looks for the violation of files without a log, in each fault model.
pub fn canary(settings: &Settings) -> Vec<Canary> {
    hush();
    let on = |&medium| {
        let (conviction, ..) = search(settings, &Config::all(&[medium], true), None);
        Canary { medium: medium_word(medium), conviction }
    };
    settings.media.iter().map(on).collect()
}

/// Runs one case again, named by its token; `None` if the token is none of these.
pub(super) fn replay(token: &str) -> Option<Result<Option<Violation>, String>> {
    let engine = token.split('/').nth(1);
    matches!(engine, Some("cache" | "no-cache")).then(|| {
        let case: Case = token.parse()?;
        Ok(run(&case, &Shared::new(u64::MAX)))
    })
}

fn run(case: &Case, shared: &Shared) -> Option<Violation> {
    life::run(case, shared).map(|finding| finding.violation(case.to_string(), case.config.to_string()))
}

/// Runs cases until one is violated or the budget is spent. Returns the violation, whether the muted barrier was passed,
/// and the number of cases.
fn search(settings: &Settings, configs: &[Config], muted: Option<Barrier>) -> (Option<Violation>, bool, u64) {
    let start = Instant::now();
    let mut rng = Rng::derive(mix(settings.seed ^ 0x6361_6368), 4);
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
        let shared = Shared::new(MUTANT_STATES);
        let found = run(&case, &shared);
        cases += 1;
        let passed = shared.reached.load(Ordering::Relaxed);
        reached[index] += u64::from(passed);
        // A case that never comes by the barrier, or is wrong without the mutation too, says nothing about it.
        let is_right = || run(&Case { muted: None, ..case }, &Shared::new(MUTANT_STATES)).is_none();
        if let Some(violation) = found.filter(|_| muted.is_none() || passed && is_right()) {
            return (Some(violation), true, cases);
        }
    }
    (None, reached.iter().any(|&times| times > 0), cases)
}
