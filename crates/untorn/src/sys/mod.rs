//! System calls and raw-memory primitives.
//!
//! With the media above it, the only place for unsafe code: what it offers upwards is safe, or states in a `# Safety`
//! section what the one caller must hold.

pub(crate) mod alive;
pub(crate) mod barrier_of_all_threads;
mod blocked_signal;
pub(crate) mod cached;
pub(crate) mod copy;
pub(crate) mod direct;
pub(crate) mod extents;
pub(crate) mod fault;
pub(crate) mod file;
pub(crate) mod filled;
mod first_use;
pub(crate) mod growing;
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
// The one place where the model checker comes in.
#[cfg_attr(loom, path = "sync_loom.rs")]
pub(crate) mod sync;
pub(crate) mod tracking;
pub(crate) mod userfault;
mod zeroed;

pub(crate) use blocked_signal::BlockedSignal;
pub use first_use::FirstUse;
pub use per_process::{OnceForAll, PerProcess};
pub(crate) use process::page_faults;
pub use process::{in_forked_child, incarnation};
pub(crate) use untorn_ring::{flush, now};
pub(crate) use zeroed::ZeroedArray;

/// Bytes of a page of memory: the unit in which address space is reserved and mapped.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// The time, in nanoseconds since 1970, as the kernel's last tick has it: without a call of the system. Source:
/// `clock_gettime(2)`.
#[inline]
pub(crate) fn coarse_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs())
}

/// When the machine was started, in nanoseconds since 1970; 0 if the kernel does not tell. Source: `proc_uptime(5)`.
pub(crate) fn booted() -> u64 {
    let uptime = || {
        let text = std::fs::read_to_string("/proc/uptime").ok()?;
        let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
        let (seconds, hundredths): (u64, u64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
        seconds.checked_mul(1_000_000_000)?.checked_add(hundredths.checked_mul(10_000_000)?)
    };
    uptime().map_or(0, |uptime| now().saturating_sub(uptime))
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
