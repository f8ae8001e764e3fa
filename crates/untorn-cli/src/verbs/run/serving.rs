//! The mounts of a run and their servers.
//!
//! ```text
//!  directories ─► attach_private: the stage mounts ─► logs opened, replayed ─► serve ─► pullers ─► the program
//!                                                                                                       │
//!  reports ◄── serve ends ◄── roots closed, pullers let go ◄── no file open ◄── its last process ended ─┘
//! ```
//!
//! # Invariants
//!
//! 1. The server's descriptor of a directory is from before the mount, and this process stays outside of the mount's
//!    namespace. So its paths never lead into the mount.
//! 2. The program starts after every mount is served, its log replayed, and its puller connected.
//! 3. The pullers are children of a thread of their own, so the wait for the program's processes does not meet them.
//! 4. The roots stay open until no file is open any more: a last close commits, and its server may still have to pull.
//!    Then nothing but a process outside of the run, which was handed a descriptor, keeps a mount.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{Mode as Bits, OFlags};
use untorn_mount::attach::{self, AttachError, AttachOptions, Attached, Covering, Held, Program, Puller, Root, Stage};
use untorn_mount::{Globs, Mode, Report, ServeOptions, Serving};

use super::directories::Chosen;
use crate::cli::{Run, RunMode};
use crate::exit::{Exit, Failure, Result};
use crate::verbs::boost::{self, Facts, Log};
use crate::verbs::mount::{OwnLog, failed_to_serve, hidden_log, is_shown};
use crate::verbs::unmount::{failure, puller_of_this_program, stage_of_this_program};

/// Between two looks at the open files of a run that ends.
const MOMENT: Duration = Duration::from_millis(1);

/// A directory of a run, before it is mounted.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// An `O_PATH` descriptor from before the mount.
    descriptor: OwnedFd,
    options: AttachOptions,
}

impl Place {
    /// Opens a directory, and refuses one that untorn serves already.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Bits::empty())
            .map_err(|error| Failure::io_at("open", path, &error.into()))?;
        if let Some(mount) = attach::mount_around(&descriptor).map_err(failure)? {
            let what = format!(
                "untorn serves this directory already, by the mount on {}; start the program without `untorn run`, or \
                 name another directory with --match",
                mount.display()
            );
            return Err(Failure::usage_at(path, what));
        }
        let options = AttachOptions::over(&descriptor).map_err(|error| Failure::io_at("examine", path, &error))?;
        Ok(Place { path: path.to_owned(), descriptor, options })
    }
}

/// The log that `--log` names, checked against the directories of the run.
pub(super) fn given_log(args: &Run, places: &[Place]) -> Result<Option<PathBuf>> {
    let Some(named) = &args.log.log else { return Ok(None) };
    let log = boost::resolved(named)?;
    // A link may lead elsewhere; the library decides whether it is trusted.
    let canonical = log.canonicalize().unwrap_or_else(|_| log.clone());
    if let Some(place) = places.iter().find(|place| is_shown(&canonical, &place.path)) {
        let what = format!(
            "the log is inside {}, which the run serves, so programs could write to it; move the log, or narrow \
             --match",
            place.path.display()
        );
        return Err(Failure::usage_at(&log, what));
    }
    boost::medium(&log)?;
    Ok(Some(log))
}

/// A directory that is served.
struct Served {
    serving: Serving,
    /// The place of its log in the list of logs.
    log: usize,
}

/// The mounts of a run.
pub(super) struct Mounts {
    served: Vec<Served>,
    logs: Vec<Facts>,
    pullers: Pullers,
    /// Default logs: they go last.
    own_logs: Vec<OwnLog>,
}

/// The mounts, and a program that waits for them.
pub(super) struct Ready {
    mounts: Mounts,
    held: Held,
}

