//! The ranges that handles accept: inside the file, and aligned as the type that is asked for.

use std::path::Path;

use crate::error::{Error, Result};

/// The error for a range outside the file, or nothing.
#[inline(always)]
pub(crate) fn check_range(path: &Path, offset: u64, len: u64, file_len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= file_len => Ok(()),
        _ => Err(out_of_range(path, offset, len, file_len)),
    }
}

#[cold]
fn out_of_range(path: &Path, offset: u64, len: u64, file_len: u64) -> Error {
    Error::OutOfRange { path: path.to_owned(), offset, len, file_len }
}

/// The error for a length beyond the maximum that a file was opened with, or nothing.
pub(crate) fn check_growth(path: &Path, len: u64, max_len: u64) -> Result<()> {
    if len <= max_len {
        return Ok(());
    }
    let maximum = format!("the file was opened with a maximum of {max_len}");
    let what = format!("cannot grow to {len} bytes: {maximum}; open it again with a larger max_len");
    Err(Error::Invalid { path: path.to_owned(), what })
}

#[cold]
pub(crate) fn misaligned<T>(path: &Path, offset: u64) -> Error {
    let align = align_of::<T>();
    let what = format!(
        "offset {offset} is not aligned: a value of this type must start at a multiple of {align} \
                        bytes"
    );
    Error::Invalid { path: path.to_owned(), what }
}
