//! The three loops of checks: `cargo xtask quick`, `cargo xtask ci`, `cargo xtask nightly`.
//!
//! - [`steps`] is the table: each step's name, the commands it runs, and the loops it belongs to.
//! - [`runner`] runs steps, and reports which passed, failed or were skipped, and why.
//! - [`checks`] has the steps that are more than commands.
//! - [`packages`] has those that look at the crates as others get them.
//! - [`python`] has that of the Python package.
//! - [`touched`] finds the engines that a change touches, for `quick`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

mod book;
mod checks;
mod golang;
mod packages;
mod python;
mod runner;
mod steps;
mod touched;

use runner::Runner;
use steps::{Loop, Step};

/// Check a change in at most five minutes: format, house rules, lints, unit tests, and 20,000 crash states of each
/// engine that the change touches.
///
/// Exit codes: 0 every step passed or was skipped with a reason; 1 a step failed.
#[derive(Args)]
#[command(after_help = "Example: cargo xtask quick --base origin/main")]
pub(crate) struct Quick {
    /// The revision that the change starts from; it decides which engines are explored
    #[arg(long, value_name = "REV", default_value = "HEAD~1")]
    base: String,
    /// Print one JSON object before the last line
    #[arg(long)]
    json: bool,
}

/// Run every check that a change must pass. `.ci/run` installs what the checks need and calls this.
///
/// Exit codes: 0 every step passed or was skipped with a reason; 1 a step failed.
#[derive(Args)]
#[command(after_help = "Example: cargo xtask ci --only lints --only tests")]
pub(crate) struct Ci {
    /// Run only this step; may be given several times
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Print the steps and run none
    #[arg(long)]
    list: bool,
    /// Print one JSON object before the last line
    #[arg(long)]
    json: bool,
}

/// Run the long checks: full explorations, kills and power cuts by the thousand, fuzzing, sanitizers, a bare machine.
///
/// A step that passed for this commit does not run again, so a run that was interrupted goes on where it stopped.
///
/// Exit codes: 0 every step passed or was skipped with a reason; 1 a step failed or had no time.
#[derive(Args)]
#[command(after_help = "Example: cargo xtask nightly --only explore-cache --budget 30")]
pub(crate) struct Nightly {
    /// Run only this step; may be given several times
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Minutes after which no further step starts
    #[arg(long, value_name = "MINUTES")]
    budget: Option<u64>,
    /// Run steps again that passed for this commit
    #[arg(long)]
    fresh: bool,
    /// Print the steps and run none
    #[arg(long)]
    list: bool,
    /// Print one JSON object before the last line
    #[arg(long)]
    json: bool,
}

/// Run one step of any loop in this process.
#[derive(Args)]
pub(crate) struct One {
    name: String,
}

/// The runner starts this for a step that runs beside another.
pub(crate) fn step(root: &Path, arguments: &One) -> ExitCode {
    let Some(step) = steps::all().find(|step| step.name == arguments.name) else {
        eprintln!("no step is named {}", arguments.name);
        return ExitCode::from(64);
    };
    let mut runner = Runner::new(root, false);
    runner.run(step);
    runner.conclude_step()
}

pub(crate) fn quick(root: &Path, arguments: &Quick) -> ExitCode {
    let engines = match touched::engines(root, &arguments.base) {
        Ok(engines) => engines,
        Err(error) => {
            eprintln!("quick: cannot find what changed since {}: {error}", arguments.base);
            return ExitCode::FAILURE;
        }
    };
    let mut runner = Runner::new(root, arguments.json);
    runner.run_all(&of(Loop::Quick), false);
    runner.explore(&engines, 20_000);
    runner.conclude("quick")
}

pub(crate) fn ci(root: &Path, arguments: &Ci) -> ExitCode {
    let Some(chosen) = chosen(Loop::Ci, &arguments.only, arguments.list) else {
        return ExitCode::from(if arguments.list { 0 } else { 64 });
    };
    let mut runner = Runner::new(root, arguments.json);
    // Later steps build on earlier ones, and their failures would bury the first.
    runner.run_all(&chosen, true);
    runner.conclude("ci")
}

pub(crate) fn nightly(root: &Path, arguments: &Nightly) -> ExitCode {
    let Some(chosen) = chosen(Loop::Nightly, &arguments.only, arguments.list) else {
        return ExitCode::from(if arguments.list { 0 } else { 64 });
    };
    let mut runner = Runner::new(root, arguments.json);
    runner.remember(arguments.fresh || !arguments.only.is_empty());
    if let Some(minutes) = arguments.budget {
        runner.limit(Duration::from_secs(60 * minutes));
    }
    runner.run_all(&chosen, false);
    runner.conclude("nightly")
}

fn of(which: Loop) -> Vec<&'static Step> {
    steps::all().filter(|step| step.loops.contains(&which)).collect()
}

/// The steps to run; `None` if they were only listed, or a name is no step's.
fn chosen(which: Loop, only: &[String], list: bool) -> Option<Vec<&'static Step>> {
    let all = of(which);
    if list {
        all.iter().for_each(|step| println!("{:<20} {}", step.name, step.does));
        return None;
    }
    if let Some(unknown) = only.iter().find(|name| all.iter().all(|step| step.name != name.as_str())) {
        eprintln!("no step is named {unknown}; --list prints the names");
        return None;
    }
    Some(all.into_iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name)).collect())
}
