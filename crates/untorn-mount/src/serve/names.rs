//! Names: looking them up, making and removing them, renames.
//!
//! # Invariants
//!
//! 1. No name is followed: a symbolic link is a file like any other, and the kernel resolves it in the mount.
//! 2. The directories of untorn's own do not exist for programs, and no program can make a file of their name. A
//!    directory is empty for `rmdir` if it holds only an empty one of these.
//! 3. The log is told of a rename or a removal of a managed file before it happens ([`managed`](super::managed)).

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::attributes::device_of;
use super::credentials::Caller;
use super::managed::{Beside, Move};
use super::nodes::{Lack, Node, key_of, number};
use super::{Server, is_hidden};

/// The attribute by which a directory says what its new files are like, instead of the umask.
pub(super) const DEFAULT_ACL: &str = "system.posix_acl_default";

impl Server {
    /// The node of a name, counted once more, and its attributes.
    pub(super) fn find(&self, parent: &Node, name: &OsStr) -> Result<(Arc<Node>, Stat), Errno> {
        if is_hidden(name) {
            return Err(Errno::NOENT);
        }
        if parent.is_sealed() {
            self.check_seal(parent)?;
        }
        let status = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if let Some(node) = self.nodes.count(key_of(&status)) {
            node.was_found_as(parent.number, name);
            return Ok((node, status));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        let status = rustix::fs::fstat(&descriptor)?;
        let node = self.nodes.remember(descriptor, &status);
        node.was_found_as(parent.number, name);
        if node.kind == FileType::Directory {
            self.seal_if_left(&node);
        }
        Ok((node, status))
    }

    /// The mode of a new file. The server's own umask is empty.
    pub(super) fn mode_for(&self, parent: &Node, mode: u32, umask: u32) -> Mode {
        let wanted = Mode::from_raw_mode(mode & 0o7777);
        let masked = wanted - Mode::from_raw_mode(umask & 0o777);
        if masked == wanted || self.no_xattr || parent.lacks(Lack::DefaultAcl, self.lifetime) {
            return masked;
        }
        let path = format!("/proc/self/fd/{}", number(parent.as_fd()));
        let mut nothing: [u8; 0] = [];
        match rustix::fs::getxattr(path, DEFAULT_ACL, &mut nothing[..]) {
            Ok(len) if len > 0 => wanted,
            found => {
                parent.set_lacks(Lack::DefaultAcl, found == Err(Errno::NODATA));
                masked
            }
        }
    }

    pub(super) fn make_directory(
        &self,
        caller: Caller,
        parent: &Node,
        name: &OsStr,
        (mode, umask): (u32, u32),
    ) -> Result<(Arc<Node>, Stat), Errno> {
        allowed(name)?;
        let mode = self.mode_for(parent, mode, umask);
        caller.act(self, || rustix::fs::mkdirat(parent, name, mode))?;
        self.find(parent, name)
    }

    pub(super) fn make_node(
        &self,
        caller: Caller,
        parent: &Node,
        name: &OsStr,
        (mode, umask): (u32, u32),
        device: u32,
    ) -> Result<(Arc<Node>, Stat), Errno> {
        allowed(name)?;
        let kind = FileType::from_raw_mode(mode);
        let bits = self.mode_for(parent, mode, umask);
        let make = || rustix::fs::mknodat(parent, name, kind, bits, device_of(device));
        match kind {
            // The kernel has checked the right to make one, which goes with the identity of root.
            FileType::CharacterDevice | FileType::BlockDevice => make()?,
            _ => caller.act(self, make)?,
        }
        self.find(parent, name)
    }

    pub(super) fn make_symlink(
        &self,
        caller: Caller,
        parent: &Node,
        name: &OsStr,
        target: &Path,
    ) -> Result<(Arc<Node>, Stat), Errno> {
        allowed(name)?;
        caller.act(self, || rustix::fs::symlinkat(target, parent, name))?;
        self.find(parent, name)
    }

    pub(super) fn target(&self, node: &Node) -> Result<Vec<u8>, Errno> {
        rustix::fs::readlinkat(node, "", Vec::new()).map(std::ffi::CString::into_bytes)
    }

    pub(super) fn make_link(&self, node: &Node, parent: &Node, name: &OsStr) -> Result<(Arc<Node>, Stat), Errno> {
        allowed(name)?;
        // By the descriptor's own name, which needs no special right as an empty path does.
        let own = number(node.as_fd());
        let link = || rustix::fs::linkat(&self.descriptors, own.as_str(), parent, name, AtFlags::SYMLINK_FOLLOW);
        self.managing.link(node.key, || self.place_of(parent, name), link)?;
        self.find(parent, name)
    }

    pub(super) fn remove_file(&self, parent: &Node, name: &OsStr) -> Result<(), Errno> {
        if is_hidden(name) {
            return Err(Errno::NOENT);
        }
        let _held = self.hold(parent, name);
        let look = || {
            let status = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((status, self.place_of(parent, name)?))
        };
        let beside = self.beside(parent, name);
        self.managing.remove(look, || rustix::fs::unlinkat(parent, name, AtFlags::empty()))?;
        self.is_gone(beside);
        Ok(())
    }

    pub(super) fn remove_directory(&self, parent: &Node, name: &OsStr) -> Result<(), Errno> {
        if is_hidden(name) {
            return Err(Errno::NOENT);
        }
        let remove = || rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        match remove() {
            Err(Errno::NOTEMPTY) => {}
            done => return done,
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        let mut hidden = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if is_hidden(name) {
                hidden.push(name.to_owned());
            } else if name != "." && name != ".." {
                return Err(Errno::NOTEMPTY);
            }
        }
        for name in hidden {
            // An empty one only: this fails for a directory with a sidecar in it.
            match rustix::fs::unlinkat(&directory, &name, AtFlags::REMOVEDIR) {
                Err(Errno::EXIST) => return Err(Errno::NOTEMPTY),
                done => done?,
            }
        }
        remove()
    }

    pub(super) fn rename(
        &self,
        (parent, name): (&Node, &OsStr),
        (to, new_name): (&Node, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if is_hidden(name) {
            return Err(Errno::NOENT);
        }
        allowed(new_name)?;
        let _held = self.hold(to, new_name);
        let look = || {
            let over = match rustix::fs::statat(to, new_name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(over) => Some(over),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno),
            };
            Ok(Move {
                status: rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?,
                from: self.place_of(parent, name)?,
                over,
                to: self.place_of(to, new_name)?,
            })
        };
        let (moved, over) = (self.beside(parent, name), self.beside(to, new_name));
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        let rename = || {
            self.rename_in_source((parent, name), (to, new_name), flags)?;
            self.was_named(to, new_name);
            // Before the file is attached by its new name, which looks for the log there.
            self.has_moved(moved.as_ref(), to, new_name);
            if exchanges {
                self.was_named(parent, name);
                self.has_moved(over.as_ref(), parent, name);
            }
            Ok(())
        };
        self.managing.rename(look, flags, rename)?;
        if !exchanges {
            let is_other = |over: &Beside| moved.as_ref().is_none_or(|moved| !moved.is_same(over));
            self.is_gone(over.filter(is_other));
        }
        Ok(())
    }

    /// Keeps the node of a name open until the name is gone: without a name it could not be opened again.
    fn hold(&self, parent: &Node, name: &OsStr) -> Option<Arc<Node>> {
        if !self.nodes.has_closed() {
            return None;
        }
        let status = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        self.nodes.hold(key_of(&status))
    }

    /// A file got a name.
    fn was_named(&self, parent: &Node, name: &OsStr) {
        if let Ok(status) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.nodes.was_named(key_of(&status), parent.number, name);
        }
    }