impl Ready {
    /// Mounts and serves the directories. On failure nothing is left behind, and the program does not start.
    pub(super) fn new(args: &Run, chosen: &Chosen, places: Vec<Place>, log: Option<&Path>) -> Result<Self> {
        // First, because a machine that can't mount is to be left without a log.
        let (attached, held) = attached(args, &places)?;
        let mut logs: Vec<Log> = log.map(|log| boost::open(&args.log, log)).into_iter().collect::<Result<_>>()?;
        let (mut own_logs, mut served, mut roots) = (Vec::new(), Vec::new(), Vec::new());
        for (attached, place) in attached.into_iter().zip(places) {
            if log.is_none() {
                let log = own_log(args, &place.path)?;
                own_logs.push(OwnLog(log.cache.clone()));
                logs.push(log);
            }
            let number = logs.len() - 1;
            let mut options = options(args, chosen, &logs[number])?;
            (options.allow_other, options.ids) = (place.options.allow_other, attached.ids);
            let serving = untorn_mount::serve(attached.device, place.descriptor, &place.path, options);
            let serving = serving.map_err(|error| failed_to_serve(&logs[number].facts.path, "run", error))?;
            served.push(Served { serving, log: number });
            roots.push(attached.root);
        }
        let (pullers, sockets) = Pullers::start(roots)?;
        for (served, socket) in served.iter().zip(sockets) {
            served.serving.set_puller(socket);
        }
        let logs = logs.into_iter().map(|log| log.facts).collect();
        Ok(Ready { mounts: Mounts { served, logs, pullers, own_logs }, held })
    }

    /// Starts the program.
    pub(super) fn start(self) -> Result<(Mounts, Child)> {
        let child = self.held.start().map_err(|error| match error {
            error @ AttachError::Program { .. } => Failure::usage(error.to_string()),
            error => failure(error),
        })?;
        Ok((self.mounts, child))
    }
}

/// Mounts the directories for the program, which waits.
fn attached(args: &Run, places: &[Place]) -> Result<(Vec<Attached>, Held)> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::usage("no program given; add one after `--`"));
    };
    let program = Program { program: program.clone(), arguments: arguments.to_vec() };
    let covering = |place: &Place| Covering { mountpoint: place.path.clone(), options: place.options.clone() };
    let coverings: Vec<Covering> = places.iter().map(covering).collect();
    let stage = stage_of_this_program();
    attach::attach_private(&coverings, &stage, &program).map_err(|error| not_mounted(error, &stage))
}

/// Mounts the directories and looks at their default logs, as [`Ready::new`] does. Nothing is served, and nothing is
/// left behind.
pub(super) fn rehearse(args: &Run, places: &[Place]) -> Result<()> {
    drop(attached(args, places)?);
    places.iter().try_for_each(|place| {
        let log = untorn_mount::make_log_directory(&place.path)
            .map_err(|error| failed_to_serve(&place.path, "run", error))
            .and_then(|log| boost::rehearse(&log));
        untorn_mount::remove_empty_log_directory(&place.path);
        log
    })
}

/// How often a run makes the directory of its default log.
const TRIES: u32 = 16;

/// The default log of a directory. A run at its end removes its log, and the directory of the log with it, perhaps
/// just when this one is about to create its own there.
fn own_log(args: &Run, directory: &Path) -> Result<Log> {
    let mut tries = 1;
    loop {
        let log = hidden_log(directory)?;
        match boost::open(&args.log, &log) {
            Err(_) if tries < TRIES && !log.parent().is_some_and(Path::exists) => tries += 1,
            opened => return opened,
        }
    }
}

/// How to serve a directory with this log.
fn options(args: &Run, chosen: &Chosen, log: &Log) -> Result<ServeOptions> {
    let mode = match args.mode {
        RunMode::Boost => Mode::Boost,
        RunMode::Atomic => Mode::Atomic,
    };
    let mut options = ServeOptions::new(mode, &log.facts.path);
    options.cache = Some(log.cache.clone());
    options.globs = globs(chosen)?;
    if !chosen.commit_logs.is_empty() {
        let globs = Globs::new(Path::new("/"), &chosen.commit_logs, &[]);
        options.commit_logs = Some(globs.map_err(|error| Failure::usage(error.to_string()))?);
    }
    options.strict = args.strict;
    options.write_through = args.write_through;
    options.local_locks = args.local_locks;
    Ok(options)
}

/// The globs as the server takes them.
///
/// # Errors
/// Usage, for a glob that means nothing.
pub(super) fn globs(chosen: &Chosen) -> Result<Globs> {
    // All globs with a slash are absolute.
    let globs = Globs::new(Path::new("/"), &chosen.globs, &chosen.excluded);
    globs.map_err(|error| Failure::usage(error.to_string()))
}

