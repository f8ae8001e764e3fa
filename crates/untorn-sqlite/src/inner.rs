//! A file of SQLite's own VFS, `unix`, which keeps the locks and the shared memory of a database.
//!
//! The locks are POSIX locks, and a process loses them when it closes any descriptor of the file. So they are on a file
//! that nothing else opens ([`guard`](crate::guard)), and not on the database, which the library opens, too.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Code;
use crate::abi::{self, File, Methods, Vfs};

/// A path as SQLite wants it: with zeros before and behind, where it looks for parameters of a URI.
#[derive(Debug)]
pub(crate) struct Name(Box<[u8]>);

const ZEROS: usize = 4;

impl Name {
    pub(crate) fn new(path: &Path) -> Self {
        let path = path.as_os_str().as_bytes();
        let mut bytes = vec![0; ZEROS];
        bytes.extend_from_slice(path);
        bytes.extend_from_slice(&[0; ZEROS]);
        Name(bytes.into())
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0[ZEROS..].as_ptr().cast()
    }
}

/// A file that is open in the VFS `unix`.
pub(crate) struct Inner {
    /// As much as that VFS asks for, aligned for any of C's types.
    memory: Box<[u64]>,
    /// SQLite keeps the pointer, unless it is one of its own.
    name: Option<Name>,
}

// SAFETY: SQLite calls the methods of a file from one thread at a time, from whichever; the VFS `unix` allows that.
unsafe impl Send for Inner {}

pub(crate) fn check(code: c_int) -> Result<(), Code> {
    if code == abi::OK { Ok(()) } else { Err(Code(code)) }
}

impl Inner {
    /// Opens or creates a file as SQLite opens a database.
    pub(crate) fn open(vfs: *mut Vfs, path: &Path) -> Result<Self, Code> {
        let name = Name::new(path);
        let flags = abi::OPEN_READWRITE | abi::OPEN_CREATE | abi::OPEN_MAIN_DB;
        // SAFETY: the name goes with the file.
        let mut inner = unsafe { Inner::open_named(vfs, name.as_ptr(), flags) }?;
        inner.name = Some(name);
        Ok(inner)
    }

    /// Opens a file by a name of SQLite's own, with the parameters behind it.
    ///
    /// # Safety
    /// The name lives as long as the file.
    pub(crate) unsafe fn open_named(vfs: *mut Vfs, name: *const c_char, flags: c_int) -> Result<Self, Code> {
        // SAFETY: a registered VFS lives as long as the process.
        let vfs_ref = unsafe { &*vfs };
        let mut memory = vec![0_u64; (vfs_ref.file_size as usize).div_ceil(8)].into_boxed_slice();
        let file = memory.as_mut_ptr().cast::<File>();
        // SAFETY: the memory is as long as the VFS wants, and zeroed; the caller answers for the name.
        let code = unsafe { (vfs_ref.open)(vfs, name, file, flags, std::ptr::null_mut()) };
        let inner = Inner { memory, name: None };
        // A file that could not be opened is closed all the same if it has methods.
        check(code).map(|()| inner)
    }

    pub(crate) fn file(&mut self) -> *mut File {
        self.memory.as_mut_ptr().cast()
    }

    fn methods(&mut self) -> Option<&Methods> {
        let file = self.file();
        // SAFETY: the memory begins with the pointer to the methods.
        let methods = unsafe { (*file).methods };
        // SAFETY: it is null or points to constants.
        unsafe { methods.as_ref() }
    }

    fn call(&mut self, call: impl FnOnce(&Methods, *mut File) -> c_int) -> Result<(), Code> {
        let file = self.file();
        match self.methods() {
            Some(methods) => check(call(methods, file)),
            None => Err(Code(abi::IOERR_LOCK)),
        }
    }

