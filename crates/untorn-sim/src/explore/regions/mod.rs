//! The exploration of region stores: several regions, each with commits of its own.
//!
//! The model is simple, since a region is used by one thread at a time: an operation is durable whole or not at all
//! until it returns, and whole from then on.

mod config;
mod life;
mod ops;
mod store;

pub(super) use config::Config;
