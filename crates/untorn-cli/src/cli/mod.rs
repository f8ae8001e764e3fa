//! The command line: every verb, flag and example, in one table that also makes help, completions and man pages.

mod bench;
mod log;
mod protect;
mod region;
mod replay;
mod run;
mod torture;

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use untorn::{Durability, EngineKind, Layout, Trust};

pub(crate) use bench::Bench;
pub(crate) use log::Log;
pub(crate) use protect::{Protect, Protection, Scrub};
pub(crate) use region::{
    Create as CreateRegion, List as ListRegions, Named as NamedRegion, Region, Verb as RegionVerb,
};
pub(crate) use replay::{CacheLog, CacheLogVerb, LogInfo, Replay};
pub(crate) use run::{BoostLog, Mode as RunMode, Run};
pub(crate) use torture::{Torture, TortureVerify, TortureWriter};

use crate::size;

/// Memory-mapped files that never tear.
///
/// After any crash an untorn file holds exactly the state of its last commit, never a mixture: on an ordinary disk and
/// on persistent memory, on a stock kernel, without root.
#[derive(Debug, Parser)]
#[command(name = "untorn", version, after_help = AFTER)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const AFTER: &str = "\
Exit codes: 0 done and clean; 1 the file needs recovery or a check failed; 2 corrupt beyond repair; 64 usage; 74 I/O \
error.
Environment: UNTORN_LOG sets what is logged to stderr (for instance UNTORN_LOG=debug); NO_COLOR turns colours off.

