//! The rounds of `--medium process`: start a writer, kill it, recover, verify, and continue with the same file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tempfile::TempDir;
use untorn::{Durability, EngineKind, Options};

use super::healing;
use super::keep::copy_state;
use super::model::Model;
use super::plan::Plan;
use super::target::{Face, Target};
use super::{Outcome, Setting};
use crate::exit::{Exit, Failure, Result, exit_of};
use crate::progress;
use crate::rng::Rng;
use crate::victim::{End, Victim};

/// The maximum lifetime of a writer, in microseconds. It doubles after each round in which nothing was acknowledged:
/// on a busy disk one commit may take longer.
const LONGEST_LIFE: u64 = 40_000;
/// How often it doubles at most: to 2.5 seconds.
const MOST_DOUBLINGS: u32 = 6;
/// The maximum lifetime of a recovering process, in microseconds. Startup takes most of it.
const LONGEST_RECOVERY: u64 = 4_000;
/// How long to wait on a busy machine for the first acknowledgement, even past the requested time.
const FIRST_ACK_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs rounds until the time is over or a violation is found.
pub(crate) fn run(setting: &Setting) -> Result<Outcome> {
    let dir = tempfile::Builder::new()
        .prefix("untorn-torture-")
        .tempdir_in(&setting.parent)
        .map_err(|error| Failure::io_at("create a directory in", &setting.parent, &error))?;
    let path = dir.path().join("tortured");
    Target::open(&options(setting), &path, true, setting.face)?.close()?;
    let mut rounds = Rounds {
        setting,
        path,
        crashed: dir.path().join("crashed"),
        model: Model::new(Plan::new(setting.seed, setting.threads), setting.durability),
        rng: Rng::from_parts(&[setting.seed, u64::MAX]),
        silent: 0,
        outcome: Outcome::default(),
    };
    let bar = progress::bar(setting.seconds, &format!("seed {}", setting.seed));
    let result = rounds.run_all(&bar);
    bar.finish_and_clear();
    let mut outcome = rounds.outcome;
    match result {
        Ok(()) if outcome.violations.is_empty() => Ok(outcome),
        Ok(()) => {
            outcome.kept = Some(dir.keep());
            Ok(outcome)
        }
        Err(failure) => Err(keep_with(failure, dir)),
    }
}

/// An error that breaks no promise, for example a full disk, with the path of the kept files.
fn keep_with(failure: Failure, dir: TempDir) -> Failure {
    let kept = dir.keep();
    Failure { message: format!("{}; the files are kept in {}", failure.message, kept.display()), ..failure }
}

fn options(setting: &Setting) -> Options {
    let options = setting.log.apply(Options::new().engine(setting.engine).durability(setting.durability));
    if setting.face == Face::Healed { healing::by_hand(options) } else { options }
}

struct Rounds<'a> {
    setting: &'a Setting,
    path: PathBuf,
    crashed: PathBuf,
    model: Model,
    rng: Rng,
    /// Rounds in a row in which nothing was acknowledged.
    silent: u32,
    outcome: Outcome,
}

