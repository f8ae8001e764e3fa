//! Attributes of files: from the source to the kernel, and back.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo, TimeOrNow};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, StatFs, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use super::Server;
use super::credentials::Caller;
use super::handles::Open;
use super::nodes::{Node, number};

/// The changes of a SETATTR.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changes {
    pub(super) mode: Option<u32>,
    pub(super) user: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
    /// Whether only the modification time changes, which the kernel keeps with the writes that it caches.
    pub(super) is_write_back: bool,
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let fraction = Duration::from_nanos(nanoseconds);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let from = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    from.and_then(|from| from.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() },
            Err(before) => {
                let before = before.duration();
                let (seconds, fraction) = (-(before.as_secs() as i64), i64::from(before.subsec_nanos()));
                if fraction == 0 {
                    Timespec { tv_sec: seconds, tv_nsec: 0 }
                } else {
                    Timespec { tv_sec: seconds - 1, tv_nsec: 1_000_000_000 - fraction }
                }
            }
        },
    }
}

pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::RegularFile | FileType::Unknown => fuser::FileType::RegularFile,
    }
}

impl Server {
    /// The attributes of a node as the kernel gets them, by those that the source had a moment ago.
    pub(super) fn attributes(&self, node: &Node, status: &Stat) -> FileAttr {
        let mut status = *status;
        if self.managing.has_atomic() && node.is_regular() && !self.managing.adjust(&mut status) {
            // The log may have brought an epoch to the source meanwhile. Now the source has all.
            status = node.status().unwrap_or(status);
        }
        self.attributes_of(node.number, &status)
    }

    /// The same of a file that the log knows nothing of.
    pub(super) fn attributes_of(&self, number: u64, status: &Stat) -> FileAttr {
        let (uid, gid) = self.shown(status.st_uid, status.st_gid);
        FileAttr {
            ino: INodeNo(number),
            size: status.st_size as u64,
            blocks: status.st_blocks as u64,
            atime: time(status.st_atime, status.st_atime_nsec),
            mtime: time(status.st_mtime, status.st_mtime_nsec),
            ctime: time(status.st_ctime, status.st_ctime_nsec),
            crtime: UNIX_EPOCH,
            kind: kind(FileType::from_raw_mode(status.st_mode)),
            perm: (status.st_mode & 0o7777) as u16,
            nlink: status.st_nlink.try_into().unwrap_or(u32::MAX),
            uid,
            gid,
            rdev: device(status.st_rdev),
            blksize: status.st_blksize as u32,
            flags: 0,
        }
    }

    /// An inode with an id that the mount's user namespace does not have would be read-only.
    fn shown(&self, user: u32, group: u32) -> (u32, u32) {
        self.ids.unwrap_or((user, group))
    }

    pub(super) fn set_attributes(
        &self,
        caller: Caller,
        node: &Node,
        open: Option<&Open>,
        changes: Changes,
    ) -> Result<Stat, Errno> {
        let name = number(node.as_fd());
        if changes.is_write_back
            && let Some(modified) = changes.modified
            && let Some(managed) = self.managing.atomic(node.key)
        {
            managed.was_modified(timespec(Some(modified)));
            return node.status();
        }
        if let Some(mode) = changes.mode {
            rustix::fs::chmodat(
                &self.descriptors,
                name.as_str(),
                Mode::from_raw_mode(mode & 0o7777),
                AtFlags::empty(),
            )?;
        }
        if changes.user.is_some() || changes.group.is_some() {
            let user = changes.user.map(Uid::from_raw_unchecked);
            rustix::fs::chownat(node, "", user, changes.group.map(Gid::from_raw_unchecked), AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = changes.size {
            self.changing(node, || self.truncate(caller, node, open, size))?;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            let times =
                Timestamps { last_access: timespec(changes.accessed), last_modification: timespec(changes.modified) };
            let set = || rustix::fs::utimensat(&self.descriptors, name.as_str(), &times, AtFlags::empty());
            self.changing(node, || self.managing.set_times(node.key, times.last_modification, set))?;
        }
        if node.is_regular() {
            self.managing.attributes_were_set(node.key);
        }
        node.status()
    }

    /// Changes the length: through the log, if the file is managed.
    pub(super) fn truncate(&self, caller: Caller, node: &Node, open: Option<&Open>, size: u64) -> Result<(), Errno> {
        if !node.is_regular() {
            return Err(Errno::INVAL);
        }
        if let Some(managed) = open.and_then(|open| open.managed.as_ref()) {
            return self.keep_privileges_off(caller, node, || self.managing.set_len(managed, size));
        }
        if let Some(open) = open.filter(|open| open.writable) {
            return caller.act(self, || rustix::fs::ftruncate(open, size));
        }
        let whole = self.descriptors.reopen(node, OFlags::RDWR).map(Arc::new);
        let own = whole.as_ref().ok().cloned();
        let file = whole.or_else(|errno| match errno {
            Errno::ACCESS => self.descriptors.reopen(node, OFlags::WRONLY).map(Arc::new),
            errno => Err(errno),
        })?;
        match self.manage(node, own.as_ref(), false)? {
            Some(managed) => {
                let done = self.keep_privileges_off(caller, node, || self.managing.set_len(&managed, size));
                self.managing.released(&managed);
                done
            }
            None => caller.act(self, || rustix::fs::ftruncate(&file, size)),
        }
    }

    /// Does what changes bytes of a file, and takes its set-user-id and set-group-id from it if the caller has no right
    /// to keep them. The kernel does this for a plain file, since it sees the caller.
    pub(super) fn keep_privileges_off<T>(
        &self,
        caller: Caller,
        node: &Node,
        act: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if self.as_root && !caller.is_root() {
            let mode = Mode::from_raw_mode(node.status()?.st_mode);
            let mut kept = mode - Mode::SUID;
            if mode.contains(Mode::XGRP) {
                kept -= Mode::SGID;
            }
            if kept != mode {
                let name = number(node.as_fd());
                rustix::fs::chmodat(&self.descriptors, name.as_str(), kept, AtFlags::empty())?;
            }
        }
        act()
    }

    pub(super) fn file_system(&self, node: &Node) -> Result<StatFs, Errno> {
        rustix::fs::fstatfs(node)
    }
}

/// A device's number as FUSE has it: 12 bits of major, 20 of minor.
fn device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The inverse of [`device`].
pub(super) fn device_of(device: u32) -> u64 {
    rustix::fs::makedev((device & 0xfff00) >> 8, (device & 0xff) | ((device >> 12) & 0xfff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_both_ways() {
        for (seconds, nanoseconds) in [(0, 0), (5, 1), (-1, 0), (-1, 999_999_999), (-7, 250_000_000)] {
            let made = timespec(Some(TimeOrNow::SpecificTime(time(seconds, nanoseconds))));
            assert_eq!((made.tv_sec, made.tv_nsec), (seconds, nanoseconds as i64));
        }
        assert_eq!(timespec(None).tv_nsec, UTIME_OMIT);
        assert_eq!(timespec(Some(TimeOrNow::Now)).tv_nsec, UTIME_NOW);
    }

    #[test]
    fn device_numbers_survive_both_ways() {
        for (major, minor) in [(1, 3), (8, 257), (0xfff, 0xf_ffff)] {
            let number = rustix::fs::makedev(major, minor);
            assert_eq!(device_of(device(number)), number);
        }
    }
}
