//! What `xFileControl` answers, and what the environment of a program chooses.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use untorn_testing::programs::{succeed, text};

use crate::library;

/// The program of the controls; `None` if this machine cannot compile it.
fn program(dir: &Path) -> Option<PathBuf> {
    if let Some(lack) = untorn_testing::skips::lacks(&["cc"]) {
        untorn_testing::skipped!("{lack}");
        return None;
    }
    if !Path::new("/usr/include/sqlite3.h").exists() {
        untorn_testing::skipped!("SQLite's header sqlite3.h is missing; it is in the package libsqlite3-dev");
        return None;
    }
    let made = dir.join("controls");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sqlite/programs/controls.c");
    succeed(Command::new("cc").args(["-O1", "-w", "-o"]).arg(&made).args([source, "-lsqlite3"]));
    Some(made)
}

#[test]
fn file_controls_answer_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = program(dir.path()) else { return };
    let output = Command::new(program).arg(library()).arg("codes").arg(dir.path()).output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("done\n".to_owned(), String::new()));
}

/// A program with more rights than its user takes nothing from that user's environment.
#[test]
fn a_setuid_program_ignores_the_environment() {
    untorn_testing::needs!("root");
    const USER: u32 = 65534;
    // Its user has to reach the program and the library.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let Some(program) = program(dir.path()) else { return };
    let copy = dir.path().join("libuntorn_sqlite.so");
    fs::copy(library().with_extension("so"), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let default = || {
        let mut command = Command::new(&program);
        command.arg(copy.with_extension("")).arg("default").arg(dir.path()).env("SQLITE_UNTORN_DEFAULT", "1");
        let output = command.uid(USER).gid(USER).output().unwrap();
        let name = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for left in ["default.db", ".untorn"].map(|name| dir.path().join(name)) {
            let _ = fs::remove_file(&left).or_else(|_| fs::remove_dir_all(&left));
        }
        name.trim().to_owned()
    };
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(default(), "untorn", "without more rights the variable counts");
    chown(&program, Some(0), Some(0)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    if rustix::fs::statvfs(dir.path()).is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID)) {
        untorn_testing::skip!("the directory for temporary files is mounted with nosuid");
    }
    assert_eq!(default(), "unix");
}
