//! What the handles of one open file share: page locks, gates, and the berths that threads work from.
//!
//! All of it is plain words without pointers, so that it can move into memory shared by several processes.

pub(crate) mod berths;
pub(crate) mod gate;
pub(crate) mod page;
