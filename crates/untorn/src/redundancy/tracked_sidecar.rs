//! The redundancy of the sidecar pages that may hold valid bytes: file bytes that are only there, and the bitmaps that
//! locate them.
//!
//! For the reflection engine these are all pages after the records: reflection pages, and meta pages with their
//! bitmaps. A slice is valid in one of two places, so half of a page's valid bytes may be here. Everything before them
//! has its own checksums. These pages have their own redundancy file, `DIR/.untorn/INODE.sidecar-redundancy`, and
//! everything in [`redundancy`](super) applies to them, with these differences:
//!
//! 1. Only the engine stores to a sidecar, and all its stores to these pages go through its medium, which announces
//!    them. Stores to the records are not announced, so the sidecar's time means nothing while it is open: a page that
//!    differs and is not marked is damaged. At close, its time is recorded after the engine's last store.
//! 2. An announcement comes in the middle of a program's write, so marks are set [ahead](super::premark).
//! 3. A sidecar grows while in use. Its redundancy file is for a length of its own: pages beyond the sidecar's end are
//!    zeros, as they are when it has grown. Before a store beyond that length, another redundancy file, twice as long,
//!    is created, and the known state is [carried](super::resize) over. It replaces the old one durably before the
//!    store.
//! 4. When a sidecar is removed or renamed, its redundancy file stays behind. The sidecar's identity shows that a
//!    redundancy file, left by a crash beside another sidecar, does not belong to it.
//! 5. The pages that locate bytes are checked before recovery trusts them, since recovery has no digest of them. An
//!    engine that finds its sidecar damaged has it repaired, and checks again.
//!
//! The hybrid log's sidecar is not covered: committed bytes there are checkpointed before each pass, see
//! `redundancy::engine`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::History;
use super::file::{create_marked, is_of, remove_of_sidecar, sidecar_redundancy_file};
use super::format::Superblock as FileSuperblock;
use super::notifier::DamageNotifier;
use super::open::InSidecar;
use super::scrub::{End, Looked};
use super::service::SidecarRedundancy;
use super::{Coverage, DamageSender, Mode, Redundancy, RepairReport, Scrub, ScrubReport};
use crate::engine::redundancy::{in_sidecar, repair_in_sidecar};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::format::sidecar::superblock::{Left, Superblock};
use crate::format::sidecar::{PAGE, chunk_pages, path as sidecar_path};
use crate::options::{EngineKind, Layout, Settings};
use crate::storage::{Access, Medium, MediumFile};

/// Nothing begins here.
const NOWHERE: u64 = u64::MAX;

/// The pages of one sidecar, and their redundancy.
pub(crate) struct TrackedSidecar<M: Medium> {
    medium: Arc<M>,
    data: PathBuf,
    path: PathBuf,
    place: PathBuf,
    mode: Mode,
    batch: u64,
    /// Where the pages begin, as long as there is redundancy of them.
    from: AtomicU64,
    /// How many of them have one that says which bytes of the others count, the first.
    every: AtomicU64,
    /// Of whatever redundancy there is of them.
    notifier: Arc<DamageNotifier>,
    kept: RwLock<Kept<M>>,
}

enum Kept<M: Medium> {
    Nothing,
    Open(Box<Redundancy<M>>),
    /// It had to be longer, and could not be made so.
    Lost(String),
}

impl<M: Medium> TrackedSidecar<M> {
    /// The pages of the sidecar of this file. Nothing is kept of them until they are
    /// [bound](TrackedSidecar::bind).
    ///
    /// # Errors
    /// Those of looking at the file.
    pub(crate) fn new(medium: Arc<M>, data: &Path, mode: Mode, batch: u64) -> Result<Arc<Self>> {
        let inode = medium.open(data, Access::Read, 0)?.identity()?.inode;
        // At once would be once for each slice, and for each bitmap in a meta page.
        let mode = if matches!(mode, Mode::Synchronous) { Mode::Announced } else { mode };
        Ok(Arc::new(TrackedSidecar {
            medium,
            data: data.to_owned(),
            path: sidecar_path(data, inode),
            place: sidecar_redundancy_file(data, inode),
            mode,
            batch,
            from: AtomicU64::new(NOWHERE),
            every: AtomicU64::new(1),
            notifier: Arc::default(),
            kept: RwLock::new(Kept::Nothing),
        }))
    }

