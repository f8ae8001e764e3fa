//! Contenders that store into a mapping: untorn's maps, and a shared mapping that `msync` writes back.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use memmap2::MmapMut;
use untorn::shared::SharedMap;
use untorn::{AtomicMap, Options};

use super::{Contender, Setting, Store, Worker};
use crate::error::{Error, Result};
use crate::measure::Buffer;

/// The byte that every record has before the first update.
const FIRST: u8 = 0x5a;

/// A shared mapping of the kernel: a store and `msync(MS_SYNC)` of its pages, which is not atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Msync;

impl Contender for Msync {
    fn name(&self) -> String {
        "mmap+msync".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, by msync(MS_SYNC) of its pages; a crash may tear any page stored to".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let path = setting.dir.join("data");
        let failed = |operation| move |source| Error::Io { operation, path: setting.dir.join("data"), source };
        std::fs::write(&path, vec![FIRST; setting.len() as usize]).map_err(failed("write"))?;
        let file = File::options().read(true).write(true).open(&path).map_err(failed("open"))?;
        file.sync_all().map_err(failed("flush"))?;
        let maps = (0..setting.threads)
            .map(|_| super::rivals::map(&file).map(Mutex::new).map_err(failed("map")))
            .collect::<Result<_>>()?;
        Ok(Box::new(Mappings { maps, path, size: setting.size }))
    }
}

/// A mapping of the same file for each thread.
struct Mappings {
    maps: Vec<Mutex<MmapMut>>,
    path: PathBuf,
    size: usize,
}

impl Store for Mappings {
    fn worker(&self, thread: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(self.size);
        // No other thread takes this lock: it costs an uncontended compare-and-swap.
        let map = &self.maps[thread];
        Ok(Box::new(move |place: u64| -> Result<()> {
            let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
            let at = place as usize * self.size;
            map[at..at + self.size].copy_from_slice(buffer.bytes());
            map.flush_range(at, self.size).map_err(|source| Error::io("flush", &self.path, source))
        }))
    }
}

/// An [`AtomicMap`]: a plain store and a commit. Threads take turns, because a commit needs the map to itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map;

impl Contender for Map {
    fn name(&self) -> String {
        "untorn-map".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, whole, by AtomicMap::commit; threads take turns".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let mut map = Options::new().create_map(setting.dir.join("data"), setting.len())?;
        map.fill(FIRST);
        map.commit()?;
        Ok(Box::new(MapStore { map: Mutex::new(map), size: setting.size }))
    }
}

struct MapStore {
    map: Mutex<AtomicMap>,
    size: usize,
}

impl Store for MapStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(self.size);
        Ok(Box::new(move |place: u64| -> Result<()> {
            let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
            let at = place as usize * self.size;
            map[at..at + self.size].copy_from_slice(buffer.bytes());
            map.commit()?;
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.map.into_inner().unwrap_or_else(PoisonError::into_inner).close()?;
        Ok(())
    }
}

/// A [`SharedMap`]: a store and a commit, which takes the stores of all threads along.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared;

impl Contender for Shared {
    fn name(&self) -> String {
        "untorn-shared-map".to_owned()
    }

    fn durability(&self) -> String {
        "each operation on return, whole, by SharedMap::commit".to_owned()
    }

    /// Whether a shared map can be made here, only making one tells.
    fn missing(&self, setting: &Setting) -> Option<String> {
        let path = setting.dir.join("probe");
        let made = Options::new().create_shared_map(&path, 4096).and_then(SharedMap::close);
        made.err().map(|error| error.to_string())
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let map = Options::new().create_shared_map(setting.dir.join("data"), setting.len())?;
        let page = [FIRST; 4096];
        (0..setting.len()).step_by(4096).try_for_each(|offset| map.write_at(&page, offset))?;
        map.commit()?;
        Ok(Box::new(SharedStore { map, size: setting.size }))
    }
}

struct SharedStore {
    map: SharedMap,
    size: usize,
}

impl Store for SharedStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(self.size);
        Ok(Box::new(move |place: u64| -> Result<()> {
            self.map.write_at(buffer.bytes(), place * self.size as u64)?;
            self.map.commit()?;
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.map.close()?;
        Ok(())
    }
}
