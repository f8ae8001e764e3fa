//! The methods of a database that may not be written to.

use std::ffi::{c_char, c_int, c_void};

use crate::Code;
use crate::abi::{self, File, Methods};
use crate::inner::text_for_sqlite;
use crate::methods::text_of;
use crate::open_file::{
    AnyDatabase, Content, call, check_reserved_lock, close, device_characteristics, file_size, lock, read, result,
    sector_size, unlock,
};
use crate::read_only::ReadOnly;

impl Content for ReadOnly {
    fn methods() -> *const Methods {
        &raw const READ_ONLY
    }
}

impl AnyDatabase for ReadOnly {
    fn close(self) -> Result<(), Code> {
        Ok(())
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<bool, Code> {
        ReadOnly::read(self, offset, bytes)
    }

    fn len(&mut self) -> Result<u64, Code> {
        ReadOnly::len(self)
    }

    fn lock(&mut self, level: c_int) -> Result<(), Code> {
        ReadOnly::lock(self, level)
    }

    fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        ReadOnly::unlock(self, level)
    }

    fn is_reserved(&mut self) -> Result<bool, Code> {
        ReadOnly::is_reserved(self)
    }

    fn characteristics(&mut self) -> c_int {
        ReadOnly::characteristics(self)
    }
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
    close: close::<ReadOnly>,
    read: read::<ReadOnly>,
    write,
    truncate,
    sync,
    file_size: file_size::<ReadOnly>,
    lock: lock::<ReadOnly>,
    unlock: unlock::<ReadOnly>,
    check_reserved_lock: check_reserved_lock::<ReadOnly>,
    file_control,
    sector_size,
    device_characteristics: device_characteristics::<ReadOnly>,
    shm_map,
    shm_lock,
    shm_barrier,
    shm_unmap,
};
