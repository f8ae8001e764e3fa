//! `untorn replay` and `untorn log info`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use untorn::Error;
use untorn::write_cache::{Keep, Replay, ReplayOutcome, ReplayedFile};

use crate::cli;
use crate::exit::{Exit, Failure, Result, exit_of};
use crate::verbs::boost::patiently;
use crate::{output, progress};

/// Applies the writes in logs to their files.
pub(crate) fn replay(args: &cli::Replay) -> Result<Exit> {
    let mut done = Vec::new();
    for log in logs(&args.logs)? {
        let result = patiently(&log, || match args.list {
            true => untorn::write_cache::inspect_log(&log),
            false => replay_one(&log, args.trust),
        });
        done.push((log, result));
    }
    if let [(_, Err(_))] = done[..]
        && let Some((_, Err(error))) = done.pop()
    {
        return Err(error.into());
    }
    let exit =
        done.iter().map(|(_, result)| exit(result, args.list)).max_by_key(|exit| *exit as u8).unwrap_or(Exit::Clean);
    let object = json!({ "logs": done.iter().map(|(log, result)| object(log, result)).collect::<Vec<_>>() });
    output::report(args.form.json, &object, || {
        done.iter().map(|(log, result)| words(log, result, args.list)).collect()
    })?;
    Ok(exit)
}

fn replay_one(log: &Path, trust: Option<cli::TrustReplay>) -> untorn::Result<Replay> {
    let keep = match trust {
        None => return untorn::write_cache::replay(log, Some(progress::function())),
        Some(cli::TrustReplay::File) => Keep::File,
        Some(cli::TrustReplay::Log) => Keep::Log,
    };
    untorn::write_cache::replay_keeping(log, keep, Some(progress::function()))
}

/// Shows the contents of a log.
pub(crate) fn info(args: &cli::LogInfo) -> Result<Exit> {
    let found = patiently(&args.log, || untorn::write_cache::inspect_log(&args.log))?;
    let is_empty = found.operations == 0;
    let result = Ok(found);
    output::report(args.form.json, &object(&args.log, &result), || words(&args.log, &result, true))?;
    Ok(if is_empty { Exit::Clean } else { Exit::Attention })
}

/// The logs to replay. A directory stands for all logs in it, whatever their names.
fn logs(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for path in named {
        if path.is_dir() {
            let found = untorn::write_cache::find_logs(path)?;
            if found.is_empty() {
                return Err(Failure::usage_at(path, "no write-cache log in this directory"));
            }
            logs.extend(found);
        } else {
            logs.push(path.clone());
        }
    }
    Ok(logs)
}

fn exit(result: &std::result::Result<Replay, Error>, list: bool) -> Exit {
    match result {
        Ok(replay) if replay.is_complete() && !(list && replay.operations > 0) => Exit::Clean,
        Ok(_) => Exit::Attention,
        Err(error) => exit_of(error),
    }
}

fn fate(file: &ReplayedFile) -> (&'static str, Option<&str>) {
    match &file.fate {
        ReplayOutcome::Replayed => ("replayed", None),
        ReplayOutcome::Already => ("replayed-before", None),
        ReplayOutcome::Removed => ("removed", None),
        ReplayOutcome::Missing(why) => ("missing", Some(why)),
        ReplayOutcome::Failed(why) => ("failed", Some(why)),
        ReplayOutcome::Changed(why) => ("changed", Some(why)),
        ReplayOutcome::Dropped => ("dropped", None),
        // The enum may grow.
        _ => ("unknown", None),
    }
}

fn object(log: &Path, result: &std::result::Result<Replay, Error>) -> Value {
    let replay = match result {
        Ok(replay) => replay,
        Err(error) => return json!({ "log": log.display().to_string(), "error": error.to_string() }),
    };
    let files = replay.files.iter().map(|file| {
        let (word, why) = fate(file);
        json!({
            "path": file.path.display().to_string(),
            "inode": file.inode,
            "operations": file.operations,
            "bytes": file.bytes,
            "fate": word,
            "why": why,
            "moved_aside": file.moved_aside.as_ref().map(|path| path.display().to_string()),
        })
    });
    json!({
        "log": log.display().to_string(),
        "operations": replay.operations,
        "incomplete": replay.incomplete,
        "capacity": replay.capacity,
        "entry_size": replay.entry_size,
        "complete": replay.is_complete(),
        "files": files.collect::<Vec<_>>(),
    })
}

fn words(log: &Path, result: &std::result::Result<Replay, Error>, list: bool) -> String {
    let replay = match result {
        Ok(replay) => replay,
        Err(error) => return format!("{error}\n"),
    };
    let log = log.display();
    let mut text = if replay.operations == 0 {
        format!("{log}: nothing to replay\n")
    } else {
        let operations = output::count(replay.operations, "operation", "operations");
        let files = output::count(replay.files.len() as u64, "file", "files");
        let kept = if replay.is_complete() || list { "" } else { "; the rest stays in the log" };
        format!("{log}: {operations} on {files}{kept}\n")
    };
    if replay.incomplete > 0 {
        let entries = output::count(replay.incomplete, "entry", "entries");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {entries} incomplete: in flight at the crash, or damaged since");
    }
    if replay.open_epochs > 0 {
        let files = output::count(replay.open_epochs, "file", "files");
        let _ = writeln!(text, "  {files} with changes that no commit covers, which do not count");
    }
    for file in &replay.files {
        let bytes = output::count(file.bytes, "byte", "bytes");
        let what = match (fate(file), list) {
            (("replayed", _), true) => "to be replayed".to_owned(),
            ((word, None), _) => word.replace('-', " "),
            ((word, Some(why)), _) => format!("{word}: {why}"),
        };
        let _ = writeln!(text, "  {}  {bytes}, {what}", file.path.display());
        if let Some(aside) = &file.moved_aside {
            let _ =
                writeln!(text, "    created again; an older file with this name was renamed to {}", aside.display());
        }
    }
    text
}
