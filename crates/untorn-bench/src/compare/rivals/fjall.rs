//! fjall: a log-structured merge tree; a transaction is durable after `fdatasync` of its journal.

use std::fmt::Display;
use std::path::Path;

use fjall::{Config, Keyspace, PartitionCreateOptions, PartitionHandle, PersistMode};

use crate::compare::keyvalue::{Database, Kept, Pairs, Reader, Session};
use crate::error::{Error, Result};

pub(super) const RIVAL: Kept =
    Kept { name: "fjall", durability: "PersistMode::SyncData of its journal", open, missing: || None };

fn failed(error: impl Display) -> Error {
    Error::Database { what: format!("fjall: {error}") }
}

fn open(dir: &Path, _: u64) -> Result<Box<dyn Database>> {
    let keyspace = Config::new(dir).open().map_err(failed)?;
    let records = keyspace.open_partition("records", PartitionCreateOptions::default()).map_err(failed)?;
    Ok(Box::new(Fjall { keyspace, records }))
}

struct Fjall {
    keyspace: Keyspace,
    records: PartitionHandle,
}

impl Database for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Turn(self)))
    }

    fn compact(&mut self) -> Result<bool> {
        self.records.major_compact().map_err(failed)?;
        Ok(true)
    }
}

struct Turn<'d>(&'d Fjall);

impl Session for Turn<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.records.insert(key, value).map_err(failed)?;
        self.0.keyspace.persist(PersistMode::SyncData).map_err(failed)
    }

    fn put_all(&mut self, pairs: &mut Pairs<'_>) -> Result<()> {
        let mut batch = self.0.keyspace.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in pairs {
            batch.insert(&self.0.records, key, value);
        }
        batch.commit().map_err(failed)
    }

    fn remove_all(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()> {
        let mut batch = self.0.keyspace.batch().durability(Some(PersistMode::SyncData));
        for key in keys {
            batch.remove(&self.0.records, key);
        }
        batch.commit().map_err(failed)
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        body(&mut Look(&self.0.records))
    }
}

struct Look<'d>(&'d PartitionHandle);

impl Reader for Look<'_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()> {
        if let Some(value) = self.0.get(key).map_err(failed)? {
            found(&value);
        }
        Ok(())
    }

    fn range(&mut self, key: &[u8], count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        for pair in self.0.range(key.to_vec()..).take(count) {
            let (key, value) = pair.map_err(failed)?;
            found(&key, &value);
        }
        Ok(())
    }

    fn len(&mut self) -> Result<u64> {
        self.0.len().map(|len| len as u64).map_err(failed)
    }
}
