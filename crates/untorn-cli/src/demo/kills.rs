//! The demo's first half: kill a writer repeatedly, and audit the file after each kill.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::bank::{Audit, Bank};
use super::writer;
use crate::cli::Writer;
use crate::exit::{Failure, Result};
use crate::rng::Rng;
use crate::victim::Victim;

/// Kills of each writer.
pub(crate) const KILLS: u64 = 50;
/// Time limit for the kills of each writer; a slow machine makes fewer kills.
pub(crate) const BUDGET: Duration = Duration::from_millis(3500);
/// Extended time limit if no kill has hit the plain writer inside a transfer within [`KILLS`] and [`BUDGET`].
const FIRST_TEAR_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum lifetime of a writer, in microseconds.
const LONGEST_LIFE: u64 = 60_000;

/// The results of one writer's kills.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// How often the writer was killed.
    pub(crate) kills: u64,
    /// How often the file was torn afterwards.
    pub(crate) torn: u64,
    /// How often a transfer was missing although its flush had been reported.
    pub(crate) lost: u64,
    /// Total number of transfers.
    pub(crate) transfers: u64,
    /// A description of the first tear.
    pub(crate) example: Option<String>,
}

/// Kills one kind of writer [`KILLS`] times, or as often as the time allows. The plain writer is killed until its file
/// has torn once, because the demo has to show that.
pub(crate) fn run(dir: &Path, writer: Writer, seed: u64, bar: &ProgressBar) -> Result<Outcome> {
    let word = match writer {
        Writer::Plain => "plain",
        Writer::Untorn => "untorn",
    };
    let mut outcome = Outcome::default();
    let mut path = open_bank(dir, word, 0)?;
    let mut rng = Rng::new(seed);
    let mut last_seen = 0;
    let (start, before) = (Instant::now(), bar.position());
    let goes_on = |outcome: &Outcome, elapsed: Duration| match writer {
        Writer::Plain if outcome.torn == 0 => elapsed < FIRST_TEAR_TIMEOUT,
        _ => outcome.kills < KILLS && elapsed < BUDGET,
    };
    while goes_on(&outcome, start.elapsed()) {
        let seed = rng.next().to_string();
        let arguments = ["demo-writer", "--writer", word, "--seed", &seed].map(OsString::from);
        let victim = Victim::spawn(arguments.into_iter().chain([path.clone().into_os_string()]))?;
        victim.wait_ready()?;
        let reports = victim.kill_after(Duration::from_micros(rng.below(LONGEST_LIFE)))?.expect_killed()?;
        outcome.kills += 1;
        bar.set_position(before + outcome.kills.min(KILLS));
        let flushed = reports.last().copied().unwrap_or(0);
        let audit = audit(&path, writer)?;
        outcome.transfers += audit.number.saturating_sub(last_seen);
        last_seen = audit.number;
        if audit.number < flushed {
            outcome.lost += 1;
        }
        if let Some(what) = audit.torn {
            outcome.torn += 1;
            outcome.example.get_or_insert(what);
            // Start the next kill with a whole bank, so that one tear is counted once.
            path = open_bank(dir, word, outcome.kills)?;
            last_seen = 0;
        }
    }
    bar.set_position(before + KILLS);
    Ok(outcome)
}

/// Creates a bank in a new file.
fn open_bank(dir: &Path, word: &str, serial: u64) -> Result<PathBuf> {
    let path = dir.join(format!("{word}-bank-{serial}"));
    fs::write(&path, Bank::LARGE.opening()).map_err(|error| Failure::io_at("write", &path, &error))?;
    Ok(path)
}

/// Audits the bank after a kill: the plain file as it is, untorn's file after an open, which recovers it.
fn audit(path: &Path, writer: Writer) -> Result<Audit> {
    let image = match writer {
        Writer::Plain => fs::read(path).map_err(|error| Failure::io_at("read", path, &error))?,
        Writer::Untorn => {
            let file = writer::open(path)?;
            let mut image = vec![0; file.len() as usize];
            file.read_at(&mut image, 0)?;
            file.close()?;
            image
        }
    };
    Ok(Bank::LARGE.audit(&image))
}
