//! The pages that the kernel keeps of files, where it caches no writes and writes go to the source at once.
//!
//! The kernel could look for changes by itself (`FUSE_AUTO_INVAL_DATA`), by the modification time. It does not tell
//! its own writes from those of others, and drops all pages of a file after each write of a program in the mount. Here
//! the server looks instead: a file whose length or modification time is not as the last change through the mount left
//! it was changed outside.
//!
//! # Invariants
//!
//! 1. The stamp of a node is from before the kernel read the pages that it has, or from the end of a change through the
//!    mount, which the kernel has made in its pages, too. So a change outside after that leaves another stamp.
//! 2. A change through the mount looks at the stamp before and afterwards, and one runs at a time. If the stamp was
//!    another one before, it stays what it is: the next look finds out.
//! 3. A program that opens a file keeps the pages only if the stamp is right. A thread looks at open files every
//!    [`PAUSE`], and has the kernel drop the pages where it is wrong. It is not one that serves: the kernel waits there
//!    for pages that it is reading. Nothing is looked at while no file is open.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use super::handles::Open;
use super::nodes::Node;
use super::{Server, lock};

/// Between two looks at the open files.
const PAUSE: Duration = Duration::from_millis(700);

/// Length and modification time of a file; `None` if they are not known.
pub(super) type Stamp = Option<(i64, i64, u64)>;

fn stamp(file: impl AsFd) -> Stamp {
    let status = rustix::fs::fstat(file).ok()?;
    #[allow(clippy::useless_conversion)] // Not of the same width everywhere.
    Some((status.st_size.into(), status.st_mtime.into(), status.st_mtime_nsec.into()))
}

#[derive(Default)]
struct State {
    notifier: Option<Notifier>,
    over: bool,
}

/// Whether to look after pages, and who does it.
pub(super) struct Pages {
    is_ours: bool,
    /// A file may be open.
    active: AtomicBool,
    state: Mutex<State>,
    news: Condvar,
}

impl Pages {
    /// `is_ours`: the server looks after the pages, and not the kernel.
    pub(super) fn new(is_ours: bool) -> Self {
        Pages { is_ours, active: AtomicBool::new(false), state: Mutex::default(), news: Condvar::new() }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.is_ours
    }

    pub(super) fn set_notifier(&self, notifier: Notifier) {
        lock(&self.state).notifier = Some(notifier);
    }

    pub(super) fn finish(&self) {
        lock(&self.state).over = true;
        self.news.notify_one();
    }

    /// A file is open.
    fn opened(&self) {
        if !self.active.load(Ordering::Acquire) {
            let _state = lock(&self.state);
            self.active.store(true, Ordering::Release);
            self.news.notify_one();
        }
    }

    /// Waits until it is time for the next look. `None` at the end.
    fn wait(&self) -> Option<Option<Notifier>> {
        let idle = |state: &mut State| !state.over && !self.active.load(Ordering::Acquire);
        let state = self.news.wait_while(lock(&self.state), idle).unwrap_or_else(PoisonError::into_inner);
        let waited = self.news.wait_timeout_while(state, PAUSE, |state| !state.over);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        (!state.over).then(|| state.notifier.clone())
    }
}

impl Server {
    /// A program opens a file. Whether the pages that the kernel may have of it are right.
    pub(super) fn keeps_pages(&self, open: &Open) -> bool {
        if !self.pages.is_ours {
            // The kernel looks itself, or caches writes.
            return true;
        }
        self.pages.opened();
        let mut left = lock(&open.node.left);
        let now = stamp(open);
        let is_right = now.is_some() && *left == now;
        *left = now;
        is_right
    }

    /// Does what changes bytes or times of a file.
    pub(super) fn changing<T>(&self, node: &Node, change: impl FnOnce() -> T) -> T {
        if !self.pages.is_ours {
            return change();
        }
        let mut left = lock(&node.left);
        let is_right = left.is_some() && *left == stamp(node);
        let changed = change();
        if is_right {
            *left = stamp(node);
        }
        changed
    }

    /// Looks at a file that is open. Whether the kernel has to drop its pages.
    fn is_changed_outside(&self, node: &Node) -> bool {
        // If a change is under way, the next look is soon enough.
        let Ok(mut left) = node.left.try_lock() else { return false };
        let now = stamp(node);
        let is_changed = left.is_some() && *left != now;
        *left = now;
        is_changed
    }
}

/// Starts the thread that looks at open files, which ends with [`Pages::finish`].
///
/// # Errors
/// Those of starting a thread.
pub(super) fn start(server: &Arc<Server>) -> io::Result<JoinHandle<()>> {
    let server = server.clone();
    thread::Builder::new().name("untorn-pages".to_owned()).spawn(move || {
        while let Some(notifier) = server.pages.wait() {
            // Whoever opens a file after that says so again.
            server.pages.active.store(false, Ordering::Release);
            let files = server.handles.files();
            if files.is_empty() {
                continue;
            }
            server.pages.active.store(true, Ordering::Release);
            for open in files {
                if server.is_changed_outside(&open.node)
                    && let Some(notifier) = &notifier
                {
                    // The kernel may have forgotten the file.
                    let _ = notifier.inval_inode(INodeNo(open.node.number), 0, 0);
                }
            }
        }
    })
}
