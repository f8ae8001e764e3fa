//! Opening redundancy, checking what a crash left, and closing it. [`file`](super::file) handles the file
//! itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::bits::Bits;
use super::file::{Filling, agree, attach, create, is_of, redundancy_file};
use super::format::{Left, Superblock};
use super::holes::{Holes, Room};
use super::pages::Pages;
use super::premark::STRIDE;
use super::scrub::Scrubs;
use super::table::{Read, Scope, Tables, tables_exist};
use super::uncovered_since::UncoveredSince;
use super::{Inner, Mode, Redundancy, barriers, sidecar_barriers};
use crate::error::{Error, ProtectionProblem, Result};
use crate::format::sidecar::{MAX_LEN, PAGE, path as sidecar_path};
use crate::options::Settings;
use crate::simd::xor;
use crate::storage::{Access, MarkState, Medium, MediumFile};

/// A file that is being opened with an engine, the sidecar of such a file, or a plain file that got another length.
pub(super) struct Beside<F> {
    /// Whether an engine has the file.
    pub(super) has_engine: bool,
    /// Whether the file is to be taken as it is, see [`Prefer`](crate::options::Prefer).
    pub(super) trusted: bool,
    /// The redundancy file, if it was made just now, locked.
    pub(super) made: Option<F>,
    pub(super) sidecar: Option<InSidecar>,
    /// Whether all parity has its space from the beginning.
    pub(super) has_all_room: bool,
}

/// The pages of a sidecar.
pub(super) struct InSidecar {
    /// Its redundancy file.
    pub(super) place: PathBuf,
    /// Where the pages begin.
    pub(super) from: u64,
}

/// How far the marks can be believed.
enum Belief {
    /// A page that differs and is not marked is damaged.
    All,
    /// Only these pages can be told to be damaged: a repair of them was under way.
    Only(BTreeSet<u64>),
}

impl Inner {
    /// What is known of a redundancy file that has just been read.
    fn new(superblock: Superblock, superblocks: [bool; 2], tables: Tables) -> Self {
        let pages = superblock.geometry.pages();
        Inner {
            begun: false,
            mends: true,
            stored: Bits::new(pages),
            premarked: Bits::new(pages),
            stride: STRIDE,
            storing: BTreeMap::new(),
            touching: 0,
            room: BTreeSet::new(),
            claimed: BTreeSet::new(),
            spoilt: BTreeSet::new(),
            before: BTreeMap::new(),
            unknown: BTreeSet::new(),
            were_unknown: Vec::new(),
            stuck: BTreeSet::new(),
            notified: BTreeSet::new(),
            left_alone: BTreeMap::new(),
            damaged: Vec::new(),
            superblocks,
            uncovered_since: UncoveredSince::new(pages, Instant::now()),
            disbelieved: false,
            carried: false,
            doubts: false,
            seen: superblock.stamp,
            failed: None,
            superblock,
            tables,
        }
    }
}

impl<M: Medium> Redundancy<M> {
    /// Opens the redundancy of a file. If it has none it is made, unless it is only to be looked at; nothing is
    /// covered then, save where stores are covered at once.
    ///
    /// # Errors
    /// [`Error::InUse`] while somebody has it open; [`Error::Protection`] for that of another file;
    /// [`Error::Corrupt`] if neither superblock is whole; [`Error::Protection`] for a file that has an engine, an empty
    /// one, settings that differ from what is there, and a file without redundancy that is only to be looked at.
    pub(crate) fn open(medium: Arc<M>, path: &Path, mode: Mode, settings: Settings) -> Result<Self> {
        let opened = Self::attach(medium, path, mode, settings, None)?;
        opened.start()?;
        Ok(opened)
    }

