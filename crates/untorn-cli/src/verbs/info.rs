//! `untorn info`, and the verdict on a file, which `check` uses too.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use untorn::EngineKind;
use untorn::report::{CommitLogInfo, ConsumerInfo, HeldSnapshots, Report, SnapshotInfo, State};

use super::{protect, prune};
use crate::cli::Look;
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Colour, paint};
use crate::size;

/// Shows a file's state.
pub(crate) fn run(args: &Look) -> Result<Exit> {
    if args.file.is_dir() {
        return prune::look(&args.file, args.form.json);
    }
    let report = untorn::inspect(&args.file)?;
    let exit = verdict(&report);
    output::report(args.form.json, &object(&report), || words(&report))?;
    Ok(exit)
}

/// The exit code for a report.
pub(crate) fn verdict(report: &Report) -> Exit {
    match report.state {
        State::Clean | State::InUse => Exit::Clean,
        State::NeedsRecovery | State::Refused => Exit::Attention,
        State::Corrupt => Exit::Corrupt,
    }
}

/// The text of a report on a file whose commits a power cut takes; `untorn doctor` gives the reason.
pub(crate) const NOT_DURABLE: &str = "no: commits survive a killed process, not a power cut";

/// The name of a state in JSON.
pub(crate) fn state_word(state: State) -> &'static str {
    match state {
        State::Clean => "clean",
        State::InUse => "in-use",
        State::NeedsRecovery => "needs-recovery",
        State::Refused => "refused",
        State::Corrupt => "corrupt",
    }
}

/// A time as JSON has it: seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The JSON form of a report.
pub(crate) fn object(report: &Report) -> Value {
    let sidecar = report.sidecar.as_ref().map(|sidecar| {
        json!({
            "path": sidecar.path.display().to_string(),
            "bytes": sidecar.bytes,
            "uuid": sidecar.uuid,
            "layout": sidecar.layout.map(untorn::options::Layout::as_str),
            "durability": sidecar.durability.as_str(),
        })
    });
    json!({
        "path": report.path.display().to_string(),
        "engine": report.engine.map(untorn::EngineKind::as_str),
        "len": report.len,
        "commit": report.commit,
        "committed": report.committed.map(seconds),
        "state": state_word(report.state),
        "holder": report.holder,
        "snapshots": report.snapshots.as_ref().map(snapshots),
        "durable": report.durable,
        "sidecar": sidecar,
        "commit_log": report.commit_log.as_ref().map(commit_log),
        "redundancy": protect::summary(&report.path),
        "findings": report.findings,
    })
}

/// The JSON form of a consumer of a commit log.
pub(super) fn consumer(consumer: &ConsumerInfo) -> Value {
    json!({
        "name": consumer.name,
        "acknowledged": consumer.acknowledged,
        "lag": consumer.lag,
        "lag_bytes": consumer.lag_bytes,
        "has_missed": consumer.has_missed,
    })
}

/// The JSON form of a commit log.
fn commit_log(log: &CommitLogInfo) -> Value {
    json!({
        "limit": log.limit,
        "bytes": log.bytes,
        "oldest": log.oldest,
        "first": log.first,
        "last": log.last,
        "block_seconds": log.block.map(|time| time.as_secs_f64()),
        "awaits_consumers": log.awaits,
        "consumers": log.consumers.iter().map(consumer).collect::<Vec<_>>(),
    })
}

/// The lines of the text form that tell of a commit log.
fn commit_log_lines(log: Option<&CommitLogInfo>) -> String {
    let Some(log) = log else { return "  commit log  none\n".to_owned() };
    let (bytes, limit) = (size::show(log.bytes), size::show(log.limit));
    let has = match (log.first, log.last) {
        (Some(first), Some(last)) => format!("commits {first} to {last}"),
        _ => format!("no commit after {} yet", log.oldest),
    };
    let mut text = format!("  commit log  {has}, {bytes} of at most {limit}\n");
    // Writing to a String cannot fail.
    if let Some(time) = log.block {
        let _ = writeln!(text, "              commits wait up to {} s for its consumers", time.as_secs_f64());
    }
    if log.awaits {
        text += "              a commit returns once its consumers have acknowledged it\n";
    }
    for ConsumerInfo { name, acknowledged, lag, has_missed, .. } in &log.consumers {
        let lost = if *has_missed { "; commits that it needs are gone" } else { "" };
        let _ = writeln!(text, "              consumer {name}: acknowledged {acknowledged}, {lag} behind{lost}");
    }
    text
}

