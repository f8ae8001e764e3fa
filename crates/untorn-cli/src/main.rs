//! `untorn`: the command-line tool. A thin face over the library: it translates words to calls and results to words.
#![deny(unsafe_code)]

mod cli;
mod demo;
mod exit;
mod output;
mod progress;
mod rng;
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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Clean };
            // A reader that went away while help was printed is no failure.
            let _ = error.print();
            return exit.into();
        }
    };
    let as_json = verbs::wants_json(&cli.verb);
    let failure = match start_logging().and_then(|()| verbs::run(cli.verb)) {
        Ok(exit) => return exit.into(),
        Err(failure) => failure,
    };
    // With stderr closed there is nobody left to tell; the exit code still does.
    let _ = writeln!(std::io::stderr(), "untorn: {failure}");
    if as_json {
        let path = failure.path.as_ref().map(|path| path.display().to_string());
        let _ = output::json(&serde_json::json!({ "error": failure.message, "path": path }));
    }
    failure.exit.into()
}

/// Logs what `UNTORN_LOG` asks for to stderr; nothing without it.
fn start_logging() -> Result<()> {
    const VARIABLE: &str = "UNTORN_LOG";
    if std::env::var_os(VARIABLE).is_none_or(|value| value.is_empty()) {
        return Ok(());
    }
    let filter = EnvFilter::try_from_env(VARIABLE)
        .map_err(|error| Failure::usage(format!("{VARIABLE} is no filter: {error}; try {VARIABLE}=debug")))?;
    let colours = output::wants_colour(std::io::stderr().is_terminal());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    Ok(())
}
