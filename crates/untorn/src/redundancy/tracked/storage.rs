//! The medium of an engine with redundancy: it reports every store to the data file and to the sidecar.
//!
//! Everything else goes through to the real medium. Stores to other files are not reported, and a read-only file is not
//! stored to.

use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::TrackedPages;
use crate::error::Result;
use crate::storage::forward;
use crate::storage::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, NameChange,
    Names, Stamp,
};

/// The medium of an engine whose data file is tracked, and the pages of its sidecar.
pub(crate) struct TrackedStorage<M: Medium> {
    pub(crate) medium: Arc<M>,
    pub(crate) data: Arc<TrackedPages<M>>,
    pub(crate) sidecar: Arc<TrackedPages<M>>,
}

impl<M: Medium> TrackedStorage<M> {
    fn tracked(&self, path: &Path, access: Access, file: M::File) -> TrackedFile<M> {
        let tracked = [&self.data, &self.sidecar].into_iter().filter(|_| matches!(access, Access::ReadWrite));
        let pages = tracked.filter(|pages| path == pages.path()).map(Arc::clone).next();
        TrackedFile { file, pages }
    }
}

impl<M: Medium> Medium for TrackedStorage<M> {
    type File = TrackedFile<M>;

    forward!(medium: class, order, makes_check, unique, now, commit_time, booted, relax);

    fn names(&self) -> &dyn Names {
        self
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File> {
        Ok(self.tracked(path, access, self.medium.open(path, access, reserve)?))
    }

    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &Self::File) -> Result<Self::File> {
        Ok(self.tracked(path, access, self.medium.open_companion(path, access, reserve, &data.file)?))
    }

    fn create_companion_dir(&self, path: &Path, data: &Self::File) -> Result<()> {
        self.medium.create_companion_dir(path, &data.file)
    }

    fn bring_in_line(&self, companion: &Self::File, data: &Self::File) -> Result<()> {
        self.medium.bring_in_line(&companion.file, &data.file)
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&Self::File>) -> Result<Self::File> {
        let file = self.medium.create_new(path, len, reserve, like.map(|like| &like.file))?;
        Ok(TrackedFile { file, pages: None })
    }

    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()> {
        match files {
            [one] => self.medium.fence(barrier, &[&one.file]),
            [one, two] => self.medium.fence(barrier, &[&one.file, &two.file]),
            many => self.medium.fence(barrier, &many.iter().map(|file| &file.file).collect::<Vec<_>>()),
        }
    }
}

impl<M: Medium> Names for TrackedStorage<M> {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        let leaves = matches!(change, NameChange::Rename(..) | NameChange::Unlink(_));
        if leaves && change.path() == self.sidecar.path() {
            self.sidecar.forget()?;
        }
        self.medium.names().change(change)
    }

    forward!(medium: exists, list);
}

/// A file of an engine whose data file is tracked.
pub(crate) struct TrackedFile<M: Medium> {
    file: M::File,
    /// The pages that hear of stores: those of the data file or the sidecar, if it is open for writing.
    pages: Option<Arc<TrackedPages<M>>>,
}

impl<M: Medium> TrackedFile<M> {
    fn announced(&self, offset: u64, len: u64, store: impl FnOnce(&M::File) -> Result<()>) -> Result<()> {
        match &self.pages {
            None => store(&self.file),
            Some(pages) => pages.announced(offset..offset.saturating_add(len), || store(&self.file)),
        }
    }

    fn touched(&self, work: impl FnOnce(&M::File) -> Result<()>) -> Result<()> {
        match &self.pages {
            None => work(&self.file),
            Some(pages) => pages.touched(|| work(&self.file)),
        }
    }
}

impl<M: Medium> MediumFile for TrackedFile<M> {
    forward!(file: len, identity, stamp, begin_own_changes, is_disturbed, notes_stores, mark, set_mark, try_lock);
    forward!(file: commit_note, set_commit_note);
    forward!(file: read, try_read, read_stored, prefetch, prefetch_to_store, flush, start_writeback, sync);
    forward!(file: own_space, data_from, next_data);

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.announced(offset, src.len() as u64, |file| file.write(offset, src))
    }

    // `write_lines` run by run, each told as what it is: of a page that is not stored to whole the rest has to be
    // there.

    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.announced(offset, src.len() as u64, |file| file.store(offset, src))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        match &self.pages {
            None => self.file.set_len(len),
            Some(pages) => pages.resize(&self.file, len),
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        // No byte changes, but the file's time may.
        self.touched(|file| file.allocate(offset, len))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        match &self.pages {
            None => self.file.punch(offset, len),
            Some(pages) => pages.punched(offset..offset.saturating_add(len), || self.file.punch(offset, len)),
        }
    }

    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()> {
        // What stays in the cache is written over with itself: no byte changes, but the file's time does.
        self.touched(|file| file.distrust_cache(barrier, offset, len))
    }
}
