//! `untorn commits` and `untorn watch`: the commits of a file, from its commit log.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use untorn::commits::{self, Commit, CommitStream};
use untorn::options::CommitLog;
use untorn::region::forget_consumer;
use untorn::{Options, inspect};

use super::info::seconds;
use crate::cli;
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Reader};
use crate::size;

/// How long to wait for a commit before looking whether the reader of standard output is still there.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many commits a consumer acknowledges at once: each time costs a flush.
const BATCH: u64 = 256;

/// Prints commits, or gives the file its log or takes it.
pub(crate) fn commits(args: &cli::Commits) -> Result<Exit> {
    if let Some(limit) = args.start {
        let log = CommitLog::new(limit);
        let log = args.block.map_or(log, |seconds| log.block(Duration::from_secs(seconds)));
        let log = if args.await_consumers { log.await_consumers() } else { log };
        return start(&args.file, log, args.form.json);
    }
    if let Some(name) = &args.forget {
        let had = match &args.region {
            Some(region) => forget_consumer(&args.file, region, name)?,
            None => commits::forget(&args.file, name)?,
        };
        let object = json!({ "path": args.file.display().to_string(), "consumer": name, "forgotten": had });
        let what = if had { "removed its consumer" } else { "it has no consumer" };
        output::report(args.form.json, &object, || format!("{}: {what} {name}\n", args.file.display()))?;
        return Ok(if had { Exit::Clean } else { Exit::Attention });
    }
    if args.stop {
        let had = commits::stop(&args.file)?;
        let object = json!({ "path": args.file.display().to_string(), "stopped": had });
        output::report(args.form.json, &object, || {
            let what = if had { "gave its commit log up" } else { "it has no commit log" };
            format!("{}: {what}\n", args.file.display())
        })?;
        return Ok(Exit::Clean);
    }
    let stream = opened(args)?;
    let stream = if args.bytes { stream } else { stream.ranges_only() };
    print(stream, args.follow, |commit| if args.form.json { object(commit, args.bytes) } else { line(commit) })
}

/// The stream that was asked for.
fn opened(args: &cli::Commits) -> Result<CommitStream> {
    let (file, region) = (&args.file, args.region.as_deref());
    let open = |from| match region {
        Some(region) => CommitStream::open_region(file, region, from),
        None => CommitStream::open(file, from),
    };
    let consumer = |name, from| match (region, from) {
        (Some(region), from) => CommitStream::consumer_of_region(file, region, name, from),
        (None, Some(from)) => CommitStream::consumer_from(file, name, from),
        (None, None) => CommitStream::consumer(file, name),
    };
    let name = args.consumer.as_deref();
    let Some(from) = args.from else {
        return Ok(match name {
            Some(name) => consumer(name, None)?,
            None => open(oldest(open)?)?,
        });
    };
    loop {
        let stream = match name {
            Some(name) => consumer(name, Some(from)),
            None => open(from),
        };
        match stream {
            Err(untorn::Error::NoSuchCommit { .. }) if args.follow => std::thread::sleep(PATIENCE),
            Err(error @ untorn::Error::NoSuchCommit { .. }) => {
                let what = format!("{error}; --follow waits until the file is there");
                return Err(Failure { message: what, ..Failure::from(error) });
            }
            stream => return Ok(stream?),
        }
    }
}

/// Prints a line for each commit from now on.
pub(crate) fn watch(args: &cli::Watch) -> Result<Exit> {
    // Whatever the log still has from before is passed over.
    let from = last(CommitStream::open(&args.file, oldest(|from| CommitStream::open(&args.file, from))?)?)?;
    let stream = CommitStream::open(&args.file, from)?.ranges_only();
    print(stream, true, |commit| if args.form.json { object(commit, false) } else { line(commit) })
}

/// The commit after which a log has all.
fn oldest(open: impl Fn(u64) -> untorn::Result<CommitStream>) -> Result<u64> {
    match open(0) {
        Ok(_) => Ok(0),
        Err(untorn::Error::CommitsMissing { oldest: Some(oldest), .. }) => Ok(oldest),
        Err(error) => Err(Failure::from(error)),
    }
}

