//! Whether an open file may still be used: not after a failed flush, not in a forked child, and not for writing if it
//! was opened read-only.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::sys::sync::{AtomicU64, Ordering, Zeroed, ZeroedBox};

/// The words that every call looks at.
#[derive(Zeroed)]
#[repr(C, align(64))]
struct Words {
    /// 1 in the process that opened the file; a forked child reads 0.
    alive: AtomicU64,
    /// 1 while the file accepts writes.
    accepts_writes: AtomicU64,
    /// 1 once something may stand in the file that was never committed.
    hides: AtomicU64,
}

/// The standing of one open file.
pub(crate) struct HandleState {
    words: ZeroedBox<Words>,
    path: PathBuf,
    read_only: bool,
    poison: OnceLock<String>,
}

impl HandleState {
    /// That of a file which accepts no writes yet.
    pub(crate) fn new(path: &Path, read_only: bool) -> std::io::Result<Self> {
        let words: ZeroedBox<Words> = ZeroedBox::new()?;
        words.alive.store(1, Ordering::Relaxed);
        Ok(HandleState { words, path: path.to_owned(), read_only, poison: OnceLock::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// From now on writes are accepted.
    pub(crate) fn accept_writes(&self) {
        self.words.accepts_writes.store(1, Ordering::Relaxed);
    }

    /// # Errors
    /// Why the file accepts no writes.
    #[inline]
    pub(crate) fn writable(&self) -> Result<()> {
        if self.words.accepts_writes.load(Ordering::Relaxed) == 0 {
            return Err(self.refusal());
        }
        Ok(())
    }

    /// From now on [`readable`](HandleState::readable) fails: what a failed write left in the file may be seen by
    /// nobody. Before what it touched is let go of.
    #[cold]
    pub(crate) fn hide(&self) {
        self.words.hides.store(1, Ordering::Release);
    }

    /// For a reader of what somebody has stored to lately, after its copy, or under the lock of all that it copies.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if what was read may be what no commit has.
    #[inline]
    pub(crate) fn readable(&self) -> Result<()> {
        if self.words.hides.load(Ordering::Acquire) != 0 { Err(self.refusal()) } else { Ok(()) }
    }

    #[cold]
    fn refusal(&self) -> Error {
        let path = self.path.clone();
        if !self.is_ours() {
            Error::Forked { path }
        } else if self.read_only {
            Error::ReadOnly { path }
        } else {
            Error::Poisoned { path, cause: self.poison.get().cloned().unwrap_or_default() }
        }
    }

    /// # Errors
    /// [`Error::Forked`] in a child of the process that opened the file: it must not even wait for a lock, which a
    /// thread of its parent's may have held when it was forked.
    pub(crate) fn ours(&self) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(Error::Forked { path: self.path.clone() }) }
    }

    /// Whether this is the process that opened the file.
    fn is_ours(&self) -> bool {
        self.words.alive.load(Ordering::Relaxed) != 0
    }

    /// Ends all promises: what was stored last may or may not have reached the medium, so only recovery can tell what
    /// the file holds. Returns the error that caused it.
    #[cold]
    pub(crate) fn poison(&self, error: Error) -> Error {
        tracing::error!(path = %self.path.display(), %error, "poisoned");
        // The first cause is the one to report.
        let _ = self.poison.set(error.to_string());
        self.words.accepts_writes.store(0, Ordering::Relaxed);
        error
    }

    /// The file's life under this handle is over: from now on every write is refused, for this reason.
    pub(crate) fn retire(&self, reason: &str) {
        // A cause from before is the one to report.
        let _ = self.poison.set(reason.to_owned());
        self.words.accepts_writes.store(0, Ordering::Relaxed);
    }

    /// The error of a call, which ends all promises if it comes from a lost page.
    #[cold]
    pub(crate) fn unless_lost(&self, error: Error) -> Error {
        if error.is_page_lost() && self.writable().is_ok() { self.poison(error) } else { error }
    }

    /// The error, or in a forked child the reason behind it.
    #[cold]
    pub(crate) fn unless_forked(&self, error: Error) -> Error {
        if self.is_ours() { error } else { Error::Forked { path: self.path.clone() } }
    }
}
