//! Removing a log that nobody needs any more, with its spill file.
//!
//! # Invariants
//! 1. A log is removed only while the tail has durably passed every entry and no file is attached. So a crash that
//!    brings its name back, or that of the spill file, brings back a log that a replay finds empty.
//! 2. Its owner removes it, with the log's lock. So nobody opens it meanwhile: who gets the lock of a log without a
//!    name begins anew ([`open`](super::open)), and who looked before may not store to it.
//! 3. The names go in this order: the spill file, the log, and the directory `.untorn` if that is empty. Nobody makes
//!    another spill file of that name before the log's name is free, and this session never touches a name afterwards.
//! 4. No call of this session writes an entry afterwards: every one is refused.
//!
//! The removal needs no barrier: by 1, it does not matter which of the names a crash takes.

use std::sync::atomic::Ordering;

use super::names::parent;
use super::spill;
use super::{Cache, locked};
use crate::error::Result;
use crate::storage::{Medium, MediumFile, is_companion_directory};
use crate::write_cache::trust;

impl<M: Medium> Cache<M> {
    /// Removes the log. False, with the log as it was, if something still needs it: entries, attached files, processes
    /// that append to it; or if it has lost its name to another file.
    pub(super) fn remove(&self) -> Result<bool> {
        self.handle_state.writable()?;
        let path = self.handle_state.path();
        let _drain = self.drain.hold();
        // No file is attached meanwhile, so nobody gets a position.
        let registry = locked(&self.registry);
        let is_needed = !registry.is_empty() || self.ring.tail() != self.ring.head() || self.ring.shared().is_some();
        if is_needed || !trust::is_named(self.ring.file.descriptor(), path) {
            return Ok(false);
        }
        self.handle_state.retire("the log was removed");
        self.removed.store(true, Ordering::Release);
        spill::remove(&*self.place, &spill::path_of(path));
        self.ring.medium.unlink(path)?;
        let directory = parent(path);
        if is_companion_directory(directory) {
            self.ring.medium.remove_dir_if_empty(directory)?
        }
        Ok(true)
    }

    /// Whether the log was removed: this session has no name any more.
    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }
}
