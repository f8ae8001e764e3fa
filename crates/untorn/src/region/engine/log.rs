//! The commit log of a region: the record of a commit, and readers of the log.
//!
//! A log keeps `pmsync`'s promises by the numbers of commits alone: see [`part`](crate::engine::commits::part). Its
//! record comes before the region's own, and a commit costs one more fence or flush.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::commit::Changes;
use super::format::{Entry, NODES_AT, Node, PAGE, Record, Superblock};
use super::load::Loaded;
use super::region::Access;
use super::{Core, Region, locked};
use crate::engine::commits::LogOf;
use crate::engine::commits::consumer::Consuming;
use crate::engine::commits::part::{self, MOST, PartCommit, PartLog, RangeKind};
use crate::engine::commits::stream::{Commits, Reader};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::storage::{self, Medium, MediumFile};

/// A number that tells the state of a region at a commit from others. Without digests it tells which page of the store
/// has which page of the region.
fn state_of(total: u64, pages: u64) -> u64 {
    total ^ pages.rotate_left(32)
}

/// A region, as readers of its log need to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) uid: [u8; 16],
    /// The number of its last commit, or of one under way.
    pub(crate) commit: u64,
}

/// Finds a region by its name in a store that any process may have open.
///
/// # Errors
/// [`Error::Io`] with ENOENT if there is none; [`Error::Corrupt`] for what is no store; those of reading.
pub(crate) fn find<M: Medium>(medium: &M, path: &Path, name: &str) -> Result<Found> {
    let file = medium.open(path, storage::Access::Read, 0)?;
    let superblock = Superblock::read(&file, path)?;
    let mut page = [0; PAGE as usize];
    for node in NODES_AT..superblock.first() {
        let at = node * PAGE;
        if at + PAGE > file.len() {
            break;
        }
        file.read(at, &mut page[..8])?;
        if page[..8] == [0; 8] {
            continue;
        }
        file.read(at, &mut page)?;
        if let Ok(Some((node, _))) = Node::decode(&page)
            && node.name == name
        {
            let newest = Record::both(&page, &node.uid).into_iter().next();
            return Ok(Found { uid: node.uid, commit: newest.map_or(0, |record| record.commit) });
        }
    }
    Err(super::store::about(path, "find the region", name, rustix::io::Errno::NOENT))
}

impl<M: Medium> Core<M> {
    /// Opens the log of a region that was just loaded, if it has one or is to get one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region that is too large; those of opening and writing.
    pub(super) fn open_log(&self, region: &Region<M>, loaded: &Loaded) -> Result<Option<PartLog<M>>> {
        if self.settings.read_only || self.handle_state.writable().is_err() {
            return Ok(None);
        }
        let is_wanted = self.gets_log(&region.name, region.max_pages)?;
        if !is_wanted && !part::exists(&*self.medium, self.path(), self.file.identity()?, region.uid)? {
            return Ok(None);
        }
        let last = (loaded.commit, state_of(loaded.table.total, loaded.table.pages));
        PartLog::open(&self.medium, self.path(), region.uid, self.settings.commit_log, last)
    }

    /// Whether a region without a log gets one when it is opened.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too large for one.
    pub(super) fn gets_log(&self, name: &str, max_pages: u64) -> Result<bool> {
        let is_wanted = self.settings.commit_log.is_some_and(|log| log.limit > 0);
        if is_wanted && max_pages > MOST / PAGE {
            let most = MOST / PAGE;
            let what = format!("region {name:?} cannot have a commit log: only one of at most {most} pages can");
            return Err(Error::Invalid { path: self.path().to_owned(), what });
        }
        Ok(is_wanted)
    }

    /// Removes the log of a region that was just deleted. What remains counts for no other region.
    pub(super) fn forget_log(&self, region: &Region<M>) {
        let forgotten = self.file.identity().and_then(|identity| {
            if part::exists(&*self.medium, self.path(), identity, region.uid)? {
                part::forget(&*self.medium, self.path(), identity, region.uid)?;
            }
            Ok(())
        });
        if let Err(error) = forgotten {
            let store = self.path().display();
            tracing::warn!(%store, region = region.name, %error, "cannot remove the commit log of a deleted region");
        }
    }

