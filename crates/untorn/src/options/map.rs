//! What a file has to be opened with to be plain memory.

use std::path::Path;

use super::{Durability, EngineKind, LogPolicy, Options};
use crate::error::{Error, Result};

impl Options {
    /// The options of a map: the hybrid log, redo, durability per commit.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an option that a map cannot have.
    pub(crate) fn for_map(&self, path: &Path) -> Result<Options> {
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
