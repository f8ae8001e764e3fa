//! What the handles of one open file share: page locks, gates, and the berths that threads work from; and what processes
//! share: a working copy of a file in memory.
//!
//! What the handles share is plain words without pointers, so that it can move into memory shared by several processes.

pub(crate) mod berths;
pub(crate) mod gate;
pub(crate) mod page;
pub(crate) mod working;
