//! Appending to a log from several processes.

mod append;
mod group;
