//! A file system over a directory whose files never tear.
#![forbid(unsafe_code)]

pub mod attach;
