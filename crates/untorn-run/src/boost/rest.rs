//! Files at rest: closed, and not yet durable. The server has the one description that is left, and its lease keeps
//! everybody else away until the file is durable; then it is let go of, which costs nothing any more.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;

use super::Boost;
use super::file::{Boosted, State};
use crate::files::{Key, lock};
use crate::holders::{self, Keys};
use crate::managed::Errno;

/// Between two looks at them.
const MOMENT: Duration = Duration::from_millis(50);
/// So many do not rest for longer: each is a descriptor or two of the server's, and a line of the log's file table.
const MANY: usize = 64;
/// So many rest at most: who closes one more lets go of them.
const MOST: usize = 256;

/// Files that nobody may hold any more.
#[derive(Default)]
pub(super) struct Resting {
    keys: Mutex<Keys>,
    /// The first came, or many are there.
    some: Condvar,
}

impl Resting {
    /// One more; how many there are.
    pub(super) fn add(&self, key: Key) -> usize {
        let mut keys = lock(&self.keys);
        // To wake somebody costs more than all the rest of a `close`.
        if keys.insert(key) && matches!(keys.len(), 1 | MANY) {
            self.some.notify_one();
        }
        keys.len()
    }

    fn take(&self) -> Keys {
        std::mem::take(&mut *lock(&self.keys))
    }

    /// Waits until there are some, and then for a moment; not so long if there are [`MANY`], which it tells.
    fn wait(&self) -> bool {
        let keys = lock(&self.keys);
        let keys = self.some.wait_while(keys, |keys| keys.is_empty()).unwrap_or_else(PoisonError::into_inner);
        let waited = self.some.wait_timeout_while(keys, MOMENT, |keys| keys.len() < MANY);
        waited.unwrap_or_else(PoisonError::into_inner).0.len() >= MANY
    }
}

impl Boost {
    /// Lets go of files at rest as they become durable.
    pub(super) fn watch_over_resting(self: &Arc<Self>) -> io::Result<()> {
        let (resting, watched) = (self.resting.clone(), Arc::downgrade(self));
        thread::Builder::new().name("untorn-rest".to_owned()).spawn(move || {
            loop {
                // Nobody waits for it: who wants a file that rests takes it.
                let all = resting.wait();
                let Some(boost) = watched.upgrade() else { return };
                boost.look_after_resting(all);
            }
        })?;
        Ok(())
    }

    /// A descriptor of a file was closed. That waits for no device.
    ///
    /// # Errors
    /// EIO, to each that closes it, once the file could not be synced: what they wrote may be in the log alone.
    pub(super) fn descriptor_closed(&self, key: Key) -> Result<(), Errno> {
        let Some(file) = self.find(key) else { return Ok(()) };
        let standing = {
            let mut file = lock(&file);
            file.rest();
            file.standing()
        };
        if self.resting.add(key) >= MOST {
            self.look_after_resting(true);
        }
        standing
    }

    /// A process has ended, and with it its descriptors. A name that it was about to remove may have stayed.
    pub(super) fn process_ended(&self) {
        self.forget_syncs_of_directories();
        let look = |file: &mut Boosted| {
            // It may have died amid a write: then nobody is to find half of it until somebody writes next.
            if let Err(errno) = file.mend() {
                tracing::warn!(errno, "cannot complete a write of a process that died");
            }
            self.look_after_moving(file);
            if file.stays()
                && let Err(errno) = self.demote(file, "unlink did not happen")
            {
                tracing::warn!(errno, "cannot sync a file");
            }
            file.rest();
            self.resting.add(file.key());
        };
        let mut busy = Vec::new();
        for file in self.all() {
            match file.try_lock() {
                Ok(mut file) => look(&mut file),
                Err(_) => busy.push(file.clone()),
            }
        }
        // After all others: somebody may be waiting there for a process that was stopped amid a write.
        for file in busy {
            look(&mut lock(&file));
        }
    }

    /// Lets go of files at rest that nobody holds: those that are durable, or all of them. Those that somebody is
    /// busy with it passes over, so the caller may hold one of them.
    pub(super) fn look_after_resting(&self, all: bool) {
        let keys = self.resting.take();
        // Before it is asked who holds them: who opens one later is not among those.
        let since = |key: &Key| {
            let file = self.find(*key)?;
            match file.try_lock() {
                Ok(file) => Some((*key, file.rests_since()?)),
                Err(_) => {
                    self.resting.add(*key);
                    None
                }
            }
        };
        let resting: Vec<(Key, u64)> = keys.iter().filter_map(since).collect();
        if resting.is_empty() {
            return;
        }
        let held = holders::held(&resting.iter().map(|(key, _)| *key).collect());
        for (key, since) in resting.into_iter().filter(|(key, _)| !held.contains(key)) {
            let Some(file) = self.find(key) else { continue };
            let Ok(mut file) = file.try_lock() else {
                self.resting.add(key);
                continue;
            };
            if file.rests_since() != Some(since) {
                continue;
            }
            if all || file.is_settled() || file.standing().is_err() || file.names() == Ok(0) {
                if let Err(errno) = self.release(&mut file) {
                    tracing::warn!(errno, "cannot sync a file");
                }
            } else {
                self.resting.add(key);
            }
        }
    }

    /// A file is about to lose its name: its last one, or it is made a plain file.
    ///
    /// # Errors
    /// Why it could not be drained.
    pub(super) fn leave(&self, key: Key) -> Result<(), Errno> {
        let Some(file) = self.find(key) else { return Ok(()) };
        let mut file = lock(&file);
        if file.state() != State::Boosted || !file.leave()? {
            return self.demote(&mut file, "unlink");
        }
        if file.rests_since().is_some() {
            self.resting.add(key);
        }
        Ok(())
    }

    /// The description of a file that is about to be opened with `flags`, if it rests and whoever opens it would get
    /// one like it.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(super) fn reopen(&self, key: Key, flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
        let Some(file) = self.find(key) else { return Ok(None) };
        let mut file = lock(&file);
        // With its lock, so that nobody else is given it.
        if file.rests_since().is_none() || file.is_wanted() || !holders::held(&Keys::from([key])).is_empty() {
            return Ok(None);
        }
        let description = file.reopen(flags)?;
        if description.is_some() {
            self.ledger.of(file.path(), |report| {
                report.opens += 1;
                report.reopens += 1;
            });
        }
        Ok(description)
    }
}
