//! `cargo xtask kills`: kills a process before each system call that changes a file.

use std::io::{Write, stderr};
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Instant;

use clap::Args;
use untorn_rigs::faults::Program;
use untorn_rigs::faults::kills::{self, Row, Settings};
use untorn_rigs::{Error, Result};

/// Arguments of `cargo xtask kills`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Kill only processes that do this verb
    #[arg(long, value_name = "VERB")]
    only: Option<String>,
    /// Kill before every Nth changing call of each verb instead of before all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    stride: u32,
    /// Seed that selects the first call of --stride
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of processes at once
    #[arg(long, value_name = "N", default_value_t = available_parallelism().map_or(1, usize::from).min(2))]
    jobs: usize,
}

/// The process that is killed, which the rig starts.
#[derive(Args)]
pub(crate) struct Victim {
    #[arg(required = true)]
    words: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let start = Instant::now();
    let rows = match attempt(arguments) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("kills: {error}");
            return ExitCode::from(if matches!(error, Error::Missing { .. }) { 69 } else { 74 });
        }
    };
    rows.iter().for_each(|row| println!("{row}"));
    let kills: usize = rows.iter().map(|row| row.kills).sum();
    let violations: usize = rows.iter().map(|row| row.violations.len()).sum();
    let seconds = start.elapsed().as_secs_f64();
    println!("killed {kills} processes before a changing call: {violations} violations; {seconds:.0} s");
    if violations == 0 && kills > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn attempt(arguments: &Arguments) -> Result<Vec<Row>> {
    let path = std::env::current_exe()
        .map_err(|source| Error::Io { what: "find the path of this program".to_owned(), source })?;
    let settings = Settings {
        program: Program { path, words: vec!["kills-victim".to_owned()] },
        only: arguments.only.clone(),
        stride: (arguments.stride as usize, arguments.seed),
        jobs: arguments.jobs,
    };
    kills::run(&settings, &|what| println!("{what}"))
}

pub(crate) fn victim(arguments: &Victim) -> ExitCode {
    match kills::victim(&arguments.words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(stderr(), "kills: {error}");
            ExitCode::from(74)
        }
    }
}
