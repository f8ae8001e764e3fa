//! What several processes that share a file use: how they find each other, talk, and share memory.
//!
//! This is a floor, not a product: `shared` has files in several processes by means of it, `region` has regions.
//!
//! Reading order:
//! 1. [`rendezvous`]: the place where processes meet, and the lock that says who owns the file.
//! 2. [`connection`], [`message`], [`listener`]: how they talk.
//! 3. [`rpc`]: an area in shared memory by which a process has the owner do its calls.
//! 4. [`memory`]: shared memory with a consistent cut through the stores of all processes.

pub(crate) mod connection;
pub(crate) mod listener;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod rendezvous;
pub(crate) mod rpc;
