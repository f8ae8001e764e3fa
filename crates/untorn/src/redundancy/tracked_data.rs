//! A medium that tells redundancy of every store of an engine to its data file.
//!
//! An engine reaches storage only through its [`Medium`]. This medium sits between the engine and the real one, and
//! handles only the data file. It announces every change before it is made, and releases it when it is made and visible
//! to other threads. So for every page of the file it is known, without the engine's help, whether it may differ from
//! its covered bytes. For an engine that keeps bytes of the file in the sidecar,
//! [`tracked_sidecar`](super::tracked_sidecar) says how the sidecar is watched.
//!
//! # Invariants
//!
//! 1. Existing redundancy is open before the engine writes its first byte, and so before recovery writes. New
//!    redundancy is created when the engine has the file open, and so when no other process has.
//! 2. All stores to the file are between an announcement and its release. Only [`TrackedData::resize`] changes the
//!    redundancy file to another length, and it excludes all stores. So invariants 1 and 2 of [`redundancy`](super)
//!    are those of announced stores.
//! 3. Bytes that stores past the cache leave in CPU buffers are not visible to other readers yet. They are ordered
//!    before the release; otherwise a page would be covered with its old bytes.
//! 4. Another length needs another redundancy file, to which the known state is [carried](super::resize) over. It
//!    replaces the old one durably before the file changes. After a crash in between, its length differs from the
//!    file's. Then it is carried over once more before the engine's first store, and not sooner, because the engine may
//!    refuse a file whose length another program changed.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::RedundancyService;
use super::file::{Found, is_at, look_for, remove_unlocked};
use super::notifier::DamageNotifier;
use super::scrub::{End, Looked};
use super::service::EngineRedundancy;
use super::{Coverage, DamageSender, Mode, Redundancy, RepairReport, Scrub, ScrubReport};
use crate::error::{Error, ProtectionProblem, Result};
use crate::options::Settings;
use crate::storage::{Access, Medium, MediumFile};

/// Watches the stores to one file, and keeps its redundancy.
pub(crate) struct TrackedData<M: Medium> {
    medium: Arc<M>,
    path: PathBuf,
    mode: Mode,
    settings: Settings,
    /// Whether the file counts as it is, whatever checksums say.
    trusted: bool,
    /// Of whatever redundancy the file has.
    notifier: Arc<DamageNotifier>,
    kept: RwLock<Kept<M>>,
}

/// What is kept of the file.
enum Kept<M: Medium> {
    /// Nothing: it has no redundancy file yet.
    Nothing,
    /// It is to be protected, and has no bytes.
    Empty,
    /// Its companion is for another length. It stays as it is, and speaks of the file as it was, until the engine has
    /// taken the file and is about to store to it: a file that somebody cut short is refused, and can be given its
    /// bytes back.
    Stale,
    Open(Box<Redundancy<M>>),
    /// It got another length, and no redundancy file of that length.
    Lost(String),
}

impl<M: Medium> TrackedData<M> {
    /// Watches the file at this path. Nothing is kept of it until it is [bound](TrackedData::bind).
    pub(crate) fn new(medium: Arc<M>, path: &Path, mode: Mode, settings: Settings, trusted: bool) -> Arc<Self> {
        let (path, notifier, kept) = (path.to_owned(), Arc::default(), RwLock::new(Kept::Nothing));
        Arc::new(TrackedData { medium, path, mode, settings, trusted, notifier, kept })
    }

    /// The data file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the redundancy file is like, if there is one and it is open.
    pub(crate) fn settings(&self) -> Option<Settings> {
        match &*self.read() {
            Kept::Open(redundancy) => Some(redundancy.settings()),
            _ => None,
        }
    }

    /// Whether the file has a redundancy file. One that was made for another file with its inode number is set aside.
    ///
    /// # Errors
    /// Those of looking, and [`Error::InUse`] while somebody holds such a one.
    pub(crate) fn is_protected(&self) -> Result<bool> {
        Ok(!matches!(look_for(&*self.medium, &self.path)?, Found::Nothing))
    }

