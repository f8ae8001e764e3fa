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

/// A file behind a [`WriteCache`]. Handles of one inode share one state, whatever names they were attached by.
pub struct CachedFile {
    pub(super) cache: Arc<dyn AnyCache>,
    pub(super) file: Arc<Managed>,
}

impl CachedFile {
    /// The path of the file: of the first attach, or of the last [rename](CachedFile::begin_rename).
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

    /// Fills `dst` from `offset`, as far as the file goes, and returns how many bytes that were. Atomic towards
    /// writes: of each it has everything or nothing.
    ///
    /// # Errors
    /// Those of reading the file and the log.
    pub fn read_at(&self, dst: &mut [u8], offset: u64) -> Result<usize> {
        self.cache.read(&self.file, offset, dst)
    }

    /// Writes all of `src` at `offset`; the file grows if need be. After a crash all of it is there or nothing,
    /// unless it is longer than a quarter of the log, or the writes of files that failed leave no room for it there:
    /// that goes past the log, to the file, and is there when the call has returned. (Of one that was under way when
    /// its process was killed, the kernel may show a part that a power cut still takes back.)
    ///
    /// # Errors
    /// [`Error::Poisoned`] once the file or the log has failed; [`Error::Io`] with ENFILE if the log has entries of
    /// as many files as it can.
    pub fn write_at(&self, src: &[u8], offset: u64) -> Result<()> {
        self.write_all(src, At::Offset(offset)).map(drop)
    }

    /// Writes as much of `src` at `offset` as the file has room for, and returns the number of bytes written. It
    /// writes all of them, except for a write-through file ([`WriteCache::attach_write_through`]), where the file
    /// system may take fewer. After a crash the file has all returned bytes or nothing of `src`; if the crash comes
    /// before the call returns, it may have all of `src`.
    ///
    /// # Errors
    /// As for [`write_at`](CachedFile::write_at); [`Error::Io`] if nothing was written, and the file is then unchanged.
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

    /// Writes at the end of the file at that moment, and returns the offset.
    ///
    /// # Errors
    /// As for [`write_at`](CachedFile::write_at).
    pub fn append(&self, src: &[u8]) -> Result<u64> {
        self.write_all(src, At::End)
    }

