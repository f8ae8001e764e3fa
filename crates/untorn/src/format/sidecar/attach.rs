//! Finding, checking and creating the sidecar of a data file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::admit::{Asked, admit, how_left};
use super::adopt::{Relocation, explained};
use super::number::Stamped;
use super::retirement::Retirement;
use super::superblock::{Left, Name, Superblock};
use super::{Geometry, PAGE, adoption_barriers, barriers, companions, number, parent, path as sidecar_path, uuid_text};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::options::{Durability, EngineKind, Layout, Options, Prefer};
use crate::storage::{Access, Identity, LockKind, MarkState, Medium, MediumFile, Stamp, lock_holder};
use crate::sys::locks::Waiting;

/// A sidecar that belongs to its data file, locked by this handle.
pub(crate) struct Attached<F> {
    pub(crate) side: F,
    pub(crate) path: PathBuf,
    pub(crate) superblock: Superblock,
    pub(crate) retirement: Retirement,
}

impl<F: MediumFile> Attached<F> {
    /// After a crash, makes both files read as they are on the medium.
    ///
    /// After a clean close the cache may stay as it is. "Clean" came from the medium just now, it was stored only
    /// after a flush of everything before it, and "open" is durable before anything is stored after it. All that a
    /// flush can have lost in between are those two and the retirement lines beside them, which attaching reads anew
    /// each time. A reader may rely on the same, so it drops nothing.
    pub(crate) fn distrust_cache(&self, data: &F) -> Result<()> {
        if matches!(self.superblock.left, Left::Open | Left::Fresh) {
            data.distrust_cache(barriers::ATTACH_CACHE, 0, data.len())?;
            self.side.distrust_cache(barriers::ATTACH_CACHE, 0, self.side.len())?;
        }
        Ok(())
    }

    /// The same with the length that counts.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the sidecar is too short for its record area.
    pub(crate) fn with_length(mut self, data: &F) -> Result<Self> {
        if self.superblock.left == Left::Fresh || self.superblock.holds_nothing() {
            // No commit was ever made, or the file has all of them and was plain since. Its length is right.
            self.retirement.len = data.len();
        }
        let (has, needed) = (self.side.len(), self.superblock.geometry.chunks_at());
        if has < needed {
            let what = format!("the sidecar was truncated: it has {has} bytes, its record area alone needs {needed}");
            return Err(Error::Corrupt { path: self.path, offset: Some(has), what });
        }
        Ok(self)
    }
}

/// What a new sidecar shall be like.
pub(crate) struct Plan {
    pub(crate) engine: EngineKind,
    pub(crate) layout: Layout,
    pub(crate) durability: Durability,
    pub(crate) geometry: Geometry,
    /// The log of a new sidecar may have inline entries.
    pub(crate) inline: bool,
    /// Bytes of a new sidecar.
    pub(crate) len: u64,
    /// Bytes it may grow to.
    pub(crate) reserve: u64,
}

