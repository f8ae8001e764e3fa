//! The check whether a file may be opened for writing, made after it was locked.

use crate::error::Result;

/// Asked by an engine that opens a file for writing.
pub(crate) trait ExclusionCheck: Send + Sync {
    /// Asked when the file's sidecar, or the region store, is locked and nothing has been changed, neither of it nor
    /// of the file. Creating a sidecar comes before.
    ///
    /// # Errors
    /// Why the file is not to be opened.
    fn check_exclusion(&self) -> Result<()>;

    /// Told in which session it was left, by the UUID of what numbers them; by how much the number of the next one is
    /// higher. The hybrid log tells it once the sidecar is one that the file has, be it a new one, and before
    /// anything of the log goes home; a region store before it is changed. Of several attempts to open a file each
    /// one tells.
    ///
    /// # Errors
    /// Why the file is not to be opened.
    fn take_over_session(&self, _uuid: &[u8; 16], _session: u64) -> Result<u64> {
        Ok(1)
    }
}
