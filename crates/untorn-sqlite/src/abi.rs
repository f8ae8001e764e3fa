//! The part of SQLite's C interface that a loadable VFS needs, as `sqlite3.h` and `sqlite3ext.h` have it.
//!
//! The interface is stable: SQLite adds fields and routines at the end only. The names are SQLite's own, so that its
//! documentation finds them: <https://sqlite.org/c3ref/vfs.html>, <https://sqlite.org/c3ref/io_methods.html>.

use std::ffi::{c_char, c_int, c_void};

pub(crate) const OK: c_int = 0;
pub(crate) const OK_LOAD_PERMANENTLY: c_int = 256;
pub(crate) const ERROR: c_int = 1;
pub(crate) const BUSY: c_int = 5;
pub(crate) const BUSY_SNAPSHOT: c_int = 5 | (2 << 8);
pub(crate) const NOMEM: c_int = 7;
pub(crate) const READONLY: c_int = 8;
pub(crate) const IOERR: c_int = 10;
pub(crate) const IOERR_READ: c_int = IOERR | (1 << 8);
pub(crate) const IOERR_SHORT_READ: c_int = IOERR | (2 << 8);
pub(crate) const IOERR_WRITE: c_int = IOERR | (3 << 8);
pub(crate) const IOERR_FSYNC: c_int = IOERR | (4 << 8);
pub(crate) const IOERR_TRUNCATE: c_int = IOERR | (6 << 8);
pub(crate) const IOERR_FSTAT: c_int = IOERR | (7 << 8);
pub(crate) const IOERR_LOCK: c_int = IOERR | (15 << 8);
pub(crate) const IOERR_CLOSE: c_int = IOERR | (16 << 8);
pub(crate) const IOERR_DATA: c_int = IOERR | (32 << 8);
pub(crate) const CORRUPT: c_int = 11;
pub(crate) const NOTFOUND: c_int = 12;
pub(crate) const FULL: c_int = 13;
pub(crate) const CANTOPEN: c_int = 14;
pub(crate) const PERM: c_int = 3;

pub(crate) const OPEN_READONLY: c_int = 0x1;
pub(crate) const OPEN_CREATE: c_int = 0x4;
pub(crate) const OPEN_READWRITE: c_int = 0x2;
pub(crate) const OPEN_DELETEONCLOSE: c_int = 0x8;
pub(crate) const OPEN_MAIN_DB: c_int = 0x100;
pub(crate) const OPEN_MAIN_JOURNAL: c_int = 0x800;
pub(crate) const OPEN_WAL: c_int = 0x80000;

pub(crate) const ACCESS_EXISTS: c_int = 0;

pub(crate) const LOCK_NONE: c_int = 0;
pub(crate) const LOCK_SHARED: c_int = 1;
pub(crate) const LOCK_RESERVED: c_int = 2;
pub(crate) const LOCK_PENDING: c_int = 3;
pub(crate) const LOCK_EXCLUSIVE: c_int = 4;

pub(crate) const FCNTL_LOCKSTATE: c_int = 1;
pub(crate) const FCNTL_LAST_ERRNO: c_int = 4;
pub(crate) const FCNTL_SIZE_HINT: c_int = 5;
pub(crate) const FCNTL_CHUNK_SIZE: c_int = 6;
pub(crate) const FCNTL_PERSIST_WAL: c_int = 10;
pub(crate) const FCNTL_VFSNAME: c_int = 12;
pub(crate) const FCNTL_POWERSAFE_OVERWRITE: c_int = 13;
pub(crate) const FCNTL_PRAGMA: c_int = 14;
pub(crate) const FCNTL_TEMPFILENAME: c_int = 16;
pub(crate) const FCNTL_HAS_MOVED: c_int = 20;
pub(crate) const FCNTL_SYNC: c_int = 21;
pub(crate) const FCNTL_CKPT_DONE: c_int = 37;
pub(crate) const FCNTL_COMMIT_PHASETWO: c_int = 22;
pub(crate) const FCNTL_BEGIN_ATOMIC_WRITE: c_int = 31;
pub(crate) const FCNTL_COMMIT_ATOMIC_WRITE: c_int = 32;
pub(crate) const FCNTL_ROLLBACK_ATOMIC_WRITE: c_int = 33;
pub(crate) const FCNTL_LOCK_TIMEOUT: c_int = 34;
pub(crate) const FCNTL_EXTERNAL_READER: c_int = 40;

