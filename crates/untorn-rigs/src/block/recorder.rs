//! A disk that remembers what it was asked: a FUSE file system with one file, and a loop device on that.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};

use super::SECTOR;
use super::device::{Mounted, unmount};
use super::filesystem::FileSystem;
use super::log::{self, Log, Position};
use super::sparse;
use crate::error::{Error, Result};

/// The name of the one file.
const DISK: &str = "disk";
const DISK_INODE: INodeNo = INodeNo(2);
/// The attributes never change.
const FOREVER: Duration = Duration::from_secs(1 << 20);
/// Threads that serve requests: a flush may arrive while a write is being served, and the log must see it.
const THREADS: usize = 3;

/// A mounted file system whose disk is being recorded.
///
/// Let other processes use it, not this one. A thread that waits for a disk served by its own process can't be killed: if
/// the process were, it would wait forever.
///
/// Dropping it unmounts the file system, then the recorder's own.
#[derive(Debug)]
pub struct Recorder {
    /// Dropped first: the file system must let go of its disk before the disk may go.
    mounted: Option<Mounted>,
    session: Option<BackgroundSession>,
    fuse: PathBuf,
    record: Arc<Record>,
}

/// Reads the position of a running record.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Record>);

impl Clock {
    /// The instant after everything that has reached the disk so far; no instant of the log once it was taken.
    pub fn now(&self) -> Position {
        self.0.log().as_ref().map_or(Position::MAX, Log::position)
    }
}

impl Recorder {
    /// Mounts the file system in `image` and records what it does to its disk, from the mount on. The image changes as a
    /// disk does. `dir` is an existing directory for the mount points.
    pub fn start(kind: FileSystem, image: &Path, dir: &Path) -> Result<Self> {
        let (fuse, at) = (dir.join("fuse"), dir.join("recorded"));
        for path in [&fuse, &at] {
            fs::create_dir_all(path).map_err(|error| Error::io("create the directory", path, error))?;
        }
        let file = File::options().read(true).write(true).open(image);
        let file = file.map_err(|error| Error::io("open", image, error))?;
        let len = file.metadata().map_err(|error| Error::io("read the length of", image, error))?.len();
        let record = Arc::new(Record { file, len, log: Mutex::new(Some(Log::default())) });
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("untorn-recorder".to_owned())];
        config.n_threads = Some(THREADS);
        let session = fuser::spawn_mount(Disk(record.clone()), &fuse, &config);
        let session = session.map_err(|error| Error::io("mount the recorder at", &fuse, error))?;
        let mut recorder = Recorder { mounted: None, session: Some(session), fuse, record };
        // On an error the half that is there is taken down by Drop.
        let disk = recorder.fuse.join(DISK);
        let mounted = recorder.mounted.insert(Mounted::new(kind, &disk, &at)?);
        mounted.let_requests_overlap(&disk)?;
        Ok(recorder)
    }

    /// Where the recorded file system is mounted.
    pub fn path(&self) -> &Path {
        self.mounted.as_ref().map_or(&self.fuse, Mounted::path)
    }

    /// A view of the position for whoever has to note it.
    pub fn clock(&self) -> Clock {
        Clock(self.record.clone())
    }

    /// Ends the record. The file system is unmounted, and nothing of that is in the log.
    pub fn finish(self) -> Log {
        // Taken before the file system is unmounted: what follows goes unrecorded.
        self.record.log().take().unwrap_or_default()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.mounted.take());
        let gone = unmount(&self.fuse);
        // If it is still in use, its threads go on serving whoever that is, and waiting for them could last forever.
        if let Some(session) = self.session.take()
            && gone
        {
            // The session ends with an error if it was unmounted by others, which is what was wanted.
            let _ = session.join();
        }
    }
}

#[derive(Debug)]
struct Record {
    file: File,
    len: u64,
    /// `None` once the record has ended.
    log: Mutex<Option<Log>>,
}

impl Record {
    fn log(&self) -> MutexGuard<'_, Option<Log>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request between its two events. A disk with an error of its own would prove nothing, so one that fails
    /// stays without an end, and the file system is told.
    fn serve(&self, request: log::Request, act: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let number = self.log().as_mut().map(|log| log.begin(request));
        act(&self.file)?;
        if let (Some(log), Some(number)) = (self.log().as_mut(), number) {
            log.end(number);
        }
        Ok(())
    }

    fn within(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

/// What FUSE sees.
struct Disk(Arc<Record>);

impl Disk {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            DISK_INODE => (FileType::RegularFile, 0o600, self.0.len),
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

impl Filesystem for Disk {
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
        // Nothing may be held back in a page cache of the recorder's own, and requests may overtake each other.
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
        let len = u64::from(size).min(self.0.len.saturating_sub(offset));
        let mut bytes = vec![0; len as usize];
        match self.0.file.read_exact_at(&mut bytes, offset) {
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
        if !self.0.within(offset, data.len() as u64) {
            return reply.error(Errno::ENOSPC);
        }
        let request = log::Request::Write { offset, bytes: data.into() };
        match self.0.serve(request, |file| file.write_all_at(data, offset)) {
            // A write is as long as its message, whose length has 32 bits.
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // The image itself need not outlive this machine; what matters is what the log says.
        answer(reply, self.0.serve(log::Request::Flush, |_| Ok(())));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The close of a descriptor, which makes nothing durable.
        reply.ok();
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, len: u64, mode: i32, reply: ReplyEmpty) {
        // The loop driver punches holes for discards and zeroes ranges for "write zeroes"; both leave zeros.
        let zeroing = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::ZERO_RANGE;
        if mode as u32 & zeroing.bits() == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        if !self.0.within(offset, len) {
            return reply.error(Errno::ENOSPC);
        }
        let request = log::Request::Zero { offset, len };
        answer(reply, self.0.serve(request, |file| sparse::write_zeros(file, offset, len)));
    }
}
