//! Making a companion file, opening one, judging what a crash left, closing it, removing it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::io::Errno;

use super::bits::Bits;
use super::format::{History, Left, Superblock};
use super::layout::Geometry;
use super::pages::FilePages;
use super::table::{Read, Scope, Tables};
use super::{Inner, Mode, Redundancy, barriers};
use crate::error::{Error, Result};
use crate::medium::{Access, LockKind, MarkState, Medium, MediumFile};
use crate::options::Settings;
use crate::sidecar::attach::{is_named, take_lock};
use crate::sidecar::{MAX_LEN, PAGE, directory, parent, path as sidecar_path};
use crate::simd::xor;

/// The companion file of the data file with this inode number.
pub(crate) fn companion(data: &Path, inode: u64) -> PathBuf {
    sidecar_path(data, inode).with_extension("redundancy")
}

/// Removes the companion file whoever has it open, if there is one.
pub(super) fn remove_unlocked<M: Medium>(medium: &M, path: &Path) -> Result<()> {
    let place = companion(path, medium.open(path, Access::Read, 0)?.identity()?.inode);
    if !medium.exists(&place)? {
        return Ok(());
    }
    medium.unlink(&place)?;
    medium.sync_dir(barriers::CREATE_NAME, &directory(path))
}

/// Removes the companion file; false if there is none.
///
/// # Errors
/// [`Error::InUse`] while somebody has it open.
pub(crate) fn remove<M: Medium>(medium: &M, path: &Path) -> Result<bool> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = companion(path, data.identity()?.inode);
    if !medium.exists(&place)? {
        return Ok(false);
    }
    let side = medium.open(&place, Access::ReadWrite, 0)?;
    if !take_lock(&side, LockKind::Exclusive)? {
        return Err(in_use(path));
    }
    medium.unlink(&place)?;
    medium.sync_dir(barriers::CREATE_NAME, &directory(path))?;
    medium.remove_dir_if_empty(&directory(path))?;
    Ok(true)
}

fn in_use(path: &Path) -> Error {
    let holder = "another process, or this one, which protects it".to_owned();
    Error::InUse { path: path.to_owned(), holder }
}

/// How far the marks can be believed.
enum Belief {
    /// A page that differs and is not marked is damaged.
    All,
    /// Only these pages can be told to be damaged: a repair of them was under way.
    Only(BTreeSet<u64>),
}

impl<M: Medium> Redundancy<M> {
    /// Opens the redundancy of a file. If it has none it is made, unless it is only to be looked at; nothing is covered then,
    /// save where stores are covered at once.
    ///
    /// # Errors
    /// [`Error::InUse`] while somebody has it open; [`Error::SidecarMismatch`] for that of another file; [`Error::Corrupt`] if
    /// neither superblock is whole; [`Error::Invalid`] for a file that has an engine, an empty one, and settings that differ
    /// from what is there; ENOENT, if it is only to be looked at and there is none.
    pub(crate) fn open(medium: Arc<M>, path: &Path, mode: Mode, settings: Settings) -> Result<Self> {
        let opened = Self::attach(medium, path, mode, settings, false)?;
        opened.begin()?;
        if matches!(opened.mode, Mode::Synchronous) {
            // Then whatever nobody is storing to is covered, from the beginning.
            opened.cover()?;
        }
        Ok(opened)
    }

