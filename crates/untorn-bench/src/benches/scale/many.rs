//! Many regions of one store, many files, and many files behind one log. An operation opens one of them, writes a page,
//! durably, and closes it.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use untorn::Durability;
use untorn::region::{RegionStore, StoreOptions};
use untorn::write_cache::{CacheOptions, Kernel, WriteCache};

use super::PAGE;
use crate::benches::benchmark::on_medium;
use crate::compare::{Contender, Setting, Store, Worker};
use crate::error::{Error, Result};
use crate::raw::Target;

const BYTES: [u8; PAGE] = [0x5a; PAGE];

fn named(record: u64) -> String {
    format!("{record:07}")
}

/// Makes a directory of files of a page each, all durable.
fn make_files(setting: &Setting) -> Result<PathBuf> {
    let dir = setting.dir.join("files");
    std::fs::create_dir(&dir).map_err(|source| Error::io("create", &dir, source))?;
    for record in 0..setting.records {
        let path = dir.join(named(record));
        std::fs::write(&path, BYTES).map_err(|source| Error::io("write", &path, source))?;
    }
    let synced = File::open(&dir).and_then(|opened| Ok(rustix::fs::syncfs(opened)?));
    synced.map_err(|source| Error::io("flush the file system of", &dir, source))?;
    Ok(dir)
}

fn open(path: &Path) -> Result<File> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|source| Error::io("open", path, source))
}

/// A directory of files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files;

impl Contender for Files {
    fn name(&self) -> String {
        "open+pwrite+fdatasync".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, by fdatasync; a crash may tear the last one".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        Ok(Box::new(FilesStore { dir: make_files(setting)? }))
    }
}

struct FilesStore {
    dir: PathBuf,
}

impl Store for FilesStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        Ok(Box::new(|record: u64| -> Result<()> {
            let path = self.dir.join(named(record));
            let file = open(&path)?;
            file.write_all_at(&BYTES, 0).map_err(|source| Error::io("write", &path, source))?;
            file.sync_data().map_err(|source| Error::io("flush", &path, source))
        }))
    }
}

/// Pages of a region: the most regions that a store can have are a million pages.
const PAGES: u64 = 16;

/// A store of regions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regions;

impl Contender for Regions {
    fn name(&self) -> String {
        "untorn-regions".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, whole, by Region::pmsync".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let options = StoreOptions::new().max_regions(u32::try_from(setting.records).unwrap_or(u32::MAX));
        let store = on_medium!(setting.kind, target => options.create_on(target.medium(), setting.dir.join("store"))?);
        for record in 0..setting.records {
            let region = store.create_region(&named(record))?;
            region.alloc_pages(PAGES)?;
            region.write_page(0, &BYTES)?;
            region.pmsync()?;
        }
        Ok(Box::new(RegionsStore { store }))
    }
}

struct RegionsStore {
    store: RegionStore,
}

impl Store for RegionsStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        Ok(Box::new(|record: u64| -> Result<()> {
            let region = self.store.open_region(&named(record))?;
            region.write_page(0, &BYTES)?;
            region.pmsync()?;
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.store.close()?;
        Ok(())
    }
}

/// A directory of files behind one log, on the same medium.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedFiles;

impl Contender for CachedFiles {
    fn name(&self) -> String {
        "untorn-log".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, whole, by a log".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let dir = make_files(setting)?;
        let (options, log) = (CacheOptions::new().durability(Durability::PerWrite), setting.dir.join("log"));
        let cache = on_medium!(setting.kind, target => options.create_on(target.medium(), Arc::new(Kernel), log)?);
        Ok(Box::new(CachedStore { cache, dir }))
    }
}

struct CachedStore {
    cache: WriteCache,
    dir: PathBuf,
}

impl Store for CachedStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        Ok(Box::new(|record: u64| -> Result<()> {
            let path = self.dir.join(named(record));
            let file = self.cache.attach(open(&path)?.as_fd(), &path)?;
            file.write_at(&BYTES, 0)?;
            Ok(())
        }))
    }

    fn settle(&self) -> Result<()> {
        self.cache.drain()?;
        Ok(())
    }
}
