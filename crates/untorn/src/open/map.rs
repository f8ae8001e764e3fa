//! Opening and creating maps.

use std::path::Path;

use super::{abandon, create, open, open_or_create};
use crate::error::{Error, Result};
use crate::file::AtomicMap;
use crate::options::Options;
#[cfg(doc)]
use crate::options::{Durability, EngineKind};
use crate::shared::SharedMap;
use crate::storage::{Medium, PageCache};
use crate::sys::sync::Arc;

impl AtomicMap {
    /// Opens an existing file with default [`Options`].
    ///
    /// # Errors
    /// See [`Options::map`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::new().map(path)
    }

    /// Creates a file of `len` zero bytes with default [`Options`].
    ///
    /// # Errors
    /// See [`Options::create_map`].
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        Options::new().create_map(path, len)
    }

    /// Opens a file with default [`Options`], and creates it with `len` zero bytes first if it does not exist.
    ///
    /// # Errors
    /// See [`Options::open_or_create_map`].
    pub fn open_or_create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        Options::new().open_or_create_map(path, len)
    }
}

impl SharedMap {
    /// Opens an existing file with default [`Options`], and joins the processes that already share it.
    ///
    /// # Errors
    /// See [`Options::share_map`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::new().share_map(path)
    }

    /// Creates a file of `len` zero bytes with default [`Options`], for other processes to join.
    ///
    /// # Errors
    /// See [`Options::create_shared_map`].
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        Options::new().create_shared_map(path, len)
    }

    /// Opens a file with default [`Options`], and creates it with `len` zero bytes first if it does not exist. Each of
    /// several processes may call this at once, and all of them share one file.
    ///
    /// # Errors
    /// See [`Options::open_or_create_shared_map`].
    pub fn open_or_create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        Options::new().open_or_create_shared_map(path, len)
    }
}

impl Options {
    /// Opens an existing file as plain memory, and recovers it after a crash.
    ///
    /// A map uses [`EngineKind::HybridLog`], [`Durability::PerCommit`] and redo logging. If it is opened
    /// [`read_only`](Options::read_only), stores stay in the process's memory, and commits fail.
    ///
    /// # Errors
    /// Any variant of [`Error`]; the file is then unchanged. [`Error::InUse`] also if this process has the file open in
    /// another way. [`Error::Invalid`] for an engine or durability that a map cannot have.
    pub fn map(&self, path: impl AsRef<Path>) -> Result<AtomicMap> {
        let options = self.for_map(path.as_ref())?;
        AtomicMap::new(open(path.as_ref(), &options)?, &options)
    }

    /// Creates a file of `len` zero bytes and opens it as plain memory.
    ///
    /// # Errors
    /// As for [`map`](Options::map), and [`Error::Io`] with EEXIST if the file exists.
    pub fn create_map(&self, path: impl AsRef<Path>, len: u64) -> Result<AtomicMap> {
        let options = self.for_map(path.as_ref())?;
        let shared = create(path.as_ref(), len, &options)?;
        let made = Arc::clone(&shared);
        AtomicMap::new(shared, &options).inspect_err(|error| abandon(made, error))
    }

    /// Opens a file as plain memory, and creates it with `len` zero bytes first if it does not exist. An empty file
    /// grows to `len`; any other file keeps its length.
    ///
    /// # Errors
    /// As for [`map`](Options::map) and [`create_map`](Options::create_map); never EEXIST for a regular file.
    pub fn open_or_create_map(&self, path: impl AsRef<Path>, len: u64) -> Result<AtomicMap> {
        let path = path.as_ref();
        let mut map = open_or_create(path, || self.map(path), || self.create_map(path, len))?;
        if map.is_empty() && len > 0 {
            map.resize(len)?;
        }
        Ok(map)
    }

    /// Opens an existing file as plain memory that it shares with other processes that do the same, and recovers it
    /// after a crash. Address space is reserved for the [`max_len`](Options::max_len) of the first process; by default
    /// 1 GiB, or twice the length. The first process's log options also apply to all, whichever process serves.
    ///
    /// The processes meet in the directory of sidecars beside the file, so each must be able to see it and write to it.
    ///
    /// # Errors
    /// Any variant of [`Error`]. [`Error::InUse`] if any process has the file open in another way. [`Error::Io`], which
    /// names what is missing, if the kernel or the process's rights do not allow it (userfaultfd, Linux 5.19).
    pub fn share_map(&self, path: impl AsRef<Path>) -> Result<SharedMap> {
        crate::shared::map::open(self, path.as_ref(), open, |opener| std::sync::Arc::new(opener))
    }

    /// Creates a file of `len` zero bytes and opens it as plain memory, for other processes to join.
    ///
    /// # Errors
    /// As for [`share_map`](Options::share_map), and [`Error::Io`] with EEXIST if the file exists.
    pub fn create_shared_map(&self, path: impl AsRef<Path>, len: u64) -> Result<SharedMap> {
        let path = path.as_ref();
        let medium = PageCache::new();
        drop(medium.create(path, len, len)?);
        self.share_map(path).inspect_err(|error| {
            // If another process has joined it, it is in use, and stays.
            if !matches!(error, Error::InUse { .. }) {
                // The first error is the one that helps, whether or not the file can be removed again.
                let _ = medium.unlink(path);
            }
        })
    }

    /// Opens a file as plain memory that it shares with other processes, and creates it with `len` zero bytes first if
    /// it does not exist. An empty file grows to `len`; any other file keeps its length. Each of several processes may
    /// call this at once, and all of them share one file.
    ///
    /// # Errors
    /// As for [`share_map`](Options::share_map) and [`create_shared_map`](Options::create_shared_map); never EEXIST for
    /// a regular file.
    pub fn open_or_create_shared_map(&self, path: impl AsRef<Path>, len: u64) -> Result<SharedMap> {
        let path = path.as_ref();
        let map = open_or_create(path, || self.share_map(path), || self.create_shared_map(path, len))?;
        if map.is_empty() && len > 0 {
            map.grow(len)?;
        }
        Ok(map)
    }
}
