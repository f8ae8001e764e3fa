//! Rivals: the databases that this build has, and libraries of the system that are loaded at run time. Their crates and
//! their C interfaces ask for unsafe code.
#![allow(unsafe_code)]

#[cfg(feature = "rivals")]
mod fjall;
#[cfg(feature = "rivals")]
mod lmdb;
#[cfg(feature = "rivals")]
mod loaded;
#[cfg(feature = "rivals")]
mod pmdk;
#[cfg(feature = "rivals")]
mod redb;
#[cfg(feature = "rivals")]
mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fs::File;

use memmap2::MmapMut;

use super::Contender;
use super::keyvalue::Kept;

/// Maps a file that only this process has.
pub(super) fn map(file: &File) -> std::io::Result<MmapMut> {
    // SAFETY: the file is in a directory of this run alone, and keeps its length. Each thread stores to records of its
    // own only, through its own mapping.
    unsafe { MmapMut::map_mut(file) }
}

/// The libraries for persistent memory that update records in a file, if this build can load them.
pub(crate) fn libraries() -> Vec<Box<dyn Contender>> {
    vec![
        #[cfg(feature = "rivals")]
        Box::new(pmdk::LibPmem),
        #[cfg(feature = "rivals")]
        Box::new(pmdk::LibPmemObj),
    ]
}

/// The databases of this build.
pub(crate) fn databases() -> Vec<Kept> {
    vec![
        #[cfg(feature = "rivals")]
        lmdb::RIVAL,
        #[cfg(feature = "rivals")]
        redb::RIVAL,
        #[cfg(feature = "rivals")]
        fjall::RIVAL,
        #[cfg(feature = "rivals")]
        rocksdb::RIVAL,
        #[cfg(feature = "sqlite")]
        sqlite::WAL,
        #[cfg(feature = "sqlite")]
        sqlite::DELETE,
        #[cfg(feature = "sqlite")]
        sqlite::UNTORN,
    ]
}

/// The systems that this build lacks, for the notes of a report. A library that is not installed has a note of its own.
pub(crate) fn lacking() -> Vec<String> {
    let mut notes = Vec::new();
    if cfg!(not(feature = "rivals")) {
        notes.push(
            "without LMDB, redb, fjall, RocksDB, libpmem and libpmemobj: build the tool with `--features \
             untorn-cli/rivals`"
                .to_owned(),
        );
    }
    if cfg!(not(feature = "sqlite")) {
        notes.push("without SQLite: build the tool with `--features untorn-cli/sqlite`".to_owned());
    }
    notes
}

#[cfg(all(test, any(feature = "rivals", feature = "sqlite")))]
mod tests;
