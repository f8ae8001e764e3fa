//! [`export_ltx`]: the commits of a replicated SQLite database as LTX files, for Litestream.
//!
//! # Invariants
//!
//! 1. Each file brings the database from one commit to another. The one before it, by number, ends at the first of the
//!    two.
//! 2. A file has its name only when it is whole.

mod format;

use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use self::format::{CHECKSUM, Header, TOO_LONG};
use crate::error::{Error, Result};
use crate::protocol::access::Access;
use crate::protocol::rebuild::{Image, rebuild_all};
use crate::store;

/// Smallest page of SQLite, by which changes are noted: the size of pages is known only from the first one.
const SECTOR: u64 = 512;

/// Directories of the levels: each commit, and the whole database.
const COMMITS: &str = "0";
const SNAPSHOTS: &str = "9";

/// The result of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LtxReport {
    /// The files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first transaction that can be restored.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

/// Writes the replica of an SQLite database as LTX files of version 3 into a new directory, from the oldest snapshot to
/// the last commit. `litestream restore -o app.db file:///DIRECTORY` makes the database of them. Transaction N is the
/// commit with number N.
///
/// The database has no page at byte 1 GiB, where SQLite locks, so it must be shorter. It is held in memory meanwhile.
///
/// A failure after the first file leaves the directory, incomplete: remove it and try again.
///
/// `progress` is told the bytes that were read so far, and ends the work by an error.
///
/// # Errors
/// [`Error::Invalid`] if the file is no SQLite database, or is too long; [`Error::NotFound`] if there is no replica;
/// [`Error::Io`] with EEXIST if the directory is there; those of the store.
pub fn export_ltx(url: &str, directory: &Path, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<LtxReport> {
    let access = Access::new(store::open(url)?);
    if directory.symlink_metadata().is_ok() {
        return Err(failed("create", directory)(rustix::io::Errno::EXIST.into()));
    }
    let (ltx, database, changed, known) = (directory.join("ltx"), Vec::new(), BTreeSet::new(), None);
    let mut export = Export { url, ltx, database, changed, known, report: LtxReport::default() };
    rebuild_all(&access, &mut export, progress)?;
    if export.report.files == 0 {
        return Err(export.refused("it has no commit of an SQLite database"));
    }
    Ok(export.report)
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { operation, path: path.clone(), source }
}

/// The database at the last file.
struct Known {
    page_size: usize,
    /// Checksums of its pages.
    sums: Vec<u64>,
    transaction: u64,
}

struct Export<'a> {
    url: &'a str,
    ltx: PathBuf,
    database: Vec<u8>,
    /// Sectors that were written since the last file.
    changed: BTreeSet<u64>,
    known: Option<Known>,
    report: LtxReport,
}

fn checksum_of(sums: &[u64]) -> u64 {
    sums.iter().fold(0, |all, sum| all ^ sum) | CHECKSUM
}

impl Export<'_> {
    fn refused(&self, what: &str) -> Error {
        Error::Invalid { what: format!("{}: {what}; LTX files are of SQLite databases below 1 GiB", self.url) }
    }

    /// The size of pages, by the header of the database.
    fn page_size(&self) -> Result<usize> {
        let header = self.database.get(..100).filter(|header| header.starts_with(b"SQLite format 3\0"));
        let header = header.ok_or_else(|| self.refused("it is not an SQLite database"))?;
        // 65536 does not fit into the two bytes.
        match u16::from_be_bytes([header[16], header[17]]) {
            1 => Ok(1 << 16),
            size if size >= 512 && size.is_power_of_two() => Ok(size.into()),
            size => Err(self.refused(&format!("its pages have the impossible size {size}"))),
        }
    }

    fn put(&mut self, level: &str, header: &Header, numbers: &[usize]) -> Result<()> {
        let dir = self.ltx.join(level);
        if self.report.files == 0 {
            for level in [COMMITS, SNAPSHOTS] {
                let dir = self.ltx.join(level);
                fs::create_dir_all(&dir).map_err(failed("create", &dir))?;
            }
        }
        let path = dir.join(format!("{:016x}-{:016x}.ltx", header.first, header.last));
        let partial = dir.join(".partial");
        let failed = failed("write", &path);
        let size = header.page_size as usize;
        let page = |number: &usize| (*number as u32 + 1, &self.database[number * size..(number + 1) * size]);
        let written = || {
            let file = File::create(&partial)?;
            let bytes = format::write(BufWriter::new(&file), header, numbers.iter().map(page))?;
            // Litestream takes the time of the file for that of the transaction.
            file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_millis(header.time)))?;
            file.sync_all()?;
            fs::rename(&partial, &path)?;
            File::open(&dir)?.sync_all()?;
            Ok(bytes)
        };
        self.report.bytes += written().map_err(failed)?;
        self.report.files += 1;
        Ok(())
    }
}

