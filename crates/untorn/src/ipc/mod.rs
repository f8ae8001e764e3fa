//! How processes that share a file find each other, exchange messages, and share memory.
//!
//! This is a floor, not a product: `shared` builds shared files on it, and `region` builds shared regions.
//!
//! Reading order:
//! 1. [`rendezvous`]: the place where processes meet, and the lock that its owner holds.
//! 2. [`connection`], [`message`], [`listener`]: the messages between them.
//! 3. [`membership`]: joining, serving, and taking over.
//! 4. [`rpc`]: an area in shared memory through which the owner executes the calls of other processes.
//! 5. [`memory`]: shared memory with a consistent cut through the stores of all processes.

pub(crate) mod connection;
pub(crate) mod listener;
pub(crate) mod membership;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod rendezvous;
pub(crate) mod rpc;
mod wait;
mod words;
