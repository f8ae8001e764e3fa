//! Opening a data file with its sidecar.

use std::path::Path;

use super::attach::{Attached, Plan, attach, share};
use crate::error::{Error, Result};
use crate::options::{Options, Prefer};
use crate::storage::{Access, Medium, MediumFile};

/// A data file and its sidecar.
pub(crate) type Pair<F> = (F, Attached<F>);

/// Opens a data file for reading and writing, and its sidecar. `plan` says for the file's length what a new sidecar
/// shall be like.
///
/// # Errors
/// As for [`attach`].
pub(crate) fn open_pair<M: Medium>(
    medium: &M,
    path: &Path,
    options: &Options,
    plan: impl FnOnce(u64) -> Plan,
) -> Result<Pair<M::File>> {
    let data = open_data(medium, path, options)?;
    let attached = attach(medium, path, &data, &plan(data.len()), options)?;
    let data = reopen_data(medium, path, options, data)?;
    attached.distrust_cache(&data)?;
    Ok((data, attached))
}

/// Opens a file and its sidecar for reading, however it was left, changing nothing; `None` if it is a plain file.
///
/// # Errors
/// As for [`share`].
pub(crate) fn open_pair_to_read<M: Medium>(
    medium: &M,
    path: &Path,
    options: &Options,
) -> Result<Option<Pair<M::File>>> {
    let data = open_data(medium, path, options)?;
    let Some(attached) = share(medium, path, &data)? else { return Ok(None) };
    Ok(Some((reopen_data(medium, path, options, data)?, attached)))
}

/// Sees to it that the data file is as long as its last commit made it.
///
/// # Errors
/// [`Error::ModifiedExternally`] if it is shorter, unless the user trusts the sidecar more.
pub(crate) fn restore_len<F: MediumFile>(data: &F, path: &Path, len: u64, options: &Options) -> Result<()> {
    check_len(path, data.len(), len, options.prefer)?;
    if data.len() < len { data.set_len(len) } else { Ok(()) }
}

/// Refuses a data file of `has` bytes that is shorter than its last commit made it.
///
/// # Errors
/// [`Error::ModifiedExternally`], unless the user trusts the sidecar more.
pub(crate) fn check_len(path: &Path, has: u64, len: u64, prefer: Option<Prefer>) -> Result<()> {
    if has >= len || prefer == Some(Prefer::Sidecar) {
        return Ok(());
    }
    let what = format!("it has {has} bytes, but its last commit has {len}");
    Err(Error::ModifiedExternally { path: path.to_owned(), what })
}

/// The length that another descriptor has grown the data file to, if it is longer than this handle has made it. The
/// caller keeps changes of the length by this handle away.
pub(crate) fn grown<F: MediumFile>(data: &F) -> Result<Option<u64>> {
    let found = data.stamp()?.size;
    Ok((found > data.len()).then_some(found))
}

/// The same, and takes the file as it is: the growth counts as a change of this process.
pub(crate) fn take_growth<F: MediumFile>(data: &F) -> Result<Option<u64>> {
    let found = grown(data)?;
    if found.is_some() {
        data.begin_own_changes()?;
    }
    Ok(found)
}

/// Opens the data file with address space to grow.
pub(crate) fn open_data<M: Medium>(medium: &M, path: &Path, options: &Options) -> Result<M::File> {
    let access = if options.read_only { Access::Read } else { Access::ReadWrite };
    let data = medium.open(path, access, options.reserve(0))?;
    if options.reserve(data.len()) > options.reserve(0) {
        let reserve = options.reserve(data.len());
        drop(data);
        return medium.open(path, access, reserve);
    }
    Ok(data)
}

/// Opens the data file again once its sidecar is locked: whoever held the lock before may have changed the length.
pub(crate) fn reopen_data<M: Medium>(medium: &M, path: &Path, options: &Options, data: M::File) -> Result<M::File> {
    let again = open_data(medium, path, options)?;
    if again.identity()? != data.identity()? {
        let holder = "another process, which has just replaced the file".to_owned();
        return Err(Error::InUse { path: path.to_owned(), holder });
    }
    Ok(again)
}
