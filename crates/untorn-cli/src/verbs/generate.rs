//! `untorn completions` and `untorn man`, generated from the same table as the help.

use std::fs;

use clap::CommandFactory;

use crate::cli::{Cli, Completions, Man};
use crate::exit::{Exit, Failure, Result};
use crate::output;

/// Prints completions for a shell.
pub(crate) fn completions(args: &Completions) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "untorn", &mut script);
    output::bytes(&script)?;
    Ok(Exit::Clean)
}

/// Prints the main man page, or writes all pages into a directory.
pub(crate) fn man(args: &Man) -> Result<Exit> {
    match &args.out {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(|error| Failure::io("cannot format the man page", &error))?;
            output::bytes(&page)?;
        }
        Some(dir) => {
            fs::create_dir_all(dir).map_err(|error| Failure::io_at("create", dir, &error))?;
            clap_mangen::generate_to(Cli::command(), dir)
                .map_err(|error| Failure::io_at("write man pages into", dir, &error))?;
        }
    }
    Ok(Exit::Clean)
}
