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
//! 3. Writes by handles that pass the kernel's pages may run at the same time. As soon as two do, nobody can tell them
//!    from a change outside: the stamp becomes one that no file has, and the next look has the pages dropped. The
//!    kernel lets such writes run together only while no program has the file open with pages, so this costs nothing.
//! 4. A program that opens a file keeps the pages only if the stamp is right. A thread looks at open files every
//!    [`PAUSE`], and has the kernel drop the pages where it is wrong. It is not one that serves: the kernel waits there
//!    for pages that it is reading. Nothing is looked at while no file is open.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuser::{INodeNo, InitFlags, KernelConfig, Notifier};
use rustix::fs::OFlags;

use super::handles::Open;
use super::nodes::Node;
use super::{Server, lock};

/// Between two looks at the open files.
const PAUSE: Duration = Duration::from_millis(700);

/// Length and modification time of a file; `None` if they are not known.
type Stamp = Option<(i64, i64, u64)>;

/// The stamp of no file.
const NEVER: Stamp = Some((-1, 0, 0));

fn stamp(file: impl AsFd) -> Stamp {
    let status = rustix::fs::fstat(file).ok()?;
    #[allow(clippy::useless_conversion)] // Not of the same width everywhere.
    Some((status.st_size.into(), status.st_mtime.into(), status.st_mtime_nsec.into()))
}

/// Which changes of a file may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changing {
    /// None beside it.
    Alone,
    /// Others that say the same: the log, or the source, has the later of two that meet last in both.
    Together,
}

/// What the server knows of the pages that the kernel has of a file.
#[derive(Default)]
pub(super) struct Kept {
    state: Mutex<Under>,
    /// No change is under way.
    idle: Condvar,
}

/// The changes that are under way.
#[derive(Default)]
struct Under {
    /// The stamp of the file when the pages that the kernel has of it were right.
    stamp: Stamp,
    changes: u32,
    together: bool,
    /// Whether the stamp was right before the first of them, and that was the only one.
    is_right: bool,
}

impl Kept {
    /// Waits for changes that are under way, except those that may run beside the caller.
    fn wait(&self, together: bool) -> MutexGuard<'_, Under> {
        let in_the_way = |under: &mut Under| under.changes > 0 && !(together && under.together);
        self.idle.wait_while(lock(&self.state), in_the_way).unwrap_or_else(PoisonError::into_inner)
    }

    /// A change begins; whether it runs beside another one.
    fn begin<F: AsFd>(&self, file: F, how: Changing) -> (Change<'_, F>, bool) {
        let together = how == Changing::Together;
        let mut under = self.wait(together);
        let is_beside = under.changes > 0;
        if !is_beside {
            under.together = together;
            under.is_right = under.stamp.is_some() && under.stamp == stamp(&file);
        } else {
            under.is_right = false;
            under.stamp = NEVER;
        }
        under.changes += 1;
        (Change { kept: self, file }, is_beside)
    }

    /// A program opens the file. Whether the pages are right.
    fn opened(&self, file: impl AsFd) -> bool {
        let mut under = self.wait(true);
        if under.changes > 0 {
            return false;
        }
        let now = stamp(file);
        let is_right = now.is_some() && under.stamp == now;
        under.stamp = now;
        is_right
    }

    /// Whether the file was changed outside. While a change is under way, the next look is soon enough.
    fn is_changed_outside(&self, file: impl AsFd) -> bool {
        let Ok(mut under) = self.state.try_lock() else { return false };
        if under.changes > 0 {
            return false;
        }
        let now = stamp(file);
        let is_changed = under.stamp.is_some() && under.stamp != now;
        under.stamp = now;
        is_changed
    }
}

/// A change that is under way.
struct Change<'a, F: AsFd> {
    kept: &'a Kept,
    file: F,
}

impl<F: AsFd> Drop for Change<'_, F> {
    fn drop(&mut self) {
        let mut under = lock(&self.kept.state);
        under.changes -= 1;
        if under.changes == 0 {
            if under.is_right {
                under.stamp = stamp(&self.file);
            }
            self.kept.idle.notify_all();
        }
    }
}

#[derive(Default)]
struct State {
    notifier: Option<Notifier>,
    over: bool,
}

/// Whether to look after pages, and who does it.
pub(super) struct Pages {
    is_ours: bool,
    /// The kernel can map a file whose handle passes its pages.
    can_pass: AtomicBool,
    /// Writes that ran at the same time as another one of the same file.
    together: AtomicU64,
    /// A file may be open.
    active: AtomicBool,
    state: Mutex<State>,
    news: Condvar,
}

