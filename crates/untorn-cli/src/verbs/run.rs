//! `untorn run`: runs an unmodified program under the preload layer.

use std::collections::BTreeMap;
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

/// Runs the program, and exits with its code.
pub(super) fn run(args: &Run) -> Result<Exit> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::usage("no program given; add one after `--`"));
    };
    if let (RunMode::Atomic, Some(option)) = (args.mode, args.boost.given()) {
        let why = format!("{option} needs --mode boost: --mode atomic keeps a log beside each file");
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
            // Check before the log is created.
            what.check().map_err(failure)?;
            let log = boost::open(&args.boost, &what)?;
            if args.boost.read_cache.is_some_and(|bytes| bytes > 0) {
                say("untorn: --read-cache is ignored: the kernel serves reads from its page cache\n");
            }
            if what.globs.is_empty() {
                // The cache never manages its own log.
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
    // If standard output does not take the report, print it here: the program has already run.
    match &written {
        Ok(Reader::Listening) => {}
        Ok(Reader::Gone) => say("untorn: the reader of standard output is gone; the report:\n"),
        Err(failure) => say(&format!("untorn: {failure}; the report:\n")),
    }
    if !matches!(written, Ok(Reader::Listening)) || args.stats && !args.form.json {
        if let Some(log) = &log {
            say(&log.words());
        }
        say(&words(&ended.report, args.mode));
    } else if !args.form.json {
        say(&shortfalls(&ended.report));
    }
    for failed in &ended.report.failures {
        say(&format!("untorn: {failed}\n"));
    }
    let code = code(&ended);
    if code == 0 && (!ended.report.failures.is_empty() || written.is_err()) {
        return Ok(Exit::Io);
    }
    // The program may exit with any code, so it is not an `Exit`.
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

/// The exit code as a shell reports it: the program's own code, or 128 plus the signal number.
fn code(ended: &Ended) -> u8 {
    let code = ended.status.code().unwrap_or_else(|| 128 + ended.status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Prints to standard error, because standard output belongs to the program.
fn say(text: &str) {
    // If stderr is closed, the message is lost.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn failure(error: NotRun) -> Failure {
    match error {
        NotRun::Io(what, source) => Failure::io(format!("cannot {what}"), &source),
        // The request itself is wrong.
        other => Failure::usage(other.to_string()),
    }
}

/// The layer's path: as given, or beside the tool, or in the installation's library directory.
fn layer(told: Option<&Path>) -> Result<PathBuf> {
    if untorn::testing::has_more_rights_than_its_caller() {
        let what = "`untorn run` loads a library into programs, so it does not run with more rights than its caller; \
                    take the setuid bit and the file capabilities from the tool";
        return Err(Failure::usage(what.to_owned()));
    }
    if let Some(told) = told {
        return told.canonicalize().map_err(|error| Failure::io_at("find the preload layer", told, &error));
    }
    let tool = std::env::current_exe().map_err(|error| Failure::io("cannot find the path of this program", &error))?;
    installed_layer(tool.parent().unwrap_or(Path::new("/")))
}

/// The layer of a tool in this directory.
fn installed_layer(programs: &Path) -> Result<PathBuf> {
    let library = programs.parent().unwrap_or(programs).join("lib");
    let candidates = [programs.join(LAYER), library.join(LAYER)];
    candidates.iter().find_map(|candidate| candidate.canonicalize().ok()).ok_or_else(|| {
        Failure::usage(format!(
            "cannot find the preload layer {LAYER}, which `untorn run` loads into the program: it is neither in {} nor \
             in {}. `cargo install` installs the tool alone. In the source of untorn {}, run `cargo build --release \
             --package untorn-preload` and copy target/release/{LAYER} to one of these directories, or give its path \
             with --layer or UNTORN_PRELOAD_LIBRARY",
            programs.display(),
            library.display(),
            env!("CARGO_PKG_VERSION")
        ))
    })
}

/// Files named in [`shortfalls`] for one reason; `--stats` names them all.
const NAMED: usize = 3;

/// Cases in which a run kept less than its user may believe, for runs without a report: epochs that were discarded,
/// and files that the kernel served. Empty if there is none of it.
fn shortfalls(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for file in report.files.iter().filter(|file| file.discarded > 0) {
        let epochs = output::count(file.discarded, "epoch", "epochs");
        let path = file.path.display();
        let _ = writeln!(
            text,
            "untorn: {path}: {epochs} of killed processes discarded; the file is at the last commit before"
        );
    }
    let mut reasons = BTreeMap::<&str, Vec<String>>::new();
    for (demoted, _) in &report.demoted {
        reasons.entry(&demoted.why).or_default().push(demoted.path.display().to_string());
    }
    for (why, mut paths) in reasons {
        paths.dedup();
        let more = paths.len().saturating_sub(NAMED);
        paths.truncate(NAMED);
        let more = if more > 0 { format!(" and {more} more (--stats names them)") } else { String::new() };
        let _ =
            writeln!(text, "untorn: left to the kernel, without untorn's promise ({why}): {}{more}", paths.join(", "));
    }
    text
}

/// The text form of the report.
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
            // In boost mode the kernel serves the reads.
            if mode == RunMode::Atomic { format!("{} reads, ", file.reads) } else { String::new() },
            file.writes,
            file.bytes_written
        );
        if file.mappings > 0 {
            let pages = output::count(file.stores, "page", "pages");
            let _ = write!(text, ", mapped {} times, {pages} stored to through mappings", file.mappings);
        }
        // A log has no epochs.
        let synced = if mode == RunMode::Atomic { "commits" } else { "syncs" };
        let _ = write!(text, ", {} {synced}", file.commits);
        if file.discarded > 0 {
            let _ = write!(text, ", {} epochs of killed processes discarded", file.discarded);
        }
        text.push('\n');
    }
    if report.directory_syncs_kept > 0 {
        let syncs = output::count(report.directory_syncs_kept, "sync of a directory", "syncs of directories");
        let _ = writeln!(text, "  {syncs} needed no device flush");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_kept_is_said_without_statistics() {
        assert_eq!(shortfalls(&Report::default()), "");
        let file = |path: &str, discarded| untorn_run::FileReport {
            path: path.into(),
            discarded,
            ..untorn_run::FileReport::default()
        };
        let left = |path: &str| (untorn_run::Demoted { why: "flock".to_owned(), path: path.into() }, 2);
        let report = Report {
            files: vec![file("/whole", 0), file("/dropped", 1)],
            demoted: ["/a", "/b", "/c", "/d", "/e"].map(left).into(),
            ..Report::default()
        };
        let said = shortfalls(&report);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines[0].starts_with("untorn: /dropped: 1 epoch ") && !said.contains("/whole"), "{said}");
        assert!(lines[1].ends_with("(flock): /a, /b, /c and 2 more (--stats names them)"), "{said}");
    }

    #[test]
    fn a_missing_layer_is_reported_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let (programs, library) = (dir.path().join("bin"), dir.path().join("lib"));
        let said = installed_layer(&programs).unwrap_err().to_string();
        for word in [programs.to_str().unwrap(), library.to_str().unwrap(), "--package untorn-preload", "--layer"] {
            assert!(said.contains(word), "{said}");
        }
        for directory in [library, programs.clone()] {
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join(LAYER), "").unwrap();
            assert_eq!(installed_layer(&programs).unwrap(), directory.join(LAYER).canonicalize().unwrap());
        }
    }
}
