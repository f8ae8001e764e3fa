//! Databases of SQLite, by untorn's VFS and by SQLite's own journals, all in the same library.
#![allow(unsafe_code)]

pub(crate) mod tpcc;
pub(crate) mod ycsb;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::args::System;
use crate::error::{Error, Result};

/// A connection waits so long for another one's transaction.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of the extension's library.
const LIBRARY: &str = "libuntorn_sqlite.so";

/// Registers the VFS `untorn` in this process. The library is beside the program, in the directory above (as for
/// tests), or in `lib` beside the program's directory, as an installation has it.
///
/// # Errors
/// [`Error::Usage`] if it is in none of these; those of loading it.
pub(crate) fn register() -> Result<()> {
    let library = find_library()?;
    let memory = Connection::open_in_memory()?;
    // SAFETY: no statement runs on this connection while it may load extensions.
    unsafe { memory.load_extension_enable()? };
    // SAFETY: the library has the entry point of an extension, and it stays loaded.
    unsafe { memory.load_extension(&library, Some("sqlite3_untorn_init"))? };
    memory.load_extension_disable()?;
    Ok(())
}

fn find_library() -> Result<PathBuf> {
    let program = std::env::current_exe().map_err(|error| Error::io("find", Path::new("this program"), error))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let above = beside.parent().unwrap_or(Path::new("/"));
    let places = [beside.join(LIBRARY), above.join(LIBRARY), above.join("lib").join(LIBRARY)];
    places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        let places: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        Error::usage(format!(
            "the VFS is in none of {}; build it with `cargo build --release --package untorn-sqlite`",
            places.join(", ")
        ))
    })
}

/// Opens a database as a system has it, and creates it if it is not there.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn open(path: &Path, system: System, page_size: u32) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let escaped: String = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let uri = format!("file:{escaped}{}", system.parameters());
    let database = Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?;
    database.busy_timeout(PATIENCE)?;
    database.pragma_update(None, "page_size", page_size)?;
    if let Some(mode) = system.journal_mode() {
        let found: String = database.pragma_update_and_check(None, "journal_mode", mode, |row| row.get(0))?;
        if !found.eq_ignore_ascii_case(mode) {
            return Err(Error::usage(format!("SQLite refused journal_mode={mode}, and has {found}")));
        }
    }
    database.pragma_update(None, "synchronous", "FULL")?;
    database.set_prepared_statement_cache_capacity(64);
    Ok(database)
}

/// SQLite's own version.
pub(crate) fn version() -> &'static str {
    rusqlite::version()
}
