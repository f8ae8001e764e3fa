//! Open files: what the kernel calls a file handle.
//!
//! # Invariants
//!
//! 1. A handle has one description of the source, without `O_DIRECT`, `O_SYNC` and `O_DSYNC`. `O_APPEND` is a property
//!    of each write: a program may change the flag, and the kernel writes pages of a mapping back by any handle.
//! 2. A handle for writing can also read where the file allows that: the kernel fills up pages by it if it caches
//!    writes, and the log uses the same description.
//! 3. A handle with `O_DIRECT`, or for synchronous writes alone, *passes* the pages that the kernel has: in mode boost,
//!    on a kernel that can map the file all the same. Each read and write is a request. A write takes the pages that it
//!    changes from the kernel. After a synchronous write by it the kernel sends no FSYNC: the WRITE says that
//!    it is one, and its answer waits until the bytes are durable. Other handles leave these flags to the kernel, which
//!    sends WRITE and FSYNC.
//! 4. The kernel has writes by handles that pass its pages run at the same time, unless one appends, makes the file
//!    longer, or a program has the file open with pages. The opening of such a program waits for them. So a write by
//!    such a handle waits for no opening: an atomic file, whose sync may need one, has no writer of this kind.
//! 5. A number is given to one handle at a time; a request with another number is answered EBADF.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use super::credentials::Caller;
use super::directories::Stream;
use super::managed::Managed;
use super::names::allowed;
use super::nodes::{Lack, Node, key_of, number};
use super::{Server, lock};

/// An open file.
pub(super) struct Open {
    pub(super) node: Arc<Node>,
    descriptor: Arc<OwnedFd>,
    pub(super) writable: bool,
    /// It passes the pages that the kernel has of the file.
    pub(super) passes: bool,
    /// The file, if it is managed and this handle writes to it.
    pub(super) managed: Option<Arc<Managed>>,
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The file or directory that a number stands for.
pub(super) enum Handle {
    File(Arc<Open>),
    Directory(Arc<Stream>),
}

/// All handles, by number.
#[derive(Default)]
pub(super) struct Handles {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    all: Vec<Option<Handle>>,
    free: Vec<usize>,
}

impl Handles {
    pub(super) fn add(&self, handle: Handle) -> u64 {
        let mut table = lock(&self.table);
        let place = table.free.pop().unwrap_or(table.all.len());
        if place == table.all.len() {
            table.all.push(None);
        }
        table.all[place] = Some(handle);
        place as u64
    }