    /// Fills `bytes`, with zeros beyond the end. False if there is an end within.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<bool, Code> {
        let (start, len) = (bytes.as_mut_ptr().cast::<c_void>(), bytes.len() as c_int);
        // SAFETY: the file is open; the buffer lives through the call.
        match self.call(|methods, file| unsafe { (methods.read)(file, start, len, offset as i64) }) {
            Ok(()) => Ok(true),
            Err(Code(abi::IOERR_SHORT_READ)) => Ok(false),
            Err(code) => Err(code),
        }
    }

    pub(crate) fn len(&mut self) -> Result<u64, Code> {
        let mut size = 0;
        // SAFETY: the file is open; the number lives through the call.
        self.call(|methods, file| unsafe { (methods.file_size)(file, &raw mut size) })?;
        u64::try_from(size).map_err(|_| Code(abi::IOERR_FSTAT))
    }

    pub(crate) fn characteristics(&mut self) -> c_int {
        let file = self.file();
        // SAFETY: the file is open.
        self.methods().map_or(0, |methods| unsafe { (methods.device_characteristics)(file) })
    }

    /// Whether a try to be alone has left a lock that keeps further readers out.
    pub(crate) fn is_pending(&mut self) -> bool {
        let mut level = abi::LOCK_NONE;
        // SAFETY: the argument of this code is a place for a number.
        let told = unsafe { self.file_control(abi::FCNTL_LOCKSTATE, (&raw mut level).cast()) };
        told.is_ok() && level == abi::LOCK_PENDING
    }

    pub(crate) fn lock(&mut self, level: c_int) -> Result<(), Code> {
        // SAFETY: the file is open.
        self.call(|methods, file| unsafe { (methods.lock)(file, level) })
    }

    pub(crate) fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        // SAFETY: as in `lock`.
        self.call(|methods, file| unsafe { (methods.unlock)(file, level) })
    }

    pub(crate) fn check_reserved_lock(&mut self) -> Result<bool, Code> {
        let mut reserved = 0;
        // SAFETY: as in `lock`; the number lives through the call.
        self.call(|methods, file| unsafe { (methods.check_reserved_lock)(file, &raw mut reserved) })?;
        Ok(reserved != 0)
    }

    /// # Safety
    /// `argument` is what SQLite's documentation says for this code.
    pub(crate) unsafe fn file_control(&mut self, code: c_int, argument: *mut c_void) -> Result<(), Code> {
        // SAFETY: the file is open; the caller answers for the argument.
        self.call(|methods, file| unsafe { (methods.file_control)(file, code, argument) })
    }

    /// # Safety
    /// `place` can be stored to.
    pub(crate) unsafe fn shm_map(
        &mut self,
        region: c_int,
        size: c_int,
        extend: c_int,
        place: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: the file is open; the caller answers for the place.
        let map = self.call(|methods, file| unsafe { (methods.shm_map)(file, region, size, extend, place) });
        map.err().map_or(abi::OK, |code| code.0)
    }

    pub(crate) fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Result<(), Code> {
        // SAFETY: as in `lock`.
        self.call(|methods, file| unsafe { (methods.shm_lock)(file, offset, count, flags) })
    }

    pub(crate) fn shm_barrier(&mut self) {
        let file = self.file();
        if let Some(methods) = self.methods() {
            // SAFETY: as in `lock`.
            unsafe { (methods.shm_barrier)(file) }
        }
    }

    pub(crate) fn shm_unmap(&mut self, delete: c_int) -> Result<(), Code> {
        // SAFETY: as in `lock`.
        self.call(|methods, file| unsafe { (methods.shm_unmap)(file, delete) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let file = self.file();
        if let Some(methods) = self.methods() {
            // SAFETY: the file is open, and nobody uses it after this.
            unsafe { (methods.close)(file) };
        }
    }
}

/// Text for SQLite to free.
pub(crate) fn text_for_sqlite(text: &str) -> *mut c_char {
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // SAFETY: the format takes one string, which lives through the call.
    unsafe { (crate::api().mprintf)(c"%s".as_ptr(), text.as_ptr()) }
}
