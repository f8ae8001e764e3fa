//! Covering all files of the process at once, as after a power failure.
//!
//! # Invariants
//! 1. A file is registered from its open until it is closed or dropped. The end waits for a covering of all files that
//!    has come to it, and that has let go of the file then.
//! 2. A forked child has no files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use super::RedundancyService;
use crate::error::{Error, Result};
use crate::sys::{BlockedSignal, PerProcess, incarnation};

/// A file that is covered with all others, until this is dropped.
pub(super) struct Registration(Arc<Entry>);

/// `None` once the file goes.
type Entry = Mutex<Option<Weak<dyn RedundancyService>>>;

static FILES: PerProcess<Mutex<Vec<Weak<Entry>>>> = PerProcess::new();

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registration {
    pub(super) fn new(service: &Arc<dyn RedundancyService>) -> Self {
        let entry = Arc::new(Mutex::new(Some(Arc::downgrade(service))));
        let mut files = FILES.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(&entry));
        Registration(entry)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        *locked(&self.0) = None;
    }
}

/// What [`cover_all`] did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct AllCovered {
    /// Files that were covered.
    pub files: usize,
    /// Pages that were not covered before, in these files and their sidecars.
    pub pages: u64,
    /// Why other files could not be covered. Each error names its file.
    pub failures: Vec<Error>,
}

/// Covers everything that was stored before the call, in all files and mappings that this process protects: for
/// instance when the power fails and a battery lasts a moment. Afterwards no page is uncovered but those that were
/// stored to meanwhile.
///
/// Files are covered in parallel, and a failure of one keeps none of the others from being covered. Any thread may
/// call it. A signal handler must not: the call takes locks and allocates memory. [`cover_on_signal`] makes this call
/// when a signal comes.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
/// let protected = untorn::redundancy::ProtectOptions::new().on_demand().open(&path)?;
/// protected.sync()?;
/// drop(protected.announce(0..5)?);
/// let covered = untorn::redundancy::cover_all();
/// assert!(covered.failures.is_empty() && covered.pages >= 1);
/// assert_eq!(protected.coverage()?.uncovered, 0);
/// protected.close()?;
/// # Ok(()) }
/// ```
pub fn cover_all() -> AllCovered {
    let files: Vec<Arc<Entry>> = FILES.lock().iter().filter_map(Weak::upgrade).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(AllCovered::default()));
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let entry = locked(file);
            let covered = entry.as_ref().and_then(Weak::upgrade).map(|service| service.cover());
            drop(entry);
            let mut done = locked(&done);
            match covered {
                Some(Ok(pages)) => {
                    done.files += 1;
                    done.pages += pages;
                }
                Some(Err(error)) => done.failures.push(error),
                None => {}
            }
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 1..files.len().min(processors) {
            // If no thread can be had, this one does it all.
            let _ = thread::Builder::new().name("untorn-cover-all".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that covers all files when a signal comes; see [`cover_on_signal`]. It ends when this is dropped.
#[must_use = "the thread ends when this is dropped"]
pub struct CoverOnSignal {
    process: u64,
    signal: Arc<BlockedSignal>,
    thread: Option<thread::JoinHandle<()>>,
}

impl std::fmt::Debug for CoverOnSignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoverOnSignal").finish_non_exhaustive()
    }
}

/// Starts a thread that calls [`cover_all`] each time this process gets a signal, such as SIGPWR (30 on most
/// architectures), which a UPS daemon sends when the power fails. Then it calls `then`, with what was covered.
///
/// It installs no handler. All threads must block the signal, so that it stays pending until this thread takes it:
/// block it in the main thread before the program starts any other (`pthread_sigmask`). The call fails if a thread does
/// not block it. A thread that unblocks it later gets it, and with it its action.
///
/// # Errors
/// [`Error::Invalid`] for a signal that cannot be blocked, or that a thread does not block; [`Error::Io`] if no thread
/// or descriptor can be had.
pub fn cover_on_signal(signal: i32, then: impl Fn(&AllCovered) + Send + 'static) -> Result<CoverOnSignal> {
    let nowhere = || PathBuf::from("(process)");
    let blocked = BlockedSignal::new(signal).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Error::Invalid { path: nowhere(), what: error.to_string() },
        _ => Error::io("wait for a signal in", &nowhere(), error),
    })?;
    let blocked = Arc::new(blocked);
    let waited = blocked.clone();
    let work = move || {
        loop {
            match waited.wait() {
                Ok(true) => {
                    tracing::warn!(signal, "a signal came; covering all protected files");
                    then(&cover_all());
                }
                Ok(false) => return,
                Err(error) => return tracing::error!(signal, %error, "cannot wait for a signal"),
            }
        }
    };
    let started = thread::Builder::new().name("untorn-signal".to_owned()).spawn(work);
    let thread = started.map_err(|error| Error::io("start a thread in", &nowhere(), error))?;
    Ok(CoverOnSignal { process: incarnation(), signal: blocked, thread: Some(thread) })
}

impl Drop for CoverOnSignal {
    fn drop(&mut self) {
        if self.process != incarnation() {
            // A forked child has the descriptors, which it shares with its parent, and no thread.
            return std::mem::forget(self.thread.take());
        }
        self.signal.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the program's function ended it before.
            let _ = thread.join();
        }
    }
}
