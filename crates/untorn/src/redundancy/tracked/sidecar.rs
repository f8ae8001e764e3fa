//! The redundancy of the sidecar pages that may hold valid bytes: file bytes that are only there, and the bitmaps that
//! locate them.
//!
//! For the reflection engine these are all pages after the records: reflection pages, and meta pages with their
//! bitmaps. A slice is valid in one of two places, so half of a page's valid bytes may be here. Everything before them
//! has its own checksums. These pages have their own redundancy file, `DIR/.untorn/INODE.sidecar-redundancy`, and
//! everything in [`redundancy`](crate::redundancy) applies to them, with these differences:
//!
//! 1. Only the engine stores to a sidecar, and all its stores to these pages go through its medium, which announces
//!    them. Stores to the records are not announced, so the sidecar's time means nothing while it is open: a page that
//!    differs and is not marked is damaged. At close, its time is recorded after the engine's last store.
//! 2. An announcement comes in the middle of a program's write, so marks are set [ahead](crate::redundancy::premark).
//! 3. A sidecar grows while in use. Its redundancy file is for a length of its own: pages beyond the sidecar's end are
//!    zeros, as they are when it has grown. Before a store beyond that length, another redundancy file, twice as long,
//!    is created, and the known state is [carried](crate::redundancy::resize) over. It replaces the old one durably
//!    before the store.
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
use std::sync::{Arc, RwLockReadGuard};

use super::{Kept, Of, TrackedPages};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::format::sidecar::superblock::{Left, Superblock};
use crate::format::sidecar::{PAGE, chunk_pages, path as sidecar_path};
use crate::options::{Layout, Settings};
use crate::redundancy::file::{Filling, create, is_of, remove_of_sidecar, sidecar_redundancy_file};
use crate::redundancy::format::Superblock as FileSuperblock;
use crate::redundancy::holes::Room;
use crate::redundancy::open::InSidecar;
use crate::redundancy::{History, Mode, Redundancy, Scrub};
use crate::storage::{Access, Medium, MediumFile};

/// Nothing begins here.
const NOWHERE: u64 = u64::MAX;

/// A sidecar whose pages are tracked.
pub(super) struct Sidecar {
    /// The data file.
    data: PathBuf,
    /// The redundancy file.
    place: PathBuf,
    /// Where the pages begin, as long as there is redundancy of them.
    from: AtomicU64,
    /// How many of them have one that says which bytes of the others count, the first.
    every: AtomicU64,
}

impl Sidecar {
    pub(super) fn begins_at(&self) -> u64 {
        self.from.load(Ordering::Acquire)
    }

    pub(super) fn pages(&self) -> InSidecar {
        InSidecar { place: self.place.clone(), from: self.begins_at() }
    }
}

impl<M: Medium> TrackedPages<M> {
    /// The pages of the sidecar of this file. Nothing is kept of them until they are [bound](TrackedPages::bind).
    ///
    /// # Errors
    /// Those of looking at the file.
    pub(crate) fn of_sidecar(medium: Arc<M>, data: &Path, mode: Mode, batch: u64) -> Result<Arc<Self>> {
        let inode = medium.open(data, Access::Read, 0)?.identity()?.inode;
        // At once would be once for each slice, and for each bitmap in a meta page.
        let mode = if matches!(mode, Mode::Synchronous) { Mode::Announced } else { mode };
        let sidecar = Sidecar {
            data: data.to_owned(),
            place: sidecar_redundancy_file(data, inode),
            from: AtomicU64::new(NOWHERE),
            every: AtomicU64::new(1),
        };
        let settings = Settings { batch, ..Settings::default() };
        Ok(TrackedPages::new(medium, sidecar_path(data, inode), Of::Sidecar(sidecar), mode, settings))
    }

