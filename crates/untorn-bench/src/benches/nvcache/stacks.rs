//! The stacks that programs write through: a disk alone, memory alone, and untorn's log in memory before the disk.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::OFlags;
use untorn::Durability;
use untorn::testing::storage::{Dax, MediumKind};
use untorn::write_cache::{CacheOptions, CachedFile, Descriptor, Kernel, WriteCache};

use crate::compare::{Contender, Setting, Store, Worker};
use crate::error::{Error, Result};

/// The directory of what stands for persistent memory.
const MEMORY: &str = "/dev/shm";
/// Bytes of an entry's data, as in the paper.
const ENTRY: u32 = 4096;
/// Bytes of an entry beside its data, and those of the log beside its entries.
const HEADER: u64 = 64;
const REST: u64 = 3 * 4096 + FILES as u64 * 8192;
/// Files that the log can have.
const FILES: u32 = 16;

/// The calls of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Writes a record, durable on return.
    Write,
    /// Writes a record or reads one, in turns.
    WriteOrRead,
    /// Reads a record.
    Read,
    /// Appends 116 bytes and syncs: RocksDB's log for a pair of 16 and 100 bytes (`fillsync`).
    Append,
    /// Writes a page into a rollback journal, then into the database, each with a sync, and empties the journal: a
    /// transaction of SQLite.
    Journal,
}

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// To the disk: `pwrite`, then `fdatasync`.
    Disk,
    /// To the disk past the page cache: `O_DIRECT` and `O_DSYNC`, as fio with `direct=1` and `sync=1`.
    DiskDirect,
    /// To memory, which is not durable.
    Memory,
    /// To a log in memory, and to the disk later.
    Log,
    /// To a log in memory, and at once to the kernel, as `untorn run --mode boost` and `untorn mount` do.
    LogThrough,
}

/// One stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub(super) how: How,
    pub(super) work: Work,
    /// Bytes of the log's entries.
    pub(super) log: u64,
    /// Entries of a batch, at least and at most; `None` for the default.
    pub(super) batch: Option<u64>,
}

impl Contender for Stack {
    fn name(&self) -> String {
        let name = match self.how {
            How::Disk => "disk",
            How::DiskDirect => "disk-direct",
            How::Memory => "tmpfs",
            How::Log => "untorn-log",
            How::LogThrough => "untorn-log-through",
        };
        name.to_owned()
    }

    fn durability(&self) -> String {
        let said = match self.how {
            How::Disk => "each operation on return, by fdatasync",
            How::DiskDirect => "each operation on return, by O_DSYNC",
            How::Memory => "none",
            How::Log | How::LogThrough => "each operation on return, by a fence, if the memory of the log were durable",
        };
        said.to_owned()
    }

    fn missing(&self, setting: &Setting) -> Option<String> {
        let path = setting.dir.join("probe");
        match (self.how, direct(&path)) {
            (How::DiskDirect, Err(error)) => Some(format!("O_DIRECT: {error}")),
            _ => None,
        }
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let memory = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(MEMORY);
        let memory = memory.map_err(|source| Error::io("create a directory in", Path::new(MEMORY), source))?;
        let dir = if self.how == How::Memory { memory.path() } else { &setting.dir };
        let cache = match self.how {
            How::Log | How::LogThrough => Some(self.cache(memory.path())?),
            _ => None,
        };
        let make = |name: &str, len: u64| -> Result<Place> {
            let path = dir.join(name);
            fill(&path, len)?;
            let file = match (&cache, self.how) {
                (Some(cache), how) => Place::Logged(attach(cache, &path, how)?),
                (None, How::DiskDirect) => Place::Synchronous(direct(&path).map_err(|e| Error::io("open", &path, e))?),
                (None, _) => Place::Plain(open(&path)?, path),
            };
            Ok(file)
        };
        let data = make("data", if self.work == Work::Append { 0 } else { setting.len() })?;
        let journal = if self.work == Work::Journal { Some(make("journal", 0)?) } else { None };
        let (work, size) = (self.work, setting.size);
        Ok(Box::new(StackStore { data, journal, cache, _memory: memory, work, size, turns: AtomicU64::new(0) }))
    }
}

impl Stack {
    fn cache(&self, dir: &Path) -> Result<WriteCache> {
        let slots = self.log.div_ceil(u64::from(ENTRY));
        let mut options = CacheOptions::new()
            .size(REST + slots * (u64::from(ENTRY) + HEADER))
            .entry_size(ENTRY)
            .max_files(FILES)
            .durability(Durability::PerWrite);
        if let Some(batch) = self.batch {
            options = options.batch(batch, batch).max_age(Duration::from_secs(1));
        }
        Ok(options.create_on(Dax::new(MediumKind::AssumedPmem), Arc::new(Kernel), dir.join("log"))?)
    }
}

