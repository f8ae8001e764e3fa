//! The methods of open files, as SQLite calls them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{self, File, Methods};
use crate::database::Database;
use crate::inner::text_for_sqlite;
use crate::journal::Journal;
use crate::{Code, log};

/// A main database in SQLite's memory for a file.
#[repr(C)]
pub(crate) struct MainFile {
    file: File,
    database: *mut Database,
}

/// A rollback journal that is in memory.
#[repr(C)]
pub(crate) struct JournalFile {
    file: File,
    journal: *mut Journal,
}

/// Puts a database into SQLite's memory for a file.
///
/// # Safety
/// `place` has room for a [`MainFile`].
pub(crate) unsafe fn put_database(place: *mut File, database: Database) {
    let database = Box::into_raw(Box::new(database));
    // SAFETY: the caller says that there is room.
    unsafe { place.cast::<MainFile>().write(MainFile { file: File { methods: &raw const MAIN }, database }) }
}

/// Puts a journal into SQLite's memory for a file.
///
/// # Safety
/// `place` has room for a [`JournalFile`].
pub(crate) unsafe fn put_journal(place: *mut File) {
    let journal = Box::into_raw(Box::<Journal>::default());
    // SAFETY: the caller says that there is room.
    unsafe { place.cast::<JournalFile>().write(JournalFile { file: File { methods: &raw const JOURNAL }, journal }) }
}

/// The database of a file of this VFS; `None` for any other file.
///
/// # Safety
/// `file` is an open file of some VFS, or null, and nothing else uses it.
pub(crate) unsafe fn database_of<'a>(file: *mut File) -> Option<&'a mut Database> {
    // SAFETY: the caller says so.
    let methods = unsafe { file.as_ref() }?.methods;
    if !std::ptr::eq(methods, &raw const MAIN) {
        return None;
    }
    // SAFETY: only `put_database` sets these methods.
    let main = unsafe { &*file.cast::<MainFile>() };
    // SAFETY: SQLite uses a file from one thread at a time, and not after it closed it.
    unsafe { main.database.as_mut() }
}

/// Calls a method of the database. No panic passes into SQLite.
///
/// # Safety
/// SQLite passed the arguments to a method.
unsafe fn call<T>(file: *mut File, otherwise: T, act: impl FnOnce(&mut Database) -> T) -> T {
    // SAFETY: SQLite calls with an open file of this VFS.
    let Some(database) = (unsafe { database_of(file) }) else { return otherwise };
    catch_unwind(AssertUnwindSafe(|| act(database))).unwrap_or(otherwise)
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

/// # Safety
/// SQLite passed the arguments to a method.
unsafe fn bytes_of<'a>(bytes: *const c_void, len: c_int) -> Option<&'a [u8]> {
    let len = usize::try_from(len).ok().filter(|_| !bytes.is_null())?;
    // SAFETY: SQLite passes a buffer of this length.
    Some(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

/// `xClose`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: only `put_database` sets these methods.
    let main = unsafe { &mut *file.cast::<MainFile>() };
    let database = std::mem::replace(&mut main.database, std::ptr::null_mut());
    main.file.methods = std::ptr::null();
    if database.is_null() {
        return abi::OK;
    }
    // SAFETY: it came from a box, and nothing has it any more.
    let database = unsafe { Box::from_raw(database) };
    catch_unwind(AssertUnwindSafe(|| result(database.close()))).unwrap_or(abi::IOERR_CLOSE)
}

/// `xRead`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn read(file: *mut File, bytes: *mut c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer.
    let bytes = unsafe { bytes_mut(bytes, len) };
    let (Some(bytes), Ok(offset)) = (bytes, u64::try_from(offset)) else { return abi::IOERR_READ };
    let read = |database: &mut Database| match database.read(offset, bytes) {
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
unsafe extern "C" fn write(file: *mut File, bytes: *const c_void, len: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite passes a buffer.
    let bytes = unsafe { bytes_of(bytes, len) };
    let (Some(bytes), Ok(offset)) = (bytes, u64::try_from(offset)) else { return abi::IOERR_WRITE };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_WRITE, |database| result(database.write(offset, bytes))) }
}

/// `xTruncate`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    let Ok(len) = u64::try_from(len) else { return abi::IOERR_TRUNCATE };
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_TRUNCATE, |database| result(database.truncate(len))) }
}

/// `xSync`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_FSYNC, |database| result(database.commit())) }
}

/// `xFileSize`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let len = unsafe { call(file, Err(Code(abi::IOERR_FSTAT)), |database| database.len()) };
    match len {
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
    let found = unsafe { call(file, Err(Code(abi::IOERR_LOCK)), Database::is_reserved) };
    match found {
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
        abi::FCNTL_LOCK_TIMEOUT | abi::FCNTL_PERSIST_WAL | abi::FCNTL_EXTERNAL_READER => {
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
unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, 0, |database| database.characteristics()) }
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
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, abi::IOERR_LOCK, |database| result(database.locks().shm_lock(offset, count, flags))) }
}

/// `xShmBarrier`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: SQLite calls with an open file.
    unsafe { call(file, (), |database| database.locks().shm_barrier()) }
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

/// The journal of a file with the methods `JOURNAL`.
///
/// # Safety
/// SQLite passed the arguments to a method.
unsafe fn journal_of<'a>(file: *mut File) -> Option<&'a mut Journal> {
    // SAFETY: only `put_journal` sets these methods.
    let place = unsafe { &*file.cast::<JournalFile>() };
    // SAFETY: SQLite uses a file from one thread at a time, and not after it closed it.
    unsafe { place.journal.as_mut() }
}

/// `xClose` of a journal.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn journal_close(file: *mut File) -> c_int {
    // SAFETY: only `put_journal` sets these methods.
    let place = unsafe { &mut *file.cast::<JournalFile>() };
    let journal = std::mem::replace(&mut place.journal, std::ptr::null_mut());
    place.file.methods = std::ptr::null();
    if !journal.is_null() {
        // SAFETY: it came from a box, and nothing has it any more.
        drop(unsafe { Box::from_raw(journal) });
    }
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
    let journal = unsafe { journal_of(file) };
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
    let journal = unsafe { journal_of(file) };
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
    let journal = unsafe { journal_of(file) };
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
    let Some(journal) = (unsafe { journal_of(file) }) else { return abi::IOERR_FSTAT };
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
