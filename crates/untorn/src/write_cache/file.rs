//! [`CachedFile`]: one file behind the log.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(doc)]
use super::WriteCache;
use crate::error::Result;
use crate::write_cache::engine::{AnyCache, At, Managed};
#[cfg(doc)]
use crate::{error::Error, options::Durability};

/// A file behind a [`WriteCache`]. Handles of one inode, attached by whatever name, share one state.
pub struct CachedFile {
    pub(super) cache: Arc<dyn AnyCache>,
    pub(super) file: Arc<Managed>,
}

impl CachedFile {
    /// Where the file is: where it was when it was attached first, or where it was [renamed](CachedFile::move_to) to since.
    pub fn path(&self) -> PathBuf {
        self.file.path().to_path_buf()
    }

    /// Length in bytes, with everything written so far.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn len(&self) -> Result<u64> {
        self.cache.len(&self.file)
    }

    /// Whether the length is 0.
    ///
    /// # Errors
    /// Those of [`len`](CachedFile::len).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `dst` from `offset`, as far as the file goes, and returns how many bytes that were. Atomic towards writes: of each
    /// it has everything or nothing.
    ///
    /// # Errors
    /// Those of reading the file and the log.
    pub fn read_at(&self, dst: &mut [u8], offset: u64) -> Result<usize> {
        self.cache.read(&self.file, offset, dst)
    }

    /// Writes all of `src` at `offset`; the file grows if need be. After a crash all of it is there or nothing, unless it is longer
    /// than a quarter of the log, or the writes of files that failed leave no room for it there: that goes past the log, to the file,
    /// and is there when the call has returned. (Of one that was under way when its process was killed, the kernel may show a part
    /// that a power cut still takes back.)
    ///
    /// # Errors
    /// [`Error::Poisoned`] once the file or the log has failed; [`Error::Io`] with ENFILE if the log has entries of as many
    /// files as it can.
    pub fn write_at(&self, src: &[u8], offset: u64) -> Result<()> {
        self.write_all(src, At::Offset(offset)).map(drop)
    }

    /// Writes as much of `src` at `offset` as there is room for in the file, and returns how many bytes that were. It is all of
    /// them, but for a file that is written through ([`WriteCache::attach_through`]): then it is what its file system takes. That is
    /// there as a whole after a crash, or nothing of `src`; but while the call has not returned, all of `src` may be.
    ///
    /// # Errors
    /// Those of [`write_at`](CachedFile::write_at); [`Error::Io`] if nothing was written, and the file then is as it was.
    pub fn write_some(&self, src: &[u8], offset: u64) -> Result<usize> {
        self.cache.write(&self.file, At::Offset(offset), src).map(|(_, count)| count)
    }

    /// Until all of it is written, or there is an error. Where it is.
    fn write_all(&self, src: &[u8], at: At) -> Result<u64> {
        let (offset, mut done) = self.cache.write(&self.file, at, src)?;
        while done < src.len() {
            done += self.cache.write(&self.file, At::Offset(offset + done as u64), &src[done..])?.1;
        }
        Ok(offset)
    }

    /// Writes at the end, wherever that is when the write takes place, and returns the offset.
    ///
    /// # Errors
    /// Those of [`write_at`](CachedFile::write_at).
    pub fn append(&self, src: &[u8]) -> Result<u64> {
        self.write_all(src, At::End)
    }

    /// Changes the length; what is added reads as zeros.
    ///
    /// # Errors
    /// Those of [`write_at`](CachedFile::write_at).
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.cache.set_len(&self.file, len)
    }

    /// Returns once everything written so far is durable, which under [`Durability::PerWrite`] it is already.
    ///
    /// # Errors
    /// The first failure of the file, to every call from then on; [`Error::Poisoned`] after a failed flush of the log.
    pub fn sync(&self) -> Result<()> {
        self.cache.sync(&self.file)
    }

    /// Makes durable what the kernel has of the file and the log knows nothing of: what was written to it before it was attached,
    /// and its attributes. Flushes the file on its own device. What is in the log stays there; [`sync`](CachedFile::sync) is for
    /// that.
    ///
    /// # Errors
    /// [`Error::Io`] if the flush fails, which is a failure of the file: then that, to every call from then on.
    pub fn sync_file(&self) -> Result<()> {
        self.cache.sync_file(&self.file)
    }

    /// Hands everything written so far to the kernel, where other programs see it: before a lock is released or the file is
    /// closed. It waits for no device. A file that is written through has it all already.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn hand_over(&self) -> Result<()> {
        self.cache.hand_over(&self.file)
    }

    /// Drains the file and looks at its length anew: after a lock was taken, when another program may have written to it.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn refresh(&self) -> Result<()> {
        self.cache.refresh(&self.file)
    }

    /// Drains the file and lets all further calls, through any handle, go past the log to the kernel: from then on any other
    /// program may use it too. It is for good, until the last handle is dropped.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn demote(&self) -> Result<()> {
        self.cache.demote(&self.file)
    }

    /// Notes, durably, that the last name of the file is about to be removed: then it may be removed without being demoted, and
    /// what the log has of it needs no flush of its device first. Until the removal is durable a crash may bring the file back,
    /// and a replay what was written to it, unless a later file had its name; if the file is gone, a replay does without it. The
    /// handle is kept until the file is removed.
    ///
    /// False if that cannot be, and the file has to be [demoted](CachedFile::demote): the log has nothing of it, it was demoted
    /// already, or its file system does not tell a file from an earlier one with the same inode number.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn leave(&self) -> Result<bool> {
        self.cache.leave(&self.file)
    }

    /// Notes, durably, that the file is about to be renamed to `to`, over what has that name. Then it may be renamed without being
    /// demoted, and neither it nor its directories need a flush of their device first. [`moved`](CachedFile::moved) has to follow,
    /// whether it was renamed or not. Until then a replay leaves it where a crash left it.
    ///
    /// What has the name, if it is behind the same cache, is let [leave](CachedFile::leave) by this; it may have no other name. What is
    /// not is remembered, and if a crash undoes the rename, a replay puts the file over that again, and over nothing else. For
    /// this the directory of `to` is synced, if it is not known what a crash could leave there.
    ///
    /// False if that cannot be, and the file, and what has the name, have to be [demoted](CachedFile::demote): the log never had
    /// anything of one of them; it was demoted already; another rename of it is under way; `to` is its own name, or that of no
    /// regular file; the two names have more than 3912 bytes; or the file system does not tell a file from an earlier one with
    /// the same inode number. A file whose last rename is not durable yet has it made so first, which waits for its device.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync); those of looking at `to`.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("ledger.new"));
    /// use std::sync::Arc;
    /// use untorn::storage::Descriptor;
    /// let cache = untorn::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_through(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// file.write_at(b"paid: 100", 0)?;
    /// let to = path.with_extension("");
    /// if !file.move_to(&to)? {
    ///     file.demote()?;
    /// }
    /// let renamed = std::fs::rename(&path, &to);
    /// file.moved(renamed.is_ok())?;
    /// # renamed.map_err(io)?;
    /// # Ok(()) }
    /// ```
    pub fn move_to(&self, to: &Path) -> Result<bool> {
        self.cache.move_to(&self.file, to)
    }

    /// Says whether a rename was done that was [announced](CachedFile::move_to). When this returns, that is as durable as a write is:
    /// a replay repeats it where a crash undoes it. If it was not done, what has the other name stays.
    ///
    /// Does nothing if none was announced, or the answer was that it could not be. See [`move_to`](CachedFile::move_to) for an example.
    ///
    /// # Errors
    /// Those of [`sync`](CachedFile::sync).
    pub fn moved(&self, done: bool) -> Result<()> {
        self.cache.moved(&self.file, done)
    }

    /// Whether the file has, durably, all that was written so far, and the log nothing of it any more.
    pub fn is_settled(&self) -> bool {
        self.cache.is_settled(&self.file)
    }

    /// Whether the file can still be written to.
    ///
    /// # Errors
    /// The failure of the file, if there was one since it was attached, or of the log.
    pub fn standing(&self) -> Result<()> {
        self.cache.standing(&self.file)
    }

    /// Whether it was [demoted](CachedFile::demote).
    pub fn is_demoted(&self) -> bool {
        self.file.is_demoted()
    }
}

impl fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile").field("path", &self.path()).finish()
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.cache.detach(&self.file);
    }
}