fn last(stream: CommitStream) -> untorn::Result<u64> {
    let mut stream = stream.ranges_only();
    while stream.next()?.is_some() {}
    Ok(stream.position())
}

fn start(path: &Path, log: CommitLog, as_json: bool) -> Result<Exit> {
    let limit = log.limit();
    if limit == 0 {
        return Err(Failure::usage("a commit log of 0 bytes holds nothing; --stop gives a log up"));
    }
    Options::new().commit_log(log).open(path)?.close()?;
    let commit = inspect(path)?.commit;
    let object = json!({ "path": path.display().to_string(), "limit": limit,
        "block_seconds": log.waits().map(|time| time.as_secs_f64()),
        "awaits_consumers": log.awaits_consumers(), "commit": commit });
    output::report(as_json, &object, || {
        let (path, size) = (path.display(), size::show(limit));
        format!("{path}: it has a commit log of at most {size}; it is at commit {commit} now\n")
    })?;
    Ok(Exit::Clean)
}

/// Prints what there is, and what comes if `follow`, until nobody reads it any more. A consumer acknowledges what is
/// printed: when nothing more is there, and after each [`BATCH`].
fn print(mut stream: CommitStream, follow: bool, form: impl Fn(&Commit) -> String) -> Result<Exit> {
    let mut printed = None;
    for count in 1_u64.. {
        let next = match stream.next()? {
            None => {
                acknowledge(&mut stream, printed.take())?;
                if follow { stream.next_within(PATIENCE)? } else { None }
            }
            next => next,
        };
        match next {
            Some(commit) => {
                if output::bytes(form(&commit).as_bytes())? == Reader::Gone {
                    break;
                }
                printed = Some(commit.number);
            }
            None if !follow => break,
            None => {}
        }
        if count.is_multiple_of(BATCH) {
            acknowledge(&mut stream, printed.take())?;
        }
    }
    acknowledge(&mut stream, printed)?;
    Ok(Exit::Clean)
}

/// Acknowledges this commit, if there is one and the stream is that of a consumer.
fn acknowledge(stream: &mut CommitStream, number: Option<u64>) -> Result<()> {
    match (number, stream.acknowledged()) {
        (Some(number), Some(_)) => Ok(stream.acknowledge(number)?),
        _ => Ok(()),
    }
}

/// One commit as text.
fn line(commit: &Commit) -> String {
    let time = commit.time.map(output::time).unwrap_or_default();
    let bytes: u64 = commit.changes.iter().map(|change| change.range.end - change.range.start).sum();
    let count = output::count(bytes, "byte", "bytes");
    let mut text = format!("{} {time} length {}, {count} changed", commit.number, commit.len);
    for (ranges, what) in [(&commit.allocated, "allocated"), (&commit.freed, "freed")] {
        let pages: u64 = ranges.iter().map(|range| (range.end - range.start) / 4096).sum();
        if pages > 0 {
            let _ = write!(text, ", {} {what}", output::count(pages, "page", "pages"));
        }
    }
    for (index, change) in commit.changes.iter().take(4).enumerate() {
        let lead = if index == 0 { ": " } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{lead}{}..{}", change.range.start, change.range.end);
    }
    text.push_str(if commit.changes.len() > 4 { ", …\n" } else { "\n" });
    text
}

/// One commit as a line of JSON.
fn object(commit: &Commit, with_bytes: bool) -> String {
    let changes: Vec<Value> = commit
        .changes
        .iter()
        .map(|change| {
            let (offset, len) = (change.range.start, change.range.end - change.range.start);
            if with_bytes {
                json!({ "offset": offset, "len": len, "hex": hex(&change.bytes) })
            } else {
                json!({ "offset": offset, "len": len })
            }
        })
        .collect();
    let mut object = json!({
        "commit": commit.number,
        "previous": commit.previous,
        "time": commit.time.map(seconds),
        "len": commit.len,
        "shortest": commit.shortest,
        "changes": changes,
    });
    for (ranges, name) in [(&commit.allocated, "allocated"), (&commit.freed, "freed")] {
        if !ranges.is_empty() {
            let range = |range: &Range<u64>| json!({ "offset": range.start, "len": range.end - range.start });
            object[name] = ranges.iter().map(range).collect();
        }
    }
    format!("{object}\n")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
