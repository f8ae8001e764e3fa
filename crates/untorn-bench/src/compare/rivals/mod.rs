//! Rivals: the databases that this build has. Their crates ask for unsafe code to open a file that no other program may
//! change meanwhile.
#![allow(unsafe_code)]

#[cfg(feature = "rivals")]
mod fjall;
#[cfg(feature = "rivals")]
mod lmdb;
#[cfg(feature = "rivals")]
mod redb;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fs::File;

use memmap2::MmapMut;

use super::keyvalue::Kept;

/// Maps a file that only this process has.
pub(super) fn map(file: &File) -> std::io::Result<MmapMut> {
    // SAFETY: the file is in a directory of this run alone, and keeps its length. Each thread stores to records of its
    // own only, through its own mapping.
    unsafe { MmapMut::map_mut(file) }
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
        #[cfg(feature = "sqlite")]
        sqlite::WAL,
        #[cfg(feature = "sqlite")]
        sqlite::DELETE,
        #[cfg(feature = "sqlite")]
        sqlite::UNTORN,
    ]
}

/// What this build lacks, for the notes of a report.
pub(crate) fn lacking() -> Vec<String> {
    let mut notes = Vec::new();
    if cfg!(not(feature = "rivals")) {
        notes.push("without LMDB, redb and fjall: build the tool with `--features untorn-cli/rivals`".to_owned());
    }
    if cfg!(not(feature = "sqlite")) {
        notes.push("without SQLite: build the tool with `--features untorn-cli/sqlite`".to_owned());
    }
    notes.push("without RocksDB: no kept crate builds against the library that distributions have".to_owned());
    notes
}

#[cfg(all(test, any(feature = "rivals", feature = "sqlite")))]
mod tests;