impl Image for Export<'_> {
    fn resize(&mut self, len: u64) -> Result<()> {
        if len >= TOO_LONG {
            return Err(self.refused(&format!("it has {len} bytes")));
        }
        if let Some(cut) = self.changed.range(len.div_ceil(SECTOR)..).next().copied() {
            self.changed.split_off(&cut);
        }
        // Bytes behind a shorter end come back as zeros.
        let (old, new) = (self.database.len() as u64, len);
        self.changed.extend(old / SECTOR..new.div_ceil(SECTOR));
        self.database.resize(len as usize, 0);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.database.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
        let Some(to) = to else { return Err(self.refused("a change is outside of the file")) };
        to.copy_from_slice(bytes);
        let end = offset + bytes.len() as u64;
        self.changed.extend(offset / SECTOR..end.div_ceil(SECTOR));
        Ok(())
    }

    fn committed(&mut self, number: u64, time: u64) -> Result<()> {
        if self.database.is_empty() && self.known.is_none() {
            // A database gets its first page with its first transaction.
            return Ok(());
        }
        let size = self.page_size()?;
        if !self.database.len().is_multiple_of(size) {
            return Err(self.refused(&format!("commit {number} ends within a page")));
        }
        let pages = self.database.len() / size;
        let transaction = number.max(1);
        if self.changed.is_empty() && self.known.as_ref().is_some_and(|known| known.transaction == transaction) {
            // A snapshot of the commit before.
            return Ok(());
        }
        let known = self.known.take().filter(|known| known.page_size == size && known.transaction < transaction);
        let (mut sums, before) = match known {
            Some(known) => (known.sums, Some(known.transaction)),
            None => (Vec::new(), None),
        };
        let sum_before = checksum_of(&sums);
        let grown = sums.len()..pages;
        let mut numbers: BTreeSet<usize> =
            self.changed.iter().map(|sector| (sector * SECTOR) as usize / size).collect();
        numbers.extend(grown);
        let numbers: Vec<usize> = numbers.into_iter().filter(|number| *number < pages).collect();
        sums.resize(pages, 0);
        let numbers = if before.is_none() { (0..pages).collect() } else { numbers };
        for number in &numbers {
            let page = &self.database[number * size..(number + 1) * size];
            sums[*number] = format::page_checksum(*number as u32 + 1, page);
        }
        let header = Header {
            page_size: size as u32,
            pages: pages as u32,
            first: before.map_or(1, |before| before + 1),
            last: transaction,
            time: time / 1_000_000,
            before: before.map_or(0, |_| sum_before),
            after: checksum_of(&sums),
        };
        self.put(if before.is_none() { SNAPSHOTS } else { COMMITS }, &header, &numbers)?;
        self.changed.clear();
        if self.report.first == 0 {
            self.report.first = transaction;
        }
        self.report.last = transaction;
        self.known = Some(Known { page_size: size, sums, transaction });
        Ok(())
    }
}