    /// The same for a file that is being opened with an engine, and before that writes to it. Nothing is changed that is there,
    /// until the first announcement or until it [begins](Redundancy::begin): the engine may refuse the file. If it is for
    /// another length it is made anew, and nothing of it is covered.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn open_beside(medium: Arc<M>, path: &Path, mode: Mode, settings: Settings) -> Result<Self> {
        Self::attach(medium, path, mode, settings, true)
    }

    fn attach(medium: Arc<M>, path: &Path, mode: Mode, settings: Settings, beside: bool) -> Result<Self> {
        let data = medium.open(path, Access::ReadWrite, 0)?;
        let has_engine = check_engine(&*medium, path, &data, &mode, beside)?;
        let inode = data.identity()?.inode;
        let place = companion(path, inode);
        let (mut side, mut created) = attach(&*medium, path, &place, &data, &mode, &settings)?;
        if !matches!(mode, Mode::Report) {
            data.sync(barriers::ATTACH_DATA)?;
        }
        side.sync(barriers::ATTACH_SIDE)?;
        side.distrust_cache(barriers::ATTACH_CACHE, 0, side.len())?;
        let (mut superblock, mut superblocks) = Superblock::read(&side, &place)?;
        if beside && superblock.geometry.len != data.len() && is_of(&superblock, &data)? {
            // A crash while its length was being changed.
            create(&*medium, path, &place, &data, data.len(), &superblock.settings(), superblock.history)?;
            (side, _) = attach(&*medium, path, &place, &data, &mode, &settings)?;
            (superblock, superblocks) = Superblock::read(&side, &place)?;
            created = true;
        }
        agree(path, &place, &superblock, &data, &settings)?;
        let geometry = superblock.geometry;
        if side.len() < geometry.side_len() {
            // Somebody cut it short. What is missing is then no whole block, and no whole parity.
            side.set_len(geometry.side_len())?;
            side.allocate(0, geometry.side_len())?;
        }
        // What the next line writes again is not a write that nobody told of.
        let untouched = data.stamp()? == superblock.stamp;
        // Where the engine was not closed it does this itself; where it was, no flush had failed, and the file's time is noted.
        if superblock.left != Left::Closed && mode.is_announced() && !beside {
            // Nobody else does this: a mapping that a program stores to meanwhile must not be written over with what it held a
            // moment ago. Of pages that are not marked, a flush that failed has left none.
            data.distrust_cache(barriers::ATTACH_CACHE, 0, data.len())?;
        }
        let (tables, read) = Tables::read(&side, geometry, superblock.tie(), superblock.left == Left::Closed)?;
        let pages = Box::new(FilePages(data));
        let inner = Inner {
            begun: false,
            mends: true,
            stored: Bits::new(geometry.pages()),
            storing: BTreeMap::new(),
            before: BTreeMap::new(),
            unknown: BTreeSet::new(),
            were_unknown: Vec::new(),
            stuck: BTreeSet::new(),
            damaged: read.damaged.clone(),
            superblocks,
            whole_at: Instant::now(),
            disbelieved: false,
            failed: None,
            superblock,
            tables,
        };
        let opened = Redundancy {
            medium,
            path: path.to_owned(),
            side_path: place,
            pages,
            side,
            geometry,
            checksum: inner.superblock.checksum,
            mode,
            batch: settings.batch.max(1),
            has_engine,
            leaving: AtomicBool::new(false),
            inner: Mutex::new(inner),
        };
        if !created {
            opened.judge(&read, untouched)?;
        }
        Ok(opened)
    }

    /// Finds out which pages cannot be told to be damaged or not, and restores what it can of lost table blocks.
    fn judge(&self, read: &Read, untouched: bool) -> Result<()> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let belief = match inner.superblock.left {
            // Who protects a mapping has it already, and may have stored to it before, without a trace.
            _ if matches!(self.mode, Mode::Tracked(_)) && !self.pages.notes_stores() => Belief::Only(BTreeSet::new()),
            Left::Closed | Left::Announced if untouched => Belief::All,
            // It was stored to by those who announced it.
            Left::Storing => Belief::All,
            Left::Closed | Left::Announced => Belief::Only(inner.superblock.intents.iter().copied().collect()),
            Left::Tracked => Belief::Only(BTreeSet::new()),
        };
        inner.disbelieved = matches!(belief, Belief::Only(_));
        if matches!(self.mode, Mode::Report) {
            return Ok(());
        }
        let closed = inner.superblock.left == Left::Closed;
        let mut bytes = [0; PAGE as usize];
        let mut differs = |inner: &Inner, page: u64| -> Result<bool> {
            self.read(page, &mut bytes)?;
            Ok(self.checksum.of(&bytes) != inner.tables.sum(page))
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
            tracing::warn!(%path, pages, first, "pages changed that nobody told of; they may be damaged");
        }
    }

    /// The checksums of pages whose table block is lost, if their stripe still agrees with its parity. Else they are unknown.
    fn restore_sums(&self, inner: &mut Inner, stripe: u64, lost: &std::ops::Range<u64>) -> Result<()> {
        let mut sum = [0; PAGE as usize];
        self.side.read(self.geometry.parity_at(stripe), &mut sum)?;
        let mut whole = self.checksum.of(&sum) == inner.tables.parity_sum(stripe);
        let mut bytes = [0; PAGE as usize];
        let mut sums = Vec::new();
        for page in self.geometry.members(stripe) {
            self.read(page, &mut bytes)?;
            xor(&mut sum, &bytes);
            if lost.contains(&page) {
                sums.push((page, self.checksum.of(&bytes)));
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

    /// Says how stores are found out from now on, if that is still to be said.
    ///
    /// # Errors
    /// Those of writing and flushing.
    pub(crate) fn begin(&self) -> Result<()> {
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
        // Both copies: if one of them is damaged later, the other must not say how it was before.
        self.write_superblocks(inner, barriers::OPEN)?;
        inner.begun = true;
        Ok(())
    }

    /// Puts a companion file for another length in the place of this one, durably; all of it is marked. This one is of no
    /// further use.
    ///
    /// # Errors
    /// Those of creating, writing and flushing.
    pub(crate) fn renew(&self, len: u64) -> Result<()> {
        let data = self.medium.open(&self.path, Access::Read, 0)?;
        let superblock = self.lock().superblock.clone();
        create(&*self.medium, &self.path, &self.side_path, &data, len, &superblock.settings(), superblock.history)
    }

    /// [`close`](Redundancy::close) of a file that its engine has closed: the engine has noted the file's time, so nothing is
    /// repaired any more.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn finish(&self) -> Result<()> {
        self.lock().mends = false;
        self.close()
    }

    /// Covers everything and leaves the file so that later damage is told from later stores. Nobody stores to it meanwhile.
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
    let what = if has_engine && !beside && stores {
        "it has an engine, and only that may store to it; open it as such with `Options::redundancy`, protect it with `untorn \
         protect`, or settle it first (`untorn settle`)"
    } else if data.is_empty() {
        "an empty file has nothing to protect; give it its length first"
    } else if data.len() > MAX_LEN {
        "no file is so long"
    } else {
        return Ok(has_engine);
    };
    Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() })
}

