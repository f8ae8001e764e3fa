//! Rigs that cut the power under real kernels and real file systems, where the simulated medium of `untorn-sim` stops.
//!
//! [`block`] records what a file system writes to its disk and builds the disks that a power cut may leave. [`dax`] kills
//! emulated machines whose memory is persistent. A rig needs what not every machine has; each says exactly what is missing
//! and how to get it ([`Error::Missing`]).
#![forbid(unsafe_code)]

pub mod block;
pub mod dax;
mod error;
pub mod faults;

pub use error::{Error, Result};
