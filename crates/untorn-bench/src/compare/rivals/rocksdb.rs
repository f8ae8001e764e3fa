//! RocksDB: a log-structured merge tree, by the C interface (`rocksdb/c.h`) of the installed library. A write with
//! `sync` is durable after `fdatasync` of the write-ahead log.

use std::ffi::{CString, c_char, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

use super::loaded::{functions, text_of};
use crate::compare::keyvalue::{Database, Kept, Pairs, Reader, Session};
use crate::error::{Error, Result};

pub(super) const RIVAL: Kept =
    Kept { name: "rocksdb", durability: "a write with WriteOptions::sync", open, missing: || Functions::load().err() };

/// An object of RocksDB.
type Object = *mut c_void;
type Bytes = *const c_char;
/// Receives the text of an error.
type Failure = *mut *mut c_char;

functions! {
    /// Functions of `rocksdb/c.h`.
    Functions from &["librocksdb.so", "librocksdb.so.9.10", "librocksdb.so.8.9", "librocksdb.so.7.8"];
    rocksdb_options_create: unsafe extern "C" fn() -> Object;
    rocksdb_options_set_create_if_missing: unsafe extern "C" fn(Object, c_uchar);
    rocksdb_options_destroy: unsafe extern "C" fn(Object);
    rocksdb_open: unsafe extern "C" fn(Object, Bytes, Failure) -> Object;
    rocksdb_close: unsafe extern "C" fn(Object);
    rocksdb_writeoptions_create: unsafe extern "C" fn() -> Object;
    rocksdb_writeoptions_set_sync: unsafe extern "C" fn(Object, c_uchar);
    rocksdb_writeoptions_destroy: unsafe extern "C" fn(Object);
    rocksdb_readoptions_create: unsafe extern "C" fn() -> Object;
    rocksdb_readoptions_set_snapshot: unsafe extern "C" fn(Object, *const c_void);
    rocksdb_readoptions_destroy: unsafe extern "C" fn(Object);
    rocksdb_create_snapshot: unsafe extern "C" fn(Object) -> *const c_void;
    rocksdb_release_snapshot: unsafe extern "C" fn(Object, *const c_void);
    rocksdb_put: unsafe extern "C" fn(Object, Object, Bytes, usize, Bytes, usize, Failure);
    rocksdb_writebatch_create: unsafe extern "C" fn() -> Object;
    rocksdb_writebatch_put: unsafe extern "C" fn(Object, Bytes, usize, Bytes, usize);
    rocksdb_writebatch_delete: unsafe extern "C" fn(Object, Bytes, usize);
    rocksdb_writebatch_destroy: unsafe extern "C" fn(Object);
    rocksdb_write: unsafe extern "C" fn(Object, Object, Object, Failure);
    rocksdb_get_pinned: unsafe extern "C" fn(Object, Object, Bytes, usize, Failure) -> Object;
    rocksdb_pinnableslice_value: unsafe extern "C" fn(Object, *mut usize) -> Bytes;
    rocksdb_pinnableslice_destroy: unsafe extern "C" fn(Object);
    rocksdb_create_iterator: unsafe extern "C" fn(Object, Object) -> Object;
    rocksdb_iter_seek: unsafe extern "C" fn(Object, Bytes, usize);
    rocksdb_iter_seek_to_first: unsafe extern "C" fn(Object);
    rocksdb_iter_valid: unsafe extern "C" fn(Object) -> c_uchar;
    rocksdb_iter_next: unsafe extern "C" fn(Object);
    rocksdb_iter_key: unsafe extern "C" fn(Object, *mut usize) -> Bytes;
    rocksdb_iter_value: unsafe extern "C" fn(Object, *mut usize) -> Bytes;
    rocksdb_iter_get_error: unsafe extern "C" fn(Object, Failure);
    rocksdb_iter_destroy: unsafe extern "C" fn(Object);
    rocksdb_compact_range: unsafe extern "C" fn(Object, Bytes, usize, Bytes, usize);
    rocksdb_free: unsafe extern "C" fn(*mut c_void);
}

impl Functions {
    /// Calls a function with a place for its error.
    fn checked<T>(&self, call: impl FnOnce(Failure) -> T) -> Result<T> {
        let mut failure = null_mut();
        let result = call(&mut failure);
        if failure.is_null() {
            return Ok(result);
        }
        // SAFETY: RocksDB leaves null or a text that ends in a NUL and is the caller's.
        let text = unsafe { text_of(failure) }.unwrap_or_default();
        // SAFETY: as above; nothing uses the text any more.
        unsafe { (self.rocksdb_free)(failure.cast()) };
        Err(failed(text))
    }
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Database { what: format!("RocksDB: {what}") }
}

fn open(dir: &Path, _: u64) -> Result<Box<dyn Database>> {
    let functions = Functions::load().map_err(failed)?;
    let path = CString::new(dir.as_os_str().as_bytes()).map_err(failed)?;
    // SAFETY: the function takes nothing.
    let options = unsafe { (functions.rocksdb_options_create)() };
    // SAFETY: the options were just made.
    unsafe { (functions.rocksdb_options_set_create_if_missing)(options, 1) };
    // SAFETY: the options are alive, and the path ends in a NUL. RocksDB copies both.
    let opened = functions.checked(|failure| unsafe { (functions.rocksdb_open)(options, path.as_ptr(), failure) });
    // SAFETY: the options are not used after this call.
    unsafe { (functions.rocksdb_options_destroy)(options) };
    let database = opened?;
    // SAFETY: the function takes nothing.
    let synced = unsafe { (functions.rocksdb_writeoptions_create)() };
    // SAFETY: the options were just made.
    unsafe { (functions.rocksdb_writeoptions_set_sync)(synced, 1) };
    Ok(Box::new(Rocks { functions, database, synced }))
}

struct Rocks {
    functions: Functions,
    database: Object,
    /// The options of a durable write. Nothing changes them.
    synced: Object,
}

// SAFETY: RocksDB's header says that a database may be used by several threads without locks of the caller. The options
// are only read.
unsafe impl Send for Rocks {}
// SAFETY: as above.
unsafe impl Sync for Rocks {}

impl Drop for Rocks {
    fn drop(&mut self) {
        // SAFETY: sessions borrow the database, so none is left.
        unsafe { (self.functions.rocksdb_writeoptions_destroy)(self.synced) };
        // SAFETY: as above.
        unsafe { (self.functions.rocksdb_close)(self.database) };
    }
}

impl Database for Rocks {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Turn(self)))
    }

    fn compact(&mut self) -> Result<bool> {
        // SAFETY: the database is open. Null bounds stand for all keys.
        unsafe { (self.functions.rocksdb_compact_range)(self.database, null(), 0, null(), 0) };
        Ok(true)
    }
}

