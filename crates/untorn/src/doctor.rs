//! What untorn can promise for a file at a path, and why.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::engine::{EngineKind, default_engine};
use crate::error::Result;
use crate::options::{DirtyTracking, Durability, LostPage};
use crate::storage::{Explained, MediumClass, MediumKind, explain};
use crate::sys::map::{FileMap, MapKind};
use crate::sys::page_size;
use crate::sys::tracking::Tracking;

/// What [`doctor`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The path examined.
    pub path: PathBuf,
    /// The medium under the path.
    pub medium: MediumKind,
    /// Whether a commit there survives a power cut.
    pub durable: bool,
    /// Why this process cannot create or change files there, in a sentence, if so: a read-only mount, missing
    /// permission, or an interface of the kernel such as `/proc`.
    pub obstacle: Option<String>,
    /// Whether the file system keeps files. An interface of the kernel such as `/proc` does not: the medium, the engine
    /// and the durability have no meaning there, and [`reasons`](Diagnosis::reasons) says nothing of them.
    pub keeps_files: bool,
    /// The engine that [`EngineKind::Auto`] chooses there.
    pub engine: EngineKind,
    /// The default durability there.
    pub durability: Durability,
    /// How an [`AtomicMap`](crate::AtomicMap) finds the pages that were stored to: the name of a
    /// [`DirtyTracking`](crate::options::DirtyTracking) value, or "none" if it cannot. In that case the reason is in
    /// [`reasons`](Diagnosis::reasons).
    pub dirty_tracking: &'static str,
    /// The reasons for these findings, in sentences.
    pub reasons: Vec<String>,
}

/// Examines the kernel, the file system and the CPU at `path` (a file or a directory). If `path` is a directory, it
/// creates and removes a small probe file there. It changes nothing else.
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
/// [`crate::Error::Io`] if the path cannot be examined.
pub fn doctor(path: impl AsRef<Path>) -> Result<Diagnosis> {
    let path = path.as_ref();
    let Explained { detected: found, obstacle, keeps_files, mut reasons } = explain(path)?;
    let pmem = matches!(found.kind, MediumKind::PersistentMemory | MediumKind::AssumedPmem);
    let durability = if pmem { Durability::PerWrite } else { Durability::PerCommit };
    let class = if pmem { MediumClass::PersistentMemory } else { MediumClass::Block };
    let engine = default_engine(class, None, false);
    if !keeps_files {
        return Ok(Diagnosis {
            path: path.to_owned(),
            medium: found.kind,
            durable: found.durable,
            obstacle,
            keeps_files,
            engine,
            durability,
            dirty_tracking: "none",
            reasons,
        });
    }
    reasons.push(format!(
        "The default engine here is {engine} with durability {durability}: {}.",
        if pmem {
            "a fence costs less than a microsecond"
        } else {
            "a commit costs a page of its log and a device flush"
        }
    ));
    reasons.push(if pmem {
        let other = EngineKind::HybridLog;
        format!("If a program writes a lot between two syncs, choose the engine {other}: its commit costs a fence.")
    } else {
        let other = EngineKind::Reflection;
        format!("With durability write, or with redundancy, the default engine here is {other}.")
    });
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
            reasons.push(format!("AtomicMap and plain stores are not available here: {error}."));
            "none"
        }
    };
    reasons.push(match crate::sys::userfault::probe() {
        Ok(()) => {
            "Several processes can share a file as plain memory (SharedMap). read(2) and other system calls into \
                   that memory fail with EFAULT unless `open_to_kernel` was called for the range since the last \
                   commit; `read_from` always works."
                .to_owned()
        }
        Err(error) => format!("Several processes cannot share a file as plain memory (SharedMap): {error}."),
    });
    reasons.push(log(found.kind, found.durable).to_owned());
    reasons.extend(rustix::fs::statfs(path).ok().and_then(|found| on_a_full_disk(found.f_type as u64)));
    reasons.push(
        "If a mapped page is lost (the file truncated, the disk full, the medium failed), the call that accesses it \
         returns an error instead of SIGBUS, unless the program installs its own SIGBUS handler later."
            .to_owned(),
    );
    Ok(Diagnosis {
        path: path.to_owned(),
        medium: found.kind,
        durable: found.durable,
        obstacle,
        keeps_files,
        engine,
        durability,
        dirty_tracking,
        reasons,
    })
}

/// Where space that a file has is not space to write to: file systems that write each page to a new place. By `f_type`.
/// Source: `linux/magic.h`; ZFS and bcachefs.
const COPY_ON_WRITE: [u64; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

/// The promise for a full disk, if it is a weaker one here.
fn on_a_full_disk(file_system: u64) -> Option<String> {
    let what = "This file system writes a page to a new place each time. A full disk can therefore delay a checkpoint, \
                a recovery and a settlement until space is freed; reading goes on. On btrfs, `chattr +C` on a new \
                directory avoids it for files made there.";
    COPY_ON_WRITE.contains(&file_system).then(|| what.to_owned())
}

/// What a log of a write cache there would promise to programs.
fn log(kind: MediumKind, durable: bool) -> &'static str {
    match (kind, durable) {
        (MediumKind::PersistentMemory, _) => {
            "A log of `untorn run --mode boost` here has durability write: each write is durable when its call returns."
        }
        (MediumKind::AssumedPmem, _) => {
            "A log of `untorn run --mode boost` here has durability write: each write survives a kill when its call \
             returns, but NOT a power cut, because the memory is only assumed to be persistent."
        }
        (_, true) => {
            "A log of `untorn run --mode boost` here has durability fsync: a program's writes to a file are durable \
             when its fsync returns, at the cost of one flush of this device; before that they survive a kill, not a \
             power cut. With --durability write each write is durable when its call returns, at the cost of one flush \
             each."
        }
        (_, false) => {
            "`untorn run --mode boost` refuses a log here: data that programs fsync to files on a disk would no longer \
             survive a power cut."
        }
    }
}

/// How stores are found out, by trying it on a page of a file in memory.
fn tracking(wanted: DirtyTracking) -> io::Result<DirtyTracking> {
    let file = rustix::fs::memfd_create("untorn-probe", rustix::fs::MemfdFlags::CLOEXEC)?;
    let page = page_size() as u64;
    crate::sys::file::set_len(&file, page)?;
    let memory = FileMap::new(file.as_fd(), MapKind::Private, page, page, LostPage::Signal)?;
    Ok(Tracking::new(memory.address(0) as usize, page_size(), wanted)?.method())
}

fn why(method: DirtyTracking) -> String {
    let how = match method {
        DirtyTracking::PageTable => {
            "are found in the page table (a stored page is private to the process), and a commit writes its pages to \
             the file at once: asynchronous write protection (userfaultfd and PAGEMAP_SCAN, Linux 6.7) is not \
             available from this kernel, to this process, or on this medium"
        }
        _ => "are found by asynchronous write protection (userfaultfd and PAGEMAP_SCAN)",
    };
    format!(
        "Plain stores into an AtomicMap {how}. No store waits for another process or thread, and read(2) into the map \
         counts as a store."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_copies_on_write_is_named() {
        assert!(COPY_ON_WRITE.into_iter().all(|kind| on_a_full_disk(kind).is_some()));
        // ext4 and xfs.
        assert!([0xef53, 0x5846_5342].into_iter().all(|kind| on_a_full_disk(kind).is_none()));
    }
}
