//! Rigs that cut the power under real kernels and file systems, and make their calls fail. They cover what the
//! simulated medium of `untorn-sim` cannot.
//!
//! - [`block`] records a file system's writes to its disk, and builds the disks that a power cut may leave.
//! - [`dax`] kills emulated machines with persistent memory.
//! - `faults`, on x86-64, makes system calls fail.
//! - [`injection`] damages protected files.
//!
//! A rig needs tools and privileges that not every machine has. It reports exactly what is missing and how to get it
//! ([`Error::Missing`]).
#![forbid(unsafe_code)]

pub mod block;
pub mod dax;
mod error;
#[cfg(target_arch = "x86_64")]
pub mod faults;
pub mod injection;

pub use error::{Error, Result};
