//! Backups of a file while programs use it, and restoring them.
//!
//! A backup is two files: the bytes of one commit, as a plain file, and a manifest with their checksums. It is made
//! from a [`Snapshot`], so writers go on. An *increment* has only the chunks that differ from those of an earlier
//! backup, its *base*, or those that commits changed since, by the file's commit log.
//!
//! # Invariants
//!
//! 1. A backup and a restored file get their names only when they are whole and durable (`target`). A crash before
//!    leaves nothing that is taken for a backup.
//! 2. Every byte of a backup was written from the snapshot, or compared with it (`copy`).
//! 3. Nothing of a backup is restored that its manifest does not confirm (`chain`).
//! 4. A restored file has the number of the backup's commit in its note before it has its name, so every later commit
//!    has a higher one.
//!
//! # No reflinks
//!
//! A backup shares no space with the file. An engine acknowledges a commit when its bytes have their space in the data
//! file (`format::sidecar::space`), so that a checkpoint and a recovery need none. A reflink takes that space away
//! behind the engine's back: the next store to a shared block needs a new one, which a full disk does not have. It
//! would also have a bad block of the disk damage file and backup alike.

mod chain;
mod copy;
mod manifest;
mod target;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use self::chain::{Chain, Part};
use self::copy::{Pace, STEP};
use self::manifest::{Manifest, Origin};
use self::target::{Staged, is_free, make, mode_of, not_in_use, permit};
use crate::engine::commits::since::{self as commits, Changed};
use crate::engine::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::options::ProgressFn;
use crate::storage::{self, Access, Medium, MediumFile, PageCache};

/// Bytes that stay a hole if all are zeros.
const BLOCK: usize = 4096;

/// How to make or restore a backup.
#[derive(Clone, Default)]
pub struct BackupOptions {
    replace: bool,
    verify: bool,
    resume: bool,
    rate: Option<u64>,
    base: Vec<PathBuf>,
    since: Option<u64>,
    progress: Option<ProgressFn>,
    cancel: Option<Arc<AtomicBool>>,
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

    /// Sets whether a backup that ends early keeps what it has copied, and goes on from what an earlier one kept. The
    /// default is false: nothing stays. It has the commit that is the last one when it goes on, so the file is read
    /// again, and only what is missing or differs is written. An increment and a restoration don't resume.
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Makes an increment: a backup with what differs from this earlier one, which may be an increment itself. Its
    /// manifest is enough, named by the backup or by itself. Differences are found by checksums (CRC-64), so the whole
    /// file is read.
    ///
    /// An increment by the log ([`since`](Self::since)) has the checksums of what changed only. Name the backups that
    /// it follows first, each with a call of this, then that one.
    #[must_use]
    pub fn base(mut self, backup: impl Into<PathBuf>) -> Self {
        self.base.push(backup.into());
        self
    }

    /// Makes an increment by the file's [commit log](crate::commits): what commits changed after the one of this
    /// number, which is that of an earlier backup ([`Backup::commit`]). No earlier backup need be at hand, and only
    /// what changed is read. The earlier backup must have been made when the file had this log.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, dest, again) = (dir.path().join("data"), dir.path().join("backup"), dir.path().join("again"));
    /// use untorn::Options;
    /// use untorn::backup::{self, BackupOptions};
    /// let file = Options::new().commit_log(1 << 20).create(&path, 1 << 20)?;
    /// let made = backup::create(&file.snapshot()?, &dest, &BackupOptions::new())?;
    /// file.write_at(b"more", 500_000)?;
    /// file.sync()?;
    /// let next = dir.path().join("increment");
    /// let made = backup::create(&file.snapshot()?, &next, &BackupOptions::new().since(made.commit))?;
    /// assert_eq!(made.bytes, 16 << 10);
    /// backup::restore(&[&dest, &next], &again, &BackupOptions::new())?;
    /// assert_eq!(&std::fs::read(&again).unwrap()[500_000..500_004], b"more");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn since(mut self, commit: u64) -> Self {
        self.since = Some(commit);
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

    /// Sets a flag that ends the work once it is true, as a handler of signals sets it: the call returns ECANCELED, and
    /// leaves what a failure leaves.
    #[must_use]
    pub fn cancel(mut self, flag: Arc<AtomicBool>) -> Self {
        self.cancel = Some(flag);
        self
    }
}

impl std::fmt::Debug for BackupOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BackupOptions { replace, verify, resume, rate, base, since, .. } = self;
        f.debug_struct("BackupOptions")
            .field("replace", replace)
            .field("verify", verify)
            .field("resume", resume)
            .field("rate", rate)
            .field("base", base)
            .field("since", since)
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
    /// The length of the file, in bytes.
    pub len: u64,
    /// Bytes that the backup holds: those that are no hole, and of an increment its chunks.
    pub bytes: u64,
    /// Bytes that this call wrote; fewer if it went on from an earlier one.
    pub written: u64,
    /// The commit of its base, or the one after which the log tells what changed, if it is an increment.
    pub base: Option<u64>,
}

