//! `run`: an unmodified program under the preload layer.

use std::fmt::Write;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use untorn_run::{Atomic, Ended, Launch, NotRun, Report, launch, launch_with_log};

use super::boost::{self, Facts};
use crate::cli::{Run, RunMode};
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Reader};

const LAYER: &str = "libuntorn_preload.so";

/// Runs the program, and ends as it ended.
pub(super) fn run(args: &Run) -> Result<Exit> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::usage("name a program to run"));
    };
    if let (RunMode::Atomic, Some(option)) = (args.mode, args.boost.given()) {
        let why = format!("{option} is only for --mode boost: --mode atomic has a log beside each file");
        return Err(Failure::usage(why));
    }
    let mut what = Launch {
        program: program.clone(),
        arguments: arguments.to_vec(),
        globs: args.globs.clone(),
        excluded: args.excluded.clone(),
        layer: layer(args.layer.as_deref())?,
    };
    let (ended, log) = match args.mode {
        RunMode::Atomic => (launch(&what, Atomic), None),
        RunMode::Boost => {
            // Before there is a log.
            what.check().map_err(failure)?;
            let log = boost::open(&args.boost, &what)?;
            if args.boost.read_cache.is_some_and(|bytes| bytes > 0) {
                say("untorn: --read-cache has no effect: reads are the kernel's own, from its page cache\n");
            }
            if what.globs.is_empty() {
                // The cache takes its own log for none of its files.
                what.globs.push("/**".to_owned());
            }
            (launch_with_log(&what, log.cache), Some(log.facts))
        }
    };
    let ended = ended.map_err(failure)?;
    let written = match args.form.json {
        true => {
            let facts = log.as_ref().map(Facts::object);
            let report = Summary { mode: args.mode.as_str(), exit: code(&ended), log: facts, report: &ended.report };
            output::json_to_reader(&report)
        }
        false => Ok(Reader::Listening),
    };
    // What standard output does not take is said here: the program has run, and this is all that is known of it.
    match &written {
        Ok(Reader::Listening) => {}
        Ok(Reader::Gone) => say("untorn: nobody reads the report any more; it says:\n"),
        Err(failure) => say(&format!("untorn: {failure}; the report says:\n")),
    }
    if !matches!(written, Ok(Reader::Listening)) || args.stats && !args.form.json {
        if let Some(log) = &log {
            say(&log.words());
        }
        say(&words(&ended.report, args.mode));
    }
    for failed in &ended.report.failures {
        say(&format!("untorn: {failed}\n"));
    }
    let code = code(&ended);
    if code == 0 && (!ended.report.failures.is_empty() || written.is_err()) {
        return Ok(Exit::Io);
    }
    // Any code at all may be the program's, so it is none of the tool's own.
    std::process::exit(code.into())
}

#[derive(serde::Serialize)]
struct Summary<'a> {
    mode: &'static str,
    exit: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<serde_json::Value>,
    #[serde(flatten)]
    report: &'a Report,
}

/// As a shell says it: the program's own code, or 128 and the signal.
fn code(ended: &Ended) -> u8 {
    let code = ended.status.code().unwrap_or_else(|| 128 + ended.status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Standard output is the program's.
fn say(text: &str) {
    // With stderr closed there is nobody left to tell.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn failure(error: NotRun) -> Failure {
    match error {
        NotRun::Io(what, source) => Failure::io(format!("cannot {what}"), &source),
        // The request is one that no file could satisfy.
        other => Failure::usage(other.to_string()),
    }
}

/// The layer: as told, beside the tool, or where an installation has libraries.
fn layer(told: Option<&Path>) -> Result<PathBuf> {
    if let Some(told) = told {
        return told.canonicalize().map_err(|error| Failure::io_at("find the preload layer", told, &error));
    }
    let tool = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
    let beside = tool.parent().map(Path::to_owned).unwrap_or_default();
    let candidates = [beside.join(LAYER), beside.join("../lib").join(LAYER)];
    candidates.iter().find_map(|candidate| candidate.canonicalize().ok()).ok_or_else(|| {
        Failure::usage(format!(
            "{LAYER} is neither in {} nor in ../lib; build it with `cargo build --release`, or name it with --layer or \
             UNTORN_PRELOAD_LIBRARY",
            beside.display()
        ))
    })
}

/// The report for a person.
fn words(report: &Report, mode: RunMode) -> String {
    let processes = output::count(report.processes, "process", "processes");
    let files = output::count(report.files.len() as u64, "file", "files");
    let mut text = format!("untorn: {processes} under the layer, {files} managed\n");
    for file in &report.files {
        let _ = write!(
            text,
            "  {}: opened {} times, {}{} writes of {} bytes",
            file.path.display(),
            file.opens,
            // Of files behind a log the kernel serves the reads.
            if mode == RunMode::Atomic { format!("{} reads, ", file.reads) } else { String::new() },
            file.writes,
            file.bytes_written
        );
        if file.mappings > 0 {
            let pages = output::count(file.stores, "page", "pages");
            let _ = write!(text, ", mapped {} times, {pages} stored to", file.mappings);
        }
        // A log has no epochs.
        let synced = if mode == RunMode::Atomic { "commits" } else { "syncs" };
        let _ = write!(text, ", {} {synced}", file.commits);
        if file.discarded > 0 {
            let _ = write!(text, ", {} epochs dropped for processes that were killed", file.discarded);
        }
        text.push('\n');
    }
    if report.directory_syncs_kept > 0 {
        let syncs = output::count(report.directory_syncs_kept, "sync of a directory", "syncs of directories");
        let _ = writeln!(text, "  {syncs} waited for no device");
    }
    for (refused, count) in &report.refused {
        let _ =
            writeln!(text, "  refused {count} times: {} of {} ({})", refused.call, refused.path.display(), refused.why);
    }
    for (demoted, count) in &report.demoted {
        let _ = writeln!(text, "  left to the kernel {count} times: {} ({})", demoted.path.display(), demoted.why);
    }
    text
}
