//! The VFS: databases go to [`database`](crate::database), everything else to SQLite's own VFS `unix`.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use untorn::EngineKind;

use crate::abi::{self, File, Symbol, Vfs};
use crate::beside::Kind;
use crate::database::{Choices, Database};
use crate::guard::journal_in;
use crate::inner::{Inner, Name};
use crate::journal::{Journal, JournalName};
use crate::open_file::{OpenFile, content_of, put};
use crate::read_only::{ReadOnly, may_write};
use crate::share::of_open_database;
use crate::{Code, api, log};

/// A VFS that lives as long as the process.
struct Registered(*mut Vfs);

// SAFETY: SQLite uses a VFS from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// SQLite's VFS `unix`.
static UNIX: OnceLock<Registered> = OnceLock::new();

fn unix() -> *mut Vfs {
    UNIX.get().map_or(std::ptr::null_mut(), |unix| unix.0)
}

/// Whether a variable of the environment has this value. A program with more rights than its user takes nothing from
/// its user's environment.
fn is_set(variable: &str, to: &str) -> bool {
    // SAFETY: the call only reads what the kernel passed to the process.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    !has_more_rights && std::env::var_os(variable).is_some_and(|value| value == to)
}

/// Registers the VFS. A second time this only makes it the default one again, if it is to be: SQLite takes that back
/// whenever it starts anew (`sqlite3_initialize` after `sqlite3_shutdown`).
pub(crate) fn register() -> Result<(), Code> {
    static OWN: Mutex<Option<Registered>> = Mutex::new(None);
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let vfs = match own.as_ref() {
        Some(Registered(vfs)) => *vfs,
        None => new()?,
    };
    // SAFETY: the VFS is complete, and stays for good.
    let code = unsafe { (api().vfs_register)(vfs, is_set("SQLITE_UNTORN_DEFAULT", "1").into()) };
    crate::inner::check(code)?;
    *own = Some(Registered(vfs));
    Ok(())
}

/// A VFS that lives as long as the process.
fn new() -> Result<*mut Vfs, Code> {
    // SAFETY: the name is a string.
    let found = unsafe { (api().vfs_find)(c"unix".as_ptr()) };
    // SAFETY: SQLite returns null or a VFS that stays.
    let Some(base) = (unsafe { found.as_ref() }) else {
        log(abi::ERROR, "this SQLite has no VFS `unix`");
        return Err(Code(abi::ERROR));
    };
    let _ = UNIX.set(Registered(found));
    // Of whichever kind of file: it has a pointer to the rest.
    let own = size_of::<OpenFile<Database>>() as c_int;
    Ok(Box::into_raw(Box::new(Vfs {
        version: 2,
        file_size: base.file_size.max(own),
        max_path: base.max_path,
        next: std::ptr::null_mut(),
        name: c"untorn".as_ptr(),
        app_data: std::ptr::null_mut(),
        open,
        delete,
        access,
        full_pathname,
        dl_open,
        dl_error,
        dl_sym,
        dl_close,
        randomness,
        sleep,
        current_time,
        get_last_error,
        current_time_int64,
        set_system_call,
        get_system_call,
        next_system_call,
    })))
}

/// The path of a name that SQLite passes; `None` without one.
///
/// # Safety
/// SQLite passed the arguments to a method.
unsafe fn path_of<'a>(name: *const c_char) -> Option<&'a Path> {
    // SAFETY: SQLite passes null or a string.
    (!name.is_null()).then(|| Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes())))
}

/// The name of the rollback journal's file, for a journal of a database that this VFS has had open, or that it has in
/// another process. SQLite keeps the pointer of the name of an open file, so names stay, one for each database.
fn journal_name(journal: &Path) -> Option<*const c_char> {
    static NAMES: Mutex<Option<HashMap<PathBuf, Name>>> = Mutex::new(None);
    if !journal.as_os_str().as_bytes().ends_with(b"-journal") {
        return None;
    }
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    // That of a stock SQLite, since the database was closed here.
    if std::fs::symlink_metadata(journal).is_ok_and(|found| found.is_file()) {
        return None;
    }
    if let Some(name) = names.get(journal) {
        return Some(name.as_ptr());
    }
    if !journal.is_dir() {
        return None;
    }
    Some(names.entry(journal.to_owned()).or_insert_with(|| Name::new(&journal_in(journal))).as_ptr())
}

