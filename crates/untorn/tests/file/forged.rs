//! Sidecars that a test writes itself: where their fields stand, their checksums, and a bench that tries each of them.

use std::path::{Path, PathBuf};

use crate::common::golden::{RETIREMENTS, newest};
use crate::common::{Failures, PAGE, Pair, attempt, put_word, scratch, word};
use twox_hash::XxHash3_64;
use untorn::{AtomicFile, Options, Result};

/// Offsets within a superblock.
pub(crate) const UUID: std::ops::Range<usize> = 40..56;
pub(crate) const SEQ: usize = 56;
const INODE: usize = 72;

/// The retirement line that counts: cut and session.
pub(crate) fn retired(bytes: &[u8]) -> (u64, u64) {
    let newer = newest(bytes, &RETIREMENTS, 0);
    (word(bytes, newer + 8), word(bytes, newer + 24))
}

pub(crate) fn seal_superblock(bytes: &mut [u8], copy: usize) {
    let at = copy * PAGE;
    let check = XxHash3_64::oneshot(&bytes[at..at + 4088]);
    put_word(bytes, at + 4088, check);
}

/// What the checksums of records and log lines at an offset begin with.
pub(crate) fn seed_at(side: &[u8], at: usize) -> u64 {
    XxHash3_64::oneshot_with_seed(retired(side).1, &side[UUID]) ^ (at as u64).rotate_left(32)
}

/// Makes the checksum of a line right, for its place in the session of a sidecar.
pub(crate) fn seal_line(side: &mut [u8], at: usize) {
    let check = XxHash3_64::oneshot_with_seed(seed_at(side, at), &side[at..at + 56]);
    put_word(side, at + 56, check);
}

/// Makes a sidecar that of the file whose sidecar would stand at `place`.
pub(crate) fn renumber(side: &mut [u8], place: &Path) {
    let inode: u64 = place.file_name().unwrap().to_str().unwrap().parse().unwrap();
    for copy in 0..2 {
        put_word(side, copy * PAGE + INODE, inode);
        seal_superblock(side, copy);
    }
}

/// Opens the file.
pub(crate) type Open = Box<dyn Fn(&Path) -> Result<AtomicFile>>;

/// Everything one can do with a file that may be refused at any step.
fn survives(path: &Path, options: &Options, open: &Open) -> std::result::Result<(), String> {
    drop(attempt(|| untorn::inspect(path))?);
    let Ok(file) = attempt(|| open(path))? else { return Ok(()) };
    attempt(|| {
        let len = file.len();
        let mut bytes = vec![0; len.min(1 << 20) as usize];
        drop(file.read_at(&mut bytes, 0));
        let last = len - bytes.len() as u64;
        drop(file.read_at(&mut bytes, last));
        drop(file.write_at(&[1; 100], 4050));
        drop(file.sync());
        drop(file.resize(len / 2));
        drop(file.resize(3 * PAGE as u64));
        drop(file.reclaim());
        drop(file.info());
    })?;
    attempt(|| drop(file.close()))?;
    attempt(|| drop(untorn::recover(path, options)))?;
    attempt(|| drop(open(path)))
}

/// A file and its sidecar, into which forged ones are put.
pub(crate) struct Bench {
    name: String,
    pub(crate) path: PathBuf,
    pub(crate) pair: Pair,
    options: Options,
    open: Open,
    failures: Failures,
    cases: usize,
    _dir: crate::common::Scratch,
}

impl Bench {
    /// `build` makes the file, and returns both as they are then.
    pub(crate) fn new(name: String, options: Options, open: Open, build: impl FnOnce(&Path) -> Pair) -> Self {
        let path = scratch("data");
        let pair = build(&path);
        Bench { name, path: path.clone(), pair, options, open, failures: Failures::default(), cases: 0, _dir: path }
    }

    /// Tries what `forge` makes of the sidecar.
    pub(crate) fn check(&mut self, what: &str, forge: impl FnOnce(&mut [u8])) {
        let mut bytes = self.pair.side.bytes.clone();
        forge(&mut bytes);
        self.pair.data.restore();
        // A forged state may have removed it; then its name is free again.
        std::fs::create_dir_all(self.pair.side.path.parent().unwrap()).unwrap();
        std::fs::write(&self.pair.side.path, &bytes).unwrap();
        rustix::fs::setxattr(&self.path, "user.untorn", &bytes[UUID], rustix::fs::XattrFlags::empty()).unwrap();
        self.cases += 1;
        if let Err(failure) = survives(&self.path, &self.options, &self.open) {
            self.failures.add(format!("{}, {what}: {failure}", self.name));
        }
    }

    pub(crate) fn conclude(self) {
        self.failures.conclude(self.cases);
    }
}