    /// Changes the length. New bytes read as zeros.
    ///
    /// # Errors
    /// As for [`write_at`](CachedFile::write_at).
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.cache.set_len(&self.file, len)
    }

    /// Returns once everything written so far is durable. Under [`Durability::PerWrite`] it already is, except for an
    /// [atomic](WriteCache::attach_atomic) file, which this call commits.
    ///
    /// # Errors
    /// The file's first failure, for every call from then on; [`Error::Poisoned`] after a failed flush of the log.
    pub fn sync(&self) -> Result<()> {
        self.cache.sync(&self.file)
    }

    /// Closes the open epoch of an [atomic](WriteCache::attach_atomic) file: after a crash it has all changes so far.
    /// Durable when the call returns; commits of several threads share a flush. Without an open epoch it makes the last
    /// commit durable. For a file that is not atomic it does what [`sync`](CachedFile::sync) does.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOSPC if a change of the epoch found no room in the log; otherwise as for
    /// [`sync`](CachedFile::sync).
    pub fn commit(&self) -> Result<()> {
        self.cache.commit(&self.file, true)
    }

    /// Closes the open epoch of an [atomic](WriteCache::attach_atomic) file, and waits for no device. The commit is
    /// durable with the next flush of the log, by whichever call; at the latest when the thread of the cache drains it,
    /// within [`max_age`](crate::write_cache::CacheOptions::max_age). Until then a crash may take it back, whole. For a
    /// file that is not atomic it does nothing.
    ///
    /// # Errors
    /// As for [`commit`](CachedFile::commit).
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("accounts"));
    /// use std::sync::Arc;
    /// use untorn::write_cache::Descriptor;
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_atomic(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// file.write_at(b"from: -100, to: +100", 0)?;
    /// assert!(file.has_open_epoch());
    /// file.commit_later()?;
    /// assert!(!file.has_open_epoch());
    /// drop(file); // the commit stays
    /// # Ok(()) }
    /// ```
    pub fn commit_later(&self) -> Result<()> {
        self.cache.commit(&self.file, false)
    }

    /// Gives the file a line of the log's file table, which its first change takes otherwise. An atomic file refuses
    /// its epoch if that change finds no line; this call leaves the epoch as it is.
    ///
    /// # Errors
    /// [`Error::Io`] with ENFILE if the log has entries of as many files as it has lines
    /// ([`max_files`](super::CacheOptions::max_files)); the errors of making the file's name and contents durable.
    pub fn take_line(&self) -> Result<()> {
        self.cache.take_line(&self.file)
    }

    /// Whether the file has changes that no commit covers.
    pub fn has_open_epoch(&self) -> bool {
        self.file.has_open_epoch()
    }

    /// Removes the commit log of a file whose last name was just removed, which otherwise goes when the log of the
    /// cache needs the file no more. Does nothing for a file that has a name.
    pub fn was_removed(&self) {
        self.cache.was_removed(&self.file);
    }

    /// Drops the open epoch of an [atomic](WriteCache::attach_atomic) file, for all its handles: the file is as its
    /// last commit left it. An epoch that was refused for want of room is forgotten with it.
    ///
    /// # Errors
    /// As for [`sync`](CachedFile::sync).
    pub fn abandon(&self) -> Result<()> {
        self.cache.abandon(&self.file)
    }

    /// Runs `change`, which changes the file itself past the log, such as its times or its owner. A replay takes a file
    /// whose modification time is not the one that the log left for one that another program changed; it does not do
    /// so for this change. Bytes and length must stay as they are.
    ///
    /// # Errors
    /// Errors of examining the file; [`Error::Poisoned`] after a failed flush of the log.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("accounts"));
    /// use std::sync::Arc;
    /// use untorn::write_cache::Descriptor;
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let times = plain.try_clone().map_err(io)?;
    /// let file = cache.attach_atomic(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// file.own_change(|| times.set_modified(std::time::UNIX_EPOCH))?.map_err(io)?;
    /// # Ok(()) }
    /// ```
    pub fn own_change<T>(&self, change: impl FnOnce() -> T) -> Result<T> {
        let (mut change, mut result) = (Some(change), None);
        let run = &mut || result = change.take().map(|change| change());
        self.cache.own_change(&self.file, run)?;
        result.ok_or_else(|| {
            let what = "the change was not made".to_owned();
            crate::error::Error::Invalid { path: self.path(), what }
        })
    }

    /// Makes durable what the kernel has of the file and the log does not know: bytes written before the attach, and
    /// attributes. It flushes the file on its own device. Entries in the log stay there; use [`sync`](CachedFile::sync)
    /// for those.
    ///
    /// # Errors
    /// [`Error::Io`] if the flush fails. This is a failure of the file: every call from then on returns it.
    pub fn sync_file(&self) -> Result<()> {
        self.cache.sync_file(&self.file)
    }

    /// Hands everything written so far to the kernel, where other programs see it: before a lock is released or the
    /// file is closed. It waits for no device. The kernel already has everything of a write-through file.
    ///
    /// # Errors
    /// As for [`sync`](CachedFile::sync).
    pub fn write_to_kernel(&self) -> Result<()> {
        self.cache.write_to_kernel(&self.file)
    }

    /// Drains the file and reads its length again: after a lock was taken, when another program may have written to it.
    ///
    /// # Errors
    /// As for [`sync`](CachedFile::sync).
    pub fn reload_len(&self) -> Result<()> {
        self.cache.reload_len(&self.file)
    }

    /// Drains the file and sends all further calls, through any handle, past the log to the kernel. From then on any
    /// other program may use the file too. This is permanent until the last handle is dropped.
    ///
    /// # Errors
    /// As for [`sync`](CachedFile::sync).
    pub fn demote(&self) -> Result<()> {
        self.cache.demote(&self.file)
    }

    /// Records, durably, that the last name of the file is about to be removed. Then the file may be removed without
    /// being demoted, and its log entries need no flush of its device first. Until the removal is durable, a crash may
    /// bring the file back. A replay then brings back its writes, unless a later file had its name; if the file is
    /// gone, the replay drops them. The handle must be kept until the file is removed.
    ///
    /// Returns false if the file must be [demoted](CachedFile::demote) instead: the log has no entry of it, it is
    /// already demoted, or its file system does not distinguish it from an earlier file with the same inode number.
    ///
    /// # Errors
    /// As for [`sync`](CachedFile::sync).
    pub fn prepare_unlink(&self) -> Result<bool> {
        self.cache.prepare_unlink(&self.file)
    }

    /// Records, durably, that the file is about to be renamed to `to`, replacing the file of that name. Then it may
    /// be renamed without being demoted, and neither the file nor its directories need a flush of their device first.
    /// The caller must call [`end_rename`](CachedFile::end_rename) afterwards, whether it renamed the file or not.
    /// Until then a replay leaves the file where a crash left it.
    ///
    /// If the replaced file is behind the same cache, this call also lets it [leave](CachedFile::prepare_unlink); it
    /// must have no other name. Any other replaced file is recorded. If a crash undoes the rename, a replay renames
    /// the file over that one again, and over no other. For this the call syncs the directory of `to`, if it does not
    /// know what a crash could leave there.
    ///
    /// `to` may be a name that the file got by `link`. Then the caller removes the name from before instead of renaming
    /// the file, and a replay does so again if a crash undoes that. A caller that links the file under the name from
    /// before once more must demote it first.
    ///
    /// Returns false if the file and the replaced file must be [demoted](CachedFile::demote) instead:
    ///
    /// - the log never had an entry of one of them, or one is already demoted;
    /// - another rename of the file is in progress;
    /// - `to` is the file's own name, or not a regular file;
    /// - the two names together have more than 3904 bytes;
    /// - the file system does not distinguish the file from an earlier one with the same inode number.
    ///
    /// If the file's last rename is not durable yet, the call makes it durable first and waits for its device.
    ///
    /// # Errors
    /// As for [`sync`](CachedFile::sync); errors of examining `to`.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (log, path) = (dir.path().join("log"), dir.path().join("shared state.new"));
    /// use std::sync::Arc;
    /// use untorn::write_cache::Descriptor;
    /// let cache = untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(16).create(&log)?;
    /// # let io = |error: std::io::Error| untorn::Error::io("open", &path, error);
    /// let plain = std::fs::File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    /// let file = cache.attach_write_through(Arc::new(Descriptor::new(plain.into(), &path)?), &path)?;
    /// file.write_at(b"paid: 100", 0)?;
    /// let to = path.with_extension("");
    /// if !file.begin_rename(&to)? {
    ///     file.demote()?;
    /// }
    /// let renamed = std::fs::rename(&path, &to);
    /// file.end_rename(renamed.is_ok())?;
    /// # renamed.map_err(io)?;
    /// # Ok(()) }
    /// ```
    pub fn begin_rename(&self, to: &Path) -> Result<bool> {
        self.cache.begin_rename(&self.file, to)
    }

    /// Reports whether an [announced](CachedFile::begin_rename) rename was done. When this returns, the rename is as
    /// durable as a write: a replay repeats it if a crash undoes it. If it was not done, the file with the other name
    /// stays.
    ///
    /// It does nothing if no rename was announced, or `begin_rename` returned false. See
    /// [`begin_rename`](CachedFile::begin_rename) for an example.
    ///
    /// # Errors
    /// As for [`sync`](CachedFile::sync).
    pub fn end_rename(&self, done: bool) -> Result<()> {
        self.cache.end_rename(&self.file, done)
    }

    /// Whether the file durably has everything written so far, and the log has no entry of it any more.
    pub fn is_settled(&self) -> bool {
        self.cache.is_settled(&self.file)
    }

    /// Whether the file can still be written to.
    ///
    /// # Errors
    /// The failure of the file since it was attached, or of the log, if there was one.
    pub fn check_usable(&self) -> Result<()> {
        self.cache.check_usable(&self.file)
    }

    /// Whether the file is [demoted](CachedFile::demote).
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
