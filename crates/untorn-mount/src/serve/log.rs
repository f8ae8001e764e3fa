//! The log of a directory: its default place, and logs that a killed server left above or below.
//!
//! # Invariants
//!
//! 1. The directory of a log that the server makes has its name durably before the log has anything: the library syncs
//!    the source too. It belongs to the source's owner, and one that another user may have planted is refused.
//! 2. A default log serves the directory that it is in. So a look at the default place of each directory above the
//!    source, on its file system, finds each log that may have bytes of the source's files. The server starts only if
//!    nobody has such a log open and it is empty.
//! 3. A directory below with such a log is *sealed*: no name in it is found until the log is empty.
//! 4. A log that another user may have planted hides nothing: it is not believed, and shuts nobody out.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::nodes::Node;
use super::{HIDDEN, ServeOptions, Server, lock};
use crate::error::{Error, Result};

/// The default log's name.
const LOG: &str = "mount.log";

/// Logs that the report names.
const MOST_NAMED: usize = 64;

impl ServeOptions {
    /// The log of a source if none is named: it is hidden in the mount.
    pub fn default_log(source: &Path) -> PathBuf {
        hidden_in(source).join(LOG)
    }
}

fn hidden_in(source: &Path) -> PathBuf {
    source.join(OsStr::from_bytes(HIDDEN))
}

/// Makes the directory of the default log if it is not there, for the owner of the source, and returns the log's path.
///
/// # Errors
/// [`Error::Planted`] for a directory that another user may change: that user could remove the log, and with it
/// acknowledged bytes. [`Error::Io`].
pub fn make_log_directory(source: &Path) -> Result<PathBuf> {
    let hidden = hidden_in(source);
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { operation, path, source }
    };
    match fs::DirBuilder::new().mode(0o755).create(&hidden) {
        Ok(()) => {
            let owner = fs::metadata(source).map_err(failed("examine", source))?;
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::lchown(&hidden, Some(owner.uid()), Some(owner.gid()))
                    .map_err(failed("set the owner of", &hidden))?;
            }
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if let Some(why) = planted(&hidden, source)? {
                return Err(Error::Planted { path: hidden, why });
            }
        }
        Err(error) => return Err(failed("create the directory of the log", &hidden)(error)),
    }
    Ok(ServeOptions::default_log(source))
}

/// Removes the directory of the default log after a refusal, if nothing is in it. One that has something stays, and so
/// does one that cannot be removed.
pub fn remove_empty_log_directory(source: &Path) {
    let _ = fs::remove_dir(hidden_in(source));
}

/// Why another user than the source's owner, the caller or root may have planted the directory of a log.
fn planted(hidden: &Path, source: &Path) -> Result<Option<String>> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { operation: "examine", path, source }
    };
    let found = fs::symlink_metadata(hidden).map_err(failed(hidden))?;
    if !found.is_dir() {
        return Ok(Some("it is no directory".to_owned()));
    }
    let owner = fs::metadata(source).map_err(failed(source))?.uid();
    if !is_trusted(found.uid(), owner) {
        return Ok(Some(format!("its owner is user {}", found.uid())));
    }
    // In a sticky directory nobody removes the files of others.
    let others_write = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
    Ok(others_write.then(|| "others may write to it".to_owned()))
}

fn is_trusted(owner: u32, of_source: u32) -> bool {
    [0, of_source, rustix::process::geteuid().as_raw()].contains(&owner)
}

/// A log that a killed server left, or that another one has.
struct Left {
    log: PathBuf,
    in_use: bool,
    why: String,
}

/// The log in the default place of a directory, if bytes of files there may be in it alone.
fn left_in(directory: &Path) -> Option<Left> {
    let log = ServeOptions::default_log(directory);
    let found = fs::symlink_metadata(&log).ok().filter(fs::Metadata::is_file)?;
    let owner = fs::metadata(directory).ok()?.uid();
    if !matches!(planted(log.parent()?, directory), Ok(None)) || !is_trusted(found.uid(), owner) {
        return None;
    }
    let (in_use, why) = match untorn::write_cache::inspect_log(&log) {
        Ok(found) if found.operations == 0 && found.is_complete() => return None,
        Ok(found) => (false, format!("it has {} writes that the files may lack", found.operations)),
        Err(untorn::Error::InUse { holder, .. }) => (true, format!("{holder} has it")),
        // It was removed meanwhile, or is somebody's file.
        Err(untorn::Error::Invalid { .. }) => return None,
        Err(error) if error.errno() == Errno::NOENT.raw_os_error() => return None,
        Err(error) => (false, error.to_string()),
    };
    Some(Left { log, in_use, why })
}

/// Refuses a source with acknowledged bytes in a log that the server does not open: a default log of the source, if
/// `own` is another one, or of a directory above.
///
/// # Errors
/// [`Error::LogLeft`].
pub(super) fn check_no_log_left(source: &Path, own: &Path) -> Result<()> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let here = device(source);
    let around = source.ancestors().take_while(|directory| device(directory) == here);
    match around.filter(|directory| ServeOptions::default_log(directory) != own).find_map(left_in) {
        None => Ok(()),
        Some(Left { log, in_use, why }) => Err(Error::LogLeft { source: source.to_owned(), log, in_use, why }),
    }
}

/// Logs that sealed directories, with the reasons.
pub(super) type Sealing = BTreeMap<PathBuf, String>;

impl Server {
    /// Seals a directory that the kernel did not know, if it has a log of its own.
    pub(super) fn seal_if_left(&self, directory: &Node) {
        let log = Path::new(OsStr::from_bytes(HIDDEN)).join(LOG);
        if rustix::fs::statat(directory, &log, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            directory.set_sealed(true);
        }
    }

    /// Refuses names in a sealed directory until its log is empty. A look at the log reads all of it and takes its
    /// lock, which a replay needs, so an answer holds for as long as the kernel may keep a name.
    ///
    /// # Errors
    /// EUCLEAN, and EBUSY while another server has the log.
    #[cold]
    pub(super) fn check_seal(&self, directory: &Node) -> std::result::Result<(), Errno> {
        let mut refusal = lock(&directory.refusal);
        if let Some((_, errno)) = refusal.filter(|(since, _)| since.elapsed() < self.lifetime) {
            return Err(errno);
        }
        let left = self.descriptors.path(directory)?.as_deref().and_then(left_in);
        let left = left.filter(|left| left.log != self.managing.log().path());
        let Some(Left { log, in_use, why }) = left else {
            directory.set_sealed(false);
            return Ok(());
        };
        tracing::warn!(log = %log.display(), why, "a directory below the source has a log of its own");
        let mut sealing = lock(&self.sealing);
        if sealing.len() < MOST_NAMED {
            sealing.insert(log, why);
        }
        let errno = if in_use { Errno::BUSY } else { Errno::UCLEAN };
        *refusal = Some((Instant::now(), errno));
        Err(errno)
    }
}
