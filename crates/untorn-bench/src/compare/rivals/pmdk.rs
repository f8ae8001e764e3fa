//! libpmem and libpmemobj, by the C interfaces of the installed libraries.
//!
//! libpmem copies and makes durable, and nothing is atomic. A transaction of libpmemobj saves the old bytes first, so
//! it is whole. Both keep an array of records in a file.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use untorn::testing::storage::MediumKind;

use super::loaded::{functions, text_of};
use crate::compare::{Contender, Setting, Store, Worker};
use crate::error::{Error, Result};
use crate::measure::Buffer;
use crate::rig::is_pmem;

/// The byte that every record has before the first update.
const FIRST: u8 = 0x5a;

/// Read and write for the owner.
const MODE: libc::mode_t = 0o600;

functions! {
    /// Functions of `libpmem.h`.
    Pmem from &["libpmem.so.1"];
    pmem_map_file: unsafe extern "C" fn(
        *const c_char, usize, c_int, libc::mode_t, *mut usize, *mut c_int) -> *mut c_void;
    pmem_unmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    pmem_memcpy_persist: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
    pmem_msync: unsafe extern "C" fn(*const c_void, usize) -> c_int;
    pmem_errormsg: unsafe extern "C" fn() -> *const c_char;
}

/// `PMEM_FILE_CREATE | PMEM_FILE_EXCL`.
const CREATE_NEW: c_int = 1 | 2;

/// An address in a mapping of a file that only this run has.
#[derive(Clone, Copy)]
struct Records(*mut u8);

// SAFETY: each thread stores to records of its own only, and the mapping stays until no worker is left.
unsafe impl Send for Records {}
// SAFETY: as above.
unsafe impl Sync for Records {}

impl Records {
    /// The address of a record.
    fn at(self, place: u64, size: usize) -> *mut c_void {
        self.0.wrapping_add(place as usize * size).cast()
    }
}

fn path_of(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|error| Error::usage(error.to_string()))
}

/// libpmem: a copy that is durable on return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibPmem;

impl Contender for LibPmem {
    fn name(&self) -> String {
        "libpmem".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, by pmem_memcpy_persist or, on a disk, pmem_msync; a crash may tear the last one"
            .to_owned()
    }

    fn missing(&self, _: &Setting) -> Option<String> {
        Pmem::load().err()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let library = Pmem::load().map_err(|what| Error::Database { what })?;
        let path = path_of(&setting.dir.join("data"))?;
        let (len, mut mapped) = (setting.len() as usize, 0);
        // SAFETY: the path ends in a NUL, the length's place is writable, and null asks for no more.
        let start = unsafe { (library.pmem_map_file)(path.as_ptr(), len, CREATE_NEW, MODE, &mut mapped, null_mut()) };
        if start.is_null() {
            return Err(library.failed());
        }
        // SAFETY: so many bytes are mapped, and nobody else has the mapping yet.
        unsafe { start.cast::<u8>().write_bytes(FIRST, len) };
        let store = PmemStore { library, start, mapped, size: setting.size, is_pmem: is_pmem(setting.kind) };
        // SAFETY: so many bytes are mapped.
        match unsafe { (library.pmem_msync)(start, len) } {
            0 => Ok(Box::new(store)),
            _ => Err(library.failed()),
        }
    }
}

impl Pmem {
    fn failed(&self) -> Error {
        // SAFETY: the function takes nothing. Its text is this thread's until its next call of the library.
        let text = unsafe { (self.pmem_errormsg)() };
        // SAFETY: it is null or ends in a NUL, as above.
        let text = unsafe { text_of(text) }.unwrap_or_default();
        Error::Database { what: format!("libpmem: {text}") }
    }
}

struct PmemStore {
    library: Pmem,
    start: *mut c_void,
    mapped: usize,
    size: usize,
    is_pmem: bool,
}

