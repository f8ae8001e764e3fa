//! For fuzz targets: a restoration into memory from any store.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::protocol::access::Access;
use crate::protocol::chain::Target;
use crate::protocol::rebuild::{Image, rebuild};
use crate::store::Store;

/// A file in memory. A longer one is refused, as a disk would.
struct Memory {
    bytes: Vec<u8>,
    most: u64,
}

impl Image for Memory {
    fn resize(&mut self, len: u64) -> Result<()> {
        if len > self.most {
            return Err(Error::Invalid { what: format!("a file of {len} bytes is too long") });
        }
        self.bytes.resize(len as usize, 0);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = usize::try_from(offset).ok().and_then(|start| Some(start..start.checked_add(bytes.len())?));
        match end.and_then(|range| self.bytes.get_mut(range)) {
            Some(place) => place.copy_from_slice(bytes),
            None => return Err(Error::Invalid { what: format!("a write at {offset} is outside of the file") }),
        }
        Ok(())
    }
}

/// The last state of the replica in a store, of at most so many bytes.
///
/// # Errors
/// As for [`restore`](crate::restore()).
pub fn restored(store: Arc<dyn Store>, most: u64) -> Result<Vec<u8>> {
    let mut memory = Memory { bytes: Vec::new(), most };
    rebuild(&Access::new(store), Target::Latest, &mut memory, &mut |_| Ok(()))?;
    Ok(memory.bytes)
}
