//! `cargo xtask sustained`: measures a burst of writes longer than the log to a slow disk.

mod table;
mod trace;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use untorn_rigs::block::{Asked, FileSystem, SlowDisk, Speed, isolated};

use crate::boost::{UNAVAILABLE, build};
use table::Table;
use trace::{BLOCK, Trace};

/// The directory of the slow disk and the log.
const MEMORY: &str = "/dev/shm";
/// Bytes of the disk besides the file.
const REST: u64 = 64 << 20;
/// Seconds of light load (one write every 10 ms) before a burst.
const BEFORE: f64 = 1.0;

/// Arguments of `cargo xtask sustained`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The disk's speed in bytes per second; suffixes K, M, G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "20M", value_parser = size)]
    device_rate: u64,
    /// Additional milliseconds per flush of the disk
    #[arg(long, value_name = "MS", default_value_t = 0)]
    flush_ms: u64,
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size, help = "Size of the log in bytes; \
     suffixes as for --device-rate")]
    log_size: u64,
    /// Number of bytes to write; suffixes as for --device-rate
    #[arg(long, value_name = "SIZE", default_value = "96M", value_parser = size)]
    burst: u64,
    /// Also measure with these batch sizes (minimum and maximum entries per batch), comma-separated; 0 for none
    #[arg(long, value_name = "LIST", default_value = "10,100,1000,5000", value_delimiter = ',')]
    batch: Vec<u64>,
    /// Seconds of light load (one write every 10 ms) after the burst
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    after: f64,
    /// Number of measurements of each variant
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Directory with a built tool, instead of building it
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// Print one JSON object with the figures of every tenth of a second
    #[arg(long)]
    json: bool,
    /// Plot the first round over time into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Parses a number of bytes with an optional suffix K, M or G.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("{text:?} is not a positive number of bytes; examples: 4096, 64K, 20M"))
}

/// How the program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Without a log, with one fsync after all of them.
    OneSync,
    /// Without a log, with an fsync per write, for as long as the disk needs for all of them.
    SyncEach,
    /// With a log and an fsync per write.
    Log { batch: Option<u64> },
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::OneSync => "bare, one fsync".to_owned(),
            Way::SyncEach => "bare, fsync each".to_owned(),
            Way::Log { batch: None } => "log".to_owned(),
            Way::Log { batch: Some(batch) } => format!("log, batches of {batch}"),
        }
    }

    fn batch(self) -> Option<u64> {
        match self {
            Way::Log { batch } => batch,
            Way::OneSync | Way::SyncEach => None,
        }
    }
}

/// The parameters of the whole measurement.
#[derive(Clone, Copy, Debug)]
struct Terms {
    rate: u64,
    flush_ms: u64,
    log: u64,
    burst: u64,
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        write!(f, "{} MiB to a disk of {} MiB per second", mib(self.burst), mib(self.rate))?;
        if self.flush_ms > 0 {
            write!(f, " and {} ms per flush", self.flush_ms)?;
        }
        write!(f, ", a log of {} MiB", mib(self.log))
    }
}

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
            eprintln!("sustained: unavailable: {error}");
            ExitCode::from(UNAVAILABLE)
        }
        Err(error) => {
            eprintln!("sustained: {error}");
            ExitCode::from(74)
        }
    }
}

fn missing(error: untorn_rigs::Error) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, error.to_string())
}

fn measured(root: &Path, arguments: &Arguments) -> io::Result<Table> {
    FileSystem::Ext4.require().map_err(missing)?;
    let built = match &arguments.built {
        Some(directory) => directory.canonicalize()?,
        None => build(root)?,
    };
    let tool = built.join("untorn");
    let script = root.join("xtask/programs/sustained.py");
    let table = isolated(|| rounds(&Bench { tool: &tool, script: &script, arguments })).map_err(missing)??;
    if let Some(plot) = &arguments.plot {
        fs::write(plot, table.svg())?;
    }
    Ok(table)
}

