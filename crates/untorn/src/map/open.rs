//! The last step of opening a map.

use std::path::Path;

use super::AtomicMap;
use crate::engine::{self, EngineKind};
use crate::error::{Error, Result};
use crate::options::{Durability, LogPolicy, Options};
use crate::sys::sync::Arc;

impl Options {
    /// Opens an existing file as plain memory, and recovers it if it stands at a crash.
    ///
    /// The engine is [`EngineKind::HybridLog`], durability [`Durability::PerCommit`], the log redo. Opened
    /// [`read_only`](Options::read_only), what is stored to the memory stays there, and commits fail.
    ///
    /// # Errors
    /// What [`Error`] lists, [`Error::InUse`] too if this process has the file open otherwise; [`Error::Invalid`] for an engine
    /// or durability that a map can't have; the file is unchanged then.
    pub fn map(&self, path: impl AsRef<Path>) -> Result<AtomicMap> {
        let options = self.for_map(path.as_ref())?;
        AtomicMap::new(engine::open(path.as_ref(), &options)?, &options)
    }

    /// Creates a file of `len` zero bytes and opens it as plain memory.
    ///
    /// # Errors
    /// As for [`map`](Options::map), and if the file exists.
    pub fn create_map(&self, path: impl AsRef<Path>, len: u64) -> Result<AtomicMap> {
        let options = self.for_map(path.as_ref())?;
        let shared = engine::create(path.as_ref(), len, &options)?;
        let made = Arc::clone(&shared);
        AtomicMap::new(shared, &options).inspect_err(|error| engine::abandon(made, error))
    }

    pub(super) fn for_map(&self, path: &Path) -> Result<Options> {
        let refuse = |what: &str| Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() });
        if !matches!(self.engine, EngineKind::Auto | EngineKind::HybridLog) {
            return refuse("plain loads and stores are committed by the hybrid-log engine, not by another one");
        }
        if self.durability == Some(Durability::PerWrite) {
            return refuse("plain stores are durable once they are committed; durability per write is for AtomicFile");
        }
        if self.log_policy == LogPolicy::Undo {
            return refuse(
                "what a map commits is logged as redo: it stores to nothing before the commit that could be undone",
            );
        }
        if self.shared {
            return refuse("an AtomicMap belongs to one process; plain stores of several are committed by a SharedMap");
        }
        let mut options = self.clone();
        if !self.read_only {
            options.engine = EngineKind::HybridLog;
        }
        options.durability = Some(Durability::PerCommit);
        options.log_policy = LogPolicy::Redo;
        options.exclusive = !self.read_only;
        Ok(options)
    }
}
