//! The exploration of write caches: several files behind one log.
//!
//! One thread uses them. An operation must be durable like this:
//!
//! - Until it returns, it is durable whole or not at all; from then on, whole.
//! - If durability is left to a sync, any of the operations since the last sync may be durable, each whole.
//! - A change of an atomic file is durable with the commit of its epoch, and not before it. Of commits that need not be
//!   durable yet, a crash leaves one, or those before them.
//! - If files are also written through, each byte may be what any of these operations left there.

mod allowed;
mod config;
mod epochs;
mod generator;
mod life;
mod model;
mod opened;
mod ops;

pub(super) use config::Config;
