//! `untorn take-over`: a program runs as the writer of a replica, for as long as it owns it.
//!
//! The program is a child of this process, and dies with it: nothing else would end it when another writer takes the
//! replica over. `PR_SET_PDEATHSIG` does that. A hidden verb sets it and becomes the program, because nothing may run
//! between `fork` and `exec` here.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use untorn::options::CommitLog;
use untorn::{Options, commits};
use untorn_replicate::{Error, FollowOptions, Follower, Replica, ReplicaOptions, RestoreOptions, restore};

use super::replicate::{SILENCE, set_back, set_sync};
use super::run::{check_program, code};
use crate::cli::{self, Cli, Verb};
use crate::exit::{Exit, Failure, Result};
use crate::signals::Stop;

/// How long to sleep before looking whether the program has ended, a signal came, or the replica is lost.
const PATIENCE: Duration = Duration::from_millis(20);

/// Takes the replica over, and runs the program.
pub(crate) fn run(args: &cli::TakeOver) -> Result<Exit> {
    let Some(program) = args.command.first() else {
        return Err(Failure::usage("no program given; add one after `--`"));
    };
    check_program(program)?;
    let file = std::path::absolute(&args.file).map_err(|error| Failure::io_at("find", &args.file, &error))?;
    let command = command(args, &file)?;
    if !args.plain {
        rehearse(&command)?;
    }
    let on_signals = || Stop::on(&[SIGINT, SIGTERM, SIGHUP]);
    // Otherwise a signal ends the process at once until the program starts, also while a request waits for a store that
    // has died.
    let waiting = if args.wait { Some(on_signals()?) } else { None };
    let replica = take(args, &file, waiting.as_ref())?;
    replica.sync_replicated()?;
    if let Some(sync) = args.sync {
        // Not while a snapshot of the file is shipped, which would have it in use. The replica looks at the log again.
        let changed = set_sync(&file, sync)?;
        if let Err(error) = replica.sync_replicated() {
            drop(replica);
            return Err(set_back(changed, error.into()));
        }
    }
    let stop = waiting.map_or_else(on_signals, Ok)?;
    let epoch = replica.status().epoch;
    say(&format!(
        "{}: writer of {} in epoch {epoch}, from commit {}",
        file.display(),
        args.url,
        acknowledged(&replica)
    ));
    let program = start(&command)?;
    let (status, lost) = attend(program, &replica, args, &stop)?;
    if let Some(error) = lost {
        return Err(error.into());
    }
    let code = code(status);
    let is_told = stop.flag().load(Ordering::Acquire);
    let handed_over = if is_told { replica.hand_over_within(SILENCE) } else { replica.hand_over() };
    match &handed_over {
        Ok(status) => say(&format!("handed {} over at commit {}", args.url, status.acknowledged)),
        Err(error) => say(&format!("{} was not handed over: {error}", args.url)),
    }
    match handed_over {
        Err(error) if code == 0 => Err(error.into()),
        // The program may exit with any code, so it is not an `Exit`.
        _ => std::process::exit(code.into()),
    }
}

fn acknowledged(replica: &Replica) -> u64 {
    replica.status().acknowledged
}

/// Owns the replica, and waits for a hand-over before that until a signal comes, if it is to wait.
fn take(args: &cli::TakeOver, file: &Path, waiting: Option<&Stop>) -> Result<Replica> {
    let interval = Duration::from_millis(args.interval.max(1));
    let name = ReplicaOptions::new().interval(interval).retain(args.retain);
    let options = name.confirm(Duration::from_secs(args.confirm));
    let exists = file.symlink_metadata().is_ok();
    let mut follower = match open(args, file) {
        Ok(follower) => follower,
        // It may be the file of the last owner, or of a replica that is made now.
        Err(Error::NotFollower { .. } | Error::NotFound { .. }) if exists => match attach(args, file, &options) {
            Err(error @ Error::NotDescendant { .. }) if !args.force => {
                let mut failure = Failure::from(error);
                failure.message.push_str("; --force replaces the file");
                return Err(failure);
            }
            Err(Error::NotDescendant { .. }) => {
                restore(&args.key.url(&args.url), file, &RestoreOptions::new().replace(true))?;
                open(args, file)?
            }
            attached => return Ok(attached?),
        },
        Err(error) => return Err(error.into()),
    };
    if let Some(stop) = waiting {
        let told = stop.flag();
        let commit = follower.status().commit;
        say(&format!("{}: at commit {commit}; waits until {} is handed over", file.display(), args.url));
        loop {
            match follower.poll() {
                Ok(found) if found.is_current && follower.status().is_released => break,
                Ok(_) => {}
                Err(Error::Store(error)) => say(&format!("{error}; trying again")),
                Err(error) => return Err(error.into()),
            }
            let until = Instant::now() + interval;
            while Instant::now() < until && !told.load(Ordering::Acquire) {
                std::thread::sleep(PATIENCE.min(interval));
            }
            if told.load(Ordering::Acquire) {
                follower.close()?;
                stop.interrupted("the replica was not taken over");
                return Err(Failure::io("cannot wait", &ErrorKind::Interrupted.into()));
            }
        }
    }
    Ok(follower.take_over(options)?)
}

