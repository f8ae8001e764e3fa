//! One file in several processes.
//!
//! [`SharedMap`] shares it as plain memory: any process commits the stores of all as one consistent cut. [`file`]
//! shares it by calls: one process has the file open with its engine and executes the calls of the others, behind the
//! same `AtomicFile`. In both, one process *owns* the file, and another takes over when the owner dies.
//!
//! The floor below, `ipc`, lets processes find each other, exchange messages and wait. `negotiated` has
//! the options that apply to all of them.

pub(crate) mod file;
pub(crate) mod map;
pub(crate) mod negotiated;

pub use self::map::SharedMap;
