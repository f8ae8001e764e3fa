//! The files of a run: made, written through once so that no page fault or allocation is measured, and removed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use untorn::testing::storage::{Barrier, Medium, MediumFile, MediumKind};
use untorn::{AtomicFile, Options};

use crate::args::Args;
use crate::benches::QUICK_SHARE;
use crate::counting::{Counters, Counting};
use crate::error::{Error, Result};
use crate::measure::{Limit, Plan};
use crate::raw::{Raw, Target};

const PAGE: u64 = 4096;

const WRITTEN: Barrier = Barrier::new("bench.plain.written");

/// The minimum number of slices per arm for a median.
const FEWEST_ROUNDS: usize = 15;

/// The number of slices per arm of a quick run.
const QUICK_ROUNDS: usize = 5;

/// The directory of a run with the raw file in it. Dropping it removes everything.
pub(crate) struct Rig<'a, T: Target> {
    pub(crate) target: T,
    pub(crate) args: &'a Args,
    pub(crate) raw: T::Raw,
    pub(crate) file_len: u64,
    dir: TempDir,
}

/// Whether a fence takes less than a microsecond. Then a slice of some milliseconds holds thousands of operations.
pub(crate) fn is_fast(kind: MediumKind) -> bool {
    kind != MediumKind::Block
}

/// Whether the medium is persistent memory, or taken for it.
pub(crate) fn is_pmem(kind: MediumKind) -> bool {
    matches!(kind, MediumKind::PersistentMemory | MediumKind::AssumedPmem)
}

/// The length of the file, by default depending on the medium.
pub(crate) fn file_len(args: &Args, kind: MediumKind) -> u64 {
    let default = match kind {
        MediumKind::PersistentMemory | MediumKind::AssumedPmem => 1 << 30,
        _ => 64 << 20,
    };
    args.file_len.unwrap_or(if args.quick { default / QUICK_SHARE } else { default })
}

/// Writes every page once.
fn write_raw(file: &impl Raw, len: u64) -> Result<()> {
    let page = [0x5a; PAGE as usize];
    (0..len).step_by(PAGE as usize).try_for_each(|offset| file.write(&page, offset))?;
    file.fence()?;
    Ok(())
}

impl<'a, T: Target> Rig<'a, T> {
    /// Creates the directory and the raw file, and writes every page of it. Checks that there is space for `files`
    /// files under test and `raws` more raw ones.
    pub(crate) fn new(target: T, args: &'a Args, dir: &Path, files: u64, raws: u64) -> Result<Self> {
        let file_len = file_len(args, target.kind());
        // The raw files; for each file under test its pages, a reflection page per page or as much log, and a reserve.
        let need = (1 + raws) * file_len + files * (2 * file_len + file_len / 16 + (32 << 20));
        let space = rustix::fs::statvfs(dir).map_err(|source| Error::io("read the free space of", dir, source))?;
        let free = space.f_bavail * space.f_frsize;
        if free < need {
            return Err(Error::NoSpace { dir: dir.to_owned(), need, free });
        }
        let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(dir);
        let made = made.map_err(|source| Error::io("create a directory in", dir, source))?;
        let raw = target.raw(&made.path().join("raw"), file_len)?;
        write_raw(&raw, file_len)?;
        Ok(Rig { target, args, raw, file_len, dir: made })
    }

    /// Another raw file, with every page in memory.
    pub(crate) fn beside(&self, name: &str, len: u64) -> Result<T::Raw> {
        let file = self.target.raw(&self.place(name), len)?;
        write_raw(&file, len)?;
        Ok(file)
    }

    /// The path of a file with this name.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file of the run's length without an engine, with every page in memory.
    pub(crate) fn plain(&self, name: &str) -> Result<<T::Medium as Medium>::File> {
        let file = self.target.medium().create(&self.place(name), self.file_len, self.file_len)?;
        file.allocate(0, self.file_len)?;
        let page = [0x5a; PAGE as usize];
        (0..self.file_len).step_by(PAGE as usize).try_for_each(|offset| file.write(offset, &page))?;
        file.sync(WRITTEN)?;
        Ok(file)
    }