/// The database of which a name is that of the journal or of the write-ahead log, and which of them.
fn kind_of(name: &Path) -> Option<(&Path, Kind)> {
    let name = name.as_os_str().as_bytes();
    let kinds = [(Kind::Journal, &b"-journal"[..]), (Kind::Wal, b"-wal")];
    let found = kinds.into_iter().find_map(|(kind, end)| Some((name.strip_suffix(end)?, kind)));
    found.map(|(database, kind)| (Path::new(OsStr::from_bytes(database)), kind))
}

/// Whether there may be a journal or a write-ahead log of this name. It need not be looked for where this process has
/// the database open and knows of none.
fn may_exist(name: &Path) -> bool {
    kind_of(name).and_then(|(database, kind)| of_open_database(database, |beside| beside.may_have(kind))) != Some(false)
}

/// Before such a file is created.
fn note_creation(name: &Path) {
    if let Some((database, kind)) = kind_of(name) {
        of_open_database(database, |beside| beside.note(kind));
    }
}

/// What the parameters of a database's URI choose.
///
/// # Safety
/// `name` is a name that SQLite passed to `xOpen` for a main database.
unsafe fn choices(name: *const c_char) -> Result<Choices, Code> {
    // SAFETY: the caller passes such a name.
    let parameter = |key: &CStr| unsafe { parameter(name, key) };
    let refuse = |key: &str, value: &str, known: &str| {
        log(abi::CANTOPEN, &format!("the parameter `{key}` of the URI is `{value}`, and may be {known}"));
        Err(Code(abi::CANTOPEN))
    };
    let engine = match parameter(c"engine") {
        // Beside the log it measured faster on a disk, and writes fewer bytes.
        None => EngineKind::Reflection,
        Some(value) => match value.as_str() {
            "reflection" => EngineKind::Reflection,
            "hybrid-log" => EngineKind::HybridLog,
            value => return refuse("engine", value, "`reflection` or `hybrid-log`"),
        },
    };
    let snapshots = match parameter(c"snapshot").as_deref() {
        // Programs that open a database by its path alone.
        None => !is_set("SQLITE_UNTORN_SNAPSHOT", "off"),
        Some("on" | "1") => true,
        Some("off" | "0") => false,
        Some(value) => return refuse("snapshot", value, "`on` or `off`"),
    };
    match parameter(c"durability").as_deref() {
        None | Some("write") => {}
        // The engine writes once in a transaction, at its commit.
        Some(value) => return refuse("durability", value, "`write`: a transaction is durable when COMMIT returns"),
    }
    let redundancy = match parameter(c"redundancy").as_deref() {
        None | Some("off" | "0") => false,
        Some("on" | "1") => true,
        Some(value) => {
            return refuse("redundancy", value, "`on`, or `off` to leave it as the database has it");
        }
    };
    Ok(Choices { engine, snapshots, redundancy })
}