struct Turn<'d>(&'d Rocks);

/// The writes of one transaction.
struct Batch<'d>(&'d Rocks, Object);

impl<'d> Batch<'d> {
    fn new(rocks: &'d Rocks) -> Self {
        // SAFETY: the function takes nothing.
        Batch(rocks, unsafe { (rocks.functions.rocksdb_writebatch_create)() })
    }

    fn write(self) -> Result<()> {
        let Rocks { functions, database, synced } = self.0;
        // SAFETY: the database, the options and the batch are alive.
        functions.checked(|failure| unsafe { (functions.rocksdb_write)(*database, *synced, self.1, failure) })
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // SAFETY: the batch is this value's own.
        unsafe { (self.0.functions.rocksdb_writebatch_destroy)(self.1) };
    }
}

impl Session for Turn<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let Rocks { functions, database, synced } = self.0;
        let (pointer, len) = (key.as_ptr().cast(), key.len());
        // SAFETY: the database and the options are alive, and the pointers are those of slices with these lengths.
        functions.checked(|failure| unsafe {
            (functions.rocksdb_put)(*database, *synced, pointer, len, value.as_ptr().cast(), value.len(), failure)
        })
    }

    fn put_all(&mut self, pairs: &mut Pairs<'_>) -> Result<()> {
        let batch = Batch::new(self.0);
        let put = self.0.functions.rocksdb_writebatch_put;
        for (key, value) in pairs {
            // SAFETY: the batch is alive, and copies the two slices.
            unsafe { put(batch.1, key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len()) };
        }
        batch.write()
    }

    fn remove_all(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()> {
        let batch = Batch::new(self.0);
        for key in keys {
            // SAFETY: the batch is alive, and copies the slice.
            unsafe { (self.0.functions.rocksdb_writebatch_delete)(batch.1, key.as_ptr().cast(), key.len()) };
        }
        batch.write()
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        body(&mut Look::new(self.0))
    }
}

/// A snapshot, with the options of reads from it.
struct Look<'d> {
    rocks: &'d Rocks,
    options: Object,
    snapshot: *const c_void,
}

