//! The same exploration for region stores: several regions, each with commits of its own.
//!
//! The model is simple, since a region is used by one thread at a time: an operation is durable whole or not at all
//! until it returns, and whole from then on.

use super::report::Violation;
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, scripted};

mod config;
mod life;
mod ops;
mod subject;

use config::Config;

/// Explores until `settings.states` distinct states were checked, or too many violations found. The engine of the
/// settings is not looked at.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    scripted::explore::<Config>(settings, progress)
}

/// Mutes each barrier of the region store in turn and looks for the violation that convicts the mutant.
pub fn mutants(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    scripted::mutants::<Config>(settings, progress)
}

/// Looks for the violation of a store that writes in place, in each fault model.
pub fn canary(settings: &Settings) -> Vec<Canary> {
    scripted::canary::<Config>(settings)
}

/// Runs one case again, named by its token; `None` if the token is none of these.
pub(super) fn replay(token: &str) -> Option<Result<Option<Violation>, String>> {
    scripted::replay::<Config>(token)
}
