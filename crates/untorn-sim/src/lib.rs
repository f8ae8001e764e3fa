//! A simulated medium that knows what a crash could take, and an explorer that takes it.
//!
//! [`SimMedium`] is a file system in memory with the loss model of persistent memory or of a block device. At any
//! instant its [`CrashState`] enumerates the states that a crash could leave; each [`Image`] boots as a machine of
//! its own, on which an engine recovers. [`explore`] drives the engines through operations, crashes them everywhere,
//! and checks every recovered state against a reference model. [`schedule`] interleaves threads deterministically.
//!
//! Every random decision follows from a seed that is printed, so every finding can be run again.
#![forbid(unsafe_code)]

mod block;
mod choice;
mod content;
mod crash;
mod effects;
pub mod explore;
mod file;
mod image;
mod instant;
mod medium;
mod names;
mod pmem;
mod rng;
pub mod schedule;
pub mod script;
mod world;

pub use choice::{Choice, Choices};
pub use crash::CrashState;
pub use file::SimFile;
pub use image::Image;
pub use instant::{Hook, Instant, Step, Verdict};
pub use medium::SimMedium;
pub use rng::Rng;
pub use world::{Counters, Fault};
