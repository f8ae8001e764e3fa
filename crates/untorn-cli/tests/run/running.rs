//! Running unmodified programs under `untorn run`, and bare.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;
use untorn_mount::attach::{Stage, probe};
use untorn_testing::programs::assert_same_as_bare;

use crate::common::{Run, UNTORN};

/// The modes of a run.
pub(crate) const MODES: [&str; 2] = ["atomic", "boost"];

/// Why this user cannot have private mounts on this machine; `None` if it can.
pub(crate) fn lacks_mounts() -> Option<&'static str> {
    static LACKS: OnceLock<Option<String>> = OnceLock::new();
    let lacks = LACKS.get_or_init(|| {
        let found = probe(&Stage::of(UNTORN, ["mount-stage"]));
        let private = found.iter().find(|found| found.name == "private")?;
        (!private.works).then(|| format!("no private mounts here: {}", private.why))
    });
    lacks.as_deref()
}

/// Skips a test where a program can't have mounts of its own, or where a program that it names is missing.
macro_rules! needs_mounts {
    ($($program:expr),*) => {
        $(untorn_testing::needs!($program);)*
        if let Some(reason) = $crate::running::lacks_mounts() {
            untorn_testing::skip!("{reason}");
        }
    };
}
pub(crate) use needs_mounts;

/// A directory for a program's files, and one for the log and other files that the run does not serve.
pub(crate) struct Place {
    pub(crate) files: TempDir,
    pub(crate) aside: TempDir,
}

impl Place {
    /// With nothing in them.
    pub(crate) fn new() -> Self {
        Place { files: tempfile::tempdir().unwrap(), aside: tempfile::tempdir().unwrap() }
    }

    /// The log.
    pub(crate) fn log(&self) -> PathBuf {
        self.aside.path().join("log")
    }

    /// The path of a file, as the tool names it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().canonicalize().unwrap().join(name)
    }

    /// The text of a file in the source.
    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.file(name)).unwrap()).into_owned()
    }

    /// The tool, in the directory of the files.
    pub(crate) fn tool(&self) -> Command {
        let mut command = Command::new(UNTORN);
        command.current_dir(self.files.path()).stdin(Stdio::null());
        if !untorn::doctor(self.aside.path()).unwrap().durable {
            // Where files for tests are in memory, so is the log.
            command.env("UNTORN_ASSUME_PMEM", "1");
        }
        command
    }

    /// A run with a log aside, over the directory of the files.
    pub(crate) fn under(&self, mode: &str, options: &[&str], program: &[&OsStr]) -> Command {
        let mut command = self.tool();
        command.args(["run", "--mode", mode, "--log-size", "8M", "--log"]).arg(self.log());
        command.args(options).arg("--").args(program);
        command
    }

    /// The same, to its end.
    #[track_caller]
    pub(crate) fn run(&self, mode: &str, options: &[&str], program: &[&str]) -> Run {
        let program: Vec<&OsStr> = program.iter().map(OsStr::new).collect();
        Run::of(self.under(mode, options, &program).output().unwrap(), options)
    }

    /// The same with a report, which is taken from the last line of standard output.
    #[track_caller]
    pub(crate) fn reported(&self, mode: &str, options: &[&str], program: &[&str]) -> (String, Value) {
        let run = self.run(mode, &[options, &["--json"]].concat(), program).expect(0);
        let out = run.text();
        let (said, json) = out.trim_end().rsplit_once('\n').unwrap_or(("", out.trim_end()));
        let said = if said.is_empty() { String::new() } else { format!("{said}\n") };
        (said, serde_json::from_str(json).unwrap())
    }

    /// Replays the log after a run was killed.
    #[track_caller]
    pub(crate) fn replay(&self) {
        loop {
            match untorn::write_cache::replay(self.log(), None) {
                // A process that the killed run was about to start may have it for a moment.
                Err(untorn::Error::InUse { .. }) => std::thread::yield_now(),
                replay => return assert!(replay.unwrap().is_complete()),
            }
        }
    }

    /// The output of a program without untorn.
    #[track_caller]
    pub(crate) fn bare(&self, program: &[&str]) -> Output {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).current_dir(self.files.path()).stdin(Stdio::null()).output().unwrap()
    }
}

/// Runs a program bare and in each mode of a run, each in a directory of its own, and compares output, exit and files.
#[track_caller]
pub(crate) fn same_as_bare(program: &[&OsStr]) {
    for mode in MODES {
        let (bare, managed) = (Place::new(), Place::new());
        assert_same_as_bare(program, bare.files.path(), &mut managed.under(mode, &[], program));
    }
}

/// The same of a script.
#[track_caller]
pub(crate) fn shell(script: &str) {
    same_as_bare(&["sh".as_ref(), "-ec".as_ref(), script.as_ref()]);
}
