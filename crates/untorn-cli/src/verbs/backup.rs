//! `untorn backup` and `untorn restore`: copies of one commit.

use std::io::{self, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use untorn::backup::{self, Backup, BackupOptions};
use untorn::{Error, Snapshot};

use crate::cli;
use crate::exit::{Exit, Failure, Result};
use crate::signals::Stop;
use crate::{output, progress, size};

/// Backups of a plain file that another program keeps changing are begun anew so often.
const ATTEMPTS: u32 = 5;

/// Backs a file up, to another file or to standard output.
pub(crate) fn backup(args: &cli::Backup) -> Result<Exit> {
    if args.dest == Path::new("-") {
        return stream(args);
    }
    let stop = Stop::on(&[SIGINT, SIGTERM, SIGHUP])?;
    let mut options = options(args.rate).verify(args.verify).replace(args.force).resume(args.resume);
    options = args.base.iter().fold(options, BackupOptions::base);
    if let Some(since) = args.since {
        options = options.since(since);
    }
    let options = options.cancel(stop.flag());
    let mut attempt = 1;
    let made = loop {
        match backup::create(&Snapshot::open(&args.file)?, &args.dest, &options) {
            // Another program has opened a plain file meanwhile, and gives a snapshot now.
            Err(Error::SnapshotEnded { .. }) if attempt < ATTEMPTS => attempt += 1,
            made => break made,
        }
    };
    let made = made.map_err(|error| {
        let what =
            if args.resume { "the copied part is kept, and the same command goes on" } else { "nothing is kept" };
        stop.interrupted(what);
        force_helps(error, args.force)
    })?;
    output::report(args.form.json, &object(&args.dest, &made), || {
        let dest = args.dest.display();
        let since = made.base.map(|base| format!(" since {base}")).unwrap_or_default();
        format!("backed up commit {}{since} of {} to {dest}: {}\n", made.commit, args.file.display(), lengths(&made))
    })?;
    Ok(Exit::Clean)
}

/// Writes a backup to standard output. A signal ends the process as usual: there is nothing to clean up.
fn stream(args: &cli::Backup) -> Result<Exit> {
    let is_increment = args.since.is_some() || !args.base.is_empty();
    if args.form.json || args.verify || args.force || args.resume || is_increment {
        let what = "--json, --verify, --force, --base, --since and --resume need a DEST that is a file: standard \
                    output gets the bytes of the whole file";
        return Err(Failure::usage(what));
    }
    let snapshot = Snapshot::open(&args.file)?;
    let mut out = io::stdout().lock();
    let made = backup::stream(&snapshot, &mut out, &options(args.rate)).and_then(|made| {
        let flushed = out.flush();
        let operation = "write the backup of";
        flushed.map_err(|source| Error::Io { operation, path: args.file.clone(), offset: None, source })?;
        Ok(made)
    });
    match made {
        // A reader that has read enough.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Clean),
        made => made.map(|_| Exit::Clean).map_err(Failure::from),
    }
}

/// Makes a file of a backup.
pub(crate) fn restore(args: &cli::Restore) -> Result<Exit> {
    if args.at.is_some() {
        return Err(Failure::usage("--at needs the URL of a replica: a backup has one commit only"));
    }
    if args.ltx {
        return Err(Failure::usage("--ltx needs the URL of a replica"));
    }
    if args.key.key.is_some() {
        return Err(Failure::usage("--key needs the URL of a replica"));
    }
    let stop = Stop::on(&[SIGINT, SIGTERM, SIGHUP])?;
    let options = options(args.rate).replace(args.force).cancel(stop.flag());
    let made = backup::restore(&args.backups, &args.file, &options).map_err(|error| {
        stop.interrupted("nothing is restored");
        force_helps(error, args.force)
    })?;
    output::report(args.form.json, &object(&args.file, &made), || {
        format!("restored {} at commit {}: {}\n", args.file.display(), made.commit, lengths(&made))
    })?;
    Ok(Exit::Clean)
}

fn options(rate: Option<u64>) -> BackupOptions {
    let options = BackupOptions::new().progress(progress::function());
    match rate {
        Some(rate) => options.rate(rate),
        None => options,
    }
}

/// The way out where a name is taken, or where the commit log does not reach back far enough.
fn force_helps(error: Error, force: bool) -> Failure {
    let taken = matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists);
    let way_out = match &error {
        Error::CommitsMissing { oldest: None, .. } => {
            "; once it has one, make a full backup, and --since goes on from there; without one, --base makes an \
             increment"
        }
        Error::CommitsMissing { .. } => {
            "; a full backup is one without --since, and --base makes an increment of an earlier one"
        }
        _ if taken && !force => "; --force replaces it",
        _ => "",
    };
    let mut failure = Failure::from(error);
    failure.message.push_str(way_out);
    failure
}

fn lengths(made: &Backup) -> String {
    let rest = match made.base {
        Some(_) => ", the rest as before",
        None if made.bytes < made.len => ", the rest holes",
        None => "",
    };
    let bytes = output::count(made.bytes, "byte", "bytes");
    let kept = made.bytes.saturating_sub(made.written);
    let kept = if kept > 0 { format!(" ({kept} were there)") } else { String::new() };
    format!("{}, {bytes} of data{kept}{rest}", size::show(made.len))
}

fn object(path: &Path, made: &Backup) -> Value {
    let taken = made.taken.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    json!({
        "path": path.display().to_string(),
        "commit": made.commit,
        "taken": taken,
        "len": made.len,
        "bytes": made.bytes,
        "written": made.written,
        "since": made.base,
    })
}
