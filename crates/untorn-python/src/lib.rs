//! The native half of the Python package `untorn`: the classes whose memory and locks are the library's. Everything
//! that is Python's own (signatures in the manner of `open` and `numpy.memmap`, pickling, adapters) is in `python/`.
//!
//! - [`errors`]: the library's errors as Python exceptions.
//! - [`options`]: words of Python's arguments as the library's options.
//! - [`file`]: files, their transactions and snapshots.
//! - [`commits`]: the stream of the commits of a file.
//! - [`map`]: files as memory, with the buffer protocol.
//! - The VFS of SQLite, `sqlite3_untorn_init`: this module is a loadable extension of SQLite, too.
//!
//! # Invariants
//!
//! 1. No call that may wait for a disk, a lock or another process holds the interpreter's lock.
//! 2. Bytes that other threads may change are copied before they go to an engine, whose checksum is over the copy.
//! 3. The memory of a map outlives every buffer that was made of it: closing is refused meanwhile.
//! 4. No panic and no signal of a lost page reaches the interpreter: PyO3 turns the one into an exception, the library
//!    the other into an error of the next call.

#![deny(unsafe_code)]

mod commits;
mod errors;
mod file;
mod map;
mod options;

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

// Its entry is for SQLite, not for Rust.
use untorn_sqlite as _;

use self::errors::raise;

/// Brings a file that was not closed cleanly to its last commit. Opening it for writing does the same.
#[pyfunction]
#[pyo3(signature = (path, *, adopt = false))]
fn recover<'py>(py: Python<'py>, path: PathBuf, adopt: bool) -> PyResult<Bound<'py, PyDict>> {
    let options = untorn::Options::new().adopt(adopt);
    let recovery = py.detach(|| untorn::recover(&path, &options)).map_err(|error| raise(py, error))?;
    let told = PyDict::new(py);
    told.set_item("was_needed", recovery.was_needed)?;
    told.set_item("replayed", recovery.replayed)?;
    told.set_item("discarded", recovery.discarded)?;
    Ok(told)
}

/// Looks at a file without changing it.
#[pyfunction]
fn inspect<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
    let report = py.detach(|| untorn::inspect(&path)).map_err(|error| raise(py, error))?;
    let told = PyDict::new(py);
    told.set_item("path", report.path.as_os_str())?;
    told.set_item("engine", report.engine.map(|engine| engine.as_str()))?;
    told.set_item("len", report.len)?;
    told.set_item("commit", report.commit)?;
    told.set_item("committed", report.committed)?;
    told.set_item("state", options::state(report.state))?;
    told.set_item("sidecar", report.sidecar.as_ref().map(|sidecar| sidecar.path.as_os_str()))?;
    told.set_item("findings", &report.findings)?;
    Ok(told)
}

#[pymodule(gil_used = false)]
fn _untorn(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<file::File>()?;
    module.add_class::<file::Transaction>()?;
    module.add_class::<file::Snapshot>()?;
    module.add_class::<commits::Commits>()?;
    module.add_class::<commits::Commit>()?;
    module.add_class::<map::Map>()?;
    module.add_class::<map::SnapshotMap>()?;
    module.add_function(wrap_pyfunction!(recover, module)?)?;
    module.add_function(wrap_pyfunction!(inspect, module)?)?;
    module.add_function(wrap_pyfunction!(commits::forget_consumer, module)?)?;
    Ok(())
}
