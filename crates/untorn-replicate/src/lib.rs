//! Replicates the commits of an untorn file to an object store, and restores the file from there.
//!
//! A *replica* is a prefix in a store: an ownership record, snapshots of the file, and a chain of objects, each with a
//! group of commits. One writer owns it at a time. The store's compare-and-swap decides which one, and no clock does.
//! `docs/replication.md` in the repository has the protocol, its proof, and the format.
//!
//! | task | here |
//! |---|---|
//! | ship the commits of a file | [`Replica`] |
//! | restore a file | [`restore()`] |
//! | keep a local copy up to date | [`Follower`] |
//! | see what a replica has | [`look`] |
//! | find out whether a store is fit for it | [`store::probe`] |
//!
//! Two durabilities must not be confused. [`AtomicFile::sync`](untorn::AtomicFile::sync) means that a commit survives a
//! crash of this machine. [`Replica::sync_replicated`] means that it survives the loss of the machine.
#![deny(unsafe_code)]

mod error;
mod follow;
mod format;
mod image;
mod ltx;
mod note;
mod options;
mod protocol;
mod replica;
mod report;
mod restore;
mod ship;
mod shipped;
pub mod store;
#[doc(hidden)]
pub mod testing;

pub use error::{Error, Result};
pub use follow::{FollowOptions, Followed, Follower, FollowerStatus};
pub use ltx::{LtxReport, export_ltx};
pub use options::{ReplicaOptions, WhenBehind};
pub use replica::{Replica, ReplicaStatus};
pub use report::{ReplicaReport, SnapshotReport, look};
pub use restore::{RestoreOptions, Restored, restore, restore_with};
pub use shipped::already_shipped;

/// Random bytes from the kernel.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
