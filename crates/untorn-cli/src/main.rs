//! `untorn`, the command-line tool: a thin layer over the library that turns arguments into calls and results into
//! text.
#![deny(unsafe_code)]

mod cli;
mod demo;
mod exit;
mod output;
mod progress;
mod rng;
mod signals;
mod size;
mod torture;
mod verbs;
mod victim;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::Cli;
use crate::exit::{Exit, Failure, Result};

fn main() -> ExitCode {
    // Without the handler a file beyond `ulimit -f` ends the tool without a word; all else works as well without it.
    let _ = signals::survive_size_limits();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Clean };
            // If the reader closes the pipe while help is printed, that is not a failure.
            let _ = error.print();
            return exit.into();
        }
    };
    let as_json = verbs::wants_json(&cli.verb);
    let failure = match start_logging().and_then(|()| verbs::run(cli.verb)) {
        Ok(exit) => return exit.into(),
        Err(failure) => failure,
    };
    // If stderr is closed, the exit code still reports the failure.
    let _ = writeln!(std::io::stderr(), "untorn: {failure}");
    if as_json {
        let path = failure.path.as_ref().map(|path| path.display().to_string());
        let _ = output::json(&serde_json::json!({ "error": failure.message, "path": path }));
    }
    failure.exit.into()
}

/// Starts logging to stderr with the filter in `UNTORN_LOG`; without it, nothing is logged.
fn start_logging() -> Result<()> {
    const VARIABLE: &str = "UNTORN_LOG";
    if untorn::testing::variable(VARIABLE).is_none_or(|value| value.is_empty()) {
        return Ok(());
    }
    let filter = EnvFilter::try_from_env(VARIABLE).map_err(|error| {
        Failure::usage(format!("{VARIABLE} is not a valid log filter: {error}; try {VARIABLE}=debug"))
    })?;
    let colours = output::wants_colour(std::io::stderr().is_terminal());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    Ok(())
}
