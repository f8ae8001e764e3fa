//! `cargo xtask inject`: damages protected files thousands of times.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use untorn_rigs::injection::{self, Outcome, Settings, Watch};

/// Arguments of `cargo xtask inject`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of damages per kind, part and medium
    #[arg(long, value_name = "N", default_value_t = 1000)]
    cases: u64,
    /// Seed of all random decisions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of pages per file
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(8..1 << 20))]
    pages: u64,
    /// Seconds to scrub files during stores, on each medium: with announced stores, and with each engine
    #[arg(long, value_name = "S", default_value_t = 10)]
    watch: u64,
    /// Directory for the files [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Print one JSON object before the last line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let start = Instant::now();
    let settings = Settings {
        cases: arguments.cases,
        seed: arguments.seed,
        dir: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        pages: arguments.pages,
        watch: Duration::from_secs(arguments.watch),
        jobs: arguments.jobs,
    };
    let outcome = match injection::run(&settings, &|row| println!("{row}")) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("inject: {error}");
            return ExitCode::from(74);
        }
    };
    for watch in &outcome.watches {
        println!(
            "{:4} {:10} {} stores, {} scrubs of {} pages at the same time: {} false alarms",
            watch.place,
            who(watch),
            watch.stores,
            watch.scrubs,
            watch.compared,
            watch.alarms
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    if arguments.json {
        println!("{}", to_json(arguments.seed, &outcome, seconds));
    }
    let sum = |of: fn(&injection::Row) -> u64| outcome.rows.iter().map(of).sum::<u64>();
    println!(
        "injected {}, found {}, restored {}, wrongly restored {}, spoiled {}, false alarms {}; {seconds:.0} s",
        sum(|row| row.injected),
        sum(|row| row.found),
        sum(|row| row.restored),
        sum(|row| row.wrong),
        sum(|row| row.spoiled),
        sum(|row| row.alarms) + outcome.watches.iter().map(|watch| watch.alarms).sum::<u64>(),
    );
    if outcome.clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The name of the way in which threads store to a watched file.
fn who(watch: &Watch) -> String {
    watch.engine.map_or("announced".to_owned(), |engine| engine.to_string())
}

fn to_json(seed: u64, outcome: &Outcome, seconds: f64) -> serde_json::Value {
    let rows = outcome.rows.iter().map(|row| {
        json!({
            "place": row.place.to_string(),
            "part": row.part.to_string(),
            "kind": row.kind.to_string(),
            "injected": row.injected,
            "found": row.found,
            "restored": row.restored,
            "wrong": row.wrong,
            "spoiled": row.spoiled,
            "false_alarms": row.alarms,
        })
    });
    let watches = outcome.watches.iter().map(|watch| {
        json!({
            "place": watch.place.to_string(),
            "engine": watch.engine.map(|engine| engine.to_string()),
            "stores": watch.stores,
            "scrubs": watch.scrubs,
            "pages_compared": watch.compared,
            "false_alarms": watch.alarms,
        })
    });
    json!({
        "seed": seed,
        "rows": rows.collect::<Vec<_>>(),
        "watches": watches.collect::<Vec<_>>(),
        "seconds": seconds,
        "clean": outcome.clean(),
    })
}
