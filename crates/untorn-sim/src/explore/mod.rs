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

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use untorn::EngineKind;
use untorn::testing::storage::MediumClass;

mod cache;
mod companion;
mod covered;
mod files;
mod finding;
mod life;
mod recorder;
mod redundancy;
mod regions;
mod report;
mod search;
mod shared;
mod tokens;

use life::Subject;
pub use report::{Breach, Canary, Mutant, Outcome, Violation};

/// The subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One file with an engine.
    Files(EngineKind),
    /// Region stores: several regions, each with commits of its own.
    Regions,
    /// The write cache: several files behind one log.
    Cache,
    /// Redundancy of plain files.
    Redundancy,
    /// Redundancy of files with an engine.
    Covered,
}

impl Target {
    const WORDS: &[(&str, Target)] = &[
        ("snapshot", Target::Regions),
        ("cache", Target::Cache),
        ("redundancy", Target::Redundancy),
        ("covered", Target::Covered),
    ];

    fn explorer(self) -> Explorer {
        match self {
            Target::Files(_) => Explorer::of::<files::Config>(),
            Target::Regions => Explorer::of::<regions::Config>(),
            Target::Cache => Explorer::of::<cache::Config>(),
            Target::Redundancy => Explorer::of::<redundancy::Config>(),
            Target::Covered => Explorer::of::<covered::Config>(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Files(kind) => kind.fmt(f),
            other => f.pad(tokens::word_of(Target::WORDS, other)),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        tokens::value_of(Target::WORDS, text).or_else(|_| text.parse().map(Target::Files))
    }
}

/// The explorations of one kind of target.
struct Explorer {
    has_mode: fn(&str) -> bool,
    explore: fn(&Settings, ProgressFn<'_>) -> Outcome,
    mutants: fn(&Settings, ProgressFn<'_>) -> Vec<Mutant>,
    canary: fn(&Settings) -> Vec<Canary>,
    replay: fn(&str) -> Result<Option<Violation>, String>,
}

impl Explorer {
    fn of<C: Subject>() -> Self {
        Explorer {
            has_mode: C::has_mode,
            explore: search::explore::<C>,
            mutants: search::mutants::<C>,
            canary: search::canary::<C>,
            replay: search::replay::<C>,
        }
    }
}

/// The scope of an exploration. Start from [`Settings::default`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// Distinct states to see before the exploration ends.
    pub states: u64,
    /// Every random decision follows from it.
    pub seed: u64,
    /// The fault models.
    pub media: Vec<MediumClass>,
    /// The subject.
    pub target: Target,
    /// Threads to work with.
    pub jobs: usize,
    /// Violations after which the exploration gives up.
    pub max_violations: usize,
    /// Cases tried on a mutant, or the canary, before it is acquitted.
    pub mutant_cases: u64,
    /// Time after which a mutant is acquitted, or the canary. By default far more than the cases take: how busy the
    /// machine is must not decide.
    pub mutant_time: Duration,
    /// Tokens of cases that convicted mutants before. The search for a mutant starts with its own; only a case that
    /// convicts it again counts.
    pub try_first: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            states: 1_000_000,
            seed: 1,
            media: vec![MediumClass::PersistentMemory, MediumClass::Block],
            target: Target::Files(EngineKind::Reflection),
            jobs: 1,
            max_violations: 5,
            mutant_cases: 4000,
            mutant_time: Duration::from_secs(3600),
            try_first: Vec::new(),
        }
    }
}

/// Progress: what is under way, how much of how much is done.
pub type ProgressFn<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Explores until `settings.states` distinct states were checked, or too many violations found.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    (settings.target.explorer().explore)(settings, progress)
}

/// Mutes each barrier of the target in turn and looks for the violation that convicts the mutant. The barriers that
/// [`Target::Covered`] shares with [`Target::Redundancy`] are convicted by the latter only.
pub fn mutants(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    (settings.target.explorer().mutants)(settings, progress)
}

/// Looks for the canary's violation in each fault model. The canary is an engine that makes no promise, a region store
/// that writes in place, files without a log, or a program that stores without telling redundancy.
pub fn canary(settings: &Settings) -> Vec<Canary> {
    (settings.target.explorer().canary)(settings)
}

/// Runs one case again, named by its token, to its first violation.
///
/// # Errors
/// The error is a text that says what is wrong with the token.
pub fn replay(token: &str) -> Result<Option<Violation>, String> {
    let files = Target::Files(EngineKind::Reflection);
    let word = token.split('/').nth(1).unwrap_or_default();
    let mut targets = Target::WORDS.iter().map(|(_, target)| *target).chain([files]).map(Target::explorer);
    let explorer = targets.find(|explorer| (explorer.has_mode)(word));
    (explorer.ok_or_else(|| format!("{token:?} is not the token of a case"))?.replay)(token)
}
