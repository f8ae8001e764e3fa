//! What can be promised at a path, and why.

use std::path::{Path, PathBuf};

use crate::engine::EngineKind;
use crate::error::Result;
use crate::medium::{MediumKind, explain};
use crate::options::Durability;

/// What [`doctor`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// What was examined.
    pub path: PathBuf,
    /// What the path is on.
    pub medium: MediumKind,
    /// Whether a commit survives a power cut there.
    pub durable: bool,
    /// The engine that [`EngineKind::Auto`] stands for there.
    pub engine: EngineKind,
    /// When a write is durable by default.
    pub durability: Durability,
    /// How plain stores are tracked; "none" as long as no engine of this version serves plain stores.
    pub dirty_tracking: &'static str,
    /// Why, in sentences.
    pub reasons: Vec<String>,
}

/// Examines the kernel, the file system and the CPU at `path` (a file or a directory). It creates and removes a small
/// probe file where `path` is a directory, and changes nothing else.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let found = untorn::doctor(dir.path())?;
/// assert!(!found.reasons.is_empty());
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`crate::Error::Io`] where the path cannot be examined.
pub fn doctor(path: impl AsRef<Path>) -> Result<Diagnosis> {
    let path = path.as_ref();
    let (found, mut reasons) = explain(path)?;
    let pmem = matches!(found.kind, MediumKind::PersistentMemory | MediumKind::AssumedPmem);
    let durability = if pmem { Durability::PerWrite } else { Durability::PerCommit };
    reasons.push(format!(
        "The engine is {} with durability {durability}: {}.",
        EngineKind::Reflection,
        if pmem { "a fence costs less than a microsecond" } else { "a commit costs a device flush" }
    ));
    reasons.push(format!(
        "For a program that writes a lot between two syncs, choose the engine {}: what its commit costs, {}, does not \
         depend on how much was written.",
        EngineKind::HybridLog,
        if pmem { "a fence" } else { "a device flush" }
    ));
    reasons.push("Plain stores into a mapping are served by no engine of this version.".to_owned());
    reasons.push(
        "A page that is lost under a mapping (the file truncated, the disk full, the medium failed) is an error of the call \
         that comes upon it, not a SIGBUS, unless the program handles SIGBUS itself from later on."
            .to_owned(),
    );
    Ok(Diagnosis {
        path: path.to_owned(),
        medium: found.kind,
        durable: found.durable,
        engine: EngineKind::Reflection,
        durability,
        dirty_tracking: "none",
        reasons,
    })
}
