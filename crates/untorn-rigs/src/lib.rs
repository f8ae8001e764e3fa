//! Rigs that cut the power under real kernels and real file systems, where the simulated medium of `untorn-sim` stops.
//!
//! A rig needs programs that not every machine has; each says exactly what is missing and how to get it
//! ([`Error::Missing`]).
#![forbid(unsafe_code)]

pub mod dax;
mod error;

pub use error::{Error, Result};
