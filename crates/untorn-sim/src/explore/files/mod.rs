//! The exploration of one file with an engine: all short sequences of operations, then random scripts, by one thread
//! or two.

mod config;
mod life;
mod model;
mod ops;
mod script;

pub(super) use config::Config;
