//! Sparse files, of which the same number of pages is used, whatever their length.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use untorn::testing::storage::MediumKind;
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Options};

use super::PAGE;
use crate::benches::benchmark::{Job, on_medium};
use crate::compare::{Contender, Point, Setting, Single, Store, Worker, run_singles};
use crate::error::{Error, Result};
use crate::measure::Buffer;
use crate::raw::{Raw, Target};
use crate::report::Row;
use crate::rig::is_pmem;

/// Pages that are used, the same distance from each other.
const USED: u64 = 4096;

/// Openings of each system, after one that does not count.
const ROUNDS: usize = 15;
const QUICK_ROUNDS: usize = 5;

/// The offset of the page for a record's number.
fn offset(record: u64, records: u64) -> u64 {
    let used = USED.min(records);
    record % used * (records / used) * PAGE as u64
}

/// Writes each page that is used.
fn fill(records: u64, mut write: impl FnMut(&[u8], u64) -> untorn::Result<()>) -> Result<()> {
    (0..USED.min(records)).try_for_each(|record| write(&[0x5a; PAGE], offset(record, records)))?;
    Ok(())
}

/// A sparse file without an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongRaw {
    pub(super) is_pmem: bool,
}

impl Contender for LongRaw {
    fn name(&self) -> String {
        if self.is_pmem { "copy+fence" } else { "pwrite+fdatasync" }.to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return; a crash may tear the last one".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        on_medium!(setting.kind, target => {
            let raw = target.sparse(&setting.dir.join("raw"), setting.len())?;
            fill(setting.records, |bytes, offset| raw.write(bytes, offset))?;
            raw.fence()?;
            Ok(Box::new(RawStore { raw, records: setting.records }))
        })
    }
}

struct RawStore<R> {
    raw: R,
    records: u64,
}

impl<R: Raw> Store for RawStore<R> {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(PAGE);
        Ok(Box::new(move |record: u64| -> Result<()> {
            self.raw.write(buffer.bytes(), offset(record, self.records))?;
            self.raw.fence()?;
            Ok(())
        }))
    }
}

/// A sparse [`AtomicFile`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Long {
    pub(super) engine: EngineKind,
}

impl Long {
    fn options(self, kind: MediumKind) -> Options {
        let durability = if is_pmem(kind) { Durability::PerWrite } else { Durability::PerCommit };
        Options::new().engine(self.engine).durability(durability)
    }

    /// The file, with each page that is used written twice: a page has two places, used in turn.
    fn make(self, setting: &Setting) -> Result<AtomicFile> {
        on_medium!(setting.kind, target => {
            let options = self.options(setting.kind);
            let file = options.create_on(target.medium(), setting.dir.join("data"), setting.len())?;
            for _ in 0..2 {
                fill(setting.records, |bytes, offset| file.write_at(bytes, offset))?;
                file.sync()?;
            }
            Ok(file)
        })
    }
}

impl Contender for Long {
    fn name(&self) -> String {
        format!("untorn-{}", self.engine)
    }

    fn durability(&self) -> String {
        "each operation on return, whole".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let (file, syncs) = (self.make(setting)?, !is_pmem(setting.kind));
        Ok(Box::new(LongStore { file, records: setting.records, syncs }))
    }
}

struct LongStore {
    file: AtomicFile,
    records: u64,
    /// Whether a write is followed by a commit.
    syncs: bool,
}

impl Store for LongStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(PAGE);
        Ok(Box::new(move |record: u64| -> Result<()> {
            self.file.write_at(buffer.bytes(), offset(record, self.records))?;
            if self.syncs {
                self.file.sync()?;
            }
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.file.close()?;
        Ok(())
    }
}

/// A sparse [`AtomicMap`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LongMap {
    /// Whether the program stores through the map's address, so that a commit must look for stores everywhere.
    pub(super) by_address: bool,
}

impl Contender for LongMap {
    fn name(&self) -> String {
        if self.by_address { "untorn-map-address" } else { "untorn-map" }.to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, whole, by AtomicMap::commit".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let mut map = Options::new().create_map(setting.dir.join("data"), setting.len())?;
        fill(setting.records, |bytes, offset| {
            map[offset as usize..offset as usize + PAGE].copy_from_slice(bytes);
            Ok(())
        })?;
        map.commit()?;
        Ok(Box::new(MapStore { map: Mutex::new(map), records: setting.records, by_address: self.by_address }))
    }
}

struct MapStore {
    map: Mutex<AtomicMap>,
    records: u64,
    by_address: bool,
}

impl Store for MapStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(PAGE);
        Ok(Box::new(move |record: u64| -> Result<()> {
            let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
            let at = offset(record, self.records) as usize;
            if self.by_address {
                // The whole map is lent, as by `as_mut_ptr`.
                map[..][at..at + PAGE].copy_from_slice(buffer.bytes());
            } else {
                map[at..at + PAGE].copy_from_slice(buffer.bytes());
            }
            map.commit()?;
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.map.into_inner().unwrap_or_else(PoisonError::into_inner).close()?;
        Ok(())
    }
}

/// Opens a file of each kind, and reads a page.
pub(super) fn openings(job: &Job<'_>, point: &Point) -> Result<Vec<Row>> {
    let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(job.dir());
    let dir = made.map_err(|source| Error::io("create a directory in", &job.dir(), source))?;
    let wanted = |name: &str| job.args.systems.is_empty() || job.args.systems.iter().any(|system| system == name);
    let mut systems: Vec<Box<dyn Single>> = Vec::new();
    for engine in [None, Some(EngineKind::Reflection), Some(EngineKind::HybridLog)] {
        let name = engine.map_or("open+pread".to_owned(), |engine| format!("untorn-{engine}"));
        if engine.is_some() && !wanted(&name) {
            continue;
        }
        let (place, kind) = (dir.path().join(&name), job.detected.kind);
        std::fs::create_dir(&place).map_err(|source| Error::io("create", &place, source))?;
        let Point { records, size, threads, pattern, .. } = *point;
        let setting = Setting { dir: place, kind, records, size, threads, pattern, seed: job.args.seed() };
        let path = setting.dir.join("data");
        match engine {
            None => {
                let file = std::fs::File::create(&path).map_err(|source| Error::io("create", &path, source))?;
                file.set_len(setting.len()).map_err(|source| Error::io("lengthen", &path, source))?;
            }
            Some(engine) => Long { engine }.make(&setting)?.close()?,
        }
        systems.push(Box::new(Opening { engine, path, kind, open: None }));
    }
    run_singles(job, point, &mut systems, if job.args.quick { QUICK_ROUNDS } else { ROUNDS })
}

/// An opening of one file.
struct Opening {
    /// `None` for a file without an engine.
    engine: Option<EngineKind>,
    path: PathBuf,
    kind: MediumKind,
    open: Option<AtomicFile>,
}

impl Single for Opening {
    fn name(&self) -> String {
        self.engine.map_or("open+pread".to_owned(), |engine| format!("untorn-{engine}"))
    }

    fn durability(&self) -> String {
        "none is needed".to_owned()
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn go(&mut self) -> Result<()> {
        let mut page = [0; PAGE];
        match self.engine {
            None => {
                let failed = |source| Error::io("read", &self.path, source);
                let file = std::fs::File::open(&self.path).map_err(failed)?;
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, 0).map_err(failed)?;
            }
            Some(engine) => on_medium!(self.kind, target => {
                let file = Long { engine }.options(self.kind).open_on(target.medium(), &self.path)?;
                file.read_at(&mut page, 0)?;
                self.open = Some(file);
            }),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), AtomicFile::close)?;
        Ok(())
    }
}
