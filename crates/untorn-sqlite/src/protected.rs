//! Databases with checksums and parity.

use std::path::Path;
use std::time::{Duration, Instant};

use untorn::redundancy::{ProtectOptions, VerifyReads, recorded};
use untorn::{AtomicFile, Error, Options};

use crate::database::STEPS;

/// How long to wait for another process that protects the database.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the file. If it has checksums and parity, its reads are verified, and damage that they find is repaired.
pub(crate) fn open_as_it_is(path: &Path, options: &Options) -> Result<AtomicFile, Error> {
    if recorded(path)?.is_some() {
        match options.clone().verify_reads(VerifyReads::Repair).open(path) {
            // By a program that opened it through the library, and does not ask for that.
            Err(Error::InUse { .. }) => {}
            opened => return opened,
        }
    }
    options.open(path)
}

/// The same for a file that is to have checksums and parity, which are made while nobody else has it open.
pub(crate) fn open(path: &Path, options: &Options) -> Result<AtomicFile, Error> {
    let begun = Instant::now();
    loop {
        match protect_and_open(path, options) {
            // Another process may be about to do the same.
            Err(Error::InUse { .. }) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened,
        }
    }
}

fn protect_and_open(path: &Path, options: &Options) -> Result<AtomicFile, Error> {
    if recorded(path)?.is_none() {
        // By an opening of its own: it is refused while another process has the file, whose length must not change.
        let file = AtomicFile::open(path)?;
        // An empty file has nothing to protect. A new database has zeros before its first commit, too.
        let made = if file.is_empty() { file.resize(STEPS.0) } else { Ok(()) };
        made.and(file.close())?;
        untorn::protect(path, &ProtectOptions::new())?;
    }
    options.clone().verify_reads(VerifyReads::Repair).open(path)
}
