//! Unmodified programs under `untorn run`.

#[path = "../common/mod.rs"]
mod common;

mod behaviour;
mod containers;
mod coverage;
mod crashes;
mod lives;
mod logs;
mod places;
mod renames;
mod reports;
mod running;
mod space;
mod streams;
mod users;