    /// What the sidecar says of itself, if it is one whose pages are protected; an engine says what else is wrong
    /// with it.
    pub(super) fn superblock(&self) -> Result<Option<(M::File, Superblock)>> {
        if !self.medium.exists(&self.path)? {
            return Ok(None);
        }
        let Of::Sidecar(sidecar) = &self.of else { return Ok(None) };
        let data = self.medium.open(&sidecar.data, Access::Read, 0)?;
        let side = self.medium.open_companion(&self.path, Access::Read, 0, &data)?;
        match Superblock::read(&side, &self.path) {
            Ok(superblock) if superblock.engine.has_reflection_pages() => Ok(Some((side, superblock))),
            Ok(_) | Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn bind_sidecar(&self, sidecar: &Sidecar) -> Result<()> {
        let Some((side, superblock)) = self.superblock()? else { return Ok(()) };
        if !self.medium.exists(&sidecar.place)? {
            return Ok(());
        }
        let redundancy_file = self.medium.open_companion(&sidecar.place, Access::Read, 0, &side)?;
        let found = match FileSuperblock::read(&redundancy_file, &sidecar.place, &side) {
            Ok((found, _)) if !is_of(&found, &side)? => return Ok(()), // It is of a sidecar that is gone.
            Ok((found, _)) => {
                let chunk = chunk_pages(superblock.layout) * PAGE;
                let data = self.medium.open(&sidecar.data, Access::Read, 0)?.len();
                self.bounded(sidecar, &found, &redundancy_file, 4 * side.len().max(data).max(chunk))
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(()) => {}
            // Who looks is told; who has the file for good makes it anew.
            Err(Error::Corrupt { .. }) if !matches!(self.mode, Mode::Look) => {
                let file = sidecar.place.display();
                tracing::warn!(redundancy_file = %file, "the redundancy of a sidecar is damaged; creating it again");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        drop((redundancy_file, side));
        let redundancy = self.open_from(sidecar, &superblock, None)?;
        if superblock.left == Left::Open && !matches!(self.mode, Mode::Look | Mode::Report) {
            redundancy.mend(index_of(sidecar, &redundancy))?;
        }
        *self.write() = Kept::Open(Box::new(redundancy));
        Ok(())
    }

    /// Refuses a companion that is shorter than it says, and says that it is of more bytes than the sidecar can be
    /// believed to have had: it would be made as long as it says.
    fn bounded(&self, sidecar: &Sidecar, found: &FileSuperblock, redundancy_file: &M::File, most: u64) -> Result<()> {
        if redundancy_file.len() < found.geometry.side_len() && found.geometry.len > most {
            let what = "the redundancy file is shorter than its superblock says".to_owned();
            return Err(Error::Corrupt { path: sidecar.place.clone(), offset: Some(redundancy_file.len()), what });
        }
        Ok(())
    }

    /// Opens the redundancy of a sidecar that says this of itself, which has its pages announced from now on.
    fn open_from(&self, sidecar: &Sidecar, of: &Superblock, made: Option<M::File>) -> Result<Redundancy<M>> {
        // It has no page but for what is stored, so little is to be saved.
        if of.layout == Layout::Sparse {
            self.give_all_room();
        }
        sidecar.every.store(chunk_pages(of.layout), Ordering::Relaxed);
        sidecar.from.store(of.geometry.chunks_at(), Ordering::Release);
        self.open(made)
    }

    /// Repairs a sidecar that its engine called damaged; whether anything was.
    ///
    /// # Errors
    /// Those of reading, writing and flushing.
    pub(crate) fn mend(&self) -> Result<bool> {
        let report = self.scrubbed(Scrub::telling(&mut |_, _| true), Redundancy::repair_found)?;
        Ok(!report.repaired.is_empty())
    }

    /// Goes on with an engine that has taken its sidecar, which may be a new one: makes what there is not, like that
    /// of the data file, and notes that stores are announced from now on.
    ///
    /// # Errors
    /// Those of creating, reading, writing and flushing.
    pub(crate) fn begin(&self, settings: Settings) -> Result<()> {
        let Of::Sidecar(sidecar) = &self.of else { return Ok(()) };
        if let Kept::Open(redundancy) = &*self.read() {
            return redundancy.begin();
        }
        let Some((side, superblock)) = self.superblock()? else { return Ok(()) };
        let data = self.medium.open(&sidecar.data, Access::Read, 0)?.len().div_ceil(PAGE);
        let (from, chunk) = (superblock.geometry.chunks_at(), chunk_pages(superblock.layout));
        let pages = match superblock.layout {
            // It will have one for each page that is stored to.
            Layout::Sparse => 2 * (side.len().saturating_sub(from) / PAGE).max(chunk),
            // It has one for each page, and a meta page before each chunk of them.
            _ => data.max(1) + data.max(1).div_ceil(chunk - 1),
        };
        let (len, history) = (pages * PAGE, History::default());
        let room = if superblock.layout == Layout::Sparse { Room::All } else { Room::OfData { from } };
        let filling = Filling::marked(room);
        let made = create(&*self.medium, &self.path, &sidecar.place, &side, len, &settings, history, filling)?;
        let redundancy = self.open_from(sidecar, &superblock, Some(made))?;
        redundancy.begin()?;
        *self.write() = Kept::Open(Box::new(redundancy));
        Ok(())
    }

    /// The sidecar is about to lose its name.
    pub(super) fn forget(&self) -> Result<()> {
        let Of::Sidecar(sidecar) = &self.of else { return Ok(()) };
        let mut kept = self.write();
        sidecar.from.store(NOWHERE, Ordering::Release);
        *kept = Kept::Nothing;
        if self.medium.exists(&sidecar.place)? { self.medium.unlink(&sidecar.place) } else { Ok(()) }
    }

    /// What is kept, of at least so many bytes.
    pub(super) fn room(&self, end: u64) -> Result<RwLockReadGuard<'_, Kept<M>>> {
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
        self.exchange(&mut kept, Some(made))
    }

    /// Claims the space of parity for the pages of a dense sidecar that these bytes of the file have: their meta pages,
    /// and the pages behind them. A sparse one has all space from the beginning.
    pub(super) fn claim_sidecar(&self, sidecar: &Sidecar, bytes: &Range<u64>) -> Result<()> {
        let from = sidecar.begins_at();
        if bytes.is_empty() || from == NOWHERE || self.has_all_room.load(Ordering::Relaxed) {
            return Ok(());
        }
        let every = sidecar.every.load(Ordering::Relaxed);
        let chunk = |page: u64| page / (every - 1);
        let (first, last) = (bytes.start / PAGE, (bytes.end - 1) / PAGE);
        let meta = chunk(first) * every;
        let pages = first + chunk(first) + 1..last + chunk(last) + 2;
        match &*self.room(pages.end * PAGE)? {
            Kept::Open(redundancy) => {
                redundancy.claim(&(meta * PAGE..(meta + 1) * PAGE))?;
                redundancy.claim(&(pages.start * PAGE..pages.end * PAGE))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn resize_sidecar(&self, file: &M::File, len: u64) -> Result<()> {
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

    /// Compares all pages that say which bytes of the others count with their checksums; see
    /// [`verify`](TrackedPages::verify).
    pub(crate) fn verify_index(&self, repair: bool) -> Result<()> {
        let Of::Sidecar(sidecar) = &self.of else { return Ok(()) };
        self.with(|redundancy| {
            index_of(sidecar, redundancy).try_for_each(|page| redundancy.verify(page * PAGE..(page + 1) * PAGE, repair))
        })
    }
}

/// The pages that say which bytes of the others count.
fn index_of<M: Medium>(sidecar: &Sidecar, redundancy: &Redundancy<M>) -> impl Iterator<Item = u64> + use<M> {
    (0..redundancy.len().div_ceil(PAGE)).step_by(sidecar.every.load(Ordering::Relaxed) as usize)
}

/// Has a file that is not protected have no redundancy of its sidecar either: nobody tells that of stores.
///
/// # Errors
/// Those of looking, and of removing it.
pub(crate) fn no_sidecar_redundancy<M: Medium>(medium: &M, path: &Path) -> Result<()> {
    remove_of_sidecar(medium, path).map(drop)
}
