//! One file system's chain: runs of the writer, one after the other, and the crashes of each run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tempfile::TempDir;
use untorn::Durability;
use untorn_rigs::block::{FileSystem, Mounted, copy_image, write_image};

use super::examine::{Leave, Opening, Verdict, examine};
use super::kept::Case;
use super::life::{Life, heard, live};
use super::{Outcome, Setting};
use crate::exit::{Exit, Failure, Result};
use crate::rng::Rng;
use crate::torture::model::Model;
use crate::torture::plan::Plan;
use crate::torture::rounds::writer_arguments;

/// The name of the file under test in the file system.
pub(super) const FILE: &str = "tortured";
/// Images per run of the writer.
const IMAGES_PER_LIFE: u64 = 10;
/// The maximum time between a writer's first reports and its kill, in microseconds.
const LONGEST_LIFE: u64 = 400_000;
/// The number of runs in a row without a mountable image after which the rig gives up.
const MAX_UNMOUNTABLE_LIVES: u64 = 10;

/// The state that all chains share.
pub(super) struct Control {
    bar: ProgressBar,
    stop: AtomicBool,
    start: Instant,
    time: Option<Duration>,
}

impl Control {
    pub(super) fn new(bar: ProgressBar, time: Option<Duration>) -> Self {
        Control { bar, stop: AtomicBool::new(false), start: Instant::now(), time }
    }

    /// Makes every chain end after its current image.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.time.is_none_or(|time| self.start.elapsed() < time)
    }
}

/// One file system and its disk.
pub(super) struct Chain<'a> {
    setting: &'a Setting,
    kind: FileSystem,
    model: Model,
    rng: Rng,
    outcome: Outcome,
    /// Why the file system refused the last image that it did not mount.
    refusal: String,
    /// Owns the files below, and removes them when dropped.
    dir: TempDir,
    /// The disk at the beginning of a run.
    base: PathBuf,
    /// The disk that is recorded.
    live: PathBuf,
    /// A disk after a crash.
    image: PathBuf,
    /// The candidate disk for the next run.
    chosen: PathBuf,
    mount: PathBuf,
}

impl<'a> Chain<'a> {
    /// Creates the file system, and the file in it.
    pub(super) fn start(setting: &'a Setting, kind: FileSystem) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("untorn-block-")
            .tempdir_in(&setting.scratch)
            .map_err(|error| Failure::io_at("create a directory in", &setting.scratch, &error))?;
        let path = |name: &str| dir.path().join(name);
        let (base, live, image, chosen, mount) =
            (path("base"), path("live"), path("image"), path("chosen"), path("mount"));
        fs::create_dir(&mount).map_err(|error| Failure::io_at("create", &mount, &error))?;
        let durability = setting.durability.unwrap_or(Durability::PerCommit);
        kind.make(&live)?;
        let mounted = Mounted::new(kind, &live, &mount)?;
        let opening = Opening { engine: setting.engine, durability, face: setting.face.of_reader() };
        opening.open(&mounted.path().join(FILE), true)?.close()?;
        drop(mounted);
        // mkfs writes zeros; in a copy they are holes.
        copy_image(&live, &base)?;
        // The same seed gives the same operations on both file systems, but different crashes.
        let rng = Rng::from_parts(&[setting.seed, kind as u64]);
        let model = Model::new(Plan::new(setting.seed, setting.threads), durability);
        let outcome = Outcome::default();
        Ok(Chain { setting, kind, model, rng, outcome, refusal: String::new(), dir, base, live, image, chosen, mount })
    }

    /// Checks up to `images` images; stops early if told to or if there is a violation.
    pub(super) fn run(mut self, images: u64, control: &Control) -> Result<Outcome> {
        let mut fruitless = 0;
        while self.outcome.images < images && self.outcome.violations.is_empty() && control.goes_on() {
            let before = self.outcome.images;
            if let Some(life) = self.live()? {
                self.crash(&life, images, control)?;
            }
            fruitless = if self.outcome.images == before { fruitless + 1 } else { 0 };
            if fruitless == MAX_UNMOUNTABLE_LIVES {
                let message = format!(
                    "{} mounted no image in {MAX_UNMOUNTABLE_LIVES} runs, so nothing was tested; the last reason: {}",
                    self.kind, self.refusal
                );
                return Err(Failure { exit: Exit::Io, path: None, message });
            }
        }
        Ok(self.outcome)
    }

