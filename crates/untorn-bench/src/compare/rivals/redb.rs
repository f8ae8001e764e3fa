//! redb: a copy-on-write B-tree; a commit is two `fdatasync` by default.

use std::fmt::Display;
use std::path::Path;

use redb::{ReadOnlyTable, ReadableDatabase, ReadableTableMetadata, TableDefinition};

use crate::compare::keyvalue::{Database, Kept, Pairs, Reader, Session};
use crate::error::{Error, Result};

type Bytes = &'static [u8];

const TABLE: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("records");

pub(super) const RIVAL: Kept =
    Kept { name: "redb", durability: "a commit with Durability::Immediate, its default", open, missing: || None };

fn failed(error: impl Display) -> Error {
    Error::Database { what: format!("redb: {error}") }
}

fn open(dir: &Path, _: u64) -> Result<Box<dyn Database>> {
    Ok(Box::new(Redb(redb::Database::create(dir.join("data.redb")).map_err(failed)?)))
}

struct Redb(redb::Database);

impl Database for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Turn(&self.0)))
    }

    fn compact(&mut self) -> Result<bool> {
        self.0.compact().map_err(failed)?;
        Ok(true)
    }
}

struct Turn<'d>(&'d redb::Database);

impl Turn<'_> {
    fn write(&self, body: impl FnOnce(&mut redb::Table<'_, Bytes, Bytes>) -> Result<()>) -> Result<()> {
        let transaction = self.0.begin_write().map_err(failed)?;
        body(&mut transaction.open_table(TABLE).map_err(failed)?)?;
        transaction.commit().map_err(failed)
    }
}

impl Session for Turn<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(|table| table.insert(key, value).map(drop).map_err(failed))
    }

    fn put_all(&mut self, pairs: &mut Pairs<'_>) -> Result<()> {
        self.write(|table| {
            for (key, value) in pairs {
                table.insert(&key[..], &value[..]).map_err(failed)?;
            }
            Ok(())
        })
    }

    fn remove_all(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()> {
        self.write(|table| {
            for key in keys {
                table.remove(&key[..]).map_err(failed)?;
            }
            Ok(())
        })
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let transaction = self.0.begin_read().map_err(failed)?;
        body(&mut Look(transaction.open_table(TABLE).map_err(failed)?))
    }
}

struct Look(ReadOnlyTable<Bytes, Bytes>);

impl Reader for Look {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()> {
        if let Some(value) = self.0.get(key).map_err(failed)? {
            found(value.value());
        }
        Ok(())
    }

    fn range(&mut self, key: &[u8], count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        for pair in self.0.range::<&[u8]>(key..).map_err(failed)?.take(count) {
            let (key, value) = pair.map_err(failed)?;
            found(key.value(), value.value());
        }
        Ok(())
    }

    fn len(&mut self) -> Result<u64> {
        self.0.len().map_err(failed)
    }
}
