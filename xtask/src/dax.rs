//! `cargo xtask dax`: power cuts on real DAX file systems.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use untorn::EngineKind;
use untorn::options::LogPolicy;
use untorn_rigs::dax::{self, Cycle, Face, FileSystem, Kernel, Outcome, Settings};
use untorn_rigs::{Error, Result};

/// Arguments of `cargo xtask dax`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of power cuts
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    cycles: u64,
    /// Seed of the first cut; each later cut uses the next number [default: a new seed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// File system to test
    #[arg(long, value_enum, default_value_t = Systems::Both)]
    fs: Systems,
    /// Kernel: a version (6.12), a package file, or a directory with an unpacked package [default: the distribution's]
    #[arg(long, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// Only fetch the kernel, for a later run
    #[arg(long)]
    fetch: bool,
    /// Engine to test
    #[arg(long, value_name = "ENGINE", default_value_t = EngineKind::Reflection, conflicts_with = "map")]
    engine: EngineKind,
    /// Let the writer store into a mapping and commit; implies `--engine hybrid-log`
    #[arg(long)]
    map: bool,
    /// Let the writer store into a mapped region of a store, which has its own engine, and commit with pmsync
    #[arg(long, conflicts_with_all = ["map", "engine"])]
    region: bool,
    /// Logging policy of the hybrid log: undo, redo or hybrid [default: hybrid]
    #[arg(long, value_name = "POLICY", value_parser = log_policy)]
    log_policy: Option<LogPolicy>,
    /// Maximum size of the hybrid log in bytes, to make it fill up; all writes of one commit must fit
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    log_size: Option<u64>,
    /// Keep the files of a violation in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print one JSON object before the last line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Systems {
    Ext4,
    Xfs,
    Both,
}

pub(crate) fn run(arguments: &Arguments, root: &Path) -> ExitCode {
    let start = Instant::now();
    if let Some(contradiction) = contradiction(arguments) {
        eprintln!("dax: {contradiction}");
        return ExitCode::from(64);
    }
    if arguments.fetch {
        return fetch(arguments, root);
    }
    match cut(arguments, root) {
        Ok((seed, outcome)) => {
            if arguments.json {
                println!("{}", to_json(seed, &outcome, start.elapsed()));
            }
            for violation in outcome.cycles.iter().flat_map(|cycle| &cycle.violations) {
                println!("violation: {violation}");
            }
            if let Some(kept) = &outcome.kept {
                println!("the image after the cut and the writer's reports are kept in {}", kept.display());
            }
            println!("{outcome}");
            if outcome.clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("dax: {error}");
            ExitCode::from(74)
        }
    }
}

fn fetch(arguments: &Arguments, root: &Path) -> ExitCode {
    match kernel(arguments, &crate::target(root, "")) {
        Ok(kernel) => {
            println!("{}", kernel.release);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("dax: {error}");
            ExitCode::from(74)
        }
    }
}

fn kernel(arguments: &Arguments, target: &Path) -> Result<Kernel> {
    Kernel::find(arguments.kernel.as_deref(), &target.join("dax-kernels"))
}

fn log_policy(word: &str) -> std::result::Result<LogPolicy, String> {
    word.parse()
}

/// The contradiction between arguments, if any: only one engine has a log.
fn contradiction(arguments: &Arguments) -> Option<&'static str> {
    let logged = !arguments.region && (arguments.map || arguments.engine == EngineKind::HybridLog);
    let given = arguments.log_policy.is_some() || arguments.log_size.is_some();
    (given && !logged).then_some("--log-policy and --log-size need --engine hybrid-log or --map")
}

