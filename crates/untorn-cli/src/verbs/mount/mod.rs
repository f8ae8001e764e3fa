//! `untorn mount`.

mod background;
mod places;
mod ready;
mod report;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use untorn_mount::attach::{self, AttachError, AttachOptions, Claim, Puller, Root};
use untorn_mount::{Globs, Mode, OpenFiles, ServeOptions};

use self::background::Half;
use self::places::Places;
pub(super) use self::places::{OwnLog, hidden_log, is_shown};
use super::boost;
use super::unmount::{failure, puller_of_this_program, refuse_more_rights};
use crate::cli::{Mount, RunMode};
use crate::exit::{Exit, Failure, Result};
use crate::output;
use crate::signals::handled;

/// Bytes of an entry of a log that `mount` creates.
const ENTRY: u32 = 4096;
/// How long to wait for an earlier server on the same directory.
const PATIENCE: Duration = Duration::from_secs(10);

/// Mounts, and serves until the mount is removed.
pub(super) fn mount(args: &Mount) -> Result<Exit> {
    refuse_more_rights()?;
    if args.mode == RunMode::Boost && args.write_through {
        return Err(Failure::usage("--write-through is for --mode atomic: --mode boost always writes through"));
    }
    if args.mode == RunMode::Boost && !args.commit_log.is_empty() {
        return Err(Failure::usage(
            "--commit-log is for --mode atomic, where a sync is a commit; in a boost mount, mark a file atomic by \
             `setfattr -n user.untorn.atomic -v 1`, and give it a log by `setfattr -n user.untorn.commit_log -v 1`",
        ));
    }
    if !args.foreground && !args.half {
        return background::start();
    }
    let half = if args.half { Some(Half::take()?) } else { None };
    // A half has the name of the link that it was started by.
    rustix::thread::set_name(c"untorn").map_err(|error| Failure::io("cannot name this process", &error.into()))?;
    serve(args, half).inspect_err(|_| {
        if args.log.is_none() {
            untorn_mount::remove_empty_log_directory(&args.source);
        }
    })
}

/// Mounts, and serves in this process until the mount is removed.
fn serve(args: &Mount, half: Option<Half>) -> Result<Exit> {
    let places = Places::of(args)?;
    let mut options = options(args, &places)?;
    // Handlers come first: a signal from here on removes the mount and does not leave it without a server.
    let signals = Signals::new(handled(&[SIGHUP, SIGINT, SIGTERM]))
        .map_err(|error| Failure::io("cannot install signal handlers", &error))?;
    let attaching =
        AttachOptions::over(&places.directory).map_err(|error| Failure::io_at("examine", &places.source, &error))?;
    options.allow_other = attaching.allow_other;
    // An earlier server on this directory may still be at its end, and have the log.
    let claim = Claim::take(&places.mountpoint, PATIENCE);
    if args.log.is_none() {
        // That one has removed its log, and the directory with it.
        hidden_log(&places.source)?;
    }
    let attached = attach::attach(&places.mountpoint, &attaching).map_err(failure)?;
    let (mountpoint, way) = (attached.mountpoint, attached.way);
    let served = untorn_mount::serve(attached.device, places.directory, &places.source, options);
    let serving = served.map_err(|error| {
        remove(&mountpoint);
        failed_to_serve(&places.log, "mount", error)
    })?;
    let log = args.log.is_none().then(|| OwnLog(serving.log()));
    let (puller, socket) = Puller::start(&puller_of_this_program(), &attached.root).map_err(|error| {
        remove(&mountpoint);
        failure(error)
    })?;
    serving.set_puller(socket);
    let handle = signals.handle();
    let watcher = {
        let (puller, open) = (Arc::new(puller), Arc::new(serving.open_files()));
        let (mountpoint, connection, root) = (mountpoint.clone(), attached.connection, attached.root);
        let mount = Mounted { mountpoint, connection, root, puller, open };
        thread::spawn(move || mount.watch(signals))
    };
    // This thread serves no request, so it may ask the mount. A user's first request must find the root's true owner,
    // which the kernel learns by this question.
    if let Err(error) = rustix::fs::stat(&mountpoint) {
        remove(&mountpoint);
        return Err(Failure::io_at("read the root of the new mount", &mountpoint, &error.into()));
    }
    if let Err(failure) = announce(args, half, &mountpoint, way) {
        remove(&mountpoint);
        return Err(failure);
    }
    let report = serving.wait();
    drop(log);
    drop(claim);
    handle.close();
    let _ = watcher.join();
    // A service manager that is gone needs no word.
    let _ = ready::tell("STOPPING=1");
    report::end(args, &report.map_err(|error| failed_to_serve(&places.log, "mount", error))?)
}

