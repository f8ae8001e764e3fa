//! The same exploration for files of engines that have redundancy: written, committed, brought home, covered, given other
//! lengths, closed, settled, damaged at rest and repaired.
//!
//! What is judged of a crash is that redundancy says nothing false of what it left: no page is accused, though none was
//! damaged, and all parity fits what is called covered. Then the file is opened with its engine, which must find a state that
//! the writes allow, and covered; and a page that is damaged after that must be found and given back, under the engine's eyes:
//! one of the file, or of its sidecar where that is covered. One of a sidecar at rest must not keep its engine from the file, nor
//! one that tells where bytes are deceive recovery.

use super::report::Violation;
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, scripted};

mod check;
mod config;
mod life;

use config::Config;

/// Explores until `settings.states` distinct states were checked, or too many violations found. The engine of the settings
/// is not looked at.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    scripted::explore::<Config>(settings, progress)
}

/// Mutes the barriers that only redundancy of a sidecar has, and looks for the violations that convict them. The others that an
/// engine's stores come by are those of redundancy of any file, whose [exploration](super::redundancy) convicts them.
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
