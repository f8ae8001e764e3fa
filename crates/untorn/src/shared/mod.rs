//! One file in several processes.
//!
//! [`SharedMap`] shares it as plain memory: any process commits the stores of all as one consistent cut. [`file`] shares it by calls: one process has the
//! file open with its engine and does the calls of the others, behind the same `AtomicFile`. In both, one process *owns* the
//! file, and another takes over when the owner dies.
//!
//! How processes find, hear and wait for each other is the floor below, [`ipc`](crate::ipc). [`negotiated`] is which options hold
//! for all of them.

pub(crate) mod file;
pub(crate) mod map;
pub(crate) mod negotiated;

pub use self::map::SharedMap;
