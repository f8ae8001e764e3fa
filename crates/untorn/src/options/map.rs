//! Which options a map accepts.

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
            return refuse("a map needs the hybrid-log engine; choose EngineKind::Auto or EngineKind::HybridLog");
        }
        if self.durability == Some(Durability::PerWrite) {
            return refuse(
                "a map cannot have durability per write, its stores become durable at commit; use \
                           Durability::PerCommit, or an AtomicFile",
            );
        }
        if self.log_policy == LogPolicy::Undo {
            return refuse(
                "a map cannot use undo logging, it writes to the file only at commit; use the logging policy redo or \
                 hybrid",
            );
        }
        if self.shared {
            return refuse(
                "an AtomicMap belongs to one process; use a SharedMap to share plain stores between \
                           processes",
            );
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
