//! `untorn torture --medium block`: the power of a disk under a real file system is cut, and every promise is checked on
//! what the disk may then hold.
//!
//! One chain for each file system: a life of the writing process on a recorded disk, images of crashes at random instants
//! of that life, each mounted, recovered and verified, and the next life on one of those images *before* its recovery.
//! So the next record begins with the mount after a crash and with untorn's recovery, and crashes during both are among
//! its images.

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

/// Images without a number on the command line.
const IMAGES: u64 = 100;
/// Memory-backed on every Linux; the images are written and read whole, and need not survive anything.
const FAST: &str = "/dev/shm";

/// What is tortured, with every default resolved.
#[derive(Clone, Debug)]
struct Setting {
    engine: EngineKind,
    /// When a write is durable; `None` alternates from life to life.
    durability: Option<Durability>,
    /// How the writer writes.
    face: Face,
    threads: usize,
    seed: u64,
    images: u64,
    kinds: Vec<FileSystem>,
    /// Whether the disk acknowledges flushes that it does not carry out.
    lying: bool,
    /// Where images are built.
    scratch: PathBuf,
    /// Where those with a violation are kept.
    keep: PathBuf,
}

/// What came of one file system's chain.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Lives of the writing process.
    lives: u64,
    /// Operations that returned in them.
    operations: u64,
    /// Images that were recovered and verified.
    images: u64,
    /// Those of them at whose instant something was pending.
    unflushed: u64,
    /// Operations that the images were bound to hold, beyond those of the lives before.
    acknowledged: u64,
    /// Images that the file system did not mount. They say nothing about untorn.
    refused: u64,
    /// What was wrong with the last image; empty if nothing ever was.
    violations: Vec<String>,
    /// Where that image is.
    kept: Option<PathBuf>,
}

/// Cuts the power again and again.
pub(super) fn run(args: &Torture) -> Result<Exit> {
    // Under it, untorn would trust caches that a power cut empties, and be convicted for what it never promised.
    if std::env::var_os("UNTORN_ASSUME_PMEM").is_some_and(|value| !value.is_empty()) {
        return Err(Failure::usage(
            "UNTORN_ASSUME_PMEM is set: a disk taken for persistent memory survives no power cut",
        ));
    }
    if let Some(name) = args.log.given() {
        return Err(Failure::usage(format!("{name} is not for --medium block")));
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
        // Nothing was wrong because nothing happened; calling that a pass would be a lie.
        let message = "no image of one of the file systems held an acknowledged operation, so nothing was tested; give \
                       it more --images or --seconds";
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

/// Runs one chain for each file system, side by side.
fn run_chains(setting: &Setting, seconds: Option<u64>) -> Result<Vec<Outcome>> {
    let bar = progress::bar(setting.images, &format!("seed {}", setting.seed));
    let control = Control::new(bar.clone(), seconds.map(Duration::from_secs));
    let count = setting.kinds.len() as u64;
    let results: Vec<Result<Outcome>> = thread::scope(|scope| {
        let start = |(number, &kind): (usize, &FileSystem)| {
            let number = number as u64;
            // Together they make the number asked for.
            let share = setting.images / count + u64::from(number < setting.images % count);
            let control = &control;
            scope.spawn(move || {
                let result = Chain::start(setting, kind).and_then(|chain| chain.run(share, control));
                if result.as_ref().is_ok_and(|outcome| outcome.violations.is_empty()) {
                    return result;
                }
                // There is something to look at; the others need not go on.
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
        let mut text = format!("The disk of {}, which {}:\n", case.file_system, case.fate);
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
            "{kind}: {} of {} with {} operations; {} had unflushed writes, {} the file system refused",
            output::count(outcome.images, "image", "images"),
            output::count(outcome.lives, "life", "lives"),
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
            "The disk and what was known of it are kept in {0};\n`untorn torture --medium block --replay {0}` checks it \
             again.",
            kept.display()
        );
    }
    text += &output::fold(
        "Checked on each image, after the file system's own recovery and untorn's: each operation whole or not at all, \
         also over several blocks (C1); nothing lost that was acknowledged as durable before the power went (C2); if \
         every write is a commit, nothing lost that a read had returned (C3). An image holds what completed flushes \
         cover, and of all later writes any subset of sectors.",
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
