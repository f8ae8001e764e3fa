//! The log of a write cache, as several processes append to it.
//!
//! The process that serves a run keeps the log. A write through its socket would take many times as long as the write
//! itself, so the processes of the run append to the log themselves: by stores on persistent memory, by system calls
//! on a disk. This crate has what they must agree on, once: the [entry](Entry), the [ledger](SharedState), which says
//! where each process may write, how a process [appends](append()) an entry, and how processes that wait for a disk
//! [share a flush](SharedState::flush_together).
//!
//! # Invariants
//!
//! 1. A process appends for a file only while it holds that file's [turn](FileLock), a robust lock: the kernel
//!    reports if its holder died. The operations of a file therefore have one order, in the log and in the kernel.
//! 2. Positions are allocated from one atomic word that also names the previous owner. Each process that allocates
//!    positions first records that owner's. The server therefore knows for certain whether a dead process had been
//!    given any.
//! 3. Entries are durable before the kernel has the bytes (on a disk with durability per sync: they are in the log),
//!    and complete when it has them. Only complete entries are drained, and drained entries are synced. The server
//!    repeats what a dead process has not completed, or declares it void if the log does not have all of it; then the
//!    kernel has nothing of it.
//! 4. If the kernel takes less than the log has, the turn belongs to the server alone until the tail has passed the
//!    entry, so that no process builds on bytes that a replay would not leave.
//! 5. A part of the log's entries is for processes, the rest for the server, each with its own count. Processes and
//!    the server therefore never wait for each other's claims.

mod append;
mod entry;
pub mod environment;
pub mod flush;
mod group;
mod ledger;
mod robust;
mod turn;

pub use append::{Appender, Change, Left, MOST_PARTS, Outcome, Step, Write, append, left, now, pieces};
pub use entry::{Entry, Geometry, HEADER, Kind, MAX_NUMBER, PAGE, TABLE_AT, TAIL_AT, place_seed, sum};
pub use group::{Flushed, Flusher};
pub use ledger::{Phase, SharedState, Terms, Way};
pub use turn::{FileLock, Locked};
