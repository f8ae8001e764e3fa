//! `untorn replicate` and `untorn replicas`, and what `restore` and `doctor` do with a URL.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use untorn_replicate::store::{self, Requests};
use untorn_replicate::{Error, LtxReport, Replica, ReplicaOptions, ReplicaStatus, RestoreOptions};

use super::info::seconds;
use crate::cli::{self, At, Form, KeyFile};
use crate::exit::{Exit, Failure, Result, exit_of};
use crate::signals::Stop;
use crate::{output, progress, size};

/// How long to sleep before looking whether a signal came or the replication has ended.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long the end of a replication waits for a store that does not answer. `AFTER_REPLICATE` and
/// docs/replication.md state it.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// The URL that stands in place of a path, if one does.
pub(crate) fn url_of(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| store::is_url(text))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match &error {
            Error::File(error) => exit_of(error),
            Error::Corrupt { .. } => Exit::Corrupt,
            Error::Invalid { .. } => Exit::Usage,
            // The user decides: what the replica or the file has stays as it is.
            Error::Fenced { .. }
            | Error::NotDescendant { .. }
            | Error::NotFollower { .. }
            | Error::Unsupported { .. }
            | Error::UnsafeStore { .. } => Exit::Attention,
            // The enum may grow. An unknown error is a failure of the operation, never a success.
            _ => Exit::Io,
        };
        let path = match &error {
            Error::File(error) => Some(error.path().to_owned()),
            Error::Io { path, .. } | Error::NotFollower { path, .. } => Some(path.clone()),
            _ => None,
        };
        Failure { exit, path, message: error.to_string() }
    }
}

/// Ships the commits of a file.
pub(crate) fn replicate(args: &cli::Replicate) -> Result<Exit> {
    let interval = Duration::from_millis(args.interval.max(1));
    let options = ReplicaOptions::new().interval(interval).retain(args.retain).consumer(&args.consumer);
    let options = options.begin_new(args.new);
    let options = args.when_behind.map_or(options.clone(), |when| options.when_behind(when.into()));
    // Until everything is there a signal ends the process at once, also while a request waits for a dead store.
    let replica = Replica::attach_path(&args.file, &args.key.url(&args.url), options)?;
    let report = |status: &ReplicaStatus, state: &str| {
        output::report(args.form.json, &object(args, status, state), || words(args, status, state))
    };
    if args.once {
        report(&replica.detach()?, "replicated")?;
        return Ok(Exit::Clean);
    }
    replica.sync_replicated()?;
    let stop = Stop::on(&[SIGINT, SIGTERM, SIGHUP])?;
    report(&replica.status(), "replicating")?;
    attend(&replica, &stop)?;
    let ended = replica.detach_within(SILENCE).map_err(|error| {
        let mut failure = Failure::from(error);
        failure.message.push_str("; interrupted: the rest is shipped when the replication is started again");
        failure
    });
    report(&ended?, "replicated")?;
    stop.interrupted("everything was shipped");
    Ok(Exit::Clean)
}

/// Waits for a signal, and tells what fails meanwhile.
///
/// # Errors
/// That of a replication that cannot go on.
fn attend(replica: &Replica, stop: &Stop) -> Result<()> {
    let told = stop.flag();
    let mut failure = None;
    while !told.load(Ordering::Acquire) {
        if let Some(error) = replica.ended() {
            return Err(error.into());
        }
        let now = replica.status().failure;
        if now != failure
            && let Some(what) = &now
        {
            // If stderr is closed, the replication goes on all the same.
            let _ = writeln!(std::io::stderr(), "untorn: {what}; trying again");
        }
        failure = now;
        std::thread::sleep(PATIENCE);
    }
    Ok(())
}

fn object(args: &cli::Replicate, status: &ReplicaStatus, state: &str) -> Value {
    json!({
        "path": args.file.display().to_string(),
        "url": args.url,
        "state": state,
        "epoch": status.epoch,
        "commit": status.acknowledged,
        "objects": status.objects,
        "commits": status.commits,
        "snapshots": status.snapshots,
        "bytes": status.bytes,
        "requests": of_requests(&status.requests),
    })
}

fn of_requests(requests: &Requests) -> Value {
    json!({
        "get": requests.gets,
        "put": requests.puts,
        "delete": requests.deletes,
        "list": requests.lists,
        "other": requests.others,
        "sent": requests.sent,
        "received": requests.received,
    })
}

fn requests_in_words(requests: &Requests) -> String {
    output::count(requests.total(), "request", "requests")
}

fn words(args: &cli::Replicate, status: &ReplicaStatus, state: &str) -> String {
    let snapshots = output::count(status.snapshots, "snapshot", "snapshots");
    let commits = output::count(status.commits, "commit", "commits");
    let (file, bytes) = (args.file.display(), size::show(status.bytes));
    let (requests, sent) = (requests_in_words(&status.requests), size::show(status.requests.sent));
    format!(
        "{state} {file} to {}: commit {} in epoch {}; shipped {snapshots} and {commits}, {bytes}, by {requests} that \
         sent {sent}\n",
        args.url, status.acknowledged, status.epoch
    )
}