    /// Appends the record of a commit to the region's log, durably.
    ///
    /// # Errors
    /// Those of appending. The commit must not be made then.
    pub(super) fn append(
        &self,
        log: &mut PartLog<M>,
        region: &Region<M>,
        loaded: &Loaded,
        changes: &Changes<'_>,
        (entries, record): (&BTreeMap<u64, Entry>, &Record),
    ) -> Result<part::Record> {
        let mut ranges: Vec<(RangeKind, Range<u64>)> = Vec::new();
        let mut dirty = changes.dirty.iter().map(|(logical, _)| *logical).peekable();
        for (&logical, entry) in entries {
            let has_bytes = dirty.next_if_eq(&logical).is_some();
            let kind = match (has_bytes, loaded.table.entry(logical).is_allocated()) {
                (true, true) => RangeKind::Written,
                (true, false) => RangeKind::AllocatedWritten,
                (false, _) if entry.is_allocated() => RangeKind::Allocated,
                (false, _) => RangeKind::Freed,
            };
            let range = logical * PAGE..(logical + 1) * PAGE;
            match ranges.last_mut() {
                Some((last, before)) if *last == kind && before.end == range.start => before.end = range.end,
                _ => ranges.push((kind, range)),
            }
        }
        let fill = |offset: u64, dst: &mut [u8]| {
            // Parts begin at a page, and the pages of a range follow each other.
            let first = changes.dirty.partition_point(|(logical, _)| *logical < offset / PAGE);
            for (into, (_, page)) in dst.chunks_exact_mut(PAGE as usize).zip(&changes.dirty[first..]) {
                into.copy_from_slice(&page[..]);
            }
            Ok(())
        };
        let commit = PartCommit {
            number: record.commit,
            len: region.max_pages * PAGE,
            state: state_of(record.total, record.pages),
            ranges: &ranges,
        };
        let appended = log.append(self.medium.commit_time(), &commit, fill)?;
        // The memory of a page may have been lost since its bytes were written to the store.
        match changes.check.map_or(Ok(()), |check| check()) {
            Ok(()) => Ok(appended),
            Err(error) => {
                log.take_back(appended);
                Err(error)
            }
        }
    }

    /// Notes in the log that the commit of a record is durable.
    pub(super) fn confirm(&self, log: &mut PartLog<M>, appended: part::Record) {
        if let Err(error) = log.confirm(appended) {
            let store = self.path().display();
            tracing::warn!(%store, %error, "cannot tell readers of the commit log of a commit; the next one does");
        }
    }
}

impl<M: Medium> Access<M> {
    /// The commits of the region after this one.
    ///
    /// # Errors
    /// [`Error::NoSuchCommit`]; those of opening.
    pub(super) fn stream(&self, commit: u64) -> Result<Box<dyn Commits>> {
        self.check_start(Some(commit))?;
        let (core, uid) = (self.core(), self.region().uid);
        Ok(Box::new(Reader::open(Arc::clone(&core.medium), core.path(), LogOf::Part(uid), commit)?))
    }

    /// The same for a registered consumer.
    ///
    /// # Errors
    /// As for [`stream`](Access::stream).
    pub(super) fn consumer_stream(&self, name: &str, from: Option<u64>) -> Result<Box<dyn Commits>> {
        self.check_start(from)?;
        let (core, uid) = (self.core(), self.region().uid);
        Ok(Box::new(Consuming::open(Arc::clone(&core.medium), core.path(), LogOf::Part(uid), name, from)?))
    }

    fn check_start(&self, from: Option<u64>) -> Result<()> {
        self.core().handle_state.ours()?;
        let mut state = locked(&self.region().state);
        let (last, _) = self.core().summary(self.region(), &mut state)?;
        match from.filter(|from| *from > last) {
            Some(commit) => Err(Error::NoSuchCommit { path: self.core().path().to_owned(), commit, last }),
            None => Ok(()),
        }
    }
}
