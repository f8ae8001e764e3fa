//! Starting a program with the layer in it, and waiting until the last process of the run has ended.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, set_child_subreaper, setrlimit, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use untorn::write_cache::WriteCache;
use untorn_wire::{BOARD, LAYER, MATCH, MODE, ORACLE, SOCKET, is_chosen};

use crate::board::Board;
use crate::boost::Boost;
use crate::files::Files;
use crate::managed::Mode;
use crate::program::{self, Refusal, Runnable};
use crate::report::Report;
use crate::server::Server;
use crate::service::Service;

/// What to run, and with what.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program, as `execvp` finds it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Which files are managed. A glob without a slash is one for names; one that does not begin with a slash is
    /// taken from the working directory.
    pub globs: Vec<String>,
    /// Globs of files that are not managed, whatever else they match.
    pub excluded: Vec<String>,
    /// `libuntorn_preload.so`.
    pub layer: PathBuf,
}

impl Launch {
    /// Refuses what cannot be run, as far as that can be told without running anything.
    ///
    /// # Errors
    /// [`NotRun::Refused`], [`NotRun::Glob`]; [`NotRun::Io`] without a working directory.
    pub fn check(&self) -> Result<(), NotRun> {
        program::find(&self.program).map_err(NotRun::Refused)?;
        self.absolute_globs().map(drop)
    }

    /// The globs as the layer wants them.
    fn absolute_globs(&self) -> Result<OsString, NotRun> {
        let chosen = self.globs.iter().map(|glob| ("", glob));
        absolute_globs(chosen.chain(self.excluded.iter().map(|glob| ("!", glob))))
    }

    /// Whether the globs choose a file, by its path without symbolic links.
    ///
    /// # Errors
    /// [`NotRun::Glob`]; [`NotRun::Io`] without a working directory.
    pub fn manages(&self, path: &Path) -> Result<bool, NotRun> {
        let globs = self.absolute_globs()?;
        let globs = globs.as_bytes().split(|byte| *byte == b'\n').filter(|glob| !glob.is_empty());
        Ok(is_chosen(globs, |glob| fast_glob::glob_match(glob, path.as_os_str().as_bytes())))
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Of the program.
    pub status: ExitStatus,
    /// What was done.
    pub report: Report,
}

/// Why a program was not run.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotRun {
    /// The layer cannot get into it.
    Refused(Refusal),
    /// The layer did not get into it, though nothing spoke against it.
    NoLayer(PathBuf, String),
    /// A glob that means nothing.
    Glob(String),
    /// The system refused.
    Io(&'static str, io::Error),
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotRun::Refused(refusal) => refusal.fmt(f),
            NotRun::NoLayer(layer, why) => write!(f, "cannot preload {}: {why}", layer.display()),
            NotRun::Glob(glob) => write!(
                f,
                "{glob:?} is not a valid glob: it must not be empty or contain a newline, and brackets and braces \
                 must be closed"
            ),
            NotRun::Io(what, error) => write!(f, "cannot {what}: {error}"),
        }
    }
}

impl std::error::Error for NotRun {}

/// Runs a program under a mode, and returns when it and all that it started have ended.
///
/// # Errors
/// Why it was not run; nothing of it was, then.
pub fn launch(launch: &Launch, mode: impl Mode + 'static) -> Result<Ended, NotRun> {
    let name = mode.name();
    run(launch, name, |board| Ok(Files::new(Box::new(mode), board)))
}

/// Runs a program with a log in front of its files, which was replayed when it was opened; otherwise as [`launch`].
/// What is still in the log at the end is of files that could not be written to.
///
/// # Errors
/// Why it was not run; nothing of it was, then.
pub fn launch_with_log(launch: &Launch, log: WriteCache) -> Result<Ended, NotRun> {
    run(launch, "boost", |board| Ok(Boost::start(log, board)?))
}

/// Runs a program under what serves its files.
fn run(
    launch: &Launch,
    mode: &str,
    service: impl FnOnce(Board) -> io::Result<Arc<dyn Service>>,
) -> Result<Ended, NotRun> {
    let runnable = program::find(&launch.program).map_err(NotRun::Refused)?;
    let globs = launch.absolute_globs()?;
    let preload = preload(&launch.layer)?;
    verify(&runnable, &launch.layer, &preload)?;
    let server = Server::start(service).map_err(|error| NotRun::Io("start the server for the run", error))?;
    // Whoever loses its parent becomes a child of this process, which waits for it.
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| NotRun::Io("become the subreaper of the program's processes", error.into()))?;
    // One that is ignored (`nohup`) stays so, here and in the program: a handler would not be passed on to it.
    let ignored = ignored();
    let handled = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(handled).map_err(|error| NotRun::Io("install signal handlers", error))?;
    let child = Command::new(&launch.program)
        .args(&launch.arguments)
        .env("LD_PRELOAD", preload)
        .env(SOCKET, server.socket())
        .env(BOARD, server.board())
        .env(LAYER, &launch.layer)
        .env(MATCH, globs)
        .env(MODE, mode)
        .spawn()
        .map_err(|error| NotRun::Io("start the program", error))?;
    many_descriptors();
    let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let forward = thread::spawn(move || {
        for signal in &mut signals {
            // What a terminal sends reaches the program too; what is sent to this process alone is passed on.
            let passed = match signal {
                SIGTERM => Some(Signal::TERM),
                SIGHUP => Some(Signal::HUP),
                _ => None,
            };
            if let (Some(program), Some(signal)) = (program, passed) {
                // It may have ended.
                let _ = kill_process(program, signal);
            }
        }
    });
    let status = await_all(program);
    handle.close();
    let _ = forward.join();
    let report = server.finish();
    let status = status.ok_or_else(|| NotRun::Io("wait for the program", io::ErrorKind::NotFound.into()))?;
    if report.processes == 0 && std::env::var_os(ORACLE).is_none() && status.success() {
        let why = "the program exited without loading it, so none of its writes were managed".to_owned();
        return Err(NotRun::NoLayer(launch.layer.clone(), why));
    }
    Ok(Ended { status, report })
}

