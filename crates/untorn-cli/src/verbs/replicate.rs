//! `untorn replicate` and `untorn replicas`, and what `restore` and `doctor` do with a URL.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use untorn::options::CommitLog;
use untorn::{AtomicFile, Options, commits};
use untorn_replicate::store::{self, Requests};
use untorn_replicate::{Error, LtxReport, Replica, ReplicaOptions, ReplicaStatus, RestoreOptions};

use super::info::seconds;
use crate::cli::{self, At, Form, KeyFile};
use crate::exit::{Exit, Failure, Result};
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
        let error = match error {
            Error::File(error) => return error.into(),
            error => error,
        };
        let exit = match &error {
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
            Error::Io { path, .. } | Error::NotFollower { path, .. } => Some(path.clone()),
            _ => None,
        };
        Failure { exit, path, message: error.to_string() }
    }
}

/// A file, and the URL of its replica.
#[derive(Clone)]
struct Pair {
    file: PathBuf,
    url: String,
}

/// The files of the request, each with its replica.
fn pairs(args: &cli::Replicate) -> Result<Vec<Pair>> {
    if let [file] = &args.files[..] {
        return Ok(vec![Pair { file: file.clone(), url: args.url.clone() }]);
    }
    let mut pairs: Vec<Pair> = Vec::with_capacity(args.files.len());
    for file in &args.files {
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Failure::usage_at(file, "its name cannot be a part of a URL"))?;
        let url = store::below(&args.url, name)?;
        if let Some(other) = pairs.iter().find(|pair| pair.url == url) {
            let what = format!("its replica would be that of {}; replicate it by itself", other.file.display());
            return Err(Failure::usage_at(file, what));
        }
        pairs.push(Pair { file: file.clone(), url });
    }
    Ok(pairs)
}

/// Ships the commits of files.
pub(crate) fn replicate(args: &cli::Replicate) -> Result<Exit> {
    let pairs = pairs(args)?;
    if args.once { ship(args, &pairs) } else { ship_on(args, pairs) }
}

/// A commit log whose setting `--sync` has changed.
pub(super) struct Changed {
    file: PathBuf,
    before: CommitLog,
}

impl Changed {
    /// Sets it back. Otherwise each later sync of the file would wait for a store that gets nothing.
    fn set_back(self, mut failure: Failure) -> Failure {
        if let Err(error) = keep_log(&self.file, self.before) {
            let file = self.file.display();
            failure.message.push_str(&format!("; --sync has changed the commit log of {file} all the same: {error}"));
        }
        failure
    }
}

fn keep_log(file: &Path, log: CommitLog) -> untorn::Result<()> {
    Options::new().commit_log(log).open(file).and_then(AtomicFile::close)
}

/// Has the syncs of a file wait for the store, or not. Returns what was changed.
pub(super) fn set_sync(file: &Path, sync: cli::SyncTo) -> Result<Option<Changed>> {
    // A file without a log is refused by the replication, in words of its own.
    let Some(log) = commits::kept(file)? else { return Ok(None) };
    let wanted = match sync {
        cli::SyncTo::Local => log.await_nobody(),
        cli::SyncTo::Replicated => log.await_consumers(),
    };
    if wanted == log {
        return Ok(None);
    }
    keep_log(file, wanted).map_err(|error| {
        let is_open = matches!(error, untorn::Error::InUse { .. });
        let mut failure = Failure::from(error);
        if is_open {
            failure.message.push_str("; --sync changes its commit log, so end that program first");
        }
        failure
    })?;
    Ok(Some(Changed { file: file.to_owned(), before: log }))
}

/// Sets these logs back, because of a failure with which nothing is replicated. Returns that failure.
pub(super) fn set_back(changed: impl IntoIterator<Item = Changed>, failure: Failure) -> Failure {
    changed.into_iter().fold(failure, |failure, changed| changed.set_back(failure))
}

fn options(args: &cli::Replicate) -> ReplicaOptions {
    let interval = Duration::from_millis(args.interval.max(1));
    let mut options = ReplicaOptions::new().interval(interval).retain(args.retain).consumer(&args.consumer);
    options = options.begin_new(args.new).begin_with_snapshot(args.snapshot);
    if let Some(when) = args.when_behind {
        options = options.when_behind(when.into());
    }
    if let Some(seconds) = args.confirm {
        options = options.confirm(Duration::from_secs(seconds));
    }
    options
}

