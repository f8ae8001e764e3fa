//! Pre-images for which there is no memory: a file without a name, in the directory of the data file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::preimages::{PAGE, Page};
use crate::error::{Error, Result};
use crate::storage::create_unnamed;

/// The directory of a file.
pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file. Nothing in it has to survive anything, so nothing is flushed.
pub(super) struct Spill {
    file: File,
    /// The directory, for errors.
    dir: PathBuf,
    /// Pages of the file, and those among them that are free.
    pages: u64,
    free: Vec<u64>,
}

impl Spill {
    /// A new one, in the directory of this file.
    ///
    /// # Errors
    /// [`Error::Io`] from creating a file there.
    pub(super) fn beside(path: &Path) -> Result<Self> {
        let dir = directory_of(path);
        let file = File::from(create_unnamed(dir)?);
        Ok(Spill { file, dir: dir.to_owned(), pages: 0, free: Vec::new() })
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { operation, path: self.dir.clone(), offset: None, source }
    }

    /// Adds a page. Returns its place.
    ///
    /// # Errors
    /// [`Error::Io`], as for want of space; the place is free then.
    pub(super) fn add(&mut self, bytes: &Page) -> Result<u64> {
        let at = self.free.pop().unwrap_or(self.pages);
        self.pages = self.pages.max(at + 1);
        let written = self.file.write_all_at(bytes, at * PAGE as u64);
        if written.is_err() {
            self.free.push(at);
        }
        written.map_err(self.failed("keep pages of a snapshot in")).map(|()| at)
    }

    /// # Errors
    /// [`Error::Io`] from the file system.
    pub(super) fn read(&self, at: u64, from: usize, dst: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(dst, at * PAGE as u64 + from as u64);
        read.map_err(self.failed("read pages of a snapshot from"))
    }

    pub(super) fn remove(&mut self, at: u64) {
        self.free.push(at);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() as u64 == self.pages
    }
}