impl Pages {
    /// `is_ours`: the server looks after the pages, and not the kernel.
    pub(super) fn new(is_ours: bool) -> Self {
        Pages {
            is_ours,
            can_pass: AtomicBool::new(false),
            together: AtomicU64::new(0),
            active: AtomicBool::new(false),
            state: Mutex::default(),
            news: Condvar::new(),
        }
    }

    /// Asks the kernel for mappings of files whose handles pass its pages. Linux has them since 6.6, and since then it
    /// drops the pages that a write past them changes.
    pub(super) fn ask(&self, config: &mut KernelConfig) {
        if self.is_ours && config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok() {
            self.can_pass.store(true, Ordering::Release);
        }
    }

    /// Writes that ran at the same time as another one of the same file.
    pub(super) fn writes_together(&self) -> u64 {
        self.together.load(Ordering::Relaxed)
    }

    /// Whether a handle with these flags passes the kernel's pages.
    pub(super) fn passes(&self, flags: OFlags) -> bool {
        let only_writes = flags & OFlags::RWMODE == OFlags::WRONLY;
        self.is_ours
            && self.can_pass.load(Ordering::Acquire)
            && (flags.contains(OFlags::DIRECT) || only_writes && flags.contains(OFlags::DSYNC))
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
        open.node.kept.opened(open)
    }

    /// Does what changes bytes or times of a file, and nothing else beside it.
    pub(super) fn changing<T>(&self, node: &Node, change: impl FnOnce() -> T) -> T {
        self.changing_as(node, Changing::Alone, change)
    }

    /// Does what changes bytes of a file.
    pub(super) fn changing_as<T>(&self, node: &Node, how: Changing, change: impl FnOnce() -> T) -> T {
        if !self.pages.is_ours {
            return change();
        }
        let (_change, is_beside) = node.kept.begin(node, how);
        self.pages.together.fetch_add(u64::from(is_beside), Ordering::Relaxed);
        change()
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
                if open.node.kept.is_changed_outside(&*open.node)
                    && let Some(notifier) = &notifier
                {
                    // The kernel may have forgotten the file.
                    let _ = notifier.inval_inode(INodeNo(open.node.number), 0, 0);
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc::channel;

    use super::*;

    fn opened() -> (tempfile::TempDir, File, Kept) {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("file")).unwrap();
        let kept = Kept::default();
        assert!(!kept.opened(&file), "nobody looked before");
        (dir, file, kept)
    }

    /// A change of the length, so that the clock does not matter.
    fn grow(file: &File) {
        file.write_all_at(b"x", file.metadata().unwrap().len()).unwrap();
    }

    #[test]
    fn a_change_alone_keeps_pages_and_one_outside_drops_them() {
        let (_dir, file, kept) = opened();
        for how in [Changing::Alone, Changing::Together] {
            let (change, _) = kept.begin(&file, how);
            grow(&file);
            assert!(!kept.is_changed_outside(&file), "a change is under way");
            drop(change);
            assert!(!kept.is_changed_outside(&file) && kept.opened(&file), "{how:?}");
            grow(&file);
            drop(kept.begin(&file, how));
            assert!(kept.is_changed_outside(&file), "{how:?}: the change outside is covered up");
            assert!(kept.opened(&file));
        }
    }

    #[test]
    fn a_change_outside_amid_two_that_overlap_drops_pages() {
        let (_dir, file, kept) = opened();
        let (first, _) = kept.begin(&file, Changing::Together);
        grow(&file);
        let (second, is_beside) = kept.begin(&file, Changing::Together);
        assert!(is_beside);
        assert!(!kept.opened(&file), "pages that are read now are dropped again");
        drop(first);
        grow(&file);
        drop(second);
        assert!(kept.is_changed_outside(&file), "nobody can tell what else changed");
        assert!(!kept.is_changed_outside(&file));
    }

    #[test]
    fn a_change_alone_waits_for_all_others() {
        let (_dir, file, kept) = opened();
        for (first, second) in [(Changing::Together, Changing::Alone), (Changing::Alone, Changing::Together)] {
            let (change, _) = kept.begin(&file, first);
            let (sender, begun) = channel();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _change = kept.begin(&file, second);
                    sender.send(()).unwrap();
                });
                assert!(begun.recv_timeout(Duration::from_millis(50)).is_err(), "{second:?} ran beside {first:?}");
                drop(change);
                begun.recv().unwrap();
            });
        }
    }
}
