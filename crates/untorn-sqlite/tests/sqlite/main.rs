//! Programs that use SQLite with the VFS, through Python's own module `sqlite3`.

mod abi;
mod controls;
#[cfg(target_arch = "x86_64")]
mod faults;
mod processes;
mod read_only;
mod redundancy;
mod sql;
mod sqllogictest;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A Python whose SQLite loads extensions; not every build's does.
fn python() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let able = |python: &PathBuf| {
            let test = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
            Command::new(python).args(["-c", test]).output().is_ok_and(|output| output.status.success())
        };
        [PathBuf::from("python3"), PathBuf::from("/usr/bin/python3")].into_iter().find(able)
    });
    found.as_deref()
}

fn library() -> PathBuf {
    untorn_testing::built().join("libuntorn_sqlite")
}

/// Work of `work.py`; `None` if no Python can do it.
fn work(arguments: &[&dyn AsRef<OsStr>]) -> Option<Command> {
    let Some(python) = python() else {
        untorn_testing::skipped!("no Python has a SQLite that loads extensions");
        return None;
    };
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sqlite/work.py")).arg(library());
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    Some(command)
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Runs statements in a connection of their own, and returns what they print.
fn sql(path: &Path, parameters: &str, texts: &[&str]) -> Option<Vec<String>> {
    let mut arguments: Vec<&dyn AsRef<OsStr>> = vec![&"sql", &path, &parameters];
    arguments.extend(texts.iter().map(|text| text as &dyn AsRef<OsStr>));
    let output = work(&arguments)?.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(lines(&output))
}

/// Runs one statement in a stock SQLite; what it prints, or its error.
fn stock(path: &Path, text: &str) -> Result<String, String> {
    let program =
        "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1], timeout=0).execute(sys.argv[2]).fetchone())";
    let output = Command::new(python().unwrap()).args(["-c", program]).arg(path).arg(text).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(said(&output.stdout))
    } else {
        Err(said(&output.stderr).lines().last().unwrap_or_default().to_owned())
    }
}