/// A parameter of a database's URI.
///
/// # Safety
/// `name` is a name that SQLite passed to `xOpen` for a main database.
unsafe fn parameter(name: *const c_char, key: &CStr) -> Option<String> {
    // SAFETY: the caller passes SQLite's own name, behind which the parameters are.
    let value = unsafe { (api().uri_parameter)(name, key.as_ptr()) };
    // SAFETY: SQLite returns null or a string that lives as long as the name.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

/// Whether no stock SQLite reads or writes a database now, in any process.
fn no_stock_user(path: &Path) -> Result<(), Code> {
    let mut stock = Inner::open(unix(), path)?;
    stock.lock(abi::LOCK_SHARED)?;
    stock.lock(abi::LOCK_EXCLUSIVE)
}

/// # Safety
/// As SQLite calls `xOpen`.
/// Returns the flags that hold of the file.
unsafe fn open_database(name: *const c_char, path: &Path, file: *mut File, flags: c_int) -> Result<c_int, Code> {
    // SAFETY: the name is that of a main database.
    let choices = unsafe { choices(name) }?;
    let path = path.to_owned();
    // SAFETY: as above.
    let immutable = unsafe { parameter(name, c"immutable") };
    let immutable = immutable.is_some_and(|value| !matches!(&*value, "0" | "off" | "no" | "false"));
    if immutable || !may_write(&path) {
        let flags = flags & !(abi::OPEN_READWRITE | abi::OPEN_CREATE) | abi::OPEN_READONLY;
        // SAFETY: SQLite's arguments go on.
        let open = || unsafe { ReadOnly::open(unix(), &path, name, flags, immutable) };
        let database = catch_unwind(AssertUnwindSafe(open)).unwrap_or(Err(Code(abi::CANTOPEN)));
        let database = database.inspect_err(|code| log(code.0, &format!("cannot open {}", path.display())))?;
        // SAFETY: the VFS asks SQLite for as much room.
        unsafe { put(file, database) };
        return Ok(flags);
    }
    let locks = |path: &Path| Inner::open(unix(), path);
    let database =
        catch_unwind(AssertUnwindSafe(|| Database::open(&path, flags, &choices, || no_stock_user(&path), locks)));
    let database = database.unwrap_or(Err(Code(abi::CANTOPEN)));
    let mut database = database.inspect_err(|code| log(code.0, &format!("cannot open {}", path.display())))?;
    // SAFETY: the name is that of a main database.
    database.set_journal_name(unsafe { JournalName::of(name) });
    // SAFETY: the VFS asks SQLite for as much room.
    unsafe { put(file, database) };
    Ok(flags)
}

/// `xOpen`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn open(
    _vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes room for a file; without methods it is not open.
    unsafe { (*file).methods = std::ptr::null() };
    // SAFETY: SQLite passes null or a string.
    let path = unsafe { path_of(name) };
    let mut name = name;
    if let Some(path) = path {
        if flags & abi::OPEN_MAIN_DB != 0 && flags & abi::OPEN_DELETEONCLOSE == 0 {
            // SAFETY: SQLite's arguments go on.
            let opened = unsafe { open_database(name, path, file, flags) };
            return match opened {
                Ok(flags) => {
                    // SAFETY: SQLite passes null or a place for the flags.
                    if let Some(flags_out) = unsafe { flags_out.as_mut() } {
                        *flags_out = flags;
                    }
                    abi::OK
                }
                Err(Code(code)) => code,
            };
        }
        if let Some(own) = journal_name(path) {
            // Another database's journal, which a super-journal names, is in a file, and opened with another flag.
            let has_file = match journal_in(path).try_exists() {
                _ if !may_exist(path) => false,
                Ok(has_file) => has_file,
                // It may be the journal of a transaction that a crash cut off.
                Err(_) => return abi::CANTOPEN,
            };
            let is_own = flags & abi::OPEN_MAIN_JOURNAL != 0 && JournalName::is_known(name);
            let database = if is_own && !has_file {
                // SAFETY: the name is that of a connection's journal, by which SQLite finds the database.
                let database = unsafe { (api().database_file_object)(name) };
                // SAFETY: it is the open file of the same connection.
                unsafe { content_of::<Database>(database) }
            } else {
                None
            };
            if database.is_some_and(|database| !database.journal_in_file()) {
                // SAFETY: the VFS asks SQLite for as much room.
                unsafe { put(file, Journal::default()) };
                // SAFETY: SQLite passes null or a place for the flags.
                if let Some(flags_out) = unsafe { flags_out.as_mut() } {
                    *flags_out = flags;
                }
                return abi::OK;
            }
            note_creation(path);
            name = own;
        } else if flags & abi::OPEN_WAL != 0 {
            note_creation(path);
        }
    }
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on, and the room is as much as this VFS wants.
    unsafe { (base.open)(unix(), name, file, flags, flags_out) }
}

