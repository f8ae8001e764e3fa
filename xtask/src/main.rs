//! The project's developer tasks.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

mod asan;
mod bare;
mod boost;
mod clean_root;
mod cuts;
mod dax;
mod dist;
mod explore;
#[cfg(target_arch = "x86_64")]
mod faults;
mod fuzz;
mod gate;
mod inject;
#[cfg(target_arch = "x86_64")]
mod kills;
mod limits;
mod loom;
mod mounted;
mod nightly;
mod programs;
mod sqlite;
mod sustained;
mod tidy;
#[cfg(target_arch = "x86_64")]
mod victim;

/// The project's developer tasks: tests, measurements and checks that `cargo test` does not run.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", after_help = AFTER)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

const AFTER: &str = "\
Exit codes: 0 every check passed; 1 a check failed or a violation was found; 2 wrong arguments or log filter; 64 \
usage; \
69 a tool is missing; 74 I/O error

Environment: UNTORN_LOG is a log filter for standard error, for example UNTORN_LOG=debug

Example:
  cargo xtask explore --states 100000";

#[derive(Subcommand)]
enum Verb {
    /// Run the library's tests under AddressSanitizer.
    ///
    /// Exit codes: 0 all tests passed without a finding; 1 otherwise; 69 a nightly compiler is missing; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask asan --test region")]
    Asan(asan::Arguments),
    /// Run the README's two commands on a minimal Debian that has only Rust and a C compiler.
    Bare(bare::Arguments),
    /// Measure programs that write and sync, without untorn and under `untorn run --mode boost`.
    ///
    /// The variants: bare, with a log, with the log on the same disk as the files, and bare in memory, where a sync
    /// makes nothing durable. One program without managed files also runs in mode atomic. All take turns, so that each
    /// is compared with the others on the same machine at the same time.
    ///
    /// Exit codes: 0 done; 69 a tool or privilege is missing; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask boost write-fsync --rounds 3")]
    Boost(boost::Arguments),
    /// Run every check that a change must pass.
    Ci(gate::Ci),
    CleanRoot(clean_root::Arguments),
    /// Check every image that processes with shared memory commit, while some of them are killed.
    ///
    /// 2 and 4 processes store to shared memory in a total order and commit, without kills and with one kill every 50
    /// commits.
    ///
    /// Exit codes: 0 no image is torn, and no process was stuck for longer than `--patience`; 1 otherwise; 74 I/O
    /// error.
    #[command(after_help = "Example:\n  cargo xtask cuts map --commits 2000")]
    Cuts(cuts::Arguments),
    /// Cut the power of emulated machines with real kernels and DAX file systems, and check the recovered files.
    ///
    /// Needs QEMU and a kernel package, but neither root nor KVM.
    ///
    /// Exit codes: 0 every cut was verified, a run without recovery and the canary were convicted, and virtio-pmem was
    /// not accepted as persistent memory; 1 otherwise; 64 usage; 74 I/O error, or a tool is missing.
    #[command(after_help = "Example:\n  cargo xtask dax --cycles 5 --fs ext4")]
    Dax(dax::Arguments),
    Dist(dist::Arguments),
    /// Crash the engines at every call of a simulated medium, and check every recovered state.
    ///
    /// The last line has the number of distinct states.
    ///
    /// Exit codes: 0 no violation, and every barrier mutant and the canary were convicted; 1 otherwise; 64 the --replay
    /// token is invalid; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask explore --engine hybrid-log --states 100000")]
    Explore(explore::Arguments),
    /// Make each system call of the real media fail, and check how the library handles it.
    ///
    /// Fails one call of a workload per run, in each applicable way. The workload runs on the page cache of the
    /// temporary directory's file system, and on memory treated as persistent. The last line has the number of cases.
    ///
    /// Exit codes: 0 every case ended with a correct error or a real success; 1 a violation; 69 ptrace is not
    /// permitted; 74 I/O error.
    #[cfg(target_arch = "x86_64")]
    #[command(after_help = "Example:\n  cargo xtask faults --sample 200")]
    Faults(faults::Arguments),
    /// The process with the failing calls; `faults` starts it.
    #[command(hide = true)]
    #[cfg(target_arch = "x86_64")]
    FaultsVictim(victim::Victim),
    /// Run each fuzz target for some seconds.
    ///
    /// The targets run one after the other, each from its committed corpus. The output has the number of inputs per
    /// target.
    ///
    /// Exit codes: 0 no finding (with --plant, at least one); 1 otherwise; 69 cargo-fuzz or a nightly compiler is
    /// missing; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask fuzz --target log --seconds 30")]
    Fuzz(fuzz::Arguments),
    /// Damage protected files thousands of times, and check that untorn finds and repairs all damage.
    ///
    /// The damage, to pages, checksums and parity: flipped bits, older versions, misplaced pages, zeros. untorn must
    /// find and repair each damage byte for byte, and must not report or change anything else, nor report anything
    /// while a program stores. Runs on the page cache of a real file system, and on memory treated as persistent.
    ///
    /// Exit codes: 0 all of this holds; 1 otherwise; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask inject --cases 100")]
    Inject(inject::Arguments),
    /// Kill a process before each system call that changes a file, and check what it leaves.
    ///
    /// The processes do what the verbs of the tool do, on files in memory if extended attributes work there. The next
    /// program must find each file at its last commit, and be able to change it. The output has the number of kills for
    /// each verb.
    ///
    /// Exit codes: 0 every file was at a commit; 1 a violation, or nothing was killed; 69 ptrace is not permitted; 74
    /// I/O error.
    #[cfg(target_arch = "x86_64")]
    #[command(after_help = "Example:\n  cargo xtask kills --stride 20")]
    Kills(kills::Arguments),
    /// The process that is killed; `kills` starts it.
    #[command(hide = true)]
    #[cfg(target_arch = "x86_64")]
    KillsVictim(victim::Victim),
    Limits(limits::Arguments),
    /// Run the loom models of the lock-free code through their interleavings.
    ///
    /// Compiles the library with loom's atomics instead of the standard library's.
    ///
    /// Exit codes: 0 every model holds; 1 otherwise; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask loom page")]
    Loom(loom::Arguments),
    /// Run the long checks.
    Nightly(gate::Nightly),
    /// Run existing programs without untorn and under `untorn run`, and compare their results.
    ///
    /// Runs each program bare and in both modes, and compares its output, exit code and files.
    ///
    /// Exit codes: 0 nothing differs; 1 otherwise; 69 a program is missing; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask programs sqlite git --kills 50")]
    Programs(programs::Arguments),
    /// Check a change in at most five minutes.
    Quick(gate::Quick),
    /// Attack SQLite's VFS `untorn`, and run SQLite's own tests on it.
    ///
    /// Kills and power cuts hit programs that commit in each journal mode, with one and four connections: no
    /// acknowledged transaction may be lost, and none may be half there.
    ///
    /// Exit codes: 0 all of this holds, and SQLite's tests passed; 1 otherwise; 69 a program or privilege is missing;
    /// 74 I/O error.
    #[command(after_help = "\
Examples:
  cargo xtask sqlite --kills 50 --power-cuts 50
  cargo xtask sqlite --source sqlite3-3.40.1
  cargo xtask sqlite --sqllogictest sqllogictest/test
  cargo xtask sqlite --fixture build/testfixture -- sqlite3-3.40.1/test/veryquick.test")]
    Sqlite(sqlite::Arguments),
    /// One step of a loop; the loops start it.
    #[command(hide = true)]
    Step(gate::One),
    /// Measure a burst of writes longer than the log to a slow disk, without untorn and under `untorn run --mode
    /// boost`.
    ///
    /// The burst is 4 KiB writes with an fsync each, several times as long as the log. The disk is an ext4 on a loop
    /// device, with the log in memory under UNTORN_ASSUME_PMEM=1. For comparison, the same writes run without a log,
    /// with one fsync at the end and with one each, and with other batch sizes of the log. All take turns. The burst
    /// writes each block of the file once, in random order, so that no write is absorbed by a later one. Before and
    /// after the burst there is one write every 10 ms. Needs root.
    ///
    /// Exit codes: 0 done; 69 root or FUSE is missing; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask sustained --rounds 1 --plot burst.svg")]
    Sustained(sustained::Arguments),
    /// Check the repository's rules that no compiler checks.
    ///
    /// Exit codes: 0 no violation; 1 a violation; 74 I/O error.
    #[command(after_help = "Example:\n  cargo xtask tidy")]
    Tidy,
}