impl<'d> Look<'d> {
    fn new(rocks: &'d Rocks) -> Self {
        // SAFETY: the database is open.
        let snapshot = unsafe { (rocks.functions.rocksdb_create_snapshot)(rocks.database) };
        // SAFETY: the function takes nothing.
        let options = unsafe { (rocks.functions.rocksdb_readoptions_create)() };
        // SAFETY: both were just made, and the snapshot is released after the options.
        unsafe { (rocks.functions.rocksdb_readoptions_set_snapshot)(options, snapshot) };
        Look { rocks, options, snapshot }
    }

    fn pairs(&self) -> Cursor<'_> {
        // SAFETY: the database and the options are alive, and outlive the cursor.
        let iterator = unsafe { (self.rocks.functions.rocksdb_create_iterator)(self.rocks.database, self.options) };
        Cursor { functions: &self.rocks.functions, iterator }
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        // SAFETY: the options are this value's own, and no cursor is left.
        unsafe { (self.rocks.functions.rocksdb_readoptions_destroy)(self.options) };
        // SAFETY: the snapshot is one of this database, and nothing uses it any more.
        unsafe { (self.rocks.functions.rocksdb_release_snapshot)(self.rocks.database, self.snapshot) };
    }
}

/// An iterator over pairs.
struct Cursor<'l> {
    functions: &'l Functions,
    iterator: Object,
}

impl Cursor<'_> {
    /// Calls `found` with the pairs from the iterator's place on, at most `count`. Returns their number.
    fn visit(&mut self, count: u64, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let mut seen = 0;
        // SAFETY: the iterator is alive.
        while seen < count && unsafe { (self.functions.rocksdb_iter_valid)(self.iterator) } != 0 {
            let part = |function: unsafe extern "C" fn(Object, *mut usize) -> Bytes| {
                let mut len = 0;
                // SAFETY: the iterator is at a pair.
                let bytes = unsafe { function(self.iterator, &mut len) };
                // SAFETY: the bytes stay until the iterator moves.
                unsafe { slice(bytes, len) }
            };
            found(part(self.functions.rocksdb_iter_key), part(self.functions.rocksdb_iter_value));
            seen += 1;
            // SAFETY: the iterator is at a pair, and the slices above are not used any more.
            unsafe { (self.functions.rocksdb_iter_next)(self.iterator) };
        }
        // SAFETY: the iterator is alive.
        self.functions.checked(|failure| unsafe { (self.functions.rocksdb_iter_get_error)(self.iterator, failure) })?;
        Ok(seen)
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: the iterator is this value's own.
        unsafe { (self.functions.rocksdb_iter_destroy)(self.iterator) };
    }
}

/// Bytes of RocksDB.
///
/// # Safety
/// So many bytes are there, and they stay unchanged for the lifetime that the caller chooses.
unsafe fn slice<'b>(bytes: Bytes, len: usize) -> &'b [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(bytes.cast(), len) }
}

impl Reader for Look<'_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Rocks { functions, database, .. } = self.rocks;
        let (pointer, len) = (key.as_ptr().cast(), key.len());
        // SAFETY: the database and the options are alive, and the pointer is that of a slice of this length.
        let pinned = functions.checked(|failure| unsafe {
            (functions.rocksdb_get_pinned)(*database, self.options, pointer, len, failure)
        })?;
        if pinned.is_null() {
            return Ok(());
        }
        let mut len = 0;
        // SAFETY: the value is pinned.
        let value = unsafe { (functions.rocksdb_pinnableslice_value)(pinned, &mut len) };
        // SAFETY: the bytes stay until the value is released below.
        found(unsafe { slice(value, len) });
        // SAFETY: the value is not used any more.
        unsafe { (functions.rocksdb_pinnableslice_destroy)(pinned) };
        Ok(())
    }

    fn range(&mut self, key: &[u8], count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut cursor = self.pairs();
        // SAFETY: the iterator is alive, and copies the key.
        unsafe { (cursor.functions.rocksdb_iter_seek)(cursor.iterator, key.as_ptr().cast(), key.len()) };
        cursor.visit(count as u64, found).map(drop)
    }

    /// RocksDB keeps no count: it visits every pair.
    fn len(&mut self) -> Result<u64> {
        let mut cursor = self.pairs();
        // SAFETY: the iterator is alive.
        unsafe { (cursor.functions.rocksdb_iter_seek_to_first)(cursor.iterator) };
        cursor.visit(u64::MAX, &mut |_, _| ())
    }
}
