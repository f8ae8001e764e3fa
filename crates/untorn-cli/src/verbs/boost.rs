//! The log of `run --mode boost`: found or made, and judged before a program depends on it.

use std::fmt::Write;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use untorn::storage::MediumKind;
use untorn::{CacheOptions, Diagnosis, Durability, Error, WriteCache};
use untorn_run::Launch;

use crate::cli::BoostLog;
use crate::exit::{Failure, Result};
use crate::{output, progress};

/// Bytes of a new log.
const SIZE: u64 = 64 << 20;
/// Bytes that the log has for each file with writes in it.
const PER_FILE: u64 = 8 << 10;

/// An open log, and what is known of it.
pub(super) struct Log {
    pub(super) cache: WriteCache,
    pub(super) facts: Facts,
}

/// What a report says of a log.
pub(super) struct Facts {
    path: PathBuf,
    medium: MediumKind,
    durable: bool,
    durability: Durability,
    replayed: u64,
    files: u64,
}

/// Opens the log that was named, or makes it; what an earlier run left in it is in the files then.
pub(super) fn open(args: &BoostLog, launch: &Launch) -> Result<Log> {
    let Some(named) = &args.log else {
        return Err(Failure::usage(
            "--mode boost needs a log: name one with --log PATH, on persistent memory or on a disk that is faster than that \
             of the files",
        ));
    };
    let path = resolved(named)?;
    if launch.manages(&path).map_err(|error| Failure::usage(error.to_string()))? {
        let what = "--match chooses the log itself; put the log elsewhere, choose fewer files, or leave --match out, which \
                    chooses all but the log";
        return Err(Failure::usage_at(&path, what));
    }
    let medium = medium(&path)?;
    let cache = open_or_create(&options(args)?, &path)?;
    let info = cache.info()?;
    let settled = |what: &str| {
        let ways = "leave the option out, or remove the log once `untorn log info` says that it is empty";
        Failure::usage_at(&path, format!("{what}; {ways}"))
    };
    if args.entry_size.is_some_and(|wanted| wanted != u64::from(info.entry_size)) {
        return Err(settled(&format!("the log was made with --entry-size {}", info.entry_size)));
    }
    if let Some(wanted) = args.log_size {
        // A log has as many whole entries as fit into the size that it was made with.
        let len = std::fs::metadata(&path).map_err(|error| Failure::io_at("examine", &path, &error))?.len();
        if wanted.checked_sub(len).is_none_or(|rest| rest > 2 * u64::from(info.entry_size)) {
            return Err(settled(&format!("the log was made with {len} bytes, and keeps its size")));
        }
    }
    let replayed = cache.replayed();
    let facts = Facts {
        path,
        medium: medium.medium,
        durable: medium.durable,
        durability: info.durability,
        replayed: replayed.operations,
        files: replayed.files.len() as u64,
    };
    Ok(Log { cache, facts })
}

fn options(args: &BoostLog) -> Result<CacheOptions> {
    let size = args.log_size.unwrap_or(SIZE);
    // An eighth of a small log may go to the names of files.
    let files = u32::try_from(size / 8 / PER_FILE).unwrap_or(u32::MAX).clamp(16, 1024);
    let mut options = CacheOptions::new().size(size).max_files(files).shared(true).progress(progress::function());
    if let Some(bytes) = args.entry_size {
        let bytes = u32::try_from(bytes).map_err(|_| Failure::usage("--entry-size: 1M is the most"))?;
        options = options.entry_size(bytes);
    }
    if let Some(durable) = args.durability {
        options = options.durability(durable.into());
    }
    if let Some(min) = args.batch_min {
        options = options.batch_min(min);
    }
    if let Some(max) = args.batch_max {
        options = options.batch_max(max);
    }
    Ok(options)
}

/// Where the log is, or is going to be, as the kernel knows it.
fn resolved(named: &Path) -> Result<PathBuf> {
    match named.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(name) = named.file_name() else {
                return Err(Failure::usage_at(named, "this is no name for a log"));
            };
            let dir = named.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
            let dir =
                dir.canonicalize().map_err(|error| Failure::io_at("find the directory of the log", dir, &error))?;
            Ok(dir.join(name))
        }
        Err(error) => Err(Failure::io_at("find the log", named, &error)),
    }
}

