//! Files at rest: they have no writer, and the log has bytes of them or they have just lost their last writer.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::{Key, Managed, Managing, errno};
use crate::serve::lock;

/// Between two looks at files that rest.
const MOMENT: Duration = Duration::from_millis(50);

/// Files without a writer that are in the table.
#[derive(Default)]
pub(super) struct Resting {
    pub(super) keys: Vec<Key>,
    /// The server ends.
    pub(super) over: bool,
}

impl Managing {
    /// A writer is gone.
    pub(in crate::serve) fn released(&self, managed: &Arc<Managed>) {
        let gone = {
            let mut table = lock(&self.table);
            if !managed.remove_writer() {
                return;
            }
            // With the lock, so that nothing of the next writer is committed.
            managed.last_writer_is_gone();
            if managed.is_done() {
                managed.settle_times();
                table.remove(&managed.key)
            } else {
                None
            }
        };
        if gone.is_none() {
            let mut resting = lock(&self.resting);
            resting.keys.push(managed.key);
            if resting.keys.len() == 1 {
                self.news.notify_one();
            }
        }
    }

    /// Takes the files out of the table that nothing needs there any more.
    fn look_after_resting(&self) {
        let keys = std::mem::take(&mut lock(&self.resting).keys);
        let mut left = Vec::new();
        for key in keys {
            let mut table = lock(&self.table);
            let Some(managed) = table.get(&key) else { continue };
            // A writer came back; it will be put to rest again.
            if managed.has_writers() {
                continue;
            }
            if managed.is_done() {
                managed.settle_times();
                let gone = table.remove(&key);
                drop(table);
                drop(gone);
            } else {
                left.push(key);
            }
        }
        lock(&self.resting).keys.append(&mut left);
    }

    /// Looks after files at rest until the server ends.
    pub(super) fn look_after(&self) {
        loop {
            let resting = lock(&self.resting);
            let resting = self.news.wait_while(resting, |resting| resting.keys.is_empty() && !resting.over);
            let resting = resting.unwrap_or_else(PoisonError::into_inner);
            let waited = self.news.wait_timeout_while(resting, MOMENT, |resting| !resting.over);
            if waited.unwrap_or_else(PoisonError::into_inner).0.over {
                return;
            }
            self.look_after_resting();
        }
    }

    /// Does what makes an entry of the log. The log has room for so many files at a time: those at rest make way, and
    /// if that is not enough the file becomes plain.
    pub(super) fn with_room<T>(&self, managed: &Managed, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        if managed.is_atomic() {
            // A change that finds no room is refused, and its epoch with it. So room is made before.
            match self.or_with_room(|| managed.take_line()) {
                Ok(()) | Err(Errno::NFILE) => return act(),
                Err(errno) => return Err(errno),
            }
        }
        match self.or_with_room(&act) {
            Err(Errno::NFILE) if !self.strict => {}
            done => return done,
        }
        let path = managed.become_plain()?;
        self.is_plain(&path, "the log has writes of as many files as it can; create a larger log".to_owned());
        act()
    }

    /// Tries once more after files at rest have made way, if there was no room.
    fn or_with_room<T>(&self, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match act() {
            Err(Errno::NFILE) => {}
            done => return done,
        }
        self.cache.drain().map_err(errno)?;
        self.look_after_resting();
        act()
    }

    /// Makes room in the table, if it has many files.
    pub(super) fn make_room(&self) -> Result<(), Errno> {
        if lock(&self.table).len() < self.many || lock(&self.resting).keys.len() < self.many / 2 {
            return Ok(());
        }
        self.cache.drain().map_err(errno)?;
        self.look_after_resting();
        Ok(())
    }

    /// Brings everything to the files, at the end.
    pub(in crate::serve) fn finish(&self) {
        if let Err(error) = self.cache.drain() {
            tracing::warn!(%error, "writes stay in the log until a replay");
        }
        {
            let mut resting = lock(&self.resting);
            resting.keys.extend(self.all().iter().map(|managed| managed.key));
            resting.over = true;
            self.news.notify_one();
        }
        for managed in self.all() {
            if let Some(reason) = managed.failure() {
                lock(&self.report).failed.insert(managed.path(), reason);
            }
        }
        self.look_after_resting();
    }
}
