//! `cargo xtask kills`: kills a process before each system call that changes a file.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use untorn_rigs::Result;
use untorn_rigs::faults::kills::{self, Row, Settings};

use crate::victim::{self, Choice, Victim};

/// Arguments of `cargo xtask kills`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Kill only processes that do this verb
    #[arg(long, value_name = "VERB")]
    only: Option<String>,
    /// Kill before every Nth changing call of each verb instead of before all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    stride: u32,
    #[command(flatten)]
    choice: Choice,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let start = Instant::now();
    let rows = match attempt(arguments) {
        Ok(rows) => rows,
        Err(error) => return victim::failed("kills", &error),
    };
    rows.iter().for_each(|row| println!("{row}"));
    let kills: usize = rows.iter().map(|row| row.kills).sum();
    let violations: usize = rows.iter().map(|row| row.violations.len()).sum();
    let seconds = start.elapsed().as_secs_f64();
    println!("killed {kills} processes before a changing call: {violations} violations; {seconds:.0} s");
    if violations == 0 && kills > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn attempt(arguments: &Arguments) -> Result<Vec<Row>> {
    let settings = Settings {
        program: victim::program("kills-victim")?,
        only: arguments.only.clone(),
        stride: (arguments.stride as usize, arguments.choice.seed),
        jobs: arguments.choice.jobs,
    };
    kills::run(&settings, &|what| println!("{what}"))
}

pub(crate) fn victim(arguments: &Victim) -> ExitCode {
    arguments.run("kills", kills::victim)
}
