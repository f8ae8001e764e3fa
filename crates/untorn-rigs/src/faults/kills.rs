//! Kills a process before each of its system calls that change a file or a directory, and looks at what it leaves.
//!
//! A *verb* is what a command of the tool does: create, write, settle, and so on. A run without a kill counts the
//! changing calls of a verb. Then, for each of these calls, a new process does the verb again and is killed by SIGKILL
//! instead of making that call. The next program must open the file at its last commit: as it was before the verb, or
//! as the verb leaves it. It must also be able to change it again. A verb that decides a disagreement may be repeated.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use nix::libc;

use super::rig::Program;
use super::tracer::{Action, End, Entry, Filter, trace};
use super::verbs::{Verb, survives};
use super::victim::READY;
use crate::error::{Error, Result};

/// The calls that change a file or a directory, or make a change durable.
const CHANGING: &[i64] = &[
    libc::SYS_creat,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fdatasync,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_io_uring_enter,
    libc::SYS_linkat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_msync,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_removexattr,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rmdir,
    libc::SYS_setxattr,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
];

/// Whether a call changes something. Most calls of `open` only look.
fn changes(entry: &Entry) -> bool {
    let creates = |flags: u64| flags as i32 & libc::O_CREAT != 0;
    match entry.number {
        libc::SYS_open => creates(entry.arguments[1]),
        libc::SYS_openat => creates(entry.arguments[2]),
        number => CHANGING.contains(&number),
    }
}

/// The selection of kills.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that does a verb.
    pub program: Program,
    /// Only this verb.
    pub only: Option<String>,
    /// Only every so many-th call of each verb, from a call that this seed chooses.
    pub stride: (usize, u64),
    /// Number of processes at once.
    pub jobs: usize,
}

/// The kills of one verb.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub verb: String,
    /// Changing calls that it makes.
    pub calls: usize,
    /// Processes that were killed.
    pub kills: usize,
    /// The call, counted from 1, and what was wrong after it.
    pub violations: Vec<(usize, String)>,
}

/// The name of every verb.
pub fn verbs() -> Vec<String> {
    Verb::ALL.iter().map(ToString::to_string).collect()
}

