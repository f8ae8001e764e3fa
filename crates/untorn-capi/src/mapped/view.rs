//! Looking up an address: the reader's side, on a table that never changes.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use arc_swap::Guard;

use super::Entry;
use untorn_core::AtomicFile;
use untorn_core::testing::storage::Access;

thread_local! {
    /// The place in the table at which this thread found its last address: the next one is most often in the same
    /// range. It is a hint and is checked before it is believed, so it may be stale or stem from another table.
    static RECENT: Cell<usize> = const { Cell::new(0) };
}

/// A row of the table. The bounds stand in the row itself, so that a search touches no other memory.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) entry: Arc<Entry>,
}

/// Rows by address; their ranges are disjoint.
pub(super) struct Table {
    pub(super) rows: Box<[Row]>,
}

impl Table {
    fn row(&self, address: usize) -> Option<&Row> {
        let recent = RECENT.get();
        if let Some(row) = self.rows.get(recent)
            && (row.start..row.end).contains(&address)
        {
            return Some(row);
        }
        let index = self.rows.partition_point(|row| row.start <= address).checked_sub(1)?;
        let row = self.rows.get(index).filter(|row| address < row.end)?;
        RECENT.set(index);
        Some(row)
    }
}

/// The mappings as they were when [`MappedFiles::view`](super::MappedFiles::view) was called.
///
/// The mappings found in it stay open until the view is dropped: [`MappedFiles::unmap`](super::MappedFiles::unmap)
/// waits for that. Keep a view no longer than one access.
pub(crate) struct View {
    pub(super) table: Guard<Arc<Table>>,
}

/// The meaning of an address: a file, an offset in it, and the bytes left to the end of the mapping.
#[derive(Clone, Copy)]
pub(crate) struct Position<'a> {
    entry: &'a Entry,
    within: usize,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.table.rows.iter().map(|row| row.entry.mapping)).finish()
    }
}

impl fmt::Debug for Position<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Position")
            .field("file", self.file())
            .field("offset", &self.offset())
            .field("left", &self.left())
            .field("access", &self.access())
            .finish()
    }
}

impl View {
    /// Finds the file and offset that `address` means; `None` if no mapping contains it. It takes no lock and allocates
    /// nothing.
    pub(crate) fn find(&self, address: usize) -> Option<Position<'_>> {
        let row = self.table.row(address)?;
        Some(Position { entry: &row.entry, within: address - row.start })
    }
}

impl<'a> Position<'a> {
    /// The file.
    pub(crate) fn file(&self) -> &'a AtomicFile {
        &self.entry.file
    }

    /// The offset in the file, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.entry.mapping.offset + self.within as u64
    }

    /// Bytes from here to the end of the mapping; 0 in the rest of its last page. The file itself may end earlier.
    pub(crate) fn left(&self) -> usize {
        self.entry.mapping.len.saturating_sub(self.within)
    }

    /// The access that the mapping allows.
    pub(crate) fn access(&self) -> Access {
        self.entry.mapping.access
    }
}