/// The error of a machine that refuses the mount, with each way and its reason.
fn not_mounted(error: AttachError, stage: &Stage) -> Failure {
    if !matches!(error, AttachError::System { .. }) {
        return failure(error);
    }
    let mut message = format!("the program was not started, because its files cannot be mounted: {error}");
    for finding in attach::probe(stage).into_iter().filter(|finding| !finding.works) {
        message.push_str(&format!("; {}: {}", finding.name, finding.why));
    }
    message.push_str("; use the library untorn where a machine permits no mount (`untorn doctor` says more)");
    Failure { exit: Exit::Io, path: None, message }
}

/// The pullers of a run, and the thread that is their parent.
struct Pullers {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Pullers {
    /// Starts a puller for each root, and returns the sockets for the servers. The mounts must be served.
    fn start(roots: Vec<Root>) -> Result<(Self, Vec<UnixStream>)> {
        let (end, ends) = mpsc::channel();
        let (started, starts) = mpsc::channel();
        let thread = thread::spawn(move || {
            let pullers: Result<Vec<(Puller, UnixStream)>> = roots.iter().map(puller).collect();
            let (pullers, answer) = match pullers {
                Ok(pullers) => {
                    let (pullers, sockets): (Vec<_>, Vec<_>) = pullers.into_iter().unzip();
                    (pullers, Ok(sockets))
                }
                Err(error) => (Vec::new(), Err(error)),
            };
            if started.send(answer).is_err() {
                return;
            }
            // An error is the end of a run that did not start.
            let _ = ends.recv();
            for puller in &pullers {
                // A puller that is gone has let go of everything.
                let _ = puller.let_go();
            }
        });
        let sockets = starts.recv().map_err(|_| Failure::usage("the thread of the pullers ended"))??;
        Ok((Pullers { end, thread }, sockets))
    }

    /// Closes the roots, here and in the pullers.
    fn end(self) {
        // A thread that has ended has closed the roots.
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

/// Starts a puller. The mount has answered once then.
fn puller(root: &Root) -> Result<(Puller, UnixStream)> {
    let (puller, socket) = Puller::start(&puller_of_this_program(), root).map_err(failure)?;
    puller.ask_root().map_err(|error| Failure::io("cannot read the root of the new mount", &error))?;
    Ok((puller, socket))
}

/// How the servers of a run ended.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The sum of all reports.
    pub(super) report: Report,
    /// The logs of files that could not be written.
    pub(super) logs_left: Vec<PathBuf>,
}

impl Mounts {
    /// Ends the mounts after the last process of the program, and brings everything to the files.
    pub(super) fn end(self) -> Result<(Account, Vec<Facts>)> {
        let open: Vec<_> = self.served.iter().map(|served| served.serving.open_files()).collect();
        while open.iter().any(|open| open.count() > 0) {
            thread::sleep(MOMENT);
        }
        // Each would keep its server's state.
        drop(open);
        self.pullers.end();
        let mut account = Account::default();
        let mut failed = None;
        for served in self.served {
            let log = &self.logs[served.log].path;
            match served.serving.wait() {
                Ok(report) => {
                    if !report.failed.is_empty() && !account.logs_left.contains(log) {
                        account.logs_left.push(log.clone());
                    }
                    add(&mut account.report, report);
                }
                Err(error) => failed = Some(failed_to_serve(log, "run", error)),
            }
        }
        drop(self.own_logs);
        match failed {
            Some(failed) => Err(failed),
            None => Ok((account, self.logs)),
        }
    }
}

fn add(sum: &mut Report, report: Report) {
    let all = |into: &mut BTreeMap<PathBuf, String>, from| into.extend(from);
    sum.managed += report.managed;
    sum.bytes += report.bytes;
    sum.lock_requests += report.lock_requests;
    sum.flush_requests += report.flush_requests;
    sum.sync_requests += report.sync_requests;
    sum.synced_writes += report.synced_writes;
    sum.writes_together += report.writes_together;
    all(&mut sum.plain, report.plain);
    all(&mut sum.refused, report.refused);
    all(&mut sum.failed, report.failed);
    all(&mut sum.sealed, report.sealed);
}
