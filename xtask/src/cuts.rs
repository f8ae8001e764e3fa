//! `cargo xtask cuts`: runs the consistent-cut tests for longer than `cargo test` does.

use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use clap::{Args, ValueEnum};

/// Arguments of `cargo xtask cuts`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Kind of memory that the processes share [default: all three]
    #[arg(value_enum)]
    what: Option<What>,
    /// Number of commits per run
    #[arg(long, default_value_t = 10_000)]
    commits: u64,
    /// Seconds after which a waiting process counts as stuck; raise it on a busy machine
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=120))]
    patience: u64,
    /// Seed that selects the processes to kill
    #[arg(long, default_value_t = 0x5eed)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Shared memory over a journal of the test itself
    Copy,
    /// `SharedMap`, over the hybrid log
    Map,
    /// `SharedRegion`, over the snapshot engine, with pages allocated and freed
    Region,
}

impl What {
    /// Its tests.
    fn filter(self) -> &'static str {
        match self {
            What::Copy => "ipc::memory::tests::cuts::",
            What::Map => "shared::map::tests::cuts::",
            What::Region => "region::shared::tests::cuts::",
        }
    }
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    match run_tests(root, arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cuts: {error}");
            ExitCode::from(74)
        }
    }
}

/// Whether there were runs and all held.
fn run_tests(root: &Path, arguments: &Arguments) -> io::Result<bool> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null()).stdout(Stdio::piped());
    // Optimise, because the tests measure stalls. Link fast, because the build has no other use.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command.env("UNTORN_CUTS", arguments.commits.to_string()).env("UNTORN_SEED", arguments.seed.to_string());
    command.env("UNTORN_PATIENCE", arguments.patience.to_string());
    command.args(["test", "--quiet", "--package", "untorn", "--lib", "--release", "--target-dir"]);
    command.arg(crate::target(root, "cuts")).arg(arguments.what.map_or("::tests::cuts::", What::filter));
    // One test at a time: another run's processes would disturb it.
    let mut child = command.args(["--", "--nocapture", "--test-threads=1"]).spawn()?;
    let mut sum = Sum::default();
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line?;
        match report(&line) {
            Some(report) => {
                println!("{}", report.text);
                sum.add(&report);
            }
            // The test harness's own lines.
            None if line.contains("test result: ok") || line.starts_with("running ") => {}
            None if line.trim_matches('.').is_empty() => {}
            None => eprintln!("{line}"),
        }
    }
    let held = child.wait()?.success() && sum.runs > 0;
    println!("{sum}: {}", if held { "all hold" } else { "NOT ALL HOLD; see the messages above" });
    Ok(held)
}

/// A run's report.
#[derive(Debug, PartialEq)]
struct Report<'a> {
    text: &'a str,
    commits: u64,
    kills: u64,
    torn: u64,
    /// The longest wait of any process, in milliseconds.
    longest: f64,
    /// Whether the run has a planted bug, and so must be convicted.
    planted: bool,
}

/// Understands the line of a run. The test harness may have begun it.
fn report(line: &str) -> Option<Report<'_>> {
    let text = &line[line.find("cuts of a ")?..];
    let before = |word: &str| text.split_once(word)?.0.rsplit(' ').next()?.parse().ok();
    let after = |word: &str| text.split_once(word)?.1.split(' ').next()?.parse::<f64>().ok();
    let waits = ["longest store ", " ms, commit ", "gap between commits "].map(after);
    let longest = waits.into_iter().try_fold(0.0, |longest: f64, wait| Some(longest.max(wait?)))?;
    let planted = text.contains(" with the bug ");
    Some(Report {
        text,
        commits: before(" commits in ")?,
        kills: before(" kills (")?,
        torn: before(" torn ")?,
        longest,
        planted,
    })
}

/// The totals of all runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    commits: u64,
    kills: u64,
    torn: u64,
    longest: f64,
    planted: u64,
}

impl Sum {
    fn add(&mut self, report: &Report<'_>) {
        if report.planted {
            // The test itself checks that the bug is convicted.
            self.planted += 1;
            return;
        }
        self.runs += 1;
        self.commits += report.commits;
        self.kills += report.kills;
        self.torn += report.torn;
        self.longest = self.longest.max(report.longest);
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sum { runs, commits, kills, torn, longest, planted } = self;
        write!(
            f,
            "{runs} runs, {commits} commits, {kills} kills, {torn} torn; longest stall {longest:.1} ms; {planted} \
             runs with planted bugs"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_reports_are_parsed() {
        let said = "cuts of a region: 2 processes, 10003 commits in 12.5 s, 4711 tickets, 200 kills (101 of the \
                    server, 3 of one about to join), 0 torn None; longest store 7.5 ms, commit 41.0 ms, gap between \
                    commits 30.2 ms";
        let expected = Report { text: said, commits: 10_003, kills: 200, torn: 0, longest: 41.0, planted: false };
        let line = format!("..{said}");
        assert_eq!(report(&line), Some(expected));
        let planted = line.replace("region: 2 processes", "region: 2 processes with the bug Heir");
        let (held, planted) = (report(&line).unwrap(), report(&planted).unwrap());
        assert!(planted.planted && planted.commits == 10_003);
        let mut sum = Sum::default();
        [&held, &planted, &held].into_iter().for_each(|report| sum.add(report));
        assert_eq!(
            sum.to_string(),
            "2 runs, 20006 commits, 400 kills, 0 torn; longest stall 41.0 ms; 1 runs with planted bugs"
        );
        assert_eq!(report("running 12 tests"), None);
        assert_eq!(report("cuts of a region: 2 processes"), None);
    }
}
