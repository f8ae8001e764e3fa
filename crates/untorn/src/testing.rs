//! For tests, simulators and the other crates of this repository: nothing here is promised to stay.

use crate::commits::CommitStream;
use crate::engine::snapshot;
pub use crate::engine::snapshot::ReaderView;
use crate::error::Result;
use crate::file::AtomicFile;
use crate::options::EngineKind;
use crate::storage::Barrier;
pub use crate::sys::{FirstUse, OnceForAll, PerProcess, in_forked_child, incarnation};
#[cfg(feature = "write-cache")]
pub use crate::write_cache::on_medium::MediumDir;
use crate::{file, format};
pub use untorn_ring::environment::{has_more_rights_than_its_caller, variable};

/// The engines that keep the promises. What every engine must do is tested with each of them.
pub const ENGINES: [EngineKind; 3] = [EngineKind::Reflection, EngineKind::HybridLog, EngineKind::Shadow];

/// Every barrier an engine of this kind passes, its sidecar's included: the list the mutation tests must convict whole.
pub fn barriers(kind: EngineKind) -> Vec<Barrier> {
    const SIDECAR: &[Barrier] = format::sidecar::barriers::ALL;
    const NUMBER: &[Barrier] = format::sidecar::number::barriers::ALL;
    match kind {
        EngineKind::Auto | EngineKind::Reflection | EngineKind::Shadow => {
            [file::reflection::barriers::ALL, SIDECAR, NUMBER, snapshot::barriers::ALL].concat()
        }
        EngineKind::HybridLog => [file::hybrid_log::barriers::ALL, SIDECAR, NUMBER, snapshot::barriers::ALL].concat(),
        EngineKind::Passthrough => file::passthrough::barriers::ALL.to_vec(),
    }
}

/// Takes a snapshot as a reader in another process does.
///
/// # Errors
/// As for [`AtomicFile::snapshot`].
pub fn reader_view(file: &AtomicFile) -> Result<ReaderView> {
    ReaderView::take(file.shared())
}

/// The commits of a file on any medium, after the one of this number.
///
/// # Errors
/// As for [`CommitStream::open`].
pub fn commits_on<M: crate::storage::Medium>(medium: M, path: &std::path::Path, from: u64) -> Result<CommitStream> {
    let of = crate::engine::commits::LogOf::File;
    let reader = crate::engine::commits::stream::Reader::open(std::sync::Arc::new(medium), path, of, from)?;
    Ok(CommitStream::new(Box::new(reader)))
}

/// Every barrier that a region store passes: the list the mutation tests must convict whole.
#[cfg(feature = "regions")]
pub fn region_barriers() -> Vec<Barrier> {
    crate::region::engine::barriers::ALL.to_vec()
}

/// The barriers of the write cache: for the mutation tests.
#[cfg(feature = "write-cache")]
pub fn cache_barriers() -> Vec<Barrier> {
    crate::write_cache::engine::barriers::ALL.to_vec()
}

/// The barriers that only the redundancy of a sidecar passes: for the mutation tests.
#[cfg(feature = "redundancy")]
pub fn sidecar_redundancy_barriers() -> Vec<Barrier> {
    crate::redundancy::sidecar_barriers::ALL.to_vec()
}

/// The barriers of a commit log: for the mutation tests.
pub fn commit_log_barriers() -> Vec<Barrier> {
    crate::engine::commits::barriers::ALL.to_vec()
}

/// The checks of the commit log of a region: for the mutation tests.
#[cfg(feature = "regions")]
pub fn region_log_barriers() -> Vec<Barrier> {
    crate::engine::commits::part::barriers::ALL.to_vec()
}

/// The barriers of a commit log that a write cache fills: for the mutation tests.
#[cfg(feature = "write-cache")]
pub fn cached_commit_log_barriers() -> Vec<Barrier> {
    crate::engine::commits::appender::barriers::ALL.to_vec()
}

/// The barriers of the consumers of a commit log: for the mutation tests.
pub fn consumer_barriers() -> Vec<Barrier> {
    crate::engine::commits::consumer::barriers::ALL.to_vec()
}

/// The barriers of an adoption: for the mutation tests.
pub fn adoption_barriers() -> Vec<Barrier> {
    format::sidecar::adoption_barriers::ALL.to_vec()
}

/// Every barrier that the redundancy of a file passes: the list the mutation tests must convict whole.
#[cfg(feature = "redundancy")]
pub fn redundancy_barriers() -> Vec<Barrier> {
    crate::redundancy::barriers::ALL.to_vec()
}

/// The manifest of a backup, read and written again; `None` if it is refused.
pub fn manifest(text: &str) -> Option<String> {
    crate::backup::reread(text)
}

/// Media: the traits that a simulator implements, and the real ones.
pub mod storage {
    pub use crate::storage::*;
}

/// Each way of the CPU to do a checksum or parity, to be compared.
pub mod simd {
    pub use crate::simd::*;
}