/// The state of a replica for which there is nothing to do. A failure to tell comes again when there is.
fn already_shipped(args: &cli::Replicate, pair: &Pair) -> Option<ReplicaStatus> {
    if args.sync.is_some() || args.when_behind.is_some() || args.new {
        return None;
    }
    untorn_replicate::already_shipped(&pair.file, &args.key.url(&pair.url), &options(args)).ok().flatten()
}

/// Attaches a file to its replica. Returns what `--sync` has changed, too.
fn attach(args: &cli::Replicate, pair: &Pair) -> Result<(Replica, Option<Changed>)> {
    // First, because a replica has the file open while it ships a snapshot.
    let changed = args.sync.map_or(Ok(None), |sync| set_sync(&pair.file, sync))?;
    match Replica::attach_path(&pair.file, &args.key.url(&pair.url), options(args)) {
        Ok(replica) => Ok((replica, changed)),
        Err(error) => Err(set_back(changed, error.into())),
    }
}

/// Attaches files, and ships what there is of each. If one fails, none is replicated.
fn attach_all(args: &cli::Replicate, pairs: Vec<Pair>) -> Result<Vec<(Pair, Replica)>> {
    let mut changed = Vec::new();
    let attached = pairs.into_iter().map(|pair| {
        let (replica, of_it) = attach(args, &pair)?;
        changed.extend(of_it);
        Ok((pair, replica))
    });
    let shipped = attached.collect::<Result<Vec<_>>>().and_then(|replicas| {
        replicas.iter().try_for_each(|(_, replica)| replica.sync_replicated().map(drop))?;
        Ok(replicas)
    });
    shipped.map_err(|failure| set_back(changed, failure))
}

fn tell(args: &cli::Replicate, pair: &Pair, status: &ReplicaStatus, state: &str) -> Result<()> {
    let lag = lag(args, pair);
    output::report(args.form.json, &object(pair, status, state, lag), || words(pair, status, state, lag))
}

/// How far the replica is behind its file: by the numbers of their commits, and by bytes of the commit log at most.
/// `None` if the file does not tell.
fn lag(args: &cli::Replicate, pair: &Pair) -> Option<(u64, u64)> {
    let log = untorn::inspect(&pair.file).ok()?.commit_log?;
    let consumer = log.consumers.into_iter().find(|consumer| consumer.name == args.consumer)?;
    Some((consumer.lag, consumer.lag_bytes))
}

/// Ships what there is of each file.
fn ship(args: &cli::Replicate, pairs: &[Pair]) -> Result<Exit> {
    let mut failures = Failures::of(pairs.len());
    for pair in pairs {
        let ship = |(replica, changed): (Replica, _)| replica.detach().map_err(|error| set_back(changed, error.into()));
        let shipped = already_shipped(args, pair).map_or_else(|| attach(args, pair).and_then(ship), Ok);
        match shipped {
            Ok(status) => tell(args, pair, &status, "replicated")?,
            Err(failure) => failures.add(failure),
        }
    }
    failures.end()
}