    fn home(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new file, opened as a user opens it, replacing an earlier one with this name. Every page has been written
    /// twice: a page has two places, used in turn, and both must be in memory before the first counted write.
    pub(crate) fn fresh(&self, name: &str, options: &Options) -> Result<AtomicFile> {
        let home = self.home(name);
        if home.exists() {
            std::fs::remove_dir_all(&home).map_err(|source| Error::io("remove", &home, source))?;
        }
        std::fs::create_dir(&home).map_err(|source| Error::io("create", &home, source))?;
        // As `Options::create` does after detecting the medium.
        let file = options.create_on(self.target.medium(), home.join("data"), self.file_len)?;
        self.write_through(&file)?;
        self.write_through(&file)?;
        Ok(file)
    }

    /// Opens the closed file again, on a counting medium.
    pub(crate) fn counted(&self, name: &str, options: &Options) -> Result<(AtomicFile, Counters)> {
        let medium = Counting::new(self.target.medium());
        let counters = medium.counters();
        Ok((options.clone().verify(false).open_on(medium, self.home(name).join("data"))?, counters))
    }

    /// Writes every page once.
    pub(crate) fn write_through(&self, file: &AtomicFile) -> Result<()> {
        let page = [0x5a; PAGE as usize];
        for (index, offset) in (0..self.file_len).step_by(PAGE as usize).enumerate() {
            file.write_at(&page, offset)?;
            // One epoch for the whole file would need a record of every page at once.
            if index % 256 == 255 {
                file.sync()?;
            }
        }
        file.sync()?;
        Ok(())
    }

    /// Deploys every slice, so that reads are plain copies.
    pub(crate) fn settle(&self, file: &AtomicFile) -> Result<()> {
        const STEP: u64 = 1 << 20;
        for offset in (0..self.file_len).step_by(STEP as usize) {
            file.deploy(offset, STEP.min(self.file_len - offset))?;
        }
        file.sync()?;
        Ok(())
    }

    /// Makes every slice valid in the sidecar only.
    pub(crate) fn reflect(&self, file: &AtomicFile) -> Result<()> {
        self.settle(file)?;
        self.write_through(file)
    }

    /// Operations between two clock reads: many if one takes a tenth of a microsecond.
    pub(crate) fn batch(&self) -> u32 {
        let most = if is_fast(self.target.kind()) { 64 } else { 1 };
        self.args.ops.map_or(most, |ops| ops.min(u64::from(most)) as u32)
    }

    /// How to time a row of `arms` arms, one of which may leave work for the `background`. A slice's rate does not
    /// include the work left at its end, so such a slice is long: it writes the log's length several times.
    pub(crate) fn timed(&self, threads: usize, size: usize, arms: usize, background: bool) -> Plan {
        // A slice is long enough that a batch is a small part of it, and short enough that two neighbouring slices see
        // the same conditions.
        let (slice, rounds) = match is_fast(self.target.kind()) {
            true if background => (Duration::from_millis(75), 15),
            true => (Duration::from_millis(15), 21),
            false => (Duration::from_millis(200), FEWEST_ROUNDS),
        };
        let rounds = self.args.seconds.map_or(rounds, |seconds| (seconds / slice.as_secs_f64()) as usize / arms);
        let limit = Limit { time: slice, ops: self.args.ops.unwrap_or(u64::MAX) };
        let rounds = if self.args.quick { QUICK_ROUNDS } else { rounds.max(FEWEST_ROUNDS) };
        Plan { threads, size, rounds, limit, background }
    }

    /// How to count a row: enough operations to average a cost that occurs once in hundreds of them.
    pub(crate) fn counting(&self, threads: usize, size: usize) -> Plan {
        let most = if is_fast(self.target.kind()) { 20_000 } else { 50 };
        let ops = self.args.ops.map_or(most, |ops| (ops * FEWEST_ROUNDS as u64).min(most));
        Plan { threads, size, rounds: 1, limit: Limit { time: Duration::MAX, ops }, background: false }
    }
}