/// Opens and locks the companion file, making it if need be. Whether it was made.
fn attach<M: Medium>(
    medium: &M,
    path: &Path,
    place: &Path,
    data: &M::File,
    mode: &Mode,
    settings: &Settings,
) -> Result<(M::File, bool)> {
    let mut created = false;
    for _ in 0..16 {
        if !medium.exists(place)? {
            if matches!(mode, Mode::Look | Mode::Report) {
                return Err(Error::io("find the redundancy of", path, Errno::NOENT));
            }
            create(medium, path, place, data, data.len(), settings, History::default())?;
            created = true;
        }
        let reserve = side_reserve(data, settings);
        let side = match medium.open(place, Access::ReadWrite, reserve) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        if !take_lock(&side, LockKind::Exclusive)? {
            return Err(in_use(path));
        }
        if is_named(medium, place, &side)? {
            if created {
                return Ok((side, true));
            }
            // The names that a killed process made may not be durable.
            medium.sync_dir(barriers::ATTACH_NAMES, &directory(path))?;
            medium.sync_dir(barriers::ATTACH_NAMES, &parent(path))?;
            return Ok((side, false));
        }
    }
    Err(in_use(path))
}

/// The longest a companion file of this file can be.
fn side_reserve<F: MediumFile>(data: &F, settings: &Settings) -> u64 {
    let widest = Geometry { len: data.len(), stripe: 1, layout: settings.layout.unwrap_or_default() };
    widest.side_len()
}

