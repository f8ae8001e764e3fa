//! What the tests of every crate share.
//!
//! - [`skip!`], [`needs!`]: a test that cannot run on this machine records why. `cargo test --workspace` prints all
//!   reasons in one summary at its end (`xtask/tests/skips.rs`).
//! - [`again`]: starts one test of the calling binary in a process of its own; [`test_name!`] and [`sibling!`] are the
//!   names it takes.
//! - [`isolated`]: starts one test in a mount namespace of its own.
//! - [`built`]: the tool, the C library and the preload library, for tests of other programs.
//! - [`programs`]: unmodified programs under `untorn run`, and bare.
//! - [`documents`]: the code blocks of the README and of the book, which tests run.
//! - [`sqllogictest`]: scripts of SQL with their results, on SQLite with the VFS.
//! - [`SplitMix`] and [`seed`]: random choices that a failure message can repeat; [`cases`]: how many of them.
//!
//! Nothing here depends on the product, so every crate may use it, the lowest included.

mod build;
pub mod documents;
mod process;
pub mod programs;
mod random;
pub mod skips;
pub mod sqllogictest;

pub use build::built;
pub use process::{again, find_program, is_root, isolated};
#[doc(hidden)]
pub use process::{in_crate, name_of};
pub use random::{SplitMix, cases, seed};
