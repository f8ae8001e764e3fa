//! The redundancy file: its path, creating it, finding it, checking which file it belongs to, and removing it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::History;
use super::format::{Left, Superblock};
use super::holes::Room;
use super::layout::Geometry;
use super::table::Tables;
use super::{Mode, barriers};
use crate::error::{Error, ProtectionProblem, Result};
use crate::format::dual_copy::DualCopy;
use crate::format::sidecar::attach::{is_named, take_lock};
use crate::format::sidecar::redundancy::set_aside_as;
pub(crate) use crate::format::sidecar::redundancy_file;
use crate::format::sidecar::{parent, path as sidecar_path, superblock as sidecar};
use crate::options::Settings;
use crate::storage::{Access, LockKind, MarkState, Medium, MediumFile, lock_holder};

/// The redundancy file of the sidecar of the data file with this inode number.
pub(super) fn sidecar_redundancy_file(data: &Path, inode: u64) -> PathBuf {
    sidecar_path(data, inode).with_extension("sidecar-redundancy")
}

/// Removes the redundancy file whoever has it open, if there is one.
pub(super) fn remove_unlocked<M: Medium>(medium: &M, path: &Path) -> Result<()> {
    remove_at(medium, &redundancy_file(path, medium.open(path, Access::Read, 0)?.identity()?.inode)).map(drop)
}

/// Removes the companion file of the sidecar, if there is one: of a file that is not protected, or not any more. What
/// its engine stores from then on nobody would tell it of.
///
/// # Errors
/// [`Error::InUse`] while somebody has it open, who has protected the file in this moment, or has it without a byte.
pub(super) fn remove_of_sidecar<M: Medium>(medium: &M, path: &Path) -> Result<bool> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = sidecar_redundancy_file(path, data.identity()?.inode);
    if !medium.exists(&place)? {
        return Ok(false);
    }
    // Held until it is gone.
    let side = medium.open_companion(&place, Access::ReadWrite, 0, &data)?;
    if take_lock(&side, LockKind::Exclusive)? { remove_at(medium, &place) } else { Err(locked(path, &side)) }
}

/// Removes a redundancy file, durably; false if there is none.
fn remove_at<M: Medium>(medium: &M, place: &Path) -> Result<bool> {
    if !medium.exists(place)? {
        return Ok(false);
    }
    medium.unlink(place)?;
    medium.sync_dir(barriers::CREATE_NAME, &parent(place)).map(|()| true)
}

/// Removes the redundancy file; false if there is none.
///
/// # Errors
/// [`Error::InUse`] while somebody has it open.
pub(crate) fn remove<M: Medium>(medium: &M, path: &Path) -> Result<bool> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = redundancy_file(path, data.identity()?.inode);
    if !medium.exists(&place)? {
        return Ok(false);
    }
    let side = medium.open_companion(&place, Access::ReadWrite, 0, &data)?;
    if !take_lock(&side, LockKind::Exclusive)? {
        return Err(locked(path, &side));
    }
    // That of the sidecar first: it speaks of nothing without this one.
    remove_of_sidecar(medium, path)?;
    medium.unlink(&place)?;
    medium.sync_dir(barriers::CREATE_NAME, &parent(&place))?;
    medium.remove_dir_if_empty(&parent(&place))?;
    Ok(true)
}

/// What there is beside a file that is about to be opened with an engine.
pub(super) enum Found {
    Nothing,
    /// Its redundancy file, whether or not that can be read.
    ItsOwn,
    /// Its redundancy file, made for another length: a crash came while that was being changed, or somebody else
    /// changed it.
    OfAnotherLength,
}

