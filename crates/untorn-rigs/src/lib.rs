//! Rigs that cut the power under real kernels and real file systems and let their calls fail, where the simulated medium of
//! `untorn-sim` stops.
//!
//! [`block`] records what a file system writes to its disk and builds the disks that a power cut may leave. [`dax`] kills
//! emulated machines whose memory is persistent. `faults`, on x86-64, lets system calls fail. [`injection`] damages
//! protected files. A rig needs what not every machine has; each says exactly what is missing and how to get it
//! ([`Error::Missing`]).
#![forbid(unsafe_code)]

pub mod block;
pub mod dax;
mod error;
#[cfg(target_arch = "x86_64")]
pub mod faults;
pub mod injection;

pub use error::{Error, Result};
