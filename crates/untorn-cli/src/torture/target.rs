//! The file under test, through one of the library's interfaces.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use untorn::region::{Region, RegionMap, RegionStore};
use untorn::{AtomicFile, AtomicMap, EngineKind, Options, Result};

use super::healing;
use super::plan::FILE_LEN;
use crate::rng::Rng;

/// Bytes, and where they go.
pub(super) type Patch = (u64, Vec<u8>);

/// The region that stands in for the file, in a separate store.
const REGION: &str = "tortured";
/// Its permanent pages. The pages after them are allocated and freed.
const PAGES: u64 = FILE_LEN.div_ceil(Region::PAGE);
/// The number of pages that are allocated and freed. They need separate page tables.
const RESTLESS: u64 = 400;

/// The library interface that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// Reads and writes of a file.
    File,
    /// Plain loads and stores.
    Map,
    /// Plain loads and stores into a mapped region whose pages are allocated and freed.
    Region,
    /// Reads and writes of a file with redundancy.
    Healed,
}

impl Face {
    /// The interface of the verifying process. A mapped file is read as a file, which shows that this works.
    pub(super) fn of_reader(self) -> Face {
        if self == Face::Map { Face::File } else { self }
    }

    /// The command-line argument for the writing process.
    pub(super) fn argument(self) -> Option<&'static str> {
        match self {
            Face::File => None,
            Face::Map => Some("--map"),
            Face::Region => Some("--region"),
            Face::Healed => Some("--redundancy"),
        }
    }

    /// The text before the engine's name in a report.
    pub(super) fn words(self) -> &'static str {
        match self {
            Face::File => "",
            Face::Map => "plain stores, ",
            Face::Region => "a mapped region, ",
            Face::Healed => "with redundancy, ",
        }
    }

    /// The name of its engine; for files, the one given.
    pub(super) fn engine(self, of_files: EngineKind) -> &'static str {
        if self == Face::Region { "snapshot" } else { of_files.as_str() }
    }
}

pub(super) enum Target {
    /// Reads and writes.
    File(AtomicFile),
    /// Plain loads and stores. The lock lets one thread at a time store or commit, as a program's own lock would, so
    /// that each operation is in one commit.
    Map(Mutex<AtomicMap>),
    /// The same for a region, and its store.
    Region(Mutex<RegionMap>, RegionStore),
}

