//! The explorer: runs an engine through operations on a simulated medium, crashes it everywhere, and checks every state
//! that recovery makes of it.
//!
//! For each *case* (a configuration and a script of operations) the machine's state is taken before every call of the
//! medium that changes something. From each state come crash images: all of them where they are few, samples where they
//! are many. Each distinct image is recovered by opening the file, and what the file then holds must be a state the
//! reference model allows: no commit in part (C1), none lost (C2), nothing that a read had shown taken back (C3).
//! Some images live on: their recovery is crashed as well, and further writes after it.
//!
//! To know that this would notice, every barrier of the engine is muted in turn (a *mutant*), and an engine that makes
//! no promise (the *canary*) runs in its place. The explorer must find violations in all of them.

use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use untorn::EngineKind;
use untorn::testing::storage::{Barrier, MediumClass};

use crate::rng::{Rng, mix};

pub mod cache;
mod case;
mod config;
pub mod covered;
mod life;
mod model;
mod ops;
mod recorder;
pub mod redundancy;
pub mod regions;
mod report;
mod scripted;
mod shared;

use case::{Case, Source};
pub use config::Config;
pub use report::{Canary, Mutant, Outcome, Violation};
use shared::Shared;

/// The scope of an exploration. Start from [`Settings::default`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// Distinct states to see before the exploration ends.
    pub states: u64,
    /// Every random decision follows from it.
    pub seed: u64,
    /// The fault models.
    pub media: Vec<MediumClass>,
    /// The engine.
    pub engine: EngineKind,
    /// Threads to work with.
    pub jobs: usize,
    /// Violations after which the exploration gives up.
    pub max_violations: usize,
    /// Cases tried on a mutant, or the canary, before it is acquitted.
    pub mutant_cases: u64,
    /// Time after which a mutant is acquitted, or the canary. By default far more than the cases take: how busy the
    /// machine is must not decide.
    pub mutant_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            states: 1_000_000,
            seed: 1,
            media: vec![MediumClass::PersistentMemory, MediumClass::Block],
            engine: EngineKind::Reflection,
            jobs: 1,
            max_violations: 5,
            mutant_cases: 4000,
            mutant_time: Duration::from_secs(3600),
        }
    }
}

/// Progress: what is under way, how much of how much is done.
pub type ProgressFn<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Panics of engines are findings, not noise: they are caught and reported.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !life::is_guarded() {
                usual(info);
            }
        }));
    });
}

/// Explores until `settings.states` distinct states were checked, or too many violations found. All short sequences of
/// every configuration come first, random scripts after them.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    hush();
    let shared = Shared::new(settings.states);
    let configs = Config::all(settings.engine, &settings.media);
    let shorts = configs.iter().map(Case::shorts).max().unwrap_or(0) * configs.len() as u64;
    let next = AtomicU64::new(0);
    let cases = AtomicU64::new(0);
    let violations = Mutex::new(Vec::new());
    in_parallel(settings.jobs, || {
        while !shared.stopped() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let config = configs[(index % configs.len() as u64) as usize];
            let source = if index < shorts {
                let short = index / configs.len() as u64;
                if short >= Case::shorts(&config) {
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

/// Runs one case again, named by its token, to its first violation.
///
/// # Errors
/// The error is a text that says what is wrong with the token.
pub fn replay(token: &str) -> Result<Option<Violation>, String> {
    hush();
    let scripted = [regions::replay, cache::replay, redundancy::replay, covered::replay];
    if let Some(result) = scripted.iter().find_map(|replay| replay(token)) {
        return result;
    }
    let case: Case = token.parse()?;
    Ok(case.run(&Shared::new(u64::MAX)))
}

/// Mutes each barrier of the engine in turn and looks for the violation that convicts the mutant.
pub fn mutants(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    hush();
    let barriers = untorn::testing::barriers(settings.engine);
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let results = Mutex::new(Vec::new());
    in_parallel(settings.jobs, || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(&barrier) = barriers.get(index) else { break };
            let mutant = convict(settings, barrier);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, mutant));
            progress("mutants", done.fetch_add(1, Ordering::Relaxed) + 1, barriers.len() as u64);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, mutant)| mutant).collect()
}

fn convict(settings: &Settings, barrier: Barrier) -> Mutant {
    let configs = Config::all(settings.engine, &settings.media);
    let seed = mix(settings.seed ^ 0x6d75_7461);
    let (conviction, reached, cases) = search(settings, &configs, Some(barrier), seed);
    Mutant { barrier: barrier.name(), conviction, reached, cases }
}

/// Looks for the canary's violation in each fault model.
pub fn canary(settings: &Settings) -> Vec<Canary> {
    hush();
    settings
        .media
        .iter()
        .map(|&medium| {
            let configs = Config::all(EngineKind::Passthrough, &[medium]);
            let (conviction, ..) = search(settings, &configs, None, settings.seed);
            Canary { medium: config::medium_word(medium), conviction }
        })
        .collect()
}

/// The most crash states of one case that the search for a mutant looks at: a mutant is convicted by many short cases
/// sooner than by a few long ones.
const STATES_A_CASE: u64 = 4_000;

/// Runs cases until one is violated or the budget is spent. Returns the violation, whether the muted barrier was
/// passed, and the number of cases.
fn search(
    settings: &Settings,
    configs: &[Config],
    muted: Option<Barrier>,
    seed: u64,
) -> (Option<Violation>, bool, u64) {
    let start = Instant::now();
    let mut reached = false;
    // For each configuration: runs, and runs that passed the barrier. Configurations that never pass it are seldom
    // tried again.
    let mut tried = vec![(0_u64, 0_u64); configs.len()];
    let mut rng = Rng::derive(seed, 4);
    let mut cases = 0;
    for round in 0.. {
        if cases >= settings.mutant_cases || start.elapsed() > settings.mutant_time {
            break;
        }
        let at = (round % configs.len() as u64) as usize;
        let (runs, passed) = tried[at];
        if muted.is_some() && runs >= 3 && passed == 0 && !rng.one_in(8) {
            continue;
        }
        let config = configs[at];
        // The canary must be convicted of tearing, not of promises about names that it never made: its cases begin
        // with an existing file.
        let source = if muted.is_none() {
            Source::Short(2 + rng.below(Case::shorts(&config) - 2))
        } else if rng.one_in(3) {
            Source::Short(rng.below(Case::shorts(&config)))
        } else {
            Source::Seed(rng.next_u64() >> 16)
        };
        let shared = Shared::new(STATES_A_CASE);
        let case = Case { config, source, muted };
        let found = case.run(&shared);
        cases += 1;
        let passed = shared.reached.load(Ordering::Relaxed);
        // A case that never comes by the barrier, or is wrong without the mutation too, says nothing about it.
        let found = found.filter(|_| muted.is_none() || passed && is_right(&case));
        reached |= passed;
        tried[at].0 += 1;
        tried[at].1 += u64::from(passed);
        if found.is_some() {
            return (found, reached, cases);
        }
    }
    (None, reached, cases)
}

/// Whether a case has no violation when no barrier is muted.
fn is_right(case: &Case) -> bool {
    Case { muted: None, ..*case }.run(&Shared::new(STATES_A_CASE)).is_none()
}

fn in_parallel(jobs: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(&work);
        }
    });
}
