//! The C library: `untorn.h`, `untorn/acumen.h`, `untorn/nvmmio.h`, `untorn/region.h`, `untorn/libpmem.h`,
//! `untorn/shared.h` and `untorn/protect.h` over the Rust crate.
//!
//! It translates and holds no logic of its own: arguments are checked, errors become numbers, panics stop here. The
//! headers in `include/` are the documentation for C programs; a test keeps them in step with the functions here.

pub mod abi;
pub mod acumen;
mod boundary;
mod by_address;
pub mod commits;
mod descriptor;
mod errors;
pub mod libpmem;
mod mapped;
mod mapping;
pub mod native;
pub mod nvmmio;
mod options;
pub mod plain;
mod pmem;
pub mod protect;
pub mod region;
mod regions;
pub mod shared;
pub mod snapshot;
