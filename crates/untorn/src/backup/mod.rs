//! Backups of a file while programs use it, and restoring them.
//!
//! A backup is two files: the bytes of one commit, as a plain file, and a manifest with their checksums. It
//! is made from a [`Snapshot`], so writers go on.
//!
//! # Invariants
//!
//! 1. A backup and a restored file get their names only when they are whole and durable. A crash before leaves
//!    nothing, or on a file system without unnamed files, one that the manifest refuses.
//! 2. Nothing of a backup is restored that its manifest does not confirm.

mod manifest;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;

use self::manifest::Manifest;
use crate::engine::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::options::{Progress, ProgressFn};
use crate::storage::{self, create_filled, sync_parent};
use crate::sys::locks::{flock_holder, process_name};

/// Bytes that have a checksum together.
const CHUNK: u64 = 1 << 20;

/// Bytes that stay a hole if all are zeros.
const BLOCK: usize = 4096;

/// How to make or restore a backup.
#[derive(Clone, Default)]
pub struct BackupOptions {
    replace: bool,
    verify: bool,
    rate: Option<u64>,
    progress: Option<ProgressFn>,
}

impl BackupOptions {
    /// The defaults: nothing is replaced, and nothing limits the speed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether a file that has the name already is replaced. The default is false.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets whether the new file is read again and compared with the checksums before it gets its name. The default is
    /// false.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Limits the speed, in bytes per second.
    #[must_use]
    pub fn rate(mut self, bytes: u64) -> Self {
        self.rate = Some(bytes);
        self
    }

    /// Sets a function to call with the progress in bytes.
    #[must_use]
    pub fn progress(mut self, progress: ProgressFn) -> Self {
        self.progress = Some(progress);
        self
    }
}

impl std::fmt::Debug for BackupOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BackupOptions { replace, verify, rate, .. } = self;
        f.debug_struct("BackupOptions")
            .field("replace", replace)
            .field("verify", verify)
            .field("rate", rate)
            .finish_non_exhaustive()
    }
}

/// A backup that was made or restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// The number of the commit that it has.
    pub commit: u64,
    /// When the snapshot of it was taken.
    pub taken: SystemTime,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes of it that are no hole.
    pub bytes: u64,
}

/// The manifest of a backup: its name with `.manifest` at the end.
pub fn manifest_of(backup: &Path) -> PathBuf {
    let mut name = backup.as_os_str().to_owned();
    name.push(".manifest");
    PathBuf::from(name)
}