    /// The same for a file that is being opened with an engine, before that writes to it, for its sidecar, whose
    /// redundancy file there is, or was made just now, and for a plain file that just got another length. Nothing is
    /// changed that is there, until the first announcement or until it [begins](Redundancy::begin): the engine may
    /// refuse the file. Only if it is for another length it is made anew at once, and what it says is carried over. A
    /// caller who knows that others wrote to the file says that it is `trusted`: then no page that differs is taken
    /// for damaged.
    ///
    /// # Errors
    /// As there.
    pub(super) fn attach(
        medium: Arc<M>,
        path: &Path,
        mode: Mode,
        settings: Settings,
        beside: Option<Beside<M::File>>,
    ) -> Result<Self> {
        let plain = Beside { has_engine: false, trusted: false, made: None, sidecar: None, has_all_room: false };
        let Beside { has_engine: is_beside, trusted, made, sidecar, has_all_room } = beside.unwrap_or(plain);
        let of_sidecar = sidecar.is_some();
        let data = medium.open(path, mode.access_to_data(), 0)?;
        let has_engine = check_engine(&*medium, path, &data, &mode, is_beside)?;
        let (place, from) = match sidecar {
            Some(InSidecar { place, from }) => (place, from),
            None => (redundancy_file(path, data.identity()?.inode), 0),
        };
        let mut room = if has_all_room { Room::All } else { Room::OfData { from } };
        let is_resized = made.is_some();
        let (mut side, mut created) = match made {
            Some(made) => (made, true),
            None => attach(&*medium, path, &place, &data, &mode, &settings, room)?,
        };
        if !matches!(mode, Mode::Report) {
            // Any file may have the name: it is a redundancy file before anything is stored to it.
            Superblock::read(&side, &place, &data)?;
            data.sync(barriers::ATTACH_DATA)?;
            side.sync(barriers::ATTACH_SIDE)?;
            side.distrust_cache(barriers::ATTACH_CACHE, 0, side.len())?;
        }
        let (mut superblock, mut superblocks) = Superblock::read(&side, &place, &data)?;
        let is_as_long = of_sidecar || superblock.geometry.len == data.len();
        let is_cut_off = superblock.resized_from == Some(data.len()) && !matches!(mode, Mode::Report);
        let mut troubles = None;
        if (is_beside || is_cut_off) && !is_as_long && is_of(&superblock, &data)? {
            // A crash while its length was being changed. Another may have changed it too, of which the time tells
            // only where nobody stored. No process remembers what was claimed, and recovery may need it.
            room = Room::All;
            // And anybody may have written the length, which nothing bounds but what there is of the companion.
            let is_there = superblock.geometry.side_len() <= side.len()
                && tables_exist(&side, &place, &superblock.geometry).is_ok();
            let is_known = superblock.left == Left::Storing || is_cut_off;
            side = if is_known && !trusted && is_there {
                let before = Self::of_another_length(&medium, path, &place, side, (superblock, superblocks), &mode)?;
                before.doubt_beyond(data.len());
                troubles = Some(before.troubles());
                before.renew(data.len())?
            } else {
                let Superblock { history, .. } = superblock;
                let settings = superblock.settings();
                create(&*medium, path, &place, &data, data.len(), &settings, history, Filling::marked(room))?
            };
            (superblock, superblocks) = Superblock::read(&side, &place, &data)?;
            created = true;
        }
        agree(path, &place, &superblock, &data, &settings, of_sidecar)?;
        if !matches!(mode, Mode::Look | Mode::Report) {
            // Before the first store: the file may have come to another owner or other permissions.
            medium.bring_in_line(&side, &data)?;
        }
        // With whatever is written next.
        superblock.period = settings.keep.or(superblock.period);
        superblock.max_uncovered = settings.keep_max_uncovered.or(superblock.max_uncovered);
        let geometry = superblock.geometry;
        if side.len() < geometry.side_len() {
            if matches!(mode, Mode::Report) {
                let what = "the redundancy file is shorter than its superblock says; protect the file again".to_owned();
                return Err(Error::Corrupt { path: place, offset: Some(side.len()), what });
            }
            // Somebody cut it short. What is missing is then no whole block, and no whole parity.
            tables_exist(&side, &place, &geometry)?;
            side.set_len(geometry.side_len())?;
            room.allocate(&side, &geometry, &data)?;
        } else if is_beside && mode.is_announced() && !created {
            // A plain file was protected, and has an engine now. What others wrote to it since has to be covered too.
            room.allocate(&side, &geometry, &data)?;
            side.sync(sidecar_barriers::ROOM)?;
        }
        // What the next line writes again is not a write that nobody told of.
        let seen = data.stamp()?;
        let untouched = seen == superblock.stamp;
        // Where the engine was not closed it does this itself; where it was, no flush had failed, and the file's time
        // is noted.
        if superblock.left != Left::Closed && mode.is_announced() && !is_beside && !is_resized {
            // Nobody else does this: a mapping that a program stores to meanwhile must not be written over with what
            // it held a moment ago. Of pages that are not marked, a flush that failed has left none.
            data.distrust_cache(barriers::ATTACH_CACHE, 0, data.len())?;
        }
        let (tables, read) = Tables::read(&side, &place, geometry, superblock.tie(), superblock.left == Left::Closed)?;
        let pages = Pages::new(Arc::clone(&medium), path.to_owned(), from, data, mode.access_to_data());
        let carried = created && superblock.left == Left::Storing;
        let damaged = read.damaged.clone();
        let inner = Inner { carried, damaged, seen, ..Inner::new(superblock, superblocks, tables) };
        let batch = settings.batch.max(1);
        let opened = Self::assembled(medium, path, place, pages, side, mode, inner);
        let opened = Redundancy { batch, has_engine, of_sidecar, room, ..opened };
        if !created {
            opened.judge(&read, untouched, trusted)?;
        }
        if let Some(troubles) = troubles {
            opened.inherit(troubles);
        }
        Ok(opened)
    }

