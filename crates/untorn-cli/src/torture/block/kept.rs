//! A disk with a violation, kept with everything needed to check it again.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use untorn_rigs::block::{FileSystem, copy_image};

use super::Setting;
use super::examine::{Leave, Opening, Verdict, examine};
use super::life::heard;
use crate::exit::{Failure, Result};
use crate::torture::model::Model;
use crate::torture::plan::{Plan, Stamp};
use crate::torture::target::Face;

/// The disk as the crash left it, before any recovery.
const IMAGE: &str = "image";
/// The file with the facts about the disk.
const CASE: &str = "case.json";

/// The facts about a kept disk. The values are those of the command line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) file_system: String,
    pub(super) engine: String,
    pub(super) durability: String,
    /// Whether the writer wrote to a region of a store.
    #[serde(default)]
    pub(super) region: bool,
    pub(super) seed: u64,
    pub(super) threads: usize,
    /// When in the run the power was cut, in events of the log.
    pub(super) instant: u64,
    /// The fate of the unflushed writes.
    pub(super) fate: String,
    /// How the file was left after verification: a [`Leave`] as a number.
    pub(super) leave: u8,
    /// The model's state at the beginning of the run: the stamp of each block, the next operation of each thread.
    base: Vec<u64>,
    next: Vec<u64>,
    /// All reports of the writer.
    reports: Vec<u64>,
    /// How many of the reports had been received before the power cut.
    known: usize,
    pub(super) violations: Vec<String>,
}

impl Case {
    /// A case from a run that began in the model's state.
    pub(super) fn new(setting: &Setting, kind: FileSystem, model: &Model, reports: &[u64], known: usize) -> Self {
        Case {
            file_system: kind.as_str().to_owned(),
            engine: setting.engine.as_str().to_owned(),
            durability: model.durability().as_str().to_owned(),
            region: setting.face == Face::Region,
            seed: setting.seed,
            threads: setting.threads,
            instant: 0,
            fate: "had lost nothing before the writer started".to_owned(),
            leave: Leave::Close as u8,
            base: model.base().iter().map(|stamp| stamp.0).collect(),
            next: model.next().to_vec(),
            reports: reports.to_vec(),
            known,
            violations: Vec::new(),
        }
    }

    /// Writes the case and a copy of the disk to a new directory below `parent`. Returns the directory.
    pub(super) fn save(&self, image: &Path, parent: &Path) -> Result<PathBuf> {
        let new = fs::create_dir_all(parent)
            .and_then(|()| tempfile::Builder::new().prefix("untorn-power-cut-").tempdir_in(parent));
        let dir = new.map_err(|error| Failure::io_at("create a directory in", parent, &error))?.keep();
        copy_image(image, &dir.join(IMAGE))?;
        let path = dir.join(CASE);
        let text = serde_json::to_vec(self).map_err(std::io::Error::from);
        text.and_then(|text| fs::write(&path, text)).map_err(|error| Failure::io_at("write", &path, &error))?;
        Ok(dir)
    }

    /// Reads a case that [`save`](Case::save) wrote.
    pub(super) fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(CASE);
        let text = fs::read(&path).map_err(|error| Failure::io_at("read", &path, &error))?;
        serde_json::from_slice(&text).map_err(|error| {
            Failure::usage_at(&path, format!("not a case kept by `untorn torture --medium block`: {error}"))
        })
    }

    /// The file system on the disk.
    pub(super) fn file_system(&self) -> Result<FileSystem> {
        self.file_system.parse().map_err(Failure::usage)
    }

    /// Checks the disk again, on a copy of it.
    pub(super) fn replay(&self, dir: &Path, scratch: &Path) -> Result<Verdict> {
        let kind = self.file_system()?;
        let opening = Opening {
            engine: self.engine.parse().map_err(Failure::usage)?,
            durability: self.durability.parse().map_err(Failure::usage)?,
            face: if self.region { Face::Region } else { Face::File },
        };
        if !(1..=16).contains(&self.threads) {
            return Err(Failure::usage(format!("the kept case has {} threads; expected 1 to 16", self.threads)));
        }
        let base = self.base.iter().map(|&stamp| Stamp(stamp)).collect();
        let plan = Plan::new(self.seed, self.threads);
        let mut model = Model::restore(plan, opening.durability, base, self.next.clone()).ok_or_else(|| {
            Failure::usage("the kept case is from another version of untorn, with a different plan; use that version")
        })?;
        let heard = heard(&model, &self.reports, self.known);
        let work = tempfile::Builder::new()
            .prefix("untorn-replay-")
            .tempdir_in(scratch)
            .map_err(|error| Failure::io_at("create a directory in", scratch, &error))?;
        let (image, mount) = (work.path().join(IMAGE), work.path().join("mount"));
        fs::create_dir(&mount).map_err(|error| Failure::io_at("create", &mount, &error))?;
        copy_image(&dir.join(IMAGE), &image)?;
        let leave = [Leave::Close, Leave::Reopen, Leave::Settle].into_iter().find(|leave| *leave as u8 == self.leave);
        examine(kind, &image, &mount, opening, &mut model, &heard, leave.unwrap_or(Leave::Close))
    }
}