/// Makes a file of a replica.
pub(crate) fn restore(url: &str, args: &cli::Restore) -> Result<Exit> {
    if args.backups.len() > 1 || args.rate.is_some() {
        return Err(Failure::usage("a replica is restored alone, and without --rate"));
    }
    let stop = Stop::on(&[SIGINT, SIGTERM, SIGHUP])?;
    let told = stop.flag();
    let mut options = RestoreOptions::new().replace(args.force);
    options = match args.at {
        None => options,
        Some(At::Commit(commit)) => options.at_commit(commit),
        Some(At::Time(time)) => options.at_time(time),
    };
    let bar = progress::bytes_bar(0, "reading the replica");
    let mut tell = |read| {
        bar.set_length(read);
        bar.set_position(read);
        if told.load(Ordering::Acquire) {
            return Err(Error::Invalid { what: "interrupted".to_owned() });
        }
        Ok(())
    };
    if args.ltx {
        let exported = untorn_replicate::export_ltx(&args.key.url(url), &args.file, &mut tell);
        bar.finish_and_clear();
        return exported_as_ltx(url, args, &stop, exported);
    }
    let made = untorn_replicate::restore_with(&args.key.url(url), &args.file, &options, &mut tell);
    bar.finish_and_clear();
    let made = made.map_err(|error| {
        stop.interrupted("nothing is restored");
        let is_taken = |error: &untorn::Error| error.errno() == rustix::io::Errno::EXIST.raw_os_error();
        let force_helps = !args.force && matches!(&error, Error::File(error) if is_taken(error));
        let mut failure = Failure::from(error);
        failure.message.push_str(if force_helps { "; --force replaces it" } else { "" });
        failure
    })?;
    let path = args.file.display();
    let object = json!({
        "path": path.to_string(),
        "url": url,
        "commit": made.commit,
        "time": made.time.map(seconds),
        "epoch": made.epoch,
        "len": made.len,
        "read": made.read,
        "requests": of_requests(&made.requests),
        "latest": made.is_latest,
    });
    output::report(args.form.json, &object, || {
        let time = made.time.map(|time| format!(" of {}", output::time(time))).unwrap_or_default();
        let (len, read) = (size::show(made.len), size::show(made.read));
        let requests = requests_in_words(&made.requests);
        format!("restored {path} at commit {}{time}: {len}, {read} read by {requests}\n", made.commit)
    })?;
    Ok(Exit::Clean)
}

/// Tells what was exported.
fn exported_as_ltx(
    url: &str,
    args: &cli::Restore,
    stop: &Stop,
    exported: untorn_replicate::Result<LtxReport>,
) -> Result<Exit> {
    let report = exported.inspect_err(|_| stop.interrupted("the directory is incomplete; remove it"))?;
    let path = args.file.display();
    let object = json!({
        "path": path.to_string(),
        "url": url,
        "files": report.files,
        "bytes": report.bytes,
        "first": report.first,
        "last": report.last,
    });
    output::report(args.form.json, &object, || {
        let (files, bytes) = (output::count(report.files, "file", "files"), size::show(report.bytes));
        format!("exported {url} to {path}: {files}, {bytes}; transactions {} to {}\n", report.first, report.last)
    })?;
    Ok(Exit::Clean)
}

/// Shows what a replica has.
pub(crate) fn replicas(args: &cli::Replicas) -> Result<Exit> {
    let found = untorn_replicate::look(&args.key.url(&args.url))?;
    let snapshots = found.snapshots.iter().map(|snapshot| {
        json!({
            "epoch": snapshot.epoch,
            "commit": snapshot.commit,
            "time": snapshot.time.map(seconds),
            "len": snapshot.len,
        })
    });
    let object = json!({
        "url": args.url,
        "epoch": found.epoch,
        "owner": found.owner,
        "released": found.is_released,
        "commit": found.commit,
        "past": found.past.iter().map(|(epoch, end)| json!({ "epoch": epoch, "commit": end })).collect::<Vec<_>>(),
        "snapshots": snapshots.collect::<Vec<_>>(),
        "objects": found.objects,
        "bytes": found.bytes,
    });
    output::report(args.form.json, &object, || {
        let objects = output::count(found.objects, "object", "objects");
        let mut text = format!(
            "{}: commit {} in epoch {}, {} by {}; {objects}, {}\n",
            args.url,
            found.commit,
            found.epoch,
            if found.is_released { "handed over" } else { "owned" },
            found.owner,
            size::show(found.bytes)
        );
        for snapshot in &found.snapshots {
            let time = snapshot.time.map(output::time).unwrap_or_default();
            text += &format!("  snapshot of commit {} {time}: {}\n", snapshot.commit, size::show(snapshot.len));
        }
        text
    })?;
    Ok(Exit::Clean)
}

/// Tries a store.
pub(crate) fn doctor(url: &str, key: &KeyFile, form: &Form) -> Result<Exit> {
    store::probe(&*store::open(&key.url(url))?)?;
    let object = json!({ "url": url, "conditions": true });
    output::report(form.json, &object, || {
        let mut text = format!("{url}: the store keeps conditions, so it is fit for replicas\n");
        if url.starts_with("nats://") {
            text += "No request tells whether its servers have `sync_interval: always`. They need it: otherwise a \
                     power cut takes what they acknowledged.\n";
        }
        text
    })?;
    Ok(Exit::Clean)
}
