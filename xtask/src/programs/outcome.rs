//! One run of one program, and the differences between two runs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::catalogue::Program;
use super::{Built, quiet};
use crate::mounted::{Mount, Mounted};

/// The mode in which to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Bare,
    /// With SQLite's VFS `untorn`, which the program loads.
    Vfs,
    /// Under `untorn run`.
    Atomic,
    Boost,
    /// In a directory that `untorn mount` serves.
    MountAtomic,
    MountBoost,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Bare => "bare",
            Mode::Vfs => "the VFS",
            Mode::Atomic => "atomic",
            Mode::Boost => "boost",
            Mode::MountAtomic => "mount atomic",
            Mode::MountBoost => "mount boost",
        }
    }

    /// The mode's name for `untorn mount`, if that serves the directory.
    fn mount(self) -> Option<&'static str> {
        match self {
            Mode::MountAtomic => Some("atomic"),
            Mode::MountBoost => Some("boost"),
            Mode::Bare | Mode::Vfs | Mode::Atomic | Mode::Boost => None,
        }
    }
}

/// An entry of a directory.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    File(u32, Vec<u8>),
    Link(PathBuf),
    Other,
}

/// A program's output, exit code and files.
pub(super) struct Outcome {
    code: Option<i32>,
    out: String,
    err: String,
    files: BTreeMap<PathBuf, Entry>,
    /// The report of `untorn run --json`.
    report: Value,
    pub(super) seconds: f64,
}

/// A program that takes longer than this many seconds counts as hung.
const PROGRAM_TIMEOUT_SECONDS: &str = "1800";

impl Outcome {
    /// Runs a program in a new directory.
    pub(super) fn of(built: &Built, program: &Program, mode: Mode, at: &Path) -> io::Result<Self> {
        // Use the same path in each mode, because some programs write their path into their files.
        let (kept, at) = (at.join(format!("{}-{}", program.name, mode.name())), at.join(program.name));
        let (files, source, aside) = (at.join("files"), at.join("source"), at.join("aside"));
        // Remove the results of an earlier run.
        for old in [&kept, &at] {
            let _ = fs::remove_dir_all(old);
        }
        fs::create_dir_all(&files)?;
        fs::create_dir_all(&aside)?;
        let log_size = program.log_size();
        let mounted =
            mode.mount().map(|rule| mounted(built, rule, (&source, &files), (&aside, log_size))).transpose()?;
        let mut command = quiet("timeout");
        command.args(["--kill-after=5", PROGRAM_TIMEOUT_SECONDS]);
        if matches!(mode, Mode::Atomic | Mode::Boost) {
            under(&mut command, built, mode, (&aside, log_size))?;
        }
        // The report goes to standard output, so redirect the program's own output, also if bare.
        command.args(["sh", "-c", "exec >\"$ASIDE/out\" 2>\"$ASIDE/err\"; exec sh -e \"$0\" \"$@\""]);
        command.arg(built.scripts.join(program.script.0)).arg(program.script.1).current_dir(&files);
        command.env("ASIDE", &aside).env("PROGRAMS", &built.scripts).env("TMPDIR", &aside).env("LC_ALL", "C.UTF-8");
        let start = Instant::now();
        let output = command.output()?;
        let seconds = start.elapsed().as_secs_f64();
        fs::write(aside.join("launcher"), &output.stderr)?;
        let (report, files) = match mounted {
            Some(mounted) => (mounted.end()?, source),
            None if mode == Mode::Bare => (Value::Null, files),
            None => (serde_json::from_slice(&output.stdout).unwrap_or_default(), files),
        };
        let read = |name: &str| fs::read(aside.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let mut found = BTreeMap::new();
        tree(&files, Path::new(""), &mut found)?;
        let outcome = Outcome {
            code: output.status.code(),
            out: read("out")?,
            err: read("err")? + &String::from_utf8_lossy(&output.stderr),
            files: found,
            report,
            seconds,
        };
        fs::rename(&at, kept)?;
        Ok(outcome)
    }

    /// A summary of what the run, or the mount, served.
    pub(super) fn words(&self) -> String {
        let managed = self.report["managed"].as_u64().unwrap_or(0);
        let plain = self.report["plain"].as_array().map_or(0, Vec::len);
        if plain == 0 { format!("{managed} files") } else { format!("{managed} files, {plain} plain") }
    }
}

/// Serves `source` on `at`, with a log of this size in `aside`.
fn mounted(
    built: &Built,
    rule: &str,
    (source, at): (&Path, &Path),
    (aside, log_size): (&Path, &str),
) -> io::Result<Mounted> {
    fs::create_dir_all(source)?;
    let durable = untorn::doctor(aside).map_err(io::Error::other)?.durable;
    let mount = Mount {
        tool: &built.untorn,
        mode: rule,
        log: &aside.join("log"),
        log_size,
        // If temporary files are in memory, the log is too.
        assumed: !durable && rule == "boost",
        local_locks: false,
        source,
        at,
    };
    mount.start()
}

/// The command line of the tool, up to the program, with a log of this size in `aside`.
pub(super) fn under(
    command: &mut Command,
    built: &Built,
    mode: Mode,
    (aside, log_size): (&Path, &str),
) -> io::Result<()> {
    if mode == Mode::Vfs {
        return Ok(());
    }
    believe(command, aside)?;
    let log = aside.join("log");
    tool(
        command,
        built,
        mode,
        &["--log-size", log_size, "--log"].map(OsStr::new).into_iter().chain([log.as_os_str()]).collect::<Vec<_>>(),
    );
    Ok(())
}

/// The command line of the tool, up to the program, with options for the log.
pub(super) fn tool(command: &mut Command, built: &Built, mode: Mode, log: &[&OsStr]) {
    command.arg(&built.untorn).args(["run", "--json", "--mode", mode.name()]).args(log).args(["--match", "./**", "--"]);
}

/// If temporary files are in memory, the log is too.
pub(super) fn believe(command: &mut Command, aside: &Path) -> io::Result<()> {
    if !untorn::doctor(aside).map_err(io::Error::other)?.durable {
        command.env("UNTORN_ASSUME_PMEM", "1");
    }
    Ok(())
}

/// The entries of a directory and its subdirectories.
fn tree(root: &Path, at: &Path, into: &mut BTreeMap<PathBuf, Entry>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(at))? {
        let entry = entry?;
        let name = at.join(entry.file_name());
        let kind = entry.file_type()?;
        let found = if kind.is_dir() {
            tree(root, &name, into)?;
            Entry::Other
        } else if kind.is_symlink() {
            Entry::Link(fs::read_link(entry.path())?)
        } else if kind.is_file() {
            Entry::File(entry.metadata()?.permissions().mode(), fs::read(entry.path())?)
        } else {
            Entry::Other
        };
        into.insert(name, found);
    }
    Ok(())
}

