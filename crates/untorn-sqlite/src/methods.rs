//! The methods of open files, as SQLite calls them.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::abi::{self, File, Methods};
use crate::database::Database;
use crate::inner::text_for_sqlite;
use crate::journal::Journal;
use crate::open_file::{
    AnyDatabase, Content, bytes_mut, call, check_reserved_lock, close, content_of, device_characteristics, file_size,
    lock, read, result, sector_size, take, unlock,
};
use crate::{Code, log};

impl Content for Database {
    fn methods() -> *const Methods {
        &raw const MAIN
    }
}

impl AnyDatabase for Database {
    fn close(self) -> Result<(), Code> {
        Database::close(self)
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<bool, Code> {
        Database::read(self, offset, bytes)
    }

    fn len(&mut self) -> Result<u64, Code> {
        Database::len(self)
    }

    fn lock(&mut self, level: c_int) -> Result<(), Code> {
        Database::lock(self, level)
    }

    fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        Database::unlock(self, level)
    }

    fn is_reserved(&mut self) -> Result<bool, Code> {
        Database::is_reserved(self)
    }

    fn characteristics(&mut self) -> c_int {
        Database::characteristics(self)
    }
}

impl Content for Journal {
    fn methods() -> *const Methods {
        &raw const JOURNAL
    }
}

/// # Safety
/// SQLite passed the arguments to a method.
unsafe fn bytes_of<'a>(bytes: *const c_void, len: c_int) -> Option<&'a [u8]> {
    let len = usize::try_from(len).ok().filter(|_| !bytes.is_null())?;
    // SAFETY: SQLite passes a buffer of this length.
    Some(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

/// `xWrite`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn write(file: *mut File, bytes: *const c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer.
    let bytes = unsafe { bytes_of(bytes, len) };
    let (Some(bytes), Ok(offset)) = (bytes, u64::try_from(offset)) else { return abi::IOERR_WRITE };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_WRITE, |database: &mut Database| result(database.write(offset, bytes))) }
}

/// `xTruncate`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    let Ok(len) = u64::try_from(len) else { return abi::IOERR_TRUNCATE };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_TRUNCATE, |database: &mut Database| result(database.truncate(len))) }
}

/// `xSync`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_FSYNC, |database: &mut Database| result(database.commit())) }
}

/// `xFileControl`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn file_control(file: *mut File, code: c_int, argument: *mut c_void) -> c_int {
    let control = |database: &mut Database| {
        // SAFETY: SQLite passes what its documentation says for this code.
        unsafe { control(database, code, argument) }
    };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::ERROR, control) }
}

/// # Safety
/// `argument` is what SQLite's documentation says for this code.
unsafe fn control(database: &mut Database, code: c_int, argument: *mut c_void) -> c_int {
    match code {
        abi::FCNTL_SYNC | abi::FCNTL_COMMIT_PHASETWO | abi::FCNTL_COMMIT_ATOMIC_WRITE => result(database.commit()),
        abi::FCNTL_CKPT_DONE => {
            database.commit_checkpoint();
            abi::OK
        }
        abi::FCNTL_ROLLBACK_ATOMIC_WRITE => {
            database.roll_back();
            abi::OK
        }
        abi::FCNTL_BEGIN_ATOMIC_WRITE | abi::FCNTL_SIZE_HINT | abi::FCNTL_CHUNK_SIZE => abi::OK,
        abi::FCNTL_LOCKSTATE => {
            // SAFETY: the argument of this code is a place for a number.
            unsafe { *argument.cast::<c_int>() = database.level() };
            abi::OK
        }
        abi::FCNTL_HAS_MOVED => {
            // SAFETY: the argument of this code is a place for a number.
            unsafe { *argument.cast::<c_int>() = database.has_moved().into() };
            abi::OK
        }
        abi::FCNTL_POWERSAFE_OVERWRITE => {
            // It cannot be turned off: a commit writes nothing but what SQLite has written.
            // SAFETY: the argument of this code is a place for a number.
            unsafe { *argument.cast::<c_int>() = 1 };
            abi::OK
        }
        abi::FCNTL_VFSNAME => {
            // SAFETY: the argument of this code is a place for text that SQLite frees.
            unsafe { *argument.cast::<*mut c_char>() = text_for_sqlite("untorn") };
            abi::OK
        }
        abi::FCNTL_PRAGMA => {
            // SAFETY: the argument of this code is an array of three or four strings.
            let arguments = unsafe { &mut *argument.cast::<[*mut c_char; 3]>() };
            // SAFETY: each is null or a string.
            unsafe { pragma(database, arguments) }
        }
        abi::FCNTL_LAST_ERRNO
        | abi::FCNTL_TEMPFILENAME
        | abi::FCNTL_LOCK_TIMEOUT
        | abi::FCNTL_PERSIST_WAL
        | abi::FCNTL_EXTERNAL_READER => {
            // SAFETY: the VFS `unix` has the same codes.
            result(unsafe { database.locks().file_control(code, argument) })
        }
        _ => abi::NOTFOUND,
    }
}

/// A string of SQLite's, in lower case.
///
/// # Safety
/// It is null or a string.
pub(crate) unsafe fn text_of(text: *const c_char) -> Option<String> {
    // SAFETY: the caller says so.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().to_ascii_lowercase())
}

