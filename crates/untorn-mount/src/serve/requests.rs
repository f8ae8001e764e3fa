//! The requests of the kernel, as fuser hands them over, and their answers. No decision is made here but which
//! capabilities of the kernel to use.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{Access, AtFlags, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::Server;
use super::attributes::Changes;
use super::credentials::Caller;
use super::handles::{Handle, Open};
use super::locks::Range;
use super::nodes::{Node, number};
use super::pages::Changing;
use super::xattr::is_sync;

/// The most bytes of a READ or WRITE, which is the kernel's own default limit.
const MOST: u32 = 1 << 20;

/// A name that does not exist.
const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

pub(super) struct Requests(pub(super) Arc<Server>);

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(match errno {
        // The server's limit is the mount's own, and not one of the program's.
        Errno::MFILE => Errno::NFILE.raw_os_error(),
        errno => errno.raw_os_error(),
    })
}

pub(super) fn answer(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

impl Requests {
    fn node(&self, number: INodeNo) -> Result<Arc<Node>, Errno> {
        self.0.nodes.get(number.0)
    }

    fn entry(&self, found: Result<(Arc<Node>, Stat), Errno>, reply: ReplyEntry) {
        match found {
            Ok((node, status)) => {
                let attributes = self.0.attributes(&node, &status);
                reply.entry(&self.0.lifetime, &attributes, Generation(node.generation));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// A kernel that caches writes asks for attributes by the handle before a write, once they are old. A program that
    /// writes until there is no room would never end if its writes were told nothing before a sync.
    fn tell_unwritten(&self, handle: FileHandle) -> Result<(), Errno> {
        match self.0.handles.file(handle.0) {
            Ok(open) if self.0.writeback && open.writable => open.node.take_unwritten(),
            _ => Ok(()),
        }
    }

    fn flags_for(&self, open: &Open) -> FopenFlags {
        let mut keep = if self.0.keeps_pages(open) { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        if open.passes {
            keep |= FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        }
        if self.0.writeback || self.0.locks.has_seen(open.node.key) { keep } else { keep | FopenFlags::FOPEN_NOFLUSH }
    }
}

impl Filesystem for Requests {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Not FUSE_ATOMIC_O_TRUNC: some time after the answer to OPEN the kernel sets the length to zero again, and
        // would forget what another program wrote meanwhile (docs/kernel-facts.md).
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        if !self.0.locks.are_local() {
            wanted |= InitFlags::FUSE_POSIX_LOCKS;
        }
        if self.0.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        } else if !self.0.pages.is_ours() {
            wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
        }
        if self.0.as_root && !self.0.no_xattr {
            // The kernel checks permissions, and needs the access control lists for that.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        for flag in wanted.iter() {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel does not offer this capability");
            }
        }
        self.0.pages.ask(config);
        // The nearest that is possible is set if this is not.
        if let Err(nearest) = config.set_max_write(MOST) {
            let _ = config.set_max_write(nearest);
        }
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.node(parent).and_then(|parent| self.0.find(&parent, name)) {
            // The kernel remembers that too.
            Err(Errno::NOENT) => reply.entry(&self.0.lifetime, &NOTHING, Generation(0)),
            found => self.entry(found, reply),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.0.nodes.forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let told = handle.map_or(Ok(()), |handle| self.tell_unwritten(handle));
        match told.and_then(|()| self.node(number)).and_then(|node| Ok((node.status()?, node))) {
            Ok((status, node)) => reply.attr(&self.0.lifetime, &self.0.attributes(&node, &status)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // The kernel sends the time of the last change only where it keeps the times itself.
        let only_modified = (mode, user, group, size) == (None, None, None, None) && accessed.is_none();
        let is_write_back = changed.is_some() && only_modified;
        let changes = Changes { mode, user, group, size, accessed, modified, is_write_back };
        let open = handle.and_then(|handle| self.0.handles.file(handle.0).ok());
        let set = |node: Arc<Node>| {
            let status = self.0.set_attributes(caller(request), &node, open.as_deref(), changes)?;
            Ok((status, node))
        };
        match self.node(number).and_then(set) {
            Ok((status, node)) => reply.attr(&self.0.lifetime, &self.0.attributes(&node, &status)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.node(number).and_then(|node| self.0.target(&node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let parent = self.node(parent);
        let make = |parent: Arc<Node>| self.0.make_node(caller(request), &parent, name, (mode, umask), device);
        self.entry(parent.and_then(make), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let parent = self.node(parent);
        let make = |parent: Arc<Node>| self.0.make_directory(caller(request), &parent, name, (mode, umask));
        self.entry(parent.and_then(make), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.node(parent).and_then(|parent| self.0.remove_file(&parent, name)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.node(parent).and_then(|parent| self.0.remove_directory(&parent, name)));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let parent = self.node(parent);
        self.entry(parent.and_then(|parent| self.0.make_symlink(caller(request), &parent, name, target)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = RenameFlags::from_bits_retain(flags.bits());
        let nodes = self.node(parent).and_then(|parent| Ok((parent, self.node(to)?)));
        answer(reply, nodes.and_then(|(parent, to)| self.0.rename((&parent, name), (&to, new_name), flags)));
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let nodes = self.node(number).and_then(|node| Ok((node, self.node(parent)?)));
        self.entry(nodes.and_then(|(node, parent)| self.0.make_link(&node, &parent, name)), reply);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let flags = OFlags::from_bits_retain(flags.0 as u32);
        match self.node(number).and_then(|node| self.0.open_file(&node, flags)) {
            Ok(open) => {
                let how = self.flags_for(&open);
                reply.opened(FileHandle(self.0.handles.add(Handle::File(open))), how);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = OFlags::from_bits_retain(flags as u32);
        let made = self
            .node(parent)
            .and_then(|parent| self.0.create_file(caller(request), &parent, name, (mode, umask), flags));
        match made {
            Ok((open, status)) => {
                let attributes = self.0.attributes(&open.node, &status);
                let generation = Generation(open.node.generation);
                let how = self.flags_for(&open);
                let handle = FileHandle(self.0.handles.add(Handle::File(open)));
                reply.created(&self.0.lifetime, &attributes, generation, handle, how);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.handles.file(handle.0) {
            Ok(open) => self.0.read_file(&open, offset, size as usize, |read| match read {
                Ok(bytes) => reply.data(bytes),
                Err(error) => reply.error(errno(error)),
            }),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let drops = how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // The kernel writes a page back by any handle, to the page's place. When it caches writes, it decides itself
        // where the end is.
        let from_cache = how.contains(WriteFlags::FUSE_WRITE_CACHE) || self.0.writeback;
        let flags = OFlags::from_bits_retain(flags.0 as u32);
        let appends = !from_cache && flags.contains(OFlags::APPEND);
        let open = self.0.handles.file(handle.0);
        if how.contains(WriteFlags::FUSE_WRITE_CACHE)
            && let Ok(Some(managed)) = open.as_ref().map(|open| &open.managed)
        {
            managed.set_mapped();
        }
        let passes = open.as_ref().is_ok_and(|open| open.passes) && !from_cache;
        let how = if passes && !appends { Changing::Together } else { Changing::Alone };
        let write = |open: &Arc<Open>| self.0.write_file(caller(request), open, offset, data, (appends, drops), how);
        let written = open.and_then(|open| {
            let count = write(&open).inspect_err(|&error| open.node.failed_to_write(error))?;
            Ok((open, count as u32))
        });
        match written {
            Ok((open, count)) if passes && flags.contains(OFlags::DSYNC) => {
                Server::answer_synchronous(&self.0, open, !flags.contains(OFlags::SYNC), request.pid(), (count, reply));
            }
            Ok((_, count)) => reply.written(count),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _: &Request, number: INodeNo, _: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        // A closing program gives its locks up.
        let closed = self.node(number).map(|node| self.0.locks.closed(node.key, owner.0));
        // The kernel asks no more after this answer, and takes it for a success.
        answer(reply, if self.0.locks.are_local() { Err(Errno::NOSYS) } else { closed });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        match self.0.handles.remove(handle.0) {
            Some(Handle::File(open)) => {
                self.0.locks.handle_closed(open.node.key, handle.0);
                self.0.close(&open);
                reply.ok();
            }
            _ => reply.error(errno(Errno::BADF)),
        }
    }

    fn fsync(&self, request: &Request, _: INodeNo, handle: FileHandle, only_data: bool, reply: ReplyEmpty) {
        self.0.pulls.count_request(false);
        match self.0.handles.file(handle.0) {
            Ok(open) => Server::sync(&self.0, open, only_data, request.pid(), |synced| answer(reply, synced)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.node(number).and_then(|node| self.0.open_directory(&node)) {
            Ok(stream) => {
                reply.opened(FileHandle(self.0.handles.add(Handle::Directory(stream))), FopenFlags::empty());
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, from: u64, mut reply: ReplyDirectory) {
        match self.0.handles.directory(handle.0).and_then(|stream| self.0.list(&stream, from, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(&self, _: &Request, _: INodeNo, handle: FileHandle, from: u64, mut reply: ReplyDirectoryPlus) {
        let stream = self.0.handles.directory(handle.0);
        match stream.and_then(|stream| self.0.list_with_attributes(&stream, from, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        match self.0.handles.remove(handle.0) {
            Some(_) => reply.ok(),
            None => reply.error(errno(Errno::BADF)),
        }
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.0.handles.directory(handle.0).and_then(|stream| self.0.sync_directory(&stream)));
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        match self.node(number).and_then(|node| self.0.file_system(&node)) {
            Ok(found) => reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                found.f_bsize as u32,
                found.f_namelen as u32,
                found.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.node(number).and_then(|node| self.0.set_attribute(&node, name, value, flags)));
    }

    fn getxattr(&self, request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if is_sync(name) {
            // Tools as getfattr ask for the length first; the question for the value commits.
            let is_for_the_length = size == 0;
            return if is_for_the_length { reply.size(1) } else { Server::answer_sync(&self.0, request.pid(), reply) };
        }
        let found = self.node(number).and_then(|node| self.0.attribute(&node, name, size as usize));
        answer_bytes(found, size, reply);
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let found = self.node(number).and_then(|node| self.0.attribute_names(&node, size as usize));
        answer_bytes(found, size, reply);
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.node(number).and_then(|node| self.0.remove_attribute(&node, name)));
    }

    /// The kernel asks only without `default_permissions`, when all requests are of the server's own user.
    fn access(&self, _: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        use std::os::fd::AsFd;
        let mask = Access::from_bits_retain(mask.bits() as u32);
        let allowed = self.node(node).and_then(|node| {
            let name = number(node.as_fd());
            rustix::fs::accessat(&self.0.descriptors, name.as_str(), mask, AtFlags::EACCESS)
        });
        answer(reply, allowed);
    }

    fn getlk(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        self.0.locks.count_request();
        let range = Range { start, end, kind };
        match self.node(number).and_then(|node| self.0.get_lock(&node, owner.0, range)) {
            Ok((found, process)) => reply.locked(found.start, found.end, found.kind, process),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        self.0.locks.count_request();
        match self.node(number) {
            Ok(node) => {
                let range = Range { start, end, kind };
                self.0.set_lock(&node, (owner.0, handle.0), range, sleep.then(|| request.pid()), reply);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.0.handles.file(handle.0).and_then(|open| self.0.allocate(&open, mode, offset, len)));
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.0.handles.file(handle.0).and_then(|open| self.0.seek(&open, offset, whence)) {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let files = self.0.handles.file(from.0).and_then(|from| Ok((from, self.0.handles.file(to.0)?)));
        match files.and_then(|(from, to)| self.0.copy_range((&from, from_offset), (&to, to_offset), len)) {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(errno(error)),
        }
    }
}

/// The answer to who asks for bytes, or only how many there are.
fn answer_bytes(found: Result<Vec<u8>, Errno>, room: u32, reply: ReplyXattr) {
    match found {
        Ok(bytes) if room == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}