    /// What a redundancy file says that is for another length than its file has. Nothing is written to either.
    fn of_another_length(
        medium: &Arc<M>,
        path: &Path,
        place: &Path,
        side: M::File,
        (superblock, superblocks): (Superblock, [bool; 2]),
        mode: &Mode,
    ) -> Result<Self> {
        let geometry = superblock.geometry;
        let (tables, read) = Tables::read(&side, place, geometry, superblock.tie(), false)?;
        let data = medium.open(path, Access::ReadWrite, 0)?;
        let pages = Pages::new(Arc::clone(medium), path.to_owned(), 0, data, Access::ReadWrite);
        let damaged = read.damaged.clone();
        let inner = Inner { mends: false, damaged, ..Inner::new(superblock, superblocks, tables) };
        let before = Self::assembled(Arc::clone(medium), path, place.to_owned(), pages, side, mode.clone(), inner);
        before.judge(&read, false, false)?;
        Ok(before)
    }

    /// The redundancy of a data file that has an engine, covered in batches of one page. The caller changes the rest.
    fn assembled(
        medium: Arc<M>,
        path: &Path,
        side_path: PathBuf,
        pages: Pages<M>,
        side: M::File,
        mode: Mode,
        inner: Inner,
    ) -> Self {
        Redundancy {
            medium,
            path: path.to_owned(),
            side_path,
            pages,
            side,
            geometry: inner.superblock.geometry,
            checksum: inner.superblock.checksum,
            mode,
            batch: 1,
            has_engine: true,
            of_sidecar: false,
            room: Room::All,
            leaving: AtomicBool::new(false),
            notifier: Arc::default(),
            tally: Arc::default(),
            scrubs: Scrubs::default(),
            inner: Mutex::new(inner),
        }
    }

