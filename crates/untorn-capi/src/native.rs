//! `untorn.h`: the native C functions. The header says what each does, returns and expects.
#![allow(clippy::missing_safety_doc, reason = "untorn.h says what each function expects of its arguments")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use untorn_core::AtomicFile;

use crate::abi::{UNTORN_EFAULT, UNTORN_ENOMEM, UNTORN_ETXOPEN, untorn_error, untorn_options};
use crate::boundary::{code, exclusive, explain, guarded, path_at, shared, source, target};
use crate::errors::{Failure, Result, last, text};
use crate::options;

/// An open file. Its transactions share the file, so that one that outlives a failed close is still sound.
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_t {
    file: Arc<AtomicFile>,
}

impl untorn_t {
    pub(crate) fn file(&self) -> &AtomicFile {
        &self.file
    }
}

/// A transaction. The core's borrows the file, which a C program cannot express, so the writes wait here and meet the
/// core's transaction at commit.
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_tx {
    file: Arc<AtomicFile>,
    writes: Vec<(u64, Vec<u8>)>,
}

/// Opens or creates a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_open(
    path: *const c_char,
    opts: *const untorn_options,
    err: *mut untorn_error,
) -> *mut untorn_t {
    let opened = guarded(|| {
        // SAFETY: null or a string that ends with a zero, as untorn.h asks.
        let path = unsafe { path_at(path) }?;
        // SAFETY: null or a struct that begins with its size, as untorn.h asks.
        let options = unsafe { options::given(opts) }?;
        Ok(Box::new(untorn_t { file: Arc::new(options::open(path, &options)?) }))
    });
    // SAFETY: null or a place where an untorn_error may be written, as untorn.h asks.
    unsafe { explain(&opened, err) };
    opened.map_or(ptr::null_mut(), Box::into_raw)
}

/// Reads, atomically.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_read(handle: *mut untorn_t, off: u64, dst: *mut c_void, n: usize) -> c_int {
    code(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        // SAFETY: null or n bytes the caller lends for the call.
        let dst = unsafe { target(dst, n, "dst") }?;
        Ok(handle.file.read_at(dst, off)?)
    })
}

/// Writes, atomically.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_write(handle: *mut untorn_t, off: u64, src: *const c_void, n: usize) -> c_int {
    code(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        // SAFETY: null or n bytes the caller lends for the call.
        let src = unsafe { source(src, n, "src") }?;
        Ok(handle.file.write_at(src, off)?)
    })
}

/// Begins a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_begin(handle: *mut untorn_t) -> *mut untorn_tx {
    guarded(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        Ok(Box::new(untorn_tx { file: Arc::clone(&handle.file), writes: Vec::new() }))
    })
    .map_or(ptr::null_mut(), Box::into_raw)
}

/// Adds a write to a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_tx_write(tx: *mut untorn_tx, off: u64, src: *const c_void, n: usize) -> c_int {
    code(|| {
        // SAFETY: null or an open transaction that no other thread uses during the call, as untorn.h asks.
        let tx = unsafe { exclusive(tx, "the transaction") }?;
        // SAFETY: null or n bytes the caller lends for the call.
        let src = unsafe { source(src, n, "src") }?;
        let len = tx.file.len();
        if off.checked_add(n as u64).is_none_or(|end| end > len) {
            let path = tx.file.path().display();
            return Err(Failure::new(
                UNTORN_EFAULT,
                format!(
                    "{path}: {n} bytes at offset {off} do not lie within the file's {len} bytes; resize the file \
                         first"
                ),
            ));
        }
        let full = |_| Failure::new(UNTORN_ENOMEM, "cannot allocate memory for the writes of the transaction");
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n).map_err(full)?;
        bytes.extend_from_slice(src);
        tx.writes.try_reserve(1).map_err(full)?;
        tx.writes.push((off, bytes));
        Ok(())
    })
}

/// Commits a transaction and frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_tx_commit(tx: *mut untorn_tx) -> c_int {
    code(|| {
        if tx.is_null() {
            return Err(Failure::invalid("the transaction is NULL"));
        }
        // SAFETY: not null, from untorn_begin, and untorn.h forbids any use after this call.
        let tx = unsafe { Box::from_raw(tx) };
        let mut transaction = tx.file.transaction();
        for (offset, bytes) in &tx.writes {
            transaction.write_at(bytes, *offset)?;
        }
        Ok(transaction.commit()?)
    })
}

/// Rolls a transaction back and frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_tx_abort(tx: *mut untorn_tx) {
    code(|| {
        if !tx.is_null() {
            // SAFETY: not null, from untorn_begin, and untorn.h forbids any use after this call.
            drop(unsafe { Box::from_raw(tx) });
        }
        Ok(())
    });
}

/// Commits the open epoch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_sync(handle: *mut untorn_t) -> c_int {
    code(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        handle.file.sync()?;
        Ok(())
    })
}

/// Changes the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_resize(handle: *mut untorn_t, len: u64) -> c_int {
    code(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        Ok(handle.file.resize(len)?)
    })
}

/// Frees unused space of the sidecar.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_reclaim(handle: *mut untorn_t, freed: *mut u64) -> c_int {
    code(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        let bytes = handle.file.reclaim()?;
        if !freed.is_null() {
            // SAFETY: not null, and the caller lends it for the call.
            unsafe { freed.write(bytes) };
        }
        Ok(())
    })
}

/// The length; 0 for a null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_len(handle: *mut untorn_t) -> u64 {
    guarded(|| {
        // SAFETY: null or a handle that is open during the call, as untorn.h asks.
        let handle = unsafe { shared(handle, "the handle") }?;
        Ok(handle.file.len())
    })
    .unwrap_or(0)
}

/// Takes the file out of a handle that has no open transaction, and frees the handle.
fn take(handle: *mut untorn_t) -> Result<AtomicFile> {
    // SAFETY: null or a handle that no other thread uses any more, as untorn.h asks of the call that ends it.
    let open = unsafe { shared(handle, "the handle") }?;
    if Arc::strong_count(&open.file) > 1 {
        return Err(Failure::new(
            UNTORN_ETXOPEN,
            format!("{}: transactions of this handle are still open; end them first", open.file.path().display()),
        ));
    }
    // SAFETY: not null, from untorn_open, and `open` is not used after this.
    let handle = unsafe { Box::from_raw(handle) };
    // Only untorn_begin makes a second reference, and the program may not call it with this handle any more.
    Arc::into_inner(handle.file).ok_or_else(|| {
        Failure::new(
            UNTORN_ETXOPEN,
            "another thread used the handle while it \
                                                                             was being closed",
        )
    })
}

/// Commits and closes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_close(handle: *mut untorn_t) -> c_int {
    code(|| Ok(take(handle)?.close()?))
}

/// Commits, deploys everything, removes the sidecar and closes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_settle(handle: *mut untorn_t) -> c_int {
    code(|| Ok(take(handle)?.settle()?))
}

/// The last failure of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_last_error(err: *mut untorn_error) -> c_int {
    code(|| {
        // SAFETY: null or a struct of the caller that no other thread uses during the call.
        *unsafe { exclusive(err, "err") }? = last();
        Ok(())
    })
}

/// The version of this package, with the final zero of a C string.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// The text of a code.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_strerror(code: c_int) -> *const c_char {
    guarded(|| Ok(text(code))).unwrap_or(c"Internal error in untorn; please report it").as_ptr()
}
