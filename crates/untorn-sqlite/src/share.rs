//! What the connections of this process to one database share: the last commit that one of them read, and what is
//! known of the files beside the database.
//!
//! # Invariants
//!
//! 1. A statement goes on with the commit that the last one read, of whichever connection, only if
//!    [`Snapshot::resume`] says that no commit was acknowledged since. So it never reads an old one.
//! 2. While no statement reads, the snapshot rests, and the next commit ends it. So an idle connection costs a writer
//!    nothing, and no memory.
//! 3. The last connection of the process drops the snapshot before it closes the file, which the snapshot would keep
//!    open.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use untorn::Snapshot;

use crate::Code;
use crate::beside::Beside;

/// Bytes of SQLite's header at the beginning of a database.
pub(crate) const HEADER: usize = 100;

/// A commit, and its header, for which SQLite asks at each beginning.
pub(crate) struct View {
    pub(crate) snapshot: Snapshot,
    pub(crate) header: [u8; HEADER],
    /// A connection reads it that did not take it.
    joined: AtomicBool,
}

/// A use of a view. It ends when this is dropped.
pub(crate) struct Reading(Arc<View>);

impl Deref for Reading {
    type Target = View;

    fn deref(&self) -> &View {
        &self.0
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.snapshot.rest();
    }
}

impl Reading {
    /// Whether no commit was acknowledged since, as far as that can be told without a look at the file.
    pub(crate) fn is_last(&self) -> bool {
        let is_last = self.0.snapshot.resume();
        if is_last {
            self.0.snapshot.rest();
        }
        is_last
    }
}

/// What the connections of this process to one database share.
pub(crate) struct Share {
    inode: (u64, u64),
    last: Mutex<Option<Arc<View>>>,
    pub(crate) beside: Beside,
}

/// A connection's part of it.
pub(crate) struct Part {
    share: Arc<Share>,
    path: PathBuf,
    /// The view that this connection took last.
    own: Option<std::sync::Weak<View>>,
}

struct Entry {
    share: Arc<Share>,
    connections: usize,
}

static SHARES: Mutex<Option<HashMap<PathBuf, Entry>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while one of these is locked leaves a map or an option, whole at every instant.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this process knows of the files beside a database that it has open; `None` if it has not.
pub(crate) fn of_open_database<T>(path: &Path, ask: impl FnOnce(&Beside) -> T) -> Option<T> {
    lock(&SHARES).as_ref()?.get(path).map(|entry| ask(&entry.share.beside))
}

impl Part {
    /// Joins the connections of this process to the file at `path`. `beside` is asked if this is the first.
    pub(crate) fn join(
        path: &Path,
        inode: (u64, u64),
        beside: impl FnOnce() -> Result<Beside, Code>,
    ) -> Result<Self, Code> {
        let mut shares = lock(&SHARES);
        let shares = shares.get_or_insert_default();
        // Another file may have the name by now.
        let known = shares.get_mut(path).filter(|entry| entry.share.inode == inode);
        let share = match known {
            Some(entry) => {
                entry.connections += 1;
                Arc::clone(&entry.share)
            }
            None => {
                let share = Arc::new(Share { inode, last: Mutex::new(None), beside: beside()? });
                shares.insert(path.to_owned(), Entry { share: Arc::clone(&share), connections: 1 });
                share
            }
        };
        Ok(Part { share, path: path.to_owned(), own: None })
    }

    /// The last commit, by the view that the process has of it, or by a new one.
    pub(crate) fn read(
        &mut self,
        take: impl FnOnce(Option<Snapshot>) -> Result<(Snapshot, [u8; HEADER]), Code>,
    ) -> Result<Reading, Code> {
        // Others that come meanwhile wait for the new one, which they would have to take as well.
        let mut last = lock(&self.share.last);
        if let Some(view) = &*last
            && view.snapshot.resume()
        {
            if !self.own.as_ref().is_some_and(|own| std::ptr::eq(own.as_ptr(), Arc::as_ptr(view))) {
                view.joined.store(true, Ordering::Relaxed);
            }
            return Ok(Reading(Arc::clone(view)));
        }
        let old = last.take().and_then(Arc::into_inner);
        let (snapshot, header) = take(old.map(|view| view.snapshot))?;
        let view = Arc::new(View { snapshot, header, joined: AtomicBool::new(false) });
        self.own = Some(Arc::downgrade(&view));
        *last = Some(Arc::clone(&view));
        Ok(Reading(view))
    }

    /// Before a commit of this connection: drops the view if no other connection has read it, so that the commit keeps
    /// no pages for it. Otherwise others go on with it until the commit is durable. One that another process keeps
    /// serves for the next one.
    pub(crate) fn about_to_commit(&self) {
        let mut last = lock(&self.share.last);
        let is_unused = |view: &View| !view.joined.load(Ordering::Relaxed) && !view.snapshot.is_of_another_process();
        drop(last.take_if(|view| is_unused(view)));
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut shares = lock(&SHARES);
        let Some(entry) = shares.as_mut().and_then(|shares| shares.get_mut(&self.path)) else { return };
        if !Arc::ptr_eq(&entry.share, &self.share) {
            return;
        }
        entry.connections -= 1;
        if entry.connections == 0
            && let Some(shares) = shares.as_mut()
        {
            shares.remove(&self.path);
        }
    }
}