fn cut(arguments: &Arguments, root: &Path) -> Result<(u64, Outcome)> {
    // Report all missing tools at once, so that the user can install them with one command.
    let mut missing = dax::missing();
    if let Some(last) = missing.pop() {
        for error in missing {
            eprintln!("dax: {error}");
        }
        return Err(last);
    }
    let target = crate::target(root, "");
    let seed = arguments.seed.unwrap_or_else(fresh_seed);
    let (engine, face) = match (arguments.map, arguments.region) {
        (true, _) => (EngineKind::HybridLog, Face::Map),
        (_, true) => (EngineKind::Auto, Face::Region),
        _ => (arguments.engine, Face::File),
    };
    let settings = Settings {
        program: build(root, &target)?,
        kernel: kernel(arguments, &target)?,
        file_systems: match arguments.fs {
            Systems::Ext4 => vec![FileSystem::Ext4],
            Systems::Xfs => vec![FileSystem::Xfs],
            Systems::Both => vec![FileSystem::Ext4, FileSystem::Xfs],
        },
        engine: engine.as_str().to_owned(),
        face,
        log_policy: arguments.log_policy.map(|policy| policy.to_string()),
        log_size: arguments.log_size,
        cycles: arguments.cycles,
        seed,
        keep: arguments.keep.clone(),
    };
    let outcome = dax::run(&settings, &|step| eprintln!("{step}"))?;
    Ok((seed, outcome))
}

/// Builds the tool as it ships, so that the rig doesn't test an old build.
fn build(root: &Path, target: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["build", "--release", "--quiet", "--package", "untorn-cli"];
    let status = Command::new(cargo).args(words).current_dir(root).status();
    let status = status.map_err(|source| Error::Io { what: "run cargo".to_owned(), source })?;
    if !status.success() {
        return Err(Error::Failed { what: "build the tool".to_owned(), why: status.to_string() });
    }
    Ok(root.join(target).join("release/untorn"))
}

/// A random seed; it is printed with each cut.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() >> 24
}

fn to_json(seed: u64, outcome: &Outcome, time: Duration) -> Value {
    let cycle = |cycle: &Cycle| {
        json!({
            "seed": cycle.seed,
            "fs": cycle.file_system.as_str(),
            "durability": cycle.durability,
            "life_ms": cycle.life.as_secs_f64() * 1e3,
            "recovery_cut": cycle.recovery_cut,
            "operations": cycle.operations,
            "acknowledged": cycle.acknowledged,
            "without_recovery": cycle.without_recovery.len(),
            "violations": cycle.violations,
        })
    };
    let refusal = outcome
        .virtio_pmem
        .as_ref()
        .map(|refusal| json!({ "medium": refusal.medium, "refused": refusal.refused, "cut": cycle(&refusal.cycle) }));
    json!({
        "kernel": outcome.kernel,
        "seed": seed,
        "wanted": outcome.wanted,
        "verified": outcome.verified(),
        "no_recovery_convicted": outcome.forgetful,
        "canary_convicted": outcome.canary,
        "cuts": outcome.cycles.iter().map(cycle).collect::<Vec<_>>(),
        "virtio_pmem": refusal,
        "kept": outcome.kept.as_ref().map(|path| path.display().to_string()),
        "seconds": time.as_secs_f64(),
        "clean": outcome.clean(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn the_log_is_set_for_the_engine_that_has_one() {
        let parse = |line: &str| Alone::try_parse_from(line.split(' ')).map(|alone| alone.arguments);
        let undo = parse("dax --engine hybrid-log --log-policy undo --log-size 2097152").unwrap();
        assert!(contradiction(&undo).is_none());
        assert_eq!((undo.log_policy, undo.log_size), (Some(LogPolicy::Undo), Some(2 << 20)));
        assert!(contradiction(&parse("dax --map --log-policy redo").unwrap()).is_none());
        assert!(contradiction(&parse("dax --region").unwrap()).is_none());
        for line in ["dax --region --map", "dax --region --engine hybrid-log"] {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in
            ["dax --region --log-policy redo", "dax --log-policy undo", "dax --engine reflection --log-size 1000000"]
        {
            assert!(contradiction(&parse(line).unwrap()).is_some(), "{line}");
        }
        assert!(parse("dax --engine hybrid-log --log-policy both").is_err());
        assert!(contradiction(&parse("dax").unwrap()).is_none());
    }
}
