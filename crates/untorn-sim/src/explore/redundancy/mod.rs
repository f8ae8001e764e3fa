//! The same exploration for redundancy: a protected file that is stored to, covered, damaged at rest, scrubbed and
//! repaired.
//!
//! The judge does not look at the file's content: it is a plain file and may hold anything after a crash. It judges
//! what redundancy says of the file and does to it:
//!
//! - A page that was not damaged is never accused and never changed.
//! - A page that was covered and was damaged is found and gets its bytes back.
//! - A page that is called covered can indeed be given back.

use super::report::Violation;
use super::{Canary, Mutant, Outcome, ProgressFn, Settings, scripted};

mod check;
mod config;
mod life;
mod ops;

use config::Config;

/// Explores until `settings.states` distinct states were checked, or too many violations found. The engine of the
/// settings is not looked at.
pub fn explore(settings: &Settings, progress: ProgressFn<'_>) -> Outcome {
    scripted::explore::<Config>(settings, progress)
}

/// Mutes each barrier of redundancy in turn and looks for the violation that convicts the mutant.
pub fn mutants(settings: &Settings, progress: ProgressFn<'_>) -> Vec<Mutant> {
    scripted::mutants::<Config>(settings, progress)
}

/// Looks for the violation of a program that stores without telling, in each fault model.
pub fn canary(settings: &Settings) -> Vec<Canary> {
    scripted::canary::<Config>(settings)
}

/// Runs one case again, named by its token; `None` if the token is none of these.
pub(super) fn replay(token: &str) -> Option<Result<Option<Violation>, String>> {
    scripted::replay::<Config>(token)
}
