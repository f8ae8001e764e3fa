//! A file with redundancy in a directory of its own: what makes, damages, scrubs and repairs it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use untorn::Error;
use untorn::redundancy::{Coverage, Damage, PageRange, ProtectOptions, Protected, RepairReport, ScrubReport};
use untorn::report::ProtectionProblem;

use crate::common::system::SharedMapping;
use crate::common::{PAGE, sidecar_of};

pub(crate) const PAGE_LEN: u64 = PAGE as u64;
/// The length of a file that has an engine.
pub(crate) const LEN: u64 = 40 * PAGE_LEN + 1000;

/// A file in a directory of its own.
pub(crate) struct Place {
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Place {
    /// The place of a file that is still to be made.
    pub(crate) fn empty() -> Self {
        Place::within(tempfile::tempdir().unwrap())
    }

    pub(crate) fn within(dir: tempfile::TempDir) -> Self {
        Place { path: dir.path().join("table"), _dir: dir }
    }

    /// A file that has these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let place = Place::empty();
        fs::write(&place.path, bytes).unwrap();
        place
    }

    /// The same, protected and closed.
    pub(crate) fn protected(bytes: &[u8]) -> Self {
        let place = Place::new(bytes);
        by_hand().open(&place.path).unwrap().close().unwrap();
        place
    }

    pub(crate) fn companion(&self) -> PathBuf {
        companion_of(&self.path)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    /// Writes as an ordinary program does.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        File::options().write(true).open(&self.path).unwrap().write_all_at(bytes, at as u64).unwrap();
    }

    /// Announces stores, and makes them.
    pub(crate) fn store(&self, protected: &Protected, at: usize, bytes: &[u8]) {
        let stores = protected.announce(at as u64..(at + bytes.len()) as u64).unwrap();
        self.write(at, bytes);
        drop(stores);
    }

    /// See [`rot`].
    pub(crate) fn rot(&self, at: impl TryInto<u64>, bytes: &[u8]) {
        let Ok(at) = at.try_into() else { panic!("no offset of a file") };
        rot(&self.path, at, bytes);
    }

    pub(crate) fn coverage(&self) -> Coverage {
        untorn::coverage(&self.path).unwrap().unwrap()
    }

    pub(crate) fn try_scrub(&self) -> Result<ScrubReport, Error> {
        untorn::scrub(&self.path, None, &mut |_, _| true)
    }

    pub(crate) fn scrub(&self) -> ScrubReport {
        self.try_scrub().unwrap()
    }

    /// What a scrub finds.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        self.scrub().damage
    }

    pub(crate) fn try_repair(&self) -> Result<RepairReport, Error> {
        untorn::repair(&self.path, &mut |_, _| true)
    }

    pub(crate) fn repair(&self) -> RepairReport {
        self.try_repair().unwrap()
    }

    /// Repairs the file, which finds so many pages damaged, and can repair them.
    #[track_caller]
    pub(crate) fn repairs(&self, pages: usize) {
        assert_eq!(self.repair().repaired.len(), pages);
    }
}

/// The redundancy file of the file at this path.
pub(crate) fn companion_of(path: &Path) -> PathBuf {
    sidecar_of(path).with_extension("redundancy")
}

/// Does to a file what a device would: its bytes change, its times stay.
pub(crate) fn rot(path: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.set_modified(modified).unwrap();
    file.sync_all().unwrap();
}

/// Stores are covered when somebody asks for it.
pub(crate) fn by_hand() -> ProtectOptions {
    ProtectOptions::new().on_demand()
}

/// Stores are covered as soon as they are made.
pub(crate) fn at_once() -> ProtectOptions {
    ProtectOptions::new().period(Duration::ZERO)
}

pub(crate) fn page(number: usize) -> PageRange {
    PageRange { offset: (number * PAGE) as u64, len: PAGE as u64 }
}

pub(crate) fn uncovered(protected: &Protected) -> u64 {
    protected.coverage().unwrap().uncovered
}

/// Protects a mapping, or tells why this kernel or container cannot.
pub(crate) fn protect_mapping(options: &ProtectOptions, mapping: &SharedMapping) -> Option<Protected> {
    match options.mapping(mapping.address(), mapping.len()) {
        Ok(protected) => Some(protected),
        Err(Error::Protection { problem: problem @ ProtectionProblem::Untrackable { .. }, .. }) => {
            untorn_testing::skipped!("{problem}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