/// The signals that this process was started to ignore: bit 0 is signal 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Has a write beyond the limit on the size of files (`ulimit -f`) fail with EFBIG in this process, and not end it. A
/// program that it starts finds SIGXFSZ as this process did: `exec` resets a handler, and an ignored signal stays
/// ignored.
///
/// # Errors
/// Those of `sigaction(2)`.
pub fn survive_size_limits() -> io::Result<()> {
    if ignored() >> (SIGXFSZ - 1) & 1 == 1 {
        return Ok(());
    }
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// As many descriptors as this process may have: it has some for each process and each file of the run. The program was
/// started with the limit that it is to see.
fn many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Where that fails it works with those that there are.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Waits until there are no children any more; how the program itself ended.
fn await_all(program: Option<Pid>) -> Option<ExitStatus> {
    let mut of_program = None;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((child, status))) if Some(child) == program => {
                of_program = Some(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return of_program,
        }
    }
}

/// What `LD_PRELOAD` is to be: the layer, then what was there.
fn preload(layer: &Path) -> Result<OsString, NotRun> {
    let separators = [b':', b' '];
    if layer.as_os_str().as_bytes().iter().any(|byte| separators.contains(byte)) {
        let why = "its path contains a colon or a space, which separate names in LD_PRELOAD; move the layer".to_owned();
        return Err(NotRun::NoLayer(layer.to_owned(), why));
    }
    let mut preload = layer.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    Ok(preload)
}

/// Asks the program's dynamic linker what it would load, without running the program: of a preload that fails it only
/// warns.
fn verify(runnable: &Runnable, layer: &Path, preload: &OsStr) -> Result<(), NotRun> {
    let output = Command::new(&runnable.linker)
        .arg("--list")
        .arg(&runnable.image)
        .env("LD_PRELOAD", preload)
        .output()
        .map_err(|error| NotRun::Io("run the program's dynamic linker with --list", error))?;
    let wanted = layer.as_os_str().as_bytes();
    if output.stdout.windows(wanted.len()).any(|window| window == wanted) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NotRun::NoLayer(
        layer.to_owned(),
        if said.is_empty() { "the dynamic linker ignores it".to_owned() } else { said },
    ))
}

/// Globs for whole paths, one a line, each after what is to stand before it.
fn absolute_globs<'a>(globs: impl Iterator<Item = (&'a str, &'a String)>) -> Result<OsString, NotRun> {
    let here = std::env::current_dir().map_err(|error| NotRun::Io("find the working directory", error))?;
    let mut all = Vec::new();
    for (before, glob) in globs {
        if glob.is_empty() || glob.contains('\n') || fast_glob::validate(glob).is_err() {
            return Err(NotRun::Glob(glob.clone()));
        }
        if !all.is_empty() {
            all.push(b'\n');
        }
        all.extend_from_slice(before.as_bytes());
        if !glob.contains('/') {
            all.extend_from_slice(b"/**/");
        } else if !glob.starts_with('/') {
            all.extend(literal(here.as_os_str().as_bytes()));
            all.push(b'/');
        }
        all.extend_from_slice(glob.strip_prefix("./").unwrap_or(glob).as_bytes());
    }
    Ok(OsStr::from_bytes(&all).to_owned())
}

/// A glob that matches just these bytes.
fn literal(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| {
        let escape = b"*?[]{}!\\,".contains(byte).then_some(b'\\');
        escape.into_iter().chain([*byte])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, path: &str) -> bool {
        let all = absolute_globs(std::iter::once(("", &glob.to_owned()))).unwrap();
        fast_glob::glob_match(all.as_bytes(), path)
    }

    #[test]
    fn a_glob_names_files_anywhere_or_paths() {
        assert!(matches("*.db", "/a/b/c.db") && matches("*.db", "/c.db"));
        assert!(!matches("*.db", "/a/b.db/c"));
        assert!(matches("/a/**", "/a/b/c") && !matches("/a/*", "/a/b/c"));
        let here = std::env::current_dir().unwrap();
        assert!(matches("d/*.db", here.join("d/c.db").to_str().unwrap()));
        assert!(!matches("d/*.db", "/d/c.db"));
        assert!(absolute_globs(std::iter::once(("", &"{a".to_owned()))).is_err());
    }

    #[test]
    fn a_directory_with_odd_characters_is_matched_as_it_is() {
        let name = b"/a[b]*{c,d}";
        let glob: Vec<u8> = literal(name).collect();
        assert!(fast_glob::glob_match(&glob, name));
        assert!(!fast_glob::glob_match(&glob, b"/ab*c"));
    }
}