/// The JSON form of the held snapshots.
fn snapshots(all: &HeldSnapshots) -> Value {
    let one = |held: &SnapshotInfo| {
        json!({
            "process": held.process,
            "program": program(held.process),
            "commit": held.commit,
            "len": held.len,
            "age_seconds": age(held).as_secs_f64(),
            "bytes": held.bytes,
        })
    };
    json!({ "bytes": all.bytes, "held": all.snapshots.iter().map(one).collect::<Vec<_>>() })
}

/// How long ago a snapshot was taken; zero if the clock was set back since.
fn age(held: &SnapshotInfo) -> Duration {
    SystemTime::now().duration_since(held.since).unwrap_or_default()
}

/// The name of a process's program, if the kernel tells. Source: `proc_pid_comm(5)`.
fn program(process: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{process}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// The lines of the text form that name the held snapshots.
fn holders(all: &HeldSnapshots) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match all.snapshots.len() {
        0 => writeln!(text, "  snapshots   none held"),
        count => writeln!(text, "  snapshots   {count} held, keeping {}", size::show(all.bytes)),
    };
    for held in &all.snapshots {
        let name = program(held.process).map(|name| format!(" ({name})")).unwrap_or_default();
        let _ = writeln!(
            text,
            "              process {}{name}: commit {}, for {} s, keeping {}",
            held.process,
            held.commit,
            age(held).as_secs(),
            size::show(held.bytes)
        );
    }
    text
}

/// The text form of a report.
pub(crate) fn words(report: &Report) -> String {
    let state = match report.state {
        State::Clean => paint(Colour::Good, "clean"),
        State::InUse => format!("in use by {}", report.holder.as_deref().unwrap_or("another process")),
        State::NeedsRecovery => paint(Colour::Bad, "needs recovery") + ": not closed cleanly; run `untorn recover`",
        State::Refused => paint(Colour::Bad, "refused") + " until you decide: see below",
        State::Corrupt => paint(Colour::Bad, "corrupt"),
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", paint(Colour::Strong, &report.path.display().to_string()));
    let _ = writeln!(text, "  state       {state}");
    if !report.durable {
        let _ = writeln!(text, "  durable     {}", paint(Colour::Bad, NOT_DURABLE));
    }
    let _ = writeln!(text, "  engine      {}", report.engine.map_or("none (a plain file)", |engine| engine.as_str()));
    let _ = writeln!(text, "  length      {}", size::show(report.len));
    let time = report.committed.map(|time| format!(", {}", output::time(time))).unwrap_or_default();
    let _ = writeln!(text, "  commit      {}{time}", report.commit);
    match &report.sidecar {
        None => {
            let _ = writeln!(text, "  sidecar     none");
        }
        Some(sidecar) => {
            let _ = writeln!(text, "  sidecar     {}", sidecar.path.display());
            let layout = sidecar.layout.map(|layout| format!(", {layout} layout")).unwrap_or_default();
            // Nearly all of the sidecar is the log.
            let log = if report.engine == Some(EngineKind::HybridLog) { ", the log" } else { "" };
            let _ = writeln!(text, "              {}{layout}{log}", size::show(sidecar.bytes));
            let _ = writeln!(text, "  durability  per {}", sidecar.durability);
        }
    }
    text.push_str(&commit_log_lines(report.commit_log.as_ref()));
    text.push_str(&report.snapshots.as_ref().map(holders).unwrap_or_default());
    let _ = writeln!(text, "  redundancy  {}", protect::line(&protect::summary(&report.path)));
    for finding in &report.findings {
        let _ = writeln!(text, "  - {finding}");
    }
    text
}

/// The length of a file at its last commit, if its state is clean.
///
/// # Errors
/// If the file cannot be inspected. The caller fails with this before it waits for standard input.
pub(crate) fn settled_len(path: &Path) -> Result<Option<u64>> {
    let report = untorn::inspect(path).map_err(Failure::from)?;
    Ok((report.state == State::Clean).then_some(report.len))
}
