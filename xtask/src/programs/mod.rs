//! `cargo xtask programs`: runs existing programs without untorn, and in each mode under `untorn run` and
//! in a directory that `untorn mount` serves.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValuesParser;

mod catalogue;
pub(crate) mod kills;
pub(crate) mod outcome;
pub(crate) mod power_cuts;
pub(crate) mod victims;

use catalogue::{CATALOGUE, Program};
use outcome::{Mode, Outcome, differences};
use victims::{CARELESS, VICTIMS};

/// Arguments of `cargo xtask programs`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Programs to run [default: all except python-sqlite3, whose tests Debian does not package]
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(CATALOGUE.iter().map(|program| program.name)))]
    names: Vec<String>,
    /// Ways to serve the programs' files [default: all]
    #[arg(long, value_enum, value_name = "WAY")]
    by: Vec<By>,
    /// Number of programs to run at once
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Also kill programs that report their acknowledged steps, this many times in total, spread over SQLite, RocksDB
    /// and file-writing programs in both modes; the second-to-last line has the tally of each mode
    #[arg(long, value_name = "N", default_value_t = 0)]
    kills: u32,
    /// Also cut the power of the same programs' disk, this many times in total; needs root. Each program runs on ext4
    /// on a recorded disk, boosted ones with the log in memory and on that disk, and is checked on disks that a power
    /// cut may leave. Canary disks (a lying disk, one without replay, one of a program without syncs) must be
    /// convicted. The second-to-last line has the tally
    #[arg(long, value_name = "N", default_value_t = 0)]
    power_cuts: u32,
    /// Seed for the instants of the power cuts and the surviving writes
    #[arg(long, value_name = "N", default_value_t = 0x5eed)]
    seed: u64,
    /// Directory with a built tool, instead of building it
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// Keep the programs' working directories below this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// A way to serve the programs' files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// `untorn run`.
    Run,
    /// `untorn mount`, which needs root or `fusermount3`.
    Mount,
}

/// The exit code if a program is missing.
const UNAVAILABLE: u8 = 69;

/// The built tool, and the scripts.
pub(crate) struct Built {
    pub(crate) untorn: PathBuf,
    /// Variables for the programs.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    pub(crate) scripts: PathBuf,
    by: Vec<By>,
}

impl Built {
    /// Programs that load libraries of untorn themselves.
    pub(crate) fn libraries(root: &Path, environment: Vec<(&'static str, PathBuf)>) -> Self {
        Built { untorn: PathBuf::new(), environment, scripts: root.join("xtask/programs"), by: Vec::new() }
    }
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    let wanted = |program: &&Program| match arguments.names.as_slice() {
        [] => program.name != catalogue::ON_REQUEST,
        names => names.iter().any(|name| name == program.name),
    };
    let chosen: Vec<_> = CATALOGUE.iter().filter(wanted).collect();
    let missing = catalogue::missing(&chosen);
    if !missing.is_empty() {
        eprintln!(
            "programs: packages are missing: {}; install them with `apt-get install {}`",
            missing.join(", "),
            missing.join(" ")
        );
        return ExitCode::from(UNAVAILABLE);
    }
    if arguments.power_cuts > 0
        && let Err(error) = power_cuts::require()
    {
        eprintln!("programs: {error}");
        return ExitCode::from(UNAVAILABLE);
    }
    match compare(root, arguments, &chosen) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("programs: {error}");
            ExitCode::from(74)
        }
    }
}

fn build(root: &Path, by: Vec<By>) -> io::Result<Built> {
    let target = crate::target(root, "");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--release", "--package", "untorn-cli", "--target-dir"]);
    if !cargo.arg(&target).status()?.success() {
        return Err(io::Error::other("cargo build failed; see its messages above"));
    }
    Ok(Built { untorn: target.join("release/untorn"), by, ..Built::libraries(root, Vec::new()) })
}

/// Whether every program behaved as it does bare.
fn compare(root: &Path, arguments: &Arguments, chosen: &[&Program]) -> io::Result<bool> {
    let built = match &arguments.built {
        Some(directory) => {
            let directory = directory.canonicalize()?;
            Built { untorn: directory.join("untorn"), by: arguments.by.clone(), ..Built::libraries(root, Vec::new()) }
        }
        None => build(root, arguments.by.clone())?,
    };
    let start = Instant::now();
    let at = Place::new(arguments.keep.as_deref())?;
    let (next, same, failed) = (AtomicUsize::new(0), AtomicBool::new(true), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                while let Some(program) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match one(&built, program, &at.path) {
                        Ok((report, is_same)) => {
                            print!("{report}");
                            same.fetch_and(is_same, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let error = io::Error::new(error.kind(), format!("{}: {error}", program.name));
                            failed.lock().map(|mut failed| *failed = Some(error)).unwrap_or_default();
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_default() {
        return Err(error);
    }
    let mut same = same.into_inner();
    if arguments.kills > 0 {
        same &= kills::run(&built, VICTIMS, arguments.kills, &at.path)?;
    }
    if arguments.power_cuts > 0 {
        let order = power_cuts::Order { disks: arguments.power_cuts, seed: arguments.seed, jobs: arguments.jobs };
        // Keep wrong disks for inspection.
        let keep = arguments.keep.clone().unwrap_or_else(std::env::temp_dir);
        let victims: Vec<_> = VICTIMS.iter().chain([&CARELESS]).collect();
        same &= power_cuts::run(&built, &victims, &order, &keep)?;
    }
    let verdict =
        if same { "each as it is bare" } else { "NOT AS THEY ARE BARE, OR NOT WHAT THEY ACKNOWLEDGED; see above" };
    println!("{} programs in {:.0} s: {verdict}", chosen.len(), start.elapsed().as_secs_f64());
    Ok(same)
}

/// Runs a program bare and in each mode. Returns the report, and whether the results were the same.
fn one(built: &Built, program: &Program, at: &Path) -> io::Result<(String, bool)> {
    let bare = Outcome::of(built, program, Mode::Bare, at)?;
    let mut report = format!("{:20} bare {:5.1} s", program.name, bare.seconds);
    let mut found = Vec::new();
    for mode in modes(&built.by) {
        let outcome = Outcome::of(built, program, mode, at)?;
        report.push_str(&format!("; {} {:5.1} s, {}", mode.name(), outcome.seconds, outcome.words()));
        found.extend(differences(program, mode, &bare, &outcome));
    }
    report.push('\n');
    for difference in &found {
        report.push_str(&format!("    {difference}\n"));
    }
    Ok((report, found.is_empty()))
}

/// The modes that are compared with the bare program.
fn modes(by: &[By]) -> Vec<Mode> {
    let has = |way| by.is_empty() || by.contains(&way);
    let mut modes = Vec::new();
    if has(By::Run) {
        modes.extend([Mode::Atomic, Mode::Boost]);
    }
    if has(By::Mount) {
        modes.extend([Mode::MountAtomic, Mode::MountBoost]);
    }
    modes
}

/// The directory where the programs run.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    kept: bool,
}

impl Place {
    pub(crate) fn new(keep: Option<&Path>) -> io::Result<Self> {
        let path = match keep {
            Some(keep) => keep.to_owned(),
            None => std::env::temp_dir().join(format!("untorn-programs-{}", std::process::id())),
        };
        std::fs::create_dir_all(&path)?;
        Ok(Place { path: path.canonicalize()?, kept: keep.is_some() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            // It is a temporary directory, so leftovers don't matter.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A command with empty standard input.
pub(crate) fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}
