//! The redundancy file of a data file, as far as its sidecar is concerned: which file it names.
//!
//! # Invariants
//! 1. A redundancy file *goes with* a sidecar if it stands beside it under the sidecar's name and both name the same
//!    file. The two move, are set aside and are removed together.
//! 2. An adoption has it name the adopting file, durably, before it moves. At the place of a file, a redundancy file
//!    that names another one is that of a file that is gone.
//! 3. The version with the new name goes over the older copy, as every other version does. A crash leaves a redundancy
//!    file that names the old file or the new one, and says the same of its pages.
//!
//! This module knows the first fields of the superblock only: every version of it has them.

use std::path::{Path, PathBuf};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::attach::take_lock;
use super::superblock::Superblock;
use super::{MAX_NUMBER, PAGE, adoption_barriers, parent, uuid_text};
use crate::error::{Error, Result};
use crate::format::dual_copy::{
    DualCopy, Head, RawIdentity, Refusal, look, newest, place as dual_place, read_both, sort_out,
};
use crate::storage::{Access, Identity, LockKind, Medium, MediumFile, lock_holder};

/// The first bytes of a redundancy file.
pub(crate) const MAGIC: [u8; 8] = *b"REDUND\r\n";

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    head: Head,
    identity: RawIdentity,
    rest: [u8; 3992],
    check: U64,
}

const _: () = {
    assert!(size_of::<Raw>() == PAGE as usize);
    assert!(std::mem::offset_of!(Raw, identity) == 64);
    assert!(std::mem::offset_of!(Raw, check) == 4088);
};

/// The superblock of a redundancy file, of which only the name of the file is understood.
struct Named {
    seq: u64,
    raw: Raw,
}

impl DualCopy for Named {
    type Raw = Raw;
    const MAGIC: [u8; 8] = MAGIC;
    const FILE: &'static str = "redundancy file";
    const EITHER_REFUSES: bool = false;

    fn seq(&mut self) -> &mut u64 {
        &mut self.seq
    }

    fn encode(&self) -> Raw {
        let mut raw = self.raw.clone();
        raw.head.seq = self.seq.into();
        raw
    }

    fn decode(raw: &Raw) -> std::result::Result<Self, Refusal> {
        raw.head.check(MAX_NUMBER - 2)?;
        Ok(Named { seq: raw.head.seq.get(), raw: raw.clone() })
    }
}

impl Named {
    /// The newer copy, among those that name one of these files.
    fn read<F: MediumFile>(file: &F, path: &Path, of: &[Identity]) -> Result<Option<Self>> {
        let (copies, _) = sort_out(read_both(file, [0, 1].map(dual_place), |at, raw| look::<Named>(at, raw, path))?);
        let ours = |copy: &Named| of.iter().any(|of| are_one(of, &copy.raw.identity.into()));
        Ok(newest(copies.map(|copy| copy.filter(ours)), |copy| copy.seq))
    }
}

/// Whether two identities, of which either may not be known as a whole, are those of one file.
pub(crate) fn are_one(one: &Identity, other: &Identity) -> bool {
    let differ = |a: u64, b: u64| a != 0 && b != 0 && a != b;
    one.inode == other.inode && !differ(one.generation, other.generation) && !differ(one.birth, other.birth)
}

/// The place of the redundancy file that may go with a sidecar, whatever name the two have.
pub(crate) fn beside(sidecar: &Path) -> PathBuf {
    sidecar.with_extension("redundancy")
}

/// The name that a redundancy file without a sidecar is set aside under.
pub(crate) fn set_aside_as(place: &Path, uuid: &[u8; 16]) -> PathBuf {
    place.with_extension(format!("redundancy.{}.orphan", uuid_text(uuid)))
}

