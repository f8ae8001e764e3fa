//! Running unmodified programs under `untorn run`, and bare.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use untorn_testing::{built, built_oracle};

use super::UNTORN;

/// The layer.
pub fn layer() -> &'static Path {
    static LAYER: OnceLock<PathBuf> = OnceLock::new();
    LAYER.get_or_init(|| built().join("libuntorn_preload.so"))
}

/// A program under untorn, in a directory, with the files managed that end in `.managed`, and those of a repository.
pub fn under(dir: &Path, layer: &Path, program: &[&OsStr]) -> Command {
    let mut command = Command::new(UNTORN);
    command.current_dir(dir).args([
        "run",
        "--mode",
        "atomic",
        "--match",
        "*.managed",
        "--match",
        "repository/**",
        "--layer",
    ]);
    command.arg(layer).arg("--");
    command.args(program).stdin(Stdio::null());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Compiles a program of `tests/programs`.
pub fn compile(name: &str, dir: &Path, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let program = dir.join(name.trim_end_matches(".c"));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    succeed(cc.args(options).args(["-w", "-pthread", "-o"]).arg(&program).arg(source));
    program
}

/// The files in a directory, by name.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// Runs a program bare and under untorn, each in a directory of its own, and compares all that can be seen of it.
/// Nothing may slip past the layer.
#[track_caller]
pub fn same_as_bare(program: &[&OsStr]) {
    let (bare, managed, reports) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let report = reports.path().join("escapes");
    let expected =
        Command::new(program[0]).args(&program[1..]).current_dir(bare.path()).stdin(Stdio::null()).output().unwrap();
    let found = under(managed.path(), built_oracle(), program).env("UNTORN_PRELOAD_ORACLE", &report).output().unwrap();
    assert_eq!(text(&found.stdout), text(&expected.stdout));
    assert_eq!(text(&found.stderr), text(&expected.stderr));
    assert_eq!(found.status.code(), expected.status.code());
    let (found, expected) = (files(managed.path()), files(bare.path()));
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        assert!(found == expected, "{name} differs: {} bytes, {} bare", found.len(), expected.len());
    }
    if cfg!(target_arch = "x86_64") {
        assert_eq!(fs::read_to_string(&report).unwrap_or_default(), "", "slipped past the layer");
    }
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