/// # Safety
/// Each argument is null or a string.
unsafe fn pragma(database: &mut Database, [answer, name, value]: &mut [*mut c_char; 3]) -> c_int {
    // SAFETY: the caller says so.
    let name = unsafe { text_of(*name) };
    // SAFETY: as above.
    let value = unsafe { text_of(*value) };
    match name.as_deref() {
        Some("untorn_info") => {
            *answer = text_for_sqlite(&database.info());
            abi::OK
        }
        Some("untorn_snapshot") => {
            *answer = text_for_sqlite(&database.commit_number().to_string());
            abi::OK
        }
        Some("journal_mode") => {
            if let Some(mode) = value {
                database.choose_journal_in_file(matches!(mode.as_str(), "delete" | "truncate" | "persist"));
            }
            // SQLite does the rest.
            abi::NOTFOUND
        }
        _ => abi::NOTFOUND,
    }
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
    let map = |database: &mut Database| match database.begin_wal() {
        // SAFETY: SQLite passes a place for the address.
        Ok(()) => unsafe { database.locks().shm_map(region, size, extend, place) },
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
    let lock = |database: &mut Database| result(database.locks().shm_lock(offset, count, flags));
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_LOCK, lock) }
}

/// `xShmBarrier`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, (), |database: &mut Database| database.locks().shm_barrier()) }
}

/// `xShmUnmap`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn shm_unmap(file: *mut File, delete: c_int) -> c_int {
    let unmap = |database: &mut Database| {
        let unmapped = database.locks().shm_unmap(delete);
        database.end_wal();
        result(unmapped)
    };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR, unmap) }
}

static MAIN: Methods = Methods {
    version: 2,
    close: close::<Database>,
    read: read::<Database>,
    write,
    truncate,
    sync,
    file_size: file_size::<Database>,
    lock: lock::<Database>,
    unlock: unlock::<Database>,
    check_reserved_lock: check_reserved_lock::<Database>,
    file_control,
    sector_size,
    device_characteristics: device_characteristics::<Database>,
    shm_map,
    shm_lock,
    shm_barrier,
    shm_unmap,
};

/// `xClose` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn journal_close(file: *mut File) -> c_int {
    // SAFETY: SQLite closes an open file.
    drop(unsafe { take::<Journal>(file) });
    abi::OK
}

/// `xRead` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn journal_read(file: *mut File, bytes: *mut c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer.
    let bytes = unsafe { bytes_mut(bytes, len) };
    // SAFETY: SQLite calls with an open journal.
    let journal = unsafe { content_of::<Journal>(file) };
    match (journal, bytes, u64::try_from(offset)) {
        (Some(journal), Some(bytes), Ok(offset)) => {
            if journal.read(offset, bytes) {
                abi::OK
            } else {
                abi::IOERR_SHORT_READ
            }
        }
        _ => abi::IOERR_READ,
    }
}

/// `xWrite` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn journal_write(file: *mut File, bytes: *const c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer.
    let bytes = unsafe { bytes_of(bytes, len) };
    // SAFETY: SQLite calls with an open journal.
    let journal = unsafe { content_of::<Journal>(file) };
    match (journal, bytes, u64::try_from(offset)) {
        (Some(journal), Some(bytes), Ok(offset)) => {
            if journal.write(offset, bytes) {
                abi::OK
            } else {
                abi::NOMEM
            }
        }
        _ => abi::IOERR_WRITE,
    }
}

/// `xTruncate` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn journal_truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: SQLite calls with an open journal.
    let journal = unsafe { content_of::<Journal>(file) };
    match (journal, u64::try_from(len)) {
        (Some(journal), Ok(len)) => {
            journal.truncate(len);
            abi::OK
        }
        _ => abi::IOERR_TRUNCATE,
    }
}

/// `xFileSize` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn journal_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: SQLite calls with an open journal.
    let Some(journal) = (unsafe { content_of::<Journal>(file) }) else { return abi::IOERR_FSTAT };
    // SAFETY: SQLite passes a place for the length.
    unsafe { *size = journal.len() as i64 };
    abi::OK
}

/// `xSync` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn nothing_to_sync(_file: *mut File, _flags: c_int) -> c_int {
    abi::OK
}

/// `xLock` and `xUnlock` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn no_lock(_file: *mut File, _level: c_int) -> c_int {
    abi::OK
}

/// `xCheckReservedLock` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn not_reserved(_file: *mut File, reserved: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a place for the answer.
    unsafe { *reserved = 0 };
    abi::OK
}

/// `xFileControl` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn no_control(_file: *mut File, _code: c_int, _argument: *mut c_void) -> c_int {
    abi::NOTFOUND
}

/// `xShmMap` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn no_shm_map(_: *mut File, _: c_int, _: c_int, _: c_int, _: *mut *mut c_void) -> c_int {
    log(abi::IOERR, "a journal has no shared memory");
    abi::IOERR
}

/// `xShmLock` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn no_shm_lock(_: *mut File, _: c_int, _: c_int, _: c_int) -> c_int {
    abi::IOERR_LOCK
}

/// `xShmBarrier` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn no_shm_barrier(_: *mut File) {}

/// `xDeviceCharacteristics` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn journal_characteristics(_: *mut File) -> c_int {
    abi::IOCAP_SAFE_APPEND | abi::IOCAP_POWERSAFE_OVERWRITE | abi::IOCAP_SEQUENTIAL
}

static JOURNAL: Methods = Methods {
    version: 1,
    close: journal_close,
    read: journal_read,
    write: journal_write,
    truncate: journal_truncate,
    sync: nothing_to_sync,
    file_size: journal_size,
    lock: no_lock,
    unlock: no_lock,
    check_reserved_lock: not_reserved,
    file_control: no_control,
    sector_size,
    device_characteristics: journal_characteristics,
    shm_map: no_shm_map,
    shm_lock: no_shm_lock,
    shm_barrier: no_shm_barrier,
    shm_unmap: no_lock,
};
