//! The exploration of redundancy: a protected file that is stored to, covered, damaged at rest, scrubbed and
//! repaired.
//!
//! The judge does not look at the file's content: it is a plain file and may hold anything after a crash. It judges
//! what redundancy says of the file and does to it:
//!
//! - A page that was not damaged is never accused and never changed.
//! - A page that was covered and was damaged is found and gets its bytes back.
//! - A page that is called covered can indeed be given back.

mod check;
mod config;
mod life;
mod ops;

pub(super) use config::Config;
