//! Files that are atomic on a mount in [`Mode::Boost`](crate::Mode::Boost), because a program marked them:
//! `setfattr -n user.untorn.atomic -v 1 FILE`.
//!
//! # Invariants
//!
//! 1. The mark is an attribute of the file in the source, durable when it is set. So it goes with the file through
//!    renames, and holds for the next mount.
//! 2. The rule of a file changes while nobody else has its state, and after everything that the log has of it is
//!    durably in the source. So no entry of the log is read by another rule than the one that it was written by.
//! 3. An open epoch is not cut in two: the mark of such a file stays until a sync (EBUSY).
//! 4. A file that a handle writes to past the kernel's pages gets no mark (EBUSY): see
//!    [`handles`](crate::serve::handles).

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use super::file::{Managed, Served};
use super::{Managing, errno};
use crate::serve::Server;
use crate::serve::nodes::{Key, Lack, Node, number};

/// The attribute of a marked file.
pub(in crate::serve) const MARK: &str = "user.untorn.atomic";
/// Its value.
const MARKED: &[u8] = b"1";

impl Managing {
    /// Changes the rule of a file; `mark` has the source say so.
    fn change_rule(&self, key: Key, atomic: bool, mark: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let _alone = self.moves.write().unwrap_or_else(PoisonError::into_inner);
        self.marked.fetch_or(atomic, Ordering::AcqRel);
        match self.find(key) {
            Some(managed) if managed.is_atomic() != atomic => self.change_rule_of(&managed, atomic, mark),
            _ => mark(),
        }
    }

    fn change_rule_of(
        &self,
        managed: &Managed,
        atomic: bool,
        mark: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = managed.exclusive();
        match &state.served {
            Served::Failed(errno) => return Err(*errno),
            // The log does not manage it, so it has no epochs.
            Served::Plain if atomic => return Err(Errno::OPNOTSUPP),
            _ if atomic && managed.is_passed() => return Err(Errno::BUSY),
            Served::Logged(file) if file.has_open_epoch() => return Err(Errno::BUSY),
            Served::Plain | Served::Fresh => {
                mark()?;
                managed.set_atomic(atomic);
                return Ok(());
            }
            Served::Logged(_) => {}
        }
        managed.settle(&mut state)?;
        let marked = mark();
        if marked.is_ok() {
            managed.set_atomic(atomic);
        }
        let path = state.path.clone();
        if let Err(error) = managed.serve_again(&mut state, self, &path) {
            self.is_plain(&path, error.to_string());
            marked?;
            return Err(errno(error));
        }
        marked
    }
}

impl Server {
    /// Whether a file is marked, on a mount that has others, too.
    pub(super) fn is_marked(&self, node: &Node) -> Result<bool, Errno> {
        if self.no_xattr || node.lacks(Lack::Mark, self.lifetime) {
            return Ok(false);
        }
        let mut value = [0; MARKED.len()];
        let link = format!("/proc/self/fd/{}", number(node.as_fd()));
        let is_marked = match rustix::fs::getxattr(link, MARK, &mut value[..]) {
            Ok(len) => value[..len] == *MARKED,
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => false,
            Err(errno) => return Err(errno),
        };
        node.set_lacks(Lack::Mark, !is_marked);
        self.managing.marked.fetch_or(is_marked, Ordering::AcqRel);
        Ok(is_marked)
    }

    /// The value of the mark, as programs see it.
    pub(in crate::serve) fn mark(&self, node: &Node) -> Result<Vec<u8>, Errno> {
        let is_atomic = node.is_regular() && (self.managing.is_atomic() || self.is_marked(node)?);
        if is_atomic { Ok(MARKED.to_vec()) } else { Err(Errno::NODATA) }
    }

    /// Marks a file, or takes the mark off it.
    pub(in crate::serve) fn set_mark(&self, node: &Node, value: &[u8]) -> Result<(), Errno> {
        let atomic = match value {
            MARKED => true,
            b"0" => false,
            _ => return Err(Errno::INVAL),
        };
        if !node.is_regular() {
            return Err(Errno::OPNOTSUPP);
        }
        if self.managing.is_atomic() {
            // All files are, as long as the mount is there.
            return if atomic { Ok(()) } else { Err(Errno::OPNOTSUPP) };
        }
        let path = self.path_of(node)?;
        if atomic && !path.is_some_and(|path| self.managing.globs.choose(&path)) {
            return Err(Errno::OPNOTSUPP);
        }
        let file = self.descriptors.reopen(node, OFlags::RDONLY)?;
        self.managing.change_rule(node.key, atomic, || {
            let link = format!("/proc/self/fd/{}", number(node.as_fd()));
            if atomic {
                rustix::fs::setxattr(&link, MARK, MARKED, XattrFlags::empty())?;
                node.set_lacks(Lack::Mark, false);
            } else {
                match rustix::fs::removexattr(&link, MARK) {
                    Err(Errno::NODATA) => {}
                    done => done?,
                }
                node.set_lacks(Lack::Mark, true);
            }
            rustix::fs::fsync(&file)
        })
    }
}
