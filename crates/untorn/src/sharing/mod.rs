//! What the handles of one open file share: page locks, which pages are calm, gates, and the berths that threads work
//! from; and what processes share: a working copy of a file in memory, or a board with calls to the one of them that has
//! the file open.
//!
//! What the handles share is plain words without pointers, so that it can move into memory shared by several processes.

pub(crate) mod alarm;
pub(crate) mod berths;
pub(crate) mod board;
pub(crate) mod calm;
pub(crate) mod dial;
pub(crate) mod gate;
pub(crate) mod listener;
pub(crate) mod page;
pub(crate) mod place;
pub(crate) mod wire;
pub(crate) mod working;
