//! Tracked pages: those of a data file, or of its sidecar, and their redundancy. Every store to them is announced.
//!
//! An engine reaches storage only through its [`Medium`]. [`TrackedStorage`] sits between the engine and the real
//! medium, and handles only these pages. It announces every change before it is made, and releases it when it is made
//! and visible to other threads. Every page that may differ from its covered bytes is therefore known without the
//! engine's help. [`data`] says how the redundancy of a data file follows the file's length, and [`sidecar`] which
//! pages of a sidecar are tracked.
//!
//! A plain file has no engine: its program announces the stores, or page tables tell of them.
//!
//! # Invariants
//!
//! 1. Existing redundancy is open before the engine writes its first byte, and so before recovery writes. New
//!    redundancy is created when the engine has the file open, and so when no other process has.
//! 2. All stores to the pages are between an announcement and its release. Only [`TrackedPages::resize`] and a sidecar
//!    that grows change the redundancy file to another length, and both exclude all stores. Invariants 1 and 2 of
//!    [`redundancy`](super) are therefore those of announced stores. Only a mapping of a plain file is stored to
//!    meanwhile: page tables keep what was stored until they are asked the next time.
//! 3. Bytes that stores past the cache leave in CPU buffers are not visible to other readers yet. They are ordered
//!    before the release; otherwise a page would be covered with its old bytes.

mod data;
mod sidecar;
mod storage;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::notifier::DamageNotifier;
use super::open::Beside;
use super::scrub::{End, Looked};
use super::tally::Tally;
use super::{DamageSender, Mode, Redundancy, Scrub, ScrubReport};
use crate::engine::redundancy::{Pace, Part};
use crate::error::{Error, Result};
use crate::options::Settings;
use crate::storage::Medium;
use sidecar::Sidecar;
pub(crate) use sidecar::no_sidecar_redundancy;
pub(crate) use storage::TrackedStorage;

/// The pages of one file, and their redundancy.
pub(crate) struct TrackedPages<M: Medium> {
    medium: Arc<M>,
    /// The file that has them.
    path: PathBuf,
    of: Of,
    mode: Mode,
    settings: Settings,
    /// Whether a redundancy file that is made has space for all parity from the beginning.
    has_all_room: AtomicBool,
    /// It outlives each redundancy of the pages.
    notifier: Arc<DamageNotifier>,
    /// So does this.
    tally: Arc<Tally>,
    kept: RwLock<Kept<M>>,
}

/// The kind of file that has the pages.
enum Of {
    Data {
        /// Whether the file counts as it is, whatever checksums say.
        trusted: bool,
        /// Whether an engine has the file.
        has_engine: bool,
    },
    Sidecar(Sidecar),
}

/// The redundancy of the pages.
enum Kept<M: Medium> {
    /// Nothing: they have no redundancy file, or none yet.
    Nothing,
    /// A data file is to be protected, and has no bytes.
    Empty,
    /// The companion of a data file is for another length. It stays as it is, and speaks of the file as it was, until
    /// the engine has taken the file and is about to store to it: a file that somebody cut short is refused, and can
    /// be given its bytes back.
    Stale,
    Open(Box<Redundancy<M>>),
    /// They got another length, and no redundancy file of that length.
    Lost(String),
}

impl<M: Medium> TrackedPages<M> {
    /// Nothing is kept of the pages until they are [bound](TrackedPages::bind).
    fn new(medium: Arc<M>, path: PathBuf, of: Of, mode: Mode, settings: Settings) -> Arc<Self> {
        let (notifier, tally, kept) = (Arc::default(), Arc::default(), RwLock::new(Kept::Nothing));
        let has_all_room = AtomicBool::new(false);
        Arc::new(TrackedPages { medium, path, of, mode, settings, has_all_room, notifier, tally, kept })
    }

    /// The pages of a plain file, with their redundancy open.
    ///
    /// # Errors
    /// Those of [`Redundancy::open`].
    pub(crate) fn plain(medium: Arc<M>, path: &Path, mode: Mode, settings: Settings) -> Result<Arc<Self>> {
        let mut opened = Redundancy::open(Arc::clone(&medium), path, mode.clone(), settings)?;
        let of = Of::Data { trusted: false, has_engine: false };
        let pages = TrackedPages::new(medium, path.to_owned(), of, mode, settings);
        opened.notify_through(&pages.notifier);
        opened.count_through(&pages.tally);
        *pages.write() = Kept::Open(Box::new(opened));
        Ok(pages)
    }

