//! `untorn/region.h`: the functions of the Region System paper (Table II). The header says what each does, returns
//! and expects.
#![allow(clippy::missing_safety_doc, reason = "region.h says what each function expects of its arguments")]

use std::ffi::{c_char, c_int, c_void};
use std::path::{PathBuf, absolute};

use crate::boundary::path_at;
use crate::errors::{Failure, Result};
use crate::mapping::with_errno;
use crate::regions::regions;

/// The store that names of regions are looked up in.
fn store() -> Result<PathBuf> {
    let unset = || {
        Failure::invalid(
            "the environment variable UNTORN_REGION_STORE is not set; set it to the path of a \
                                     region store",
        )
    };
    let path =
        untorn_core::testing::variable("UNTORN_REGION_STORE").filter(|path| !path.is_empty()).ok_or_else(unset)?;
    absolute(&path).map_err(|error| Failure::system("UNTORN_REGION_STORE", &error))
}

/// The name at `pointer`.
///
/// # Safety
/// As for [`path_at`].
unsafe fn name_at<'a>(pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller vouches for it.
    let name = unsafe { path_at(pointer) }?;
    name.to_str().ok_or_else(|| Failure::invalid("the region name is not UTF-8"))
}

/// Opens a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn region_open(name: *const c_char, flags: c_int) -> c_int {
    with_errno(|| {
        // SAFETY: null or a string that ends with a zero, as region.h asks.
        let name = unsafe { name_at(name) }?;
        regions().open(&store()?, name, flags)
    })
    .unwrap_or(-1)
}

/// Closes a region.
#[unsafe(no_mangle)]
pub extern "C" fn region_close(rd: c_int) -> c_int {
    with_errno(|| regions().close(rd)).map_or(-1, |()| 0)
}

/// Deletes a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn region_delete(name: *const c_char) -> c_int {
    with_errno(|| {
        // SAFETY: null or a string that ends with a zero, as region.h asks.
        let name = unsafe { name_at(name) }?;
        regions().delete(&store()?, name)
    })
    .map_or(-1, |()| 0)
}

/// Allocates a page.
#[unsafe(no_mangle)]
pub extern "C" fn alloc_ppage(rd: c_int) -> i64 {
    // A region has 2³⁴ pages at most.
    with_errno(|| regions().alloc(rd)).map_or(-1, |page| page as i64)
}

/// Frees a page.
#[unsafe(no_mangle)]
pub extern "C" fn free_ppage(rd: c_int, ppn: i64) -> c_int {
    with_errno(|| regions().free(rd, ppn)).map_or(-1, |()| 0)
}

/// Maps pages.
#[unsafe(no_mangle)]
pub extern "C" fn pmmap(va: *mut c_void, rd: c_int, ppn: i64, nbytes: usize, flags: c_int) -> *mut c_void {
    with_errno(|| regions().map(va, rd, ppn, nbytes, flags)).unwrap_or(libc::MAP_FAILED)
}

/// Ends a mapping.
#[unsafe(no_mangle)]
pub extern "C" fn pmunmap(va: *mut c_void) -> c_int {
    with_errno(|| regions().unmap(va)).map_or(-1, |()| 0)
}

/// Commits a region.
#[unsafe(no_mangle)]
pub extern "C" fn pmsync(rd: c_int) -> c_int {
    with_errno(|| regions().sync(rd)).map_or(-1, |()| 0)
}
