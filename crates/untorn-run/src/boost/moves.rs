//! Renames, which programs do themselves: the server is asked before, and told afterwards. One at a time gets a name,
//! so that the log counts them in the order in which the kernel does them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType};

use super::Boost;
use super::file::{Boosted, State};
use crate::descriptor::path_of;
use crate::files::{Key, lock};
use crate::managed::{Errno, libc_errno};

/// Renames under way: each new name, with the file that is to get it.
#[derive(Default)]
pub(super) struct Moves {
    under_way: Mutex<HashMap<PathBuf, Key>>,
    /// One ended.
    ended: Condvar,
}

impl Moves {
    /// Waits until neither the name nor the file has anything to do with a rename, and notes that they have.
    fn begin(&self, path: &Path, key: Key) {
        let busy =
            |moves: &mut HashMap<PathBuf, Key>| moves.contains_key(path) || moves.values().any(|other| *other == key);
        let moves = self.ended.wait_while(lock(&self.under_way), busy);
        moves.unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), key);
    }

    fn end(&self, key: Key) {
        lock(&self.under_way).retain(|_, other| *other != key);
        self.ended.notify_all();
    }
}

impl Boost {
    /// A file is about to be renamed to `name` in a directory. If the answer is no, it is a plain one by then, and so
    /// is what has that name.
    ///
    /// # Errors
    /// Why one of the two could not be drained.
    pub(super) fn about_to_be_moved(&self, key: Key, directory: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        let name = OsStr::from_bytes(name);
        let path = path_of(directory)?.join(name);
        let status = rustix::fs::fstat(directory).map_err(libc_errno)?;
        if status.st_dev == key.0 && self.find(key).is_some() {
            self.moves.begin(&path, key);
        } else {
            // The kernel renames nothing from one file system to another.
            self.demote_key(key, "rename")?;
        }
        let over = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let over = over.filter(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
        let over = over.map(|found| (found.st_dev, found.st_ino)).filter(|over| *over != key);
        let announced = self.announce(key, &path, over);
        if announced != Ok(true) {
            self.moves.end(key);
            if let Some(over) = over {
                self.demote_key(over, "rename")?;
            }
        }
        announced
    }

    fn announce(&self, key: Key, path: &Path, over: Option<Key>) -> Result<bool, Errno> {
        let Some(file) = self.find(key) else { return Ok(false) };
        if let Some(over) = over.and_then(|over| self.find(over)) {
            let mut over = lock(&over);
            if over.state() != State::Boosted || !over.may_be_replaced(path)? {
                self.demote(&mut over, "rename")?;
            }
        }
        let mut file = lock(&file);
        if file.state() != State::Boosted || !file.move_to(path, over)? {
            self.demote(&mut file, "rename")?;
            return Ok(false);
        }
        Ok(true)
    }

    /// A rename that was announced was done, or was not. Of a file that became a plain one meanwhile there is nothing
    /// more to say.
    ///
    /// # Errors
    /// Why the log could not be told.
    pub(super) fn was_moved(&self, key: Key, done: bool) -> Result<(), Errno> {
        let Some(file) = self.find(key) else {
            self.moves.end(key);
            return Ok(());
        };
        let (outcome, over, rests) = {
            let mut file = lock(&file);
            let over = file.is_moving().and_then(|(_, over)| *over);
            let outcome = if file.state() == State::Boosted { file.moved(done) } else { file.standing() };
            (outcome, over, file.rests_since().is_some())
        };
        if rests {
            self.resting.add(key);
        }
        if let Some(over) = over.and_then(|over| self.find(over)) {
            let mut over = lock(&over);
            if !done {
                over.is_not_replaced();
            } else if over.rests_since().is_some() {
                self.resting.add(over.key());
            }
        }
        self.moves.end(key);
        outcome
    }

    /// A process has ended that may have been about to rename a file. If it has the new name, the log is told;
    /// otherwise it may be that another process is about to rename it, which then renames a plain one.
    pub(super) fn look_after_moving(&self, file: &mut Boosted) {
        if file.is_moving().is_none() || file.state() != State::Boosted {
            return;
        }
        let outcome = match file.has_moved() {
            true => file.moved(true),
            false => self.demote(file, "rename did not happen"),
        };
        if let Err(errno) = outcome {
            tracing::warn!(errno, "cannot sync a file");
        }
        self.moves.end(file.key());
    }
}

impl Boosted {
    /// Whether another file may be put over it with what the log has of it. Until it is, a removal is under way.
    fn may_be_replaced(&mut self, path: &Path) -> Result<bool, Errno> {
        let fit = self.is_logged() && self.names()? == 1 && self.path() == path && path_of(self.own()?)? == path;
        self.set_leaving(fit);
        Ok(fit)
    }

    fn is_not_replaced(&mut self) {
        self.set_leaving(false);
    }

    /// Whether it has the name that it was to get.
    fn has_moved(&self) -> bool {
        let now = self.own().and_then(path_of).ok();
        now.is_some_and(|now| self.is_moving().is_some_and(|(path, _)| *path == now))
    }
}
