//! `untorn.h`: plain loads and stores. The header says what each function does, returns and expects.
#![allow(clippy::missing_safety_doc, reason = "untorn.h says what each function expects of its arguments")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use untorn_core::AtomicMap;

use crate::abi::{untorn_error, untorn_options};
use crate::boundary::{code, explain, guarded, path_at};
use crate::by_address::{ByAddress, Words};
use crate::options;
use crate::snapshot::{self, untorn_snapshot_t};

/// The open maps. Calls on one of them take turns.
static MAPS: ByAddress<AtomicMap> = ByAddress::new(Words {
    noun: "map",
    pass: "pass the address that untorn_map returned, until it ends",
    anew: "map the file again",
});

/// Opens or creates a file as plain memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map(
    path: *const c_char,
    opts: *const untorn_options,
    len: *mut usize,
    err: *mut untorn_error,
) -> *mut c_void {
    let mapped = guarded(|| {
        // SAFETY: null or a string that ends with a zero, as untorn.h asks.
        let path = unsafe { path_at(path) }?;
        // SAFETY: null or a struct that begins with its size, as untorn.h asks.
        let options = unsafe { options::given(opts) }?;
        let mut map = options::map(path, &options)?;
        if !len.is_null() {
            // SAFETY: not null; untorn.h asks for a place where a size_t may be written.
            unsafe { len.write(map.len()) };
        }
        let address = map.as_mut_ptr().cast();
        MAPS.enter(address, map);
        Ok(address)
    });
    // SAFETY: null or a place where an untorn_error may be written, as untorn.h asks.
    unsafe { explain(&mapped, err) };
    mapped.unwrap_or(ptr::null_mut())
}

/// Commits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_commit(map: *mut c_void) -> c_int {
    code(|| {
        MAPS.with_mut(map, |map| {
            map.commit()?;
            Ok(())
        })
    })
}

/// Commits while other threads store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_commit_beside_stores(map: *mut c_void) -> c_int {
    code(|| {
        MAPS.with_mut(map, |map| {
            map.commit_beside_stores()?;
            Ok(())
        })
    })
}

/// Takes a snapshot of the last commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_snapshot(map: *mut c_void, err: *mut untorn_error) -> *mut untorn_snapshot_t {
    let taken = guarded(|| MAPS.with_mut(map, |map| Ok(untorn_snapshot_t::held(map.snapshot()?))));
    // SAFETY: null or a place where an untorn_error may be written, as untorn.h asks.
    unsafe { snapshot::give(taken, err) }
}

/// Discards uncommitted stores.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_rollback(map: *mut c_void) -> c_int {
    code(|| MAPS.with_mut(map, |map| Ok(map.rollback()?)))
}

/// Changes the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_resize(map: *mut c_void, len: u64) -> c_int {
    code(|| MAPS.with_mut(map, |map| Ok(map.resize(len)?)))
}

/// The length; 0 where there is no map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_len(map: *mut c_void) -> u64 {
    guarded(|| MAPS.with_mut(map, |map| Ok(map.len() as u64))).unwrap_or(0)
}

/// Discards uncommitted stores, and closes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_unmap(map: *mut c_void) -> c_int {
    code(|| Ok(MAPS.take(map)?.discard()?))
}

/// Discards uncommitted stores, brings everything home, removes the sidecar and closes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_map_settle(map: *mut c_void) -> c_int {
    code(|| {
        let mut map = MAPS.take(map)?;
        map.rollback()?;
        Ok(map.settle()?)
    })
}