/// Ships until a signal comes.
fn ship_on(args: &cli::Replicate, pairs: Vec<Pair>) -> Result<Exit> {
    let mut failures = Failures::of(pairs.len());
    // Until everything is there a signal ends the process at once, also while a request waits for a dead store.
    let mut replicas = attach_all(args, pairs)?;
    let stop = Stop::on(&[SIGINT, SIGTERM, SIGHUP])?;
    for (pair, replica) in &replicas {
        tell(args, pair, &replica.status(), "replicating")?;
    }
    attend(args, &mut replicas, &mut failures, &stop)?;
    // At the same time: a store that is silent takes its time for each.
    let ended: Vec<_> = std::thread::scope(|scope| {
        let ends = |(pair, replica): (Pair, Replica)| (pair, scope.spawn(|| replica.detach_within(SILENCE)));
        let ending: Vec<_> = replicas.into_iter().map(ends).collect();
        ending.into_iter().map(|(pair, thread)| (pair, thread.join())).collect()
    });
    for (pair, ended) in ended {
        match ended {
            Ok(Ok(status)) => tell(args, &pair, &status, "replicated")?,
            Ok(Err(error)) => {
                let mut failure = Failure::from(error);
                let rest = "; interrupted: the rest is shipped when the replication is started again";
                failure.message.push_str(rest);
                failures.add(failure);
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    let exit = failures.end()?;
    stop.interrupted("everything was shipped");
    Ok(exit)
}

/// Waits until a signal comes or nothing is left to ship, and tells how it goes meanwhile. A replication that cannot go
/// on leaves the others alone.
fn attend(
    args: &cli::Replicate,
    replicas: &mut Vec<(Pair, Replica)>,
    failures: &mut Failures,
    stop: &Stop,
) -> Result<()> {
    let told = stop.flag();
    let mut known = vec![None; replicas.len()];
    let mut reported = Instant::now();
    while !replicas.is_empty() && !told.load(Ordering::Acquire) {
        let is_due = args.report.is_some_and(|every| reported.elapsed() >= Duration::from_secs(every));
        if is_due {
            reported = Instant::now();
        }
        let mut index = 0;
        while let Some((pair, replica)) = replicas.get(index) {
            if let Some(error) = replica.ended() {
                failures.add(error.into());
                replicas.remove(index);
                known.remove(index);
                continue;
            }
            let status = replica.status();
            let file = pair.file.display();
            let changed = match (&known[index], &status.failure) {
                (before, Some(what)) if before.as_ref() != Some(what) => format!("{what}; trying again"),
                (Some(_), None) => {
                    format!("replicating again; {} has it up to commit {}", pair.url, status.acknowledged)
                }
                _ => String::new(),
            };
            if !changed.is_empty() {
                say(&format!("{file}: {changed}"));
            }
            if is_due || (args.form.json && !changed.is_empty()) {
                tell(args, pair, &status, "replicating")?;
            }
            known[index] = status.failure;
            index += 1;
        }
        std::thread::sleep(PATIENCE);
    }
    Ok(())
}

/// The failures of several files, of which each is told when it happens.
struct Failures {
    files: usize,
    failed: usize,
    first: Option<Failure>,
}

impl Failures {
    fn of(files: usize) -> Self {
        Failures { files, failed: 0, first: None }
    }

    fn add(&mut self, failure: Failure) {
        // That of a single file is told at the end.
        if self.files > 1 {
            say(&failure.to_string());
        }
        self.failed += 1;
        self.first.get_or_insert(failure);
    }

    /// # Errors
    /// The failure of the only file, or how many of the files failed.
    fn end(self) -> Result<Exit> {
        match self.first {
            None => Ok(Exit::Clean),
            Some(first) if self.files == 1 => Err(first),
            Some(first) => {
                let message = format!("{} of {} files failed; the first: {first}", self.failed, self.files);
                Err(Failure { message, ..first })
            }
        }
    }
}

fn say(text: &str) {
    // If stderr is closed, the replication goes on all the same.
    let _ = writeln!(std::io::stderr(), "untorn: {text}");
}

fn object(pair: &Pair, status: &ReplicaStatus, state: &str, lag: Option<(u64, u64)>) -> Value {
    json!({
        "path": pair.file.display().to_string(),
        "url": pair.url,
        "state": state,
        "epoch": status.epoch,
        "commit": status.acknowledged,
        "lag": lag.map(|(commits, bytes)| json!({ "commits": commits, "bytes": bytes })),
        "failure": status.failure,
        "sync": if status.awaits { "replicated" } else { "local" },
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

fn words(pair: &Pair, status: &ReplicaStatus, state: &str, lag: Option<(u64, u64)>) -> String {
    let snapshots = output::count(status.snapshots, "snapshot", "snapshots");
    let commits = output::count(status.commits, "commit", "commits");
    let (file, bytes) = (pair.file.display(), size::show(status.bytes));
    let (requests, sent) = (requests_in_words(&status.requests), size::show(status.requests.sent));
    let sync = if status.awaits { "waits for the store" } else { "is local" };
    let behind = lag.filter(|(commits, _)| *commits > 0).map(|(commits, bytes)| {
        format!(", {} and at most {} behind", output::count(commits, "commit", "commits"), size::show(bytes))
    });
    let behind = behind.unwrap_or_default();
    format!(
        "{state} {file} to {}: commit {} in epoch {}{behind}; shipped {snapshots} and {commits}, {bytes}, by \
         {requests} that sent {sent}; a sync of the file {sync}\n",
        pair.url, status.acknowledged, status.epoch
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
    if let Some(At::Commit(asked)) = args.at
        && made.is_latest
        && made.commit < asked
    {
        say(&format!("{url} ends at commit {}, so that was restored instead of commit {asked}", made.commit));
    }
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
