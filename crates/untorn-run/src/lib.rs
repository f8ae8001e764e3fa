//! Unmodified programs under untorn: `untorn run`.
//!
//! The launcher keeps the managed files open itself and *serves* them. A program that runs under it is given the
//! preload layer (`libuntorn_preload.so`), which passes every call on a managed file on to the launcher, together
//! with the descriptor it was made with. So there is one owner of a file's open epoch, whichever process of the run
//! wrote to it, and the program's own descriptors stay what they are: `dup`, `fork`, `exec`, locks and offsets are
//! the kernel's.
//!
//! # What makes it sound
//! 1. A file's bytes, length and the offsets of its descriptors are changed under one lock per file (`files`), so
//!    calls of all processes have one order.
//! 2. What was written joins the file's open epoch. The epoch is committed by a sync, or when the last descriptor of
//!    the file is gone and none of those who wrote in it died (`processes`): a program that is killed leaves the last
//!    commit, as after a power cut.
//! 3. If one that wrote dies while others hold the file, its epoch is dropped and the others go on; if they wrote in
//!    that epoch too, their bytes would be lost with it, so they are told (EIO) until all have closed the file. One
//!    that is about to end is waited for before anything of its epoch is shown or committed: it lets go of its locks
//!    before its end can be told.
//! 4. Who holds a file is asked of the kernel (`holders`), never counted.
//! 5. A file becomes a plain one again (settled) when nobody of the run has it open any more.
#![forbid(unsafe_code)]

mod board;
mod boost;
mod connection;
mod descriptor;
mod files;
mod holders;
mod launch;
mod managed;
mod maps;
mod processes;
mod program;
mod report;
mod server;
mod service;

pub use launch::{Ended, Launch, NotRun, launch, launch_with_log, survive_size_limits};
pub use managed::{Atomic, Managed, Mode};
pub use program::{Refusal, examine};
pub use report::{Demoted, FileReport, Refused, Report};