fn rounds(bench: &Bench<'_>) -> io::Result<Table> {
    let arguments = bench.arguments;
    let mut ways = vec![Way::OneSync, Way::SyncEach, Way::Log { batch: None }];
    ways.extend(arguments.batch.iter().filter(|&&batch| batch > 0).map(|&batch| Way::Log { batch: Some(batch) }));
    let terms = Terms {
        rate: arguments.device_rate,
        flush_ms: arguments.flush_ms,
        log: arguments.log_size,
        burst: bench.blocks() * BLOCK,
    };
    let mut table = Table::new(terms, &ways);
    let at = tempfile::Builder::new().prefix("untorn-sustained-").tempdir_in(MEMORY)?;
    let image = at.path().join("image");
    FileSystem::Ext4.make_of(terms.burst + REST, &image).map_err(missing)?;
    let disk = SlowDisk::start(FileSystem::Ext4, &image, at.path()).map_err(missing)?;
    // The disk keeps the open file; it disappears with the disk, however that ends.
    fs::remove_file(&image)?;
    for round in 0..arguments.rounds {
        // Alternate the direction, so that no variant always follows the same other one.
        let order: Vec<usize> = match round % 2 {
            0 => (0..ways.len()).collect(),
            _ => (0..ways.len()).rev().collect(),
        };
        for row in order {
            let (trace, asked) = bench.one(ways[row], &disk, &at.path().join("log"))?;
            table.add(row, trace, asked);
        }
    }
    Ok(table)
}

/// The tools and arguments of the measurement.
struct Bench<'a> {
    tool: &'a Path,
    script: &'a Path,
    arguments: &'a Arguments,
}

