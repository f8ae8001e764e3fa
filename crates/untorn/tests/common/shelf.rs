//! Slow files for write caches, in memory, and small logs in front of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::memory_dir;
use untorn::testing::storage::{Barrier, Dax, Identity, Medium, MediumKind};
use untorn::write_cache::{BackingDir, BackingFile, CreateAttrs, Kernel, Named};
use untorn::write_cache::{CacheOptions, CachedFile, WriteCache};
use untorn::{Durability, Error, Result};

/// Slow files in memory, with identities that a test decides.
#[derive(Default)]
pub(crate) struct Shelf {
    pub(crate) files: Mutex<BTreeMap<PathBuf, Arc<Book>>>,
    /// Whether the log gets a spill file, which is one of the kernel's.
    pub(crate) spills: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Book {
    inode: u64,
    pub(crate) bytes: Mutex<Vec<u8>>,
    /// Every write and flush fails.
    pub(crate) broken: AtomicBool,
    /// It gets no longer than this.
    pub(crate) room: AtomicUsize,
    /// What is written goes to the end, wherever it is to go, as by a description with `O_APPEND`.
    pub(crate) appends: AtomicBool,
    /// When its last flush was begun ahead, and when it was made; 0: never. One clock counts for all books.
    pub(crate) begun: AtomicUsize,
    pub(crate) flushed: AtomicUsize,
    /// What happens before each flush.
    pub(crate) before_sync: Mutex<Option<Before>>,
    /// What happens in each write, given its offset, before the file has the bytes.
    pub(crate) in_write: Mutex<Option<InWrite>>,
}

pub(crate) type Before = Arc<dyn Fn() + Send + Sync>;
pub(crate) type InWrite = Arc<dyn Fn(u64) + Send + Sync>;

struct Reader(Arc<Book>);

impl Shelf {
    pub(crate) fn put(&self, path: &str, inode: u64) -> Arc<Book> {
        let room = AtomicUsize::new(usize::MAX);
        let book = Arc::new(Book { inode, room, ..Book::default() });
        self.files.lock().unwrap().insert(PathBuf::from(path), Arc::clone(&book));
        book
    }

    pub(crate) fn remove(&self, path: &str) {
        self.files.lock().unwrap().remove(Path::new(path));
    }

