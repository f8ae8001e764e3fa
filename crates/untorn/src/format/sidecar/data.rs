//! Opening the data file of a sidecar.

use std::path::Path;

use crate::error::{Error, Result};
use crate::options::Options;
use crate::storage::{Access, Medium, MediumFile};

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
