#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod abi;
mod beside;
mod database;
mod guard;
mod inner;
mod journal;
mod locks;
mod methods;
mod open_file;
mod overlay;
mod protected;
mod read_only;
mod read_only_methods;
mod share;
mod vfs;

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use abi::Routines;

/// A result code of SQLite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) c_int);

impl From<std::io::Error> for Code {
    fn from(error: std::io::Error) -> Self {
        let code = code_of_errno(error.raw_os_error(), abi::CANTOPEN);
        log(code, &error.to_string());
        Code(code)
    }
}

/// SQLite's routines, since the extension was loaded.
static API: OnceLock<&'static Routines> = OnceLock::new();

/// # Panics
/// Before the extension was loaded. No other entry calls it.
pub(crate) fn api() -> &'static Routines {
    API.get().expect("the extension is loaded")
}

/// Writes a line to SQLite's error log (`SQLITE_CONFIG_LOG`).
pub(crate) fn log(code: c_int, text: &str) {
    let text = CString::new(format!("untorn: {text}").replace('\0', "?")).unwrap_or_default();
    // SAFETY: the format takes one string, which lives through the call.
    unsafe { (api().log)(code, c"%s".as_ptr(), text.as_ptr()) }
}

fn code_of_errno(errno: Option<i32>, otherwise: c_int) -> c_int {
    match errno {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => abi::FULL,
        Some(libc::EROFS) => abi::READONLY,
        Some(libc::EBUSY | libc::EAGAIN) => abi::BUSY,
        Some(libc::ENOMEM) => abi::NOMEM,
        Some(libc::EACCES | libc::EPERM) if otherwise != abi::CANTOPEN => abi::PERM,
        _ => otherwise,
    }
}

/// The code for an error of the library, whose text goes to SQLite's log.
pub(crate) fn code_of(error: &untorn::Error, otherwise: c_int) -> Code {
    let code = match error {
        untorn::Error::Corrupt { .. } | untorn::Error::Protection { .. } if otherwise == abi::IOERR_READ => {
            abi::IOERR_DATA
        }
        untorn::Error::Corrupt { .. } => abi::CORRUPT,
        error => code_of_errno(Some(error.errno()), otherwise),
    };
    log(code, &error.to_string());
    Code(code)
}

/// Registers the VFS `untorn`: the entry point of the static library, and of `SELECT load_extension(…,
/// 'sqlite3_untorn_init')`. A program that links the library statically calls `sqlite3_auto_extension` with it, or
/// calls it with a connection of its own and SQLite's routines.
///
/// # Safety
/// `routines` are SQLite's own, as it passes them to the entry point of an extension; `message` is null or may be
/// stored to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_untorn_init(
    _connection: *mut c_void,
    message: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: the caller passes SQLite's routines, which live as long as the process.
    let Some(routines) = (unsafe { routines.cast::<Routines>().as_ref() }) else { return abi::ERROR };
    // SAFETY: the oldest SQLite that loads extensions has this routine.
    let version = unsafe { (routines.libversion_number)() };
    if version < abi::OLDEST {
        let text =
            format!("untorn needs SQLite 3.32 or later, and this is {}.{}", version / 1_000_000, version / 1000 % 1000);
        let text = CString::new(text).unwrap_or_default();
        if !message.is_null() {
            // SAFETY: the format takes one string, which lives through the call.
            let text = unsafe { (routines.mprintf)(c"%s".as_ptr(), text.as_ptr()) };
            // SAFETY: the caller lets it be stored to.
            unsafe { *message = text };
        }
        return abi::ERROR;
    }
    let _ = API.set(routines);
    match std::panic::catch_unwind(vfs::register) {
        Ok(Ok(())) => abi::OK_LOAD_PERMANENTLY,
        Ok(Err(Code(code))) => code,
        Err(_) => abi::ERROR,
    }
}

/// The entry point that SQLite finds for `.load ./libuntorn_sqlite`, by the name of the file.
///
/// # Safety
/// As for [`sqlite3_untorn_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_untornsqlite_init(
    connection: *mut c_void,
    message: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { sqlite3_untorn_init(connection, message, routines) }
}
