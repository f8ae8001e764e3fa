//! The protocol: one writer owns the chain of objects, and readers follow it. `docs/replication.md` has the proof.
//!
//! Nothing here reads a clock or lists a store. [`access`] repeats requests, [`owner`] writes, [`chain`] reads, and
//! [`rebuild`] makes a file of what it reads.

pub(crate) mod access;
pub(crate) mod bundles;
pub(crate) mod chain;
pub(crate) mod owner;
pub(crate) mod rebuild;

#[cfg(test)]
mod explore;
