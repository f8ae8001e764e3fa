//! The log of `run` and `mount`: opened or created, and checked before a program depends on it.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use untorn::report::Diagnosis;
use untorn::testing::storage::MediumKind;
use untorn::write_cache::{CacheOptions, WriteCache, inspect_log};
use untorn::{Durability, Error};

use crate::cli::{RunLog, RunMode};
use crate::exit::{Failure, Result};
use crate::{output, progress};

/// Bytes of a new log.
const SIZE: u64 = 64 << 20;
/// Log bytes per file with writes in it.
const PER_FILE: u64 = 8 << 10;
/// About the log bytes per entry.
const PER_ENTRY: u64 = 4096;
/// Files that may have writes in the log at a time.
const MOST_FILES: u32 = 8192;
/// How long the log waits for more writes. Its bytes are as safe as those of the files, and many of them never have to
/// be written there: programs remove them or write them again.
const AGE: Duration = Duration::from_secs(1);

/// An open log, and facts about it for the report.
pub(super) struct Log {
    pub(super) cache: WriteCache,
    pub(super) facts: Facts,
}

/// The facts that a report gives about a log.
pub(super) struct Facts {
    pub(super) path: PathBuf,
    medium: MediumKind,
    durable: bool,
    durability: Durability,
    replayed: u64,
    files: u64,
}

