//! Failing system calls of a backup and of a restoration.
//!
//! A process does one of the verbs, and one of its calls fails. What it reported as done is there. What failed has
//! left the file and the backup unharmed, and where the new file was to be nothing, what was there before, or all of
//! it. The next attempt succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::libc;

use super::calls::{CALLS, Call, Duty, How};
use super::judge::Check;
use super::kills::directory;
use super::rig::{Course, Program, fail};
use super::tracer::{Action, End, Filter, trace};
use super::verbs::{Verb, survives};
use super::victim::{HANGS, READY};
use crate::error::{Error, Result};

/// The exit code of a verb that reports an error.
const REPORTED: i32 = 4;

/// The time limit of a verb, which takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// One call of a verb, by its number there, failing in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) verb: Verb,
    pub(super) row: usize,
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) how: How,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.verb, CALLS[self.row].name, self.number, self.how)
    }
}

/// One process.
struct Life {
    end: End,
    /// The calls that it made, by row.
    counts: Vec<usize>,
    /// Whether the chosen call was made.
    met: bool,
    complaint: String,
}

/// Does a verb without a failure. Counts its calls.
///
/// # Errors
/// If it fails.
pub(super) fn undisturbed(program: &Program, verb: Verb) -> Result<Vec<usize>> {
    let unsound = |what: String| Error::failed(format!("do the verb {verb} without failures"), what);
    let dir = directory()?;
    let allowed = verb.prepare(dir.path()).map_err(|error| unsound(error.to_string()))?;
    let life = live(program, verb, dir.path(), None)?;
    if life.end != End::Exited(0) {
        return Err(unsound(format!("{:?}: {}", life.end, life.complaint)));
    }
    verb.is_done(dir.path()).and_then(|()| survives(verb, dir.path(), &allowed)).map_err(unsound)?;
    Ok(life.counts)
}

/// Tries one case. Returns its outcome or the violation.
///
/// # Errors
/// If the rig itself fails.
pub(super) fn attempt(program: &Program, case: &Case) -> Result<Check<Course>> {
    let Case { verb, row, how, .. } = *case;
    let dir = directory()?;
    let prepared = verb.prepare(dir.path());
    let allowed = prepared.map_err(|error| Error::failed(format!("prepare the verb {verb}"), error.to_string()))?;
    let life = live(program, verb, dir.path(), Some(case))?;
    if !life.met {
        return Ok(Ok(Course::Unmet));
    }
    let course = match life.end {
        End::Exited(0) if matches!(CALLS[row].duty(how, false), Duty::Tell | Duty::Poison) => {
            return Ok(Err("the failure was not reported".to_owned()));
        }
        End::Exited(0) => verb.is_done(dir.path()).map(|()| Course::GotOver),
        End::Exited(REPORTED) => Ok(Course::Told),
        End::Exited(HANGS) => Err("the verb hangs".to_owned()),
        end => Err(format!("{end:?}: {}", life.complaint)),
    };
    Ok(course.and_then(|course| survives(verb, dir.path(), &allowed).map(|()| course)))
}

/// Runs one process to its end.
fn live(program: &Program, verb: Verb, dir: &Path, case: Option<&Case>) -> Result<Life> {
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
    let (mut counts, mut met, mut torn) = (vec![0; CALLS.len()], false, None::<(i32, i32)>);
    let end = trace(&mut child, || input.write_all(&[0]), &mut |entry| {
        let is_torn = entry.number == libc::SYS_pwrite64;
        if let Some((_, errno)) = torn.take_if(|(thread, _)| is_torn && *thread == entry.thread) {
            return Action::Answer(-i64::from(errno));
        }
        let Some(row) = Call::row(entry) else { return Action::Run };
        counts[row] += 1;
        match case.filter(|case| !met && case.row == row && case.number == counts[row]) {
            Some(case) => {
                met = true;
                fail(case.how, entry, &mut torn)
            }
            None => Action::Run,
        }
    })?;
    let mut complaint = String::new();
    complaints.read_to_string(&mut complaint).map_err(Error::system("read the verb's output"))?;
    Ok(Life { end, counts, met, complaint: complaint.trim().to_owned() })
}

/// The main function of the process that does a verb.
///
/// # Errors
/// If no rig gave these arguments.
pub(super) fn victim(verb: &str, dir: &Path) -> io::Result<()> {
    let verb: Verb = verb.parse().map_err(|what: String| io::Error::new(io::ErrorKind::InvalidInput, what))?;
    thread::spawn(|| {
        thread::sleep(PATIENCE);
        std::process::exit(HANGS);
    });
    let mut out = io::stdout();
    out.write_all(READY)?;
    out.flush()?;
    // The rig answers when it is ready to trace.
    io::stdin().read_exact(&mut [0])?;
    // Every flush is a call of its own.
    let answered = BTreeMap::from([(libc::SYS_io_uring_setup, libc::ENOSYS.cast_unsigned())]);
    let mut asked: BTreeSet<i64> = CALLS.iter().map(|call| call.number).collect();
    asked.remove(&libc::SYS_io_uring_setup);
    Filter { answered, asked }.lay()?;
    if let Err(error) = verb.run(dir) {
        eprintln!("{error}");
        std::process::exit(REPORTED);
    }
    // Nothing of the exit is one of the verb's calls.
    std::process::exit(0);
}
