//! `untorn torture --medium dax`: cuts the power of an emulated machine with persistent memory, a stock kernel and a
//! real DAX file system, then checks every promise.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::json;
use untorn::EngineKind;
use untorn_rigs::block;
use untorn_rigs::dax::{self, FileSystem, Kernel, Outcome, Settings};

use super::target::Face;
use crate::cli::Torture;
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Colour, paint};
use crate::{progress, rng};

/// The default number of power cuts.
const CUTS: u64 = 10;

/// Cuts the power repeatedly.
pub(super) fn run(args: &Torture) -> Result<Exit> {
    let stray = [
        (args.seconds.is_some(), "--seconds"),
        (args.durability.is_some(), "--durability"),
        (args.dir.is_some(), "--dir"),
        (args.lying_disk, "--lying-disk"),
        (args.replay.is_some(), "--replay"),
    ];
    if let Some((_, name)) = stray.iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!("{name} does not apply to --medium dax; omit it")));
    }
    let (engine, _) = super::served(args)?;
    args.log.require(&[engine])?;
    let file_systems = args.fs.iter().map(file_system).collect::<Result<Vec<_>>>()?;
    // Report all missing tools at once, so that the user can install them with one command.
    let mut missing = dax::missing();
    if let Some(last) = missing.pop() {
        missing.iter().for_each(|error| eprintln!("untorn: {error}"));
        return Err(last.into());
    }
    let face = super::face(args);
    // A store has its own engine.
    let of_files = if engine == EngineKind::Auto && face != Face::Region { EngineKind::Reflection } else { engine };
    let settings = Settings {
        program: std::env::current_exe()
            .map_err(|error| Failure::io("cannot find the path of this program", &error))?,
        kernel: Kernel::find(args.kernel.as_deref(), &cache())?,
        file_systems,
        engine: of_files.as_str().to_owned(),
        face: match face {
            // `--redundancy` was refused before.
            Face::File | Face::Healed => dax::Face::File,
            Face::Map => dax::Face::Map,
            Face::Region => dax::Face::Region,
        },
        log_policy: args.log.log_policy.map(|policy| policy.to_string()),
        log_size: args.log.log_size,
        cycles: args.images.unwrap_or(CUTS),
        seed: args.seed.unwrap_or_else(rng::fresh_seed),
        keep: Some(args.keep.clone().unwrap_or_else(std::env::temp_dir)),
    };
    let bar = progress::bar(settings.cycles, &format!("seed {}", settings.seed));
    let outcome = dax::run(&settings, &|step| bar.set_message(step.to_owned()))?;
    bar.finish_and_clear();
    let violations: Vec<&String> = outcome.cycles.iter().flat_map(|cycle| &cycle.violations).collect();
    let sum = |of: fn(&dax::Cycle) -> u64| outcome.cycles.iter().map(of).sum::<u64>();
    let object = json!({
        "engine": face.engine(of_files),
        "medium": "dax",
        "map": face == Face::Map,
        "region": face == Face::Region,
        "log_policy": settings.log_policy,
        "log_size": settings.log_size,
        "seed": settings.seed,
        "runs": outcome.cycles.len(),
        "violations": violations.len(),
        "kernel": outcome.kernel,
        "operations": sum(|cycle| cycle.operations),
        "acknowledged": sum(|cycle| cycle.acknowledged),
        "no_recovery_convicted": outcome.forgetful,
        "canary_convicted": outcome.canary,
        "details": violations,
        "kept": outcome.kept.as_ref().map(|path| path.display().to_string()),
    });
    let served = format!("{}engine {}", face.words(), face.engine(of_files));
    output::report(args.form.json, &object, || words(&served, &settings, &outcome, &violations))?;
    if outcome.clean() {
        return Ok(Exit::Clean);
    }
    if violations.is_empty() {
        // The cuts prove nothing unless the canary and the runs without recovery were convicted.
        let message = format!("the power cuts are inconclusive: {outcome}; raise --images");
        return Err(Failure { exit: Exit::Attention, path: None, message });
    }
    Ok(Exit::Attention)
}

fn file_system(kind: &block::FileSystem) -> Result<FileSystem> {
    match kind.as_str() {
        "ext4" => Ok(FileSystem::Ext4),
        "xfs" => Ok(FileSystem::Xfs),
        other => {
            Err(Failure::usage(format!("{other} does not support DAX; with --medium dax, --fs takes ext4 and xfs")))
        }
    }
}

/// The cache directory for unpacked kernel packages.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(std::env::temp_dir).join("untorn/kernels")
}

fn words(served: &str, settings: &Settings, outcome: &Outcome, violations: &[&String]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{served}, kernel {}, seed {}", outcome.kernel, settings.seed);
    let _ = writeln!(text, "{outcome}");
    if violations.is_empty() {
        let _ = writeln!(text, "{}", paint(Colour::Good, "no violation"));
    } else {
        let count = output::count(violations.len() as u64, "violation", "violations");
        let _ = writeln!(text, "{}:", paint(Colour::Bad, &count));
        for violation in violations {
            let _ = writeln!(text, "  - {violation}");
        }
        if let Some(kept) = &outcome.kept {
            let _ = writeln!(text, "The image after the cut and the writer's reports are kept in {}.", kept.display());
        }
    }
    text += &output::fold(
        "Checked after each cut, on an emulated machine with a stock kernel and files mapped with MAP_SYNC: every \
         operation is atomic (C1); no operation acknowledged as durable is lost (C2). Not checked: flushes. The \
         emulator has no volatile cache, so it cannot expose a missing flush; `cargo xtask explore` in untorn's \
         repository simulates one.",
    );
    text
}
