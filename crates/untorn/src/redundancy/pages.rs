//! The source of protected pages: the data file, or its sidecar.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use super::holes;
use crate::error::Result;
use crate::storage::{Access, Barrier, Medium, MediumFile, Stamp};

/// The pages of a file from an offset on, which may lie behind its end, or not any more: there they are zeros, as
/// they are once the file is so long. Offsets count from the first page.
pub(super) struct Pages<M: Medium> {
    medium: Arc<M>,
    path: PathBuf,
    from: u64,
    held: RwLock<Held<M::File>>,
}

struct Held<F> {
    /// Opened anew when the file has got another length: this one goes by the length that it had. Nothing, if it
    /// could not be.
    file: Option<F>,
    access: Access,
}

impl<M: Medium> Pages<M> {
    /// A file that is open for reading only is opened for writing when the first page is written.
    pub(super) fn new(medium: Arc<M>, path: PathBuf, from: u64, file: M::File, access: Access) -> Self {
        Pages { medium, path, from, held: RwLock::new(Held { file: Some(file), access }) }
    }

    /// Reads bytes of one page as programs see them; false if the medium has lost them.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<bool> {
        self.read_with(offset, bytes, M::File::read_unless_bad)
    }

    /// Reads bytes as the medium holds them; false if it has lost some of them.
    pub(super) fn read_stored(&self, offset: u64, bytes: &mut [u8]) -> Result<bool> {
        self.read_with(offset, bytes, M::File::read_stored_unless_bad)
    }

    /// The first range at `offset` or behind it that may hold other bytes than zeros; of pages, only its first page.
    pub(super) fn data_from(&self, offset: u64, of_pages: bool) -> Result<Option<Range<u64>>> {
        let data = self.with(|file| holes::data_from(file, self.from + offset, of_pages))?;
        Ok(data.map(|data| data.start - self.from..data.end - self.from))
    }

    /// Replaces the bytes of one page, which may be one that cannot be read; false if the medium cannot write it
    /// either.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<bool> {
        if self.held.read().unwrap_or_else(PoisonError::into_inner).access == Access::Read {
            self.open_anew(Access::ReadWrite)?;
        }
        self.with(|file| file.write_anew_unless_bad(self.from + offset, bytes))
    }

    /// Whether the pages are those of a file of the system.
    pub(super) fn is_on_device(&self) -> bool {
        self.with(|file| Ok(file.descriptor().is_some())).unwrap_or(false)
    }

    /// Makes all that programs see durable, whoever stored it.
    pub(super) fn sync(&self, barrier: Barrier) -> Result<()> {
        self.with(|file| file.sync(barrier))
    }

    /// Size and modification time.
    pub(super) fn stamp(&self) -> Result<Stamp> {
        self.with(M::File::stamp)
    }

    /// Whether a store through a mapping changes that time.
    pub(super) fn notes_stores(&self) -> bool {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.file.as_ref().is_some_and(M::File::notes_stores)
    }

    /// Where the first of them is in the file.
    pub(super) fn begins_at(&self) -> u64 {
        self.from
    }

    /// Takes note of another length of the file. What is protected is as long as before.
    ///
    /// # Errors
    /// Those of opening it anew.
    pub(super) fn follow(&self) -> Result<()> {
        let access = self.held.read().unwrap_or_else(PoisonError::into_inner).access;
        self.open_anew(access)
    }

    fn open_anew(&self, access: Access) -> Result<()> {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        // First: what is opened by the length before would say that there are zeros where there are none, and whoever
        // believed it would cover these. If it cannot be opened now, it is when it is needed.
        held.file = None;
        held.file = Some(self.medium.open(&self.path, access, 0)?);
        held.access = access;
        Ok(())
    }

    /// Does something with the file, of the length that it has.
    fn with<T>(&self, work: impl FnOnce(&M::File) -> Result<T>) -> Result<T> {
        loop {
            // Nothing panics while it is exchanged.
            if let Some(file) = &self.held.read().unwrap_or_else(PoisonError::into_inner).file {
                return work(file);
            }
            self.follow()?;
        }
    }

    /// Reads what there is.
    fn read_with(
        &self,
        offset: u64,
        bytes: &mut [u8],
        read: impl FnOnce(&M::File, u64, &mut [u8]) -> Result<bool>,
    ) -> Result<bool> {
        let offset = self.from + offset;
        self.with(|file| {
            let there = file.len().saturating_sub(offset).min(bytes.len() as u64);
            let (there, behind) = bytes.split_at_mut(there as usize);
            behind.fill(0);
            if there.is_empty() { Ok(true) } else { read(file, offset, there) }
        })
    }
}
