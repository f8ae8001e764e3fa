//! Running programs under the tool in mode boost, and what every test asks of them.
#![allow(dead_code)] // Each test file is a crate of its own and uses a part.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;
use untorn_testing::programs::{assert_same_as_bare, kill};
pub(crate) use untorn_testing::programs::{compile, program, succeed, text};

/// What the tests run: the tool, and the layer, plain and as the test build that reports what slips past it.
pub(crate) struct Built {
    pub(crate) launcher: PathBuf,
    pub(crate) layer: PathBuf,
    pub(crate) oracle: PathBuf,
}

pub(crate) fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = untorn_testing::built();
        Built {
            launcher: directory.join("untorn"),
            layer: directory.join("libuntorn_preload.so"),
            oracle: untorn_testing::built_oracle().to_owned(),
        }
    })
}

/// A directory for the program's files, and one for what is none of its business.
pub(crate) struct Place {
    pub(crate) files: TempDir,
    pub(crate) aside: TempDir,
    /// Whether the log is used as on a disk, whatever it is on.
    pub(crate) on_disk: bool,
}

impl Place {
    pub(crate) fn new() -> Self {
        Place { files: tempfile::tempdir().unwrap(), aside: tempfile::tempdir().unwrap(), on_disk: false }
    }

    /// One whose log is used as on a disk: durability is left to a sync.
    pub(crate) fn on_disk() -> Self {
        Place { on_disk: true, ..Place::new() }
    }

    /// One of each kind of log that programs append to by themselves.
    pub(crate) fn of_each_kind() -> [Self; 2] {
        [Place::new(), Place::on_disk()]
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.aside.path().join("log")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// A program with a log in front of the files that end in `.managed`.
    pub(crate) fn under(&self, layer: &Path, program: &[&OsStr]) -> Command {
        // The report goes to standard output, after the program's; descriptor 3 keeps the two apart.
        let outer = "report=$0; exec 3>&1 > \"$report\"; exec \"$@\"";
        let inner = "exec \"$@\" >&3 3>&-";
        let mut command = Command::new("/bin/sh");
        command.current_dir(self.files.path()).args(["-c", outer]).arg(self.aside.path().join("report"));
        let durability = if self.on_disk { "fsync" } else { "write" };
        command.arg(&built().launcher).args(["run", "--json", "--mode", "boost", "--durability", durability]);
        command.args(["--log-size", "4M", "--log"]).arg(self.log()).arg("--layer").arg(layer);
        command.args(["--match", "{*.managed,*.managed-*,repository/**}", "--", "sh", "-c", inner, "sh"]);
        // One that is killed leaves its socket behind.
        command.args(program).stdin(Stdio::null()).env("TMPDIR", self.aside.path());
        if !self.on_disk && !untorn::doctor(self.aside.path()).unwrap().durable {
            // Where files for tests are in memory, so is the log.
            command.env("UNTORN_ASSUME_PMEM", "1");
        }
        command
    }

    /// Runs a Python program under untorn to its end.
    #[track_caller]
    pub(crate) fn run(&self, program: &str) -> Output {
        succeed(&mut self.under(&built().layer, &["python3", "-c", program].map(OsStr::new)))
    }

    /// The text of a file.
    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        text(&fs::read(self.file(name)).unwrap())
    }

    pub(crate) fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.aside.path().join("report")).unwrap()).unwrap()
    }

    /// Why files were demoted.
    pub(crate) fn demoted(&self) -> Vec<String> {
        let report = self.report();
        let all = report["demoted"].as_array().unwrap();
        all.iter().map(|entry| entry[0]["why"].as_str().unwrap().to_owned()).collect()
    }
}

/// Replays the log of a run that was killed. The processes of the run may have it mapped, and each has it for as long
/// as it takes them to end, which may be a little longer than they can be heard of.
#[track_caller]
pub(crate) fn replayed(place: &Place) -> untorn::write_cache::Replay {
    loop {
        match untorn::write_cache::replay(place.log(), None) {
            Err(untorn::Error::InUse { .. }) => std::thread::yield_now(),
            replay => return replay.unwrap(),
        }
    }
}

