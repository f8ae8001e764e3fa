//! `untorn torture --medium block`: cuts the power of a disk under a real file system, and checks every promise on the
//! possible contents of that disk.
//!
//! Each file system has one chain:
//!
//! 1. The writing process runs on a recorded disk.
//! 2. The chain builds images of crashes at random instants of that run, and mounts, recovers and verifies each one.
//! 3. The next run starts on one of those images *before* its recovery. So the next record begins with the mount after
//!    a
//!    crash and with untorn's recovery, and includes crashes during both.

mod chain;
mod examine;
mod kept;
mod life;

use std::fmt::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use untorn::{Durability, EngineKind};
use untorn_rigs::block::{FileSystem, isolated};

use crate::cli::Torture;
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Colour, paint};
use crate::torture::target::Face;
use crate::{progress, rng};
use chain::{Chain, Control};

/// The default number of images.
const IMAGES: u64 = 100;
/// Memory-backed on every Linux. The images are written and read whole, and need no durability.
const FAST: &str = "/dev/shm";

/// The settings of a test, with every default resolved.
#[derive(Clone, Debug)]
struct Setting {
    engine: EngineKind,
    /// When a write becomes durable; `None` alternates from run to run.
    durability: Option<Durability>,
    /// The interface that the writer uses.
    face: Face,
    threads: usize,
    seed: u64,
    images: u64,
    kinds: Vec<FileSystem>,
    /// Whether the disk acknowledges flushes that it does not perform.
    lying: bool,
    /// Directory for building images.
    scratch: PathBuf,
    /// Directory for keeping images with a violation.
    keep: PathBuf,
}

/// The results of one file system's chain.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Runs of the writing process.
    lives: u64,
    /// Operations that returned in those runs.
    operations: u64,
    /// Images recovered and verified.
    images: u64,
    /// Images with pending writes at the instant of the crash.
    unflushed: u64,
    /// Operations that the images had to hold, beyond those of earlier runs.
    acknowledged: u64,
    /// Images that the file system did not mount. They prove nothing about untorn.
    refused: u64,
    /// Violations on the last image.
    violations: Vec<String>,
    /// The directory where that image is kept.
    kept: Option<PathBuf>,
}

/// Cuts the power repeatedly.
pub(super) fn run(args: &Torture) -> Result<Exit> {
    // With this variable, untorn would trust caches that a power cut empties, and the test would report false
    // violations.
    if std::env::var_os("UNTORN_ASSUME_PMEM").is_some_and(|value| !value.is_empty()) {
        return Err(Failure::usage(
            "UNTORN_ASSUME_PMEM is set, but a disk treated as persistent memory does not survive a power cut; unset it",
        ));
    }
    if let Some(name) = args.log.given() {
        return Err(Failure::usage(format!("{name} does not apply to --medium block; omit it")));
    }
    if let Some(case) = &args.replay {
        return replay(args, case);
    }
    let setting = setting(args)?;
    for kind in &setting.kinds {
        kind.require()?;
    }
    let start = Instant::now();
    let outcomes = isolated(|| run_chains(&setting, args.seconds))??;
    let object = report(&setting, &outcomes);
    output::report(args.form.json, &object, || words(&setting, &outcomes, start.elapsed()))?;
    if outcomes.iter().any(|outcome| !outcome.violations.is_empty()) {
        return Ok(Exit::Attention);
    }
    if outcomes.iter().any(|outcome| outcome.images == 0 || outcome.acknowledged == 0) {
        // No violation, but nothing happened: that is not a pass.
        let message = "on one of the file systems, no image held an acknowledged operation, so nothing was tested; \
                    raise \
                       --images or --seconds";
        return Err(Failure { exit: Exit::Attention, path: None, message: message.to_owned() });
    }
    Ok(Exit::Clean)
}

fn setting(args: &Torture) -> Result<Setting> {
    let fast = PathBuf::from(FAST);
    let scratch = args.dir.clone().unwrap_or_else(|| if fast.is_dir() { fast } else { std::env::temp_dir() });
    let mut kinds = args.fs.clone();
    kinds.dedup();
    let (engine, durability) = super::served(args)?;
    Ok(Setting {
        engine: if engine == EngineKind::Auto { untorn::doctor(&scratch)?.engine } else { engine },
        durability,
        face: super::face(args),
        threads: usize::from(args.threads),
        seed: args.seed.unwrap_or_else(rng::fresh_seed),
        images: args.images.unwrap_or(IMAGES),
        kinds,
        lying: args.lying_disk,
        scratch,
        keep: args.keep.clone().unwrap_or_else(std::env::temp_dir),
    })
}