/// How to serve.
fn options(args: &Mount, places: &Places) -> Result<ServeOptions> {
    let mode = match args.mode {
        RunMode::Boost => Mode::Boost,
        RunMode::Atomic => Mode::Atomic,
    };
    let globs = Globs::new(&places.source, &args.globs, &args.excluded);
    let mut options = ServeOptions::new(mode, &places.log);
    options.globs = globs.map_err(|error| Failure::usage(error.to_string()))?;
    if !args.commit_log.is_empty() {
        let globs = Globs::new(&places.source, &args.commit_log, &[]);
        options.commit_logs = Some(globs.map_err(|error| Failure::usage(error.to_string()))?);
    }
    options.write_through = args.write_through;
    options.local_locks = args.local_locks;
    options.log_options = boost::new_log(args.log_size);
    if let (Some(wanted), true) = (args.log_size, places.log.exists()) {
        boost::check_size(&places.log, wanted, ENTRY)?;
    }
    Ok(options)
}

/// Says that the mount is there: to the user, or to the service manager.
fn announce(args: &Mount, half: Option<Half>, mountpoint: &Path, way: attach::Way) -> Result<()> {
    if args.form.json && half.is_some() {
        let mode = args.mode.as_str();
        output::json(&json!({ "mountpoint": mountpoint.display().to_string(), "mode": mode, "way": way.as_str() }))?;
    }
    ready::tell("READY=1")
        .map_err(|error| Failure::io("cannot tell the service manager that the mount is ready", &error))?;
    half.map_or(Ok(()), Half::leave)
}

/// A mount that signals remove.
struct Mounted {
    mountpoint: PathBuf,
    connection: Option<u32>,
    root: Root,
    puller: Arc<Puller>,
    open: Arc<OpenFiles>,
}

impl Mounted {
    /// Removes the name of a mount that programs use. Syncs of their open files need its root, which has no name then;
    /// it is kept until the last file is closed.
    fn remove_in_use(&self) {
        let kept = self.puller.keep_root(&self.root);
        remove(&self.mountpoint);
        if let Err(error) = kept {
            return say(&format!("untorn: syncs of files in the mount may fail from now on: {error}\n"));
        }
        let (puller, open) = (self.puller.clone(), self.open.clone());
        thread::spawn(move || {
            while open.count() > 0 {
                thread::sleep(Duration::from_millis(20));
            }
            // A puller that is gone has let go of it.
            let _ = puller.let_go();
        });
    }

    /// Removes the mount at the first signal, and ends its connection at the second.
    fn watch(self, mut signals: Signals) {
        let mut removed = false;
        for _ in &mut signals {
            if removed {
                say("untorn: ending the mount; programs that use it get errors, and the log has what was durable\n");
                if self.connection.is_none_or(|connection| attach::abort(connection).is_err()) {
                    // Without the file system fusectl nothing else ends a connection.
                    std::process::exit(Exit::Io as i32);
                }
                continue;
            }
            removed = true;
            match attach::detach(&self.mountpoint, attach::Unmount::Clean) {
                Err(error @ AttachError::Busy { .. }) => {
                    self.remove_in_use();
                    say(&format!("untorn: {error}. The mount ends at its last use; a second signal ends it at once\n"));
                }
                Err(error) => say(&format!("untorn: {error}\n")),
                Ok(()) => {}
            }
        }
    }
}

/// Removes the mount's name, whoever uses it.
fn remove(mountpoint: &Path) {
    if let Err(error) = attach::detach(mountpoint, attach::Unmount::Lazy) {
        say(&format!("untorn: {error}\n"));
    }
}

/// The error of a directory that could not be served; `user` says whether a run or a mount asked for it.
pub(super) fn failed_to_serve(log: &Path, user: &str, error: untorn_mount::Error) -> Failure {
    match error {
        untorn_mount::Error::Library(error @ untorn::Error::InUse { .. }) if error.path() == log => {
            boost::in_use(log, error, &format!(", or give this {user} another --log"))
        }
        untorn_mount::Error::Library(error) => error.into(),
        error @ (untorn_mount::Error::Glob(_)
        | untorn_mount::Error::Covered(_)
        | untorn_mount::Error::Planted { .. }) => Failure::usage(error.to_string()),
        // The bytes are there, and the user is to bring them to their files.
        error @ untorn_mount::Error::LogLeft { in_use: false, .. } => {
            Failure { exit: Exit::Attention, path: None, message: error.to_string() }
        }
        error => Failure { exit: Exit::Io, path: None, message: error.to_string() },
    }
}

/// Prints to standard error.
fn say(text: &str) {
    // If stderr is closed, the message is lost.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
