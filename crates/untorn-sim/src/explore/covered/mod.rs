//! The same exploration for files of engines that have redundancy: written, committed, brought home, covered, given
//! other lengths, closed, settled, damaged at rest and repaired.
//!
//! After each crash the exploration checks:
//!
//! - Redundancy says nothing false of what the crash left: it accuses no page, as none was damaged, and all parity
//!   fits the pages that are called covered.
//! - The engine opens the file, finds a state that the writes allow, and finds it covered.
//! - A page that is damaged after that is found and given back under the engine's eyes: a page of the file, or of its
//!   sidecar if that is covered.
//! - A damaged page of a sidecar at rest does not keep its engine from the file, and a damaged page that tells where
//!   bytes are does not deceive recovery.

use super::report::Violation;
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, scripted};

mod check;
mod config;
mod life;

use config::Config;

/// Explores until `settings.states` distinct states were checked, or too many violations found. The engine of the
/// settings is not looked at.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    scripted::explore::<Config>(settings, progress)
}

/// Mutes the barriers that only redundancy of a sidecar has, and looks for the violations that convict them. The
/// others that an engine's stores come by are those of redundancy of any file, whose [exploration](super::redundancy)
/// convicts them.
pub fn mutants(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    scripted::mutants::<Config>(settings, progress)
}

/// Looks for the violation of a program that stores to the file past its engine, in each fault model.
pub fn canary(settings: &Settings) -> Vec<Canary> {
    scripted::canary::<Config>(settings)
}

/// Runs one case again, named by its token; `None` if the token is none of these.
pub(super) fn replay(token: &str) -> Option<Result<Option<Violation>, String>> {
    scripted::replay::<Config>(token)
}
