//! Counts what a medium does, for the crate `metrics`.
//!
//! Only a build with the feature `metrics` has this layer, so any other build pays nothing for it.

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use metrics::{Counter, counter};

use super::forward::forward;
use super::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, NameChange,
    Names, Stamp,
};
use crate::error::Result;

/// The counters of one data file and its companions.
struct Counts {
    stored: Counter,
    fences: Counter,
    flushes: Counter,
}

/// Any medium, with counters.
pub(crate) struct Counted<M> {
    inner: M,
    counts: Arc<Counts>,
}

impl<M: Medium> Counted<M> {
    /// `path` is that of the data file, which labels the counters.
    pub(crate) fn new(inner: M, path: &Path) -> Self {
        let file = || path.display().to_string();
        let counts = Counts {
            stored: counter!("untorn_stored_bytes_total", "file" => file()),
            fences: counter!("untorn_fences_total", "file" => file()),
            flushes: counter!("untorn_flushes_total", "file" => file()),
        };
        Counted { inner, counts: Arc::new(counts) }
    }

    fn file(&self, inner: M::File) -> CountedFile<M::File> {
        CountedFile { inner, counts: Arc::clone(&self.counts) }
    }
}

impl<M: Medium> Medium for Counted<M> {
    type File = CountedFile<M::File>;

    forward!(inner: class, order, makes_check, unique, now, commit_time, booted, relax);

    fn names(&self) -> &dyn Names {
        self
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File> {
        Ok(self.file(self.inner.open(path, access, reserve)?))
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&Self::File>) -> Result<Self::File> {
        Ok(self.file(self.inner.create_new(path, len, reserve, like.map(|file| &file.inner))?))
    }

    fn create_private(&self, path: &Path, len: u64, reserve: u64) -> Result<Self::File> {
        Ok(self.file(self.inner.create_private(path, len, reserve)?))
    }

    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &Self::File) -> Result<Self::File> {
        Ok(self.file(self.inner.open_companion(path, access, reserve, &data.inner)?))
    }

    fn create_companion_dir(&self, path: &Path, data: &Self::File) -> Result<()> {
        self.inner.create_companion_dir(path, &data.inner)
    }

    fn bring_in_line(&self, companion: &Self::File, data: &Self::File) -> Result<()> {
        self.inner.bring_in_line(&companion.inner, &data.inner)
    }

    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()> {
        self.counts.fences.increment(1);
        if self.inner.class() == MediumClass::Block {
            self.counts.flushes.increment(files.len() as u64);
        }
        match files {
            [one] => self.inner.fence(barrier, &[&one.inner]),
            [one, two] => self.inner.fence(barrier, &[&one.inner, &two.inner]),
            many => self.inner.fence(barrier, &many.iter().map(|file| &file.inner).collect::<Vec<_>>()),
        }
    }
}

impl<M: Medium> Names for Counted<M> {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        if let NameChange::SyncDir(..) = change {
            self.counts.flushes.increment(1);
        }
        self.inner.names().change(change)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.names().exists(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        self.inner.names().list(dir)
    }
}

/// A file open on a [`Counted`] medium.
pub(crate) struct CountedFile<F> {
    inner: F,
    counts: Arc<Counts>,
}

impl<F> CountedFile<F> {
    fn stores(&self, bytes: u64) -> &F {
        self.counts.stored.increment(bytes);
        &self.inner
    }
}

impl<F: MediumFile> MediumFile for CountedFile<F> {
    forward!(inner: len, identity, descriptor, is_removed, changed_by_others, stamp, begin_own_changes, is_disturbed);
    forward!(inner: notes_stores, mark, set_mark, commit_note, set_commit_note, try_lock);
    forward!(inner: read, try_read, read_stored, read_unless_bad, read_stored_unless_bad);
    forward!(inner: prefetch, prefetch_to_store, flush, start_writeback, own_space, data_from, next_data);
    forward!(inner: set_len, allocate, punch);

    #[inline]
    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.stores(src.len() as u64).write(offset, src)
    }

    fn write_unpromised(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.stores(src.len() as u64).write_unpromised(offset, src)
    }

    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.stores(parts.iter().map(|part| part.len() as u64).sum()).write_parts(offset, parts)
    }

    #[inline]
    fn write_lines(&self, offset: u64, src: &[u8], lines: u64) -> Result<()> {
        self.stores(u64::from(lines.count_ones()) * 64).write_lines(offset, src, lines)
    }

    fn write_anew(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.stores(src.len() as u64).write_anew(offset, src)
    }

    fn write_anew_unless_bad(&self, offset: u64, src: &[u8]) -> Result<bool> {
        self.stores(src.len() as u64).write_anew_unless_bad(offset, src)
    }

    #[inline]
    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.stores(src.len() as u64).store(offset, src)
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.counts.flushes.increment(1);
        self.inner.sync(barrier)
    }

    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()> {
        self.inner.distrust_cache(barrier, offset, len)
    }
}
