//! The rollback journal, in memory.
//!
//! SQLite writes the old pages of a transaction to its journal, and reads them back for a ROLLBACK. After a crash it
//! has no use for them here: the database is at its last commit. So the journal needs no file, no flush and no removal,
//! unless the program chose one ([`database`](crate::database)).

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

/// Where SQLite has the names of the journals of open databases. A VFS around this one may pass on a copy, by which
/// SQLite would look for the database in memory that is none of its own.
static JOURNALS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// The name of an open database's journal, until this is dropped.
pub(crate) struct JournalName(usize);

impl JournalName {
    /// # Safety
    /// `name` is a name that SQLite passed to `xOpen` for a main database.
    pub(crate) unsafe fn of(name: *const c_char) -> Self {
        let next = |at: *const c_char| {
            // SAFETY: the caller passes one of several strings in a row.
            let text = unsafe { CStr::from_ptr(at) };
            // SAFETY: as above; the next one begins behind its zero.
            unsafe { at.add(text.to_bytes().len() + 1) }
        };
        let mut at = next(name);
        // Behind it come the parameters, each a name and a value, and an empty string.
        // SAFETY: as above.
        while unsafe { *at } != 0 {
            at = next(next(at));
        }
        let journal = next(at) as usize;
        JOURNALS.lock().unwrap_or_else(PoisonError::into_inner).insert(journal);
        JournalName(journal)
    }

    pub(crate) fn is_known(name: *const c_char) -> bool {
        JOURNALS.lock().unwrap_or_else(PoisonError::into_inner).contains(&(name as usize))
    }
}

impl Drop for JournalName {
    fn drop(&mut self) {
        JOURNALS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Bytes of a journal.
#[derive(Default)]
pub(crate) struct Journal(Vec<u8>);

impl Journal {
    /// Fills `bytes` as far as the journal goes. False if it ends before.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let has = (self.0.len() - from).min(bytes.len());
        bytes[..has].copy_from_slice(&self.0[from..from + has]);
        bytes[has..].fill(0);
        has == bytes.len()
    }

    /// Writes. False if there is no memory.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let Some(end) = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes.len())) else {
            return false;
        };
        if end > self.0.len() {
            if self.0.try_reserve(end - self.0.len()).is_err() {
                return false;
            }
            self.0.resize(end, 0);
        }
        self.0[end - bytes.len()..end].copy_from_slice(bytes);
        true
    }

    pub(crate) fn truncate(&mut self, len: u64) {
        self.0.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}
