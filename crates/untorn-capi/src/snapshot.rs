//! `untorn.h`: snapshots. The header says what each function does, returns and expects.
#![allow(clippy::missing_safety_doc, reason = "untorn.h says what each function expects of its arguments")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use untorn_core::Snapshot;

use crate::abi::untorn_error;
use crate::boundary::{code, explain, guarded, path_at, shared, target};
use crate::errors::{Failure, Result};
use crate::native::untorn_t;

/// A held snapshot.
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_snapshot_t {
    snapshot: Snapshot,
}

impl untorn_snapshot_t {
    pub(crate) fn held(snapshot: Snapshot) -> Box<Self> {
        Box::new(untorn_snapshot_t { snapshot })
    }
}

/// Hands a snapshot to the program, or says why there is none.
///
/// # Safety
/// `err` is null or a place where an `untorn_error` may be written.
pub(crate) unsafe fn give(taken: Result<Box<untorn_snapshot_t>>, err: *mut untorn_error) -> *mut untorn_snapshot_t {
    // SAFETY: as this function's caller ensures.
    unsafe { explain(&taken, err) };
    taken.map_or(ptr::null_mut(), Box::into_raw)
}

/// Takes a snapshot of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot(handle: *mut untorn_t, err: *mut untorn_error) -> *mut untorn_snapshot_t {
    let taken = guarded(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        Ok(untorn_snapshot_t::held(handle.file().snapshot()?))
    });
    // SAFETY: null or a place where an untorn_error may be written, as untorn.h asks.
    unsafe { give(taken, err) }
}

/// Takes a snapshot of a file that any process may have open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_open(path: *const c_char, err: *mut untorn_error) -> *mut untorn_snapshot_t {
    let taken = guarded(|| {
        // SAFETY: null or a string that ends with a zero, as untorn.h asks.
        let path = unsafe { path_at(path) }?;
        Ok(untorn_snapshot_t::held(Snapshot::open(path)?))
    });
    // SAFETY: null or a place where an untorn_error may be written, as untorn.h asks.
    unsafe { give(taken, err) }
}

/// Reads from a snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_read(
    snapshot: *mut untorn_snapshot_t,
    off: u64,
    dst: *mut c_void,
    n: usize,
) -> c_int {
    code(|| {
        // SAFETY: null or a snapshot that is held during the call, as untorn.h asks.
        let held = unsafe { shared(snapshot, "the snapshot") }?;
        // SAFETY: null or n bytes the caller lends for the call.
        let dst = unsafe { target(dst, n, "dst") }?;
        Ok(held.snapshot.read_at(dst, off)?)
    })
}

/// The length of a snapshot; 0 for a null one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_len(snapshot: *mut untorn_snapshot_t) -> u64 {
    guarded(|| {
        // SAFETY: null or a snapshot that is held during the call, as untorn.h asks.
        let held = unsafe { shared(snapshot, "the snapshot") }?;
        Ok(held.snapshot.len())
    })
    .unwrap_or(0)
}

/// The number of a snapshot's commit; 0 for a null one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_commit(snapshot: *mut untorn_snapshot_t) -> u64 {
    guarded(|| {
        // SAFETY: null or a snapshot that is held during the call, as untorn.h asks.
        let held = unsafe { shared(snapshot, "the snapshot") }?;
        Ok(held.snapshot.commit())
    })
    .unwrap_or(0)
}

/// Gives a snapshot up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_snapshot_close(snapshot: *mut untorn_snapshot_t) -> c_int {
    code(|| {
        if snapshot.is_null() {
            return Err(Failure::invalid("the snapshot is NULL"));
        }
        // SAFETY: not null, from one of the functions above, and untorn.h forbids any use after this call.
        drop(unsafe { Box::from_raw(snapshot) });
        Ok(())
    })
}

/// The number and the time of the last commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_last_commit(handle: *mut untorn_t, number: *mut u64, time_ns: *mut u64) -> c_int {
    code(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        let last = handle.file().last_commit();
        let since = last.time.and_then(|time| time.duration_since(std::time::SystemTime::UNIX_EPOCH).ok());
        let nanoseconds = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        if !number.is_null() {
            // SAFETY: not null, and untorn.h asks for a word that may be written.
            unsafe { number.write(last.number) };
        }
        if !time_ns.is_null() {
            // SAFETY: as above.
            unsafe { time_ns.write(nanoseconds) };
        }
        Ok(())
    })
}

/// The number of the last commit, or a negative code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_commit_number(handle: *mut untorn_t) -> i64 {
    let number = guarded(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        Ok(handle.file().last_commit().number)
    });
    number.map_or_else(|failure| i64::from(failure.code), |number| i64::try_from(number).unwrap_or(i64::MAX))
}
