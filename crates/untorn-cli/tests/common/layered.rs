//! Running unmodified programs under `untorn run`, and bare.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;
use untorn_testing::programs::assert_same_as_bare;
pub use untorn_testing::programs::{files, succeed, text};
use untorn_testing::{built, built_oracle};

use super::UNTORN;

/// The layer.
pub fn layer() -> &'static Path {
    static LAYER: OnceLock<PathBuf> = OnceLock::new();
    LAYER.get_or_init(|| built().join("libuntorn_preload.so"))
}

/// The tool, with options for a run in a directory; the program comes next.
pub fn run_in(dir: &Path, layer: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(UNTORN);
    command.current_dir(dir).arg("run").args(options).arg("--layer").arg(layer).arg("--");
    command
}

/// A program under untorn, in a directory, with the files managed that end in `.managed`, and those of a repository.
pub fn under(dir: &Path, layer: &Path, program: &[&OsStr]) -> Command {
    let mut command = run_in(dir, layer, &["--mode", "atomic", "--match", "*.managed", "--match", "repository/**"]);
    command.args(program).stdin(Stdio::null());
    command
}

/// The line of a run about a managed file of which it discarded one epoch of a killed process.
pub fn discarded(dir: &Path, file: &str) -> String {
    let path = dir.canonicalize().unwrap().join(file);
    let path = path.display();
    format!("untorn: {path}: 1 epoch of killed processes discarded; the file is at the last commit before\n")
}

/// Runs a program under untorn in a directory of its own, and asserts how it ends, and that it says nothing on standard
/// error but which files lost an epoch, if it is killed. The directory.
#[track_caller]
pub fn ended(program: &[&OsStr], code: i32) -> TempDir {
    let at = tempfile::tempdir().unwrap();
    let output = under(at.path(), layer(), program).output().unwrap();
    let said = text(&output.stderr);
    let end = discarded(at.path(), "");
    let is_told = |line: &str| {
        let (before, after) = end.trim_end().split_at(end.find(": 1 epoch").unwrap());
        code == 137 && line.starts_with(before) && line.ends_with(after)
    };
    assert_eq!(output.status.code(), Some(code), "{program:?}: {said}");
    assert!(said.lines().all(is_told), "{program:?}: {said}");
    at
}

/// Asserts that a directory has these files, with these texts, and that no sidecar was left behind.
#[track_caller]
pub fn assert_left(dir: &Path, expected: &[(&str, &str)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.as_bytes().to_vec())).collect();
    assert_eq!(files(dir), expected);
    assert_eq!(fs::read_dir(dir).unwrap().count(), expected.len(), "a sidecar was left behind");
}

/// Runs a program bare and under untorn, each in a directory of its own, and compares all that can be seen of it.
/// Nothing may slip past the layer.
#[track_caller]
pub fn same_as_bare(program: &[&OsStr]) {
    let [bare, managed, reports] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let mut command = under(managed.path(), built_oracle(), program);
    assert_same_as_bare(program, bare.path(), &mut command, &reports.path().join("escapes"));
}

/// The same of a script.
#[track_caller]
pub fn shell(script: &str) {
    same_as_bare(&["sh".as_ref(), "-ec".as_ref(), script.as_ref()]);
}

/// The tool, with `options` for a run, as one who is not root runs it in the directory `at` of `dir`, which everybody
/// may write to.
pub fn by_nobody(dir: &Path, options: &[&str]) -> Command {
    let at = dir.join("at");
    if !at.exists() {
        fs::create_dir(&at).unwrap();
        for directory in [dir, &at] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
        }
    }
    // Where another user can reach them.
    let (untorn, copy) = (dir.join("untorn"), dir.join("layer.so"));
    if !untorn.exists() {
        // Copied by another process: were it open for writing in this one, a child that another test forks at that
        // moment would hold it open, too, and it could not be run (ETXTBSY).
        succeed(Command::new("cp").arg("-p").arg(UNTORN).arg(&untorn));
        succeed(Command::new("cp").arg("-p").arg(layer()).arg(&copy));
    }
    let root = text(&succeed(Command::new("id").arg("-u")).stdout).trim() == "0";
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = if root { Command::new("setpriv") } else { Command::new("env") };
    command.args(nobody.iter().filter(|_| root)).arg(&untorn).arg("run").args(options).arg("--layer").arg(&copy);
    command.current_dir(&at).env("TMPDIR", dir);
    command
}
