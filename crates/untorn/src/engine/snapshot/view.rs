//! The view that a reader in another process has, inside the process that has the file open: for explorers of crashes,
//! whose files other processes cannot have.

use super::handle::{Kept, Snapshot};
use super::{Marks, PAGE};
use crate::engine::Shared;
use crate::error::{Error, Result};
use crate::sync::page_marks::are_below;
use crate::sys::sync::Arc;

/// A snapshot, the pages that were in the data file when it was taken, and the marks.
pub struct ReaderView {
    snapshot: Snapshot,
    number: u64,
    marks: std::sync::Arc<Marks>,
    home: Vec<u64>,
}

impl ReaderView {
    /// Takes a snapshot as a reader does.
    ///
    /// # Errors
    /// Those of taking a snapshot; [`Error::Invalid`] if no memory for marks can be had.
    pub(crate) fn take(shared: &Arc<Shared>) -> Result<ReaderView> {
        let path = shared.engine.path();
        let invalid = || Error::Invalid { path: path.to_owned(), what: "it gives readers no marks".to_owned() };
        let service = shared.engine.snapshots().ok_or_else(invalid)?;
        let (taken, marks) = service.take_marked(std::process::id())?;
        let snapshot = Snapshot(std::sync::Arc::new(Kept::Here {
            shared: Arc::clone(shared),
            taken,
            readers: None,
            changes: None,
        }));
        let mut home = Vec::new();
        let pages = 0..taken.captured.len.div_ceil(PAGE as u64);
        service.at_home(&taken, pages, &mut |run| home.extend(run))?;
        Ok(ReaderView { snapshot, number: taken.snapshot, marks: marks.ok_or_else(invalid)?, home })
    }

    /// The snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The pages of 4 KiB that the data file has as the snapshot has them, by what a reader knows now.
    pub fn home(&self) -> impl Iterator<Item = u64> {
        let floor = self.marks.floor();
        let is_unmarked =
            move |page: &u64| self.marks.mark(*page).is_some_and(|mark| are_below([mark, floor, floor], self.number));
        self.home.iter().copied().filter(is_unmarked)
    }
}
