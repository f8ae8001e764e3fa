//! Restoring a file from a replica, and the report of one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use untorn::backup::{self, BackupOptions};

use crate::error::{Error, Result};
use crate::note;
use crate::protocol::access::Access;
use crate::protocol::chain::Target;
use crate::protocol::rebuild::{Image, Rebuilt, rebuild};
use crate::ship::nanoseconds;
use crate::store::{self, Requests};

/// How a file is restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    replace: bool,
    target: Option<At>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Commit(u64),
    Time(SystemTime),
}

impl RestoreOptions {
    /// The defaults: the last commit, and no file is replaced.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether a file that has the name already is replaced. The default is false.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Restores the last commit with this number or a lower one.
    #[must_use]
    pub fn at_commit(mut self, commit: u64) -> Self {
        self.target = Some(At::Commit(commit));
        self
    }

    /// Restores the last commit that was made at this time or before, by the clock of its writer.
    #[must_use]
    pub fn at_time(mut self, time: SystemTime) -> Self {
        self.target = Some(At::Time(time));
        self
    }
}

/// A file that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Its commit.
    pub commit: u64,
    /// When the commit was made, if known.
    pub time: Option<SystemTime>,
    /// The epoch of the replica that it came from.
    pub epoch: u64,
    /// The length of the file, in bytes.
    pub len: u64,
    /// Bytes that were read from the store.
    pub read: u64,
    /// Requests to the store.
    pub requests: Requests,
    /// It has all that the replica had, so that it can be replicated there again.
    pub is_latest: bool,
}

pub(crate) fn time_of(nanoseconds: u64) -> Option<SystemTime> {
    (nanoseconds > 0).then(|| UNIX_EPOCH + Duration::from_nanos(nanoseconds))
}

/// Blocks of zeros of this length stay holes.
const BLOCK: usize = 4096;

/// The file that is made.
struct NewFile<'a> {
    file: &'a File,
    path: &'a Path,
}

impl NewFile<'_> {
    fn failed(&self, operation: &'static str) -> impl Fn(std::io::Error) -> Error {
        let path = self.path.to_owned();
        move |source| Error::Io { operation, path: path.clone(), source }
    }
}

impl Image for NewFile<'_> {
    fn resize(&mut self, len: u64) -> Result<()> {
        let failed = self.failed("resize");
        if self.file.metadata().map_err(&failed)?.len() == len {
            Ok(())
        } else {
            self.file.set_len(len).map_err(failed)
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(self.failed("write"))
    }
}

/// The same, with holes for blocks of zeros in a file of zeros.
struct Sparse<'a, 'b> {
    inner: &'a mut NewFile<'b>,
    /// Whether nothing but the snapshot was written.
    is_fresh: bool,
}

impl Image for Sparse<'_, '_> {
    fn resize(&mut self, len: u64) -> Result<()> {
        self.is_fresh |= len == 0;
        self.inner.resize(len)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.is_fresh || !offset.is_multiple_of(BLOCK as u64) || bytes.len() < BLOCK {
            self.is_fresh = false;
            return self.inner.write(offset, bytes);
        }
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                self.inner.write(offset + (index * BLOCK) as u64, block)?;
            }
        }
        Ok(())
    }
}

/// Restores the new file `path` from the replica at this URL, whole or not at all. Its commits go on above the number
/// of the restored one.
///
/// # Errors
/// [`Error::NotFound`] if there is no replica, or nothing so old; [`Error::Corrupt`] if an object is damaged;
/// [`Error::File`], with EEXIST if the file is there and is not to be [replaced](RestoreOptions::replace); those of the
/// store.
pub fn restore(url: &str, path: &Path, options: &RestoreOptions) -> Result<Restored> {
    restore_with(url, path, options, &mut |_| Ok(()))
}

/// The same, with a function that is told the bytes read so far, and ends the work by an error.
///
/// # Errors
/// As for [`restore`]; that of the function.
pub fn restore_with(
    url: &str,
    path: &Path,
    options: &RestoreOptions,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Restored> {
    let access = Access::new(store::open(url)?);
    let target = match options.target {
        None => Target::Latest,
        Some(At::Commit(commit)) => Target::Commit(commit),
        Some(At::Time(time)) => Target::Time(nanoseconds(Some(time))),
    };
    let (mut restored, mut failure) = (None, None);
    let assembled = backup::assemble(path, &BackupOptions::new().replace(options.replace), |file| {
        match fill(&access, target, file, path, progress) {
            Ok(filled) => {
                let commit = filled.commit;
                restored = Some(filled);
                Ok(commit)
            }
            Err(error) => {
                let text = error.to_string();
                failure = Some(error);
                Err(untorn::Error::io("restore", path, std::io::Error::other(text)))
            }
        }
    });
    match (assembled, failure, restored) {
        (_, Some(error), _) => Err(error),
        (Err(error), None, _) => Err(error.into()),
        (Ok(_), None, Some(restored)) => Ok(restored),
        (Ok(_), None, None) => Err(Error::Poisoned { cause: "nothing was restored".to_owned() }),
    }
}

fn fill(
    access: &Access,
    target: Target,
    file: &File,
    path: &Path,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Restored> {
    let mut inner = NewFile { file, path };
    let mut image = Sparse { inner: &mut inner, is_fresh: true };
    let Rebuilt { cursor, commit, time, is_whole } = rebuild(access, target, &mut image, progress)?;
    if is_whole {
        let noted = note::Noted { position: cursor.position(), place: cursor.place(), commit };
        let noted = note::set_position(file, path, cursor.record().replica, noted, None)
            .and_then(|()| note::add_url(file, path, &access.url()));
        // Without the note the file is as good, and cannot be replicated to the same place.
        noted.unwrap_or_else(|error| tracing::warn!(%error, "cannot note the replica"));
    }
    let failed = |source| Error::Io { operation: "examine", path: path.to_owned(), source };
    let len = file.metadata().map_err(failed)?.len();
    let (epoch, time, requests) = (cursor.place().epoch, time_of(time), access.store.requests());
    Ok(Restored { commit, time, epoch, len, read: cursor.read, requests, is_latest: is_whole })
}
