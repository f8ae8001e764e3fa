//! Examines the disk after a crash: mounts it, recovers the file and verifies it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use untorn::{Durability, EngineKind, Options};
use untorn_rigs::Error;
use untorn_rigs::block::{FileSystem, Mounted};

use super::chain::FILE;
use crate::exit::{Failure, Result};
use crate::torture::model::{Heard, Model};
use crate::torture::target::{Face, Target};

/// The result of examining an image.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The file system did not mount it, for this reason.
    Refused(String),
    /// It was recovered, with these violations.
    Checked(Vec<String>),
}

/// How to leave the file after verification. Each way must keep the verified state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    Close,
    /// Drop it, and recover it once more.
    Reopen,
    /// Settle it, and read it without untorn.
    Settle,
}

impl Leave {
    /// From a random number.
    pub(super) fn of(number: u64) -> Self {
        match number % 8 {
            0 => Leave::Settle,
            1 | 2 => Leave::Reopen,
            _ => Leave::Close,
        }
    }
}

/// How to open the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    pub(super) engine: EngineKind,
    pub(super) durability: Durability,
    pub(super) face: Face,
}

impl Opening {
    /// Opens the file, or creates it.
    pub(super) fn open(self, path: &Path, create: bool) -> untorn::Result<Target> {
        let options = Options::new().engine(self.engine).durability(self.durability);
        Target::open(&options, path, create, self.face)
    }
}

/// Mounts the image at `mount`, recovers the file in it and verifies it against the model, which adopts the state.
/// This changes the image.
pub(super) fn examine(
    kind: FileSystem,
    image: &Path,
    mount: &Path,
    opening: Opening,
    model: &mut Model,
    heard: &Heard,
    leave: Leave,
) -> Result<Verdict> {
    let mounted = match Mounted::new(kind, image, mount) {
        Ok(mounted) => mounted,
        Err(error @ Error::Unmountable { .. }) => return Ok(Verdict::Refused(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let path = mounted.path().join(FILE);
    // Any error is a violation: there is enough space, and the file was durable before the run began.
    let wrong = recover(&path, opening, model, heard, leave)
        .unwrap_or_else(|error| vec![format!("recovery or a read failed: {error}")]);
    Ok(Verdict::Checked(wrong))
}

fn recover(
    path: &Path,
    opening: Opening,
    model: &mut Model,
    heard: &Heard,
    leave: Leave,
) -> std::result::Result<Vec<String>, Failure> {
    let file = opening.open(path, false)?;
    let mut wrong = file.audit()?;
    let places = model.plan().blocks.clone();
    let read = |file: &Target, block: usize, bytes: &mut Vec<u8>| {
        bytes.clear();
        bytes.resize(places[block].len, 0);
        file.read(places[block].offset, bytes)
    };
    wrong.extend(model.verify(heard, |block, bytes| read(&file, block, bytes))?);
    if !wrong.is_empty() {
        return Ok(wrong);
    }
    let (how, after) = match leave {
        Leave::Close => {
            file.close()?;
            return Ok(wrong);
        }
        Leave::Reopen => {
            drop(file);
            let again = opening.open(path, false)?;
            ("after another recovery", model.verify_unchanged(|block, bytes| read(&again, block, bytes))?)
        }
        Leave::Settle => {
            if !file.settle()? {
                return Ok(wrong);
            }
            let plain = fs::File::open(path).map_err(|error| Failure::io_at("open", path, &error))?;
            let after = model.verify_unchanged(|block, bytes| {
                bytes.clear();
                bytes.resize(places[block].len, 0);
                plain.read_exact_at(bytes, places[block].offset)
            });
            ("after settling", after.map_err(|error| Failure::io_at("read", path, &error))?)
        }
    };
    wrong.extend(after.into_iter().map(|what| format!("{how}: {what}")));
    Ok(wrong)
}
