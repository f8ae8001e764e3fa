//! The process under test: it runs the script on a real file, and reports each operation's result before the next one.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use untorn::{AtomicFile, Error};
use untorn_sim::script::{Op, perform};

use super::failures;
use super::report::{Handle, Report};
use super::script::{Setup, digest, read_all, script};

/// Its time limit. Without failures, an idle machine needs a thousandth of it.
const VICTIM_TIMEOUT: Duration = Duration::from_secs(180);

/// Its exit code if it exceeds the limit.
pub(super) const HANGS: i32 = 3;

/// Its first output.
pub(super) const READY: &[u8; 6] = b"ready\n";

/// The role of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It runs the script. After a failure it continues, with the file reopened if the handle is unusable. At the end
    /// it examines the file.
    GoOn,
    /// It runs the script and exits after the first failed operation, as if killed.
    Stop,
    /// It opens the file left by another process, examines and settles it.
    Examine,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Role::GoOn => "go-on",
            Role::Stop => "stop",
            Role::Examine => "examine",
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let all = [Role::GoOn, Role::Stop, Role::Examine];
        all.into_iter().find(|role| role.as_str() == word).ok_or_else(|| format!("{word:?} is not a role"))
    }
}

/// The main function of the process that a rig's [`Program`](super::Program) starts: `words` are the arguments after
/// the program's own. The program must do nothing before and after this call.
///
/// # Errors
/// If no rig gave these arguments, or the rig has exited.
pub fn victim(words: &[String]) -> io::Result<()> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    if let [verb, dir] = words {
        return failures::victim(verb, Path::new(dir));
    }
    let [role, setup, path, asked] = words else {
        return Err(invalid("expected four arguments: a role, a setup, a path and calls".to_owned()));
    };
    let role = role.parse().map_err(invalid)?;
    let victim = Victim { setup: setup.parse().map_err(invalid)?, path: PathBuf::from(path), file: None };
    let numbers = asked.split(',').filter(|number| !number.is_empty()).map(str::parse);
    let asked = numbers
        .collect::<Result<_, _>>()
        .map_err(|_| invalid(format!("{asked:?} is not a comma-separated list of call numbers")))?;
    let filter = victim.setup.filter(asked);
    thread::spawn(|| {
        thread::sleep(VICTIM_TIMEOUT);
        eprintln!("hangs: not finished after {VICTIM_TIMEOUT:?}");
        std::process::exit(HANGS);
    });
    let mut out = io::stdout();
    out.write_all(READY)?;
    out.flush()?;
    // The rig answers when it is ready to trace. Earlier calls, such as the loader's, are not made to fail.
    io::stdin().read_exact(&mut [0])?;
    filter.lay()?;
    match role {
        Role::Examine => victim.examine(),
        role => victim.play(role == Role::Stop),
    }
}

/// Makes one system call per report, so that the rig, which counts calls, knows where an operation ends.
fn say(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{}\n", report.to_string().replace('\n', " ")).as_bytes())?;
    out.flush()
}

struct Victim {
    setup: Setup,
    path: PathBuf,
    file: Option<AtomicFile>,
}

impl Victim {
    fn play(mut self, stop: bool) -> io::Result<()> {
        for (number, op) in script().into_iter().enumerate() {
            let error = match self.operate(&op) {
                Ok(None) => {
                    say(&Report::Done)?;
                    continue;
                }
                Ok(Some(seen)) => {
                    say(&Report::Saw(seen))?;
                    continue;
                }
                Err(error) => error,
            };
            let handle = self.handle();
            say(&Report::Failed { errno: error.errno(), handle, message: error.to_string() })?;
            if stop {
                // Drop nothing: destructors would clean up what a killed process leaves behind.
                std::process::exit(0);
            }
            if !matches!(handle, Handle::Usable(_)) && !self.open_anew(number)? {
                return Ok(());
            }
        }
        match self.file.take().map_or(Ok(()), AtomicFile::close) {
            Ok(()) => say(&Report::Done)?,
            Err(error) => {
                say(&Report::Failed { errno: error.errno(), handle: Handle::Gone, message: error.to_string() })?;
            }
        }
        self.examine()
    }

    /// Runs an operation. Afterwards `file` holds the handle, if there still is one. A read returns the digest of its
    /// bytes.
    fn operate(&mut self, op: &Op) -> untorn::Result<Option<u64>> {
        match (op, self.file.take()) {
            (Op::Create { len }, _) => self.file = Some(self.setup.options().create(&self.path, *len)?),
            (Op::Close, Some(file)) => {
                file.close()?;
                self.file = Some(self.open()?);
            }
            (Op::Settle, Some(file)) => {
                file.settle()?;
                self.file = Some(self.open()?);
            }
            (Op::Drop, file) => {
                drop(file);
                self.file = Some(self.open()?);
            }
            (op, Some(file)) => {
                let file = self.file.insert(file);
                let op = op.clone().fit(file.len());
                return Ok(perform(&op, file)?.map(|bytes| digest(&bytes)));
            }
            (_, None) => unreachable!("opened by the operation before"),
        }
        Ok(None)
    }

    fn open(&self) -> untorn::Result<AtomicFile> {
        self.setup.options().open(&self.path)
    }

    /// The state of the handle after a failure. A write of a few bytes with their current values shows whether it is
    /// usable.
    fn handle(&self) -> Handle {
        let Some(file) = &self.file else { return Handle::Gone };
        let seen = read_all(file).ok();
        let shows = seen.as_deref().map(digest);
        let again = seen.unwrap_or_default();
        match file.write_at(&again[..again.len().min(3)], 0) {
            Ok(()) => Handle::Usable(shows),
            Err(_) => Handle::Poisoned(shows),
        }
    }

    /// Drops the handle and opens the file again, or creates it if the failure left none. Returns false if that fails.
    fn open_anew(&mut self, number: usize) -> io::Result<bool> {
        drop(self.file.take());
        if number == 0 && !self.path.exists() {
            say(&Report::Absent)?;
            return match self.operate(&script()[0]) {
                Ok(_) => say(&Report::Done).map(|()| true),
                Err(error) => say(&Report::Stuck(error.to_string())).map(|()| false),
            };
        }
        let opened = self.open().and_then(|file| Ok((digest(&read_all(&file)?), file)));
        match opened {
            Ok((shows, file)) => {
                self.file = Some(file);
                say(&Report::Reopened(shows)).map(|()| true)
            }
            Err(error) => say(&Report::Stuck(error.to_string())).map(|()| false),
        }
    }

    fn examine(&self) -> io::Result<()> {
        match self.look() {
            Ok(reports) => reports.iter().try_for_each(say),
            Err(error) => say(&Report::Stuck(error.to_string())),
        }
    }

    fn look(&self) -> untorn::Result<Vec<Report>> {
        if !self.path.exists() {
            return Ok(vec![Report::Absent]);
        }
        let inspected = untorn::inspect(&self.path)?;
        let mut reports = vec![Report::Inspected(format!("{:?}", inspected.state))];
        let file = self.open()?;
        reports.push(Report::Reopened(digest(&read_all(&file)?)));
        file.settle()?;
        reports.push(Report::Settled(digest(&plain(&self.path)?)));
        Ok(reports)
    }
}

/// The bytes as any other program reads them.
fn plain(path: &Path) -> untorn::Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::io("read", path, error))
}
