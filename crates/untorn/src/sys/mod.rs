//! System calls and raw-memory primitives.
//!
//! With the media above it, the only place for unsafe code: what it offers upwards is safe, or states in a `# Safety`
//! section what the one caller must hold.

pub(crate) mod cached;
pub(crate) mod copy;
pub(crate) mod direct;
pub(crate) mod extents;
pub(crate) mod fault;
pub(crate) mod file;
mod first_use;
pub(crate) mod growing;
pub(crate) mod lease;
pub(crate) mod locks;
pub(crate) mod map;
pub(crate) mod mappings;
#[cfg(feature = "regions")]
pub(crate) mod paged;
mod per_process;
pub(crate) mod permissions;
mod process;
pub(crate) mod ring;
pub(crate) mod runs;
pub(crate) mod shared;
pub(crate) mod size_limit;
pub(crate) mod socket;
mod stores;
// The one place where the model checker comes in.
#[cfg_attr(loom, path = "sync_loom.rs")]
pub(crate) mod sync;
pub(crate) mod tracking;
pub(crate) mod userfault;
mod zeroed;

pub use first_use::FirstUse;
pub use per_process::{OnceForAll, PerProcess};
pub use process::{in_forked_child, incarnation};
pub use stores::{Heard, StoreWatch};
pub(crate) use untorn_ring::{flush, now};
pub(crate) use zeroed::ZeroedArray;

/// Bytes of a page of memory: the unit in which address space is reserved and mapped.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Sixteen random bytes.
///
/// # Errors
/// Those of `getrandom(2)`.
pub(crate) fn random() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