/// Looks for the companion of a file, changing none. That of a file that is gone, whose inode number went to this
/// one, is set aside, as an engine does with a sidecar: nobody asked for redundancy of this file, and it is no reason
/// to refuse it.
pub(super) fn look_for<M: Medium>(medium: &M, path: &Path) -> Result<Found> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = redundancy_file(path, data.identity()?.inode);
    if !medium.exists(&place)? {
        return Ok(Found::Nothing);
    }
    let side = medium.open_companion(&place, Access::ReadWrite, 0, &data)?;
    // Nobody may hold it, or have it locked, save whoever made it. What is read here never changes as long as it has
    // its name.
    let Ok((superblock, _)) = Superblock::read(&side, &place, &data) else { return Ok(Found::ItsOwn) };
    if is_of(&superblock, &data)? {
        let differs = superblock.geometry.len != data.len();
        return Ok(if differs { Found::OfAnotherLength } else { Found::ItsOwn });
    }
    if goes_with_anothers(medium, path, &data, &superblock)? {
        return Ok(Found::Nothing);
    }
    if !take_lock(&side, LockKind::Exclusive)? {
        return Err(locked(path, &side));
    }
    if is_named(medium, &place, &side)? {
        let orphan = set_aside_as(&place, &superblock.uuid);
        let (data, file) = (path.display(), orphan.display());
        tracing::warn!(path = %data, redundancy_file = %file, "renamed a redundancy file that belongs to another file");
        medium.rename(&place, &orphan)?;
        medium.sync_dir(barriers::CREATE_NAME, &parent(&place))?;
    }
    Ok(Found::Nothing)
}

/// Whether a redundancy file goes with a sidecar that is not this file's either. The engine sets both aside together.
fn goes_with_anothers<M: Medium>(medium: &M, path: &Path, data: &M::File, redundancy: &Superblock) -> Result<bool> {
    let place = sidecar_path(path, data.identity()?.inode);
    if !medium.exists(&place)? {
        return Ok(false);
    }
    let mark = data.mark()?;
    let sidecar = medium.open_companion(&place, Access::Read, 0, data);
    let sidecar = sidecar.and_then(|side| sidecar::Superblock::read(&side, &place));
    let is_others = |sidecar: &sidecar::Superblock| mark != MarkState::Present(sidecar.uuid);
    Ok(sidecar.is_ok_and(|sidecar| is_others(&sidecar) && redundancy.is_of(&sidecar.identity)))
}

/// The period and the cap that are kept with a file, if it has a redundancy file that can be read.
pub(crate) fn kept_pace<M: Medium>(medium: &M, path: &Path) -> Result<(Option<Duration>, Option<u64>)> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = redundancy_file(path, data.identity()?.inode);
    if !medium.exists(&place)? {
        return Ok((None, None));
    }
    let side = medium.open_companion(&place, Access::Read, 0, &data)?;
    match Superblock::read(&side, &place, &data) {
        Ok((superblock, _)) if is_of(&superblock, &data)? => Ok((superblock.period, superblock.max_uncovered)),
        // Whoever opens it is told what is wrong.
        _ => Ok((None, None)),
    }
}

fn in_use(path: &Path) -> Error {
    let holder = "another process, or this one, which protects the file".to_owned();
    Error::InUse { path: path.to_owned(), holder }
}

fn locked<F: MediumFile>(path: &Path, side: &F) -> Error {
    let holder = format!("{}, which protects the file", lock_holder(side));
    Error::InUse { path: path.to_owned(), holder }
}

/// Opens and locks the redundancy file, making it if need be, with this room. Whether it was made.
pub(super) fn attach<M: Medium>(
    medium: &M,
    path: &Path,
    place: &Path,
    data: &M::File,
    mode: &Mode,
    settings: &Settings,
    room: Room,
) -> Result<(M::File, bool)> {
    let mut created = false;
    for _ in 0..16 {
        if !medium.exists(place)? {
            if matches!(mode, Mode::Look | Mode::Report) {
                return Err(Error::protection(path, ProtectionProblem::NotProtected));
            }
            let filling = Filling { is_first: true, ..Filling::marked(room) };
            drop(create(medium, path, place, data, data.len(), settings, History::default(), filling)?);
            created = true;
        }
        let reserve = side_reserve(data, settings);
        let side = match medium.open_companion(place, mode.access_to_redundancy(), reserve, data) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        if !take_lock(&side, LockKind::Exclusive)? {
            return Err(locked(path, &side));
        }
        if is_named(medium, place, &side)? {
            if created || matches!(mode, Mode::Report) {
                return Ok((side, created));
            }
            // The names that a killed process made may not be durable.
            medium.sync_dir(barriers::ATTACH_NAMES, &parent(place))?;
            medium.sync_dir(barriers::ATTACH_NAMES, &parent(&parent(place)))?;
            return Ok((side, false));
        }
    }
    Err(in_use(path))
}

