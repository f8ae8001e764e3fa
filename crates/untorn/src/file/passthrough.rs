//! Plain writes and a flush: no atomicity, no sidecar.
//!
//! This is what a program does without untorn, mmap and msync. It exists so that the crash tests can prove that they
//! detect torn writes: they must convict it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::snapshot::{Capture, Captured, PAGE, Unchanging};
use crate::engine::{Close, Engine, EngineKind, Info, Piece, Recovery, check_range, time_of};
use crate::error::{Error, Result};
use crate::format::sidecar::attach::{in_use, share};
use crate::format::sidecar::number::{Stamped, noted};
use crate::options::{Durability, Options};
use crate::storage::{Access, Identity, MarkState, Medium, MediumFile};

/// The barriers of this engine.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A write acknowledged as durable, or a sync, has reached the medium.
        SYNC = "passthrough.sync";
        /// A new length has reached the medium before it is acknowledged.
        RESIZE = "passthrough.resize";
    }
}

/// A file written in place.
pub(crate) struct Passthrough<M: Medium> {
    medium: Arc<M>,
    path: PathBuf,
    file: M::File,
    durability: Durability,
    read_only: bool,
    commit: AtomicU64,
    committed_at: u64,
}

impl<M: Medium> Passthrough<M> {
    /// # Errors
    /// [`Error::OtherEngine`] for a file some of whose bytes may live in a sidecar.
    pub(crate) fn open(medium: Arc<M>, path: &Path, options: &Options) -> Result<Self> {
        let access = if options.read_only { Access::Read } else { Access::ReadWrite };
        let file = medium.open(path, access, options.max_len.unwrap_or(1 << 40))?;
        if let Some(attached) = share(&*medium, path, &file)? {
            return Err(Error::OtherEngine { path: path.to_owned(), engine: attached.superblock.engine.to_string() });
        }
        // What its commits count for nobody promises; a plain file that is read has the number that it was closed with.
        let noted = if options.read_only { noted(&file)? } else { Stamped::default() };
        Ok(Passthrough {
            medium,
            path: path.to_owned(),
            file,
            durability: options.durability.unwrap_or(Durability::PerCommit),
            read_only: options.read_only,
            commit: AtomicU64::new(noted.number),
            committed_at: noted.time,
        })
    }

    fn fence(&self) -> Result<()> {
        self.medium.fence(barriers::SYNC, &[&self.file])?;
        self.commit.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl<M: Medium> Engine for Passthrough<M> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn identity(&self) -> Result<Identity> {
        self.file.identity()
    }

    fn writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly { path: self.path.clone() }) } else { Ok(()) }
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        check_range(&self.path, offset, dst.len() as u64, self.file.len())?;
        self.file.read(offset, dst)
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.writable()?;
        for piece in pieces {
            check_range(&self.path, piece.offset, piece.bytes.len() as u64, self.file.len())?;
        }
        for piece in pieces {
            self.file.write(piece.offset, piece.bytes)?;
        }
        match self.durability {
            Durability::PerWrite => self.fence(),
            Durability::PerCommit => Ok(()),
        }
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        check_range(&self.path, offset, len, self.file.len())
    }

    fn sync(&self) -> Result<u64> {
        if !self.read_only {
            self.fence()?;
        }
        Ok(self.commit.load(Ordering::Relaxed))
    }

    fn resize(&self, len: u64) -> Result<()> {
        self.writable()?;
        self.file.set_len(len)?;
        self.file.sync(barriers::RESIZE)
    }

    fn reclaim(&self) -> Result<u64> {
        Ok(0)
    }

    fn info(&self) -> Info {
        Info {
            engine: EngineKind::Passthrough,
            len: self.file.len(),
            commit: self.commit.load(Ordering::Relaxed),
            committed: time_of(self.committed_at),
            durability: self.durability,
            layout: None,
            sidecar: None,
            reflected_pages: 0,
            reflected_slices: 0,
            recovery: Recovery::default(),
        }
    }

    fn accepts(&self, options: &Options) -> bool {
        // A plain file is read without a sidecar whatever engine was asked for, as long as it is a plain file.
        let serves = options.engine == EngineKind::Passthrough || options.read_only;
        serves
            && !matches!(self.file.mark(), Ok(MarkState::Present(_)))
            && options.read_only == self.read_only
            && options.durability.is_none_or(|durability| durability == self.durability)
    }

    fn close(&self, _how: Close) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

impl<M: Medium> Capture for Passthrough<M> {
    /// There is no epoch: every write is a commit, as far as it is one.
    fn capture(&self, _: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<Captured> {
        // The caller has the file's times. A writer that came before them may store again to mapped pages that it has
        // stored to, which changes no time, so there must be none now. One that comes later changes the times.
        if self.read_only && share(&*self.medium, &self.path, &self.file)?.is_some() {
            return Err(in_use(&self.path));
        }
        Ok(Captured { commit: self.commit.load(Ordering::Relaxed), len: self.file.len() })
    }

    fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        self.file.data_from(offset)
    }

    /// The first store of a writer to a page changes the times, and so does the mark that it gives the file.
    fn unchanging(&self) -> Result<Option<Unchanging>> {
        let Some(file) = self.file.descriptor().filter(|_| self.read_only) else { return Ok(None) };
        let found = rustix::fs::fstat(file).map_err(|errno| Error::io("examine", &self.path, errno))?;
        let time = |seconds, nanoseconds| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        Ok(Some(Unchanging {
            len: found.st_size as u64,
            modified: time(found.st_mtime, found.st_mtime_nsec as i64),
            changed: time(found.st_ctime, found.st_ctime_nsec as i64),
        }))
    }
}
