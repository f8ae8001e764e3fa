//! `untorn.h`: the stream of commits. The header says what each function does, returns and expects.
#![allow(clippy::missing_safety_doc, reason = "untorn.h says what each function expects of its arguments")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::time::{Duration, SystemTime};

use untorn_core::commits::{self, Commit, CommitStream};

use crate::abi::{untorn_change, untorn_commit, untorn_error};
use crate::boundary::{code, exclusive, explain, guarded, path_at};
use crate::errors::{Failure, Result};

/// An open stream, with the commit that it gave last.
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_commits_t {
    stream: CommitStream,
    /// Keeps the bytes that `changes` points to.
    commit: Option<Commit>,
    changes: Vec<untorn_change>,
}

/// Hands a stream to the program, or says why there is none.
///
/// # Safety
/// `err` is null or a place where an `untorn_error` may be written.
unsafe fn give(opened: Result<CommitStream>, err: *mut untorn_error) -> *mut untorn_commits_t {
    // SAFETY: as this function's caller ensures.
    unsafe { explain(&opened, err) };
    opened.map_or(ptr::null_mut(), |stream| {
        Box::into_raw(Box::new(untorn_commits_t { stream, commit: None, changes: Vec::new() }))
    })
}

/// The name of a consumer at `pointer`.
///
/// # Safety
/// As for [`path_at`].
unsafe fn name_at<'a>(pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Failure::invalid("name is NULL"));
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let name = unsafe { CStr::from_ptr(pointer) };
    name.to_str().map_err(|_| Failure::invalid("the name of a consumer must be text in UTF-8"))
}

/// Opens the stream of the commits after one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_commits_open(
    path: *const c_char,
    from: u64,
    err: *mut untorn_error,
) -> *mut untorn_commits_t {
    let opened = guarded(|| {
        // SAFETY: null or a string that ends with a zero, as untorn.h asks.
        let path = unsafe { path_at(path) }?;
        Ok(CommitStream::open(path, from)?)
    });
    // SAFETY: null or a place where an untorn_error may be written, as untorn.h asks.
    unsafe { give(opened, err) }
}

/// Opens the stream of a registered consumer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_commits_consumer(
    path: *const c_char,
    name: *const c_char,
    from: *const u64,
    err: *mut untorn_error,
) -> *mut untorn_commits_t {
    let opened = guarded(|| {
        // SAFETY: null or a string that ends with a zero, as untorn.h asks.
        let path = unsafe { path_at(path) }?;
        // SAFETY: as above.
        let name = unsafe { name_at(name) }?;
        // SAFETY: null or a word that may be read, as untorn.h asks.
        let from = unsafe { from.as_ref() };
        Ok(match from {
            Some(from) => CommitStream::consumer_from(path, name, *from)?,
            None => CommitStream::consumer(path, name)?,
        })
    });
    // SAFETY: null or a place where an untorn_error may be written, as untorn.h asks.
    unsafe { give(opened, err) }
}

/// The next commit: 1 with it, 0 without one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_commits_next(
    stream: *mut untorn_commits_t,
    timeout_ms: u64,
    commit: *mut untorn_commit,
) -> c_int {
    let next = guarded(|| {
        // SAFETY: null or a stream that no other thread uses during the call, as untorn.h asks.
        let open = unsafe { exclusive(stream, "the stream") }?;
        if commit.is_null() {
            return Err(Failure::invalid("commit is NULL"));
        }
        open.changes.clear();
        open.commit = open.stream.next_within(Duration::from_millis(timeout_ms))?;
        let Some(next) = &open.commit else { return Ok(0) };
        open.changes.extend(next.changes.iter().map(|change| untorn_change {
            offset: change.range.start,
            len: change.range.end - change.range.start,
            bytes: change.bytes.as_ptr().cast(),
        }));
        let since = next.time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let told = untorn_commit {
            number: next.number,
            previous: next.previous,
            time_ns: since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
            len: next.len,
            shortest: next.shortest,
            changes: open.changes.as_ptr(),
            change_count: open.changes.len(),
        };
        // SAFETY: not null, and untorn.h asks for a place where an untorn_commit may be written.
        unsafe { commit.write(told) };
        Ok(1)
    });
    next.unwrap_or_else(|failure| failure.code)
}

/// Notes that a consumer is done with the commits up to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_commits_acknowledge(stream: *mut untorn_commits_t, number: u64) -> c_int {
    code(|| {
        // SAFETY: null or a stream that no other thread uses during the call, as untorn.h asks.
        let open = unsafe { exclusive(stream, "the stream") }?;
        Ok(open.stream.acknowledge(number)?)
    })
}

/// Removes a registered consumer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_commits_forget(path: *const c_char, name: *const c_char) -> c_int {
    code(|| {
        // SAFETY: null or a string that ends with a zero, as untorn.h asks.
        let path = unsafe { path_at(path) }?;
        // SAFETY: as above.
        let name = unsafe { name_at(name) }?;
        if commits::forget(path, name)? {
            Ok(())
        } else {
            Err(Failure::new(crate::abi::UNTORN_ENOENT, format!("{}: it has no consumer {name:?}", path.display())))
        }
    })
}

/// Closes a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_commits_close(stream: *mut untorn_commits_t) -> c_int {
    code(|| {
        if stream.is_null() {
            return Err(Failure::invalid("the stream is NULL"));
        }
        // SAFETY: not null, from one of the functions above, and untorn.h forbids any use after this call.
        drop(unsafe { Box::from_raw(stream) });
        Ok(())
    })
}