    /// The sidecar.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept<M>> {
        // A panic between two states leaves the one before, whose redundancy file is locked by nobody and speaks of
        // what was.
        self.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Kept<M>> {
        self.kept.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the sidecar says of itself, if it is one whose pages are protected; an engine says what else is wrong
    /// with it.
    fn superblock(&self) -> Result<Option<(M::File, Superblock)>> {
        if !self.medium.exists(&self.path)? {
            return Ok(None);
        }
        let side = self.medium.open(&self.path, Access::Read, 0)?;
        match Superblock::read(&side, &self.path) {
            Ok(superblock) if superblock.engine == EngineKind::Reflection => Ok(Some((side, superblock))),
            Ok(_) | Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the redundancy of a sidecar that has one, before its engine stores to it. Where that has no digest of
    /// what says which bytes count, this is looked at, and given back if it is damaged.
    ///
    /// # Errors
    /// Those of [`Redundancy::open`], and [`Error::Corrupt`] for meta pages that are lost.
    pub(crate) fn bind(&self) -> Result<()> {
        let Some((side, superblock)) = self.superblock()? else { return Ok(()) };
        if !self.medium.exists(&self.place)? {
            return Ok(());
        }
        let redundancy_file = self.medium.open(&self.place, Access::Read, 0)?;
        let found = match FileSuperblock::read(&redundancy_file, &self.place, &side) {
            Ok((found, _)) if !is_of(&found, &side)? => return Ok(()), // It is of a sidecar that is gone.
            Ok((found, _)) => {
                let chunk = chunk_pages(superblock.layout) * PAGE;
                let data = self.medium.open(&self.data, Access::Read, 0)?.len();
                self.bounded(&found, &redundancy_file, 4 * side.len().max(data).max(chunk))
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(()) => {}
            // Who looks is told; who has the file for good makes it anew.
            Err(Error::Corrupt { .. }) if !matches!(self.mode, Mode::Look) => {
                tracing::warn!(redundancy_file = %self.place.display(), "the redundancy of a sidecar is damaged; creating it \
                                                                   again");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        drop((redundancy_file, side));
        let from = superblock.geometry.chunks_at();
        let redundancy = self.open(from, None)?;
        let chunk = chunk_pages(superblock.layout);
        if superblock.left == Left::Open && !matches!(self.mode, Mode::Look | Mode::Report) {
            redundancy.mend((0..redundancy.len().div_ceil(PAGE)).step_by(chunk as usize))?;
        }
        self.keep(from, chunk, redundancy);
        Ok(())
    }

    /// Refuses a companion that is shorter than it says, and says that it is of more bytes than the sidecar can be
    /// believed to have had: it would be made as long as it says.
    fn bounded(&self, found: &FileSuperblock, redundancy_file: &M::File, most: u64) -> Result<()> {
        if redundancy_file.len() < found.geometry.side_len() && found.geometry.len > most {
            let what = "the redundancy file is shorter than its superblock says".to_owned();
            return Err(Error::Corrupt { path: self.place.clone(), offset: Some(redundancy_file.len()), what });
        }
        Ok(())
    }

    fn open(&self, from: u64, made: Option<M::File>) -> Result<Redundancy<M>> {
        let sidecar = InSidecar { place: self.place.clone(), from };
        let (medium, mode) = (Arc::clone(&self.medium), self.mode.clone());
        let mut opened = Redundancy::open_of_sidecar(medium, &self.path, mode, self.batch, sidecar, made)?;
        opened.notify_through(&self.notifier);
        Ok(opened)
    }

    fn keep(&self, from: u64, every: u64, redundancy: Redundancy<M>) {
        *self.write() = Kept::Open(Box::new(redundancy));
        self.every.store(every, Ordering::Relaxed);
        self.from.store(from, Ordering::Release);
    }

    /// Repairs a sidecar that its engine called damaged; whether anything was.
    ///
    /// # Errors
    /// Those of reading, writing and flushing.
    pub(crate) fn mend(&self) -> Result<bool> {
        let Kept::Open(redundancy) = &*self.read() else { return Ok(false) };
        let report = redundancy.repair(Scrub::telling(&mut |_, _| true))?;
        Ok(!report.repaired.is_empty())
    }

    /// Goes on with an engine that has taken its sidecar, which may be a new one: makes what there is not, like that
    /// of the data file, and notes that stores are announced from now on.
    ///
    /// # Errors
    /// Those of creating, reading, writing and flushing.
    pub(crate) fn begin(&self, settings: Settings) -> Result<()> {
        if let Kept::Open(redundancy) = &*self.read() {
            return redundancy.begin();
        }
        let Some((side, superblock)) = self.superblock()? else { return Ok(()) };
        let data = self.medium.open(&self.data, Access::Read, 0)?.len().div_ceil(PAGE);
        let (from, chunk) = (superblock.geometry.chunks_at(), chunk_pages(superblock.layout));
        let pages = match superblock.layout {
            // It will have one for each page that is stored to.
            Layout::Sparse => 2 * (side.len().saturating_sub(from) / PAGE).max(chunk),
            // It has one for each page, and a meta page before each chunk of them.
            _ => data.max(1) + data.max(1).div_ceil(chunk - 1),
        };
        let made =
            create_marked(&*self.medium, &self.path, &self.place, &side, pages * PAGE, &settings, History::default())?;
        let redundancy = self.open(from, Some(made))?;
        redundancy.begin()?;
        self.keep(from, chunk, redundancy);
        Ok(())
    }

    /// The sidecar is about to lose its name.
    pub(super) fn forget(&self) -> Result<()> {
        let mut kept = self.write();
        self.from.store(NOWHERE, Ordering::Release);
        *kept = Kept::Nothing;
        if self.medium.exists(&self.place)? { self.medium.unlink(&self.place) } else { Ok(()) }
    }

    /// Stores to these bytes of the sidecar, and tells.
    pub(super) fn announced(&self, bytes: Range<u64>, store: impl FnOnce() -> Result<()>) -> Result<()> {
        let from = self.from.load(Ordering::Acquire);
        if bytes.end <= from {
            return store();
        }
        let bytes = bytes.start.max(from) - from..bytes.end - from;
        match &*self.room(bytes.end)? {
            Kept::Nothing => store(),
            Kept::Lost(cause) => Err(Error::Poisoned { path: self.path.clone(), cause: cause.clone() }),
            Kept::Open(redundancy) => {
                redundancy.announce(bytes.clone())?;
                let stored = store();
                self.medium.order();
                let released = redundancy.release(bytes);
                stored.and(released)
            }
        }
    }

    /// What is kept, of at least so many bytes.
    fn room(&self, end: u64) -> Result<RwLockReadGuard<'_, Kept<M>>> {
        loop {
            let kept = self.read();
            match &*kept {
                Kept::Open(redundancy) if redundancy.len() < end => redundancy.leave(),
                _ => return Ok(kept),
            }
            drop(kept);
            self.lengthen(end)?;
        }
    }

    /// Puts a redundancy file for more bytes in the place of this one. Nobody is storing meanwhile.
    fn lengthen(&self, end: u64) -> Result<()> {
        let mut kept = self.write();
        let Kept::Open(redundancy) = &*kept else { return Ok(()) };
        if redundancy.len() >= end {
            return Ok(());
        }
        let len = end.next_multiple_of(PAGE).max(2 * redundancy.len());
        // What it was asked to leave for does not come: else no pass would ever cover anything again, and say so to
        // nobody.
        let made = redundancy.renew(len).inspect_err(|_| redundancy.stay())?;
        // Lets go of the one before, whose redundancy file has no name any more.
        let troubles = redundancy.troubles();
        *kept = Kept::Lost("its redundancy could not be extended to the new length".to_owned());
        let longer = self.open(self.from.load(Ordering::Acquire), Some(made))?;
        longer.begin()?;
        longer.inherit(troubles);
        *kept = Kept::Open(Box::new(longer));
        Ok(())
    }

    /// Changes the length of the sidecar.
    pub(super) fn resize(&self, file: &M::File, len: u64) -> Result<()> {
        let old = file.len();
        if len < old {
            self.announced(len..old, || file.set_len(len))?;
        } else {
            // What is added was zeros before.
            file.set_len(len)?;
        }
        match &*self.read() {
            Kept::Open(redundancy) => redundancy.follow(),
            _ => Ok(()),
        }
    }

    /// Does something with the redundancy, if there is any.
    fn with<T>(&self, work: impl FnOnce(&Redundancy<M>) -> Result<T>) -> Result<Option<T>> {
        match &*self.read() {
            Kept::Open(redundancy) => work(redundancy).map(Some),
            Kept::Lost(cause) => Err(Error::Poisoned { path: self.path.clone(), cause: cause.clone() }),
            Kept::Nothing => Ok(None),
        }
    }

    /// Scrubs the pages to the end, and does something about it while there are so many. It gives way to a store that
    /// needs a companion for more, and goes on with that.
    fn scrubbed<T: Default>(
        &self,
        mut how: Scrub<'_>,
        then: impl FnOnce(&Redundancy<M>, ScrubReport) -> Result<T>,
    ) -> Result<T> {
        let (mut looked, mut then) = (Looked::nothing(), Some(then));
        for round in 0.. {
            let done = self.with(|redundancy| {
                if redundancy.go_on(&mut how, &mut looked)? == End::Left {
                    return Ok(None);
                }
                let report = std::mem::replace(&mut looked, Looked::nothing()).report();
                then.take().map(|then| then(redundancy, report)).transpose()
            })?;
            match done {
                Some(None) => self.medium.relax(round),
                Some(Some(done)) => return Ok(done),
                None => break,
            }
        }
        Ok(T::default())
    }

    fn begins_at(&self) -> u64 {
        self.from.load(Ordering::Acquire)
    }
}

/// Has a file that is not protected have no redundancy of its sidecar either: nobody tells that of stores.
///
/// # Errors
/// Those of looking, and of removing it.
pub(crate) fn no_sidecar_redundancy<M: Medium>(medium: &M, path: &Path) -> Result<()> {
    remove_of_sidecar(medium, path).map(drop)
}

impl<M: Medium> TrackedSidecar<M> {
    /// Whether there is nothing that an engine would do to these pages when it opens the file: they were closed, or
    /// there are none.
    pub(super) fn was_closed(&self) -> bool {
        match &*self.read() {
            Kept::Open(redundancy) => redundancy.was_closed(),
            Kept::Lost(_) => false,
            Kept::Nothing => matches!(self.superblock(), Ok(None)),
        }
    }
}

impl<M: Medium> SidecarRedundancy for TrackedSidecar<M> {
    fn is_kept(&self) -> bool {
        !matches!(&*self.read(), Kept::Nothing)
    }

    fn set_listener(&self, listener: Option<DamageSender>) {
        self.notifier.set_listener(listener);
    }

    fn cover(&self) -> Result<u64> {
        Ok(self.with(Redundancy::cover)?.unwrap_or_default())
    }

    fn pass(&self) -> Result<u64> {
        Ok(self.with(Redundancy::pass)?.unwrap_or_default())
    }

    fn coverage(&self) -> Result<Option<Coverage>> {
        self.with(Redundancy::coverage)
    }

    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
        let report = self.scrubbed(how, |_, report| Ok(report))?;
        Ok(in_sidecar(report, self.begins_at()))
    }

    fn note_scrub(&self) -> Result<()> {
        self.with(Redundancy::note_scrub).map(Option::unwrap_or_default)
    }

    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport> {
        let report = self.scrubbed(how, Redundancy::assess_found)?;
        Ok(repair_in_sidecar(report, self.begins_at()))
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        let report = self.scrubbed(how, Redundancy::repair_found)?;
        Ok(repair_in_sidecar(report, self.begins_at()))
    }

    fn verify(&self, bytes: Range<u64>, repair: bool) -> Result<()> {
        let from = self.begins_at();
        if bytes.start < from {
            return Ok(());
        }
        let verified = self.with(|redundancy| redundancy.verify(bytes.start - from..bytes.end - from, repair));
        verified.map(Option::unwrap_or_default)
    }

    fn verify_index(&self, repair: bool) -> Result<()> {
        let every = self.every.load(Ordering::Relaxed);
        let verified = self.with(|redundancy| {
            let mut pages = (0..redundancy.len().div_ceil(PAGE)).step_by(every as usize);
            pages.try_for_each(|page| redundancy.verify(page * PAGE..(page + 1) * PAGE, repair))
        });
        verified.map(Option::unwrap_or_default)
    }

    fn finish(&self) -> Result<()> {
        self.with(Redundancy::finish).map(Option::unwrap_or_default)
    }
}