    /// The file that has the pages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The offset of the pages in the file: behind its end, if it is a sidecar and has no redundancy.
    pub(crate) fn begins_at(&self) -> u64 {
        match &self.of {
            Of::Data { .. } => 0,
            Of::Sidecar(sidecar) => sidecar.begins_at(),
        }
    }

    /// Whether there is redundancy of the pages, or there was and it was lost.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(&*self.read(), Kept::Nothing)
    }

    /// Sets the listener that hears of damage found by reads and stores.
    pub(crate) fn set_listener(&self, listener: Option<DamageSender>) {
        self.notifier.set_listener(listener);
    }

    /// Whether stores to the pages are found only by looking at page tables.
    pub(super) fn is_looked_for(&self) -> bool {
        matches!(self.mode, Mode::Tracked(_))
    }

    /// Counts uncovered pages for this pace from now on.
    pub(super) fn count_for(&self, pace: &Arc<Pace>) {
        let part = match &self.of {
            Of::Data { .. } => Part::Data,
            Of::Sidecar(_) => Part::Sidecar,
        };
        self.tally.count_for(Arc::clone(pace), part);
        if let Kept::Open(redundancy) = &*self.read() {
            redundancy.note_count(&redundancy.lock());
        }
    }

    /// Opens the redundancy of the pages before their engine stores to them, if there is any. For a data file, this
    /// creates it if there is none, and from here on stores are announced. The redundancy file is not changed before
    /// the first of them, or before it is [started](Redundancy::start): the engine may refuse the file yet. For a
    /// sidecar whose engine has no digest of what says which bytes count, this looks at it, and repairs it if it is
    /// damaged.
    ///
    /// # Errors
    /// Those of [`Redundancy::open`], and [`Error::Corrupt`] for meta pages that are lost.
    pub(crate) fn bind(&self) -> Result<()> {
        match &self.of {
            Of::Data { .. } => self.bind_data(),
            Of::Sidecar(sidecar) => self.bind_sidecar(sidecar),
        }
    }

    /// Changes the length of the file. What is kept of it is kept for the new length, and what was covered is covered
    /// then.
    fn resize(&self, file: &M::File, len: u64) -> Result<()> {
        match &self.of {
            Of::Data { .. } => self.resize_data(file, len),
            Of::Sidecar(_) => self.resize_sidecar(file, len),
        }
    }

    /// Does something with the redundancy; nothing, if there is none.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if it was lost, and those of the work.
    pub(crate) fn with<T: Default>(&self, work: impl FnOnce(&Redundancy<M>) -> Result<T>) -> Result<T> {
        match &*self.fresh()? {
            Kept::Open(redundancy) => work(redundancy),
            Kept::Lost(cause) => self.lost(cause),
            Kept::Nothing | Kept::Empty | Kept::Stale => Ok(T::default()),
        }
    }

    /// Scrubs the pages to the end, and does something about it while there are so many. It gives way to whoever
    /// changes the length, and goes on with what is kept then: no page of the length at the end is passed over.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn scrubbed<T: Default>(
        &self,
        mut how: Scrub<'_>,
        then: impl FnOnce(&Redundancy<M>, ScrubReport) -> Result<T>,
    ) -> Result<T> {
        let (mut looked, mut then) = (Looked::nothing(), Some(then));
        for round in 0.. {
            let done = self.with(|redundancy| {
                if redundancy.go_on(&mut how, &mut looked)? == End::Left {
                    return Ok(Some(None));
                }
                let report = std::mem::replace(&mut looked, Looked::nothing()).report();
                // Before anybody changes the length again.
                then.take().map(|then| then(redundancy, report).map(Some)).transpose()
            })?;
            match done {
                Some(None) => self.medium.relax(round),
                Some(Some(done)) => return Ok(done),
                None => break,
            }
        }
        Ok(T::default())
    }

    /// Compares the covered pages that have any of these bytes of the file with their checksums, and repairs them if
    /// asked to.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that is damaged, and cannot be repaired or is not to be.
    pub(crate) fn verify(&self, bytes: Range<u64>, repair: bool) -> Result<()> {
        let from = self.begins_at();
        if bytes.start < from {
            return Ok(());
        }
        self.with(|redundancy| redundancy.verify(bytes.start - from..bytes.end - from, repair))
    }

    /// Whether there is nothing that an engine would do to these pages when it opens the file: they were closed, or
    /// it is a sidecar that does not exist.
    pub(crate) fn was_closed(&self) -> bool {
        match (&*self.read(), &self.of) {
            (Kept::Open(redundancy), _) => redundancy.was_closed(),
            (Kept::Nothing, Of::Sidecar(_)) => matches!(self.superblock(), Ok(None)),
            _ => false,
        }
    }

    /// Stores to these bytes of the file, and tells.
    fn announced(&self, bytes: Range<u64>, store: impl FnOnce() -> Result<()>) -> Result<()> {
        let from = self.begins_at();
        let kept = match &self.of {
            Of::Data { .. } => self.fresh()?,
            Of::Sidecar(_) if bytes.end <= from => return store(),
            Of::Sidecar(_) => self.room(bytes.end - from)?,
        };
        match &*kept {
            Kept::Nothing | Kept::Empty => store(),
            Kept::Stale => self.lost("its redundancy file is for another length and could not be created again"),
            Kept::Lost(cause) => self.lost(cause),
            Kept::Open(redundancy) => {
                let bytes = bytes.start.max(from) - from..(bytes.end - from).min(redundancy.len());
                redundancy.announce(bytes.clone())?;
                let stored = store();
                self.medium.order();
                let released = redundancy.release(bytes);
                stored.and(released)
            }
        }
    }

    /// Makes sure, durably, that the parity of these bytes of the data file, or of what a sidecar may hold of them, has
    /// its space, before an engine stores anything of a write to them.
    ///
    /// # Errors
    /// ENOSPC, with nothing changed; those of flushing.
    pub(crate) fn claim(&self, bytes: &Range<u64>) -> Result<()> {
        match &self.of {
            Of::Data { .. } => match &*self.fresh()? {
                Kept::Open(redundancy) => redundancy.claim(bytes),
                // The engine's first store says what is wrong.
                _ => Ok(()),
            },
            Of::Sidecar(sidecar) => self.claim_sidecar(sidecar, bytes),
        }
    }

    /// Has a redundancy file that is made from now on have space for all parity from the beginning.
    pub(crate) fn give_all_room(&self) {
        self.has_all_room.store(true, Ordering::Relaxed);
    }

    /// Punches these bytes of the file, and tells. The other pages of a data file's stripes are whole by then, see
    /// invariant 5 of [`resize`](super::resize): what an engine punches there is the end of the file. In a sidecar it
    /// punches what counts no more, all the time, and that is a store like any other.
    fn punched(&self, bytes: Range<u64>, punch: impl FnOnce() -> Result<()>) -> Result<()> {
        if matches!(self.of, Of::Data { .. })
            && let Kept::Open(redundancy) = &*self.fresh()?
        {
            redundancy.mend_beside(&(bytes.start.min(redundancy.len())..bytes.end.min(redundancy.len())))?;
        }
        self.announced(bytes, punch)
    }

    /// Does with the file what changes its time, and no byte.
    fn touched(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        // The time of a sidecar says nothing as long as it is open.
        if matches!(self.of, Of::Sidecar(_)) {
            return work();
        }
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

    /// Opens the redundancy file, or the one that was made just now. It notes damage where that of these pages is told.
    fn open(&self, made: Option<M::File>) -> Result<Redundancy<M>> {
        let has_all_room = self.has_all_room.load(Ordering::Relaxed);
        let (has_engine, trusted, sidecar) = match &self.of {
            Of::Data { trusted, has_engine } => (*has_engine, *trusted, None),
            Of::Sidecar(sidecar) => (true, false, Some(sidecar.pages())),
        };
        let beside = Beside { has_engine, trusted, made, sidecar, has_all_room };
        let (medium, mode) = (Arc::clone(&self.medium), self.mode.clone());
        let mut opened = Redundancy::attach(medium, &self.path, mode, self.settings, Some(beside))?;
        opened.notify_through(&self.notifier);
        opened.count_through(&self.tally);
        Ok(opened)
    }

    /// Lets go of the redundancy file of the old length, and puts that of the new length in its place.
    fn exchange(&self, kept: &mut Kept<M>, made: Option<M::File>) -> Result<()> {
        let troubles = match kept {
            Kept::Open(redundancy) => redundancy.troubles(),
            _ => Default::default(),
        };
        *kept = Kept::Lost("its redundancy file is being replaced by one for another length".to_owned());
        let opened = self.open(made).and_then(|opened| opened.start().map(|()| opened));
        let opened = opened.inspect_err(|error| *kept = Kept::Lost(error.to_string()))?;
        opened.inherit(troubles);
        *kept = Kept::Open(Box::new(opened));
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept<M>> {
        // A panic between two states leaves the one before. Its redundancy file is locked by nobody, or is for another
        // length than the file's.
        self.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Kept<M>> {
        self.kept.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost<T>(&self, cause: &str) -> Result<T> {
        Err(Error::Poisoned { path: self.path.clone(), cause: cause.to_owned() })
    }
}
