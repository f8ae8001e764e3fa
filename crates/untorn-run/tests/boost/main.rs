//! Unmodified programs with a log in front of their files.

#[path = "../common/mod.rs"]
mod common;

mod boost;
mod boost_append;
mod boost_beside;
mod boost_full;
mod boost_kills;
mod boost_rest;
