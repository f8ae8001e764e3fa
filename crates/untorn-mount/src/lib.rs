//! Unmodified programs under untorn: a file system of its own over a directory.
//!
//! A FUSE file system shows the *source*, an ordinary directory. The server passes every operation on to the source,
//! and brings what programs write to *managed* files to the log of a [`WriteCache`](untorn::write_cache::WriteCache)
//! first. It is complete for every program, because programs meet it in the kernel and not in a library.
//!
//! ```text
//!  program ─► kernel ─► /dev/fuse ─► serve: a thread ─► a node: O_PATH descriptor in the source
//!                                         │
//!                                         ├─ names, attributes, plain files ─► the source
//!                                         └─ WRITE of a managed file ─► the log ─► the source ─► the answer
//! ```
//!
//! # Invariants
//!
//! 1. The server reaches a file by the descriptor of its node, never again by a path. So a rename, or a link that
//!    somebody puts in the way, leads no request to another file.
//! 2. Before the server answers a WRITE of a managed file, the log has the bytes. With [`Mode::Boost`] the source has
//!    them too. With [`Mode::Atomic`] the log brings them to the source after their commit, and the server shows them
//!    until then.
//! 3. The server never waits for its own mount: a process of its own pulls ([`pull_for`]). The server refuses a source
//!    that the mount covers by its path.
//! 4. A file with bytes in the log is in the table of managed files. So each operation that a replay must know about
//!    finds it there: truncation, rename, removal.
//! 5. Bytes from the kernel and from the source never reach an unwrap: an answer is a value or an errno.
//!
//! # Lock order
//!
//! 1. Renames of managed files: one at a time.
//! 2. The table of managed files.
//! 3. The state of a managed file.
//! 4. The table of nodes; the table of handles; a directory's stream; the table of locks. Each is a leaf.
//!
//! # Reading order
//!
//! `serve/mod.rs`, `serve/requests.rs` (the requests of the kernel), `serve/nodes.rs`, `serve/names.rs`,
//! `serve/data.rs`, then `serve/managed/`.
#![forbid(unsafe_code)]

pub mod attach;
mod error;
mod serve;

pub use error::{Error, Result};
pub use serve::{
    Globs, Mode, OpenFiles, Report, ServeOptions, Serving, make_log_directory, pull_for, remove_empty_log_directory,
    serve,
};
