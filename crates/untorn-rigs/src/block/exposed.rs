//! A disk that this process serves: a FUSE file system with one file, and a loop device on that file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::SECTOR;
use super::device::{Mounted, unmount};
use super::filesystem::FileSystem;
use crate::error::{Error, Result};

/// The name of the one file.
const DISK: &str = "disk";
const DISK_INODE: INodeNo = INodeNo(2);
/// The attributes never change.
const FOREVER: Duration = Duration::from_secs(1 << 20);
/// Threads that serve requests: a flush may arrive while a write is being served.
const THREADS: usize = 3;

/// The file behind a disk.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) file: File,
    len: u64,
}

impl Image {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| Error::io("open", path, error))?;
        let len = file.metadata().map_err(|error| Error::io("read the length of", path, error))?.len();
        Ok(Image { file, len })
    }

    fn within(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

/// Executes a disk's requests, on several threads at once. Reads come from the image.
pub(super) trait Serve: Send + Sync + 'static {
    /// The number of requests that the kernel passes on concurrently. Without it, requests come one after the other,
    /// and thread switches limit the speed of small writes.
    const QUEUE: Option<u16> = None;

    fn image(&self) -> &Image;
    /// Stores bytes that the image has room for.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes a range of the image read as zeros.
    fn zero(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Makes completed requests durable.
    fn flush(&self) -> io::Result<()>;
}

/// A file system mounted from a served disk.
///
/// Let other processes use it, not this one. A thread that waits for a disk served by its own process can't be
/// killed: if the process were, it would wait forever.
///
/// Dropping it unmounts the file system, then the disk's own.
#[derive(Debug)]
pub(super) struct Exposed {
    /// Dropped first, because the file system must be unmounted before its disk disappears.
    mounted: Option<Mounted>,
    session: Option<BackgroundSession>,
    fuse: PathBuf,
}

impl Exposed {
    /// Serves the image and mounts the file system in it. `dir` is an existing directory for the two mount points; the
    /// second one is called `name`.
    pub(super) fn start(kind: FileSystem, serve: Arc<impl Serve>, dir: &Path, name: &str) -> Result<Self> {
        let (fuse, at) = (dir.join("fuse"), dir.join(name));
        for path in [&fuse, &at] {
            fs::create_dir_all(path).map_err(|error| Error::io("create the directory", path, error))?;
        }
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(format!("untorn-{name}"))];
        config.n_threads = Some(THREADS);
        let session = fuser::spawn_mount(Disk(serve), &fuse, &config);
        let session = session.map_err(|error| Error::io("mount the rig's disk at", &fuse, error))?;
        let mut exposed = Exposed { mounted: None, session: Some(session), fuse };
        // On an error, Drop removes the part that exists.
        let disk = exposed.fuse.join(DISK);
        let mounted = exposed.mounted.insert(Mounted::new(kind, &disk, &at)?);
        mounted.let_requests_overlap(&disk)?;
        Ok(exposed)
    }

    /// The mount point of the file system.
    pub(super) fn path(&self) -> &Path {
        self.mounted.as_ref().map_or(&self.fuse, Mounted::path)
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        drop(self.mounted.take());
        let gone = unmount(&self.fuse);
        // If the disk is still in use, its threads continue to serve it, and waiting for them could last forever.
        if let Some(session) = self.session.take()
            && gone
        {
            // The session ends with an error if another process unmounted it; that is fine here.
            let _ = session.join();
        }
    }
}

/// The FUSE file system.
struct Disk<S>(Arc<S>);

impl<S: Serve> Disk<S> {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            DISK_INODE => (FileType::RegularFile, 0o600, self.0.image().len),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / SECTOR,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

fn answer(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

impl<S: Serve> Filesystem for Disk<S> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if let Some(queue) = S::QUEUE {
            // A kernel without either is only slower.
            let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
            let _ = config.set_max_background(queue);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(DISK_INODE) {
            Some(attributes) if parent == INodeNo::ROOT && name == DISK => {
                reply.entry(&FOREVER, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The disk must not have its own page cache, and requests may overtake each other.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let image = self.0.image();
        let len = u64::from(size).min(image.len.saturating_sub(offset));
        let mut bytes = vec![0; len as usize];
        match image.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if !self.0.image().within(offset, data.len() as u64) {
            return reply.error(Errno::ENOSPC);
        }
        match self.0.write(offset, data) {
            // A write is as long as its message, whose length has 32 bits.
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.0.flush());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Closing a descriptor makes nothing durable.
        reply.ok();
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, len: u64, mode: i32, reply: ReplyEmpty) {
        // The loop driver punches holes for discards and zeroes ranges for "write zeroes"; both leave zeros.
        let zeroing = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::ZERO_RANGE;
        if mode as u32 & zeroing.bits() == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        if !self.0.image().within(offset, len) {
            return reply.error(Errno::ENOSPC);
        }
        answer(reply, self.0.zero(offset, len));
    }
}
