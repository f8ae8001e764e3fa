//! The tortured file, by way of one of the library's faces.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use untorn::{AtomicFile, AtomicMap, EngineKind, Options, Region, RegionMap, RegionStore, Result};

use super::healing;
use super::plan::FILE_LEN;
use crate::rng::Rng;

/// Bytes, and where they go.
pub(super) type Patch = (u64, Vec<u8>);

/// The region that holds what a file would, in a store of its own.
const REGION: &str = "tortured";
/// Its pages. Behind them are others, which come and go.
const PAGES: u64 = FILE_LEN.div_ceil(Region::PAGE);
/// How many come and go. They need page tables of their own.
const RESTLESS: u64 = 400;

/// Which of the library's faces a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// Reads and writes of a file.
    File,
    /// Plain loads and stores.
    Map,
    /// Plain loads and stores into a mapped region, pages of which are allocated and freed.
    Region,
    /// Reads and writes of a file with redundancy.
    Healed,
}

impl Face {
    /// That of a process that verifies. A file that was stored to is read as one, which shows that it can be.
    pub(super) fn of_reader(self) -> Face {
        if self == Face::Map { Face::File } else { self }
    }

    /// What a writing process is told.
    pub(super) fn argument(self) -> Option<&'static str> {
        match self {
            Face::File => None,
            Face::Map => Some("--map"),
            Face::Region => Some("--region"),
            Face::Healed => Some("--redundancy"),
        }
    }

    /// What comes before the name of the engine, for a person.
    pub(super) fn words(self) -> &'static str {
        match self {
            Face::File => "",
            Face::Map => "plain stores, ",
            Face::Region => "a mapped region, ",
            Face::Healed => "with redundancy, ",
        }
    }

    /// The engine behind it, of files the one given.
    pub(super) fn engine(self, of_files: EngineKind) -> &'static str {
        if self == Face::Region { "snapshot" } else { of_files.as_str() }
    }
}

pub(super) enum Target {
    /// Reads and writes.
    File(AtomicFile),
    /// Plain loads and stores. One thread at a time stores or commits: what the lock gives a program of its own, so that an
    /// operation is in a commit whole.
    Map(Mutex<AtomicMap>),
    /// The same of a region, and its store.
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

    /// What is wrong with it, apart from its bytes.
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

    /// Makes it a plain file of the same bytes, if it can be one.
    pub(super) fn settle(self) -> Result<bool> {
        match self {
            Target::File(file) => file.settle().map(|()| true),
            Target::Map(map) => map.into_inner().unwrap_or_else(PoisonError::into_inner).settle().map(|()| true),
            Target::Region(..) => self.close().map(|()| false),
        }
    }

    /// Writes all of it as one.
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
                // Pages come and go in the same commits, as the first byte written has it.
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

    /// Brings a range home; a map does so by itself, and a region has no other place.
    pub(super) fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        match self {
            Target::File(file) => file.deploy(offset, len),
            Target::Map(_) | Target::Region(..) => Ok(()),
        }
    }

    /// Gives unused space back; a map's is the log's, which grows no further once it is large enough, and a region's is used
    /// again.
    pub(super) fn reclaim(&self) -> Result<()> {
        match self {
            Target::File(file) => file.reclaim().map(drop),
            Target::Map(_) | Target::Region(..) => Ok(()),
        }
    }
}

/// A number of all bytes.
fn mix(sum: u64, byte: &u8) -> u64 {
    sum << 8 | u64::from(*byte)
}

/// Frees a page, or allocates and fills it. One that was freed since the last commit is left alone.
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