/// Opens the sidecar of `data` for reading and writing, creating it if the file has none.
///
/// # Errors
/// A sidecar that does not match its file is refused with the variant that says what differs; [`Error::InUse`] while
/// another process has it.
pub(crate) fn attach<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    plan: &Plan,
    options: &Options,
) -> Result<Attached<M::File>> {
    let identity = data.identity()?;
    let place = sidecar_path(path, identity.inode);
    // Another process may create, settle or remove the sidecar between two of our steps; each time round we look anew.
    let mut drop_sidecar = options.prefer == Some(Prefer::File);
    // The UUID of the sidecar that this call has made.
    let mut made = None;
    for _ in 0..16 {
        let Some(side) = open_existing(medium, &place, Access::ReadWrite, plan.reserve, data)? else {
            match data.mark()? {
                // Created and marked since we looked.
                MarkState::Present(_) if medium.exists(&place)? => {}
                MarkState::Present(mark) if !drop_sidecar => return Err(missing(medium, path, data, &place, &mark)),
                // The user gives a sidecar up that is not there.
                MarkState::Present(_) => {
                    number::give_up(medium, data, None, true)?;
                    data.set_mark(None)?;
                }
                _ => match create(medium, path, data, &place, identity, plan) {
                    Ok(Some(uuid)) => (drop_sidecar, made) = (false, Some(uuid)),
                    Ok(None) => {}
                    // The last to leave the directory removed it under our hands.
                    Err(error) if is_not_found(&error) => {}
                    Err(error) => return Err(error),
                },
            }
            continue;
        };
        if !take_lock(&side, LockKind::Exclusive)? {
            return Err(locked(path, &side));
        }
        // It may have been settled, and another one created, while we waited for the lock.
        if !is_named(medium, &place, &side)? {
            continue;
        }
        data.begin_own_changes()?;
        // Not before: whoever is to keep others away may have come while we waited for the lock.
        options.exclusion.as_ref().map_or(Ok(()), |exclusion| exclusion.check_exclusion())?;
        data.sync(barriers::ATTACH_FILES)?;
        side.sync(barriers::ATTACH_FILES)?;
        if options.adopt {
            // An adoption that was killed may have renamed the sidecar without making the name durable. Every other
            // sidecar that counts was named durably by the process that made it: one that was not is fresh.
            medium.sync_dir(adoption_barriers::NAMES, &parent(&place))?;
        }
        side.distrust_cache(barriers::ATTACH_LINES, 0, Geometry::LANES_AT)?;
        let mut superblock = match Superblock::read(&side, &place) {
            Err(Error::Corrupt { .. }) if drop_sidecar => {
                number::give_up(medium, data, None, true)?;
                remove(medium, path, data, &place)?;
                continue;
            }
            other => other?,
        };
        let mark = data.mark()?;
        let theirs = agree(path, &place, &superblock, identity, mark).is_err();
        if mark == MarkState::Absent && orphaned(&superblock, identity) || drop_sidecar && theirs {
            // The file it was made for is gone and its inode number went to this one, which never had a sidecar; or the
            // user says that it does not belong here. It is kept, for its own file may be matched with it by its UUID.
            Relocation::aside(medium, data, &place, side, superblock)?.set_aside(medium, path, data)?;
            continue;
        }
        if options.adopt && mark == MarkState::Present(superblock.uuid) {
            superblock.identity = identity;
        }
        let kept = if drop_sidecar {
            None
        } else {
            let is_new = made == Some(superblock.uuid);
            let asked = Asked { path, place: &place, engine: plan.engine, prefer: options.prefer, is_new };
            admit(&asked, &mut superblock, &side, data).map_err(|error| explained(medium, path, data, mark, error))?
        };
        let Some(retirement) = kept else {
            if superblock.left != Left::Settled {
                let checkpoint = Retirement::read(&side, &place, &superblock.uuid).ok();
                let has_commits = drop_sidecar && superblock.left != Left::Clean;
                number::give_up(medium, data, checkpoint.map(|line| line.stamped()), has_commits)?;
                superblock.left = Left::Settled;
                superblock.write(&side)?;
                medium.fence(barriers::REMOVE_STATE, &[&side])?;
            }
            remove(medium, path, data, &place)?;
            continue;
        };
        superblock.name = Name::of(path);
        // Before the first store: since the last opening the file may have come to another owner or other permissions.
        medium.bring_in_line(&side, data)?;
        return Ok(Attached { side, path: place, superblock, retirement });
    }
    Err(in_use(path))
}

/// The engine whose sidecar a file has, if there is one that can be read. Nothing is locked: whoever opens it finds out
/// whether it still is so.
pub(crate) fn engine_of<M: Medium>(medium: &M, path: &Path) -> Result<Option<EngineKind>> {
    let data = medium.open(path, Access::Read, 0)?;
    let place = sidecar_path(path, data.identity()?.inode);
    let Some(side) = open_existing(medium, &place, Access::Read, 0, &data)? else { return Ok(None) };
    match Superblock::read(&side, &place) {
        // What is wrong with it is for those to say who open it in earnest.
        Err(Error::Corrupt { .. } | Error::Unsupported { .. }) => Ok(None),
        superblock => superblock.map(|superblock| Some(superblock.engine)),
    }
}

