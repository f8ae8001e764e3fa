//! Rigs that crash real file systems, for what neither a killed process nor a simulated medium can show.
//!
//! [`block`] records what a file system writes to its disk and builds the disks that a power cut may leave. The rigs know
//! nothing of untorn: who uses them brings the workload and the judgement.
#![forbid(unsafe_code)]

pub mod block;
mod error;

pub use error::{Error, Result};