impl Store for PmemStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let (library, records, size, is_pmem) = (self.library, Records(self.start.cast()), self.size, self.is_pmem);
        let mut buffer = Buffer::new(size);
        Ok(Box::new(move |place: u64| -> Result<()> {
            let (to, from) = (records.at(place, size), buffer.bytes().as_ptr());
            if is_pmem {
                // SAFETY: the record is in the mapping and this thread's, and the buffer has as many bytes.
                unsafe { (library.pmem_memcpy_persist)(to, from.cast(), size) };
                return Ok(());
            }
            // SAFETY: as above.
            unsafe { to.cast::<u8>().copy_from_nonoverlapping(from, size) };
            // SAFETY: the record is in the mapping.
            match unsafe { (library.pmem_msync)(to, size) } {
                0 => Ok(()),
                _ => Err(library.failed()),
            }
        }))
    }
}

impl Drop for PmemStore {
    fn drop(&mut self) {
        // SAFETY: workers borrow the store, so nobody uses the mapping any more.
        unsafe { (self.library.pmem_unmap)(self.start, self.mapped) };
    }
}

/// `PMEMoid`: an object of a pool.
#[repr(C)]
#[derive(Clone, Copy)]
struct Oid {
    pool: u64,
    offset: u64,
}

functions! {
    /// Functions of `libpmemobj.h`.
    Obj from &["libpmemobj.so.1"];
    pmemobj_create: unsafe extern "C" fn(*const c_char, *const c_char, usize, libc::mode_t) -> *mut c_void;
    pmemobj_close: unsafe extern "C" fn(*mut c_void);
    pmemobj_root: unsafe extern "C" fn(*mut c_void, usize) -> Oid;
    pmemobj_direct: unsafe extern "C" fn(Oid) -> *mut c_void;
    pmemobj_memset_persist: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, usize) -> *mut c_void;
    pmemobj_tx_begin: unsafe extern "C" fn(*mut c_void, *mut c_void, ...) -> c_int;
    pmemobj_tx_add_range_direct: unsafe extern "C" fn(*const c_void, usize) -> c_int;
    pmemobj_tx_commit: unsafe extern "C" fn();
    pmemobj_tx_end: unsafe extern "C" fn() -> c_int;
    pmemobj_errormsg: unsafe extern "C" fn() -> *const c_char;
}

/// `TX_PARAM_NONE`: the end of the arguments of `pmemobj_tx_begin`.
const NO_MORE: c_int = 0;

/// Bytes of a pool beside its root object: its header, its lanes, and the logs of transactions.
const BESIDE: usize = 64 << 20;

/// libpmemobj: a transaction that saves the old bytes with `pmemobj_tx_add_range_direct` and copies the new ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibPmemObj;

/// The library's own variable that makes it take a mapping for persistent memory.
const FORCE: &str = "PMEM_IS_PMEM_FORCE";

impl Contender for LibPmemObj {
    fn name(&self) -> String {
        "libpmemobj".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, whole, by a transaction with tx_add_range and memcpy".to_owned()
    }

    fn missing(&self, setting: &Setting) -> Option<String> {
        let is_forced = std::env::var_os(FORCE).is_some_and(|value| value == "1");
        match setting.kind {
            // With msync in place of line flushes it would not be measured under the same assumption as the others.
            MediumKind::AssumedPmem if !is_forced => {
                Some(format!("set {FORCE}=1 too, which makes libpmemobj assume what UNTORN_ASSUME_PMEM=1 does"))
            }
            MediumKind::Block | MediumKind::Volatile if is_forced => {
                Some(format!("unset {FORCE}: libpmemobj flushes cache lines with it, which no disk keeps"))
            }
            _ => Obj::load().err(),
        }
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let library = Obj::load().map_err(|what| Error::Database { what })?;
        let path = path_of(&setting.dir.join("data"))?;
        let len = setting.len() as usize;
        let size = len + len / 8 + BESIDE;
        // SAFETY: the path and the name of the layout end in a NUL.
        let pool = unsafe { (library.pmemobj_create)(path.as_ptr(), c"records".as_ptr(), size, MODE) };
        if pool.is_null() {
            return Err(library.failed());
        }
        let mut store = ObjStore { library, pool, start: null_mut(), size: setting.size };
        // SAFETY: the pool is open.
        let root = unsafe { (library.pmemobj_root)(pool, len) };
        if root.offset == 0 {
            return Err(library.failed());
        }
        // SAFETY: the object is one of the open pool.
        store.start = unsafe { (library.pmemobj_direct)(root) };
        // SAFETY: the object has so many bytes, and nobody else has it yet.
        unsafe { (library.pmemobj_memset_persist)(pool, store.start, c_int::from(FIRST), len) };
        Ok(Box::new(store))
    }
}

