//! Where protected pages are: today in the data file.

use crate::error::Result;
use crate::medium::{Barrier, MediumFile, Stamp};

/// The bytes that are protected, by their offsets.
pub(crate) trait Pages: Send + Sync {
    /// Reads bytes of one page as programs see them.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Reads bytes of one page as the medium holds them.
    fn read_stored(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Replaces bytes of one page.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes all that programs see durable, whoever stored it.
    fn sync(&self, barrier: Barrier) -> Result<()>;

    /// Size and modification time.
    fn stamp(&self) -> Result<Stamp>;

    /// Whether a store through a mapping changes that time.
    fn notes_stores(&self) -> bool;
}

/// The pages of a file that has no engine.
pub(super) struct FilePages<F>(pub(super) F);

impl<F: MediumFile> Pages for FilePages<F> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read(offset, bytes)
    }

    fn read_stored(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read_stored(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write(offset, bytes)
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.0.sync(barrier)
    }

    fn stamp(&self) -> Result<Stamp> {
        self.0.stamp()
    }

    fn notes_stores(&self) -> bool {
        self.0.notes_stores()
    }
}
