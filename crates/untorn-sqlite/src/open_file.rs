//! What an open file is in SQLite's memory for it, and the methods that all databases have alike.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Code;
use crate::abi::{self, File, Methods};

/// An open file: SQLite looks at the methods, and these at the rest.
#[repr(C)]
pub(crate) struct OpenFile<T> {
    file: File,
    content: *mut T,
}

/// A kind of open file, which is known by its methods.
pub(crate) trait Content: Sized {
    fn methods() -> *const Methods;
}

/// A database, in what SQLite asks of each.
pub(crate) trait AnyDatabase: Content {
    fn close(self) -> Result<(), Code>;
    /// Fills `bytes`, with zeros beyond the end. False if there is an end within.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<bool, Code>;
    fn len(&mut self) -> Result<u64, Code>;
    fn lock(&mut self, level: c_int) -> Result<(), Code>;
    fn unlock(&mut self, level: c_int) -> Result<(), Code>;
    fn is_reserved(&mut self) -> Result<bool, Code>;
    fn characteristics(&mut self) -> c_int;
}

/// Puts the content into SQLite's memory for a file.
///
/// # Safety
/// `place` has room for an [`OpenFile`].
pub(crate) unsafe fn put<T: Content>(place: *mut File, content: T) {
    let content = Box::into_raw(Box::new(content));
    // SAFETY: the caller says that there is room.
    unsafe { place.cast::<OpenFile<T>>().write(OpenFile { file: File { methods: T::methods() }, content }) }
}

/// The content of a file of this kind; `None` for any other file.
///
/// # Safety
/// `file` is an open file of some VFS, or null, and nothing else uses it.
pub(crate) unsafe fn content_of<'a, T: Content>(file: *mut File) -> Option<&'a mut T> {
    // SAFETY: the caller says so.
    let methods = unsafe { file.as_ref() }?.methods;
    if !std::ptr::eq(methods, T::methods()) {
        return None;
    }
    // SAFETY: only `put` sets these methods.
    let open = unsafe { &*file.cast::<OpenFile<T>>() };
    // SAFETY: SQLite uses a file from one thread at a time, and not after it closed it.
    unsafe { open.content.as_mut() }
}

/// Takes the content out, after which the file is not open any more.
///
/// # Safety
/// `file` is a file of SQLite's, and nothing else uses it.
pub(crate) unsafe fn take<T: Content>(file: *mut File) -> Option<T> {
    // SAFETY: the caller says so.
    let content: *mut T = unsafe { content_of(file) }?;
    // SAFETY: as above.
    unsafe { (*file).methods = std::ptr::null() };
    // SAFETY: it came from a box, and nothing has it any more.
    Some(*unsafe { Box::from_raw(content) })
}

/// Calls a method of the content. No panic passes into SQLite.
///
/// # Safety
/// SQLite passed the arguments to a method.
pub(crate) unsafe fn call<T: Content, R>(file: *mut File, otherwise: R, act: impl FnOnce(&mut T) -> R) -> R {
    // SAFETY: SQLite calls with an open file of this VFS.
    let Some(content) = (unsafe { content_of(file) }) else { return otherwise };
    catch_unwind(AssertUnwindSafe(|| act(content))).unwrap_or(otherwise)
}

pub(crate) fn result(result: Result<(), Code>) -> c_int {
    result.err().map_or(abi::OK, |Code(code)| code)
}

/// The bytes of a request; `None` if SQLite asked for what cannot be.
///
/// # Safety
/// SQLite passed the arguments to a method.
pub(crate) unsafe fn bytes_mut<'a>(bytes: *mut c_void, len: c_int) -> Option<&'a mut [u8]> {
    let len = usize::try_from(len).ok().filter(|_| !bytes.is_null())?;
    // SAFETY: SQLite passes a buffer of this length.
    Some(unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len) })
}

/// `xClose`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn close<T: AnyDatabase>(file: *mut File) -> c_int {
    // SAFETY: SQLite closes an open file.
    let database: Option<T> = unsafe { take(file) };
    let close = || database.map_or(abi::OK, |database| result(database.close()));
    catch_unwind(AssertUnwindSafe(close)).unwrap_or(abi::IOERR_CLOSE)
}

/// `xRead`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn read<T: AnyDatabase>(
    file: *mut File,
    bytes: *mut c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: SQLite passes a buffer.
    let bytes = unsafe { bytes_mut(bytes, len) };
    let (Some(bytes), Ok(offset)) = (bytes, u64::try_from(offset)) else { return abi::IOERR_READ };
    let read = |database: &mut T| match database.read(offset, bytes) {
        Ok(true) => abi::OK,
        Ok(false) => abi::IOERR_SHORT_READ,
        Err(Code(code)) => code,
    };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_READ, read) }
}

/// `xFileSize`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn file_size<T: AnyDatabase>(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: SQLite calls with an open file.
    match unsafe { call(file, Err(Code(abi::IOERR_FSTAT)), T::len) } {
        Ok(len) => {
            // SAFETY: SQLite passes a place for the length.
            unsafe { *size = len as i64 };
            abi::OK
        }
        Err(Code(code)) => code,
    }
}

/// `xLock`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn lock<T: AnyDatabase>(file: *mut File, level: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_LOCK, |database: &mut T| result(database.lock(level))) }
}

/// `xUnlock`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn unlock<T: AnyDatabase>(file: *mut File, level: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_LOCK, |database: &mut T| result(database.unlock(level))) }
}

/// `xCheckReservedLock`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn check_reserved_lock<T: AnyDatabase>(file: *mut File, reserved: *mut c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    match unsafe { call(file, Err(Code(abi::IOERR_LOCK)), T::is_reserved) } {
        Ok(found) => {
            // SAFETY: SQLite passes a place for the answer.
            unsafe { *reserved = found.into() };
            abi::OK
        }
        Err(Code(code)) => code,
    }
}

/// `xSectorSize`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn sector_size(_file: *mut File) -> c_int {
    4096
}

/// `xDeviceCharacteristics`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
pub(crate) unsafe extern "C" fn device_characteristics<T: AnyDatabase>(file: *mut File) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, 0, T::characteristics) }
}
