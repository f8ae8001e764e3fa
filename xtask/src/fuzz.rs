//! `cargo xtask fuzz`: runs every fuzz target for some time.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Args;

use crate::nightly;

/// Arguments of `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Seconds per target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Seed of the search, to repeat one; 0 uses a new seed each time
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Run only this target
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Plant a bug and start without a corpus; the fuzzer must find the bug
    #[arg(long)]
    plant: bool,
    /// Only write the initial inputs to fuzz/corpus
    #[arg(long, conflicts_with_all = ["plant", "target"])]
    seed_corpus: bool,
}

/// Bytes of the longest input: more only slows the search.
const MAX_LEN: usize = 1024;
/// Seconds after which one input counts as a hang. They are the clock's, so they must do on a machine that is busy.
const HANG: u64 = 60;
/// MiB that one allocation, and the whole process, may take.
const MALLOC: u64 = 256;
const RSS: u64 = 2048;

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    let fuzz = root.join("fuzz");
    if arguments.seed_corpus {
        return done(seed_corpus(root, &fuzz.join("corpus")));
    }
    if let Err(missing) = tools() {
        eprintln!("fuzz: {missing}");
        return ExitCode::from(nightly::UNAVAILABLE);
    }
    done(run_targets(&fuzz, arguments))
}

fn done(result: io::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(74)
        }
    }
}

/// Has the crate of the targets write the initial inputs of each.
fn seed_corpus(root: &Path, corpus: &Path) -> io::Result<bool> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).env_remove("CARGO_MANIFEST_DIR");
    command.args(["run", "--quiet", "--package", "untorn-fuzz", "--example", "seed_corpus", "--"]).arg(corpus);
    Ok(command.status()?.success())
}

/// The targets: each is a file in `fuzz_targets`.
///
/// # Errors
/// Those of reading the directory, and for a target that does not exist.
fn targets(fuzz: &Path, only: Option<&str>) -> io::Result<Vec<String>> {
    let entries: Vec<_> = fs::read_dir(fuzz.join("fuzz_targets"))?.collect::<io::Result<_>>()?;
    let stem = |entry: &fs::DirEntry| Some(entry.path().file_stem()?.to_str()?.to_owned());
    let mut names: Vec<_> = entries.iter().filter_map(stem).collect();
    names.sort_unstable();
    let Some(only) = only else { return Ok(names) };
    if names.iter().any(|name| name == only) {
        return Ok(vec![only.to_owned()]);
    }
    Err(io::Error::other(format!("there is no target {only}; the targets are {}", names.join(", "))))
}

/// Checks for the needed tools.
///
/// # Errors
/// The missing tool, with the command that installs it.
fn tools() -> Result<(), &'static str> {
    if !nightly::runs(&["--version"]) {
        return Err(nightly::MISSING);
    }
    if !nightly::runs(&["fuzz", "--version"]) {
        return Err("cargo-fuzz is missing: run `cargo install cargo-fuzz --locked`");
    }
    Ok(())
}

/// Runs the targets. Returns whether the result is as required.
fn run_targets(fuzz: &Path, arguments: &Arguments) -> io::Result<bool> {
    let targets = targets(fuzz, arguments.target.as_deref())?;
    let dir = fuzz.join("target").join(if arguments.plant { "planted" } else { "fuzz" });
    build(fuzz, &dir, arguments.plant)?;
    let mut findings = 0;
    for target in &targets {
        let outcome = fuzz_one(fuzz, &dir, target, arguments)?;
        println!("{outcome}");
        findings += u64::from(outcome.finding.is_some());
    }
    if arguments.plant {
        println!("the planted bug was {}", if findings > 0 { "found" } else { "NOT FOUND" });
        return Ok(findings > 0);
    }
    println!("{findings} findings");
    Ok(findings == 0)
}

/// Build options. The sanitizer is off, because it makes executions ten times slower and would find little: the targets
/// run safe code, and the simulated medium allocates as the standard library does. Overflow checks and all assertions
/// are on. With one codegen unit per crate, the build would take minutes on one core.
const BUILT: [&str; 4] = ["--sanitizer", "none", "--codegen-units", "16"];

/// Builds all targets.
fn build(fuzz: &Path, dir: &Path, plant: bool) -> io::Result<()> {
    let mut command = nightly::cargo(&["fuzz", "build", "--fuzz-dir"]);
    command.arg(fuzz).arg("--target-dir").arg(dir).args(BUILT);
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    if plant {
        flags.push_str(" --cfg untorn_plant");
    }
    let status = command.env("RUSTFLAGS", flags).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other("the fuzz targets do not build; see the compiler's messages above"))
    }
}

