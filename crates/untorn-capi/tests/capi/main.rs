//! The C library: headers, symbols, and programs that use it.

#[path = "../common/mod.rs"]
mod common;

mod book;
mod headers;
mod programs;