/// What the log is on, or is going to be on.
///
/// # Errors
/// Usage, for a medium that forgets: a program's syncs would promise less than without untorn.
fn medium(path: &Path) -> Result<Diagnosis> {
    let examined = if path.exists() { path } else { path.parent().unwrap_or(path) };
    let found = untorn::doctor(examined)?;
    if found.durable || found.medium == MediumKind::AssumedPmem {
        return Ok(found);
    }
    let what = "a log here does not survive a power cut, and with it would go what programs synced to files that do (`untorn \
                doctor` has the reasons); put it on a disk or on persistent memory, or, for tests and benchmarks, set \
                UNTORN_ASSUME_PMEM=1";
    Err(Failure::usage_at(path, what))
}

fn open_or_create(options: &CacheOptions, path: &Path) -> Result<WriteCache> {
    let is = |error: &Error, kind| matches!(error, Error::Io { source, .. } if source.kind() == kind);
    let opened = match patiently(path, || options.open(path)) {
        Err(error) if is(&error, io::ErrorKind::NotFound) => match options.create(path) {
            // Another run was faster.
            Err(error) if is(&error, io::ErrorKind::AlreadyExists) => options.open(path),
            created => created,
        },
        opened => opened,
    };
    opened.map_err(|error| match error {
        Error::InUse { .. } => in_use(path, error),
        other => other.into(),
    })
}

/// How long a log is waited for that nobody serves a run with.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a log that may be in use by programs of a run that was killed, which end by their next write: not for a log that serves a run.
pub(super) fn patiently<T>(path: &Path, open: impl Fn() -> untorn::Result<T>) -> untorn::Result<T> {
    let start = Instant::now();
    loop {
        match open() {
            Err(Error::InUse { .. }) if start.elapsed() < PATIENCE && holders(path).is_empty() => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Whose log it is, as far as this process may look.
fn in_use(path: &Path, error: Error) -> Failure {
    let mut failure = Failure::from(error);
    let mut holders = holders(path);
    if holders.is_empty() {
        holders = left_over(path);
    }
    let holders = holders.join(", ");
    let by = if holders.is_empty() { "another process, or one that has just ended".to_owned() } else { holders };
    failure.message = format!(
        "{} is in use by {by}: a log serves one run at a time; wait until that has ended, or give this run a log of its own",
        path.display()
    );
    failure
}

fn holders(path: &Path) -> Vec<String> {
    let Ok(log) = std::fs::metadata(path) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_process {
            continue;
        }
        // Of another user's process they cannot be read.
        let descriptors = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let has = descriptors
            .filter_map(|descriptor| std::fs::metadata(descriptor.path()).ok())
            .any(|file| (file.dev(), file.ino()) == (log.dev(), log.ino()));
        if has {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(format!("process {} ({})", entry.file_name().display(), name.trim()));
        }
    }
    found
}

/// Programs of a run that was killed, which have its log in their memory still, as far as this process may look.
fn left_over(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let maps = std::fs::read_to_string(entry.path().join("maps")).unwrap_or_default();
        if maps.lines().any(|line| line.split_whitespace().nth(5).is_some_and(|mapped| Path::new(mapped) == path)) {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let process = entry.file_name();
            found.push(format!("process {} ({}), of a run that was killed", process.display(), name.trim()));
        }
    }
    found
}

impl Facts {
    /// For `--json`.
    pub(super) fn object(&self) -> Value {
        json!({
            "path": self.path.display().to_string(),
            "medium": self.medium.as_str(),
            "durable": self.durable,
            "durability": self.word(),
            "replayed": { "operations": self.replayed, "files": self.files },
        })
    }

    fn word(&self) -> &'static str {
        match self.durability {
            Durability::PerWrite => "write",
            Durability::PerCommit => "fsync",
        }
    }

    /// For a person.
    pub(super) fn words(&self) -> String {
        let when = match self.durability {
            Durability::PerWrite => "each write when its call returned",
            Durability::PerCommit => "what was written when fsync returned",
        };
        let against = if self.durable { "durable" } else { "safe from kills, NOT DURABLE in a power cut" };
        let mut text = format!("untorn: log {}: {against}, {when}\n", self.path.display());
        if self.replayed > 0 {
            let operations = output::count(self.replayed, "operation", "operations");
            let files = output::count(self.files, "file", "files");
            // A String takes whatever is written to it.
            let _ = writeln!(text, "  replayed before the program ran: {operations} of {files}");
        }
        text
    }
}