Start here:
  untorn demo
  untorn doctor /var/lib/mydata";

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// See plain mmap tear and untorn not: a first run of under 20 seconds.
    #[command(after_help = "Example:\n  untorn demo")]
    Demo(Demo),
    /// Say what can be guaranteed at a path, which engine would be chosen, and why.
    #[command(after_help = "Example:\n  untorn doctor /var/lib/mydata")]
    Doctor(Doctor),
    /// Create a file of zero bytes, ready for atomic writes.
    #[command(
        after_help = "Examples:\n  untorn create ledger --len 64M\n  untorn create ledger --len 64M --engine hybrid-log   # for many writes to one commit"
    )]
    Create(Create),
    /// Show a file's state: engine, length, commit, sidecar.
    ///
    /// Ends with 0 if it is clean or in use, 1 if it needs recovery or a decision, 2 if it is corrupt.
    #[command(after_help = "Example:\n  untorn info ledger --json")]
    Info(Look),
    /// Verify a file without changing it.
    ///
    /// Ends with 0 if everything holds, 1 if the file needs recovery or a decision, 2 if it is corrupt.
    #[command(
        after_help = "Example:\n  untorn check ledger && echo sound\n\nTo copy a file, settle it first: `untorn settle ledger && cp ledger /backup/`"
    )]
    Check(Look),
    /// Write standard input into a file as one atomic commit.
    #[command(after_help = "Example:\n  printf hello | untorn write ledger --offset 4090")]
    Write(Write),
    /// Copy bytes of a file to standard output, as of its last commit.
    #[command(after_help = "Example:\n  untorn read ledger --offset 4090 --len 5")]
    Read(Read),
    /// Apply many writes from standard input as one transaction: all or nothing.
    ///
    /// Each line is one write, {"offset":N,"hex":"..."}. A later line wins where two overlap; blank lines are skipped.
    #[command(
        after_help = "Example:\n  printf '{\"offset\":0,\"hex\":\"ff00\"}\\n{\"offset\":8192,\"hex\":\"01\"}\\n' | untorn apply ledger"
    )]
    Apply(Apply),
    /// Grow or shrink a file, atomically. New bytes are zeros.
    #[command(after_help = "Example:\n  untorn resize ledger --len 128M")]
    Resize(Resize),
    /// Bring a file to its last committed state. Running it again changes nothing.
    #[command(after_help = "Example:\n  untorn recover ledger")]
    Recover(Recover),
    /// Deploy everything and remove the sidecar: a plain file that any program may read.
    #[command(after_help = "Example:\n  untorn settle ledger && rsync ledger host:")]
    Settle(Settle),
    /// Give a plain file checksums and parity, kept beside it, or bring those it has up to date.
    ///
    /// Ends with 1 if pages changed that nobody told of (they are covered as they are), with 2 if pages are damaged and cannot
    /// be given back.
    #[command(
        after_help = "Examples:\n  untorn protect table.db\n  untorn protect table.db --stripe 8 --layout spread"
    )]
    Protect(Protect),
    /// Remove the checksums and parity of a file. The file itself is not touched.
    #[command(after_help = "Example:\n  untorn unprotect table.db")]
    Unprotect(Protection),
    /// Compare a protected file with its checksums and parity, as the device holds them.
    ///
    /// Ends with 1 if anything differs.
    #[command(after_help = "Examples:\n  untorn scrub table.db --rate 50M\n  untorn scrub table.db --repair")]
    Scrub(Scrub),
    /// Give damaged pages of a protected file their bytes back.
    ///
    /// If a page cannot be given back, nothing is touched, and it ends with 2 and a list of what is lost (a file with an engine that
    /// was not closed is recovered first). Pages that changed while nobody protected the file are left alone, and it ends
    /// with 1.
    #[command(after_help = "Example:\n  untorn repair table.db")]
    Repair(Protection),
    /// Manage the named regions of a store.
    #[command(
        after_help = "Examples:\n  untorn region create data.store ledger --pages 16\n  untorn region list data.store"
    )]
    Region(Region),
    /// Bring what a write cache's log has to the files it belongs to. Running it again changes nothing.
    ///
    /// Ends with 0 if nothing is left in the logs, with 1 if something is for which the file was not found or could not be
    /// written to: the log is kept for it.
    #[command(after_help = "Examples:\n  untorn replay /fast/untorn.log\n  untorn replay --list /fast/logs")]
    Replay(Replay),
    /// Look into a write cache's log.
    #[command(after_help = "Example:\n  untorn log info /fast/untorn.log")]
    Log(CacheLog),
    /// Run an unmodified program whose files never tear, or with a fast log in front of its files.
    ///
    /// With `--mode atomic`, what the program writes to a managed file becomes durable together at its next fsync, or when the
    /// file is closed for good, or not at all. Calls that cannot be served so fail with ENOTSUP.
    ///
    /// With `--mode boost`, what the program writes goes to the log, where it is durable when the call returns or at its next
    /// fsync (`--durability`), and to the files, which are synced later. Files that cannot be served so are left to the kernel,
    /// as without untorn. After a crash `untorn replay LOG`, or the next run with the log, brings to the files what they lack: until then,
    /// leave them alone.
    ///
    /// Ends with the program's own code.
    #[command(
        after_help = "Examples:\n  untorn run --match '*.db' -- sqlite3 app.db\n  untorn run --match 'data/**' --stats -- python3 job.py\n  untorn run --mode boost --log /fast/untorn.log --match 'data/**' -- python3 job.py"
    )]
    Run(Run),
    /// Crash-test this machine: kill writers, or cut a disk's power, and verify what each commit promised.
    #[command(
        after_help = "Examples:\n  untorn torture --seconds 60\n  untorn torture --engine hybrid-log\n  untorn torture --engine passthrough   # must be caught\n  sudo untorn torture --medium block --images 500"
    )]
    Torture(Torture),
    /// Measure side by side in one run.
    #[command(
        after_help = "Examples:\n  untorn bench atomic-write --json\n  UNTORN_ASSUME_PMEM=1 untorn bench atomic-write --dir /dev/shm --size 64,4K\n  untorn bench atomic-commit --engine hybrid-log --sync-every 100\n  untorn bench commit-time --dirty 10,100000 --len 1G\n  untorn bench map-commit --dirty 1,1000\n  untorn bench region-ops --dirty 64 --json\n  untorn bench hybrid-policy --reads 0,60,100\n  untorn bench idle --engine hybrid-log --seconds 10"
    )]
    Bench(Box<Bench>),
    /// Print completions for a shell.
    #[command(after_help = "Example:\n  untorn completions bash > /etc/bash_completion.d/untorn")]
    Completions(Completions),
    /// Print the man page, or write one for each verb into a directory.
    #[command(after_help = "Examples:\n  untorn man | man -l -\n  untorn man --out ./man")]
    Man(Man),
    /// The process that `demo` kills.
    #[command(hide = true)]
    DemoWriter(DemoWriter),
    /// The process that `torture` kills.
    #[command(hide = true)]
    TortureWriter(TortureWriter),
    /// The verification of one life of that process, for rigs that cut the power of a machine.
    #[command(hide = true)]
    TortureVerify(TortureVerify),
}