/// Opens the sidecar of `data` for reading, locked against writers, without creating or changing anything; `None` if
/// the file has none that counts.
///
/// # Errors
/// As for [`attach`].
pub(crate) fn share<M: Medium>(medium: &M, path: &Path, data: &M::File) -> Result<Option<Attached<M::File>>> {
    let place = sidecar_path(path, data.identity()?.inode);
    for _ in 0..16 {
        let Some(side) = open_existing(medium, &place, Access::Read, 0, data)? else {
            match data.mark()? {
                // Created and marked since we looked.
                MarkState::Present(_) if medium.exists(&place)? => continue,
                MarkState::Present(mark) => return Err(missing(medium, path, data, &place, &mark)),
                _ => return Ok(None),
            }
        };
        if !take_lock(&side, LockKind::Shared)? {
            return Err(locked(path, &side));
        }
        if is_named(medium, &place, &side)? {
            let mark = data.mark()?;
            return judge(path, place, data, side).map_err(|error| explained(medium, path, data, mark, error));
        }
    }
    Err(in_use(path))
}

/// What a reader makes of a sidecar that no writer has.
fn judge<F: MediumFile>(path: &Path, place: PathBuf, data: &F, side: F) -> Result<Option<Attached<F>>> {
    let (identity, mark) = (data.identity()?, data.mark()?);
    let mut superblock = Superblock::read(&side, &place)?;
    if superblock.left == Left::Settled || mark == MarkState::Absent && orphaned(&superblock, identity) {
        return Ok(None);
    }
    superblock.left = how_left(&superblock, &side, &place)?;
    agree(path, &place, &superblock, identity, mark)?;
    match superblock.left {
        // No commit was ever made with it: whatever it holds does not count.
        Left::Fresh => return Ok(None),
        Left::Clean if superblock.holds_nothing() => {}
        Left::Clean => unchanged(path, superblock.stamp, data.stamp()?)?,
        Left::Disputed => return Err(disturbed(path)),
        Left::Open | Left::Settled => {}
    }
    let retirement = Retirement::read(&side, &place, &superblock.uuid)?;
    Ok(Some(Attached { side, path: place, superblock, retirement }))
}

