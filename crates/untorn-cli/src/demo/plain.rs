//! The plain writer's mapping, as a program without untorn does it.
//!
//! # Safety
//! This is the tool's only unsafe code. It maps a file that the demo has just created in its own new directory, so no
//! other process changes or truncates the file while it is mapped. The parent reads the file only after this process
//! is dead.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::path::Path;

use memmap2::MmapMut;

use crate::exit::{Failure, Result};

/// Maps the whole file, shared and writable.
pub(crate) fn map(path: &Path) -> Result<MmapMut> {
    let file =
        OpenOptions::new().read(true).write(true).open(path).map_err(|error| Failure::io_at("open", path, &error))?;
    // SAFETY: as the module says, no one else changes or truncates the file while the map exists, and the map is the
    // only one of this process.
    let map = unsafe { MmapMut::map_mut(&file) };
    map.map_err(|error| Failure::io_at("map", path, &error))
}
