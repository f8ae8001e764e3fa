//! The raw arm: the medium without any atomicity.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use untorn::testing::storage::{Access, Barrier, Dax, Medium, MediumFile, MediumKind, PageCache};

const FENCE: Barrier = Barrier::new("bench.raw.fence");

/// A kind of medium for a benchmark: the engine's medium, and the raw file for comparison.
pub(crate) trait Target: Copy + Sync {
    /// The medium that the counting pass wraps.
    type Medium: Medium;
    /// The raw file for comparison.
    type Raw: Raw;

    fn kind(self) -> MediumKind;
    fn medium(self) -> Self::Medium;
    /// Creates a raw file of `len` bytes.
    fn raw(self, path: &Path, len: u64) -> untorn::Result<Self::Raw>;
    /// The same, all a hole.
    fn sparse(self, path: &Path, len: u64) -> untorn::Result<Self::Raw>;
}

/// A file written without atomicity.
pub(crate) trait Raw: Sync {
    fn write(&self, bytes: &[u8], offset: u64) -> untorn::Result<()>;
    fn read(&self, bytes: &mut [u8], offset: u64) -> untorn::Result<()>;
    /// Makes this thread's writes durable.
    fn fence(&self) -> untorn::Result<()>;
}

/// Persistent memory, real or assumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pmem(pub(crate) MediumKind);

/// A mapping written by non-temporal stores and a store fence, and read by `memcpy`. It is the medium's own file, so
/// that both arms write with the same instructions and the ratio shows the protocol alone. For reads of up to 256
/// bytes, the engines use their own copy.
pub(crate) struct RawPmem {
    medium: Dax,
    file: <Dax as Medium>::File,
}

impl Target for Pmem {
    type Medium = Dax;
    type Raw = RawPmem;

    fn kind(self) -> MediumKind {
        self.0
    }

    fn medium(self) -> Dax {
        Dax::new(self.0)
    }

    fn raw(self, path: &Path, len: u64) -> untorn::Result<RawPmem> {
        let raw = self.sparse(path, len)?;
        raw.file.allocate(0, len)?;
        Ok(raw)
    }

    fn sparse(self, path: &Path, len: u64) -> untorn::Result<RawPmem> {
        let medium = self.medium();
        let file = medium.create(path, len, len)?;
        Ok(RawPmem { medium, file })
    }
}

impl Raw for RawPmem {
    #[inline]
    fn write(&self, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        self.file.write(offset, bytes)
    }

    #[inline]
    fn read(&self, bytes: &mut [u8], offset: u64) -> untorn::Result<()> {
        self.file.read(offset, bytes)
    }

    #[inline]
    fn fence(&self) -> untorn::Result<()> {
        self.medium.fence(FENCE, &[&self.file])
    }
}

/// The page cache over a block device, or over nothing durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block(pub(crate) MediumKind);

/// A file written by `pwrite` and flushed by `fdatasync`, and read as the medium reads.
pub(crate) struct RawBlock {
    path: PathBuf,
    calls: File,
    mapped: <PageCache as Medium>::File,
}

impl Target for Block {
    type Medium = PageCache;
    type Raw = RawBlock;

    fn kind(self) -> MediumKind {
        self.0
    }

    fn medium(self) -> PageCache {
        PageCache::new()
    }

    fn raw(self, path: &Path, len: u64) -> untorn::Result<RawBlock> {
        self.sparse(path, len)
    }

    fn sparse(self, path: &Path, len: u64) -> untorn::Result<RawBlock> {
        let medium = self.medium();
        drop(medium.create(path, len, len)?);
        let calls = File::options().write(true).open(path).map_err(|source| untorn::Error::io("open", path, source))?;
        Ok(RawBlock { path: path.to_owned(), calls, mapped: medium.open(path, Access::Read, len)? })
    }
}

impl Raw for RawBlock {
    fn write(&self, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        let done = self.calls.write_all_at(bytes, offset);
        done.map_err(|source| untorn::Error::io_at("write", &self.path, offset, source))
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> untorn::Result<()> {
        self.mapped.read(offset, bytes)
    }

    fn fence(&self) -> untorn::Result<()> {
        self.calls.sync_data().map_err(|source| untorn::Error::io("flush", &self.path, source))
    }
}