/// The manifest of a backup: its name with `.manifest` at the end.
pub fn manifest_of(backup: &Path) -> PathBuf {
    let mut name = backup.as_os_str().to_owned();
    name.push(".manifest");
    PathBuf::from(name)
}

/// Backs a snapshot up into the new file `dest`, with its manifest beside it. Pages of zeros are holes there, and holes
/// of the data file are not read.
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
/// // An increment has what differs from an earlier backup.
/// file.write_at(b"more", 500_000)?;
/// file.sync()?;
/// let next = dir.path().join("increment");
/// backup::create(&Snapshot::open(&path)?, &next, &BackupOptions::new().base(&dest))?;
/// backup::restore(&[&dest, &next], &again, &BackupOptions::new())?;
/// let bytes = std::fs::read(&again).unwrap();
/// assert_eq!((&bytes[..4], &bytes[500_000..500_004]), (&b"kept"[..], &b"more"[..]));
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Io`], with EEXIST if `dest` or its manifest is there and is not to be
/// [replaced](BackupOptions::replace), and with ECANCELED if it was [cancelled](BackupOptions::cancel);
/// [`Error::SnapshotEnded`]; [`Error::InUse`] while another process makes a backup of that name; [`Error::Invalid`] for
/// a [base](BackupOptions::base) that is none, and for a commit [since](BackupOptions::since) which is not made yet;
/// [`Error::CommitsMissing`] if the file has no commit log, or if the log does not reach back to that commit;
/// [`Error::Corrupt`] if the new file does not read back as it was written, or for a base that does not match its
/// manifest.
pub fn create(snapshot: &Snapshot, dest: &Path, options: &BackupOptions) -> Result<Backup> {
    is_free(dest, options)?;
    is_free(&manifest_of(dest), options)?;
    let invalid = |what: &str| Err(Error::Invalid { path: dest.to_owned(), what: what.to_owned() });
    let is_increment = options.since.is_some() || !options.base.is_empty();
    if options.resume && is_increment {
        return invalid("an increment cannot be resumed; make it again");
    }
    if options.since.is_some() && !options.base.is_empty() {
        return invalid("an increment has a base or begins after a commit, and not both");
    }
    let base = chain::base(&options.base)?;
    let changed = match (log_of(snapshot, options.since), options.since) {
        (Ok(changed), _) => Some(changed),
        // Nothing but an increment by the log depends on it.
        (Err(_), None) => None,
        (Err(error), Some(_)) => return Err(error),
    };
    let staged = Staged::claim(dest)?;
    let made = make(dest, options, |file, has_left| {
        let (path, mode) = (snapshot.path(), mode_of(snapshot.path()));
        let commit = changed.as_ref().map_or(snapshot.commit(), |changed| changed.commit);
        let of = (commit, snapshot.since(), snapshot.len());
        let log = changed.as_ref().map(|changed| changed.log);
        let from = match (&base, options.since) {
            (Some(base), _) => Origin::Base(base),
            (None, Some(since)) => Origin::Commit(since),
            (None, None) => Origin::Nothing,
        };
        let mut manifest = Manifest::new(path, of, mode, log, from)?;
        let written = match (from, &changed) {
            (Origin::Base(base), _) => copy::increment(snapshot, (file, dest), &base.manifest, &mut manifest, options)?,
            (Origin::Commit(_), Some(changed)) => {
                copy::changed(snapshot, (file, dest), &changed.ranges, &mut manifest, options)?
            }
            _ => copy::full(snapshot, (file, dest), has_left, &mut manifest, options)?,
        };
        if options.verify {
            chain::compare(file, dest, &manifest, options)?;
        }
        // Before the backup has its name, so that none is without one.
        staged.fill(&manifest.to_text())?;
        Ok(manifest.summary(written))
    });
    match made {
        Ok(made) => staged.publish(dest, options).map(|()| made),
        Err(error) => {
            staged.give_up(dest);
            Err(error)
        }
    }
}

/// What the file's commit log says of a snapshot.
fn log_of(snapshot: &Snapshot, since: Option<u64>) -> Result<Changed> {
    let medium = Arc::new(PageCache::reading_by_call());
    commits::changed(medium, snapshot.path(), (snapshot.identity()?, snapshot.commit()), since)
}

/// Writes the bytes of a snapshot to a stream, in order. There is no manifest.
///
/// # Errors
/// [`Error::Io`] from the stream; [`Error::SnapshotEnded`].
pub fn stream(snapshot: &Snapshot, to: &mut dyn Write, options: &BackupOptions) -> Result<Backup> {
    let failed = |error| Error::io("write the backup of", snapshot.path(), error);
    let mut pace = Pace::new(options, "writing the backup", snapshot.path(), snapshot.len());
    let mut bytes = vec![0; STEP.min(snapshot.len()) as usize];
    let mut offset = 0;
    while offset < snapshot.len() {
        let data = snapshot.next_data(offset)?.unwrap_or(snapshot.len()..snapshot.len());
        while offset < data.end {
            // Zeros up to the data, then the data.
            let to_read = offset >= data.start;
            let part = (if to_read { data.end } else { data.start }) - offset;
            let part = &mut bytes[..STEP.min(part) as usize];
            if to_read {
                snapshot.read_at(part, offset)?
            } else {
                part.fill(0)
            }
            to.write_all(part).map_err(failed)?;
            offset += part.len() as u64;
            pace.step(offset, part.len() as u64)?;
        }
    }
    let (commit, taken, len) = (snapshot.commit(), snapshot.since(), snapshot.len());
    Ok(Backup { commit, taken, len, bytes: len, written: len, base: None })
}

/// Compares a backup with its manifest. Of an increment, these are the chunks that it has.
///
/// # Errors
/// [`Error::Corrupt`] if they differ; [`Error::Io`] if one is missing or cannot be read.
pub fn verify(backup: &Path, options: &BackupOptions) -> Result<Backup> {
    let part = Part::open(backup)?;
    part.verify(options)?;
    Ok(part.manifest.summary(0))
}

/// Restores a backup into the new file `path`, whole or not at all: a full backup, or one with the increments that
/// follow it, in the order in which they were made. Every byte is compared with the last manifest before the file gets
/// its name.
///
/// The file belongs to this user. It has the permissions of the backed-up file as far as the umask allows, and never
/// those that let somebody be somebody else. Its commits go on above the number of the backup's.
///
/// # Errors
/// [`Error::Corrupt`] if a backup and its manifest differ; [`Error::Invalid`] if the backups are no chain;
/// [`Error::Io`], with EEXIST if the file is there and is not to be [replaced](BackupOptions::replace), and with
/// ECANCELED if it was [cancelled](BackupOptions::cancel); [`Error::InUse`] if a process has that file open.
pub fn restore<P: AsRef<Path>>(backups: &[P], path: &Path, options: &BackupOptions) -> Result<Backup> {
    let chain = Chain::open(backups)?;
    not_in_use(path)?;
    let options = options.clone().resume(false);
    let written = make(path, &options, |file: &File, _| {
        let written = chain.restore(file, path, &options)?;
        target::number_above(file, path, chain.last().commit)?;
        // Last: an ordinary user writes no attribute to a file whose mode lets nobody write.
        permit(file, path, chain.last().mode)?;
        Ok(written)
    })?;
    Ok(chain.last().summary(written))
}

/// Makes the new file `path` of bytes that come from elsewhere, whole or not at all. `fill` writes them into an empty
/// file, which gets its name once it is durable, and returns the number of the commit that it has: the file's commits
/// go on above it. The file is readable and writable for this user alone.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// use std::io::Write;
/// use untorn::backup::{self, BackupOptions};
/// backup::assemble(&path, &BackupOptions::new(), |mut file| {
///     file.write_all(b"from elsewhere").map_err(|error| untorn::Error::io("write", &path, error))?;
///     Ok(41)
/// })?;
/// assert_eq!(untorn::inspect(&path)?.commit, 41);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of `fill`; [`Error::Io`], with EEXIST if the file is there and is not to be
/// [replaced](BackupOptions::replace); [`Error::InUse`] if a process has that file open.
pub fn assemble(path: &Path, options: &BackupOptions, mut fill: impl FnMut(&File) -> Result<u64>) -> Result<u64> {
    not_in_use(path)?;
    make(path, &options.clone().resume(false), |file, _| {
        let commit = fill(file)?;
        target::number_above(file, path, commit)?;
        Ok(commit)
    })
}

/// Has the commits of a plain file go on above the number of this one, as those of a restored file do. A number that
/// is already higher stays.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// untorn::AtomicFile::create(&path, 4096)?.close()?;
/// untorn::backup::number_above(&path, 41)?;
/// let file = untorn::AtomicFile::open(&path)?;
/// file.write_at(b"x", 0)?;
/// assert!(file.sync()? > 41);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::InUse`] if a process has the file open; [`Error::Invalid`] if it has a sidecar, which has its number;
/// [`Error::Io`] if its file system keeps no extended attributes.
pub fn number_above(path: &Path, commit: u64) -> Result<()> {
    let path = &storage::resolve(path)?;
    not_in_use(path)?;
    let medium = PageCache::reading_by_call();
    let data = medium.open(path, Access::Read, 0)?;
    if medium.exists(&sidecar::path(path, data.identity()?.inode))? {
        let what = "it has a sidecar, which keeps its number; settle it first".to_owned();
        return Err(Error::Invalid { path: path.clone(), what });
    }
    if sidecar::number::noted(&data)?.number < commit {
        let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
        target::number_above(&file, path, commit)?;
        file.sync_all().map_err(|error| Error::io("flush", path, error))?;
    }
    Ok(())
}

/// A manifest as it is written again after it was read; `None` if it is refused.
pub(crate) fn reread(text: &str) -> Option<String> {
    Manifest::parse(Path::new(""), text).ok().map(|manifest| manifest.to_text())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod since_tests;
#[cfg(test)]
mod tests;
