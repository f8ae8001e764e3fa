//! `cargo xtask explore`: runs the crash explorer on every core.

use std::fs;
use std::io::{self, IsTerminal, Write, stderr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use untorn::EngineKind;
use untorn::testing::storage::MediumClass;
use untorn_sim::explore::{self, Outcome, Settings, Target, Violation};

/// Arguments of `cargo xtask explore`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of distinct states to check
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    states: u64,
    /// Seed of all random decisions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Fault model
    #[arg(long, value_enum, default_value_t = Media::Both)]
    medium: Media,
    /// Engine: a file engine; `snapshot`, for region stores; `cache`, the write cache; `redundancy`, for plain files;
    /// or `covered`, redundancy of files with an engine
    #[arg(long, value_name = "ENGINE", default_value_t = Target::Files(EngineKind::Reflection))]
    engine: Target,
    /// Run only the mutants and the canary
    #[arg(long, conflicts_with = "no_mutants")]
    mutants_only: bool,
    /// Skip the mutants
    #[arg(long)]
    no_mutants: bool,
    /// Number of threads [default: the number of cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Seconds after which a mutant is acquitted even if not all of its cases were tried
    #[arg(long, value_name = "S", default_value_t = 1800)]
    mutant_time: u64,
    /// Start the search for each mutant with the case in `xtask/convictions` that convicted it before
    #[arg(long)]
    known_first: bool,
    /// Write the cases that convict the mutants to `xtask/convictions`, for `--known-first`
    #[arg(long, conflicts_with = "no_mutants")]
    note: bool,
    /// Print one JSON object before the last line
    #[arg(long)]
    json: bool,
    /// Run one case again, given the token of a violation
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["mutants_only", "no_mutants", "json", "note"])]
    replay: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Media {
    Pmem,
    Block,
    Both,
}

