//! `untorn backup` and `untorn restore`: copies of one commit.

use std::io::{self, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use untorn::backup::{self, Backup, BackupOptions};
use untorn::{Error, Snapshot};

use crate::cli;
use crate::exit::{Exit, Failure, Result};
use crate::{output, progress, size};

/// Backs a file up, to another file or to standard output.
pub(crate) fn backup(args: &cli::Backup) -> Result<Exit> {
    let streams = args.dest == Path::new("-");
    if streams && (args.form.json || args.verify || args.force) {
        let what = "--json, --verify and --force need a DEST that is a file: standard output gets the bytes";
        return Err(Failure::usage(what));
    }
    let options = options(args.rate).verify(args.verify).replace(args.force);
    let snapshot = Snapshot::open(&args.file)?;
    if streams {
        let mut out = io::stdout().lock();
        return match backup::stream(&snapshot, &mut out, &options).and_then(|made| {
            out.flush().map_err(|source| Error::Io {
                operation: "write the backup of",
                path: args.file.clone(),
                offset: None,
                source,
            })?;
            Ok(made)
        }) {
            // A reader that has read enough.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Clean),
            made => made.map(|_| Exit::Clean).map_err(Failure::from),
        };
    }
    let made = backup::create(&snapshot, &args.dest, &options).map_err(|error| force_helps(error, args.force))?;
    let object = object(&args.dest, &made);
    output::report(args.form.json, &object, || {
        let dest = args.dest.display();
        format!("backed up commit {} of {} to {dest}: {}\n", made.commit, args.file.display(), lengths(&made))
    })?;
    Ok(Exit::Clean)
}

/// Makes a file of a backup.
pub(crate) fn restore(args: &cli::Restore) -> Result<Exit> {
    let options = options(args.rate).replace(args.force);
    let made = backup::restore(&args.backup, &args.file, &options).map_err(|error| force_helps(error, args.force))?;
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

/// The way out where a name is taken.
fn force_helps(error: Error, force: bool) -> Failure {
    let taken = matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists);
    let mut failure = Failure::from(error);
    if taken && !force {
        failure.message.push_str("; --force replaces it");
    }
    failure
}

fn lengths(made: &Backup) -> String {
    let holes = if made.bytes < made.len { ", the rest holes" } else { "" };
    format!("{}, {} of data{holes}", size::show(made.len), output::count(made.bytes, "byte", "bytes"))
}

fn object(path: &Path, made: &Backup) -> Value {
    let taken = made.taken.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    json!({
        "path": path.display().to_string(),
        "commit": made.commit,
        "taken": taken,
        "len": made.len,
        "bytes": made.bytes,
        "since": Value::Null,
    })
}
