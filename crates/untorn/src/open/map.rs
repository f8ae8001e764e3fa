//! Opening and creating maps.

use std::path::Path;

use super::{abandon, create, open};
use crate::error::Result;
use crate::file::AtomicMap;
use crate::options::Options;
use crate::shared::SharedMap;
use crate::sys::sync::Arc;
#[cfg(doc)]
use crate::{
    error::Error,
    options::{Durability, EngineKind},
};

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
}

impl SharedMap {
    /// Opens an existing file with default [`Options`], together with the processes that have it open so already.
    ///
    /// # Errors
    /// See [`Options::share_map`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Options::new().share_map(path)
    }
}

impl Options {
    /// Opens an existing file as plain memory, and recovers it if it stands at a crash.
    ///
    /// The engine is [`EngineKind::HybridLog`], durability [`Durability::PerCommit`], the log redo. Opened
    /// [`read_only`](Options::read_only), what is stored to the memory stays there, and commits fail.
    ///
    /// # Errors
    /// What [`Error`] lists, [`Error::InUse`] too if this process has the file open otherwise; [`Error::Invalid`] for an engine
    /// or durability that a map can't have; the file is unchanged then.
    pub fn map(&self, path: impl AsRef<Path>) -> Result<AtomicMap> {
        let options = self.for_map(path.as_ref())?;
        AtomicMap::new(open(path.as_ref(), &options)?, &options)
    }

    /// Creates a file of `len` zero bytes and opens it as plain memory.
    ///
    /// # Errors
    /// As for [`map`](Options::map), and if the file exists.
    pub fn create_map(&self, path: impl AsRef<Path>, len: u64) -> Result<AtomicMap> {
        let options = self.for_map(path.as_ref())?;
        let shared = create(path.as_ref(), len, &options)?;
        let made = Arc::clone(&shared);
        AtomicMap::new(shared, &options).inspect_err(|error| abandon(made, error))
    }

    /// Opens an existing file as plain memory shared with other processes that do the same, and recovers it if it stands at
    /// a crash. Address space is reserved for [`max_len`](Options::max_len), as the process that came first said; without
    /// it for 64 GiB, or twice the length. What it said of the log counts for all, too, whichever process serves.
    ///
    /// They meet in the directory of sidecars beside the file, so all of them have to see that and be allowed to write to
    /// it.
    ///
    /// # Errors
    /// What [`Error`] lists; [`Error::InUse`] if the file is open otherwise, in any process; [`Error::Io`] with what is
    /// missing where the kernel or the process's rights do not allow it (userfaultfd, Linux 5.19).
    pub fn share_map(&self, path: impl AsRef<Path>) -> Result<SharedMap> {
        crate::shared::map::open(self, path.as_ref(), open, |opener| std::sync::Arc::new(opener))
    }
}