/// `xDelete`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn delete(_vfs: *mut Vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite passes a string.
    let path = unsafe { path_of(name) };
    let own = path.and_then(journal_name);
    // One that cannot be looked for may be there, and a transaction with a journal would be rolled back.
    let is_missing = |path: &Path| !may_exist(path) || matches!(journal_in(path).try_exists(), Ok(false));
    if own.is_some() && path.is_some_and(is_missing) {
        // It was in memory.
        return abi::OK;
    }
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.delete)(unix(), own.unwrap_or(name), sync) }
}

/// `xAccess`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn access(_vfs: *mut Vfs, name: *const c_char, flags: c_int, found: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a string.
    let path = unsafe { path_of(name) };
    if flags == abi::ACCESS_EXISTS && path.is_some_and(|path| !may_exist(path)) {
        // SAFETY: SQLite passes a place for the answer.
        unsafe { *found = 0 };
        return abi::OK;
    }
    let own = path.and_then(journal_name).unwrap_or(name);
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.access)(unix(), own, flags, found) }
}

/// `xFullPathname`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn full_pathname(_vfs: *mut Vfs, name: *const c_char, room: c_int, path: *mut c_char) -> c_int {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.full_pathname)(unix(), name, room, path) }
}

/// `xDlOpen`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn dl_open(_vfs: *mut Vfs, name: *const c_char) -> *mut c_void {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.dl_open)(unix(), name) }
}

/// `xDlError`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn dl_error(_vfs: *mut Vfs, room: c_int, text: *mut c_char) {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.dl_error)(unix(), room, text) }
}

/// `xDlSym`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn dl_sym(_vfs: *mut Vfs, library: *mut c_void, name: *const c_char) -> Symbol {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.dl_sym)(unix(), library, name) }
}

/// `xDlClose`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn dl_close(_vfs: *mut Vfs, library: *mut c_void) {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.dl_close)(unix(), library) }
}

/// `xRandomness`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn randomness(_vfs: *mut Vfs, len: c_int, bytes: *mut c_char) -> c_int {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.randomness)(unix(), len, bytes) }
}

/// `xSleep`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn sleep(_vfs: *mut Vfs, microseconds: c_int) -> c_int {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.sleep)(unix(), microseconds) }
}

/// `xCurrentTime`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn current_time(_vfs: *mut Vfs, time: *mut f64) -> c_int {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.current_time)(unix(), time) }
}

/// `xGetLastError`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn get_last_error(_vfs: *mut Vfs, room: c_int, text: *mut c_char) -> c_int {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.get_last_error)(unix(), room, text) }
}

/// `xCurrentTimeInt64`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn current_time_int64(_vfs: *mut Vfs, time: *mut i64) -> c_int {
    // SAFETY: it stays registered.
    let base = unsafe { &*unix() };
    // SAFETY: SQLite's arguments go on.
    unsafe { (base.current_time_int64)(unix(), time) }
}

// SQLite's tests put their own system calls into a VFS. Those of the version that is registered are the VFS `unix`'s.

/// `xSetSystemCall`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn set_system_call(_vfs: *mut Vfs, _name: *const c_char, _call: Symbol) -> c_int {
    abi::NOTFOUND
}

/// `xGetSystemCall`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn get_system_call(_vfs: *mut Vfs, _name: *const c_char) -> Symbol {
    None
}

/// `xNextSystemCall`.
///
/// # Safety
/// SQLite calls it, by the rules of its documentation.
unsafe extern "C" fn next_system_call(_vfs: *mut Vfs, _name: *const c_char) -> *const c_char {
    std::ptr::null()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::directory_of;

    #[test]
    fn only_a_guarded_database_has_a_journal_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("app.db");
        let journal = directory_of(&database);
        assert!(journal_name(&journal).is_none());
        std::fs::create_dir(&journal).unwrap();
        assert!(journal_name(&journal).is_some());
        assert!(journal_name(&database).is_none());
    }
}
