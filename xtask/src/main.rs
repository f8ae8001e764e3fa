//! The project's own chores.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod explore;

/// The project's own chores.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Crash the engines everywhere and check every state that recovery makes of it.
    Explore(explore::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Explore(arguments) => explore::run(&arguments),
    }
}