/// The result of one target.
struct Outcome {
    name: String,
    executions: u64,
    seconds: f64,
    /// The finding, and the input if there is one.
    finding: Option<(String, Option<PathBuf>)>,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { name, executions, seconds, finding } = self;
        let rate = *executions as f64 / seconds.max(0.001);
        write!(f, "{name}: {executions} executions in {seconds:.1} s ({rate:.0}/s), ")?;
        match finding {
            None => write!(f, "0 findings"),
            Some((what, None)) => write!(f, "1 finding: {what}"),
            Some((what, Some(input))) => write!(f, "1 finding: {what}\n  input: {}", input.display()),
        }
    }
}

fn fuzz_one(fuzz: &Path, dir: &Path, name: &str, arguments: &Arguments) -> io::Result<Outcome> {
    // The inputs that a run finds go beside the build; the committed corpus is only read.
    let learnt = dir.join("learnt").join(name);
    let artifacts = dir.join("artifacts").join(name);
    if arguments.plant && learnt.exists() {
        fs::remove_dir_all(&learnt)?;
    }
    for dir in [&learnt, &artifacts] {
        fs::create_dir_all(dir)?;
    }
    let mut command = nightly::cargo(&["fuzz", "run", "--fuzz-dir"]);
    command.arg(fuzz).arg("--target-dir").arg(dir).args(BUILT).arg(name).arg(&learnt);
    if !arguments.plant {
        command.arg(fuzz.join("corpus").join(name));
    }
    let mut prefix = OsString::from("-artifact_prefix=");
    prefix.push(artifacts.join(""));
    command.arg("--").arg(prefix).args([
        format!("-max_total_time={}", arguments.seconds),
        format!("-seed={}", arguments.seed),
        format!("-max_len={MAX_LEN}"),
        format!("-timeout={HANG}"),
        format!("-malloc_limit_mb={MALLOC}"),
        format!("-rss_limit_mb={RSS}"),
        "-print_final_stats=1".to_owned(),
    ]);
    if arguments.plant {
        command.env("RUSTFLAGS", "--cfg untorn_plant");
    }
    let start = Instant::now();
    let output = command.output()?;
    let seconds = start.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr);
    let finding = if output.status.success() { None } else { Some(what_died(&said)) };
    Ok(Outcome { name: name.to_owned(), executions: executions(&said), seconds, finding })
}

/// libFuzzer's own count: its last line of statistics, or the last progress line where it died before.
fn executions(said: &str) -> u64 {
    let counted = said.lines().filter_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let progress = said.lines().filter_map(|line| line.strip_prefix('#')?.split_whitespace().next());
    counted.chain(progress).filter_map(|number| number.trim().parse().ok()).max().unwrap_or(0)
}

/// The line that reports the finding, and the file that the input was written to.
fn what_died(said: &str) -> (String, Option<PathBuf>) {
    let lines = || said.lines();
    let panic = lines().position(|line| line.contains("panicked at"));
    let panicked = panic.map(|at| lines().skip(at).take(2).map(str::trim).collect::<Vec<_>>().join(" "));
    let summary = || lines().find(|line| line.contains("SUMMARY:") || line.contains("ERROR:")).map(str::to_owned);
    let what = panicked.or_else(summary).or_else(|| lines().last().map(str::to_owned)).unwrap_or_default();
    let input = lines().find_map(|line| line.split("Test unit written to ").nth(1)).map(PathBuf::from);
    (what, input)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIED: &str = "#2\tINITED cov: 9\n#37\tNEW    cov: 10\nthread '<unnamed>' panicked at src/a.rs:1:2:\nindex 9\n\
        ==1== ERROR: libFuzzer: deadly signal\nSUMMARY: libFuzzer: deadly signal\n\
        artifact_prefix='a/'; Test unit written to a/crash-1\n";

    #[test]
    fn libfuzzer_output_is_parsed() {
        assert_eq!(executions(DIED), 37);
        assert_eq!(executions("#8 pulse\nDone 900 runs\nstat::number_of_executed_units: 900\n"), 900);
        let (what, input) = what_died(DIED);
        assert!(what.ends_with("panicked at src/a.rs:1:2: index 9"), "{what}");
        assert_eq!(input, Some(PathBuf::from("a/crash-1")));
        let (what, input) = what_died("==7== ERROR: libFuzzer: timeout after 10 seconds\n");
        assert!(what.contains("timeout") && input.is_none(), "{what}");
    }
}