/// Waits until the processes of a run that was killed have ended.
pub(crate) fn released(place: &Place) {
    while matches!(untorn::write_cache::inspect_log(place.log()), Err(untorn::Error::InUse { .. })) {
        std::thread::yield_now();
    }
}

/// Runs a program bare and under untorn, each in a directory of its own, and compares all that can be seen of it.
#[track_caller]
pub(crate) fn same_as_bare(program: &[&OsStr]) -> Place {
    let (bare, place) = (tempfile::tempdir().unwrap(), Place::new());
    let escapes = place.aside.path().join("escapes");
    let mut command = place.under(&built().oracle, program);
    assert_same_as_bare(program, bare.path(), &mut command, &escapes);
    assert_eq!(place.report()["failures"], Value::Array(Vec::new()));
    place
}

pub(crate) fn shell(script: &str) {
    same_as_bare(&["sh".as_ref(), "-ec".as_ref(), script.as_ref()]);
}

/// A Python program under untorn, which is told to go on by a line, and says by one how far it is.
pub(crate) struct Talk {
    pub(crate) child: Child,
    pub(crate) to: ChildStdin,
    pub(crate) from: std::io::Lines<BufReader<ChildStdout>>,
}

impl Talk {
    pub(crate) fn start(place: &Place, program: &str) -> Self {
        Talk::by(place.under(&built().layer, &["python3".as_ref(), "-u".as_ref(), "-c".as_ref(), program.as_ref()]))
    }

    /// One that begins with [`BEGIN`].
    pub(crate) fn begin(place: &Place, more: &str) -> Self {
        Talk::start(place, &format!("{BEGIN}{more}"))
    }

    pub(crate) fn by(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Talk { child, to, from: BufReader::new(from).lines() }
    }

    #[track_caller]
    pub(crate) fn hear(&mut self, expected: &str) {
        assert_eq!(self.from.next().expect("the program ended").unwrap(), expected);
    }

    pub(crate) fn say(&mut self) {
        self.to.write_all(b"go on\n").unwrap();
    }

    #[track_caller]
    pub(crate) fn end(mut self) {
        self.say();
        assert_eq!(self.from.next().transpose().unwrap(), None);
        assert!(self.child.wait().unwrap().success());
    }
}

/// The beginning of a program that writes a file.
pub(crate) const BEGIN: &str = "
import os, sys
fd = os.open('f.managed', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
assert os.write(fd, b'first') == 5
assert os.pread(fd, 100, 0) == b'first' and os.fstat(fd).st_size == 5
";

/// A program that appends to the log by itself: to one that is taken for persistent memory, wherever it is, or one on
/// a disk.
pub(crate) fn appending(place: &Place, program: &[&OsStr]) -> Command {
    let mut command = place.under(&built().oracle, program);
    if !place.on_disk {
        command.env("UNTORN_ASSUME_PMEM", "1");
    }
    command
}

pub(crate) fn python(place: &Place, program: &str) -> Command {
    appending(place, &["python3".as_ref(), "-u".as_ref(), "-c".as_ref(), program.as_ref()])
}

/// What the report says of the one file.
pub(crate) fn counts(place: &Place) -> [u64; 4] {
    let file = &place.report()["files"][0];
    ["writes", "writes_in_process", "bytes_written", "commits"].map(|what| file[what].as_u64().unwrap())
}

/// A program on each kind of log, once it has written; see [`python`].
pub(crate) fn each_writer(program: String) -> impl Iterator<Item = (Place, Talk)> {
    Place::of_each_kind().into_iter().map(move |place| {
        let mut talk = Talk::by(python(&place, &program));
        talk.hear("written");
        (place, talk)
    })
}

/// Ends the process that serves, as nothing else does: what the log has is replayed, and has to be what the kernel
/// showed.
#[track_caller]
pub(crate) fn replay_leaves_what_was_there(place: &Place, talk: Talk) {
    let Talk { mut child, to, from } = talk;
    kill(&[&child.id().to_string()]);
    child.wait().unwrap();
    drop((to, from));
    let before = fs::read(place.file("f.managed")).unwrap();
    assert!(replayed(place).is_complete());
    assert!(fs::read(place.file("f.managed")).unwrap() == before, "the log has another order than the kernel");
}
