//! Extended attributes. Those of untorn itself are hidden: for programs they do not exist, and none can be made.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::Server;
use super::nodes::{Node, number};

/// The names of untorn's own attributes begin with this.
const HIDDEN: &[u8] = b"user.untorn";
/// The kernel's limits.
const MOST_VALUE: usize = 1 << 16;
const MOST_NAMES: usize = 1 << 16;

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
        if is_hidden(name.as_bytes()) {
            return Err(Errno::NODATA);
        }
        let mut value = vec![0; if room == 0 { MOST_VALUE } else { room.min(MOST_VALUE) }];
        let len = rustix::fs::getxattr(path(node), name, &mut value[..])?;
        value.truncate(len);
        fitting(value, room)
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
        if is_hidden(name.as_bytes()) {
            return Err(Errno::PERM);
        }
        rustix::fs::setxattr(path(node), name, value, XattrFlags::from_bits_retain(flags as u32))?;
        self.managing.attributes_were_set(node.key);
        Ok(())
    }

    pub(super) fn remove_attribute(&self, node: &Node, name: &OsStr) -> Result<(), Errno> {
        if self.no_xattr {
            return Err(Errno::NOSYS);
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