fn lock<T>(map: &Mutex<T>) -> MutexGuard<'_, T> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Target {
    /// Opens the file, or creates it.
    pub(super) fn open(options: &Options, path: &Path, create: bool, face: Face) -> Result<Self> {
        Ok(match (create, face) {
            (true, Face::Map) => Target::Map(Mutex::new(options.create_map(path, FILE_LEN)?)),
            (false, Face::Map) => Target::Map(Mutex::new(options.map(path)?)),
            (true, Face::File) => Target::File(options.create(path, FILE_LEN)?),
            (false, Face::File | Face::Healed) => Target::File(options.open(path)?),
            (true, Face::Healed) => {
                let file = options.create(path, healing::LEN)?;
                healing::prepare(&file)?;
                Target::File(file)
            }
            (true, Face::Region) => {
                let store = RegionStore::create(path)?;
                let mut map = store.create_region_of(REGION, PAGES + RESTLESS)?.map()?;
                map.alloc_at(0, PAGES)?;
                map.pmsync()?;
                Target::Region(Mutex::new(map), store)
            }
            (false, Face::Region) => {
                let store = RegionStore::open(path)?;
                let map = store.open_region(REGION)?.map()?;
                Target::Region(Mutex::new(map), store)
            }
        })
    }

    /// The violations apart from wrong bytes.
    pub(super) fn audit(&self) -> Result<Vec<String>> {
        let Target::Region(map, store) = self else {
            let len = if let Target::File(file) = self { file.len() } else { FILE_LEN };
            let is_healed = if let Target::File(file) = self { file.coverage()?.is_some() } else { false };
            let right = if is_healed { healing::LEN } else { FILE_LEN };
            let wrong = format!("the file is {len} bytes long instead of {right} (C1)");
            return Ok(if len == right { Vec::new() } else { vec![wrong] });
        };
        let map = lock(map);
        let mut findings = store.audit()?.findings;
        for page in map.pages()?.into_iter().filter(|page| *page >= PAGES) {
            // Each was filled when it was allocated, with its number.
            let bytes = map.page(page)?;
            if bytes != &[page as u8; Region::PAGE as usize] {
                findings.push(format!("page {page}, which was allocated and filled in one commit, is torn"));
            }
        }
        Ok(findings)
    }

    /// Closes it cleanly.
    pub(super) fn close(self) -> Result<()> {
        match self {
            Target::File(file) => file.close(),
            Target::Map(map) => map.into_inner().unwrap_or_else(PoisonError::into_inner).close(),
            Target::Region(map, store) => {
                drop(map);
                store.close()
            }
        }
    }

    /// Turns it into a plain file with the same bytes, if it can become one.
    pub(super) fn settle(self) -> Result<bool> {
        match self {
            Target::File(file) => file.settle().map(|()| true),
            Target::Map(map) => map.into_inner().unwrap_or_else(PoisonError::into_inner).settle().map(|()| true),
            Target::Region(..) => self.close().map(|()| false),
        }
    }

    /// Writes all patches atomically.
    pub(super) fn write(&self, writes: &[Patch]) -> Result<()> {
        match (self, writes) {
            (Target::File(file), [(offset, bytes)]) => file.write_at(bytes, *offset),
            (Target::File(file), writes) => {
                let mut transaction = file.transaction();
                for (offset, bytes) in writes {
                    transaction.write_at(bytes, *offset)?;
                }
                transaction.commit()
            }
            (Target::Map(map), writes) => {
                let mut map = lock(map);
                for (offset, bytes) in writes {
                    map[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Ok(())
            }
            (Target::Region(map, _), writes) => {
                let mut map = lock(map);
                for (offset, bytes) in writes {
                    map.bytes_mut(*offset, bytes.len())?.copy_from_slice(bytes);
                }
                // Also allocate or free a page in the same commit; the first bytes written select it.
                let page =
                    writes.first().map_or(0, |(_, bytes)| Rng::new(bytes.iter().take(8).fold(0, mix)).below(RESTLESS));
                turn(&mut map, PAGES + page)
            }
        }
    }

    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Target::File(file) => file.sync(),
            Target::Map(map) => lock(map).commit(),
            Target::Region(map, _) => lock(map).pmsync(),
        }
        .map(drop)
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Target::File(file) => file.read_at(into, offset),
            Target::Map(map) => {
                into.copy_from_slice(&lock(map)[offset as usize..][..into.len()]);
                Ok(())
            }
            Target::Region(map, _) => {
                into.copy_from_slice(lock(map).bytes(offset, into.len())?);
                Ok(())
            }
        }
    }

    /// Deploys a range. A map deploys by itself, and a region has nothing to deploy.
    pub(super) fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        match self {
            Target::File(file) => file.deploy(offset, len),
            Target::Map(_) | Target::Region(..) => Ok(()),
        }
    }

    /// Reclaims unused space. A map's log stops growing once it is large enough, and a region reuses its space.
    pub(super) fn reclaim(&self) -> Result<()> {
        match self {
            Target::File(file) => file.reclaim().map(drop),
            Target::Map(_) | Target::Region(..) => Ok(()),
        }
    }
}

/// Folds bytes into a number.
fn mix(sum: u64, byte: &u8) -> u64 {
    sum << 8 | u64::from(*byte)
}

/// Frees an allocated page, or allocates and fills a free one. A page freed since the last commit is left alone.
fn turn(map: &mut RegionMap, page: u64) -> Result<()> {
    if map.page(page).is_ok() {
        return map.free_page(page);
    }
    match map.alloc_at(page, 1) {
        Ok(()) => map.page_mut(page).map(|bytes| bytes.fill(page as u8)),
        Err(untorn::Error::Invalid { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
