//! Running programs under `untorn run --mode boost`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use untorn::write_cache::{BackingFile, Descriptor};

use super::layered::layer;
use super::{Run, UNTORN};

/// A directory for a program's files, and one for the log.
pub struct Place {
    /// Where the program is.
    pub files: TempDir,
    /// Where the log is, and what else is no file of the program's.
    pub aside: TempDir,
}

impl Place {
    /// With nothing in them.
    pub fn new() -> Self {
        Place { files: tempfile::tempdir().unwrap(), aside: tempfile::tempdir().unwrap() }
    }

    /// The log.
    pub fn log(&self) -> PathBuf {
        self.aside.path().join("log")
    }

    /// The tool, in the directory of the files.
    pub fn tool(&self) -> Command {
        let mut command = Command::new(UNTORN);
        // One that is killed leaves its socket behind.
        command.current_dir(self.files.path()).stdin(Stdio::null()).env("TMPDIR", self.aside.path());
        if !untorn::doctor(self.aside.path()).unwrap().durable {
            // Where files for tests are in memory, so is the log.
            command.env("UNTORN_ASSUME_PMEM", "1");
        }
        command
    }

    /// A run with a log.
    pub fn under(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.tool();
        command.args(["run", "--mode", "boost", "--log-size", "8M", "--log"]).arg(self.log());
        command.arg("--layer").arg(layer()).args(options).arg("--").args(program);
        command
    }

    /// The same, to its end.
    #[track_caller]
    pub fn run(&self, options: &[&str], program: &[&str]) -> Run {
        Run::of(self.under(options, program).output().unwrap(), options)
    }

    /// What a program in Python says without untorn.
    #[track_caller]
    pub fn bare(&self, program: &str) -> String {
        let mut command = Command::new("python3");
        command.args(["-c", program]).current_dir(self.files.path()).stdin(Stdio::null());
        Run::of(command.output().unwrap(), &["bare"]).expect(0).text()
    }

    /// What it says under untorn, with the files managed that end in `.managed`, and the report.
    #[track_caller]
    pub fn boosted(&self, program: &str) -> (String, Value) {
        let out = self.run(&["--match", "*.managed", "--json"], &["python3", "-c", program]).expect(0).text();
        let (said, json) = out.trim_end().rsplit_once('\n').unwrap();
        (format!("{said}\n"), serde_json::from_str(json).unwrap())
    }

    /// Whether the file system tells its files apart, so that the log can follow renames, and make new files again.
    pub fn tells_files_apart(&self) -> bool {
        let probe = self.files.path().join("probe");
        let file = fs::File::options().read(true).write(true).create_new(true).open(&probe).unwrap();
        let identity = Descriptor::new(file.into(), &probe).unwrap().identity().unwrap();
        fs::remove_file(probe).unwrap();
        identity.generation != 0 && identity.birth != 0
    }
}

/// Which files were left to the kernel, and why.
pub fn demotions(report: &Value) -> Vec<(&str, &str)> {
    let entries = report["demoted"].as_array().unwrap().iter();
    entries.map(|entry| (entry[0]["path"].as_str().unwrap(), entry[0]["why"].as_str().unwrap())).collect()
}
