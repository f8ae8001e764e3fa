//! Failing system calls under the real media.
//!
//! A process plays a script of operations on a file of a real file system and is traced (`tracer`, by `ptrace(2)`): each
//! of its system calls can be answered with an errno instead of being carried out, or made to move half of its bytes. An
//! undisturbed run counts the calls; then, for every one of them and each errno that fits, a new process runs in which just
//! that one fails. What it says of its operations, and what another process then finds on the disk, must be what the
//! documentation promises.
//!
//! It shows what a program and the next one see. What a power cut would leave is the simulator's to show: flushes that are
//! to succeed are not carried out here.

mod calls;
mod judge;
mod report;
mod rig;
mod script;
mod tracer;
mod victim;

pub use rig::{Outcome, Program, Settings, run};
pub use victim::victim;