impl Media {
    fn classes(self) -> Vec<MediumClass> {
        let mut classes = Vec::new();
        if self != Media::Block {
            classes.push(MediumClass::PersistentMemory);
        }
        if self != Media::Pmem {
            classes.push(MediumClass::Block);
        }
        classes
    }
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Some(token) = &arguments.replay {
        return replay(token);
    }
    let known = crate::root().join("xtask/convictions").join(arguments.engine.to_string());
    let try_first = match arguments.known_first.then(|| tokens(&known)).transpose() {
        Ok(tokens) => tokens.unwrap_or_default(),
        Err(code) => return code,
    };
    let settings = Settings {
        states: arguments.states,
        seed: arguments.seed,
        media: arguments.medium.classes(),
        target: arguments.engine,
        jobs: arguments.jobs.unwrap_or_else(|| available_parallelism().map_or(1, usize::from)),
        mutant_time: Duration::from_secs(arguments.mutant_time),
        try_first,
        ..Settings::default()
    };
    let bar = Bar::new();
    let progress = |what: &str, done: u64, total: u64| bar.show(what, done, total);
    let mut outcome = Outcome::default();
    if !arguments.mutants_only {
        outcome = explore::explore(&settings, &progress);
    }
    let explored = bar.start.elapsed();
    if !arguments.no_mutants {
        outcome.mutants = explore::mutants(&settings, &progress);
    }
    outcome.canaries = explore::canary(&settings);
    bar.clear();
    if arguments.json {
        println!("{}", to_json(&settings, &outcome, explored, bar.start.elapsed()));
    } else {
        print_details(&settings, &outcome, explored);
    }
    println!("{outcome}");
    if let Some(Err(code)) = arguments.note.then(|| note(&known, &outcome)) {
        return code;
    }
    if outcome.clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tokens(file: &Path) -> Result<Vec<String>, ExitCode> {
    let text = fs::read_to_string(file).map_err(|error| cannot("read", file, &error))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn note(file: &Path, outcome: &Outcome) -> Result<(), ExitCode> {
    let convictions = outcome.mutants.iter().filter_map(|mutant| mutant.conviction.as_ref());
    let text: String = convictions.map(|violation| violation.replay.clone() + "\n").collect();
    fs::write(file, text).map_err(|error| cannot("write", file, &error))
}

fn cannot(what: &str, file: &Path, error: &io::Error) -> ExitCode {
    eprintln!("explore: cannot {what} {}: {error}", file.display());
    ExitCode::from(74)
}

fn replay(token: &str) -> ExitCode {
    match explore::replay(token) {
        Ok(Some(violation)) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
        Ok(None) => {
            println!("no violation");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("explore: {message}");
            ExitCode::from(64)
        }
    }
}

fn print_details(settings: &Settings, outcome: &Outcome, explored: Duration) {
    for violation in &outcome.violations {
        println!("{violation}\n");
    }
    if outcome.cases > 0 {
        let rate = outcome.recoveries as f64 / explored.as_secs_f64().max(1e-9);
        println!(
            "seed {}: {} cases, {} recoveries in {:.1} s ({rate:.0} per second)",
            settings.seed,
            outcome.cases,
            outcome.recoveries,
            explored.as_secs_f64()
        );
    }
    for mutant in &outcome.mutants {
        match &mutant.conviction {
            Some(violation) => println!(
                "mutant {}: convicted in {} cases: {} (--replay {})",
                mutant.barrier, mutant.cases, violation.finding, violation.replay
            ),
            None if mutant.reached => println!("mutant {}: NOT CONVICTED in {} cases", mutant.barrier, mutant.cases),
            None => println!("mutant {}: NEVER REACHED in {} cases", mutant.barrier, mutant.cases),
        }
    }
    for canary in &outcome.canaries {
        match &canary.conviction {
            Some(violation) => println!("canary on {}: convicted: {}", canary.medium, violation.finding),
            None => println!("canary on {}: ACQUITTED", canary.medium),
        }
    }
}

fn to_json(settings: &Settings, outcome: &Outcome, explored: Duration, all: Duration) -> serde_json::Value {
    let violation = |violation: &Violation| {
        json!({
            "replay": violation.replay,
            "config": violation.config,
            "operations": violation.operations,
            "instant": violation.instant,
            "choice": violation.choice,
            "finding": violation.finding,
        })
    };
    let conviction = |found: &Option<Violation>| found.as_ref().map(violation);
    json!({
        "seed": settings.seed,
        "engine": settings.target.to_string(),
        "states": outcome.states,
        "recoveries": outcome.recoveries,
        "cases": outcome.cases,
        "seconds": { "explore": explored.as_secs_f64(), "all": all.as_secs_f64() },
        "violations": outcome.violations.iter().map(violation).collect::<Vec<_>>(),
        "mutants": outcome.mutants.iter().map(|mutant| json!({
            "barrier": mutant.barrier,
            "convicted": mutant.conviction.is_some(),
            "reached": mutant.reached,
            "cases": mutant.cases,
            "violation": conviction(&mutant.conviction),
        })).collect::<Vec<_>>(),
        "canary": outcome.canaries.iter().map(|canary| json!({
            "medium": canary.medium,
            "convicted": canary.conviction.is_some(),
            "violation": conviction(&canary.conviction),
        })).collect::<Vec<_>>(),
        "clean": outcome.clean(),
    })
}

/// A progress line on stderr, updated at most ten times a second; nothing if stderr is not a terminal.
struct Bar {
    start: Instant,
    last: Mutex<Instant>,
    terminal: bool,
}

impl Bar {
    fn new() -> Self {
        Bar { start: Instant::now(), last: Mutex::new(Instant::now()), terminal: stderr().is_terminal() }
    }

    fn show(&self, what: &str, done: u64, total: u64) {
        if !self.terminal {
            return;
        }
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.elapsed() > Duration::from_millis(100) {
            *last = Instant::now();
            // Don't stop if the progress line cannot be written.
            let _ = write!(stderr(), "\r{what}: {done} of {total}, {:.0} s\x1b[K", self.start.elapsed().as_secs_f64());
        }
    }

    fn clear(&self) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