/// A file with every byte written once, durably.
fn fill(path: &Path, len: u64) -> Result<()> {
    let failed = |operation| move |source| Error::io(operation, path, source);
    let file = File::create(path).map_err(failed("create"))?;
    let page = [0x5a; 1 << 16];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(page.len() as u64) as usize;
        file.write_all_at(&page[..part], done).map_err(failed("write"))?;
        done += part as u64;
    }
    file.sync_all().map_err(failed("flush"))
}

fn open(path: &Path) -> Result<File> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|source| Error::io("open", path, source))
}

fn direct(path: &Path) -> std::io::Result<File> {
    let flags = (OFlags::DIRECT | OFlags::DSYNC).bits() as i32;
    File::options().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path)
}

fn attach(cache: &WriteCache, path: &Path, how: How) -> Result<CachedFile> {
    let file = open(path)?;
    if how == How::Log {
        return Ok(cache.attach(file.as_fd(), path)?);
    }
    Ok(cache.attach_write_through(Arc::new(Descriptor::new(file.into(), path)?), path)?)
}

/// A file of a stack.
enum Place {
    Plain(File, PathBuf),
    /// The writes of these files are durable on return.
    Synchronous(File),
    Logged(CachedFile),
}

impl Place {
    fn failed(&self, operation: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = match self {
            Place::Plain(_, path) => path.clone(),
            _ => PathBuf::from("data"),
        };
        move |source| Error::Io { operation, path, source }
    }

    /// Writes, durably.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        match self {
            Place::Plain(file, _) => file.write_all_at(bytes, offset).map_err(self.failed("write"))?,
            Place::Synchronous(file) => return file.write_all_at(bytes, offset).map_err(self.failed("write")),
            Place::Logged(file) => file.write_at(bytes, offset)?,
        }
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        match self {
            Place::Plain(file, _) => file.sync_data().map_err(self.failed("flush")),
            Place::Synchronous(_) => Ok(()),
            Place::Logged(file) => Ok(file.sync()?),
        }
    }

    fn append(&self, bytes: &[u8], end: u64) -> Result<()> {
        match self {
            Place::Logged(file) => {
                file.append(bytes)?;
                Ok(file.sync()?)
            }
            _ => self.write(bytes, end),
        }
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Place::Plain(file, _) | Place::Synchronous(file) => {
                file.read_exact_at(bytes, offset).map_err(self.failed("read"))
            }
            Place::Logged(file) => file.read_at(bytes, offset).map(drop).map_err(Error::from),
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        match self {
            Place::Plain(file, _) | Place::Synchronous(file) => file.set_len(len).map_err(self.failed("truncate")),
            Place::Logged(file) => Ok(file.set_len(len)?),
        }
    }
}

struct StackStore {
    data: Place,
    journal: Option<Place>,
    cache: Option<WriteCache>,
    _memory: tempfile::TempDir,
    work: Work,
    size: usize,
    turns: AtomicU64,
}

/// Bytes at an address that `O_DIRECT` takes.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new(size: usize) -> Self {
        let bytes = vec![0xa5; size + 4096];
        let skip = bytes.as_ptr().align_offset(4096);
        Aligned(bytes, skip)
    }

    fn bytes(&mut self, size: usize) -> &mut [u8] {
        &mut self.0[self.1..][..size]
    }
}

impl Store for StackStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let size = self.size;
        let mut buffer = Aligned::new(size);
        Ok(Box::new(move |place: u64| -> Result<()> {
            let (bytes, offset) = (buffer.bytes(size), place * size as u64);
            let turn = self.turns.fetch_add(1, Ordering::Relaxed);
            bytes[..8].copy_from_slice(&turn.to_le_bytes());
            match (self.work, &self.journal) {
                (Work::WriteOrRead, _) if turn.is_multiple_of(2) => self.data.read(bytes, offset),
                (Work::Read, _) => self.data.read(bytes, offset),
                (Work::Append, _) => self.data.append(bytes, turn * size as u64),
                (Work::Journal, Some(journal)) => {
                    journal.write(bytes, 512)?;
                    journal.write(&[0; 512], 0)?;
                    self.data.write(bytes, offset)?;
                    journal.set_len(0)
                }
                _ => self.data.write(bytes, offset),
            }
        }))
    }

    fn settle(&self) -> Result<()> {
        self.cache.as_ref().map_or(Ok(()), |cache| Ok(cache.drain()?))
    }
}