/// Kills each chosen process. Passes each violation to `tell` at once.
///
/// # Errors
/// [`Error::Missing`] if processes may not be traced, and any error that prevents a verb from ending without a kill.
pub fn run(settings: &Settings, tell: &(dyn Fn(&str) + Sync)) -> Result<Vec<Row>> {
    let chosen: Vec<Verb> = Verb::ALL
        .iter()
        .copied()
        .filter(|verb| settings.only.as_ref().is_none_or(|only| *only == verb.to_string()))
        .collect();
    if chosen.is_empty() {
        return Err(Error::failed("select a verb", format!("use one of: {}", verbs().join(" "))));
    }
    let mut rows = Vec::new();
    let mut cases = Vec::new();
    for verb in chosen {
        let calls = undisturbed(&settings.program, verb)?;
        let (stride, seed) = (settings.stride.0.max(1), settings.stride.1);
        let from = 1 + untorn_sim::Rng::new(seed ^ rows.len() as u64).below(stride as u64) as usize;
        cases.extend((from..=calls).step_by(stride).map(|call| (rows.len(), verb, call)));
        rows.push(Row { verb: verb.to_string(), calls, kills: 0, violations: Vec::new() });
    }
    let (next, rows, broken) = (AtomicUsize::new(0), Mutex::new(rows), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..settings.jobs.max(1) {
            scope.spawn(|| {
                while let Some(&(row, verb, call)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match attempt(&settings.program, verb, call) {
                        Ok(verdict) => {
                            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                            // A kernel that took another way made fewer calls this time.
                            rows[row].kills += usize::from(verdict != Ok(false));
                            if let Err(what) = verdict {
                                tell(&format!("violation: {verb}, killed before changing call {call}: {what}"));
                                rows[row].violations.push((call, what));
                            }
                        }
                        Err(error) => {
                            // The rig itself failed, so skip the rest.
                            next.store(cases.len(), Ordering::Relaxed);
                            *broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        }
                    }
                }
            });
        }
    });
    match broken.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(rows.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Does a verb to its end. Returns its number of changing calls.
fn undisturbed(program: &Program, verb: Verb) -> Result<usize> {
    let dir = directory()?;
    let unsound = |what: String| Error::failed(format!("do the verb {verb} without a kill"), what);
    let allowed = verb.prepare(dir.path()).map_err(|error| unsound(error.to_string()))?;
    let (end, calls, said) = live(program, verb, dir.path(), usize::MAX)?;
    if end != End::Exited(0) {
        return Err(unsound(format!("{end:?}: {said}")));
    }
    survives(verb, dir.path(), &allowed).map_err(unsound)?;
    Ok(calls)
}

/// Kills a process before this call. Whether it came that far, or what is wrong with what it left.
fn attempt(program: &Program, verb: Verb, call: usize) -> Result<std::result::Result<bool, String>> {
    let dir = directory()?;
    let prepared = verb.prepare(dir.path());
    let allowed = prepared.map_err(|error| Error::failed(format!("prepare the verb {verb}"), error.to_string()))?;
    let (end, ..) = live(program, verb, dir.path(), call)?;
    let killed = end == End::Killed(libc::SIGKILL);
    Ok(survives(verb, dir.path(), &allowed).map(|()| killed))
}

/// Runs one process until it ends, or is killed before its changing call of this number. Returns how it ended, its
/// number of changing calls, and its complaint.
fn live(program: &Program, verb: Verb, dir: &Path, kill: usize) -> Result<(End, usize, String)> {
    let mut command = Command::new(&program.path);
    command.args(&program.words).arg(verb.to_string()).arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("UNTORN_ASSUME_PMEM", "0").env("RUST_BACKTRACE", "0");
    let mut child = command.spawn().map_err(Error::io_at("run", &program.path))?;
    let (input, output, complaints) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut input), Some(mut output), Some(mut complaints)) = (input, output, complaints) else {
        return Err(Error::failed("run a verb", "its pipes are missing"));
    };
    let mut ready = [0; READY.len()];
    output.read_exact(&mut ready).map_err(Error::system("read the verb's ready message"))?;
    let mut calls = 0;
    let end = trace(&mut child, || input.write_all(&[0]), &mut |entry| {
        calls += usize::from(changes(entry));
        if calls == kill && changes(entry) { Action::Kill } else { Action::Run }
    })?;
    let mut complaint = String::new();
    complaints.read_to_string(&mut complaint).map_err(Error::system("read the verb's output"))?;
    Ok((end, calls, complaint.trim().to_owned()))
}

/// A directory of one process: in memory, where a flush costs nothing, if extended attributes work there.
pub(super) fn directory() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let made = |base: &Path| tempfile::tempdir_in(base).map_err(Error::io_at("create a directory in", base));
    if memory.is_dir() {
        let dir = made(memory)?;
        let bears = rustix::fs::setxattr(dir.path(), "user.untorn-rig", b"1", rustix::fs::XattrFlags::empty());
        if bears.is_ok() {
            return Ok(dir);
        }
    }
    made(&std::env::temp_dir())
}

/// The main function of the process that does a verb: `words` are its name and its directory. The program must do
/// nothing before and after this call.
///
/// # Errors
/// If no rig gave these arguments, or the verb failed.
pub fn victim(words: &[String]) -> io::Result<()> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let [verb, dir] = words else {
        return Err(invalid("expected two arguments: a verb and a directory".to_owned()));
    };
    let verb: Verb = verb.parse().map_err(invalid)?;
    let dir = PathBuf::from(dir);
    let mut out = io::stdout();
    out.write_all(READY)?;
    out.flush()?;
    // The rig answers when it is ready to trace.
    io::stdin().read_exact(&mut [0])?;
    Filter { answered: Default::default(), asked: BTreeSet::from_iter(CHANGING.iter().copied()) }.lay()?;
    verb.run(&dir).map_err(io::Error::other)
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { verb, calls, kills, violations } = self;
        write!(f, "{verb:24} {calls:5} calls {kills:5} kills {:4} violations", violations.len())
    }
}
