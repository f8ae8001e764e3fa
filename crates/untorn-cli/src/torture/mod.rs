//! `untorn torture`: repeatedly kills a writing process or cuts its disk's power, and checks every promise each time.

mod block;
mod dax;
mod healing;
mod keep;
mod model;
mod plan;
mod report;
mod rounds;
mod target;
mod verifier;
mod write_back;
mod writer;

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::json;
use untorn::{Durability, EngineKind};

use crate::cli::{Log, Torture};
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Colour, paint};
use crate::rng;

use target::Face;
pub(crate) use verifier::run as verifier;
pub(crate) use writer::run as writer;

/// The default duration of `--medium process`, in seconds.
const SECONDS: u64 = 10;

/// The settings of a test, with every default resolved.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    engine: EngineKind,
    durability: Durability,
    /// The interface that the writer uses.
    face: Face,
    log: Log,
    threads: usize,
    seconds: u64,
    seed: u64,
    parent: PathBuf,
}

/// The results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Kills of the writing process.
    kills: u64,
    /// Kills of a recovering process.
    recovery_kills: u64,
    /// Pages damaged between two runs of the writer.
    damaged: u64,
    /// Operations that returned.
    operations: u64,
    /// Operations acknowledged as durable.
    acknowledged: u64,
    /// Violations found after the last kill.
    violations: Vec<String>,
    /// The directory with the files of the violation.
    kept: Option<PathBuf>,
}

/// Runs the test.
pub(crate) fn run(args: &Torture) -> Result<Exit> {
    if args.redundancy && args.medium != "process" {
        return Err(Failure::usage("--redundancy needs --medium process"));
    }
    if args.redundancy && args.engine == EngineKind::Passthrough {
        return Err(Failure::usage(
            "--redundancy needs an engine other than passthrough, which does not report its stores",
        ));
    }
    match args.medium.as_str() {
        "process" => {}
        "block" => return block::run(args),
        _ => return dax::run(args),
    }
    let stray = [
        (args.images.is_some(), "--images"),
        (args.lying_disk, "--lying-disk"),
        (args.keep.is_some(), "--keep"),
        (args.replay.is_some(), "--replay"),
        (args.kernel.is_some(), "--kernel"),
    ];
    if let Some((_, name)) = stray.iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!("{name} does not apply to --medium process; omit it")));
    }
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let (engine, durability) = served(args)?;
    args.log.require(&[engine])?;
    let found = untorn::doctor(&parent)?;
    let durability = durability.unwrap_or(found.durability);
    let engine = match engine {
        // As an open chooses.
        EngineKind::Auto if args.redundancy || durability == Durability::PerWrite => EngineKind::Reflection,
        EngineKind::Auto => found.engine,
        engine => engine,
    };
    let setting = Setting {
        engine,
        durability,
        face: face(args),
        log: args.log,
        threads: usize::from(args.threads),
        seconds: args.seconds.unwrap_or(SECONDS),
        seed: args.seed.unwrap_or_else(rng::fresh_seed),
        parent,
    };
    let outcome = rounds::run(&setting)?;
    let object = json!({
        "engine": setting.face.engine(setting.engine),
        "medium": args.medium,
        "seed": setting.seed,
        "runs": outcome.kills,
        "violations": outcome.violations.len(),
        "durability": setting.durability.as_str(),
        "map": setting.face == Face::Map,
        "region": setting.face == Face::Region,
        "redundancy": setting.face == Face::Healed,
        "damaged": outcome.damaged,
        "threads": setting.threads,
        "recovery_kills": outcome.recovery_kills,
        "operations": outcome.operations,
        "acknowledged": outcome.acknowledged,
        "details": outcome.violations,
        "kept": outcome.kept.as_ref().map(|path| path.display().to_string()),
    });
    output::report(args.form.json, &object, || words(&setting, &outcome))?;
    if !outcome.violations.is_empty() {
        return Ok(Exit::Attention);
    }
    if outcome.operations == 0 {
        // No violation, but nothing happened: that is not a pass.
        let message = "no operation finished in time, so nothing was tested; raise --seconds";
        return Err(Failure { exit: Exit::Attention, path: None, message: message.to_owned() });
    }
    Ok(Exit::Clean)
}

fn face(args: &Torture) -> Face {
    match (args.region, args.map, args.redundancy) {
        (true, ..) => Face::Region,
        (_, true, _) => Face::Map,
        (.., true) => Face::Healed,
        _ => Face::File,
    }
}

/// The requested engine and durability. Only one engine serves plain stores, and they become durable at a commit.
fn served(args: &Torture) -> Result<(EngineKind, Option<Durability>)> {
    if args.region {
        if args.engine != EngineKind::Auto || args.log != Log::default() {
            return Err(Failure::usage(
                "--region uses the region store's own engine; omit --engine, --log-policy and --log-size",
            ));
        }
        if args.durability == Some(Durability::PerWrite) {
            return Err(Failure::usage("--region needs --durability commit: plain stores become durable at pmsync"));
        }
        return Ok((EngineKind::Auto, Some(Durability::PerCommit)));
    }
    if !args.map {
        return Ok((args.engine, args.durability));
    }
    if !matches!(args.engine, EngineKind::Auto | EngineKind::HybridLog) {
        return Err(Failure::usage(format!("--map needs --engine hybrid-log, not {}", args.engine)));
    }
    if args.durability == Some(Durability::PerWrite) {
        return Err(Failure::usage("--map needs --durability commit: plain stores become durable at a commit"));
    }
    Ok((EngineKind::HybridLog, Some(Durability::PerCommit)))
}

fn words(setting: &Setting, outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}engine {}, durable at each {}, {}, seed {}",
        setting.face.words(),
        setting.face.engine(setting.engine),
        setting.durability,
        output::count(setting.threads as u64, "thread", "threads"),
        setting.seed
    );
    let _ = writeln!(
        text,
        "{} of the writer, {} of a recovering process; {} operations, {} of them acknowledged as durable",
        output::count(outcome.kills, "kill", "kills"),
        outcome.recovery_kills,
        outcome.operations,
        outcome.acknowledged
    );
    if setting.face == Face::Healed {
        let pages = output::count(outcome.damaged, "page was", "pages were");
        let _ = writeln!(text, "{pages} damaged between runs of the writer, for repair to restore");
    }
    if outcome.violations.is_empty() {
        let _ = writeln!(text, "{}", paint(Colour::Good, "no violation"));
    } else {
        let count = output::count(outcome.violations.len() as u64, "violation", "violations");
        let _ = writeln!(text, "{} after the last kill:", paint(Colour::Bad, &count));
        for violation in &outcome.violations {
            let _ = writeln!(text, "  - {violation}");
        }
        if let Some(kept) = &outcome.kept {
            let _ = writeln!(
                text,
                "The files are kept in {}; the state between the kill and the recovery is in its subdirectory \
                 `crashed`.\n\
                 `untorn torture --seed {}` repeats the operations, but not the instant of the kill.",
                kept.display(),
                setting.seed
            );
        }
    }
    text += &output::fold(
        "Checked after each kill: every operation is atomic, also across several blocks (C1); no operation \
         acknowledged \
         as durable is lost (C2); with per-write durability, no data that a read returned is lost (C3). Not checked: \
         flush order. A killed process leaves the page cache intact, so kills cannot expose a missing flush; \
         `--medium block` cuts the power of a disk and needs root.",
    );
    text
}