/// Runs one chain per file system, in parallel.
fn run_chains(setting: &Setting, seconds: Option<u64>) -> Result<Vec<Outcome>> {
    let bar = progress::bar(setting.images, &format!("seed {}", setting.seed));
    let control = Control::new(bar.clone(), seconds.map(Duration::from_secs));
    let count = setting.kinds.len() as u64;
    let results: Vec<Result<Outcome>> = thread::scope(|scope| {
        let start = |(number, &kind): (usize, &FileSystem)| {
            let number = number as u64;
            // The shares add up to the requested number.
            let share = setting.images / count + u64::from(number < setting.images % count);
            let control = &control;
            scope.spawn(move || {
                let result = Chain::start(setting, kind).and_then(|chain| chain.run(share, control));
                if result.as_ref().is_ok_and(|outcome| outcome.violations.is_empty()) {
                    return result;
                }
                // There is a violation or an error: the other chains can stop.
                control.stop();
                result
            })
        };
        let threads: Vec<_> = setting.kinds.iter().enumerate().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    bar.finish_and_clear();
    results.into_iter().collect()
}

fn replay(args: &Torture, directory: &std::path::Path) -> Result<Exit> {
    let case = kept::Case::load(directory)?;
    case.file_system()?.require()?;
    let scratch = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let verdict = isolated(|| case.replay(directory, &scratch))??;
    let violations = match verdict {
        examine::Verdict::Checked(wrong) => wrong,
        examine::Verdict::Refused(why) => return Err(Failure { exit: Exit::Io, path: None, message: why }),
    };
    let object = json!({
        "engine": case.engine,
        "medium": "block",
        "seed": case.seed,
        "runs": 1,
        "violations": violations.len(),
        "file_system": case.file_system,
        "instant": case.instant,
        "fate": case.fate,
        "details": violations,
    });
    output::report(args.form.json, &object, || {
        let mut text = format!("The kept {} disk, which {}:\n", case.file_system, case.fate);
        say_violations(&mut text, &violations);
        text
    })?;
    Ok(if violations.is_empty() { Exit::Clean } else { Exit::Attention })
}

fn durability(setting: &Setting) -> &'static str {
    setting.durability.map_or("both", Durability::as_str)
}

fn report(setting: &Setting, outcomes: &[Outcome]) -> Value {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let each = setting.kinds.iter().zip(outcomes).map(|(kind, outcome)| {
        json!({
            "file_system": kind.as_str(),
            "lives": outcome.lives,
            "images": outcome.images,
            "unflushed": outcome.unflushed,
            "refused": outcome.refused,
            "acknowledged": outcome.acknowledged,
        })
    });
    let details: Vec<&String> = outcomes.iter().flat_map(|outcome| &outcome.violations).collect();
    let kept = outcomes.iter().find_map(|outcome| outcome.kept.as_ref());
    json!({
        "engine": setting.face.engine(setting.engine),
        "medium": "block",
        "seed": setting.seed,
        "runs": sum(|outcome| outcome.images),
        "violations": details.len(),
        "durability": durability(setting),
        "map": setting.face == Face::Map,
        "region": setting.face == Face::Region,
        "threads": setting.threads,
        "lying_disk": setting.lying,
        "lives": sum(|outcome| outcome.lives),
        "operations": sum(|outcome| outcome.operations),
        "acknowledged": sum(|outcome| outcome.acknowledged),
        "file_systems": each.collect::<Vec<_>>(),
        "details": details,
        "kept": kept.map(|path| path.display().to_string()),
    })
}

fn words(setting: &Setting, outcomes: &[Outcome], took: Duration) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}engine {}, durability {}, {}, seed {}{}",
        setting.face.words(),
        setting.face.engine(setting.engine),
        durability(setting),
        output::count(setting.threads as u64, "thread", "threads"),
        setting.seed,
        if setting.lying { "; a lying disk" } else { "" },
    );
    for (kind, outcome) in setting.kinds.iter().zip(outcomes) {
        let _ = writeln!(
            text,
            "{kind}: {} from {} with {} operations; {} had unflushed writes; {} could not be mounted",
            output::count(outcome.images, "image", "images"),
            output::count(outcome.lives, "run", "runs"),
            outcome.operations,
            outcome.unflushed,
            outcome.refused,
        );
    }
    let _ = writeln!(text, "{:.1} s", took.as_secs_f64());
    let violations: Vec<String> = outcomes.iter().flat_map(|outcome| outcome.violations.clone()).collect();
    say_violations(&mut text, &violations);
    for kept in outcomes.iter().filter_map(|outcome| outcome.kept.as_ref()) {
        let _ = writeln!(
            text,
            "The disk image and its case are kept in {0};\n`untorn torture --medium block --replay {0}` checks it \
             again.",
            kept.display()
        );
    }
    text += &output::fold(
        "Checked on each image, after the file system's recovery and untorn's: every operation is atomic, also across \
         several blocks (C1); no operation acknowledged as durable before the power cut is lost (C2); with per-write \
         durability, no data that a read returned is lost (C3). An image holds everything covered by completed \
         flushes, \
         and any subset of the sectors of later writes.",
    );
    text
}

fn say_violations(text: &mut String, violations: &[String]) {
    if violations.is_empty() {
        let _ = writeln!(text, "{}", paint(Colour::Good, "no violation"));
        return;
    }
    let count = output::count(violations.len() as u64, "violation", "violations");
    let _ = writeln!(text, "{} on the last image:", paint(Colour::Bad, &count));
    for violation in violations {
        let _ = writeln!(text, "  - {violation}");
    }
}
