//! The tortured file, by way of one of the library's faces.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use untorn::{AtomicFile, AtomicMap, Options, Result};

/// Bytes, and where they go.
pub(super) type Patch = (u64, Vec<u8>);

pub(super) enum Target {
    /// Reads and writes.
    File(AtomicFile),
    /// Plain loads and stores. One thread at a time stores or commits: what the lock gives a program of its own, so that an
    /// operation is in a commit whole.
    Map(Mutex<AtomicMap>),
}

fn lock(map: &Mutex<AtomicMap>) -> MutexGuard<'_, AtomicMap> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Target {
    /// Opens the file, or creates it with this length.
    pub(super) fn open(options: &Options, path: &Path, create: Option<u64>, map: bool) -> Result<Self> {
        Ok(match (create, map) {
            (Some(len), true) => Target::Map(Mutex::new(options.create_map(path, len)?)),
            (None, true) => Target::Map(Mutex::new(options.map(path)?)),
            (Some(len), false) => Target::File(options.create(path, len)?),
            (None, false) => Target::File(options.open(path)?),
        })
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
        }
    }

    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Target::File(file) => file.sync(),
            Target::Map(map) => lock(map).commit(),
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
        }
    }

    /// Brings a range home; a map does so by itself.
    pub(super) fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        match self {
            Target::File(file) => file.deploy(offset, len),
            Target::Map(_) => Ok(()),
        }
    }

    /// Gives unused space back; a map's is the log's, which grows no further once it is large enough.
    pub(super) fn reclaim(&self) -> Result<()> {
        match self {
            Target::File(file) => file.reclaim().map(drop),
            Target::Map(_) => Ok(()),
        }
    }
}