    /// Finds out which pages cannot be told to be damaged or not, and restores what it can of lost table blocks.
    fn judge(&self, read: &Read, untouched: bool, trusted: bool) -> Result<()> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let belief = match inner.superblock.left {
            // Others wrote to it, and which pages nobody knows: the file counts as it is.
            _ if trusted => Belief::Only(BTreeSet::new()),
            // Who protects a mapping has it already, and may have stored to it before, without a trace.
            _ if matches!(self.mode, Mode::Tracked(_)) && !self.pages.notes_stores() => Belief::Only(BTreeSet::new()),
            Left::Closed | Left::Announced if untouched => Belief::All,
            // It was stored to by those who announced it.
            Left::Storing => Belief::All,
            // Between two batches of a repair the time is the one that was noted, so somebody else wrote: of what is
            // listed, pages that were repaired already may be what he wrote.
            Left::Closed | Left::Announced if inner.superblock.intents.is_empty() => Belief::Only(BTreeSet::new()),
            Left::Closed | Left::Announced => {
                let listed = self.listed(inner)?;
                Belief::Only(inner.superblock.intents.iter().copied().chain(listed).collect())
            }
            Left::Tracked => Belief::Only(BTreeSet::new()),
        };
        inner.disbelieved = matches!(belief, Belief::Only(_));
        if matches!(self.mode, Mode::Report) {
            return Ok(());
        }
        let closed = inner.superblock.left == Left::Closed;
        let mut bytes = [0; PAGE as usize];
        let (mut holes, of_zeros) = (Holes::default(), self.checksum.of(&bytes));
        let mut differs = |inner: &Inner, page: u64| -> Result<bool> {
            let is_hole =
                holes.has(&self.geometry.bytes_of(page), |offset, of_pages| self.pages.data_from(offset, of_pages))?;
            let held = if is_hole { Some(of_zeros) } else { self.read(page, &mut bytes)? };
            Ok(held != Some(inner.tables.sum(page)))
        };
        if let Belief::Only(exact) = &belief {
            for page in (0..self.geometry.pages()).filter(|page| !exact.contains(page)) {
                if !inner.tables.uncovered().has(page) && differs(inner, page)? {
                    inner.unknown.insert(page);
                }
            }
        }
        // After a crash, a copy that is not whole may have been the newer one.
        for (block, _) in read.damaged.iter().filter(|(block, _)| !closed && !read.lost.contains(block)) {
            let Scope::Pages(pages) = inner.tables.scope(*block) else { continue };
            for page in pages {
                if !inner.tables.uncovered().has(page) && differs(inner, page)? {
                    inner.unknown.insert(page);
                }
            }
        }
        let lost: Vec<Scope> = read.lost.iter().map(|block| inner.tables.scope(*block)).collect();
        for scope in lost {
            match scope {
                Scope::Pages(pages) => {
                    let stripes: BTreeSet<u64> = pages.clone().map(|page| self.geometry.stripe_of(page)).collect();
                    for stripe in stripes {
                        self.restore_sums(inner, stripe, &pages)?;
                    }
                }
                // A page that is as it was is marked, and so the parity of its stripe made anew.
                Scope::Stripes(stripes) => {
                    for stripe in stripes {
                        for page in self.geometry.members(stripe) {
                            if inner.tables.uncovered().has(page) || !differs(inner, page)? {
                                inner.tables.set_uncovered(page, true);
                                break;
                            }
                        }
                    }
                }
            }
        }
        self.report_unknown(inner);
        Ok(())
    }

    /// Tells of pages that are unknown.
    fn report_unknown(&self, inner: &mut Inner) {
        inner.were_unknown = inner.unknown.iter().copied().collect();
        if let Some(first) = inner.were_unknown.first() {
            let (path, pages) = (self.path.display(), inner.were_unknown.len());
            tracing::warn!(%path, pages, first, "pages changed without being announced; they may be damaged");
        }
    }

    /// The checksums of pages whose table block is lost, if their stripe still agrees with its parity. Else they are
    /// unknown.
    fn restore_sums(&self, inner: &mut Inner, stripe: u64, lost: &std::ops::Range<u64>) -> Result<()> {
        let parity = self.read_parity(stripe, false)?;
        let mut whole = parity.as_ref().is_some_and(|(_, sum)| *sum == inner.tables.parity_sum(stripe));
        let mut sum = parity.map_or_else(|| vec![0; PAGE as usize], |(parity, _)| parity);
        let mut bytes = [0; PAGE as usize];
        let mut sums = Vec::new();
        for page in self.geometry.members(stripe) {
            let held = self.read(page, &mut bytes)?;
            whole &= held.is_some();
            xor(&mut sum, &bytes);
            if lost.contains(&page) {
                sums.push((page, held.unwrap_or_default()));
            } else {
                whole &= !inner.tables.uncovered().has(page);
            }
        }
        whole &= sum.iter().all(|&byte| byte == 0);
        for (page, sum) in sums {
            if whole {
                inner.tables.set_sum(page, sum);
                inner.tables.set_uncovered(page, false);
            } else {
                inner.unknown.insert(page);
            }
        }
        Ok(())
    }

    /// [Begins](Redundancy::begin). If stores are covered at once, pages without a store under way are covered from
    /// the beginning.
    ///
    /// # Errors
    /// Those of beginning and of covering.
    pub(super) fn start(&self) -> Result<()> {
        self.begin()?;
        if matches!(self.mode, Mode::Synchronous) { self.cover().map(drop) } else { Ok(()) }
    }

    /// Says how stores are found out from now on, if that is still to be said.
    ///
    /// # Errors
    /// Those of writing and flushing.
    pub(super) fn begin(&self) -> Result<()> {
        let mut inner = self.usable()?;
        if inner.begun {
            return Ok(());
        }
        let begun = self.take_over(&mut inner);
        self.note_failure(&mut inner, begun)
    }

    /// All that is unknown is marked first, for what differs from then on is damaged.
    pub(super) fn take_over(&self, inner: &mut Inner) -> Result<()> {
        let left = match &self.mode {
            Mode::Look | Mode::Report => return Ok(()),
            Mode::Announced | Mode::Synchronous if self.of_sidecar || inner.carried => Left::Storing,
            Mode::Announced | Mode::Synchronous => Left::Announced,
            Mode::Tracked(_) => Left::Tracked,
        };
        for page in inner.unknown.iter().copied() {
            inner.tables.set_uncovered(page, true);
        }
        for page in inner.tables.uncovered().iter() {
            inner.stored.put(page, true);
        }
        for (block, copy) in std::mem::take(&mut inner.damaged) {
            inner.tables.replace(block, copy);
        }
        inner.tables.write(&self.side)?;
        self.medium.fence(barriers::ADOPT, &[&self.side])?;
        inner.disbelieved = false;
        inner.superblock.left = left;
        inner.superblock.stamp = self.pages.stamp()?;
        inner.superblock.intents.clear();
        inner.superblock.list = 0;
        // The file was made durable when it was opened, and its length with it.
        inner.superblock.resized_from = None;
        // Both copies: if one of them is damaged later, the other must not say how it was before.
        self.write_superblocks(inner, barriers::OPEN)?;
        inner.begun = true;
        Ok(())
    }

    /// Whether the redundancy file says that it was closed.
    pub(super) fn was_closed(&self) -> bool {
        self.lock().superblock.left == Left::Closed
    }

    /// What the redundancy file is like.
    pub(super) fn settings(&self) -> Settings {
        Settings { batch: self.batch, ..self.lock().superblock.settings() }
    }

    /// Takes note of another length of the file, of which as many bytes are protected as before.
    ///
    /// # Errors
    /// Those of opening it anew.
    pub(super) fn follow(&self) -> Result<()> {
        self.pages.follow()
    }

    /// [`close`](Redundancy::close) of a file that its engine has closed: the engine has noted the file's time, so
    /// nothing is repaired any more.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn finish(&self) -> Result<()> {
        self.lock().mends = false;
        self.close()
    }

    /// Covers everything and leaves the file so that later damage is told from later stores. Nobody stores to it
    /// meanwhile.
    ///
    /// # Errors
    /// Those of covering. What could not be covered is left marked.
    pub(crate) fn close(&self) -> Result<()> {
        if matches!(self.mode, Mode::Look | Mode::Report) {
            return Ok(());
        }
        self.cover()?;
        let mut inner = self.usable()?;
        // Marks of what could not be covered, of which only page tables knew.
        let Inner { stored, tables, .. } = &mut *inner;
        stored.iter().for_each(|page| tables.set_uncovered(page, true));
        self.write_marks(&mut inner)?;
        inner.tables.write_twins(&self.side)?;
        self.medium.fence(barriers::CLOSE_TWINS, &[&self.side])?;
        inner.superblock.left = Left::Closed;
        inner.superblock.stamp = self.pages.stamp()?;
        self.write_superblocks(&mut inner, barriers::CLOSE)
    }
}

/// Whether a file has an engine, or is being opened with one. Then nobody else may store to it.
fn check_engine<M: Medium>(medium: &M, path: &Path, data: &M::File, mode: &Mode, beside: bool) -> Result<bool> {
    let has_engine = beside
        || medium.exists(&sidecar_path(path, data.identity()?.inode))?
        || matches!(data.mark()?, MarkState::Present(_));
    let stores = !matches!(mode, Mode::Look | Mode::Report);
    let problem = if has_engine && !beside && stores {
        ProtectionProblem::HasEngine
    } else if data.is_empty() {
        ProtectionProblem::Empty
    } else if data.len() > MAX_LEN {
        ProtectionProblem::TooLong
    } else {
        return Ok(has_engine);
    };
    Err(Error::protection(path, problem))
}