/// The form of a report.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Form {
    /// Print one JSON object on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Where to put the demo's files [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A file or a directory.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The file to create; it must not exist.
    pub(crate) file: PathBuf,
    /// Its length: bytes, or with K, M, G, T (powers of 1024).
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: u64,
    /// The engine that makes commits atomic.
    #[arg(long, value_parser = engines(), default_value = "auto")]
    pub(crate) engine: EngineKind,
    /// How the sidecar is laid out.
    #[arg(long, value_parser = layouts(), default_value = "auto")]
    pub(crate) layout: Layout,
    /// When a write is durable: each one, or at a commit [default: what suits the medium; with `--engine hybrid-log`, at
    /// a commit].
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Option<Durability>,
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of verbs that look at a file.
#[derive(Debug, Args)]
pub(crate) struct Look {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Whether others may have the file open.
#[derive(Debug, Args)]
pub(crate) struct Sharing {
    /// Join the processes that have the file open for sharing, with the options they have; without any, open it so that they can
    /// come.
    #[arg(long)]
    pub(crate) shared: bool,
}

/// Arguments of `write`.
#[derive(Debug, Args)]
pub(crate) struct Write {
    /// The file.
    pub(crate) file: PathBuf,
    /// Where the first byte goes.
    #[arg(long, value_name = "N", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `read`.
#[derive(Debug, Args)]
pub(crate) struct Read {
    /// The file.
    pub(crate) file: PathBuf,
    /// The first byte.
    #[arg(long, value_name = "N", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    /// How many bytes [default: to the end of the file].
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: Option<u64>,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// Arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `resize`.
#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// The file.
    pub(crate) file: PathBuf,
    /// The new length: bytes, or with K, M, G, T (powers of 1024).
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: u64,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub(crate) struct Recover {
    /// The file.
    pub(crate) file: PathBuf,
    /// Accept a sidecar that was restored together with the file, under a new inode number.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Which side is right, if the file and its sidecar disagree.
    #[arg(long, value_name = "SIDE", value_parser = sides())]
    pub(crate) trust: Option<Trust>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `settle`.
#[derive(Debug, Args)]
pub(crate) struct Settle {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// A directory to write untorn.1 and one page for each verb into.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Who moves the money in the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Writer {
    /// Plain stores into a shared mapping, and msync.
    Plain,
    /// untorn transactions, and sync.
    Untorn,
}

/// Arguments of the demo's writer process.
#[derive(Debug, Args)]
pub(crate) struct DemoWriter {
    /// The bank's file.
    pub(crate) file: PathBuf,
    /// How it writes.
    #[arg(long)]
    pub(crate) writer: Writer,
    /// Seed of the transfers.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The process to die with.
    #[arg(long)]
    pub(crate) parent: i32,
}

/// A parser for one of the library's lists of words, so that help and completions show them.
fn words<T>(list: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(list).try_map(|word| word.parse::<T>())
}

const ENGINES: &[&str] = &["auto", "reflection", "hybrid-log", "passthrough"];
const LAYOUTS: &[&str] = &["dense", "sparse", "auto"];
const DURABILITIES: &[&str] = &["write", "commit"];
const SIDES: &[&str] = &["file", "sidecar"];

fn engines() -> impl TypedValueParser<Value = EngineKind> {
    words(ENGINES)
}

fn layouts() -> impl TypedValueParser<Value = Layout> {
    words(LAYOUTS)
}

fn durabilities() -> impl TypedValueParser<Value = Durability> {
    words(DURABILITIES)
}

fn sides() -> impl TypedValueParser<Value = Trust> {
    words(SIDES)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_an_example() {
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains(&format!("untorn {}", verb.get_name())), "{} has no example", verb.get_name());
        }
    }

    #[test]
    fn every_word_offered_is_one_the_library_knows() {
        assert!(ENGINES.iter().all(|word| word.parse::<EngineKind>().is_ok()));
        assert!(LAYOUTS.iter().all(|word| word.parse::<Layout>().is_ok()));
        assert!(DURABILITIES.iter().all(|word| word.parse::<Durability>().is_ok()));
        assert!(SIDES.iter().all(|word| word.parse::<Trust>().is_ok()));
    }
}