    pub(super) fn file(&self, number: u64) -> Result<Arc<Open>, Errno> {
        match lock(&self.table).all.get(number as usize) {
            Some(Some(Handle::File(open))) => Ok(open.clone()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn directory(&self, number: u64) -> Result<Arc<Stream>, Errno> {
        match lock(&self.table).all.get(number as usize) {
            Some(Some(Handle::Directory(stream))) => Ok(stream.clone()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn remove(&self, number: u64) -> Option<Handle> {
        let mut table = lock(&self.table);
        let handle = table.all.get_mut(number as usize)?.take()?;
        table.free.push(number as usize);
        Some(handle)
    }

    /// Every open file.
    pub(super) fn files(&self) -> Vec<Arc<Open>> {
        let table = lock(&self.table);
        let open = |handle: &Option<Handle>| match handle {
            Some(Handle::File(open)) => Some(open.clone()),
            _ => None,
        };
        table.all.iter().filter_map(open).collect()
    }
}

/// The flags of a program that the source sees. `O_TRUNC` comes as a SETATTR, for a new file not at all.
fn passed_on(flags: OFlags) -> OFlags {
    let mut wanted = flags & (OFlags::RWMODE | OFlags::NOATIME);
    if wanted & OFlags::RWMODE == OFlags::WRONLY {
        wanted = (wanted - OFlags::RWMODE) | OFlags::RDWR;
    }
    wanted
}

pub(super) fn writes(flags: OFlags) -> bool {
    flags & OFlags::RWMODE != OFlags::RDONLY
}

impl Server {
    /// Opens a file for a program.
    pub(super) fn open_file(&self, node: &Arc<Node>, flags: OFlags) -> Result<Arc<Open>, Errno> {
        if !node.is_regular() {
            // The kernel opens devices, pipes and sockets itself.
            return Err(Errno::NXIO);
        }
        self.settle_sidecar(node)?;
        let wanted = passed_on(flags);
        let (descriptor, is_whole) = match self.descriptors.reopen(node, wanted) {
            Ok(descriptor) => (Arc::new(descriptor), wanted & OFlags::RWMODE == OFlags::RDWR),
            // The file may be written to and not read.
            Err(Errno::ACCESS) if wanted & OFlags::RWMODE != flags & OFlags::RWMODE => {
                let wanted = (wanted - OFlags::RWMODE) | flags & OFlags::RWMODE;
                (Arc::new(self.descriptors.reopen(node, wanted)?), false)
            }
            // The file may be appended to and not changed (`chattr +a`).
            Err(Errno::PERM) if flags.contains(OFlags::APPEND) => {
                let wanted = flags & (OFlags::RWMODE | OFlags::NOATIME | OFlags::APPEND);
                (Arc::new(self.descriptors.reopen(node, wanted)?), false)
            }
            Err(errno) => return Err(errno),
        };
        let own = is_whole.then_some(&descriptor);
        let managed = if writes(flags) { self.manage(node, own, false)? } else { None };
        Ok(Arc::new(self.opening(node, descriptor, flags, managed)))
    }

    fn opening(
        &self,
        node: &Arc<Node>,
        descriptor: Arc<OwnedFd>,
        flags: OFlags,
        managed: Option<Arc<Managed>>,
    ) -> Open {
        let passes = self.pages.passes(flags) && managed.as_ref().is_none_or(|managed| managed.add_passing());
        Open { node: node.clone(), descriptor, writable: writes(flags), passes, managed }
    }

    /// Creates a file, or opens the one that is there by now.
    pub(super) fn create_file(
        &self,
        caller: Caller,
        parent: &Node,
        name: &std::ffi::OsStr,
        (mode, umask): (u32, u32),
        flags: OFlags,
    ) -> Result<(Arc<Open>, rustix::fs::Stat), Errno> {
        allowed(name)?;
        let mode = self.mode_for(parent, mode, umask);
        let wanted = passed_on(flags);
        let how = wanted | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let created = caller.act(self, || rustix::fs::openat(parent, name, how, mode));
        let descriptor = created.map_err(|errno| match errno {
            // The kernel looks for the name again and opens the file that is there. It locks its pages only then.
            Errno::EXIST if !flags.contains(OFlags::EXCL) => Errno::STALE,
            errno => errno,
        })?;
        let status = rustix::fs::fstat(&descriptor)?;
        let node = match self.nodes.count(key_of(&status)) {
            Some(node) => node,
            None => {
                let place = number(descriptor.as_fd());
                let how = OFlags::PATH | OFlags::CLOEXEC;
                let own = rustix::fs::openat(&self.descriptors, place.as_str(), how, Mode::empty())?;
                self.nodes.remember(own, &status)
            }
        };
        node.was_found_as(parent.number, name);
        // It is new, so it has no mark, and no rights of its own.
        node.set_settled();
        node.set_lacks(Lack::Capability, true);
        node.set_lacks(Lack::Mark, true);
        let opened = self.open_created(&node, Arc::new(descriptor), flags);
        if opened.is_err() {
            self.nodes.forget(node.number, 1);
        }
        Ok((opened?, status))
    }

    fn open_created(&self, node: &Arc<Node>, descriptor: Arc<OwnedFd>, flags: OFlags) -> Result<Arc<Open>, Errno> {
        let managed = if writes(flags) { self.manage(node, Some(&descriptor), true)? } else { None };
        Ok(Arc::new(self.opening(node, descriptor, flags, managed)))
    }

    /// A handle is gone.
    pub(super) fn close(&self, open: &Open) {
        if let Some(managed) = &open.managed {
            if open.passes {
                managed.remove_passing();
            }
            self.managing.released(managed);
            if !managed.has_writers() && managed.take_pulled() {
                self.pulls.let_go(open.node.number);
            }
        }
    }

    pub(super) fn open_directory(&self, node: &Arc<Node>) -> Result<Arc<Stream>, Errno> {
        let descriptor = self.descriptors.reopen(node, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Arc::new(Stream::new(node.clone(), Dir::new(descriptor)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_sees_the_flags_that_are_its_own() {
        let all = OFlags::WRONLY | OFlags::APPEND | OFlags::DIRECT | OFlags::DSYNC | OFlags::NONBLOCK | OFlags::CREATE;
        assert_eq!(passed_on(all), OFlags::RDWR);
        assert_eq!(passed_on(OFlags::RDONLY | OFlags::NOATIME), OFlags::RDONLY | OFlags::NOATIME);
    }
}
