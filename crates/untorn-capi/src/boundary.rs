//! The line between C and Rust: no panic crosses it, nothing is printed, every failure becomes a number.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::slice;
use std::thread;

use untorn_core::testing::OnceForAll;

use crate::abi::{UNTORN_EINTERNAL, untorn_error};
use crate::errors::{Failure, Result, remember};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// File and line of the last panic inside.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of a C function; a panic in it is an `UNTORN_EINTERNAL`. A failure is remembered for
/// `untorn_last_error`.
///
/// State shared with other calls stays whole when a body unwinds: the core's locks treat a panic like a crash of the
/// writer, and what the bodies here own is dropped.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    keep_panics_quiet();
    let outer = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        let cause = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        // A payload may panic when it is dropped, and that panic would cross into C.
        std::mem::forget(payload);
        Err(Failure::new(
            UNTORN_EINTERNAL,
            format!("internal error in untorn, please report it: {cause} ({})", PLACE.take()),
        ))
    });
    INSIDE.set(outer);
    result.inspect_err(remember)
}

/// [`guarded`] for functions that return 0 or a code.
pub(crate) fn code(body: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(failure) => failure.code,
    }
}

/// Tells a C program why a call failed, or that it did not, if it gave a place for that.
///
/// # Safety
/// `err` is null or a place where an `untorn_error` may be written.
pub(crate) unsafe fn explain<T>(result: &Result<T>, err: *mut untorn_error) {
    if err.is_null() {
        return;
    }
    let error = match result {
        Ok(_) => untorn_error::new(0, ""),
        Err(failure) => untorn_error::new(failure.code, &failure.message),
    };
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { err.write(error) };
}

/// The path at `pointer`.
///
/// # Safety
/// `pointer` is null or points to a string that ends with a zero, and no thread changes or frees it during `'a`.
pub(crate) unsafe fn path_at<'a>(pointer: *const c_char) -> Result<&'a Path> {
    if pointer.is_null() {
        return Err(null("path"));
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let path = unsafe { CStr::from_ptr(pointer) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// The object at `pointer`; `name` is what an error calls it.
///
/// # Safety
/// `pointer` is null or points to a `T` that no thread changes or frees during `'a`.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: not null where it is dereferenced, and the caller vouches for the rest.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// The object at `pointer`, to change.
///
/// # Safety
/// `pointer` is null or points to a `T` that no other code uses during `'a`.
pub(crate) unsafe fn exclusive<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T> {
    // SAFETY: not null where it is dereferenced, and the caller vouches for the rest.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// The `n` bytes at `pointer`, which may be null if `n` is 0.
///
/// # Safety
/// `pointer` is null or the bytes may be read, and no thread changes them during `'a`.
pub(crate) unsafe fn source<'a>(pointer: *const c_void, n: usize, name: &str) -> Result<&'a [u8]> {
    if n == 0 {
        return Ok(&[]);
    }
    check(pointer, n, name)?;
    // SAFETY: not null, not longer than a slice may be, and the caller vouches that the bytes are there and stay. Any
    // value is a byte; memory of a C program holds some value even where the program never set it.
    Ok(unsafe { slice::from_raw_parts(pointer.cast(), n) })
}

/// The `n` bytes at `pointer`, to fill; it may be null if `n` is 0.
///
/// # Safety
/// `pointer` is null or the bytes may be written, and no other code uses them during `'a`.
pub(crate) unsafe fn target<'a>(pointer: *mut c_void, n: usize, name: &str) -> Result<&'a mut [u8]> {
    if n == 0 {
        return Ok(&mut []);
    }
    check(pointer, n, name)?;
    // SAFETY: as in `source`, and the caller vouches that no other code uses the bytes.
    Ok(unsafe { slice::from_raw_parts_mut(pointer.cast(), n) })
}

fn null(name: &str) -> Failure {
    Failure::invalid(format!("{name} is NULL"))
}

fn check(pointer: *const c_void, n: usize, name: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(null(name));
    }
    if n > isize::MAX as usize || pointer.addr().checked_add(n).is_none() {
        return Err(Failure::invalid(format!("{n} bytes from {name} end beyond the address space")));
    }
    Ok(())
}

/// The standard library prints every panic before it unwinds. Panics that this file turns into an error are not
/// printed; all others, of Rust code this library is linked into statically, are handled as before.
fn keep_panics_quiet() {
    static ONCE: OnceForAll = OnceForAll::new();
    // A thread that unwinds may not change the hook; the next call will.
    if ONCE.is_done() || thread::panicking() {
        return;
    }
    // A child that was forked in the middle may put one hook over the other, which does no harm.
    let _ = ONCE.run(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !INSIDE.try_with(Cell::get).unwrap_or(false) {
                before(info);
            } else if let Some(place) = info.location() {
                // Without its place the fault can still be reported.
                let _ = PLACE.try_with(|last| last.try_borrow_mut().map(|mut last| *last = place.to_string()));
            }
        }));
        Ok::<_, Infallible>(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::last;

    #[test]
    fn a_panic_becomes_a_code_with_its_text() {
        assert_eq!(i64::from(code(|| panic!("at byte {}", 7))), UNTORN_EINTERNAL);
        let last = last();
        let text: String = last.message.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect();
        assert_eq!(i64::from(last.code), UNTORN_EINTERNAL);
        assert!(text.contains("at byte 7 (") && text.contains("boundary.rs:"), "{text}");
        assert!(!INSIDE.get());
    }
}
