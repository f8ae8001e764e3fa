//! Slow files on a [`Medium`], for simulators.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::backing::{BackingDir, BackingFile, Named};
use crate::engine::commits::appender::{self, CommitRecords};
use crate::error::{Error, Result};
use crate::options::CommitLog;
use crate::storage::{Access, Barrier, CreateAttrs, Identity, Medium, MediumFile};

/// The files of a medium, as slow files; for simulators.
pub struct MediumDir<M>(pub M);

/// The longest that a slow file on a medium may grow to.
const RESERVE: u64 = 1 << 24;

struct OnMediumFile<F: MediumFile>(F);

impl<F: MediumFile + 'static> BackingFile for OnMediumFile<F> {
    fn identity(&self) -> Result<Identity> {
        self.0.identity()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0.len())
    }

    fn is_removed(&self) -> Result<bool> {
        self.0.is_removed()
    }

    fn create_attrs(&self) -> Result<Option<CreateAttrs>> {
        Ok(Some(CreateAttrs { mode: 0o600, uid: 0, gid: 0 }))
    }

    fn modified(&self) -> Result<Option<u64>> {
        Ok(Some(self.0.stamp()?.modified))
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<usize> {
        let there = self.0.len().saturating_sub(offset).min(dst.len() as u64) as usize;
        self.0.read(offset, &mut dst[..there])?;
        Ok(there)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let end = offset + src.len() as u64;
        if end > self.0.len() {
            self.0.set_len(end)?;
        }
        self.0.allocate(offset, src.len() as u64)?;
        self.0.write(offset, src)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.0.sync(barrier)
    }
}

impl<M: Medium + Clone> BackingDir for MediumDir<M> {
    fn open(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        if !self.0.exists(path)? {
            return Ok(None);
        }
        let file = self.0.open(path, Access::ReadWrite, RESERVE)?;
        Ok(Some(Arc::new(OnMediumFile(file))))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.0.exists(path)
    }

    fn named(&self, path: &Path) -> Result<Named> {
        if !self.0.exists(path)? {
            return Ok(Named::Nothing);
        }
        match self.0.open(path, Access::ReadWrite, RESERVE) {
            Ok(file) => Ok(Named::File(file.identity()?)),
            Err(Error::NotAFile { .. }) => Ok(Named::Other),
            Err(error) => Err(error),
        }
    }

    fn candidates(&self, dir: &Path, _: u64) -> Result<Vec<OsString>> {
        self.0.list(dir)
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        self.0.list(dir)
    }

    fn directory(&self, dir: &Path) -> Result<Option<Identity>> {
        // It has nothing to mount, and is not asked for a number.
        let same = Identity { device: 1, inode: 1, generation: 0, birth: 1 };
        Ok(self.0.exists(dir)?.then_some(same))
    }

    fn make(&self, path: &Path, _: &CreateAttrs) -> Result<Arc<dyn BackingFile>> {
        let file = self.0.create(path, 0, RESERVE)?;
        Ok(Arc::new(OnMediumFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        if self.0.exists(to)? {
            return Err(Error::io("rename", from, Errno::EXIST));
        }
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.unlink(path)
    }

    fn sync_dir(&self, barrier: Barrier, dir: &Path) -> Result<()> {
        self.0.sync_dir(barrier, dir)
    }

    fn commit_log(
        &self,
        path: &Path,
        wanted: Option<CommitLog>,
        replays: bool,
    ) -> Result<Option<Box<dyn CommitRecords>>> {
        appender::records(self.0.clone(), path, wanted, replays)
    }

    fn awaits_consumers(&self, path: &Path) -> bool {
        appender::awaits(&self.0, path)
    }

    fn note_commit(&self, path: &Path, number: u64, time: u64) -> Result<()> {
        appender::note_commit(&self.0, path, number, time)
    }

    fn carry_commit_log(&self, from: &Path, to: &Path) -> Result<()> {
        appender::carry_renamed(&self.0, from, to)
    }

    fn remove_commit_log(&self, path: &Path, inode: u64) -> Result<()> {
        appender::remove_of(&self.0, path, inode)
    }
}