impl Rounds<'_> {
    fn run_all(&mut self, bar: &ProgressBar) -> Result<()> {
        let start = Instant::now();
        let time = Duration::from_secs(self.setting.seconds);
        // If nothing was acknowledged, the pass would test nothing.
        let goes_on = |outcome: &Outcome| match outcome.acknowledged {
            0 => start.elapsed() < time.max(FIRST_ACK_TIMEOUT),
            _ => start.elapsed() < time,
        };
        while goes_on(&self.outcome) && self.outcome.violations.is_empty() {
            self.round()?;
            bar.set_position(start.elapsed().as_secs().min(self.setting.seconds));
            bar.set_message(format!("seed {}, {} kills", self.setting.seed, self.outcome.kills));
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        let victim = Victim::spawn(self.arguments(false))?;
        victim.wait_ready()?;
        let life = Duration::from_micros(self.rng.below(LONGEST_LIFE << self.silent.min(MOST_DOUBLINGS)));
        let Some(reports) = self.reports_of(victim.kill_after(life)?)? else { return Ok(()) };
        self.outcome.kills += 1;
        // The kill may also have hit a repair of earlier damage.
        let damaged = self.damage(false)?;
        copy_state(&self.path, &self.crashed).map_err(|error| Failure::io_at("copy", &self.path, &error))?;
        if self.rng.below(4) == 0 {
            self.kill_a_recovery()?;
            if !self.outcome.violations.is_empty() {
                return Ok(());
            }
        }
        let heard = self.model.hear(&reports);
        let acknowledged = self.outcome.acknowledged;
        for (thread, next) in self.model.next().iter().enumerate() {
            self.outcome.operations += heard.done[thread] + 1 - next;
            self.outcome.acknowledged += heard.durable[thread] + 1 - next;
        }
        self.silent = if self.outcome.acknowledged == acknowledged { self.silent + 1 } else { 0 };
        let Some(file) = self.reopen()? else { return Ok(()) };
        if let (Face::Healed, Target::File(file)) = (self.setting.face, &file) {
            self.outcome.violations.extend(healing::judge(file, &damaged)?);
        }
        let plan = self.model.plan().clone();
        let wrong = self.model.verify(&heard, |block, bytes| {
            let place = plan.blocks[block];
            bytes.clear();
            bytes.resize(place.len, 0);
            file.read(place.offset, bytes)
        })?;
        self.outcome.violations.extend(wrong);
        self.outcome.violations.extend(file.audit()?);
        if self.outcome.violations.is_empty() {
            self.leave(file, &plan)?;
        }
        Ok(())
    }

    /// Opens the file, which recovers it. An error about the file's state is a violation, and returns `None`.
    fn reopen(&mut self) -> Result<Option<Target>> {
        match Target::open(&options(self.setting), &self.path, false, self.setting.face.of_reader()) {
            Ok(file) => Ok(Some(file)),
            Err(error) if matches!(exit_of(&error), Exit::Attention | Exit::Corrupt) => {
                self.outcome.violations.push(format!("recovery failed: {error}"));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Damages pages of a file with redundancy while no process has it open: any page, or only those that are covered
    /// at every instant.
    fn damage(&mut self, any: bool) -> Result<BTreeSet<u64>> {
        if self.setting.face != Face::Healed {
            return Ok(BTreeSet::new());
        }
        let damaged = healing::damage(&self.path, any, &mut self.rng);
        let damaged = damaged.map_err(|error| Failure::io_at("damage", &self.path, &error))?;
        self.outcome.damaged += damaged.len() as u64;
        Ok(damaged)
    }

    /// Damages any pages of a closed file, all of whose pages are covered, and checks that repair restores them.
    fn heal(&mut self, file: Target, plan: &Plan) -> Result<()> {
        file.close()?;
        let damaged = self.damage(true)?;
        let Some(file) = self.reopen()? else { return Ok(()) };
        if let Target::File(file) = &file {
            self.outcome.violations.extend(healing::judge(file, &damaged)?);
        }
        let wrong = self.model.verify_unchanged(|block, bytes| {
            let place = plan.blocks[block];
            bytes.clear();
            bytes.resize(place.len, 0);
            file.read(place.offset, bytes)
        })?;
        self.outcome.violations.extend(wrong.into_iter().map(|what| format!("after repair: {what}")));
        Ok(())
    }

    /// Starts a process that only recovers the file, and kills it during the recovery.
    fn kill_a_recovery(&mut self) -> Result<()> {
        let victim = Victim::spawn(self.arguments(true))?;
        let life = Duration::from_micros(self.rng.below(LONGEST_RECOVERY));
        let end = victim.kill_after(life)?;
        if self.reports_of(end)?.is_some() {
            self.outcome.recovery_kills += 1;
        }
        Ok(())
    }

    /// The reports of a killed process. A process that ended by itself is a violation, and returns `None`, unless the
    /// system refused it something: a full disk breaks no promise.
    fn reports_of(&mut self, end: End) -> Result<Option<Vec<u64>>> {
        match end {
            End::ByItself(status) if status.code() != Some(Exit::Io as i32) => {
                self.outcome.violations.push(format!("a process exited by itself ({status}); its message is above"));
                Ok(None)
            }
            end => end.expect_killed().map(Some),
        }
    }

    /// Leaves the file closed, dropped or settled, as a program may. A settled file is read without untorn and must
    /// hold the same bytes.
    fn leave(&mut self, file: Target, plan: &Plan) -> Result<()> {
        match self.rng.below(8) {
            0 => {
                if !file.settle()? {
                    return Ok(());
                }
                let plain = fs::File::open(&self.path).map_err(|error| Failure::io_at("open", &self.path, &error))?;
                let wrong = self.model.verify_unchanged(|block, bytes| {
                    let place = plan.blocks[block];
                    bytes.clear();
                    bytes.resize(place.len, 0);
                    plain.read_exact_at(bytes, place.offset)
                });
                let wrong = wrong.map_err(|error| Failure::io_at("read", &self.path, &error))?;
                self.outcome.violations.extend(wrong.into_iter().map(|what| format!("after settling: {what}")));
            }
            1 | 2 if self.setting.face == Face::Healed => self.heal(file, plan)?,
            1..4 => file.close()?,
            _ => drop(file),
        }
        Ok(())
    }

    fn arguments(&self, idle: bool) -> Vec<OsString> {
        let Setting { seed, engine, durability, log, .. } = *self.setting;
        let mut arguments = writer_arguments(seed, engine, durability, self.model.next(), idle, &self.path);
        arguments.extend(log.arguments().into_iter().map(OsString::from));
        arguments.extend(self.setting.face.argument().map(OsString::from));
        arguments
    }
}

/// The arguments of the writing process. An idle one opens the file and writes nothing.
pub(crate) fn writer_arguments(
    seed: u64,
    engine: EngineKind,
    durability: Durability,
    start: &[u64],
    idle: bool,
    file: &Path,
) -> Vec<OsString> {
    let start: Vec<String> = start.iter().map(u64::to_string).collect();
    let words = [
        "torture-writer".to_owned(),
        format!("--seed={seed}"),
        format!("--engine={engine}"),
        format!("--durability={durability}"),
        format!("--start={}", start.join(",")),
    ];
    let mut arguments: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    if idle {
        arguments.push("--idle".into());
    }
    arguments.push(file.as_os_str().to_owned());
    arguments
}
