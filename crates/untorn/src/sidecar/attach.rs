//! Finding, judging and creating the sidecar of a data file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::retirement::Retirement;
use super::superblock::{Left, Superblock};
use super::{Geometry, PAGE, barriers, directory, parent, path as sidecar_path, spill_path, uuid_text};
use crate::error::{Error, Result};
use crate::medium::{Access, Identity, MarkState, Medium, MediumFile, Stamp};
use crate::options::{Durability, Layout, Options, Trust};

/// A sidecar that belongs to its data file, locked by this handle.
pub(crate) struct Attached<F> {
    pub(crate) side: F,
    pub(crate) path: PathBuf,
    pub(crate) superblock: Superblock,
    pub(crate) retirement: Retirement,
}

/// What a new sidecar shall be like.
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) durability: Durability,
    pub(crate) geometry: Geometry,
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
    let mut drop_sidecar = options.trust == Some(Trust::File);
    for _ in 0..16 {
        if !medium.exists(&place)? {
            match data.mark()? {
                MarkState::Present(mark) if options.adopt => {
                    let found = find_by_mark(medium, path, &mark)?;
                    medium.rename(&found, &place)?;
                    medium.sync_dir(barriers::CREATE_NAME, &directory(path))?;
                }
                MarkState::Present(mark) if !drop_sidecar => {
                    let uuid = uuid_text(&mark);
                    return Err(Error::SidecarMissing { path: path.to_owned(), sidecar: place, uuid });
                }
                _ => {
                    match create(medium, path, data, &place, identity, plan) {
                        // The last to leave the directory removed it under our hands.
                        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
                        created => created?,
                    }
                    drop_sidecar = false;
                }
            }
            continue;
        }
        let side = medium.open(&place, Access::ReadWrite, plan.reserve)?;
        if !take_lock(&side)? {
            return Err(in_use(path));
        }
        // It may have been settled, and another one created, while we waited for the lock.
        let still_there =
            medium.exists(&place)? && medium.open(&place, Access::Read, 0)?.identity()? == side.identity()?;
        if !still_there {
            continue;
        }
        data.sync(barriers::ATTACH_FILES)?;
        side.sync(barriers::ATTACH_FILES)?;
        medium.sync_dir(barriers::ATTACH_NAMES, &directory(path))?;
        medium.sync_dir(barriers::ATTACH_NAMES, &parent(path))?;
        side.distrust_cache(barriers::ATTACH_LINES, 0, Geometry::LANES_AT)?;
        let mut superblock = match Superblock::read(&side, &place) {
            Err(Error::Corrupt { .. }) if drop_sidecar => {
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
            let aside = place.with_extension(format!("{}.orphan", uuid_text(&superblock.uuid)));
            tracing::warn!(path = %path.display(), sidecar = %aside.display(), "set a stray sidecar aside");
            medium.rename(&place, &aside)?;
            continue;
        }
        if superblock.left == Left::Settled || drop_sidecar {
            remove(medium, path, data, &place)?;
            continue;
        }
        let retirement = Retirement::read(&side, &place, &superblock.uuid)?;
        if options.adopt && mark == MarkState::Present(superblock.uuid) {
            superblock.identity = identity;
        }
        agree(path, &place, &superblock, identity, mark)?;
        if superblock.left == Left::Fresh {
            // A crash during creation: the sidecar is whole, the data file may not say yet that it has one.
            brand(data, &superblock)?;
        }
        if superblock.left == Left::Clean && options.trust != Some(Trust::Sidecar) {
            unchanged(path, superblock.stamp, data.stamp()?)?;
        }
        return Ok(Attached { side, path: place, superblock, retirement });
    }
    Err(in_use(path))
}

/// Opens the sidecar of `data` for reading, without creating or changing anything; `None` if the file has none that
/// counts.
///
/// # Errors
/// As for [`attach`], but nothing is locked.
pub(crate) fn look<M: Medium>(medium: &M, path: &Path, data: &M::File) -> Result<Option<Attached<M::File>>> {
    let identity = data.identity()?;
    let place = sidecar_path(path, identity.inode);
    let mark = data.mark()?;
    if !medium.exists(&place)? {
        return match mark {
            MarkState::Present(mark) => {
                Err(Error::SidecarMissing { path: path.to_owned(), sidecar: place, uuid: uuid_text(&mark) })
            }
            _ => Ok(None),
        };
    }
    let side = medium.open(&place, Access::Read, 0)?;
    let superblock = Superblock::read(&side, &place)?;
    if superblock.left == Left::Settled || mark == MarkState::Absent && orphaned(&superblock, identity) {
        return Ok(None);
    }
    agree(path, &place, &superblock, identity, mark)?;
    if superblock.left == Left::Clean {
        unchanged(path, superblock.stamp, data.stamp()?)?;
    }
    let retirement = Retirement::read(&side, &place, &superblock.uuid)?;
    Ok(Some(Attached { side, path: place, superblock, retirement }))
}