/// The longest a redundancy file of this file can be.
fn side_reserve<F: MediumFile>(data: &F, settings: &Settings) -> u64 {
    let widest = Geometry { len: data.len(), stripe: 1, layout: settings.layout.unwrap_or_default() };
    widest.side_len() + widest.list_len()
}

/// Changes tables in which every page is marked uncovered, and writes parity.
pub(super) type Fill<'a, F> = &'a mut dyn FnMut(&F, &mut Tables) -> Result<()>;

/// What a new redundancy file says.
pub(super) struct Filling<'a, F> {
    pub(super) left: Left,
    pub(super) room: Room,
    pub(super) fill: Option<Fill<'a, F>>,
    /// It takes the place of none. If there is one by now, another process has just made it.
    pub(super) is_first: bool,
    /// It takes the place of one for this length, which the file still has.
    pub(super) resized_from: Option<u64>,
}

impl<F> Filling<'_, F> {
    /// Every page is marked uncovered.
    pub(super) fn marked(room: Room) -> Self {
        Filling { left: Left::Announced, room, fill: None, is_first: false, resized_from: None }
    }
}

/// Makes a redundancy file, under another name first, so that a crash leaves a whole
/// one or none, or the one that it takes the place of. It is locked.
#[expect(clippy::too_many_arguments, reason = "each is what the file is made of")]
pub(super) fn create<M: Medium>(
    medium: &M,
    path: &Path,
    place: &Path,
    data: &M::File,
    len: u64,
    settings: &Settings,
    history: History,
    filling: Filling<'_, M::File>,
) -> Result<M::File> {
    let stripe = settings.stripe.unwrap_or(Settings::STRIPE);
    if !(1..=Geometry::MAX_STRIPE).contains(&stripe) {
        let what = format!("a stripe must have 1 to {} data pages, not {stripe}", Geometry::MAX_STRIPE);
        return Err(Error::Invalid { path: path.to_owned(), what });
    }
    let geometry = Geometry { len, stripe, layout: settings.layout.unwrap_or_default() };
    let mut unfinished = OsString::from(place);
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let side = create_unfinished(medium, path, &unfinished, geometry.side_len(), data)?;
    let made = || {
        if filling.is_first && medium.exists(place)? {
            return Err(in_use(path));
        }
        side.set_len(geometry.side_len())?;
        // At once: a full disk is an error here and not later.
        filling.room.allocate(&side, &geometry, data)?;
        let mut superblock = Superblock {
            uuid: medium.unique()?,
            seq: 0,
            identity: data.identity()?,
            geometry,
            checksum: settings.checksum.unwrap_or_default(),
            left: filling.left,
            stamp: data.stamp()?,
            intents: Vec::new(),
            list: 0,
            period: settings.keep,
            max_uncovered: settings.keep_max_uncovered,
            resized_from: filling.resized_from,
            history,
        };
        superblock.write(&side)?;
        superblock.write(&side)?;
        let mut tables = Tables::new(geometry, superblock.tie(), place)?;
        if let Some(fill) = filling.fill {
            fill(&side, &mut tables)?;
        }
        tables.write(&side)?;
        tables.write_twins(&side)?;
        side.sync(barriers::CREATE_FILE)?;
        medium.rename(&unfinished, place)
    };
    made().inspect_err(|_| {
        // If it cannot be removed either, the first error is the one that helps.
        let _ = medium.unlink(&unfinished);
        let _ = medium.remove_dir_if_empty(&parent(place));
    })?;
    medium.sync_dir(barriers::CREATE_NAME, &parent(place))?;
    medium.sync_dir(barriers::CREATE_NAME, &parent(&parent(place)))?;
    Ok(side)
}