    pub(crate) fn get(&self, path: &str) -> Option<Vec<u8>> {
        let files = self.files.lock().unwrap();
        files.get(Path::new(path)).map(|book| book.bytes.lock().unwrap().clone())
    }
}

impl Book {
    fn check(&self) -> Result<()> {
        match self.broken.load(Ordering::Relaxed) {
            true => Err(Error::io("write to", Path::new("the shelf"), std::io::Error::from_raw_os_error(5))),
            false => Ok(()),
        }
    }
}

fn tick() -> usize {
    static CLOCK: AtomicUsize = AtomicUsize::new(0);
    CLOCK.fetch_add(1, Ordering::SeqCst) + 1
}

fn full() -> Error {
    Error::io("write to", Path::new("the shelf"), std::io::Error::from_raw_os_error(28))
}

impl BackingFile for Reader {
    fn identity(&self) -> Result<Identity> {
        Ok(Identity { device: 1, inode: self.0.inode, generation: 7, birth: 9 })
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<usize> {
        let bytes = self.0.bytes.lock().unwrap();
        let there = bytes.get(offset as usize..).unwrap_or_default();
        let len = there.len().min(dst.len());
        dst[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let count = self.write_some(offset, src)?;
        if count == src.len() { Ok(()) } else { Err(full()) }
    }

    fn write_some(&self, offset: u64, src: &[u8]) -> Result<usize> {
        self.0.check()?;
        let offset = if self.0.appends.load(Ordering::Relaxed) { self.len()? } else { offset };
        let room = self.0.room.load(Ordering::Relaxed).saturating_sub(offset as usize).min(src.len());
        if room == 0 && !src.is_empty() {
            return Err(full());
        }
        let src = &src[..room];
        let in_write = self.0.in_write.lock().unwrap().clone();
        in_write.inspect(|in_write| in_write(offset));
        let (mut bytes, offset) = (self.0.bytes.lock().unwrap(), offset as usize);
        let len = bytes.len().max(offset + src.len());
        bytes.resize(len, 0);
        bytes[offset..offset + src.len()].copy_from_slice(src);
        Ok(src.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.check()?;
        if len as usize > self.0.room.load(Ordering::Relaxed) {
            return Err(full());
        }
        self.0.bytes.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync(&self, _: Barrier) -> Result<()> {
        let before = self.0.before_sync.lock().unwrap().clone();
        before.inspect(|before| before());
        self.0.flushed.store(tick(), Ordering::SeqCst);
        self.0.check()
    }

    fn begin_sync(&self) {
        self.0.begun.store(tick(), Ordering::SeqCst);
    }
}

impl BackingDir for Shelf {
    fn open(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        let file = self.files.lock().unwrap().get(path).cloned();
        Ok(file.map(|book| Arc::new(Reader(book)) as Arc<dyn BackingFile>))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.files.lock().unwrap().contains_key(path))
    }

    fn named(&self, path: &Path) -> Result<Named> {
        match self.open(path)? {
            Some(file) => Ok(Named::File(file.identity()?)),
            None => Ok(Named::Nothing),
        }
    }

    fn candidates(&self, dir: &Path, inode: u64) -> Result<Vec<OsString>> {
        let files = self.files.lock().unwrap();
        let here = files.iter().filter(|(path, book)| path.parent() == Some(dir) && book.inode == inode);
        Ok(here.map(|(path, _)| path.file_name().unwrap().to_owned()).collect())
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        let files = self.files.lock().unwrap();
        let here = files.keys().filter(|path| path.parent() == Some(dir));
        Ok(here.map(|path| path.file_name().unwrap().to_owned()).collect())
    }

    fn directory(&self, _: &Path) -> Result<Option<Identity>> {
        Ok(Some(Identity { device: 1, inode: 1, generation: 0, birth: 1 }))
    }

    fn make(&self, path: &Path, like: &CreateAttrs) -> Result<Arc<dyn BackingFile>> {
        if self.spills.load(Ordering::Relaxed) { Kernel.make(path, like) } else { Err(full()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut files = self.files.lock().unwrap();
        let file = files.remove(from).unwrap();
        assert!(files.insert(to.to_owned(), file).is_none());
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.files.lock().unwrap().remove(path);
        Ok(())
    }

    fn sync_dir(&self, _: Barrier, _: &Path) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn pmem() -> Dax {
    Dax::new(MediumKind::AssumedPmem)
}

/// A log of so many entries of 64 bytes, for four files.
pub(crate) fn small(slots: u64) -> CacheOptions {
    let size = 3 * 4096 + 4 * 8192 + slots * 128;
    CacheOptions::new().size(size).entry_size(64).max_files(4).background(false).durability(Durability::PerWrite)
}

/// A log and the shelf that it stands in front of.
pub(crate) struct Setup {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) log: PathBuf,
    pub(crate) shelf: Arc<Shelf>,
    options: CacheOptions,
}

impl Setup {
    /// A new log on persistent memory, and a shelf with a file of each path. Their inode numbers begin at 1.
    pub(crate) fn create<const N: usize>(
        options: CacheOptions,
        paths: [&str; N],
    ) -> (Self, WriteCache, [Arc<Book>; N]) {
        Self::create_on(pmem(), options, paths)
    }

    /// The same on another medium.
    pub(crate) fn create_on<M: Medium, const N: usize>(
        medium: M,
        options: CacheOptions,
        paths: [&str; N],
    ) -> (Self, WriteCache, [Arc<Book>; N]) {
        let (dir, shelf) = (memory_dir(), Arc::new(Shelf::default()));
        let mut inodes = 1..;
        let books = paths.map(|path| shelf.put(path, inodes.next().unwrap()));
        let log = dir.path().join("log");
        let cache = options.create_on(medium, shelf.clone(), &log).unwrap();
        (Setup { dir, log, shelf, options }, cache, books)
    }

    /// Opens the log once more, which replays it.
    pub(crate) fn open(&self) -> Result<WriteCache> {
        self.open_log(&self.log)
    }

    /// Opens a copy of the log, which replays that.
    pub(crate) fn open_log(&self, log: &Path) -> Result<WriteCache> {
        self.options.open_on(pmem(), self.shelf.clone(), log)
    }

    /// The log as a crash leaves it now.
    pub(crate) fn copy_log(&self) -> PathBuf {
        let copy = self.dir.path().join("copy");
        std::fs::copy(&self.log, &copy).unwrap();
        copy
    }

    pub(crate) fn attach(&self, cache: &WriteCache, path: &str) -> CachedFile {
        attach(cache, &self.shelf, path)
    }

    pub(crate) fn attach_through(&self, cache: &WriteCache, path: &str) -> CachedFile {
        let slow = self.shelf.open(Path::new(path)).unwrap().unwrap();
        cache.attach_write_through(slow, Path::new(path)).unwrap()
    }

    pub(crate) fn attach_atomic(&self, cache: &WriteCache, path: &str) -> CachedFile {
        let slow = self.shelf.open(Path::new(path)).unwrap().unwrap();
        cache.attach_atomic(slow, Path::new(path)).unwrap()
    }

    /// What is in a file of the shelf.
    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        self.shelf.get(path).unwrap()
    }
}

pub(crate) fn attach(cache: &WriteCache, shelf: &Shelf, path: &str) -> CachedFile {
    cache.attach_backing(shelf.open(Path::new(path)).unwrap().unwrap(), Path::new(path)).unwrap()
}

pub(crate) fn contents(file: &CachedFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}