    fn rename_in_source(
        &self,
        (parent, name): (&Node, &OsStr),
        (to, new_name): (&Node, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let rename = || {
            if flags.is_empty() {
                rustix::fs::renameat(parent, name, to, new_name)
            } else {
                rustix::fs::renameat_with(parent, name, to, new_name, flags)
            }
        };
        match rename() {
            // It replaces a directory that is empty for programs.
            Err(Errno::NOTEMPTY | Errno::EXIST) if flags.is_empty() => {
                self.remove_directory(to, new_name).map_err(|errno| match errno {
                    Errno::NOTDIR => Errno::EXIST,
                    errno => errno,
                })?;
                rename()
            }
            done => done,
        }
    }

    /// A path of a file; `None` if it has no name any more, as far as is known.
    pub(super) fn path_of(&self, node: &Node) -> Result<Option<std::path::PathBuf>, Errno> {
        if let Some(path) = self.descriptors.path(node)? {
            return Ok(Some(path));
        }
        // The name that it was opened by is gone. It may have another one.
        self.found_path(node)
    }

    /// The path of the name by which a node was found last, if that is still its own.
    pub(super) fn found_path(&self, node: &Node) -> Result<Option<std::path::PathBuf>, Errno> {
        let Some((parent, name)) = node.found_as() else { return Ok(None) };
        let Ok(parent) = self.nodes.get(parent) else { return Ok(None) };
        match rustix::fs::statat(&*parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) if key_of(&status) == node.key => self.place_of(&parent, &name).map(Some),
            _ => Ok(None),
        }
    }

    /// The absolute path of a name.
    pub(super) fn place_of(&self, parent: &Node, name: &OsStr) -> Result<std::path::PathBuf, Errno> {
        self.descriptors.path(parent)?.map(|parent| parent.join(name)).ok_or(Errno::NOENT)
    }
}

/// Whether a program may make a file of this name.
pub(super) fn allowed(name: &OsStr) -> Result<(), Errno> {
    if is_hidden(name) { Err(Errno::PERM) } else { Ok(()) }
}
