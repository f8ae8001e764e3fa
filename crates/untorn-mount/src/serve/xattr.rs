//! Extended attributes. Those of untorn itself are hidden: for programs they do not exist, and none can be made. Some
//! names mean something else, and no list has them, so no copy of a file gets them:
//!
//! - `user.untorn.sync` is a question that commits all files, because `sync` and `syncfs` send no request.
//! - `user.untorn.atomic` says of a file of a boost mount that it is atomic.
//! - `user.untorn.commit_log` says how large the commit log of a file is.
//! - `user.untorn.source` says where the source of a file is, for readers of its commit log.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;

use fuser::ReplyXattr;
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use super::Server;
use super::managed::{COMMIT_LOG, MARK, SOURCE};
use super::names::DEFAULT_ACL;
use super::nodes::{Lack, Node, ROOT, number};

/// The names of untorn's own attributes begin with this.
const HIDDEN: &[u8] = b"user.untorn";
/// The question for this attribute, of any file or directory, is answered after all files of the mount are committed.
const SYNC: &[u8] = b"user.untorn.sync";
/// The attribute that the kernel asks for before a write, to take it off.
const CAPABILITY: &str = "security.capability";
/// The kernel's limits.
const MOST_VALUE: usize = 1 << 16;
const MOST_NAMES: usize = 1 << 16;

/// Whether a question for an attribute is the one that commits all files.
pub(super) fn is_sync(name: &OsStr) -> bool {
    name.as_bytes() == SYNC
}

fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(HIDDEN)
}

fn path(node: &Node) -> String {
    format!("/proc/self/fd/{}", number(node.as_fd()))
}

/// The names that are not hidden.
fn without_hidden(names: &[u8]) -> Vec<u8> {
    let shown = names.split_inclusive(|&byte| byte == 0).filter(|name| !is_hidden(name));
    shown.flatten().copied().collect()
}

/// The answer to a program that has room for so many bytes; all of it, if it only asks how many there are.
fn fitting(found: Vec<u8>, room: usize) -> Result<Vec<u8>, Errno> {
    if room != 0 && found.len() > room { Err(Errno::RANGE) } else { Ok(found) }
}

impl Server {
    pub(super) fn attribute(&self, node: &Node, name: &OsStr, room: usize) -> Result<Vec<u8>, Errno> {
        if self.no_xattr {
            return Err(Errno::NOSYS);
        }
        if name == MARK {
            return fitting(self.mark(node)?, room);
        }
        if name == COMMIT_LOG {
            return fitting(self.commit_log(node)?, room);
        }
        if name == SOURCE {
            return fitting(self.source_of(node)?, room);
        }
        if is_hidden(name.as_bytes()) {
            return Err(Errno::NODATA);
        }
        if name == CAPABILITY && node.lacks(Lack::Capability, self.lifetime) {
            return Err(Errno::NODATA);
        }
        let mut value = vec![0; if room == 0 { MOST_VALUE } else { room.min(MOST_VALUE) }];
        let len = rustix::fs::getxattr(path(node), name, &mut value[..])?;
        value.truncate(len);
        fitting(value, room)
    }

    /// Makes everything durable that the server has, and answers. It may take long, and needs server threads for what
    /// the kernel sends, so it has a thread of its own.
    pub(super) fn answer_sync(server: &Arc<Server>, process: u32, reply: ReplyXattr) {
        let own = server.clone();
        let work = move || match own.sync_all(process) {
            Ok(()) => reply.data(b"1"),
            Err(error) => reply.error(super::requests::errno(error)),
        };
        // If no thread can be had, the reply is dropped, which answers EIO.
        if let Err(error) = thread::Builder::new().name("untorn-sync".to_owned()).spawn(work) {
            tracing::error!(%error, "cannot start a thread for a sync");
        }
    }

    /// Commits every managed file, and syncs the file system of the source, which has all others. The first error is
    /// that of a file; the others are committed all the same.
    fn sync_all(&self, process: u32) -> Result<(), Errno> {
        let mut result = Ok(());
        for open in self.handles.files() {
            if let Some(managed) =
                open.managed.as_ref().filter(|managed| managed.is_chosen() && (self.writeback || managed.is_mapped()))
            {
                result = result.and(self.pull(&open.node, managed, process));
            }
        }
        result = result.and(self.managing.sync_all());
        let root = self.descriptors.reopen(&*self.nodes.get(ROOT)?, OFlags::RDONLY | OFlags::DIRECTORY)?;
        result.and(rustix::fs::syncfs(&root))
    }

    pub(super) fn attribute_names(&self, node: &Node, room: usize) -> Result<Vec<u8>, Errno> {
        if self.no_xattr {
            return Err(Errno::NOSYS);
        }
        let mut names = vec![0; MOST_NAMES];
        let len = rustix::fs::listxattr(path(node), &mut names[..])?;
        fitting(without_hidden(&names[..len]), room)
    }

    pub(super) fn set_attribute(&self, node: &Node, name: &OsStr, value: &[u8], flags: i32) -> Result<(), Errno> {
        if self.no_xattr {
            return Err(Errno::NOSYS);
        }
        if name == MARK {
            return self.set_mark(node, value);
        }
        if name == COMMIT_LOG {
            return self.set_commit_log(node, value);
        }
        if is_hidden(name.as_bytes()) {
            return Err(Errno::PERM);
        }
        rustix::fs::setxattr(path(node), name, value, XattrFlags::from_bits_retain(flags as u32))?;
        if name == CAPABILITY {
            node.set_lacks(Lack::Capability, false);
        } else if name == DEFAULT_ACL {
            node.set_lacks(Lack::DefaultAcl, false);
        }
        self.managing.attributes_were_set(node.key);
        Ok(())
    }

    pub(super) fn remove_attribute(&self, node: &Node, name: &OsStr) -> Result<(), Errno> {
        if self.no_xattr {
            return Err(Errno::NOSYS);
        }
        if name == MARK {
            self.mark(node)?;
            return self.set_mark(node, b"0");
        }
        if name == COMMIT_LOG {
            self.commit_log(node)?;
            return self.set_commit_log(node, b"0");
        }
        if is_hidden(name.as_bytes()) {
            return Err(Errno::NODATA);
        }
        rustix::fs::removexattr(path(node), name)?;
        self.managing.attributes_were_set(node.key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_are_left_out_of_a_list() {
        let names = b"user.a\0user.untorn\0user.untorn.atomic\0security.selinux\0";
        assert_eq!(without_hidden(names), b"user.a\0security.selinux\0");
        assert!(without_hidden(b"").is_empty());
        assert_eq!(fitting(vec![1; 8], 7), Err(Errno::RANGE));
        assert_eq!(fitting(vec![1; 8], 0).map(|found| found.len()), Ok(8));
    }
}