/// Describes each difference between a run under a mode and the bare run.
pub(super) fn differences(program: &Program, mode: Mode, bare: &Outcome, found: &Outcome) -> Vec<String> {
    let mut all = Vec::new();
    let mut say = |what: String| all.push(format!("{}: {what}", mode.name()));
    if found.report["managed"].as_u64().is_none() {
        say(format!("untorn printed no report; its output: {}", found.err.trim()));
    }
    for failure in found.report["failed"].as_array().into_iter().flatten() {
        say(format!("failed: {failure}"));
    }
    if found.report["managed"] == 0 {
        say("no file was managed, so nothing was tested".to_owned());
    }
    lines("said", &bare.out, &found.out, &mut say);
    lines("complained", &bare.err, &found.err, &mut say);
    if bare.code != found.code {
        say(format!("exit code {:?}, bare {:?}", found.code, bare.code));
    }
    if program.files {
        files(&bare.files, &found.files, &mut say);
    }
    if found.files.keys().any(|path| path.file_name().is_some_and(|name| name == ".untorn")) {
        say("a sidecar was left behind".to_owned());
    }
    all
}

/// Reports differing lines.
fn lines(what: &str, bare: &str, found: &str, say: &mut impl FnMut(String)) {
    let (bare, found): (Vec<_>, Vec<_>) = (bare.lines().collect(), found.lines().collect());
    if bare.len() != found.len() {
        say(format!("{what} {} lines, bare {}", found.len(), bare.len()));
    }
    let differ = bare.iter().zip(&found).filter(|(bare, found)| bare != found);
    for (bare, found) in differ.take(MOST) {
        say(format!("{what} {found:?}, bare {bare:?}"));
    }
    for more in found.iter().skip(bare.len()).take(MOST) {
        say(format!("{what} {more:?}"));
    }
}

/// The maximum number of differences reported per kind.
const MOST: usize = 20;

fn files(bare: &BTreeMap<PathBuf, Entry>, found: &BTreeMap<PathBuf, Entry>, say: &mut impl FnMut(String)) {
    for path in bare.keys().filter(|path| !found.contains_key(*path)).take(MOST) {
        say(format!("{} is missing", path.display()));
    }
    for path in found.keys().filter(|path| !bare.contains_key(*path)).take(MOST) {
        say(format!("{} exists, but not bare", path.display()));
    }
    let both = bare.iter().filter_map(|(path, entry)| Some((path, entry, found.get(path)?)));
    for (path, bare, found) in both.filter(|(_, bare, found)| bare != found).take(MOST) {
        let words = |entry: &Entry| match entry {
            Entry::File(mode, bytes) => format!("{} bytes, mode {mode:o}", bytes.len()),
            Entry::Link(to) => format!("a link to {}", to.display()),
            Entry::Other => "not a file".to_owned(),
        };
        say(format!("{} differs: {}, bare {}", path.display(), words(found), words(bare)));
    }
}