impl Bench<'_> {
    fn blocks(&self) -> u64 {
        (self.arguments.burst / BLOCK).max(1)
    }

    /// The writes of one way, and what they asked of the disk until all of them were on it.
    fn one(&self, way: Way, disk: &SlowDisk, log: &Path) -> io::Result<(Trace, Asked)> {
        let arguments = self.arguments;
        disk.set_speed(Speed::FULL);
        self.python(Command::new("python3"), disk, "prepare", &[])?;
        disk.set_speed(Speed {
            bytes_per_second: arguments.device_rate,
            flush: Duration::from_millis(arguments.flush_ms),
        });
        let start = disk.asked();
        let needed = arguments.burst as f64 / arguments.device_rate as f64;
        let (sync, most) = match way {
            Way::OneSync => ("end", f64::from(u32::MAX)),
            Way::SyncEach => ("each", needed),
            Way::Log { .. } => ("each", f64::from(u32::MAX)),
        };
        let words = [sync.to_owned(), BEFORE.to_string(), arguments.after.to_string(), most.to_string()];
        let output = self.python(self.under(way, disk, log), disk, "write", &words)?;
        let end = disk.asked();
        disk.set_speed(Speed::FULL);
        let said = String::from_utf8_lossy(&output.stdout);
        let mut lines = said.lines().map(serde_json::from_str::<Value>);
        let trace = lines.next().and_then(|line| Trace::of(&line.ok()?));
        let trace = trace.ok_or_else(|| io::Error::other(format!("{}: the program printed no times", way.name())))?;
        if let Way::Log { .. } = way {
            let report = lines.next().and_then(Result::ok).unwrap_or_default();
            // A program that ran without the log would look like a boosted one.
            if report["managed"].as_u64().is_none_or(|managed| managed == 0) || report["plain"] != json!([]) {
                return Err(io::Error::other(format!(
                    "{}: the program did not run behind the log: {report}",
                    way.name()
                )));
            }
            fs::remove_file(log)?;
        }
        let counts = trace.counts().map(|count| count.to_string());
        self.python(Command::new("python3"), disk, "check", &counts)?;
        let asked = Asked {
            bytes: end.bytes - start.bytes,
            writes: end.writes - start.writes,
            flushes: end.flushes - start.flushes,
        };
        Ok((trace, asked))
    }

    fn under(&self, way: Way, disk: &SlowDisk, log: &Path) -> Command {
        let Way::Log { batch } = way else { return Command::new("python3") };
        let mut command = Command::new(self.tool);
        command.env("UNTORN_ASSUME_PMEM", "1").args(["run", "--mode", "boost", "--json", "--log"]).arg(log);
        command.args(["--log-size", &self.arguments.log_size.to_string()]);
        if let Some(batch) = batch {
            command.args(["--batch-min", &batch.to_string(), "--batch-max", &batch.to_string()]);
        }
        command.arg("--match").arg(disk.path().join("**")).args(["--", "python3"]);
        command
    }

    /// Runs the script on the disk, in a process of its own: a program that waits for a disk of this kind must be a
    /// separate process.
    fn python(&self, mut command: Command, disk: &SlowDisk, what: &str, words: &[String]) -> io::Result<Output> {
        command.arg(self.script).args([what, &self.blocks().to_string()]).args(words);
        let output = command.current_dir(disk.path()).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{what}: {}: {}", output.status, said.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_burst_has_every_row_and_leaves_what_was_written() {
        untorn_testing::needs!("python3");
        if let Err(error) = FileSystem::Ext4.require() {
            untorn_testing::skip!("a burst to a slow disk: {error}");
        }
        let root = crate::root();
        let directory = untorn_testing::built();
        let tool = directory.join("untorn");
        let script = root.join("xtask/programs/sustained.py");
        let arguments = Arguments {
            device_rate: 32 << 20,
            flush_ms: 1,
            log_size: 1 << 20,
            burst: 3 << 20,
            batch: vec![10, 100],
            after: 0.3,
            rounds: 1,
            built: None,
            json: false,
            plot: None,
        };
        let bench = Bench { tool: &tool, script: &script, arguments: &arguments };
        let table = match isolated(|| rounds(&bench)).map_err(missing).and_then(|table| table) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                untorn_testing::skip!("a burst to a slow disk: {error}");
            }
            table => table.unwrap(),
        };
        let found = table.json();
        let names: Vec<&str> =
            found["rows"].as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
        let all = ["bare, one fsync", "bare, fsync each", "log", "log, batches of 10", "log, batches of 100"];
        assert_eq!(names, all);
        for row in found["rows"].as_array().unwrap() {
            let rounds = row["rounds"].as_array().unwrap();
            assert_eq!(rounds.len(), 1, "{row}");
            for round in rounds {
                let writes = round["over_time"].as_array().unwrap().iter().map(|bin| bin["writes"].as_u64().unwrap());
                // The burst, or the part of it that was done in time, and at least one write before and after.
                let least = if row["name"] == "bare, fsync each" { 3 } else { 2 + (3 << 20) / BLOCK };
                assert!(writes.sum::<u64>() >= least, "{round}");
                assert!(round["sustained_mib_s"].as_f64().unwrap() > 0.0, "{round}");
                if row["name"] != "bare, fsync each" {
                    assert!(round["device"]["bytes"].as_u64().unwrap() >= 3 << 20, "{round}");
                }
            }
        }
        let text = table.text();
        assert!(all.iter().all(|name| text.lines().any(|line| line.starts_with(name))), "{text}");
        let plot = table.svg();
        assert!(all.iter().all(|name| plot.contains(&format!("\n{name}\n"))), "{plot}");
    }

    #[test]
    fn sizes_have_letters_perhaps() {
        assert_eq!(
            [size("4096"), size("3K"), size("20M"), size("1G")],
            [Ok(4096), Ok(3 << 10), Ok(20 << 20), Ok(1 << 30)]
        );
        for text in ["", "0", "M", "-1M", "1.5M", "20MB", "99999999999999999999", "18446744073709551615G"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
