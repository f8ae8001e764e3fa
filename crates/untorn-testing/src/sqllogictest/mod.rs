//! Scripts of sqllogictest on SQLite with the VFS `untorn`.
//!
//! Each script has a database of its own, and each of its connections is a process of its own. The dialect is that of
//! SQLite's program of that name: a result has one value a line, more than 8 values are hashed, and values compare byte
//! by byte. A script may begin with `control resultmode rowwise` and `hash-threshold 0`. The records `include`,
//! `system` and `let` are not run: each is a failure.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

mod script;
mod session;

/// The name of the engine in `skipif` and `onlyif`.
const LABEL: &str = "sqlite";

/// How a script's database is opened.
#[derive(Debug, Clone)]
pub struct Engine {
    /// A Python whose SQLite loads extensions.
    pub python: PathBuf,
    /// The extension with the VFS; without it, databases are opened with the VFS `unix`.
    pub library: Option<PathBuf>,
}

/// The result of one script, or of all.
#[derive(Debug, Default)]
pub struct Report {
    /// Scripts that ran.
    pub scripts: usize,
    /// Statements and queries that ran.
    pub records: usize,
    /// Those for other engines.
    pub skipped: usize,
    /// The differences, each with its file and line. After ten of a script only their number is told.
    pub failures: Vec<String>,
}

/// Runs every script (`*.test`, `*.slt`) below a directory, and calls `told` after each with its result.
///
/// # Errors
/// Those of the file system, and a directory without a script or a record.
pub fn run(engine: &Engine, directory: &Path, mut told: impl FnMut(&Path, &Report)) -> io::Result<Report> {
    let mut scripts = Vec::new();
    collect(directory, &mut scripts)?;
    let refused = |what| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{}: no script (*.test, *.slt) {what}", directory.display()),
        )
    };
    if scripts.is_empty() {
        return Err(refused("is there".to_owned()));
    }
    scripts.sort();
    let mut all = Report::default();
    for path in scripts {
        let one = script::run(engine, &path)?;
        told(&path, &one);
        all.scripts += one.scripts;
        all.records += one.records;
        all.skipped += one.skipped;
        all.failures.extend(one.failures);
    }
    if all.records == 0 && all.failures.is_empty() {
        return Err(refused(format!("has a record for the engine {LABEL}")));
    }
    Ok(all)
}

fn collect(directory: &Path, scripts: &mut Vec<PathBuf>) -> io::Result<()> {
    let named = |error| io::Error::other(format!("{}: {error}", directory.display()));
    for entry in fs::read_dir(directory).map_err(named)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, scripts)?;
        } else if path.extension().is_some_and(|extension| extension == "test" || extension == "slt") {
            scripts.push(path);
        }
    }
    Ok(())
}
