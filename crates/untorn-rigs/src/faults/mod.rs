//! Makes system calls of the real media fail.
//!
//! A process runs a script of operations on a file of a real file system, traced by `ptrace(2)` (`tracer`). The rig can
//! answer each of its system calls with an errno, or make the call transfer half of its bytes. A run without failures
//! counts the calls. Then, for every call and each applicable errno, a new process runs in which only that call fails.
//! Its reports, and the state that another process then finds on the disk, must match the documented promises.
//! `failures` does the same with the calls of a backup and of a restoration.
//!
//! [`kills`] kills a process before each of its calls that change a file, and looks at what it leaves.
//!
//! The rig shows the view of this program and the next one. The simulator shows the effect of a power cut: successful
//! flushes are not executed here.

mod backups;
mod calls;
mod failures;
mod judge;
pub mod kills;
mod report;
mod rig;
mod script;
mod tracer;
mod verbs;
mod victim;

pub use rig::{Outcome, Program, Settings, run};
pub use victim::victim;
