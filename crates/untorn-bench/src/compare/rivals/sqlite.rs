//! SQLite: a table of keys and values, with each of its journals, and with untorn's VFS in place of a journal.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};

use crate::args::System;
use crate::compare::keyvalue::{Database, Kept, Pairs, Reader, Session};
use crate::error::Result;
use crate::sqlite;

const PAGE: u32 = 4096;

pub(super) const WAL: Kept = Kept {
    name: "sqlite-wal",
    durability: "a commit with synchronous=FULL: fdatasync of its write-ahead log",
    open: |dir, _| open(dir, System::Wal),
    missing: || None,
};

pub(super) const DELETE: Kept = Kept {
    name: "sqlite-delete",
    durability: "a commit with synchronous=FULL: syncs of its rollback journal, its directory and the database",
    open: |dir, _| open(dir, System::Delete),
    missing: || None,
};

pub(super) const UNTORN: Kept = Kept {
    name: "untorn-sqlite",
    durability: "a commit of SQLite on untorn's VFS",
    open: |dir, _| open(dir, System::Untorn),
    missing: || sqlite::register().err().map(|error| error.to_string()),
};

fn open(dir: &Path, system: System) -> Result<Box<dyn Database>> {
    let path = dir.join("data.db");
    let database = sqlite::open(&path, system, PAGE)?;
    database.execute_batch("CREATE TABLE records (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")?;
    Ok(Box::new(Sqlite { path, system }))
}

/// Each session has a connection of its own.
struct Sqlite {
    path: PathBuf,
    system: System,
}

impl Database for Sqlite {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Turn(sqlite::open(&self.path, self.system, PAGE)?)))
    }

    fn compact(&mut self) -> Result<bool> {
        sqlite::open(&self.path, self.system, PAGE)?.execute_batch("VACUUM")?;
        Ok(true)
    }
}

struct Turn(Connection);

const PUT: &str = "INSERT INTO records VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = ?2";

impl Session for Turn {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.prepare_cached(PUT)?.execute(params![key, value])?;
        Ok(())
    }

    fn put_all(&mut self, pairs: &mut Pairs<'_>) -> Result<()> {
        let transaction = self.0.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut put = transaction.prepare_cached(PUT)?;
            for (key, value) in pairs {
                put.execute(params![key, value])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn remove_all(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()> {
        let transaction = self.0.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut remove = transaction.prepare_cached("DELETE FROM records WHERE k = ?")?;
            for key in keys {
                remove.execute([key])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let transaction = self.0.transaction()?;
        body(&mut Look(&transaction))?;
        transaction.commit()?;
        Ok(())
    }
}

struct Look<'c>(&'c Connection);

impl Reader for Look<'_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut get = self.0.prepare_cached("SELECT v FROM records WHERE k = ?")?;
        get.query_row([key], |row| row.get_ref(0).map(|value| found(value.as_blob().unwrap_or_default())))
            .optional()?;
        Ok(())
    }

    fn range(&mut self, key: &[u8], count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut range = self.0.prepare_cached("SELECT k, v FROM records WHERE k >= ? ORDER BY k LIMIT ?")?;
        let mut rows = range.query(params![key, count as i64])?;
        while let Some(row) = rows.next()? {
            let blob = |column| row.get_ref(column).map(|value| value.as_blob().unwrap_or_default());
            found(blob(0)?, blob(1)?);
        }
        Ok(())
    }

    fn len(&mut self) -> Result<u64> {
        let count: i64 = self.0.prepare_cached("SELECT count(*) FROM records")?.query_row([], |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }
}
