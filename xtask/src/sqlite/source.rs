//! Programs of SQLite's source tree, built with that SQLite and run on the VFS.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::missing;
use crate::programs::quiet;

/// What was built from the source.
pub(super) struct Built {
    /// A shared library of SQLite that drops the journal if a VFS writes in atomic batches.
    pub(super) batch_atomic: PathBuf,
    mptest: PathBuf,
    threadtest: PathBuf,
}

/// Loads the extension whenever SQLite starts, so that programs which know nothing of it can use the VFS.
const START: &str = r#"
#include "sqlite3.h"
#include <stdio.h>
#include <stdlib.h>
int load_untorn(const char *unused) {
    sqlite3 *db;
    char *message = 0;
    int code = sqlite3_open(":memory:", &db);
    (void)unused;
    if (code == SQLITE_OK) code = sqlite3_enable_load_extension(db, 1);
    if (code == SQLITE_OK) code = sqlite3_load_extension(db, getenv("UNTORN_SQLITE"), 0, &message);
    if (message) fprintf(stderr, "%s\n", message);
    sqlite3_close(db);
    return code;
}
"#;

/// All tests of threadtest3 but walthread2, which takes the directory with the journal's name for a journal.
const THREAD_TESTS: [&str; 14] = [
    "walthread1",
    "walthread3",
    "walthread4",
    "walthread5",
    "cgt_pager_1",
    "dynamic_triggers",
    "checkpoint_starvation_1",
    "checkpoint_starvation_2",
    "create_drop_index_1",
    "lookaside1",
    "vacuum1",
    "stress1",
    "stress2",
    "shared1",
];

fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.output().map_err(|error| missing(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))))
}

/// Builds the amalgamation, a shared library of it, mptest and threadtest3, unless they are there.
pub(super) fn build(source: &Path, into: &Path) -> io::Result<Built> {
    let source = source.canonicalize()?;
    fs::create_dir_all(into)?;
    let into = into.canonicalize()?;
    let at = |name: &str| into.join(name);
    if !at("sqlite3.c").exists() {
        println!("building SQLite from {}", source.display());
        succeed(quiet("sh").current_dir(&into).arg(source.join("configure")).arg("--quiet"))?;
        succeed(quiet("make").current_dir(&into).args(["--silent", "sqlite3.c"]))?;
    }
    let cc = || {
        let mut cc = quiet("cc");
        cc.current_dir(&into).args(["-O1", "-I."]);
        cc
    };
    let made = Built { batch_atomic: at("libsqlite3.so.0"), mptest: at("mptest"), threadtest: at("threadtest3") };
    if !made.batch_atomic.exists() {
        let options = ["-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE", "-DSQLITE_ENABLE_COLUMN_METADATA"];
        succeed(cc().args(["-shared", "-fPIC"]).args(options).args(["-o", "made", "sqlite3.c", "-lm"]))?;
        fs::rename(at("made"), &made.batch_atomic)?;
    }
    fs::write(at("start.c"), START)?;
    if !at("sqlite3.o").exists() {
        let options = ["-DSQLITE_EXTRA_INIT=load_untorn", "-c", "-o", "made", "sqlite3.c"];
        succeed(cc().args(options))?;
        fs::rename(at("made"), at("sqlite3.o"))?;
    }
    let programs =
        [(&made.mptest, &["mptest/mptest.c"][..]), (&made.threadtest, &["test/threadtest3.c", "src/test_multiplex.c"])];
    for (program, sources) in programs {
        if !program.exists() {
            let mut cc = cc();
            cc.arg("-w").args(["test", "src"].map(|room| format!("-I{}", source.join(room).display())));
            cc.arg("-o").arg(program).args(sources.iter().map(|file| source.join(file)));
            succeed(cc.args(["sqlite3.o", "start.c", "-lpthread", "-ldl", "-lm"]))?;
        }
    }
    Ok(made)
}

/// Fails unless a Python uses this build in place of its own SQLite.
pub(super) fn require_batch_atomic(python: &Path, library: &Path) -> io::Result<()> {
    let test = "import sqlite3; print(*sqlite3.connect(':memory:').execute('PRAGMA compile_options'))";
    let output = Command::new(python).args(["-c", test]).env("LD_PRELOAD", library).output()?;
    if String::from_utf8_lossy(&output.stdout).contains("ENABLE_BATCH_ATOMIC_WRITE") {
        return Ok(());
    }
    Err(missing(format!("{} has a SQLite of its own, which no other build replaces", python.display())))
}

/// Runs mptest and threadtest3 on the VFS. Returns whether all passed.
pub(super) fn run(built: &Built, source: &Path, library: &Path, at: &Path) -> io::Result<bool> {
    let mut all = true;
    for script in ["config01.test", "config02.test", "crash01.test", "multiwrite01.test"] {
        let start = Instant::now();
        let at = at.join("mptest");
        fs::create_dir_all(&at)?;
        let mut mptest = quiet("timeout");
        mptest
            .current_dir(&at)
            .arg("600")
            .arg(&built.mptest)
            .args(["test.db"])
            .arg(source.canonicalize()?.join("mptest").join(script));
        mptest.args(["--vfs", "untorn", "--timeout", "60000"]).env("UNTORN_SQLITE", library).stderr(Stdio::inherit());
        let output = mptest.output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = said.lines().rev().find(|line| line.contains("Summary:")).unwrap_or("no summary").to_owned();
        let passed = output.status.success() && last.contains("Summary: 0 errors");
        println!("mptest {script}: {} in {:.0} s: {last}", verdict(passed), start.elapsed().as_secs_f64());
        if !passed {
            print!("{said}");
        }
        all &= passed;
        fs::remove_dir_all(&at)?;
    }
    let start = Instant::now();
    let at = at.join("threadtest3");
    fs::create_dir_all(&at)?;
    let mut threads = quiet("timeout");
    threads.current_dir(&at).arg("1200").arg(&built.threadtest).args(THREAD_TESTS).stderr(Stdio::inherit());
    let output = threads.env("UNTORN_SQLITE", library).env("SQLITE_UNTORN_DEFAULT", "1").output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("threadtest3: {} in {:.0} s", verdict(output.status.success()), start.elapsed().as_secs_f64());
    if !output.status.success() {
        print!("{said}");
    }
    Ok(all & output.status.success())
}

fn verdict(passed: bool) -> &'static str {
    if passed { "passed" } else { "FAILED" }
}