/// Takes the lock of a sidecar; false if another process keeps it. One that was killed may still seem to for a moment:
/// the kernel lets its files go only after the flushes it had under way.
pub(crate) fn take_lock<F: MediumFile>(side: &F) -> Result<bool> {
    for _ in 0..50 {
        if side.try_lock()? {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    side.try_lock()
}

fn in_use(path: &Path) -> Error {
    Error::InUse { path: path.to_owned(), holder: "another process".to_owned() }
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
    let mismatch =
        |what: String| Err(Error::SidecarMismatch { path: path.to_owned(), sidecar: sidecar.to_owned(), what });
    let recorded = superblock.identity;
    if recorded.inode != identity.inode {
        return mismatch(format!("it was made for inode {}, the file is inode {}", recorded.inode, identity.inode));
    }
    if orphaned(superblock, identity) {
        return mismatch("the file was created after it, under a reused inode number".to_owned());
    }
    match mark {
        MarkState::Present(mark) if mark == superblock.uuid => Ok(()),
        MarkState::Present(mark) => mismatch(format!(
            "the file carries the mark of {}, the sidecar is {}",
            uuid_text(&mark),
            uuid_text(&superblock.uuid)
        )),
        // While a sidecar is being created the mark comes last, so the file may not carry it yet.
        MarkState::Absent if superblock.left == Left::Fresh => Ok(()),
        MarkState::Absent => mismatch("the file does not carry the sidecar's mark: it was replaced".to_owned()),
        // Without a mark, the device is all that is left to compare; it is stable as long as nothing was moved.
        MarkState::Unsupported if recorded.device != identity.device => {
            mismatch("the file is on another device than the sidecar was made for".to_owned())
        }
        MarkState::Unsupported => Ok(()),
    }
}

/// Whether a data file is as it was when it was closed cleanly.
pub(crate) fn unchanged(path: &Path, recorded: Stamp, now: Stamp) -> Result<()> {
    let what = if recorded.size != now.size {
        format!("it has {} bytes, it had {}", now.size, recorded.size)
    } else if recorded.modified != now.modified {
        "its modification time differs from the one recorded when untorn closed it".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::MixedUse { path: path.to_owned(), what })
}

/// The sidecar with this UUID under whatever name, for a pair restored together under new inode numbers.
fn find_by_mark<M: Medium>(medium: &M, path: &Path, mark: &[u8; 16]) -> Result<PathBuf> {
    let dir = directory(path);
    for name in medium.list(&dir)? {
        let candidate = dir.join(name);
        // What cannot be opened or read as a sidecar is not the one looked for.
        let Ok(file) = medium.open(&candidate, Access::Read, 0) else { continue };
        if Superblock::read(&file, &candidate).is_ok_and(|found| found.uuid == *mark) {
            return Ok(candidate);
        }
    }
    Err(Error::SidecarMissing { path: path.to_owned(), sidecar: dir, uuid: uuid_text(mark) })
}

/// Makes the data file say that it has this sidecar.
fn brand<F: MediumFile>(data: &F, superblock: &Superblock) -> Result<()> {
    if data.mark()? != MarkState::Unsupported {
        data.set_mark(Some(superblock.uuid))?;
    }
    data.sync(barriers::CREATE_MARK)
}

/// Removes a sidecar whose content is not wanted or not needed any more. The mark goes first and durably: a mark
/// without a sidecar would be refused.
pub(crate) fn remove<M: Medium>(medium: &M, path: &Path, data: &M::File, sidecar: &Path) -> Result<()> {
    if matches!(data.mark()?, MarkState::Present(_)) {
        data.set_mark(None)?;
    }
    data.sync(barriers::REMOVE_MARK)?;
    medium.unlink(sidecar)?;
    let spill = spill_path(sidecar);
    if medium.exists(&spill)? {
        medium.unlink(&spill)?;
    }
    medium.remove_dir_if_empty(&directory(path))
}

/// Creates a sidecar under a temporary name and gives it its final one when it is whole.
fn create<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    place: &Path,
    identity: Identity,
    plan: &Plan,
) -> Result<()> {
    let dir = directory(path);
    medium.create_dir(&dir)?;
    let temporary = place.with_extension("new");
    let side = if medium.exists(&temporary)? {
        medium.open(&temporary, Access::ReadWrite, plan.reserve)?
    } else {
        medium.create(&temporary, 0, plan.reserve)?
    };
    // The lock decides between two processes that create at once; whoever comes second finds the final name.
    if !take_lock(&side)? {
        return Err(in_use(path));
    }
    if medium.exists(place)? {
        return Ok(());
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
            layout: plan.layout,
            durability: plan.durability,
            left: Left::Fresh,
            geometry: plan.geometry,
            stamp: Stamp::default(),
            bitmap_sum: 0,
            slice_sum: 0,
        };
        let mut retirement = Retirement { len: data.len(), ..Retirement::default() };
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
        // It holds nothing yet. One that cannot be removed is completed by the next attempt.
        let _ = medium.unlink(place);
        let _ = medium.remove_dir_if_empty(&dir);
    })
}
