//! Calls that fail: each of the VFS, and each system call below it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use untorn_testing::programs::{succeed, text};

use crate::library;

/// The program of the faults; `None` if this machine cannot compile it.
fn program(dir: &Path) -> Option<PathBuf> {
    if let Some(lack) = untorn_testing::skips::lacks(&["cc"]) {
        untorn_testing::skipped!("{lack}");
        return None;
    }
    if !Path::new("/usr/include/sqlite3.h").exists() {
        untorn_testing::skipped!("SQLite's header sqlite3.h is missing; it is in the package libsqlite3-dev");
        return None;
    }
    let made = dir.join("faults");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sqlite/programs/faults.c");
    succeed(Command::new("cc").args(["-O1", "-w", "-o"]).arg(&made).args([source, "-lsqlite3"]));
    Some(made)
}

/// A directory in memory, if there is one: the flushes of thousands of runs take long on a disk.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Runs a workload in which another call fails each time.
fn runs(program: &Path, dir: &Path, [level, mode, roles]: [&str; 3], (from, stride): (usize, usize)) -> Output {
    let mut command = Command::new(program);
    command.arg(library()).arg(dir).args([level, mode, &from.to_string(), &stride.to_string()]);
    command.arg(roles).output().unwrap()
}

/// Nothing acknowledged is lost, no transaction is half there, and the next connection works.
fn fail(level: &str, (short, long): (usize, usize)) {
    let dir = directory();
    let Some(program) = program(dir.path()) else { return };
    let (stride, roles) = untorn_testing::cases((short, "one"), (long, "all"));
    for (number, mode) in ["default", "memory", "delete", "off", "wal", "attached"].into_iter().enumerate() {
        // Other calls in each mode, since many are the same.
        let output = runs(&program, dir.path(), [level, mode, roles], (1 + number * 7 % stride, stride));
        let said = text(&output.stdout);
        assert!(output.status.success(), "{level}, {mode}:\n{said}{}", text(&output.stderr));
        println!("{level}, {mode}: {}", said.trim());
    }
}

#[test]
fn any_call_of_the_vfs_may_fail() {
    fail("vfs", (61, 2));
}

#[test]
fn any_system_call_below_the_vfs_may_fail() {
    fail("system", (151, 5));
}

#[test]
fn a_program_that_trusts_an_unfinished_commit_is_convicted() {
    let dir = directory();
    let Some(program) = program(dir.path()) else { return };
    let output = runs(&program, dir.path(), ["canary", "default", "one"], (1, 13));
    let said = text(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("acknowledged, and is lost"), "{said}");
}
