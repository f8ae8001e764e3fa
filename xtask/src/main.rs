//! The project's own chores.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

mod asan;
mod bare;
mod boost;
mod cuts;
mod dax;
mod explore;
#[cfg(target_arch = "x86_64")]
mod faults;
mod fuzz;
mod gate;
mod inject;
mod loom;
mod nightly;
mod programs;
mod sustained;
mod tidy;

/// The project's own chores.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the library's tests under AddressSanitizer.
    Asan(asan::Arguments),
    /// Run the README's two commands on a minimal Debian that has only Rust and a C compiler.
    Bare(bare::Arguments),
    /// Measure programs that write and sync bare and under `untorn run --mode boost`, side by side.
    Boost(boost::Arguments),
    /// Run every check that a change must pass.
    Ci(gate::Ci),
    /// Judge every image that processes which share memory commit, while some of them are killed.
    Cuts(cuts::Arguments),
    /// Cut the power of real kernels over real DAX, and check what recovery makes of it.
    Dax(dax::Arguments),
    /// Crash the engines everywhere and check every state that recovery makes of it.
    Explore(explore::Arguments),
    /// Let each system call under the real media fail, and check what the library makes of it.
    #[cfg(target_arch = "x86_64")]
    Faults(faults::Arguments),
    /// The process in which they fail; `faults` starts it.
    #[command(hide = true)]
    #[cfg(target_arch = "x86_64")]
    FaultsVictim(faults::Victim),
    /// Run the fuzz targets, each for some seconds.
    Fuzz(fuzz::Arguments),
    /// Damage protected files by the thousand, and check what is found and repaired.
    Inject(inject::Arguments),
    /// Run the models of the lock-free code through their interleavings.
    Loom(loom::Arguments),
    /// Run the long checks.
    Nightly(gate::Nightly),
    /// Run programs that people have bare and under `untorn run`, and compare what they do.
    Programs(programs::Arguments),
    /// Check a change in at most five minutes.
    Quick(gate::Quick),
    /// Measure a burst of writes that is longer than the log, to a slow disk, bare and under `untorn run --mode boost`.
    Sustained(sustained::Arguments),
    /// Check the house rules that no compiler checks.
    Tidy,
}

/// Has the library say what it does where `UNTORN_LOG` asks for that, as the tool does.
fn start_logging() -> Result<(), String> {
    const VARIABLE: &str = "UNTORN_LOG";
    if std::env::var_os(VARIABLE).is_none_or(|value| value.is_empty()) {
        return Ok(());
    }
    let filter = EnvFilter::try_from_env(VARIABLE).map_err(|error| format!("{VARIABLE} is no filter: {error}"))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = start_logging() {
        eprintln!("xtask: {error}");
        return ExitCode::from(2);
    }
    match arguments.verb {
        Verb::Asan(arguments) => asan::run(&root(), &arguments),
        Verb::Bare(arguments) => bare::run(&root(), &arguments),
        Verb::Boost(arguments) => boost::run(&root(), &arguments),
        Verb::Ci(arguments) => gate::ci(&root(), &arguments),
        Verb::Cuts(arguments) => cuts::run(&root(), &arguments),
        Verb::Dax(arguments) => dax::run(&arguments, &root()),
        Verb::Explore(arguments) => explore::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Verb::Faults(arguments) => faults::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Verb::FaultsVictim(arguments) => faults::victim(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&root(), &arguments),
        Verb::Inject(arguments) => inject::run(&arguments),
        Verb::Loom(arguments) => loom::run(&root(), &arguments),
        Verb::Nightly(arguments) => gate::nightly(&root(), &arguments),
        Verb::Programs(arguments) => programs::run(&root(), &arguments),
        Verb::Quick(arguments) => gate::quick(&root(), &arguments),
        Verb::Sustained(arguments) => sustained::run(&root(), &arguments),
        Verb::Tidy => tidy::run(&root()).unwrap_or_else(|error| {
            eprintln!("tidy: cannot read the repository: {error}");
            ExitCode::from(74)
        }),
    }
}

/// The repository this was started from: cargo says where this package is, one level below it.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.and_then(|package| package.parent().map(PathBuf::from)).unwrap_or_else(|| PathBuf::from("."))
}

/// Where a chore builds what is compiled unlike the rest, so that neither throws the other's work away.
fn target(root: &Path, chore: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join(chore)
}

/// The compiler flags of the caller, and one more.
fn rustflags(flag: &str) -> String {
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push(' ');
    flags.push_str(flag);
    flags
}
