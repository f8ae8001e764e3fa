//! `cargo xtask boost`: measures programs that write and sync, bare, under `untorn run` and through
//! `untorn mount`, in one run.

mod place;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use place::{Arm, Ground, Where};
use table::Table;
pub(crate) use table::median;

use crate::mounted::{Mount, Mounted};

/// The measurements, by their names in `xtask/programs/measure.py`.
const NAMES: [&str; 21] = [
    "write-fsync",
    "write-fsync-8-threads",
    "append-fdatasync",
    "read",
    "no-io",
    "sqlite-wal",
    "sqlite-truncate-exclusive",
    "sqlite-truncate",
    "sqlite-delete",
    "sqlite-off",
    "rocksdb-fillsync",
    "fstat",
    "write",
    "map-sync",
    "open-close",
    "create-write-close",
    "unlink",
    "replace-fsync",
    "stream-mib",
    "tar-x",
    "git-clone",
];

/// Arguments of `cargo xtask boost`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Measurements to run [default: all]; rocksdb-fillsync is skipped with a message if db_bench is missing
    #[arg(value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    names: Vec<String>,
    /// Variants to run beside the bare one, by name [default: all]
    #[arg(long = "arm", value_name = "ARM")]
    arms: Vec<String>,
    /// Directory for the programs' files [default: an ext4 on a loop device in /dev/shm, which needs root]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Milliseconds per flush of the disk; uses a disk in memory served by FUSE
    #[arg(long, value_name = "MS", conflicts_with = "dir", value_parser = positive)]
    flush_ms: Option<f64>,
    /// Directory for the log [default: /dev/shm under UNTORN_ASSUME_PMEM=1: as fast as persistent memory, but not
    /// durable]
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// Number of measurements of each variant
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds per measurement
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
    /// Directory with a built tool, instead of building it
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// Print one JSON object with every single measurement
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or_else(|| format!("{text:?} is not a positive number"))
}

/// The exit code if a needed tool or privilege is missing.
pub(crate) const UNAVAILABLE: u8 = 69;

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    match measured(root, arguments) {
        Ok(table) if arguments.json => {
            println!("{}", table.json());
            ExitCode::SUCCESS
        }
        Ok(table) => {
            print!("{}", table.text());
            ExitCode::SUCCESS
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            eprintln!("boost: {error}; or give a directory on a disk with --dir");
            ExitCode::from(UNAVAILABLE)
        }
        Err(error) => {
            eprintln!("boost: {error}");
            ExitCode::from(74)
        }
    }
}

fn measured(root: &Path, arguments: &Arguments) -> io::Result<Table> {
    let built = match &arguments.built {
        Some(directory) => directory.canonicalize()?,
        None => build(root)?,
    };
    let where_to = Where {
        dir: arguments.dir.as_deref(),
        log: arguments.log.as_deref(),
        flush: arguments.flush_ms.map(|ms| Duration::from_secs_f64(ms / 1000.0)),
    };
    place::with_ground(where_to, |ground| rounds(&built, &root.join("xtask/programs/measure.py"), ground, arguments))
}

/// Builds the tool as users have it. Returns its directory.
pub(crate) fn build(root: &Path) -> io::Result<PathBuf> {
    let target = crate::target(root, "");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--release", "--package", "untorn-cli", "--target-dir"]);
    cargo.arg(&target);
    if cargo.status()?.success() {
        Ok(target.join("release"))
    } else {
        Err(io::Error::other("cargo build failed; see its messages above"))
    }
}

