//! A hash table of fixed slots in an [`AtomicFile`]: the least that a program needs to keep keys and values in a file
//! of its own layout. It has no order of keys, no removal and a fixed size.

use std::path::Path;

use untorn::{AtomicFile, Durability, Options};

use super::keyvalue::{Database, Kept, Pairs, Reader, Session};
use crate::error::{Error, Result};
use crate::offsets::mix;

/// Bytes of a slot: the length of the value, the key, and the value.
const SLOT: usize = 256;
const KEY: usize = 24;
const HEADER: usize = 8 + KEY;

/// The contender. Its keys have 24 bytes, and its values at most 224.
pub(crate) const TABLE: Kept = Kept {
    name: "untorn-table",
    durability: "AtomicFile::sync; a hash table of fixed slots, without order and removal",
    open,
    missing: || None,
};

/// A table with two slots for each value of 150 bytes.
fn open(dir: &Path, len: u64) -> Result<Box<dyn Database>> {
    let slots = (len / 150 * 2 + 64).next_multiple_of(16);
    let options = Options::new().durability(Durability::PerCommit);
    let file = options.create(dir.join("table"), slots * SLOT as u64)?;
    Ok(Box::new(Table { file, slots }))
}

struct Table {
    file: AtomicFile,
    slots: u64,
}

impl Table {
    /// Reads the slot of a key, or the free one in which it belongs. Returns its offset and whether the key is there.
    fn find(&self, key: &[u8], slot: &mut [u8; SLOT]) -> Result<(u64, bool)> {
        let words = key.chunks(8).map(|word| word.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte)));
        let hash = words.fold(0, |hash, word| mix(hash ^ word));
        for probe in 0..self.slots {
            let offset = (hash.wrapping_add(probe) % self.slots) * SLOT as u64;
            self.file.read_at(slot, offset)?;
            let is_free = slot[..8] == [0; 8];
            if is_free || slot[8..HEADER] == *key {
                return Ok((offset, !is_free));
            }
        }
        Err(Error::Database { what: "the table is full".to_owned() })
    }

    fn write(&self, key: &[u8], value: &[u8]) -> Result<()> {
        if key.len() != KEY || value.is_empty() || value.len() > SLOT - HEADER {
            let what = format!("a key of {} and a value of {} bytes do not fit into a slot", key.len(), value.len());
            return Err(Error::Database { what });
        }
        let mut slot = [0; SLOT];
        let (offset, _) = self.find(key, &mut slot)?;
        slot[..8].copy_from_slice(&(value.len() as u64).to_le_bytes());
        slot[8..HEADER].copy_from_slice(key);
        slot[HEADER..HEADER + value.len()].copy_from_slice(value);
        self.file.write_at(&slot[..HEADER + value.len()], offset)?;
        Ok(())
    }
}

impl Database for Table {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Turn(self)))
    }
}

struct Turn<'t>(&'t Table);

impl Session for Turn<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.write(key, value)?;
        self.0.file.sync()?;
        Ok(())
    }

    fn put_all(&mut self, pairs: &mut Pairs<'_>) -> Result<()> {
        for (key, value) in pairs {
            self.0.write(&key, &value)?;
        }
        self.0.file.sync()?;
        Ok(())
    }

    fn remove_all(&mut self, _: &mut dyn Iterator<Item = Vec<u8>>) -> Result<()> {
        Err(Error::usage("the table removes nothing"))
    }

    fn read(&mut self, body: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        body(&mut Turn(self.0))
    }
}

impl Reader for Turn<'_> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut slot = [0; SLOT];
        if self.0.find(key, &mut slot)?.1 {
            let len = u64::from_le_bytes(slot[..8].try_into().unwrap_or_default()) as usize;
            found(&slot[HEADER..(HEADER + len).min(SLOT)]);
        }
        Ok(())
    }

    fn range(&mut self, _: &[u8], _: usize, _: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        Err(Error::usage("the table has no order of keys"))
    }

    fn len(&mut self) -> Result<u64> {
        Err(Error::usage("the table does not count its pairs"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_finds_what_was_put_and_says_what_does_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        // 66 slots rounded up to 80, for 70 keys: probes go past others and around the end.
        let table = open(dir.path(), 150).unwrap();
        let key = |number: u8| [number; KEY];
        let mut session = table.session().unwrap();
        session.put_all(&mut (1..=70).map(|number| (key(number).to_vec(), vec![number; 150]))).unwrap();
        session.put(&key(3), b"new").unwrap();
        let value = |session: &mut Box<dyn Session + '_>, number: u8| {
            let mut found = Vec::new();
            session.read(&mut |reader| reader.get(&key(number), &mut |bytes| found.push(bytes.to_vec()))).unwrap();
            found
        };
        assert_eq!(value(&mut session, 3), [b"new".to_vec()]);
        assert!((4..=70).all(|number| value(&mut session, number) == [vec![number; 150]]));
        assert!(value(&mut session, 99).is_empty());
        assert!(session.put(&key(1), &[1; 225]).unwrap_err().to_string().contains("225"));
        assert!(session.put(b"short", b"value").unwrap_err().to_string().contains("key of 5"));
        session.put_all(&mut (71..=80).map(|number| (key(number).to_vec(), vec![number; 150]))).unwrap();
        assert!(session.put(&key(81), b"more").unwrap_err().to_string().contains("full"));
    }
}
