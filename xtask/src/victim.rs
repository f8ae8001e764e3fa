//! Rigs that start this program again as the process under test: what `faults` and `kills` have in common.

use std::io::{self, Write, stderr};
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Args;
use untorn_rigs::faults::Program;
use untorn_rigs::{Error, Result};

/// How many processes a rig runs at once, and what selects its cases.
#[derive(Args)]
pub(crate) struct Choice {
    /// Seed that selects the cases where not all are tried
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of processes at once
    #[arg(long, value_name = "N", default_value_t = available_parallelism().map_or(1, usize::from).min(2))]
    pub(crate) jobs: usize,
}

/// The process under test, which the rig starts.
#[derive(Args)]
pub(crate) struct Victim {
    #[arg(required = true)]
    words: Vec<String>,
}

impl Victim {
    /// Does what the rig started this process for.
    pub(crate) fn run(&self, rig: &str, go: impl FnOnce(&[String]) -> io::Result<()>) -> ExitCode {
        match go(&self.words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(stderr(), "{rig}: {error}");
                ExitCode::from(74)
            }
        }
    }
}

/// This program, doing this verb.
pub(crate) fn program(verb: &str) -> Result<Program> {
    let path = std::env::current_exe()
        .map_err(|source| Error::Io { what: "find the path of this program".to_owned(), source })?;
    Ok(Program { path, words: vec![verb.to_owned()] })
}

/// Reports what kept a rig from its work.
pub(crate) fn failed(rig: &str, error: &Error) -> ExitCode {
    eprintln!("{rig}: {error}");
    ExitCode::from(if matches!(error, Error::Missing { .. }) { 69 } else { 74 })
}
