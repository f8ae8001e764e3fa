//! What can be promised at a path, and why.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::engine::EngineKind;
use crate::error::Result;
use crate::options::{DirtyTracking, Durability, LostPage};
use crate::storage::{MediumKind, explain};
use crate::sys::map::{FileMap, MapKind};
use crate::sys::page_size;
use crate::sys::tracking::Tracking;

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
    /// How an [`AtomicMap`](crate::AtomicMap) finds out what was stored to: the word for a
    /// [`DirtyTracking`](crate::DirtyTracking), or "none" where it can't, for the reason given.
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
    let wanted = match found.kind {
        MediumKind::PersistentMemory => DirtyTracking::PageTable,
        _ => DirtyTracking::Auto,
    };
    let dirty_tracking = match tracking(wanted) {
        Ok(method) => {
            reasons.push(why(method));
            method.as_str()
        }
        Err(error) => {
            reasons.push(format!("Plain stores into a mapping cannot be served: {error}."));
            "none"
        }
    };
    reasons.push(match crate::sys::userfault::probe() {
        Ok(()) => "Several processes can share a file as plain memory (SharedMap). There read(2) and the like into the memory fail \
                   with EFAULT unless `open_to_kernel` was called for the range since the last commit; `read_from` gets through."
            .to_owned(),
        Err(error) => format!("Several processes cannot share a file as plain memory (SharedMap): {error}."),
    });
    reasons.push(log(found.kind, found.durable).to_owned());
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
        dirty_tracking,
        reasons,
    })
}

/// What a log of a write cache there would promise to programs.
fn log(kind: MediumKind, durable: bool) -> &'static str {
    match (kind, durable) {
        (MediumKind::PersistentMemory, _) => {
            "As a log of `untorn run --mode boost` (durability write): each write is durable when its call returns."
        }
        (MediumKind::AssumedPmem, _) => {
            "As a log of `untorn run --mode boost` (durability write): each write is durable when its call returns, as far as \
             the memory is, which is NOT through a power cut."
        }
        (_, true) => {
            "As a log of `untorn run --mode boost` (durability fsync): what a program wrote to a file is durable when its fsync \
             returns, for one flush of this device; before that it survives a kill, not a power cut. With --durability write \
             each write is durable when its call returns, for a flush each."
        }
        (_, false) => {
            "A log of `untorn run --mode boost` is refused here: what programs sync to files on a disk would not survive a \
             power cut any more."
        }
    }
}

/// How stores are found out, by trying it on a page of a file in memory.
fn tracking(wanted: DirtyTracking) -> io::Result<DirtyTracking> {
    let file = rustix::fs::memfd_create("untorn-probe", rustix::fs::MemfdFlags::CLOEXEC)?;
    let page = page_size() as u64;
    rustix::fs::ftruncate(&file, page)?;
    let memory = FileMap::new(file.as_fd(), MapKind::Private, page, page, LostPage::Signal)?;
    Ok(Tracking::new(memory.address(0) as usize, page_size(), wanted)?.method())
}

fn why(method: DirtyTracking) -> String {
    let how = match method {
        DirtyTracking::PageTable => {
            "are found by whose each page is, the file's or the process's own, and committed pages go to the file at once: \
             asynchronous write protection (userfaultfd and PAGEMAP_SCAN, Linux 6.7) is not to be had from this kernel, by \
             this process, or on this medium"
        }
        _ => "are found by asynchronous write protection (userfaultfd and PAGEMAP_SCAN)",
    };
    format!(
        "Plain stores into an AtomicMap {how}. None of them has to wait for another process or thread, and read(2) into the \
         map counts as a store."
    )
}