    /// Runs the writer once. Returns `None` if it ended by itself, which is a violation.
    fn live(&mut self) -> Result<Option<Life>> {
        let alternate = [Durability::PerCommit, Durability::PerWrite][(self.outcome.lives % 2) as usize];
        self.model.set_durability(self.setting.durability.unwrap_or(alternate));
        copy_image(&self.base, &self.live)?;
        let time = Duration::from_micros(self.rng.below(LONGEST_LIFE));
        let write_back = format!("--write-back={}", self.rng.next());
        let arguments = |file: &Path| {
            let Opening { engine, durability, .. } = self.opening();
            let mut all = writer_arguments(self.setting.seed, engine, durability, self.model.next(), false, file);
            all.push(OsString::from(write_back));
            all.extend(self.setting.face.argument().map(OsString::from));
            all
        };
        let life = live(self.kind, &self.live, self.dir.path(), arguments, time)?;
        self.outcome.lives += 1;
        match life {
            Ok(life) => {
                let done = self.model.hear(&life.reports).done;
                let operations = done.iter().zip(self.model.next()).map(|(done, next)| done + 1 - next);
                self.outcome.operations += operations.sum::<u64>();
                Ok(Some(life))
            }
            Err(what) => {
                let case = Case::new(self.setting, self.kind, &self.model, &[], 0);
                copy_image(&self.base, &self.image)?;
                self.keep(case, vec![what])?;
                Ok(None)
            }
        }
    }

    /// Cuts the power at random instants of a run. The next run begins with one of the resulting disks.
    fn crash(&mut self, life: &Life, images: u64, control: &Control) -> Result<()> {
        let mut next = None;
        for _ in 0..IMAGES_PER_LIFE {
            if self.outcome.images == images || !control.goes_on() {
                break;
            }
            let at = self.rng.below(life.log.position() + 1);
            let cut = if self.setting.lying { life.log.cut_lying(at) } else { life.log.cut(at) };
            let (fate, patches) = cut.draw(&mut untorn_sim::Rng::new(self.rng.next()));
            write_image(&self.base, &patches, &self.image)?;
            let known = life.known(at);
            let heard = heard(&self.model, &life.reports, known);
            let leave = Leave::of(self.rng.next());
            let mut model = self.model.clone();
            let verdict = examine(self.kind, &self.image, &self.mount, self.opening(), &mut model, &heard, leave)?;
            let wrong = match verdict {
                Verdict::Refused(why) => {
                    self.outcome.refused += 1;
                    self.refusal = why;
                    continue;
                }
                Verdict::Checked(wrong) => wrong,
            };
            self.outcome.images += 1;
            self.outcome.unflushed += u64::from(cut.pending() > 0);
            for (durable, next) in heard.durable.iter().zip(self.model.next()) {
                self.outcome.acknowledged += durable + 1 - next;
            }
            control.bar.inc(1);
            // Recovery has changed the image. Keep or continue with the disk as the crash left it.
            if !wrong.is_empty() {
                write_image(&self.base, &patches, &self.image)?;
                let mut case = Case::new(self.setting, self.kind, &self.model, &life.reports, known);
                (case.instant, case.fate, case.leave) = (at, fate.to_string(), leave as u8);
                return self.keep(case, wrong);
            }
            // After a lying flush, the file system may be in any state, and a writer may fail on it. So with a lying
            // disk, each run begins with the disk of the first run.
            if !self.setting.lying && (next.is_none() || self.rng.below(3) == 0) {
                write_image(&self.base, &patches, &self.chosen)?;
                next = Some(model);
            }
        }
        if let Some(model) = next {
            self.model = model;
            std::mem::swap(&mut self.base, &mut self.chosen);
        }
        Ok(())
    }

    /// Ends the chain with an image's violations.
    fn keep(&mut self, mut case: Case, wrong: Vec<String>) -> Result<()> {
        case.violations.clone_from(&wrong);
        self.outcome.kept = Some(case.save(&self.image, &self.setting.keep)?);
        self.outcome.violations = wrong.into_iter().map(|what| format!("{}: {what}", self.kind)).collect();
        Ok(())
    }

    fn opening(&self) -> Opening {
        let (engine, face) = (self.setting.engine, self.setting.face.of_reader());
        Opening { engine, durability: self.model.durability(), face }
    }
}