    /// Opens the redundancy of the file, making it if there is none; from here on stores are announced. The companion
    /// file is not changed before the first of them, or before [`begin`](TrackedData::begin): the engine may refuse
    /// the file yet.
    ///
    /// # Errors
    /// Those of [`Redundancy::open`].
    pub(crate) fn bind(&self) -> Result<()> {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        let is_empty = self.medium.open(&self.path, Access::Read, 0)?.is_empty();
        *kept = if is_empty {
            Kept::Empty
        } else if matches!(look_for(&*self.medium, &self.path)?, Found::OfAnotherLength) {
            Kept::Stale
        } else {
            Kept::Open(Box::new(self.open(None)?))
        };
        Ok(())
    }

    /// Opens the redundancy file, or the one that was made just now.
    fn open(&self, made: Option<M::File>) -> Result<Redundancy<M>> {
        let medium = Arc::clone(&self.medium);
        let mut opened =
            Redundancy::open_beside(medium, &self.path, self.mode.clone(), self.settings, self.trusted, made)?;
        opened.notify_through(&self.notifier);
        Ok(opened)
    }

    /// What is kept, after a redundancy file for another length was made anew: the engine has the file by now.
    fn fresh(&self) -> Result<RwLockReadGuard<'_, Kept<M>>> {
        let kept = self.read();
        if !matches!(&*kept, Kept::Stale) {
            return Ok(kept);
        }
        drop(kept);
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*kept, Kept::Stale) {
            *kept = Kept::Open(Box::new(self.open(None)?));
        }
        drop(kept);
        Ok(self.read())
    }

    /// Whether there are no bytes to keep anything of. The lock is not held any more: who waits to change what is
    /// kept would keep out this thread's next look.
    fn is_empty(&self) -> bool {
        matches!(&*self.read(), Kept::Empty)
    }

    /// Notes in the redundancy file that stores are announced from now on.
    ///
    /// # Errors
    /// Those of writing and flushing.
    pub(crate) fn begin(&self) -> Result<()> {
        match &*self.fresh()? {
            Kept::Open(redundancy) => begin(redundancy),
            _ => Ok(()),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept<M>> {
        // A panic between two states leaves the one before, whose redundancy file is another than the file's by length.
        self.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost<T>(&self, cause: &str) -> Result<T> {
        Err(Error::Poisoned { path: self.path.clone(), cause: cause.to_owned() })
    }

    /// Does something with the redundancy.
    fn with<T>(&self, work: impl FnOnce(&Redundancy<M>) -> Result<T>) -> Result<T> {
        match &*self.fresh()? {
            Kept::Open(redundancy) => work(redundancy),
            Kept::Lost(cause) => self.lost(cause),
            Kept::Nothing | Kept::Empty | Kept::Stale => Err(Error::protection(&self.path, ProtectionProblem::Empty)),
        }
    }

    /// Scrubs the file to the end, and does something about it while it has that length. It gives way to whoever
    /// changes the length, and goes on with what is kept then: no page of the length at the end is passed over.
    fn scrubbed<T: Default>(
        &self,
        mut how: Scrub<'_>,
        then: impl FnOnce(&Redundancy<M>, ScrubReport) -> Result<T>,
    ) -> Result<T> {
        let (mut looked, mut then) = (Looked::nothing(), Some(then));
        for round in 0.. {
            if self.is_empty() {
                break;
            }
            let done = self.with(|redundancy| {
                if redundancy.go_on(&mut how, &mut looked)? == End::Left {
                    return Ok(None);
                }
                let report = std::mem::replace(&mut looked, Looked::nothing()).report();
                // Before anybody changes the length again.
                then.take().map(|then| then(redundancy, report)).transpose()
            })?;
            if let Some(done) = done {
                return Ok(done);
            }
            self.medium.relax(round);
        }
        Ok(T::default())
    }

    /// Stores to these bytes of the file, and tells.
    pub(super) fn announced(&self, bytes: Range<u64>, store: impl FnOnce() -> Result<()>) -> Result<()> {
        match &*self.fresh()? {
            Kept::Nothing | Kept::Empty => store(),
            Kept::Stale => self.lost("its redundancy file is for another length and could not be created again"),
            Kept::Lost(cause) => self.lost(cause),
            Kept::Open(redundancy) => {
                let bytes = bytes.start..bytes.end.min(redundancy.len());
                redundancy.announce(bytes.clone())?;
                let stored = store();
                self.medium.order();
                let released = redundancy.release(bytes);
                stored.and(released)
            }
        }
    }

    /// Does with the file what changes its time, and no byte.
    pub(super) fn touched(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        match &*self.fresh()? {
            Kept::Open(redundancy) => {
                redundancy.begin_touch()?;
                let done = work();
                redundancy.end_touch();
                done
            }
            Kept::Lost(cause) => self.lost(cause),
            Kept::Nothing | Kept::Empty | Kept::Stale => work(),
        }
    }

    /// Changes the length of the file. What is kept of it is kept for the new length, and what was covered is covered
    /// then. A file whose path names another by now stays as it is: it is from there that companions are made,
    /// removed and opened.
    pub(super) fn resize(&self, file: &M::File, len: u64) -> Result<()> {
        if file.len() == len {
            return file.set_len(len);
        }
        // What it speaks of must not seem to be of the file, once that has its length again.
        let kept = self.fresh()?;
        if !matches!(&*kept, Kept::Nothing | Kept::Lost(_)) && !is_at(&*self.medium, &self.path, file)? {
            let what = "the file has redundancy, but its path names another file now; rename the file back before you change \
                 its length";
            return Err(Error::Invalid { path: self.path.clone(), what: what.to_owned() });
        }
        if let Kept::Open(redundancy) = &*kept {
            // A pass of the thread or a scrub under way would have to be waited for. What somebody called for is.
            redundancy.leave();
        }
        drop(kept);
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        let prepared = match &*kept {
            Kept::Lost(cause) => return self.lost(cause),
            Kept::Nothing | Kept::Stale => return file.set_len(len),
            Kept::Open(redundancy) if len > 0 => redundancy.renew(len).map(Some),
            // Of no bytes there is no redundancy file. One that is left would count for what the file is given next.
            Kept::Open(_) | Kept::Empty => remove_unlocked(&*self.medium, &self.path).map(|()| None),
        };
        let (made, changed) = match prepared {
            Ok(made) => (made, file.set_len(len)),
            Err(error) => (None, Err(error)),
        };
        let troubles = match &*kept {
            Kept::Open(redundancy) => redundancy.troubles(),
            _ => Default::default(),
        };
        // Lets go of the redundancy file of the old length.
        *kept = Kept::Empty;
        if file.is_empty() {
            return changed;
        }
        match self.open(made).and_then(|redundancy| begin(&redundancy).map(|()| redundancy)) {
            Ok(redundancy) => {
                redundancy.inherit(troubles);
                *kept = Kept::Open(Box::new(redundancy));
                changed
            }
            Err(error) => {
                *kept = Kept::Lost(error.to_string());
                changed.and(Err(error))
            }
        }
    }
}

/// Begins with redundancy; where stores are covered at once, what nobody is storing to is covered from the beginning.
fn begin<M: Medium>(redundancy: &Redundancy<M>) -> Result<()> {
    redundancy.begin()?;
    if redundancy.is_synchronous() { redundancy.cover().map(drop) } else { Ok(()) }
}

impl<M: Medium> RedundancyService for TrackedData<M> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn cover(&self) -> Result<u64> {
        if self.is_empty() { Ok(0) } else { self.with(Redundancy::cover) }
    }

    fn pass(&self) -> Result<u64> {
        if self.is_empty() { Ok(0) } else { self.with(Redundancy::pass) }
    }

    fn set_listener(&self, listener: Option<DamageSender>) {
        self.notifier.set_listener(listener);
    }

    fn coverage(&self) -> Result<Coverage> {
        self.with(Redundancy::coverage)
    }

    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
        self.scrubbed(how, |_, report| Ok(report))
    }

    fn note_scrub(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { self.with(Redundancy::note_scrub) }
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        self.scrubbed(how, Redundancy::repair_found)
    }
}

impl<M: Medium> EngineRedundancy for TrackedData<M> {
    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport> {
        self.scrubbed(how, Redundancy::assess_found)
    }

    fn verify(&self, bytes: Range<u64>, repair: bool) -> Result<()> {
        if self.is_empty() { Ok(()) } else { self.with(|redundancy| redundancy.verify(bytes, repair)) }
    }

    fn finish(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { self.with(Redundancy::finish) }
    }
}