/// Takes the lock of a sidecar; false if another process keeps it. One that was killed may still seem to for a moment:
/// the kernel lets its files go only after the flushes it had under way.
///
/// A writer that waits says so, and readers let it pass: shared locks of readers that come and go may overlap for ever.
pub(crate) fn take_lock<F: MediumFile>(side: &F, kind: LockKind) -> Result<bool> {
    let mut announced = None;
    for _ in 0..50 {
        let lets_pass = kind == LockKind::Shared && side.descriptor().is_some_and(Waiting::is_announced);
        if !lets_pass && side.try_lock(kind)? {
            return Ok(true);
        }
        if kind == LockKind::Exclusive && announced.is_none() {
            announced = side.descriptor().and_then(Waiting::announce);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // Whoever waits may have been stopped.
    side.try_lock(kind)
}

/// Opens a companion of `data`, if there is one of this name.
pub(super) fn open_existing<M: Medium>(
    medium: &M,
    name: &Path,
    access: Access,
    reserve: u64,
    data: &M::File,
) -> Result<Option<M::File>> {
    if !medium.exists(name)? {
        return Ok(None);
    }
    match medium.open_companion(name, access, reserve, data) {
        Err(error) if is_not_found(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether a name stands for this open file, at the length that was seen when it was opened: whoever held the lock
/// before us may have changed either since.
pub(crate) fn is_named<M: Medium>(medium: &M, name: &Path, file: &M::File) -> Result<bool> {
    match open_existing(medium, name, Access::Read, 0, file)? {
        Some(named) => Ok(named.identity()? == file.identity()? && named.len() == file.len()),
        None => Ok(false),
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

fn missing<M: Medium>(medium: &M, path: &Path, data: &M::File, place: &Path, mark: &[u8; 16]) -> Error {
    let (at, sidecar) = (path.to_owned(), place.to_owned());
    let error = Error::SidecarMissing { path: at, sidecar, uuid: uuid_text(mark), original: None, found: None };
    explained(medium, path, data, MarkState::Present(*mark), error)
}

pub(crate) fn in_use(path: &Path) -> Error {
    Error::InUse { path: path.to_owned(), holder: "another process".to_owned() }
}

pub(super) fn locked<F: MediumFile>(path: &Path, side: &F) -> Error {
    Error::InUse { path: path.to_owned(), holder: lock_holder(side) }
}

/// Whether a sidecar was made for an earlier file that had the same inode number.
fn orphaned(superblock: &Superblock, identity: Identity) -> bool {
    let recorded = superblock.identity;
    let differ = |a: u64, b: u64| a != 0 && b != 0 && a != b;
    recorded.inode == identity.inode
        && (differ(recorded.birth, identity.birth) || differ(recorded.generation, identity.generation))
}

/// Whether a sidecar and a data file belong together.
pub(crate) fn agree(
    path: &Path,
    sidecar: &Path,
    superblock: &Superblock,
    identity: Identity,
    mark: MarkState,
) -> Result<()> {
    let mismatch = |what: String| {
        let (path, sidecar) = (path.to_owned(), sidecar.to_owned());
        Err(Error::SidecarMismatch { path, sidecar, what, found: None })
    };
    let recorded = superblock.identity;
    let of = superblock.name.beside(path).map(|name| format!("the file {}, ", name.display())).unwrap_or_default();
    if recorded.inode != identity.inode {
        let (theirs, ours) = (recorded.inode, identity.inode);
        return mismatch(format!("it was created for {of}inode {theirs}, but this file is inode {ours}"));
    }
    if orphaned(superblock, identity) {
        return mismatch(format!("it was created for {of}an older file with the same inode number"));
    }
    match mark {
        MarkState::Present(mark) if mark == superblock.uuid => Ok(()),
        MarkState::Present(mark) => mismatch(format!(
            "it was created for {of}UUID {1}, but this file carries the mark {0}",
            uuid_text(&mark),
            uuid_text(&superblock.uuid)
        )),
        // While a sidecar is being created the mark comes last, so the file may not carry it yet.
        MarkState::Absent if superblock.left == Left::Fresh => Ok(()),
        MarkState::Absent => mismatch("the file was replaced: it does not carry the sidecar's mark".to_owned()),
        // Without a mark, the device is all that is left to compare; it is stable as long as nothing was moved.
        MarkState::Unsupported if recorded.device != identity.device => {
            mismatch("the file is on another device than the one the sidecar was created for".to_owned())
        }
        MarkState::Unsupported => Ok(()),
    }
}

/// Whether a data file is as it was when it was closed cleanly.
pub(crate) fn unchanged(path: &Path, recorded: Stamp, now: Stamp) -> Result<()> {
    let what = if recorded.size != now.size {
        format!("it has {} bytes, but had {} when untorn closed it", now.size, recorded.size)
    } else if recorded.modified != now.modified {
        "its modification time is not the one recorded when untorn closed it".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::ModifiedExternally { path: path.to_owned(), what })
}

/// The error of a file that another program changed while it was open.
pub(crate) fn disturbed(path: &Path) -> Error {
    let what =
        "its length or its modification time changed while untorn had it open, and not by untorn; the open epoch \
                was not committed"
            .to_owned();
    Error::ModifiedExternally { path: path.to_owned(), what }
}

/// Makes the data file say that it has this sidecar. Attaching, which comes next, makes that durable.
fn brand<F: MediumFile>(data: &F, superblock: &Superblock) -> Result<()> {
    match data.mark()? {
        MarkState::Unsupported => Ok(()),
        _ => {
            number::make_room(data)?;
            data.set_mark(Some(superblock.uuid))
        }
    }
}

/// Removes a sidecar whose content is not wanted or not needed any more. The mark goes first and durably: a mark
/// without a sidecar would be refused.
pub(crate) fn remove<M: Medium>(medium: &M, path: &Path, data: &M::File, sidecar: &Path) -> Result<()> {
    if matches!(data.mark()?, MarkState::Present(_)) {
        data.set_mark(None)?;
    }
    data.sync(barriers::REMOVE_MARK)?;
    tracing::debug!(path = %path.display(), sidecar = %sidecar.display(), "removing a sidecar");
    medium.unlink(sidecar)?;
    for companion in companions(sidecar) {
        if medium.exists(&companion)? {
            medium.unlink(&companion)?;
        }
    }
    medium.remove_dir_if_empty(&parent(sidecar))
}

/// Creates a sidecar under a temporary name and gives it its final one when it is whole. Returns its UUID; `None` if
/// another process came in between, and all is to be looked at anew.
fn create<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    place: &Path,
    identity: Identity,
    plan: &Plan,
) -> Result<Option<[u8; 16]>> {
    let dir = parent(place);
    medium.create_companion_dir(&dir, data)?;
    let temporary = place.with_extension("new");
    let earlier = open_existing(medium, &temporary, Access::ReadWrite, plan.reserve, data)?;
    let is_ours = earlier.is_none();
    let side = match earlier.map_or_else(|| medium.create_like(&temporary, 0, plan.reserve, data), Ok) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => return Ok(None),
        side => side?,
    };
    // The lock decides between two processes that create at once.
    if !take_lock(&side, LockKind::Exclusive)? {
        return Err(locked(path, &side));
    }
    // Whoever had it gave it its final name, or failed and removed it: what is filled now must be what is named.
    if !is_named(medium, &temporary, &side)? || medium.exists(place)? {
        return Ok(None);
    }
    if !is_ours {
        // A crash left it. It may not have come to its permissions, so it is made anew.
        medium.unlink(&temporary)?;
        return Ok(None);
    }
    let fill = || -> Result<Superblock> {
        side.set_len(0)?;
        side.set_len(plan.len)?;
        let records = plan.geometry.chunks_at();
        side.allocate(0, records)?;
        // Written once, not only allocated: overwriting allocated but unwritten space would cost a journal commit of
        // the file system at every flush.
        let zeros = [0; PAGE as usize];
        for offset in (0..records).step_by(PAGE as usize) {
            side.write(offset, &zeros)?;
        }
        let mut superblock = Superblock {
            uuid: medium.unique()?,
            seq: 0,
            identity,
            engine: plan.engine,
            layout: plan.layout,
            durability: plan.durability,
            left: Left::Fresh,
            geometry: plan.geometry,
            inline: plan.inline,
            stamp: Stamp::default(),
            bitmap_sum: 0,
            slice_sum: 0,
            name: Name::of(path),
        };
        let Stamped { number, time } = number::start(medium, data)?;
        let mut retirement = Retirement { len: data.len(), checkpoint: number, time, ..Retirement::default() };
        for _ in 0..2 {
            superblock.write(&side)?;
            retirement.write(&side, &superblock.uuid)?;
        }
        medium.fence(barriers::CREATE_FILE, &[&side])?;
        side.sync(barriers::CREATE_FILE)?;
        Ok(superblock)
    };
    let superblock = fill().inspect_err(|_| {
        // Nothing refers to it yet. If it cannot be removed, the next attempt starts it anew.
        let _ = medium.unlink(&temporary);
        let _ = medium.remove_dir_if_empty(&dir);
    })?;
    medium.rename(&temporary, place)?;
    medium.sync_dir(barriers::CREATE_NAME, &dir)?;
    medium.sync_dir(barriers::CREATE_DIRECTORY, &parent(path))?;
    brand(data, &superblock).inspect_err(|_| {
        // It holds nothing yet. One that cannot be removed is made anew by the next attempt.
        let _ = medium.unlink(place);
        let _ = medium.remove_dir_if_empty(&dir);
    })?;
    Ok(Some(superblock.uuid))
}