/// Makes a companion file in which every page is marked uncovered, under another name first, so that a crash leaves a whole
/// one or none, or the one that it takes the place of.
fn create<M: Medium>(
    medium: &M,
    path: &Path,
    place: &Path,
    data: &M::File,
    len: u64,
    settings: &Settings,
    history: History,
) -> Result<()> {
    let stripe = settings.stripe.unwrap_or(Settings::STRIPE);
    if !(1..=Geometry::MAX_STRIPE).contains(&stripe) {
        let what = format!("a stripe has 1 to {} data pages, not {stripe}", Geometry::MAX_STRIPE);
        return Err(Error::Invalid { path: path.to_owned(), what });
    }
    let geometry = Geometry { len, stripe, layout: settings.layout.unwrap_or_default() };
    medium.create_dir(&directory(path))?;
    let mut unfinished = OsString::from(place);
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let side = loop {
        match medium.create_like(&unfinished, 0, geometry.side_len(), data) {
            Ok(side) if take_lock(&side, LockKind::Exclusive)? => break side,
            Ok(_) => return Err(in_use(path)),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {
                let left = medium.open(&unfinished, Access::ReadWrite, 0)?;
                if !take_lock(&left, LockKind::Exclusive)? {
                    return Err(in_use(path));
                }
                medium.unlink(&unfinished)?;
            }
            Err(error) => return Err(error),
        }
    };
    let made = || {
        side.set_len(geometry.side_len())?;
        // All space at once: a full disk is an error here and not later.
        side.allocate(0, geometry.side_len())?;
        let mut superblock = Superblock {
            uuid: medium.unique()?,
            seq: 0,
            identity: data.identity()?,
            geometry,
            checksum: settings.checksum.unwrap_or_default(),
            left: Left::Announced,
            stamp: data.stamp()?,
            intents: Vec::new(),
            history,
        };
        superblock.write(&side)?;
        superblock.write(&side)?;
        let mut tables = Tables::new(geometry, superblock.tie());
        tables.write(&side)?;
        tables.write_twins(&side)?;
        side.sync(barriers::CREATE_FILE)?;
        medium.rename(&unfinished, place)?;
        medium.sync_dir(barriers::CREATE_NAME, &directory(path))?;
        medium.sync_dir(barriers::CREATE_NAME, &parent(path))
    };
    made().inspect_err(|_| {
        // If it cannot be removed either, the first error is the one that helps.
        let _ = medium.unlink(&unfinished);
    })
}

/// Whether a companion file was made for this file.
fn is_of<F: MediumFile>(found: &Superblock, data: &F) -> Result<bool> {
    let (theirs, ours) = (found.identity, data.identity()?);
    let differ = |a: u64, b: u64| a != 0 && b != 0 && a != b;
    Ok(theirs.inode == ours.inode && !differ(theirs.generation, ours.generation) && !differ(theirs.birth, ours.birth))
}

/// Whether a companion file is that of this file, as it is now.
fn agree<F: MediumFile>(path: &Path, place: &Path, found: &Superblock, data: &F, settings: &Settings) -> Result<()> {
    let invalid = |what: String| Err(Error::Invalid { path: path.to_owned(), what });
    if !is_of(found, data)? {
        return invalid(format!(
            "the redundancy {} was made for another file, which had the same inode number; remove it with `untorn \
             unprotect`",
            place.display()
        ));
    }
    if found.geometry.len != data.len() {
        return invalid(format!(
            "it had {} bytes when it was protected and has {} now; remove its redundancy with `untorn unprotect` and protect \
             it again",
            found.geometry.len,
            data.len()
        ));
    }
    let geometry = found.geometry;
    let asked = (
        settings.stripe.unwrap_or(geometry.stripe),
        settings.layout.unwrap_or(geometry.layout),
        settings.checksum.unwrap_or(found.checksum),
    );
    if asked != (geometry.stripe, geometry.layout, found.checksum) {
        return invalid(format!(
            "it is protected already, with stripes of {} data pages, {} layout and {}; unprotect it first to change that",
            geometry.stripe, geometry.layout, found.checksum
        ));
    }
    Ok(())
}