pub(crate) const IOCAP_SAFE_APPEND: c_int = 0x200;
pub(crate) const IOCAP_SEQUENTIAL: c_int = 0x400;
pub(crate) const IOCAP_POWERSAFE_OVERWRITE: c_int = 0x1000;
pub(crate) const IOCAP_BATCH_ATOMIC: c_int = 0x4000;

/// An open file: whatever a VFS has behind the pointer to its methods.
#[repr(C)]
pub(crate) struct File {
    pub(crate) methods: *const Methods,
}

/// `sqlite3_io_methods`, version 2.
#[repr(C)]
pub(crate) struct Methods {
    pub(crate) version: c_int,
    pub(crate) close: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub(crate) write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub(crate) truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub(crate) sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub(crate) lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub(crate) check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub(crate) file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub(crate) sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    pub(crate) shm_map: unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    pub(crate) shm_lock: unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int,
    pub(crate) shm_barrier: unsafe extern "C" fn(*mut File),
    pub(crate) shm_unmap: unsafe extern "C" fn(*mut File, c_int) -> c_int,
}

/// What `xDlSym` returns.
pub(crate) type Symbol = Option<unsafe extern "C" fn()>;

/// `sqlite3_vfs`, version 3.
#[repr(C)]
pub(crate) struct Vfs {
    pub(crate) version: c_int,
    pub(crate) file_size: c_int,
    pub(crate) max_path: c_int,
    pub(crate) next: *mut Vfs,
    pub(crate) name: *const c_char,
    pub(crate) app_data: *mut c_void,
    pub(crate) open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub(crate) delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub(crate) access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub(crate) full_pathname: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub(crate) dl_open: unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void,
    pub(crate) dl_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char),
    pub(crate) dl_sym: unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Symbol,
    pub(crate) dl_close: unsafe extern "C" fn(*mut Vfs, *mut c_void),
    pub(crate) randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(crate) sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub(crate) current_time: unsafe extern "C" fn(*mut Vfs, *mut f64) -> c_int,
    pub(crate) get_last_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub(crate) current_time_int64: unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int,
    pub(crate) set_system_call: unsafe extern "C" fn(*mut Vfs, *const c_char, Symbol) -> c_int,
    pub(crate) get_system_call: unsafe extern "C" fn(*mut Vfs, *const c_char) -> Symbol,
    pub(crate) next_system_call: unsafe extern "C" fn(*mut Vfs, *const c_char) -> *const c_char,
}

/// A routine that this crate does not call.
type Unused = Option<unsafe extern "C" fn()>;

/// `sqlite3_api_routines` as far as this crate needs it. A test compares the places with the header.
#[repr(C)]
pub(crate) struct Routines {
    before_libversion_number: [Unused; 67],
    pub(crate) libversion_number: unsafe extern "C" fn() -> c_int,
    before_mprintf: [Unused; 1],
    pub(crate) mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
    before_vfs_find: [Unused; 71],
    pub(crate) vfs_find: unsafe extern "C" fn(*const c_char) -> *mut Vfs,
    pub(crate) vfs_register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    before_log: [Unused; 24],
    pub(crate) log: unsafe extern "C" fn(c_int, *const c_char, ...),
    before_uri_parameter: [Unused; 21],
    pub(crate) uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    before_database_file_object: [Unused; 61],
    pub(crate) database_file_object: unsafe extern "C" fn(*const c_char) -> *mut File,
}

/// The oldest SQLite that has [`Routines::database_file_object`].
pub(crate) const OLDEST: c_int = 3_032_000;
