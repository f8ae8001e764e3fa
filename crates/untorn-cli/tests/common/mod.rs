//! Running the real binary, and what every test asks of its answers.
#![allow(dead_code, unreachable_pub)] // Each test file is a crate of its own and uses a part.

pub mod records;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub const UNTORN: &str = env!("CARGO_BIN_EXE_untorn");

/// The command with the signals of a terminal as a shell of a terminal leaves them. The caller of these tests may
/// ignore some, as `nohup` does.
pub fn at_a_terminal(command: &Command) -> Command {
    let mut shell = Command::new("env");
    shell.arg("--default-signal=HUP,INT,QUIT,TERM").arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell.stdin(Stdio::null());
    shell
}

/// What a run of the tool gave.
#[derive(Debug)]
pub struct Run {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: String,
    arguments: String,
}

impl Run {
    /// Of a finished process.
    pub fn of(output: Output, arguments: &[&str]) -> Self {
        Run {
            code: output.status.code().unwrap_or_else(|| panic!("untorn {arguments:?} died: {}", output.status)),
            out: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            arguments: arguments.join(" "),
        }
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Standard output as text with every line break and indentation turned into one space.
    pub fn prose(&self) -> String {
        self.text().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        let Run { arguments, err, .. } = &self;
        assert_eq!(self.code, code, "untorn {arguments}\nstdout: {}\nstderr: {err}", self.text());
        self
    }

    /// Asserts that stderr is one line from untorn that names `what`.
    #[track_caller]
    pub fn names(self, what: &str) -> Self {
        assert!(self.err.starts_with("untorn: ") && self.err.contains(what), "no {what:?} in {:?}", self.err);
        self
    }

    /// Standard output as exactly one JSON object on one line.
    #[track_caller]
    pub fn json(&self) -> Value {
        let text = self.text();
        assert_eq!(text.lines().count(), 1, "not one line: {text:?}");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
        assert!(value.is_object(), "{value} is no object");
        value
    }
}

/// Runs the tool without input.
pub fn untorn(arguments: &[&str]) -> Run {
    untorn_with(arguments, b"")
}

/// Runs the tool with input.
pub fn untorn_with(arguments: &[&str], input: &[u8]) -> Run {
    run(Command::new(UNTORN).args(arguments), arguments, input)
}

/// Runs a prepared command with input.
pub fn run(command: &mut Command, arguments: &[&str], input: &[u8]) -> Run {
    let mut child = command
        .env_remove("UNTORN_LOG")
        .env_remove("UNTORN_ASSUME_PMEM")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary under test starts");
    // A run that refuses its arguments doesn't read its input.
    let _ = child.stdin.take().expect("stdin is piped").write_all(input);
    Run::of(child.wait_with_output().expect("the child can be waited for"), arguments)
}

/// A directory and a path in it.
pub struct Place {
    /// Removed at the end.
    pub dir: TempDir,
    /// A file in it; not made yet.
    pub file: PathBuf,
}

impl Place {
    /// With no file.
    pub fn empty() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let file = dir.path().join("ledger");
        Place { dir, file }
    }

    /// With an untorn file of some length.
    pub fn created(len: u64) -> Self {
        Place::created_with(len, &[])
    }

    /// The same with options.
    pub fn created_with(len: u64, options: &[&str]) -> Self {
        let place = Place::empty();
        untorn(&[&["create", place.name(), "--len", &len.to_string()], options].concat()).expect(0);
        place
    }

    /// With a plain file.
    pub fn plain(bytes: &[u8]) -> Self {
        let place = Place::empty();
        std::fs::write(&place.file, bytes).expect("a plain file can be written");
        place
    }

    /// The directory's name.
    pub fn dir(&self) -> &str {
        self.dir.path().to_str().expect("the path is text")
    }

    /// The names in the directory.
    pub fn entries(&self) -> Vec<OsString> {
        std::fs::read_dir(&self.dir).expect("readable").map(|entry| entry.expect("readable").file_name()).collect()
    }

    /// The bytes that a program without untorn reads.
    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.file).expect("readable")
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        self.file.to_str().expect("the path is text")
    }

    /// What `untorn read` gives.
    #[track_caller]
    pub fn read(&self) -> Vec<u8> {
        untorn(&["read", self.name()]).expect(0).out
    }

    /// What `untorn info --json` gives.
    pub fn info(&self) -> Value {
        untorn(&["info", self.name(), "--json"]).json()
    }
}

/// Writes to a file as a program does that knows nothing of untorn, and leaves it with another time than it had. Of
/// two writes in one tick of the kernel's clock, which may take long on a busy machine, the file would not show the
/// second.
pub fn write_untold(path: &Path, bytes: &[u8], offset: u64) {
    let file = File::options().write(true).open(path).expect("it opens");
    let modified = || file.metadata().and_then(|metadata| metadata.modified()).expect("it has a time");
    let (before, start) = (modified(), Instant::now());
    loop {
        file.write_all_at(bytes, offset).expect("it is written");
        if modified() != before {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the clock of {} stands still", path.display());
        thread::sleep(Duration::from_millis(1));
    }
}

/// The length of the file that the torture's writer works on.
pub const TORTURED_LEN: u64 = (1 << 20) + 1234;

/// Starts the process that torture kills; it reports to `reports`.
pub fn torture_writer(file: &Path, arguments: &[&str], reports: Stdio) -> Child {
    Command::new(UNTORN)
        .args(["torture-writer", "--start=1,1", "--parent", &std::process::id().to_string()])
        .args(arguments)
        .arg(file)
        .stdin(Stdio::null())
        .stdout(reports)
        .spawn()
        .expect("the binary under test starts")
}

/// The same on a file that is there. Waits until the process has the file open.
pub fn start_writer(file: &Path, durability: &str) -> Child {
    let arguments = ["--seed=1", "--engine=auto", "--durability", durability];
    let mut child = torture_writer(file, &arguments, Stdio::piped());
    // A hundred reports of eight bytes: it is open and at work.
    let reports = child.stdout.as_mut().expect("stdout is piped");
    reports.read_exact(&mut [0; 800]).expect("the writer reports");
    child
}

/// An untorn file that was created with these options and whose writer was killed at work.
pub fn crashed(options: &[&str]) -> Place {
    // The writer takes the engine of the sidecar.
    let place = Place::created_with(TORTURED_LEN, &[options, &["--keep-sidecar"]].concat());
    kill(&mut start_writer(&place.file, "commit"));
    place
}

/// Kills a process and waits for its end.
pub fn kill(child: &mut Child) {
    child.kill().and_then(|()| child.wait()).expect("the child is ours to kill");
}
