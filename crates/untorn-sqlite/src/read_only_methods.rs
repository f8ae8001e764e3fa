//! The methods of a database that may not be written to.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Code;
use crate::abi::{self, File, Methods};
use crate::inner::text_for_sqlite;
use crate::methods::{bytes_mut, result, sector_size, text_of};
use crate::read_only::ReadOnly;

/// Such a database in SQLite's memory for a file.
#[repr(C)]
pub(crate) struct ReadOnlyFile {
    file: File,
    database: *mut ReadOnly,
}

/// Puts a database into SQLite's memory for a file.
///
/// # Safety
/// `place` has room for a [`ReadOnlyFile`].
pub(crate) unsafe fn put_read_only(place: *mut File, database: ReadOnly) {
    let database = Box::into_raw(Box::new(database));
    // SAFETY: the caller says that there is room.
    unsafe {
        place.cast::<ReadOnlyFile>().write(ReadOnlyFile { file: File { methods: &raw const READ_ONLY }, database })
    }
}

/// Calls a method of the database. No panic passes into SQLite.
///
/// # Safety
/// SQLite passed the arguments to a method.
unsafe fn call<T>(file: *mut File, otherwise: T, act: impl FnOnce(&mut ReadOnly) -> T) -> T {
    // SAFETY: only `put_read_only` sets these methods.
    let place = unsafe { &*file.cast::<ReadOnlyFile>() };
    // SAFETY: SQLite uses a file from one thread at a time, and not after it closed it.
    let Some(database) = (unsafe { place.database.as_mut() }) else { return otherwise };
    catch_unwind(AssertUnwindSafe(|| act(database))).unwrap_or(otherwise)
}

/// `xClose`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: only `put_read_only` sets these methods.
    let place = unsafe { &mut *file.cast::<ReadOnlyFile>() };
    let database = std::mem::replace(&mut place.database, std::ptr::null_mut());
    place.file.methods = std::ptr::null();
    if !database.is_null() {
        // SAFETY: it came from a box, and nothing has it any more.
        let database = unsafe { Box::from_raw(database) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
    }
    abi::OK
}

/// `xRead`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn read(file: *mut File, bytes: *mut c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer.
    let bytes = unsafe { bytes_mut(bytes, len) };
    let (Some(bytes), Ok(offset)) = (bytes, u64::try_from(offset)) else { return abi::IOERR_READ };
    let read = |database: &mut ReadOnly| match database.read(offset, bytes) {
        Ok(true) => abi::OK,
        Ok(false) => abi::IOERR_SHORT_READ,
        Err(Code(code)) => code,
    };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_READ, read) }
}

/// `xWrite`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn write(_file: *mut File, _bytes: *const c_void, _len: c_int, _offset: i64) -> c_int {
    abi::READONLY
}

/// `xTruncate`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn truncate(_file: *mut File, _len: i64) -> c_int {
    abi::READONLY
}

/// `xSync`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn sync(_file: *mut File, _flags: c_int) -> c_int {
    abi::OK
}

/// `xFileSize`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: SQLite calls with an open file.
    match unsafe { call(file, Err(Code(abi::IOERR_FSTAT)), ReadOnly::len) } {
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
unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_LOCK, |database| result(database.lock(level))) }
}

/// `xUnlock`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_LOCK, |database| result(database.unlock(level))) }
}

/// `xCheckReservedLock`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn check_reserved_lock(file: *mut File, reserved: *mut c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    match unsafe { call(file, Err(Code(abi::IOERR_LOCK)), ReadOnly::is_reserved) } {
        Ok(found) => {
            // SAFETY: SQLite passes a place for the answer.
            unsafe { *reserved = found.into() };
            abi::OK
        }
        Err(Code(code)) => code,
    }
}

/// `xFileControl`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn file_control(file: *mut File, code: c_int, argument: *mut c_void) -> c_int {
    let control = |database: &mut ReadOnly| match code {
        abi::FCNTL_VFSNAME => {
            // SAFETY: the argument of this code is a place for text that SQLite frees.
            unsafe { *argument.cast::<*mut c_char>() = text_for_sqlite("untorn") };
            abi::OK
        }
        abi::FCNTL_PRAGMA => {
            // SAFETY: the argument of this code is an array of three or four strings.
            let [answer, name, _] = unsafe { &mut *argument.cast::<[*mut c_char; 3]>() };
            // SAFETY: it is null or a string.
            if unsafe { text_of(*name) }.as_deref() != Some("untorn_info") {
                return abi::NOTFOUND;
            }
            *answer = text_for_sqlite(&database.info());
            abi::OK
        }
        // SAFETY: the VFS `unix` has the same codes.
        _ => result(unsafe { database.file_control(code, argument) }),
    };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::ERROR, control) }
}

/// `xDeviceCharacteristics`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, 0, ReadOnly::characteristics) }
}

/// `xShmMap`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    size: c_int,
    extend: c_int,
    place: *mut *mut c_void,
) -> c_int {
    let map = |database: &mut ReadOnly| match database.plain() {
        // SAFETY: SQLite passes a place for the address.
        Ok(plain) => unsafe { plain.shm_map(region, size, extend, place) },
        Err(Code(code)) => code,
    };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR, map) }
}

/// `xShmLock`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn shm_lock(file: *mut File, offset: c_int, count: c_int, flags: c_int) -> c_int {
    let lock =
        |database: &mut ReadOnly| result(database.plain().and_then(|plain| plain.shm_lock(offset, count, flags)));
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_LOCK, lock) }
}

/// `xShmBarrier`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn shm_barrier(file: *mut File) {
    let barrier = |database: &mut ReadOnly| {
        if let Ok(plain) = database.plain() {
            plain.shm_barrier();
        }
    };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, (), barrier) }
}

/// `xShmUnmap`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn shm_unmap(file: *mut File, delete: c_int) -> c_int {
    let unmap = |database: &mut ReadOnly| result(database.unmap(delete));
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR, unmap) }
}

static READ_ONLY: Methods = Methods {
    version: 2,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map,
    shm_lock,
    shm_barrier,
    shm_unmap,
};
