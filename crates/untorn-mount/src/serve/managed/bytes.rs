//! Bytes and attributes of a managed file in epochs ([`Mode::Atomic`](crate::Mode::Atomic)).
//!
//! # Invariants
//!
//! 1. Until the log has brought an epoch to the source, only the log shows it: readers and attributes ask the log, as
//!    long as the file is in the table.
//! 2. The last writer's epoch is committed while no other writer can begin. An epoch that the log refused is dropped
//!    then, so that the next writer begins with the last commit.
//! 3. `fallocate` changes bytes through the log. Only room is taken in the source itself.

use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, Stat, Timespec};
use rustix::io::Errno;

use super::errno;
use super::file::{Managed, Served};

/// Zeros that one write to the log has.
const ZEROS: &[u8] = &[0; 1 << 16];

impl Managed {
    /// Fills `bytes` as far as the file goes. `None` if the source has all of it.
    pub(in crate::serve) fn read(&self, bytes: &mut [u8], offset: u64) -> Option<Result<usize, Errno>> {
        let state = self.shared();
        match &state.served {
            _ if !self.is_atomic() => None,
            Served::Failed(errno) => Some(Err(*errno)),
            Served::Logged(file) => Some(file.read_at(bytes, offset).map_err(errno)),
            Served::Plain | Served::Fresh => None,
        }
    }

    /// Shows attributes as its writers have made them. False if the source has them all.
    pub(super) fn adjust(&self, status: &mut Stat) -> bool {
        let state = self.shared();
        let Some(file) = state.file().filter(|_| self.is_atomic()) else { return false };
        let Ok(len) = file.len() else { return false };
        status.st_size = len as _;
        if !file.is_settled() {
            // Programs that look for holes must find none where the log has bytes.
            let blocks = len.div_ceil(4096) * 8;
            if (status.st_blocks as u64) < blocks {
                status.st_blocks = blocks as _;
            }
        }
        if let Some(modified) = self.modified.get() {
            status.st_mtime = modified.tv_sec as _;
            status.st_mtime_nsec = modified.tv_nsec as _;
        }
        true
    }

    /// The kernel tells when the writes were made that it cached.
    pub(in crate::serve) fn was_modified(&self, time: Timespec) {
        self.modified.set(&self.descriptor, time, || ());
    }

    /// A program sets the times; `set` does so in the source.
    pub(in crate::serve) fn set_times(
        &self,
        modified: Timespec,
        set: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let state = self.shared();
        match state.file() {
            Some(file) => file.own_change(|| self.modified.set(&self.descriptor, modified, set)).map_err(errno)?,
            None => self.modified.set(&self.descriptor, modified, set),
        }
    }

    /// The source gets the modification time that programs see.
    pub(super) fn settle_times(&self) {
        if self.is_atomic() {
            self.modified.settle(&self.descriptor);
        }
    }

    /// Commits what the last writer left.
    pub(super) fn last_writer_is_gone(&self) {
        let state = self.shared();
        let Some(file) = state.file().filter(|_| self.is_atomic()) else { return };
        let Err(error) = file.commit_later() else { return };
        tracing::error!(path = %state.path.display(), %error, "the last close drops the changes since the last commit");
        if let Err(error) = file.abandon() {
            tracing::error!(path = %state.path.display(), %error, "the changes cannot be dropped");
        }
    }

    /// Allocates, or makes a hole.
    pub(super) fn allocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        if !self.is_atomic() {
            // No replay may write over it.
            return self.past_the_log(|| rustix::fs::fallocate(&self.descriptor, mode, offset, len));
        }
        let end = offset.checked_add(len).filter(|&end| end <= i64::MAX as u64).ok_or(Errno::FBIG)?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let before = self.len()?;
        if mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
            let to = if mode.contains(FallocateFlags::KEEP_SIZE) { end.min(before) } else { end };
            let mut at = offset;
            while at < to {
                let count = (to - at).min(ZEROS.len() as u64) as usize;
                at += self.write(&ZEROS[..count], at, false)? as u64;
            }
            return Ok(());
        }
        {
            let state = self.shared();
            let room = || rustix::fs::fallocate(&self.descriptor, FallocateFlags::KEEP_SIZE, offset, len);
            let take = || self.modified.changing(&self.descriptor, room);
            match state.file() {
                Some(file) => file.own_change(take).map_err(errno)??,
                None => take()?,
            }
        }
        self.modified.has_other_time();
        self.attributes_were_set();
        if end > before && !mode.contains(FallocateFlags::KEEP_SIZE) { self.set_len(end) } else { Ok(()) }
    }

    /// A program stores to a shared mapping of the file.
    pub(in crate::serve) fn set_mapped(&self) {
        self.mapped.store(true, Ordering::Relaxed);
    }

    pub(in crate::serve) fn is_mapped(&self) -> bool {
        self.is_atomic() && self.mapped.load(Ordering::Relaxed)
    }

    /// The puller has an opening of the file.
    pub(in crate::serve) fn set_pulled(&self) {
        self.pulled.store(true, Ordering::Relaxed);
    }

    pub(in crate::serve) fn is_pulled(&self) -> bool {
        self.pulled.load(Ordering::Relaxed)
    }

    /// Whether it had one.
    pub(in crate::serve) fn take_pulled(&self) -> bool {
        self.pulled.swap(false, Ordering::Relaxed)
    }
}
