//! The same exploration for write caches: several files behind one log.
//!
//! One thread uses them. An operation must be durable like this:
//!
//! - Until it returns, it is durable whole or not at all; from then on, whole.
//! - If durability is left to a sync, any of the operations since the last sync may be durable, each whole.
//! - If files are also written through, each byte may be what any of these operations left there.

use super::report::Violation;
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, scripted};

mod allowed;
mod config;
mod generator;
mod life;
mod model;
mod ops;
mod subject;

use config::Config;

/// Explores until `settings.states` distinct states were checked, or too many violations found. The engine of the
/// settings is not looked at.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    scripted::explore::<Config>(settings, progress)
}

/// Mutes each barrier of the write cache in turn and looks for the violation that convicts the mutant.
pub fn mutants(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    scripted::mutants::<Config>(settings, progress)
}

/// Looks for the violation of files without a log, in each fault model.
pub fn canary(settings: &Settings) -> Vec<Canary> {
    scripted::canary::<Config>(settings)
}

/// Runs one case again, named by its token; `None` if the token is none of these.
pub(super) fn replay(token: &str) -> Option<Result<Option<Violation>, String>> {
    scripted::replay::<Config>(token)
}