/// Creates the file that becomes a redundancy file, and locks it. Only one process at a time has it, until the file has
/// its name.
///
/// # Errors
/// [`Error::InUse`] while another process makes one; those of creating.
fn create_unfinished<M: Medium>(
    medium: &M,
    path: &Path,
    unfinished: &Path,
    reserve: u64,
    data: &M::File,
) -> Result<M::File> {
    let dir = parent(unfinished);
    medium.create_companion_dir(&dir, data)?;
    let is = |error: &Error, kind| matches!(error, Error::Io { source, .. } if source.kind() == kind);
    for _ in 0..16 {
        let (side, is_left) = match medium.create_like(unfinished, 0, reserve, data) {
            Err(error) if is(&error, ErrorKind::AlreadyExists) => {
                match medium.open_companion(unfinished, Access::ReadWrite, 0, data) {
                    Err(error) if is(&error, ErrorKind::NotFound) => continue,
                    left => (left?, true),
                }
            }
            created => (created.inspect_err(|_| drop(medium.remove_dir_if_empty(&dir)))?, false),
        };
        if !take_lock(&side, LockKind::Exclusive)? {
            return Err(locked(path, &side));
        }
        // Another process may have given it its name, or have removed it as a leftover, before it was locked here.
        if is_named(medium, unfinished, &side)? {
            if !is_left {
                return Ok(side);
            }
            medium.unlink(unfinished)?;
        }
    }
    Err(in_use(path))
}

/// Refuses settings that the redundancy file does not have which an adoption brings to a file. Whether it can be read:
/// otherwise the file has none after the adoption. Changes nothing.
///
/// # Errors
/// [`Error::Protection`] for other settings; errors of reading.
pub(crate) fn check_settings<F: MediumFile>(
    path: &Path,
    place: &Path,
    side: &F,
    data: &F,
    settings: &Settings,
) -> Result<bool> {
    let Ok((found, _)) = Superblock::read(side, place, data) else { return Ok(false) };
    agree_on_settings(path, &found, settings).map(|()| true)
}

/// The same for the redundancy file at this place, if it names the file already.
///
/// # Errors
/// As for [`check_settings`].
pub(crate) fn check_settings_at<M: Medium>(
    medium: &M,
    path: &Path,
    place: &Path,
    data: &M::File,
    settings: &Settings,
) -> Result<bool> {
    if !medium.exists(place)? {
        return Ok(false);
    }
    let side = medium.open_companion(place, Access::Read, 0, data)?;
    let is_ours = Superblock::read(&side, place, data).is_ok_and(|(found, _)| is_of(&found, data).unwrap_or(false));
    if is_ours { check_settings(path, place, &side, data, settings) } else { Ok(false) }
}

/// Whether a redundancy file was made for this file.
pub(super) fn is_of<F: MediumFile>(found: &Superblock, data: &F) -> Result<bool> {
    Ok(found.is_of(&data.identity()?))
}

/// Whether a path names the file that is open.
pub(super) fn is_at<M: Medium>(medium: &M, path: &Path, file: &M::File) -> Result<bool> {
    let (named, open) = (medium.open(path, Access::Read, 0)?.identity()?, file.identity()?);
    Ok((named.inode, named.generation, named.birth) == (open.inode, open.generation, open.birth))
}

/// Whether a redundancy file is that of this file, as it is now.
pub(super) fn agree<F: MediumFile>(
    path: &Path,
    place: &Path,
    found: &Superblock,
    data: &F,
    settings: &Settings,
    of_sidecar: bool,
) -> Result<()> {
    let geometry = found.geometry;
    if !is_of(found, data)? {
        return Err(Error::protection(path, ProtectionProblem::OtherFile { redundancy: place.to_owned() }));
    }
    // A crash came amid a change of the length. The next open carries it over, unless it only reports.
    let is_cut_off = found.resized_from == Some(data.len());
    if !of_sidecar && geometry.len != data.len() && !is_cut_off {
        let problem = ProtectionProblem::OtherLength { protected: geometry.len, now: data.len() };
        return Err(Error::protection(path, problem));
    }
    agree_on_settings(path, found, settings)
}

/// Whether a redundancy file is kept as it is asked for.
fn agree_on_settings(path: &Path, found: &Superblock, settings: &Settings) -> Result<()> {
    let geometry = found.geometry;
    let asked = (
        settings.stripe.unwrap_or(geometry.stripe),
        settings.layout.unwrap_or(geometry.layout),
        settings.checksum.unwrap_or(found.checksum),
    );
    if asked != (geometry.stripe, geometry.layout, found.checksum) {
        let kept =
            format!("stripes of {} data pages, {} layout and {}", geometry.stripe, geometry.layout, found.checksum);
        return Err(Error::protection(path, ProtectionProblem::OtherSettings { kept }));
    }
    Ok(())
}