fn rounds(built: &Path, script: &Path, ground: &Ground, arguments: &Arguments) -> io::Result<Table> {
    let names =
        NAMES.into_iter().filter(|name| arguments.names.is_empty() || arguments.names.iter().any(|n| n == name));
    let names: Vec<_> = names.collect();
    let mut table = Table::new(&names, &ground.arms, arguments.rounds, arguments.seconds);
    for round in 0..arguments.rounds {
        for (row, name) in names.iter().enumerate() {
            // Alternate the direction, so that no variant always follows the same other one.
            let order: Vec<usize> = match round % 2 {
                0 => (0..ground.arms.len()).collect(),
                _ => (0..ground.arms.len()).rev().collect(),
            };
            let is_asked = |name: &str| arguments.arms.is_empty() || arguments.arms.iter().any(|asked| asked == name);
            let is_run = |arm: &usize| *arm == 0 || is_asked(ground.arms[*arm].name);
            for arm in order.into_iter().filter(is_run) {
                let one = One { built, script, name, arm: &ground.arms[arm], seconds: arguments.seconds };
                match one.measure()? {
                    Some((rate, report)) => table.add(row, arm, rate, &report),
                    None => table.miss(row),
                }
            }
        }
    }
    Ok(table)
}

/// One measurement of one program.
struct One<'a> {
    built: &'a Path,
    script: &'a Path,
    name: &'a str,
    arm: &'a Arm,
    seconds: f64,
}

impl One<'_> {
    fn python(&self, mut command: Command, what: &str) -> io::Result<std::process::Output> {
        command.arg(self.script).args([self.name, what]).current_dir(self.arm.seen()).stdin(Stdio::null()).output()
    }

    /// Operations per second and untorn's report; `None` if the program is missing.
    fn measure(&self) -> io::Result<Option<(f64, Value)>> {
        self.arm.clear()?;
        let mounted = self.arm.mount.map(|mode| self.mount(mode)).transpose()?.flatten();
        let prepared = self.python(Command::new("python3"), "prepare")?;
        self.succeeded(&prepared)?;
        let mut command = Command::new("env");
        let is_under = self.arm.mount.is_none() && self.arm.log.is_some();
        if is_under {
            if self.arm.log.as_ref().is_some_and(|log| log.assumed) {
                command.arg("UNTORN_ASSUME_PMEM=1");
            }
            command.arg(self.built.join("untorn")).args(["run", "--json"]);
            command.args(["--mode", if self.arm.atomic { "atomic" } else { "boost" }, "--log-size", "256M"]);
            if let Some(log) = &self.arm.log {
                command.arg("--log").arg(&log.path);
            }
            let mut glob = self.arm.files().into_os_string();
            glob.push("/**");
            command.arg("--match").arg(glob).arg("--");
        }
        let output = self.python(
            {
                command.arg("python3");
                command
            },
            &self.seconds.to_string(),
        )?;
        if output.status.code() == Some(UNAVAILABLE.into()) {
            return Ok(None);
        }
        self.succeeded(&output)?;
        if let Some(mounted) = mounted {
            mounted.end()?;
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let mut lines = said.lines();
        let rate = lines.next().and_then(|line| line.parse().ok());
        let rate = rate.ok_or_else(|| {
            io::Error::other(format!("{}: expected a number, but the program printed {said:?}", self.name))
        })?;
        let report = lines.next().and_then(|line| serde_json::from_str(line).ok());
        match report {
            // Without a report, a program that ran without untorn would look like a boosted one.
            None if is_under => Err(io::Error::other(format!("{}: untorn run printed no report", self.name))),
            report => Ok(Some((rate, report.unwrap_or_default()))),
        }
    }

    /// Mounts the files' directory.
    fn mount(&self, mode: &str) -> io::Result<Option<Mounted>> {
        let Some(log) = &self.arm.log else { return Ok(None) };
        let (source, at) = (self.arm.files(), self.arm.seen());
        let tool = self.built.join("untorn");
        let mount = Mount {
            tool: &tool,
            mode,
            log: &log.path,
            log_size: "256M",
            assumed: log.assumed,
            local_locks: self.arm.local_locks,
            source: &source,
            at: &at,
        };
        mount.start().map(Some)
    }

    fn succeeded(&self, output: &std::process::Output) -> io::Result<()> {
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{}, {}: {}: {}", self.name, self.arm.name, output.status, said.trim())))
    }
}
