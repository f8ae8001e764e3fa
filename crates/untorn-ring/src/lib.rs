//! The log of a write cache as several processes append to it.
//!
//! The process that serves a run keeps the log. A write through its socket would take many times as long as the write itself, so the
//! processes of the run append to the log themselves, on persistent memory by stores, on a disk by system calls. What they have to
//! agree on is here, once: what an [entry](Entry) is, the [ledger](Ledger) of who may write where, how an entry is
//! [appended](append()), and how those who wait for a disk [share a flush](Ledger::flush_together).
//!
//! # What makes it sound
//! 1. A process appends for a file only while it has that file's [turn](Turn), a lock of which the kernel tells when its holder has
//!    died. So operations of a file have one order: in the log, and in the kernel.
//! 2. Positions are handed out by one word, which names who was given the last ones. Whoever takes the next notes that for him
//!    first. So of a process that died it is known for sure whether it had been given any.
//! 3. Entries are durable before the kernel has the bytes (on a disk, where durability is left to a sync: in the log), and complete when it has them: what is complete may be drained, and what
//!    is drained is synced. What a process that died has not completed the server does once more, or declares void if not all of it is
//!    in the log; then the kernel has nothing of it.
//! 4. If the kernel takes less than the log has, the turn is nobody's but the server's until the tail has passed it, so that nobody builds
//!    on what a replay would not leave.
//! 5. Of the entries of a log a part is for processes, and the rest for the server, each with a count of its own. So neither
//!    waits for the other's claims.

mod append;
mod entry;
pub mod flush;
mod group;
mod ledger;
mod robust;
mod turn;

pub use append::{Appender, Change, Left, MOST_PARTS, Outcome, Step, Write, append, left, pieces};
pub use entry::{Entry, Geometry, HEADER, Kind, MAX_NUMBER, PAGE, TABLE_AT, TAIL_AT, place_seed, sum};
pub use group::{Flushed, Flusher};
pub use ledger::{Ledger, Phase, Terms, Way};
pub use turn::{Locked, Turn};
