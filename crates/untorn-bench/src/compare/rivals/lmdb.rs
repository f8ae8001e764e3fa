//! LMDB: a copy-on-write B-tree in a mapping; a commit is `fdatasync` of the pages and a write of the meta page through
//! a descriptor with O_DSYNC.

use std::fmt::Display;
use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{EnvOpenOptions, RoTxn, WithTls};

use crate::compare::keyvalue::{Database, Kept, Pairs, Reader, Session};
use crate::error::{Error, Result};

pub(super) const RIVAL: Kept =
    Kept { name: "lmdb", durability: "a commit without MDB_NOSYNC, its default", open, missing: || None };

fn failed(error: impl Display) -> Error {
    Error::Database { what: format!("LMDB: {error}") }
}

fn open(dir: &Path, len: u64) -> Result<Box<dyn Database>> {
    let mut options = EnvOpenOptions::new();
    // A page of small values is half full at worst, and pages of the last two transactions stay in use.
    options.map_size((len * 16 + (1 << 30)).next_multiple_of(4096) as usize).max_readers(256);
    // SAFETY: the directory is this run's alone, and the environment is opened once.
    let env = unsafe { options.open(dir) }.map_err(failed)?;
    let mut transaction = env.write_txn().map_err(failed)?;
    let records = env.create_database(&mut transaction, None).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(Box::new(Lmdb { env, records }))
}

struct Lmdb {
    env: heed::Env<WithTls>,
    records: heed::Database<Bytes, Bytes>,
}

impl Database for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Turn(self)))
    }
}

struct Turn<'d>(&'d Lmdb);

impl Session for Turn<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut transaction = self.0.env.write_txn().map_err(failed)?;
        self.0.records.put(&mut transaction, key, value).map_err(failed)?;
        transaction.commit().map_err(failed)
    }

    fn put_all(&mut self, pairs: &mut Pairs<'_>) -> Result<()> {
        let mut transaction = self.0.env.write_txn().map_err(failed)?;
        for (key, value) in pairs {
            self.0.records.put(&mut transaction, &key, &value).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    fn remove_all(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()> {
        let mut transaction = self.0.env.write_txn().map_err(failed)?;
        for key in keys {
            self.0.records.delete(&mut transaction, &key).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let transaction = self.0.env.read_txn().map_err(failed)?;
        body(&mut Look { transaction: &transaction, records: self.0.records })
    }
}

struct Look<'t, 'e> {
    transaction: &'t RoTxn<'e, WithTls>,
    records: heed::Database<Bytes, Bytes>,
}

impl Reader for Look<'_, '_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()> {
        if let Some(value) = self.records.get(self.transaction, key).map_err(failed)? {
            found(value);
        }
        Ok(())
    }

    fn range(&mut self, key: &[u8], count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let from: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(key), Bound::Unbounded);
        for pair in self.records.range(self.transaction, &from).map_err(failed)?.take(count) {
            let (key, value) = pair.map_err(failed)?;
            found(key, value);
        }
        Ok(())
    }

    fn len(&mut self) -> Result<u64> {
        self.records.len(self.transaction).map_err(failed)
    }
}
