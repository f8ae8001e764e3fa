//! `untorn/shared.h`: plain loads and stores of several processes. The header says what each function does, returns
//! and expects.
#![allow(clippy::missing_safety_doc, reason = "untorn/shared.h says what each function expects of its arguments")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use untorn_core::shared::SharedMap;

use crate::abi::{untorn_error, untorn_options};
use crate::boundary::{code, explain, guarded, path_at};
use crate::by_address::{ByAddress, Words};
use crate::errors::Failure;
use crate::options;

/// The maps that this process shares. Several threads may be in calls on one of them.
static SHARED: ByAddress<SharedMap> = ByAddress::new(Words {
    noun: "shared map",
    pass: "pass the address that untorn_share returned, until this process leaves",
    anew: "share the file again in this process",
});

/// Opens a file as plain memory, together with other processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share(
    path: *const c_char,
    opts: *const untorn_options,
    len: *mut usize,
    err: *mut untorn_error,
) -> *mut c_void {
    let shared = guarded(|| {
        // SAFETY: null or a string that ends with a zero, as untorn/shared.h asks.
        let path = unsafe { path_at(path) }?;
        // SAFETY: null or a struct that begins with its size, as untorn/shared.h asks.
        let options = unsafe { options::given(opts) }?;
        let map = options::share(path, &options)?;
        if !len.is_null() {
            // SAFETY: not null; untorn/shared.h asks for a place where a size_t may be written.
            unsafe { len.write(map.len()) };
        }
        let address = map.as_ptr().cast();
        SHARED.enter(address, map);
        Ok(address)
    });
    // SAFETY: null or a place where an untorn_error may be written, as untorn/shared.h asks.
    unsafe { explain(&shared, err) };
    shared.unwrap_or(ptr::null_mut())
}

/// Commits the stores of all processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share_commit(map: *mut c_void, number: *mut u64) -> c_int {
    code(|| {
        let committed = SHARED.with(map, |map| Ok(map.commit()?))?;
        if !number.is_null() {
            // SAFETY: not null; untorn/shared.h asks for a place where a uint64_t may be written.
            unsafe { number.write(committed) };
        }
        Ok(())
    })
}

/// Takes back the stores of all processes since the last commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share_rollback(map: *mut c_void) -> c_int {
    code(|| SHARED.with(map, |map| Ok(map.rollback()?)))
}

/// Makes the file longer for all processes, and commits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share_grow(map: *mut c_void, len: u64) -> c_int {
    code(|| {
        SHARED.with(map, |map| {
            map.grow(len)?;
            Ok(())
        })
    })
}

/// The length; 0 where there is no map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share_len(map: *mut c_void) -> u64 {
    guarded(|| SHARED.with(map, |map| Ok(map.len() as u64))).unwrap_or(0)
}

/// Lets system calls load from a range and store to it until the next commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share_open_range(map: *mut c_void, offset: u64, len: u64) -> c_int {
    code(|| {
        let end = offset.checked_add(len).ok_or_else(|| Failure::invalid("offset + len is beyond 2^64"))?;
        SHARED.with(map, |map| Ok(map.open_to_kernel(offset..end)?))
    })
}

/// Whether this process has the file open and serves the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share_is_serving(map: *mut c_void) -> c_int {
    guarded(|| SHARED.with(map, |map| Ok(map.is_owner()))).map_or_else(|failure| failure.code, c_int::from)
}

/// Leaves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_share_leave(map: *mut c_void) -> c_int {
    code(|| Ok(SHARED.take(map)?.close()?))
}
