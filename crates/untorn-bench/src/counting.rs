//! [`Counting`]: a medium that counts an engine's fences, flushes and bytes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Sub;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use untorn::Result;
use untorn::testing::storage::forward;
use untorn::testing::storage::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, NameChange,
    Names, Stamp,
};

/// Bytes of a cache line, the unit of a flush instruction.
const LINE: u64 = 64;

/// Counts at one instant. Subtract an earlier one to get the counts in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of [`Medium::fence`]: fences on persistent memory, flush rounds on a block medium.
    pub fences: u64,
    /// Calls of [`MediumFile::sync`] and [`Medium::sync_dir`]; each is a separate flush round.
    pub syncs: u64,
    /// On persistent memory the cache lines written back by [`MediumFile::flush`]; on a block medium the files flushed
    /// by fences and syncs.
    pub flushes: u64,
    /// Bytes stored, through the cache or non-temporally.
    pub bytes: u64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            fences: self.fences - earlier.fences,
            syncs: self.syncs - earlier.syncs,
            flushes: self.flushes - earlier.flushes,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

/// The running counters of a [`Counting`] medium; a clone reads the same ones.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Mutex<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    counts: Counts,
    /// Fences and syncs by the name of their barrier.
    barriers: BTreeMap<&'static str, u64>,
}

impl Counters {
    /// The current counts. They are exact if no other thread uses the medium.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Fences and syncs so far, by the name of their barrier.
    pub fn barriers(&self) -> BTreeMap<&'static str, u64> {
        self.lock().barriers.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a fence or a sync.
    fn barrier(&self, barrier: Barrier, count: impl FnOnce(&mut Counts)) {
        let Counted { counts, barriers } = &mut *self.lock();
        *barriers.entry(barrier.name()).or_default() += 1;
        count(counts);
    }
}

/// A medium that forwards all calls to another one and counts fences, flushes and bytes.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("f");
/// use untorn::testing::storage::PageCache;
/// use untorn::Options;
/// use untorn_bench::Counting;
/// let medium = Counting::new(PageCache::new());
/// let counters = medium.counters();
/// let file = Options::new().create_on(medium, &path, 1 << 20)?;
/// let before = counters.counts();
/// file.write_at(&[7; 100], 5000)?;
/// file.sync()?;
/// assert!((counters.counts() - before).bytes >= 100);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Counting<M> {
    inner: M,
    counters: Counters,
}

impl<M: Medium> Counting<M> {
    /// Counts the calls to `inner`.
    pub fn new(inner: M) -> Self {
        Counting { inner, counters: Counters::default() }
    }

    /// Counts the calls to `inner` with the counters of another medium.
    pub fn counted_by(inner: M, counters: &Counters) -> Self {
        Counting { inner, counters: counters.clone() }
    }

    /// The counters; keep them when giving the medium away.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    fn wrap(&self, inner: M::File) -> CountingFile<M::File> {
        CountingFile { inner, class: self.inner.class(), counters: self.counters.clone() }
    }
}

/// A file of a [`Counting`] medium.
#[derive(Debug)]
pub struct CountingFile<F> {
    inner: F,
    class: MediumClass,
    counters: Counters,
}

impl<M: Medium> Medium for Counting<M> {
    type File = CountingFile<M::File>;

    forward!(inner: class, relax);

    fn names(&self) -> &dyn Names {
        self
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File> {
        self.inner.open(path, access, reserve).map(|file| self.wrap(file))
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&Self::File>) -> Result<Self::File> {
        self.inner.create_new(path, len, reserve, like.map(|file| &file.inner)).map(|file| self.wrap(file))
    }

    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &Self::File) -> Result<Self::File> {
        self.inner.open_companion(path, access, reserve, &data.inner).map(|file| self.wrap(file))
    }

    fn create_companion_dir(&self, path: &Path, data: &Self::File) -> Result<()> {
        self.inner.create_companion_dir(path, &data.inner)
    }

    fn bring_in_line(&self, companion: &Self::File, data: &Self::File) -> Result<()> {
        self.inner.bring_in_line(&companion.inner, &data.inner)
    }

    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()> {
        let flushed = if self.class() == MediumClass::Block { files.len() as u64 } else { 0 };
        self.counters.barrier(barrier, |counts| {
            counts.fences += 1;
            counts.flushes += flushed;
        });
        let inner: Vec<&M::File> = files.iter().map(|file| &file.inner).collect();
        self.inner.fence(barrier, &inner)
    }
}

impl<M: Medium> Names for Counting<M> {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        if let NameChange::SyncDir(barrier, _) = change {
            self.counters.barrier(barrier, |counts| counts.syncs += 1);
        }
        self.inner.names().change(change)
    }

    forward!(inner: exists, list);
}

impl<F: MediumFile> MediumFile for CountingFile<F> {
    forward!(inner: commit_note, set_commit_note);
    forward!(inner: len, identity, stamp, mark, set_mark, try_lock, read, set_len, allocate, punch, distrust_cache);

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.counters.lock().counts.bytes += src.len() as u64;
        self.inner.write(offset, src)
    }

    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.counters.lock().counts.bytes += src.len() as u64;
        self.inner.store(offset, src)
    }

    fn flush(&self, barrier: Barrier, offset: u64, len: u64) {
        if self.class == MediumClass::PersistentMemory && len > 0 {
            self.counters.lock().counts.flushes += (offset + len - 1) / LINE - offset / LINE + 1;
        }
        self.inner.flush(barrier, offset, len);
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.counters.barrier(barrier, |counts| {
            counts.syncs += 1;
            counts.flushes += u64::from(self.class == MediumClass::Block);
        });
        self.inner.sync(barrier)
    }
}

#[cfg(test)]
mod tests {
    use untorn::testing::storage::{Dax, MediumKind, PageCache};

    use super::*;

    const BARRIER: Barrier = Barrier::new("test.fence");

    fn operate<M: Medium>(medium: M) -> Counts {
        let dir = tempfile::tempdir().unwrap();
        let counting = Counting::new(medium);
        let file = counting.create(&dir.path().join("f"), 8192, 8192).unwrap();
        file.allocate(0, 8192).unwrap();
        let before = counting.counters().counts();
        file.write(0, &[1; 128]).unwrap();
        counting.fence(BARRIER, &[&file]).unwrap();
        file.store(4094, &[2; 4]).unwrap(); // over a line's end
        file.flush(BARRIER, 4094, 4);
        file.flush(BARRIER, 0, 0);
        counting.fence(BARRIER, &[&file]).unwrap();
        file.sync(BARRIER).unwrap();
        counting.sync_dir(BARRIER, dir.path()).unwrap();
        let mut back = [0; 4];
        file.read(4094, &mut back).unwrap();
        assert_eq!(back, [2; 4]);
        assert_eq!(counting.counters().barriers(), BTreeMap::from([(BARRIER.name(), 4)]));
        counting.counters().counts() - before
    }

    #[test]
    fn flushes_are_cache_lines_on_persistent_memory() {
        let counts = operate(Dax::new(MediumKind::AssumedPmem));
        assert_eq!(counts, Counts { fences: 2, syncs: 2, flushes: 2, bytes: 132 });
    }

    #[test]
    fn flushes_are_files_on_a_block_medium() {
        assert_eq!(operate(PageCache::new()), Counts { fences: 2, syncs: 2, flushes: 3, bytes: 132 });
    }
}
