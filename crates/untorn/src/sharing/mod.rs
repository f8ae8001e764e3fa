//! What the handles of one open file share: page locks and gates.
//!
//! All of it is plain words without pointers, so that it can move into memory shared by several processes.

pub(crate) mod berths;
pub(crate) mod gate;
pub(crate) mod page;
