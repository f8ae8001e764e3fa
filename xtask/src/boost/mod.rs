//! `cargo xtask boost`: programs that write and sync, bare and under `untorn run --mode boost`, side by side in one run.

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

/// What is measured, as `xtask/programs/measure.py` knows it.
const NAMES: [&str; 10] = [
    "write-fsync",
    "write-fsync-8-threads",
    "append-fdatasync",
    "read",
    NO_IO,
    "sqlite-wal",
    "sqlite-truncate-exclusive",
    "sqlite-truncate",
    "sqlite-delete",
    "rocksdb-fillsync",
];

/// What has no file that is managed.
const NO_IO: &str = "no-io";

/// Measures programs that write and sync: bare, with a log in front of their files, with the log on the same disk as the files, and
/// bare in memory, where a sync makes nothing durable; and one that has nothing to do with managed files, in mode atomic too. All take turns, so that each is compared with the others on the same machine
/// at the same time.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Only these; rocksdb-fillsync is passed over, and said so, where there is no db_bench
    #[arg(value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    names: Vec<String>,
    /// Where the programs have their files [default: an ext4 on a loop device in /dev/shm, which takes root]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Milliseconds that each flush of the disk takes: one that is made for it, in memory too, and served by FUSE
    #[arg(long, value_name = "MS", conflicts_with = "dir", value_parser = positive)]
    flush_ms: Option<f64>,
    /// The directory of the log [default: /dev/shm, under UNTORN_ASSUME_PMEM=1: as fast as persistent memory, and as durable as
    /// nothing]
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds for each time
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = positive)]
    seconds: f64,
    /// The directory with the tool and the layer, instead of building them
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// Print one JSON object, with every single time
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && *seconds > 0.0);
    seconds.ok_or_else(|| format!("{text:?} is no number of seconds above 0"))
}

/// The exit code where something that is needed is missing.
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
            eprintln!("boost: {error}; name a directory on a disk by --dir");
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

/// Builds the tool and the layer as users have them. The directory with both.
pub(crate) fn build(root: &Path) -> io::Result<PathBuf> {
    let target = crate::target(root, "");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--release", "--package", "untorn-cli"]);
    cargo.args(["--package", "untorn-preload", "--target-dir"]).arg(&target);
    if cargo.status()?.success() { Ok(target.join("release")) } else { Err(io::Error::other("the build failed")) }
}

fn rounds(built: &Path, script: &Path, ground: &Ground, arguments: &Arguments) -> io::Result<Table> {
    let names =
        NAMES.into_iter().filter(|name| arguments.names.is_empty() || arguments.names.iter().any(|n| n == name));
    let names: Vec<_> = names.collect();
    let mut table = Table::new(&names, &ground.arms, arguments.rounds, arguments.seconds);
    for round in 0..arguments.rounds {
        for (row, name) in names.iter().enumerate() {
            // To and fro, so that none always comes after the same other one.
            let order: Vec<usize> = match round % 2 {
                0 => (0..ground.arms.len()).collect(),
                _ => (0..ground.arms.len()).rev().collect(),
            };
            for arm in order.into_iter().filter(|&arm| ground.arms[arm].measures(name)) {
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

/// One time of one program.
struct One<'a> {
    built: &'a Path,
    script: &'a Path,
    name: &'a str,
    arm: &'a Arm,
    seconds: f64,
}

impl One<'_> {
    fn python(&self, mut command: Command, what: &str) -> io::Result<std::process::Output> {
        command.arg(self.script).args([self.name, what]).current_dir(self.arm.files()).stdin(Stdio::null()).output()
    }

    /// How often a second, and what untorn reported; `None` if the program is missing.
    fn measure(&self) -> io::Result<Option<(f64, Value)>> {
        self.arm.clear()?;
        let prepared = self.python(Command::new("python3"), "prepare")?;
        self.succeeded(&prepared)?;
        let mut command = Command::new("env");
        let is_under = self.arm.log.is_some() || self.arm.atomic;
        if is_under {
            if self.arm.log.as_ref().is_some_and(|log| log.assumed) {
                command.arg("UNTORN_ASSUME_PMEM=1");
            }
            command.arg(self.built.join("untorn")).args(["run", "--json"]);
            match &self.arm.log {
                Some(log) => command.args(["--mode", "boost", "--log-size", "256M", "--log"]).arg(&log.path),
                None => command.args(["--mode", "atomic"]),
            };
            command.arg("--layer").arg(self.built.join("libuntorn_preload.so"));
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
        let said = String::from_utf8_lossy(&output.stdout);
        let mut lines = said.lines();
        let rate = lines.next().and_then(|line| line.parse().ok());
        let rate = rate.ok_or_else(|| io::Error::other(format!("{}: it said {said:?} and no number", self.name)))?;
        let report = lines.next().and_then(|line| serde_json::from_str(line).ok());
        match report {
            // Without one a program that ran plain would look like a boosted one.
            None if is_under => Err(io::Error::other(format!("{}: untorn gave no report", self.name))),
            report => Ok(Some((rate, report.unwrap_or_default()))),
        }
    }

    fn succeeded(&self, output: &std::process::Output) -> io::Result<()> {
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{}, {}: {}: {}", self.name, self.arm.name, output.status, said.trim())))
    }
}