/// The redundancy file that goes with a sidecar, if there is one. What cannot be opened or read is not the one.
pub(super) fn goes_with<F: MediumFile>(
    file: Result<F>,
    path: &Path,
    sidecar: &Superblock,
    adopter: Option<Identity>,
) -> Option<F> {
    let of = [Some(sidecar.identity), adopter];
    let of: Vec<Identity> = of.into_iter().flatten().collect();
    let file = file.ok()?;
    let named = Named::read(&file, path, &of).ok().flatten();
    named.map(|_| file)
}

/// The redundancy file that goes with the sidecar at `from`, locked, if it can go to `to`. Nothing changes.
///
/// # Errors
/// [`Error::InUse`] while another process has it; errors of opening what stands in its way.
pub(super) fn follower<M: Medium>(
    medium: &M,
    data: &M::File,
    sidecar: &Superblock,
    [from, to]: [&Path; 2],
    adopter: Option<Identity>,
) -> Result<Option<M::File>> {
    let (from, to) = (beside(from), beside(to));
    if !medium.exists(&from)? {
        return Ok(None);
    }
    let opened = medium.open_companion(&from, Access::ReadWrite, 0, data);
    let Some(file) = goes_with(opened, &from, sidecar, adopter) else { return Ok(None) };
    if !take_lock(&file, LockKind::Exclusive)? {
        let holder = format!("{}, which has the redundancy file {} open", lock_holder(&file), from.display());
        return Err(Error::InUse { path: from, holder });
    }
    if adopter.is_some() && medium.exists(&to)? {
        drop(medium.open_companion(&to, Access::Read, 0, data)?);
    }
    Ok(Some(file))
}

/// Moves this redundancy file before its sidecar goes from `from` to `to`. With an adopter it names that file first.
///
/// # Errors
/// Those of writing, flushing and renaming.
pub(super) fn follow<M: Medium>(
    medium: &M,
    data: &M::File,
    file: &M::File,
    sidecar: &Superblock,
    [from, to]: [&Path; 2],
    adopter: Option<Identity>,
) -> Result<()> {
    let (from, to) = (beside(from), beside(to));
    if let Some(adopter) = adopter {
        rename(file, &from, sidecar.identity, adopter)?;
        make_way(medium, &to, data)?;
    }
    medium.rename(&from, &to)?;
    sync_names(medium, &from, &to)
}

/// Makes it durable that a file has another name.
pub(super) fn sync_names<M: Medium>(medium: &M, from: &Path, to: &Path) -> Result<()> {
    medium.sync_dir(adoption_barriers::NAMES, &parent(to))?;
    // A rename from one directory to another is durable when both are.
    if parent(from) == parent(to) { Ok(()) } else { medium.sync_dir(adoption_barriers::NAMES, &parent(from)) }
}

/// Has a redundancy file name the adopter, in both copies of its superblock.
fn rename<F: MediumFile>(file: &F, path: &Path, from: Identity, to: Identity) -> Result<()> {
    let Some(mut named) = Named::read(file, path, &[from, to])? else { return Ok(()) };
    named.raw.identity = to.into();
    for _ in 0..2 {
        named.write(file)?;
        file.sync(adoption_barriers::REDUNDANCY)?;
    }
    Ok(())
}

/// Sets the redundancy file aside that stands at the place of an adopted one. It is of a sibling that was closed, so no
/// sidecar tells which file it goes to.
fn make_way<M: Medium>(medium: &M, place: &Path, data: &M::File) -> Result<()> {
    if !medium.exists(place)? {
        return Ok(());
    }
    let file = medium.open_companion(place, Access::Read, 0, data)?;
    let (copies, _) = sort_out(read_both(&file, [0, 1].map(dual_place), |at, raw| look::<Named>(at, raw, place))?);
    let uuid = newest(copies, |copy| copy.seq).map(|copy| copy.raw.head.uuid).unwrap_or_default();
    let aside = set_aside_as(place, &uuid);
    tracing::warn!(redundancy_file = %aside.display(), "renamed a redundancy file that belongs to another file");
    medium.rename(place, &aside)
}
