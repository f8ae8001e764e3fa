//! `untorn run`: runs an unmodified program with a mount of its own over the directories of its files.

mod directories;
mod program;
mod report;
mod serving;

use std::io::Write as _;

use rustix::process::Pid;

use self::directories::Chosen;
use self::program::{Watch, adopt, await_all};
pub(super) use self::program::{check as check_program, code};
use self::serving::{Place, Ready, given_log, globs};
use super::unmount::refuse_more_rights;
use crate::cli::{Run, RunMode};
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Reader};

/// Tries whether [`run`] could start the program. It mounts for real, in a namespace that nothing else sees, and leaves
/// nothing behind. It does not make or replay a log, so a run can still fail: there may be no space for its log.
pub(super) fn rehearse(args: &Run) -> Result<()> {
    let (_, places) = choose(args)?;
    serving::rehearse(args, &places)
}

/// Checks a request, and finds the directories that it is about.
fn choose(args: &Run) -> Result<(Chosen, Vec<Place>)> {
    refuse_more_rights()?;
    check(args)?;
    let here = std::env::current_dir().map_err(|error| Failure::io("cannot find the working directory", &error))?;
    let chosen = Chosen::of(&here, &args.globs, &args.excluded)?.with_commit_logs(&here, &args.commit_log)?;
    globs(&chosen)?;
    let places = chosen.directories.iter().map(|directory| Place::of(directory)).collect::<Result<Vec<_>>>()?;
    Ok((chosen, places))
}

/// Runs the program, and exits with its code.
pub(super) fn run(args: &Run) -> Result<Exit> {
    let (chosen, places) = choose(args)?;
    let log = given_log(args, &places)?;
    if args.log.read_cache.is_some_and(|bytes| bytes > 0) {
        say("untorn: --read-cache is ignored: the kernel serves reads from its page cache\n");
    }
    // Handlers come first: a signal from here on ends the program and not its server.
    let watch = Watch::start()?;
    let ready = Ready::new(args, &chosen, places, log.as_deref())?;
    adopt()?;
    let (mounts, child) = ready.start()?;
    let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let passing = watch.pass_to(program);
    let status = await_all(program);
    let waiting = passing.program_is_over();
    let ended = mounts.end();
    waiting.end();
    let code = code(status?);
    let (account, logs) = ended?;
    let written = match args.form.json {
        true => output::json_to_reader(&report::object(args.mode, code, &logs, &account.report)),
        false => Ok(Reader::Listening),
    };
    // If standard output does not take the report, print it here: the program has already run.
    match &written {
        Ok(Reader::Listening) => {}
        Ok(Reader::Gone) => say("untorn: the reader of standard output is gone; the report:\n"),
        Err(failure) => say(&format!("untorn: {failure}; the report:\n")),
    }
    if !matches!(written, Ok(Reader::Listening)) || args.stats && !args.form.json {
        say(&report::words(args.mode, &logs, &account.report));
    } else if !args.form.json {
        say(&report::shortfalls(&account.report));
    }
    say(&report::failures(&account));
    let broken = args.strict && !account.report.plain.is_empty();
    if code == 0 && (broken || !account.report.failed.is_empty() || written.is_err()) {
        return Ok(Exit::Io);
    }
    // The program may exit with any code, so it is not an `Exit`.
    std::process::exit(code.into())
}

/// Refuses requests that are wrong whatever the machine is.
fn check(args: &Run) -> Result<()> {
    let Some(program) = args.command.first() else {
        return Err(Failure::usage("no program given; add one after `--`"));
    };
    match args.mode {
        RunMode::Atomic if args.log.durability.is_some() => {
            let why = "--durability needs --mode boost: with --mode atomic, changes are durable when fsync returns";
            return Err(Failure::usage(why));
        }
        RunMode::Boost if args.write_through => {
            return Err(Failure::usage("--write-through is for --mode atomic: --mode boost always writes through"));
        }
        RunMode::Boost if !args.commit_log.is_empty() => {
            return Err(Failure::usage("--commit-log is for --mode atomic, where a sync is a commit"));
        }
        RunMode::Boost if args.log.log.is_none() => {
            return Err(Failure::usage(
                "--mode boost needs a log: add --log PATH, on persistent memory or on a disk faster than the files' \
                 disk",
            ));
        }
        RunMode::Atomic | RunMode::Boost => {}
    }
    check_program(program)
}

/// Prints to standard error, because standard output belongs to the program.
fn say(text: &str) {
    // If stderr is closed, the message is lost.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
