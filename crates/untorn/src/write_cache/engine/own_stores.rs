//! The stores of this code to a file whose entries have no times, because a drain decides when the file gets them.
//!
//! # Invariants
//! 1. Before such a store the line of the file says that own stores are under way. After it the line says which
//!    modification time they left. A replay that finds this time, and another one in the file, knows that another
//!    program changed the file ([`changed`](super::changed)).
//! 2. A kill between the two leaves a line from which nothing follows: the replay stores to the file.
//! 3. Both are stored without a fence, always over the copy that no fence has made sure of. The other copy says that
//!    stores are under way, so a tear accuses nobody. Of stores at the same time only the last to end says what it
//!    left. After a power cut the machine is started anew, and then only a
//!    time later than the start counts, whichever of the copies did arrive.

use std::sync::atomic::Ordering;

use super::file::Managed;
use super::format::OwnStores;
use super::{Cache, locked};
use crate::error::Result;
use crate::storage::Medium;

impl<M: Medium> Cache<M> {
    /// Stores to a file that is not written through, and has its line say so before and after. An error on the way
    /// leaves the line as it is before.
    pub(super) fn storing<T>(&self, file: &Managed, store: impl FnOnce() -> Result<T>) -> Result<T> {
        if file.write_through || file.slow.modified()?.is_none() {
            return store();
        }
        self.say(file, |file| {
            file.storing.fetch_add(1, Ordering::AcqRel);
            Ok(Some(OwnStores::UnderWay))
        })?;
        let stored = store();
        let ended = self.say(file, |file| {
            let others = file.storing.fetch_sub(1, Ordering::AcqRel) > 1;
            let left = if others || stored.is_err() { None } else { file.slow.modified()? };
            Ok(left.map(OwnStores::Left))
        });
        stored.and_then(|stored| ended.map(|()| stored))
    }

    /// Has the line say what `stores` decides, with the line locked.
    fn say(&self, file: &Managed, stores: impl FnOnce(&Managed) -> Result<Option<OwnStores>>) -> Result<()> {
        let own = locked(&file.line);
        let Some(stores) = stores(file)? else { return Ok(()) };
        file.late.store(stores.encode(), Ordering::Release);
        if let Some(line) = *own {
            // The number of the next version: that one goes over the same copy, before the other.
            self.put_line_of(file, line.next(), file.uid.load(Ordering::Acquire), line.seq + 1, stores.encode())?;
        }
        Ok(())
    }

    /// What a new line says of a file that has its first entry to come: what is there now is not another program's
    /// answer to it.
    pub(super) fn begin_stores(&self, file: &Managed) -> Result<()> {
        if !file.write_through
            && let Some(modified) = file.slow.modified()?
        {
            file.late.store(OwnStores::Left(modified).encode(), Ordering::Release);
        }
        Ok(())
    }
}