/// A follower whose file has a commit log.
fn open(args: &cli::TakeOver, file: &Path) -> std::result::Result<Follower, Error> {
    let has_log = commits::kept(file).ok().flatten().is_some();
    let options = FollowOptions::new();
    let options = if has_log { options } else { options.commit_log(CommitLog::new(args.log_size)) };
    Follower::open(&args.key.url(&args.url), file, &options)
}

/// Goes on with the file of the last owner, which a crash may have left.
fn attach(args: &cli::TakeOver, file: &Path, options: &ReplicaOptions) -> std::result::Result<Replica, Error> {
    let mut with = Options::new();
    if commits::kept(file)?.is_none() {
        with = with.commit_log(CommitLog::new(args.log_size));
    }
    with.open(file)?.close()?;
    Replica::attach_path(file, &args.key.url(&args.url), options.clone())
}

/// The command that runs the program.
fn command(args: &cli::TakeOver, file: &Path) -> Result<Vec<OsString>> {
    let mut command: Vec<OsString> = Vec::new();
    if !args.plain {
        let glob = file.to_str().filter(|name| !name.contains(['*', '?', '[', ']', '{', '}', '!', '\\', ',']));
        let glob = glob.ok_or_else(|| {
            Failure::usage_at(file, "its path has characters of a glob; use --plain, or give it another name")
        })?;
        let program = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
        command.extend([program.into(), "run".into(), "--strict".into(), "--match".into(), glob.into(), "--".into()]);
    }
    command.extend(args.command.iter().cloned());
    Ok(command)
}

/// Tries whether the run of the program could start here, before another writer loses the replica for it.
fn rehearse(command: &[OsString]) -> Result<()> {
    let parsed = Cli::try_parse_from(command).map_err(|error| Failure::usage(error.to_string()))?;
    let Verb::Run(run) = parsed.verb else { return Ok(()) };
    super::run::rehearse(&run).map_err(|mut failure| {
        failure.message.push_str("; nothing was taken over; --plain needs no mount, for programs that use the library");
        failure
    })
}

/// Starts the program as a child that does not outlive this process.
fn start(command: &[OsString]) -> Result<Child> {
    let mut guard = Command::new("/proc/self/exe");
    guard.arg("guarded").arg(std::process::id().to_string()).arg("--").args(command);
    guard.spawn().map_err(|error| Failure::io("cannot start the program", &error))
}

/// Becomes the program of `take-over`.
pub(crate) fn guarded(args: &cli::Guarded) -> Result<Exit> {
    let failed = |error: rustix::io::Errno| Failure::io("cannot have the program end with its parent", &error.into());
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    // The parent may have died before.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.parent) {
        return Err(Failure::io("cannot start the program", &ErrorKind::BrokenPipe.into()));
    }
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::usage("no program given"));
    };
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::usage(format!("cannot run {}: {error}", program.display())))
}

/// Waits for the program. Ends it if the replica is lost, and returns why.
fn attend(
    mut program: Child,
    replica: &Replica,
    args: &cli::TakeOver,
    stop: &Stop,
) -> Result<(std::process::ExitStatus, Option<Error>)> {
    let process = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
    let signal = |signal| {
        if let Some(process) = process {
            // It may have ended.
            let _ = kill_process(process, signal);
        }
    };
    let told = stop.flag();
    let (mut lost, mut kills_at, mut has_passed, mut failure) = (None, None, false, None);
    loop {
        let waited = program.try_wait().map_err(|error| Failure::io("cannot wait for the program", &error))?;
        if let Some(status) = waited {
            return Ok((status, lost));
        }
        if lost.is_none()
            && let Some(error) = replica.ended()
        {
            say(&format!("{error}; ending the program"));
            (lost, kills_at) = (Some(error), Some(Instant::now() + Duration::from_secs(args.grace)));
            signal(Signal::TERM);
        }
        if kills_at.is_some_and(|at| Instant::now() >= at) {
            kills_at = None;
            signal(Signal::KILL);
        }
        if told.load(Ordering::Acquire) && !has_passed {
            // A terminal has sent its signal to the program, too.
            has_passed = true;
            if stop.signal() != SIGINT {
                signal(if stop.signal() == SIGHUP { Signal::HUP } else { Signal::TERM });
            }
        }
        let now = replica.status().failure;
        if now != failure
            && lost.is_none()
            && let Some(what) = &now
        {
            say(&format!("{what}; trying again"));
        }
        failure = now;
        std::thread::sleep(PATIENCE);
    }
}

/// Prints to standard error, because standard output belongs to the program.
fn say(text: &str) {
    // If stderr is closed, the message is lost.
    let _ = writeln!(std::io::stderr(), "untorn: {text}");
}
