//! Databases of keys and values as contenders. A rival implements [`Database`] and [`Session`]; [`Kept`] makes a
//! contender of it.

use std::path::Path;

use super::{Contender, Setting, Store, Worker};
use crate::error::Result;
use crate::measure::Buffer;

/// A database. Every transaction is durable when its call returns.
pub(crate) trait Database: Send + Sync {
    /// A session of one thread.
    ///
    /// # Errors
    /// Those of the database.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Gives back space that it does not use. Returns whether the database can.
    ///
    /// # Errors
    /// Those of the database.
    fn compact(&mut self) -> Result<bool> {
        Ok(false)
    }
}

/// The pairs of a transaction, one after the other.
pub(crate) type Pairs<'a> = dyn Iterator<Item = (Vec<u8>, Vec<u8>)> + 'a;

/// One thread's operations on a database.
pub(crate) trait Session: Send {
    /// Inserts or replaces a pair, in a transaction of its own.
    ///
    /// # Errors
    /// Those of the database.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Inserts or replaces pairs in one transaction.
    ///
    /// # Errors
    /// Those of the database.
    fn put_all(&mut self, pairs: &mut Pairs<'_>) -> Result<()>;

    /// Removes keys in one transaction.
    ///
    /// # Errors
    /// Those of the database.
    fn remove_all(&mut self, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()>;

    /// Reads in one transaction, if the database has transactions that read.
    ///
    /// # Errors
    /// Those of the database and of `body`.
    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()>;
}

/// A transaction that reads.
pub(crate) trait Reader {
    /// Calls `found` with the value of a key, if it is there.
    ///
    /// # Errors
    /// Those of the database.
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()>;

    /// Calls `found` with the first pairs from `key` on, in the order of keys, at most `count`.
    ///
    /// # Errors
    /// Those of the database.
    fn range(&mut self, key: &[u8], count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<()>;

    /// The number of pairs.
    ///
    /// # Errors
    /// Those of the database.
    fn len(&mut self) -> Result<u64>;
}

/// Opens a new database in a directory, for values of so many bytes altogether.
pub(crate) type Open = fn(&Path, u64) -> Result<Box<dyn Database>>;

/// A database as a contender: an update of a value by its number, in a transaction of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Its name in the rows.
    pub(crate) name: &'static str,
    /// The call that makes a transaction durable.
    pub(crate) durability: &'static str,
    /// Opens it.
    pub(crate) open: Open,
    /// Why it cannot be opened here, if so.
    pub(crate) missing: fn() -> Option<String>,
}

/// The key of a record.
pub(crate) fn key(place: u64) -> [u8; 8] {
    place.to_be_bytes()
}

impl Contender for Kept {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn durability(&self) -> String {
        format!("each operation on return, whole, by {}", self.durability)
    }

    fn missing(&self, _: &Setting) -> Option<String> {
        (self.missing)()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        let database = (self.open)(&setting.dir, setting.len())?;
        let mut pairs = (0..setting.records).map(|place| (key(place).to_vec(), vec![0x5a; setting.size]));
        database.session()?.put_all(&mut pairs)?;
        Ok(Box::new(KeptStore { database, size: setting.size }))
    }
}

struct KeptStore {
    database: Box<dyn Database>,
    size: usize,
}

impl Store for KeptStore {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let mut buffer = Buffer::new(self.size);
        let mut session = self.database.session()?;
        Ok(Box::new(move |place: u64| session.put(&key(place), buffer.bytes())))
    }
}