impl Obj {
    fn failed(&self) -> Error {
        // SAFETY: the function takes nothing. Its text is this thread's until its next call of the library.
        let text = unsafe { (self.pmemobj_errormsg)() };
        // SAFETY: it is null or ends in a NUL, as above.
        let text = unsafe { text_of(text) }.unwrap_or_default();
        Error::Database { what: format!("libpmemobj: {text}") }
    }
}

struct ObjStore {
    library: Obj,
    pool: *mut c_void,
    start: *mut c_void,
    size: usize,
}

/// A pool that several threads use.
#[derive(Clone, Copy)]
struct Pool(*mut c_void);

// SAFETY: the library's manual says that a pool may be used by several threads; a transaction is one thread's.
unsafe impl Send for Pool {}

impl Store for ObjStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let (library, pool, records, size) = (self.library, Pool(self.pool), Records(self.start.cast()), self.size);
        let mut buffer = Buffer::new(size);
        Ok(Box::new(move |place: u64| -> Result<()> {
            // The whole value is captured, which may go to another thread, and not the pointer in it.
            let (pool, to) = ({ pool }.0, records.at(place, size));
            // SAFETY: the pool is open, and no transaction of this thread runs. Without a jump buffer a call that fails
            // returns its error.
            if unsafe { (library.pmemobj_tx_begin)(pool, null_mut(), NO_MORE) } != 0 {
                // SAFETY: every transaction ends, also one that did not begin.
                unsafe { (library.pmemobj_tx_end)() };
                return Err(library.failed());
            }
            // SAFETY: a transaction runs, and the record is in the root object.
            if unsafe { (library.pmemobj_tx_add_range_direct)(to, size) } == 0 {
                // SAFETY: the record is this thread's, and the buffer has as many bytes.
                unsafe { to.cast::<u8>().copy_from_nonoverlapping(buffer.bytes().as_ptr(), size) };
                // SAFETY: a transaction runs, and nothing in it has failed.
                unsafe { (library.pmemobj_tx_commit)() };
            }
            // SAFETY: the transaction is committed or aborted.
            match unsafe { (library.pmemobj_tx_end)() } {
                0 => Ok(()),
                _ => Err(library.failed()),
            }
        }))
    }
}

impl Drop for ObjStore {
    fn drop(&mut self) {
        // SAFETY: workers borrow the store, so nobody uses the pool any more.
        unsafe { (self.library.pmemobj_close)(self.pool) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Pattern;
    use crate::compare::Slice;

    fn setting(dir: &Path, kind: MediumKind) -> Setting {
        Setting { dir: dir.to_owned(), kind, records: 100, size: 24, threads: 1, pattern: Pattern::Random, seed: 1 }
    }

    #[test]
    fn a_record_of_each_library_is_in_its_file() {
        for contender in [&LibPmem as &dyn Contender, &LibPmemObj] {
            let mut kinds = vec![MediumKind::Volatile, MediumKind::AssumedPmem];
            while let Some(kind) = kinds.pop() {
                let dir = tempfile::tempdir().unwrap();
                let setting = setting(dir.path(), kind);
                if let Some(why) = contender.missing(&setting) {
                    assert!(why.contains("is not installed") || why.contains(FORCE), "{why}");
                    continue;
                }
                let store = contender.set_up(&setting).unwrap();
                let before = std::fs::read(dir.path().join("data")).unwrap();
                let (done, _) = store.worker(0).unwrap().slice(Slice::of_ops(10)).unwrap();
                store.close().unwrap();
                let after = std::fs::read(dir.path().join("data")).unwrap();
                assert_eq!((done, before.len()), (10, after.len()), "{}", contender.name());
                let changed = before.iter().zip(&after).filter(|(old, new)| **old == FIRST && old != new).count();
                assert!((200..=240).contains(&changed), "{}: {changed} bytes of 240", contender.name());
            }
        }
    }
}