/// Opens or creates a log of a run. Writes left in it by an earlier run are replayed to the files.
pub(super) fn open(args: &RunLog, path: &Path) -> Result<Log> {
    let path = path.to_owned();
    let medium = medium(&path)?;
    let cache = open_or_create(&options(args)?, &path)?;
    let info = cache.info()?;
    if args.entry_size.is_some_and(|wanted| wanted != u64::from(info.entry_size)) {
        let what = format!("--entry-size differs: the log was created with --entry-size {}", info.entry_size);
        return Err(settled(&path, &what));
    }
    if let Some(wanted) = args.log_size {
        check_size(&path, wanted, info.entry_size)?;
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

/// Refuses a size that an existing log does not have.
pub(super) fn check_size(path: &Path, wanted: u64, entry_size: u32) -> Result<()> {
    // A log holds as many whole entries as fit into the size that it was created with.
    let len = std::fs::metadata(path).map_err(|error| Failure::io_at("examine", path, &error))?.len();
    if wanted.checked_sub(len).is_none_or(|rest| rest > 2 * u64::from(entry_size)) {
        let what = format!("--log-size differs: the log was created with {len} bytes, and its size is fixed");
        return Err(settled(path, &what));
    }
    Ok(())
}

/// The error of an option that an existing log does not have.
fn settled(path: &Path, what: &str) -> Failure {
    let ways = "omit the option, or remove the log after `untorn log info` reports it as empty";
    Failure::usage_at(path, format!("{what}; {ways}"))
}

/// How to create and open a log of this size.
pub(super) fn new_log(size: Option<u64>) -> CacheOptions {
    let size = size.unwrap_or(SIZE);
    // File names may take an eighth of the log.
    let files = u32::try_from(size / 8 / PER_FILE).unwrap_or(u32::MAX).clamp(16, MOST_FILES);
    let options = CacheOptions::new().size(size).max_files(files).progress(progress::function());
    options.batch_min((size / PER_ENTRY / 8).max(1000)).max_age(AGE)
}

fn options(args: &RunLog) -> Result<CacheOptions> {
    let mut options = new_log(args.log_size);
    if let Some(bytes) = args.entry_size {
        let bytes = u32::try_from(bytes).map_err(|_| Failure::usage("--entry-size is too large: the maximum is 1M"))?;
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

/// The log's canonical path, also if the log does not exist yet. A symbolic link that it names itself is kept.
pub(super) fn resolved(named: &Path) -> Result<PathBuf> {
    match named.canonicalize() {
        Ok(path) if !named.is_symlink() => Ok(path),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::io_at("find the log", named, &error)),
        _ => {
            let Some(name) = named.file_name() else {
                return Err(Failure::usage_at(named, "not a file name; --log takes the path of a file"));
            };
            let dir = named.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
            let dir =
                dir.canonicalize().map_err(|error| Failure::io_at("find the directory of the log", dir, &error))?;
            Ok(dir.join(name))
        }
    }
}

/// The medium the log is on, or will be created on.
///
/// # Errors
/// Usage, for a volatile medium: the program's syncs would promise less than without untorn.
pub(super) fn medium(path: &Path) -> Result<Diagnosis> {
    let examined = if path.exists() { path } else { path.parent().unwrap_or(path) };
    let found = untorn::doctor(examined)?;
    if found.durable || found.medium == MediumKind::AssumedPmem {
        return Ok(found);
    }
    let what = "a log on this medium does not survive a power cut, so the program's synced writes would be lost \
                (`untorn \
                doctor` shows the reasons); put the log on a disk or on persistent memory, or set \
                UNTORN_ASSUME_PMEM=1 for tests and benchmarks";
    Err(Failure::usage_at(path, what))
}

fn open_or_create(options: &CacheOptions, path: &Path) -> Result<WriteCache> {
    let is = |error: &Error, kind| matches!(error, Error::Io { source, .. } if source.kind() == kind);
    let opened = match patiently(path, || options.open(path)) {
        Err(error) if is(&error, io::ErrorKind::NotFound) => match options.create(path) {
            // Another run created it in the meantime.
            Err(error) if is(&error, io::ErrorKind::AlreadyExists) => options.open(path),
            created => created,
        },
        opened => opened,
    };
    opened.map_err(|error| match error {
        Error::InUse { .. } => in_use(path, error, ", or give this run another --log"),
        other => other.into(),
    })
}

/// Refuses a log that [`open`] would refuse. A log that is not there would be made. Nothing is replayed or stored.
pub(super) fn rehearse(path: &Path) -> Result<()> {
    medium(path)?;
    match patiently(path, || inspect_log(path)) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error @ Error::InUse { .. }) => Err(in_use(path, error, "")),
        looked => Ok(looked.map(drop)?),
    }
}

/// How long to wait for a log that is in use but serves no run.
const LOG_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a log, waiting for programs left over from a killed run: they end at their next write. Does not wait for a log
/// that serves a run.
pub(super) fn patiently<T>(path: &Path, open: impl Fn() -> untorn::Result<T>) -> untorn::Result<T> {
    let start = Instant::now();
    loop {
        match open() {
            Err(Error::InUse { .. }) if start.elapsed() < LOG_RELEASE_TIMEOUT && holders(path).is_empty() => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// The error for a log in use. It names the processes that use it, as far as /proc shows them. `instead` is what else
/// than waiting helps.
pub(super) fn in_use(path: &Path, error: Error, instead: &str) -> Failure {
    let mut failure = Failure::from(error);
    let mut holders = holders(path);
    if holders.is_empty() {
        holders = left_over(path);
    }
    let holders = holders.join(", ");
    let by = if holders.is_empty() { "another process, or one that has just exited".to_owned() } else { holders };
    failure.message = format!(
        "{} is in use by {by}: a log serves one run or mount at a time; wait until it exits{instead}",
        path.display()
    );
    failure
}

/// Processes that have a log open, as far as `/proc` shows them. Everything comes from the names of links: following a
/// link of a process that uses a mount would ask the mount's server, which this process may be.
fn holders(path: &Path) -> Vec<String> {
    // The log may be named through a link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_process {
            continue;
        }
        // Another user's descriptors cannot be read.
        let mut descriptors = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        if descriptors.any(|descriptor| std::fs::read_link(descriptor.path()).is_ok_and(|file| file == path)) {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(format!("process {} ({})", entry.file_name().display(), name.trim()));
        }
    }
    found
}

/// Programs left over from a killed run that still map its log, as far as /proc shows them.
fn left_over(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let maps = std::fs::read_to_string(entry.path().join("maps")).unwrap_or_default();
        if maps.lines().any(|line| line.split_whitespace().nth(5).is_some_and(|mapped| Path::new(mapped) == path)) {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let process = entry.file_name();
            found.push(format!("process {} ({}), left over from a killed run", process.display(), name.trim()));
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

    /// The text form.
    pub(super) fn words(&self, mode: RunMode) -> String {
        let when = match (mode, self.durability) {
            (RunMode::Atomic, _) => "all changes of a file together, when fsync returns",
            (RunMode::Boost, Durability::PerWrite) => "each write when its call returns",
            (RunMode::Boost, Durability::PerCommit) => "writes when fsync returns",
        };
        let against = if self.durable { "durable" } else { "survives kills, but NOT DURABLE in a power cut" };
        let mut text = format!("untorn: log {}: {against}, {when}\n", self.path.display());
        if self.replayed > 0 {
            let operations = output::count(self.replayed, "operation", "operations");
            let files = output::count(self.files, "file", "files");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  replayed before the program started: {operations} to {files}");
        }
        text
    }
}
