//! `cargo xtask sqlite`: attacks SQLite's VFS `untorn`, and runs SQLite's own tests on it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use crate::programs::power_cuts::{self, Order};
use crate::programs::victims::Victim;
use crate::programs::{Built, Place, kills};

mod fixture;
mod scripts;
mod source;
mod victims;

/// Arguments of `cargo xtask sqlite`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Kill processes that commit, this many times in total, spread over the journal modes with one and four
    /// connections
    #[arg(long, value_name = "N", default_value_t = 0)]
    kills: u32,
    /// Cut the power of their disk, this many times in total; needs root. A VFS without flushes, and disks that lie,
    /// must be convicted
    #[arg(long, value_name = "N", default_value_t = 0)]
    power_cuts: u32,
    /// Seed for the instants of the power cuts and the surviving writes
    #[arg(long, value_name = "N", default_value_t = 0x5eed)]
    seed: u64,
    /// Number of disks at once
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Keep wrong disks below this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// SQLite's source tree: run its mptest and threadtest3 on the VFS, and add a build that writes atomically in
    /// batches to the kills and power cuts
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Run every script of sqllogictest (*.test, *.slt) below this directory on the VFS, each on a new database, which
    /// must be whole and a plain file afterwards
    #[arg(long, value_name = "DIR")]
    sqllogictest: Option<PathBuf>,
    /// Run those scripts on the VFS `unix`, to tell what differs for another reason
    #[arg(long, hide = true, requires = "sqllogictest")]
    stock: bool,
    /// A testfixture, SQLite's test program: run tests in it with the VFS as the default one
    #[arg(long, value_name = "FILE", requires = "tests")]
    fixture: Option<PathBuf>,
    /// The test scripts for the testfixture, for example test/veryquick.test, and their options
    #[arg(value_name = "TEST", requires = "fixture", trailing_var_arg = true, allow_hyphen_values = true)]
    tests: Vec<String>,
}

/// The exit code if a program is missing.
const UNAVAILABLE: u8 = 69;

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    match attempt(root, arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sqlite: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::NotFound { UNAVAILABLE } else { 74 })
        }
    }
}

/// An error for a program or a privilege that this machine lacks.
fn missing(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what.into())
}

fn attempt(root: &Path, arguments: &Arguments) -> io::Result<bool> {
    if arguments.power_cuts > 0 {
        power_cuts::require().map_err(|error| missing(error.to_string()))?;
    }
    let library = build(root)?;
    let mut all = true;
    if let Some(fixture) = &arguments.fixture {
        all &= fixture::run(root, &library, fixture, &arguments.tests)?;
    }
    if let Some(directory) = &arguments.sqllogictest {
        let library = (!arguments.stock).then_some(library.as_path());
        all &= scripts::run(root, &python()?, library, directory)?;
    }
    let place = Place::new(None)?;
    let built = match &arguments.source {
        Some(source) => {
            let built = source::build(source, &crate::target(root, "sqlite"))?;
            all &= source::run(&built, source, &library, &place.path)?;
            Some(built)
        }
        None => None,
    };
    if arguments.kills == 0 && arguments.power_cuts == 0 {
        return Ok(all);
    }
    let mut environment = vec![("UNTORN_SQLITE", library), ("PYTHON", python()?)];
    let mut all_victims = vec![victims::STOCK];
    match built {
        Some(built) => {
            environment.push(("BATCH_ATOMIC", built.batch_atomic.clone()));
            source::require_batch_atomic(&environment[1].1, &built.batch_atomic)?;
            all_victims.push(victims::BATCH_ATOMIC);
        }
        None => println!("without --source, no SQLite with atomic writes in a batch is built: not attacked"),
    }
    let built = Built::libraries(root, environment);
    if arguments.kills > 0 {
        let count: usize = all_victims.iter().map(|victims| victims.len()).sum();
        for victims in &all_victims {
            let kills = u64::from(arguments.kills) * victims.len() as u64 / count as u64;
            all &= kills::run(&built, victims, kills as u32, &place.path)?;
        }
    }
    if arguments.power_cuts > 0 {
        let keep = arguments.keep.clone().unwrap_or_else(std::env::temp_dir);
        let order = Order { disks: arguments.power_cuts, seed: arguments.seed, jobs: arguments.jobs };
        let all_victims: Vec<&'static Victim> =
            all_victims.into_iter().flatten().chain([&victims::UNFLUSHED]).collect();
        all &= power_cuts::run(&built, &all_victims, &order, &keep)?;
    }
    Ok(all)
}

/// Builds the loadable library. Returns its path without the suffix, as SQLite takes it.
fn build(root: &Path) -> io::Result<PathBuf> {
    let target = crate::target(root, "");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--release", "--package", "untorn-sqlite", "--target-dir"]);
    if !cargo.arg(&target).status()?.success() {
        return Err(io::Error::other("cargo build failed; see its messages above"));
    }
    Ok(std::path::absolute(target)?.join("release/libuntorn_sqlite"))
}

/// A Python whose SQLite loads extensions; not every build's does.
fn python() -> io::Result<PathBuf> {
    let able = |python: &PathBuf| {
        let test = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
        let mut command = Command::new(python);
        command.args(["-c", test]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let found = [PathBuf::from("python3"), PathBuf::from("/usr/bin/python3")].into_iter().find(able);
    found.ok_or_else(|| missing("no python3 has a SQLite that loads extensions"))
}