/// Starts logging with the filter in `UNTORN_LOG`, as the tool does.
fn start_logging() -> Result<(), String> {
    const VARIABLE: &str = "UNTORN_LOG";
    if std::env::var_os(VARIABLE).is_none_or(|value| value.is_empty()) {
        return Ok(());
    }
    let filter = EnvFilter::try_from_env(VARIABLE)
        .map_err(|error| format!("{VARIABLE} is not a valid log filter: {error}; try {VARIABLE}=debug"))?;
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
        Verb::CleanRoot(arguments) => clean_root::run(&root(), &arguments),
        Verb::Cuts(arguments) => cuts::run(&root(), &arguments),
        Verb::Dax(arguments) => dax::run(&arguments, &root()),
        Verb::Dist(arguments) => dist::run(&root(), &arguments),
        Verb::Explore(arguments) => explore::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Verb::Faults(arguments) => faults::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Verb::FaultsVictim(arguments) => faults::victim(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&root(), &arguments),
        Verb::Inject(arguments) => inject::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Verb::Kills(arguments) => kills::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Verb::KillsVictim(arguments) => kills::victim(&arguments),
        Verb::Limits(arguments) => limits::run(&arguments),
        Verb::Loom(arguments) => loom::run(&root(), &arguments),
        Verb::Nightly(arguments) => gate::nightly(&root(), &arguments),
        Verb::Programs(arguments) => programs::run(&root(), &arguments),
        Verb::Quick(arguments) => gate::quick(&root(), &arguments),
        Verb::Sqlite(arguments) => sqlite::run(&root(), &arguments),
        Verb::Step(arguments) => gate::step(&root(), &arguments),
        Verb::Sustained(arguments) => sustained::run(&root(), &arguments),
        Verb::Tidy => tidy::run(&root()).unwrap_or_else(|error| {
            eprintln!("tidy: cannot read the repository: {error}");
            ExitCode::from(74)
        }),
    }
}

/// The repository's root: the parent of this package's directory, which cargo provides.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.and_then(|package| package.parent().map(PathBuf::from)).unwrap_or_else(|| PathBuf::from("."))
}

/// The target directory of a task that compiles with other flags, so that tasks don't discard each other's builds.
fn target(root: &Path, chore: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join(chore)
}

/// The caller's compiler flags plus one more.
fn rustflags(flag: &str) -> String {
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push(' ');
    flags.push_str(flag);
    flags
}