/// Backs a snapshot up into the new file `dest`, with its manifest beside it. Pages of zeros are holes there.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let (path, dest, again) = (dir.path().join("data"), dir.path().join("backup"), dir.path().join("again"));
/// use untorn::backup::{self, BackupOptions};
/// use untorn::{AtomicFile, Snapshot};
/// let file = AtomicFile::create(&path, 1 << 20)?;
/// file.write_at(b"kept", 0)?;
/// file.sync()?;
/// let made = backup::create(&Snapshot::open(&path)?, &dest, &BackupOptions::new())?;
/// assert_eq!((made.len, made.bytes), (1 << 20, 4096));
/// backup::restore(&dest, &again, &BackupOptions::new())?;
/// assert_eq!(&std::fs::read(&again).unwrap()[..4], b"kept");
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Io`], with EEXIST if `dest` or its manifest is there and is not to be
/// [replaced](BackupOptions::replace); [`Error::SnapshotEnded`]; [`Error::Corrupt`] if the new file does not read back
/// as it was written.
pub fn create(snapshot: &Snapshot, dest: &Path, options: &BackupOptions) -> Result<Backup> {
    let manifest_path = manifest_of(dest);
    is_free(&manifest_path, options)?;
    let manifest = make(dest, options, |file| {
        let manifest =
            copy(&|offset, bytes: &mut [u8]| snapshot.read_at(bytes, offset), snapshot, file, dest, options)?;
        if options.verify {
            compare(file, dest, &manifest, options)?;
        }
        // The manifest first, so that no backup is without one.
        let text = manifest.to_text();
        make(&manifest_path, options, |file| {
            file.write_all_at(text.as_bytes(), 0).map_err(|error| Error::io("write", &manifest_path, error))
        })?;
        Ok(manifest)
    })?;
    Ok(manifest.summary())
}

/// Writes the bytes of a snapshot to a stream, in order. There is no manifest.
///
/// # Errors
/// [`Error::Io`] from the stream; [`Error::SnapshotEnded`].
pub fn stream(snapshot: &Snapshot, to: &mut dyn Write, options: &BackupOptions) -> Result<Backup> {
    let (mut pace, mut bytes) = (Pace::new(options, "writing the backup", snapshot.len()), vec![0; CHUNK as usize]);
    let mut offset = 0;
    while offset < snapshot.len() {
        let part = &mut bytes[..CHUNK.min(snapshot.len() - offset) as usize];
        snapshot.read_at(part, offset)?;
        to.write_all(part).map_err(|error| Error::io("write the backup of", snapshot.path(), error))?;
        offset += part.len() as u64;
        pace.step(offset);
    }
    let (commit, taken, len) = (snapshot.commit(), snapshot.since(), snapshot.len());
    Ok(Backup { commit, taken, len, bytes: len })
}

/// Compares a backup with its manifest.
///
/// # Errors
/// [`Error::Corrupt`] if they differ; [`Error::Io`] if one is missing or cannot be read.
pub fn verify(backup: &Path, options: &BackupOptions) -> Result<Backup> {
    let (file, manifest) = open(backup)?;
    compare(&file, backup, &manifest, options)?;
    Ok(manifest.summary())
}

/// Restores a backup into the new file `path`, whole or not at all. Every byte is compared with the manifest before the
/// file gets its name.
///
/// # Errors
/// [`Error::Corrupt`] if the backup and its manifest differ; [`Error::Io`], with EEXIST if the file is there and is not
/// to be [replaced](BackupOptions::replace); [`Error::InUse`] if a process has that file open.
pub fn restore(backup: &Path, path: &Path, options: &BackupOptions) -> Result<Backup> {
    let (source, manifest) = open(backup)?;
    not_in_use(path)?;
    make(path, options, |file| {
        let read = |offset: u64, bytes: &mut [u8]| {
            let read = source.read_exact_at(bytes, offset);
            read.map_err(|error| Error::io("read", backup, error))?;
            manifest.check(backup, offset, bytes)
        };
        copy_range(&read, manifest.len, file, path, options, "restoring", &mut |_, _| ())
    })?;
    Ok(manifest.summary())
}

/// A backup and its manifest.
fn open(backup: &Path) -> Result<(File, Manifest)> {
    let path = manifest_of(backup);
    let text = std::fs::read_to_string(&path).map_err(|error| Error::io("read the manifest", &path, error))?;
    let manifest = Manifest::parse(&path, &text)?;
    let file = File::open(backup).map_err(|error| Error::io("open", backup, error))?;
    let len = file.metadata().map_err(|error| Error::io("examine", backup, error))?.len();
    if len != manifest.len {
        let what = format!("it has {len} bytes, and {} by its manifest", manifest.len);
        return Err(Error::Corrupt { path: backup.to_owned(), offset: None, what });
    }
    Ok((file, manifest))
}

fn compare(file: &File, path: &Path, manifest: &Manifest, options: &BackupOptions) -> Result<()> {
    let (mut pace, mut bytes) = (Pace::new(options, "comparing the backup", manifest.len), vec![0; CHUNK as usize]);
    let mut offset = 0;
    while offset < manifest.len {
        let part = &mut bytes[..CHUNK.min(manifest.len - offset) as usize];
        file.read_exact_at(part, offset).map_err(|error| Error::io("read", path, error))?;
        manifest.check(path, offset, part)?;
        offset += part.len() as u64;
        pace.step(offset);
    }
    Ok(())
}

type Read<'a> = dyn Fn(u64, &mut [u8]) -> Result<()> + 'a;

/// Copies a snapshot, and notes the checksums.
fn copy(read: &Read<'_>, of: &Snapshot, file: &File, path: &Path, options: &BackupOptions) -> Result<Manifest> {
    let mut manifest = Manifest::new(of.path(), of.commit(), of.since(), of.len(), CHUNK);
    let what = "writing the backup";
    let stored =
        copy_range(read, of.len(), file, path, options, what, &mut |offset, bytes| manifest.add(offset, bytes))?;
    manifest.bytes = stored;
    Ok(manifest)
}

/// Copies bytes into an empty file, with holes for zeros, durably. Returns how many are no hole.
fn copy_range(
    read: &Read<'_>,
    len: u64,
    file: &File,
    path: &Path,
    options: &BackupOptions,
    what: &'static str,
    each: &mut dyn FnMut(u64, &[u8]),
) -> Result<u64> {
    let failed = |error| Error::io("write", path, error);
    let (mut pace, mut bytes) = (Pace::new(options, what, len), vec![0; CHUNK as usize]);
    file.set_len(len).map_err(failed)?;
    let (mut offset, mut stored) = (0, 0);
    while offset < len {
        let part = &mut bytes[..CHUNK.min(len - offset) as usize];
        read(offset, part)?;
        each(offset, part);
        for (block, bytes) in part.chunks(BLOCK).enumerate() {
            if !is_zero(bytes) {
                file.write_all_at(bytes, offset + (block * BLOCK) as u64).map_err(failed)?;
                stored += bytes.len() as u64;
            }
        }
        offset += part.len() as u64;
        pace.step(offset);
    }
    Ok(stored)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Makes a file that has its name only once it is filled and durable.
fn make<T>(path: &Path, options: &BackupOptions, fill: impl Fn(&File) -> Result<T>) -> Result<T> {
    let new = if options.replace { storage::unfinished(path) } else { path.to_owned() };
    is_free(path, options)?;
    if options.replace {
        // A crash may have left it.
        let _ = std::fs::remove_file(&new);
    }
    let mut filled = None;
    create_filled(&new, |file: OwnedFd| {
        let file = File::from(file);
        filled = Some(fill(&file)?);
        file.sync_all().map_err(|error| Error::io("flush", path, error))
    })?;
    if options.replace {
        std::fs::rename(&new, path).map_err(|error| Error::io("rename", &new, error))?;
    }
    sync_parent(path)?;
    filled.ok_or_else(|| Error::io("create", path, Errno::IO))
}

/// # Errors
/// EEXIST if the name is taken, and its file is not to be replaced.
fn is_free(path: &Path, options: &BackupOptions) -> Result<()> {
    let taken = !options.replace && path.symlink_metadata().is_ok();
    if taken { Err(Error::io("create", path, Errno::EXIST)) } else { Ok(()) }
}

/// # Errors
/// [`Error::InUse`] if a process has a file at this path open.
fn not_in_use(path: &Path) -> Result<()> {
    let Ok(file) = OpenOptions::new().read(true).open(path) else { return Ok(()) };
    let identity = storage::identity_of(file.as_fd(), path)?;
    let sidecar = File::open(sidecar::path(path, identity.inode)).ok();
    let holder = [Some(file), sidecar].into_iter().flatten().find_map(|file| flock_holder(file.as_fd()).ok().flatten());
    match holder {
        Some(process) => Err(Error::InUse { path: path.to_owned(), holder: process_name(process) }),
        None => Ok(()),
    }
}

/// Holds the speed down, and tells the progress.
struct Pace<'a> {
    options: &'a BackupOptions,
    what: &'static str,
    total: u64,
    since: Instant,
}

impl<'a> Pace<'a> {
    fn new(options: &'a BackupOptions, what: &'static str, total: u64) -> Self {
        Pace { options, what, total, since: Instant::now() }
    }

    fn step(&mut self, done: u64) {
        if let Some(progress) = &self.options.progress {
            progress(Progress { phase: self.what, done, total: self.total });
        }
        if let Some(rate) = self.options.rate.filter(|rate| *rate > 0) {
            let due = Duration::from_secs_f64(done as f64 / rate as f64);
            thread::sleep(due.saturating_sub(self.since.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests;
