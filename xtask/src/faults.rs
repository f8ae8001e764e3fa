//! `cargo xtask faults`: makes system calls of the real media fail.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use untorn_rigs::Result;
use untorn_rigs::faults::{self, Outcome, Settings};

use crate::victim::{self, Choice, Victim};

/// Arguments of `cargo xtask faults`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Try only failures of this system call
    #[arg(long, value_name = "CALL")]
    only: Option<String>,
    /// Try one case again: CALL:N:ERRNO in every setup, or the token of a violation
    #[arg(long, value_name = "TOKEN", conflicts_with = "only")]
    replay: Option<String>,
    /// Try about this many of the cases instead of all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    #[command(flatten)]
    choice: Choice,
    /// Print one JSON object before the last line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let start = Instant::now();
    let outcome = match attempt(arguments) {
        Ok(outcome) => outcome,
        Err(error) => return victim::failed("faults", &error),
    };
    let seconds = start.elapsed().as_secs_f64();
    if arguments.json {
        println!("{}", to_json(arguments.choice.seed, &outcome, seconds));
    } else {
        for (name, (calls, cases)) in &outcome.calls {
            println!("{name:18} {calls:6} calls {cases:7} cases");
        }
    }
    println!(
        "tried {} of {} cases (call, number, failure): {} told of, {} got over, {} violations; {} did not come \
         about; {seconds:.0} s",
        outcome.tried,
        outcome.total,
        outcome.told,
        outcome.tried - outcome.told - outcome.violations.len(),
        outcome.violations.len(),
        outcome.unmet,
    );
    if outcome.clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn attempt(arguments: &Arguments) -> Result<Outcome> {
    let settings = Settings {
        program: victim::program("faults-victim")?,
        only: arguments.only.clone(),
        replay: arguments.replay.clone(),
        sample: arguments.sample.map(|wanted| (wanted as usize, arguments.choice.seed)),
        jobs: arguments.choice.jobs,
    };
    faults::run(&settings, &|what| println!("{what}"))
}

fn to_json(seed: u64, outcome: &Outcome, seconds: f64) -> serde_json::Value {
    let calls =
        outcome.calls.iter().map(|(name, (calls, cases))| json!({"call": name, "calls": calls, "cases": cases}));
    let violations = outcome.violations.iter().map(|(token, what)| json!({"token": token, "what": what}));
    json!({
        "seed": seed,
        "cases": outcome.total,
        "tried": outcome.tried,
        "told": outcome.told,
        "unmet": outcome.unmet,
        "calls": calls.collect::<Vec<_>>(),
        "spared": outcome.spared,
        "violations": violations.collect::<Vec<_>>(),
        "seconds": seconds,
        "clean": outcome.clean(),
    })
}

pub(crate) fn victim(arguments: &Victim) -> ExitCode {
    arguments.run("faults", faults::victim)
}
