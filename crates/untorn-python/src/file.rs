//! `File`, `Transaction` and `Snapshot`: copy in, copy out.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use untorn::backup::BackupOptions;
use untorn::{AtomicFile, EngineKind, Options};

use crate::errors::raise;
use crate::map::SnapshotMap;
use crate::options::{commit_log_of, parse};

/// The value, also after a panic of another thread: no invariant of the values here spans a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of an object with the buffer protocol, as no other thread can change them.
///
/// # Errors
/// `BufferError` unless they lie one behind the other.
pub(crate) fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    // A memoryview's `cast("B")` gives the bytes of any element type.
    let view = pyo3::types::PyMemoryView::from(data)?;
    let flat = view.call_method1("cast", ("B",)).map_err(|_| PyBufferError::new_err("the data is not contiguous"))?;
    PyBuffer::<u8>::get(&flat)?.to_vec(data.py())
}

fn backup_options(replace: bool, verify: bool, since: Option<u64>) -> BackupOptions {
    let options = BackupOptions::new().replace(replace).verify(verify);
    since.map_or(options.clone(), |since| options.since(since))
}

/// Refuses a range that is not within the file, before memory for it is asked for.
fn within(py: Python<'_>, path: &Path, offset: u64, size: usize, file_len: u64) -> PyResult<()> {
    if offset.checked_add(size as u64).is_some_and(|end| end <= file_len) {
        return Ok(());
    }
    Err(raise(py, untorn::Error::OutOfRange { path: path.to_owned(), offset, len: size as u64, file_len }))
}

/// Reads into a new `bytes` object without the interpreter's lock.
fn read_bytes(
    py: Python<'_>,
    size: usize,
    read: impl Fn(&mut [u8]) -> untorn::Result<()> + Send + Sync,
) -> PyResult<Bound<'_, PyBytes>> {
    PyBytes::new_with(py, size, |bytes| py.detach(|| read(bytes)).map_err(|error| raise(py, error)))
}

/// Reads into a writable buffer.
fn read_into(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    read: impl Fn(&mut [u8]) -> untorn::Result<()> + Send + Sync,
) -> PyResult<usize> {
    let flat = pyo3::types::PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
    let buffer = PyBuffer::<u8>::get(&flat)?;
    let mut bytes = vec![0; buffer.len_bytes()];
    py.detach(|| read(&mut bytes)).map_err(|error| raise(py, error))?;
    buffer.copy_from_slice(py, &bytes)?;
    Ok(bytes.len())
}

/// A file whose changes commit together. `untorn.open` makes one.
#[pyclass(frozen, subclass, module = "untorn._untorn")]
pub(crate) struct File {
    path: PathBuf,
    file: RwLock<Option<AtomicFile>>,
}

impl File {
    /// Calls `act` with the open file, without the interpreter's lock.
    fn with<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&AtomicFile) -> untorn::Result<T> + Send) -> PyResult<T> {
        let done = py.detach(|| {
            let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
            file.as_ref().map(act)
        });
        done.ok_or_else(|| PyValueError::new_err("the file is closed"))?.map_err(|error| raise(py, error))
    }

    fn take(&self) -> Option<AtomicFile> {
        self.file.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl File {
    /// Opens (`"open"`), creates (`"create"`) or does either (`"either"`).
    #[new]
    #[pyo3(signature = (path, how, size, read_only, engine, durability, shared, commit_log, commit_log_block,
                        commit_log_await))]
    #[allow(clippy::too_many_arguments, reason = "`untorn.open` gives them names and defaults")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        how: &str,
        size: Option<u64>,
        read_only: bool,
        engine: Option<&str>,
        durability: &str,
        shared: bool,
        commit_log: Option<u64>,
        commit_log_block: Option<f64>,
        commit_log_await: bool,
    ) -> PyResult<Self> {
        let mut options = parse(engine, durability)?.read_only(read_only).shared(shared);
        if let Some(log) = commit_log_of(commit_log, commit_log_block, commit_log_await)? {
            options = options.commit_log(log);
        }
        let opened =
            py.detach(|| open(&options, &path, how, size, engine.is_none())).map_err(|error| raise(py, error))?;
        Ok(File { path, file: RwLock::new(Some(opened)) })
    }

    /// Returns `size` bytes from `offset` on, all as of one instant.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file_len = self.with(py, |file| Ok(file.len()))?;
        within(py, &self.path, offset, size, file_len)?;
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner).clone();
        let file = file.ok_or_else(|| PyValueError::new_err("the file is closed"))?;
        read_bytes(py, size, |bytes| file.read_at(bytes, offset))
    }

    /// Fills a writable buffer with the bytes from `offset` on, all as of one instant. Returns their number.
    fn readinto_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner).clone();
        let file = file.ok_or_else(|| PyValueError::new_err("the file is closed"))?;
        read_into(py, buffer, |bytes| file.read_at(bytes, offset))
    }

    /// Writes the bytes of `data` at `offset`, all or nothing.
    fn write_at(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes_of(data)?;
        self.with(py, |file| file.write_at(&bytes, offset))
    }

    /// Begins a transaction. As a context manager it commits at the end, and rolls back on an exception.
    fn transaction(slf: Py<Self>) -> Transaction {
        Transaction { file: slf, writes: Mutex::new(Some(Vec::new())) }
    }

    /// Makes all that was written durable, and returns the number of the commit.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, AtomicFile::sync)
    }

    /// Holds the file as it is at its last commit, for reading, while writers go on.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        let snapshot = self.with(py, AtomicFile::snapshot)?;
        Ok(Snapshot { snapshot: RwLock::new(Some(snapshot)) })
    }

    /// Copies the last commit to the new file `dest`, with a manifest of checksums, while writers go on.
    /// With `since`, only what commits changed after that one, by the file's commit log.
    #[pyo3(signature = (dest, *, replace = false, verify = false, since = None))]
    fn backup<'py>(
        &self,
        py: Python<'py>,
        dest: PathBuf,
        replace: bool,
        verify: bool,
        since: Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = backup_options(replace, verify, since);
        let backup = self.with(py, |file| untorn::backup::create(&file.snapshot()?, &dest, &options))?;
        let told = PyDict::new(py);
        told.set_item("commit", backup.commit)?;
        told.set_item("len", backup.len)?;
        told.set_item("bytes", backup.bytes)?;
        told.set_item("since", backup.base)?;
        Ok(told)
    }

    /// Changes the length. New bytes are zeros. With the engines "reflection" and "shadow" this commits, with all that
    /// was written.
    fn resize(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.resize(size))
    }

    /// Commits and closes. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.take().map_or(Ok(()), AtomicFile::close)).map_err(|error| raise(py, error))
    }

    /// Closes without a commit: with durability "commit", what was written since the last one is gone.
    fn discard(&self, py: Python<'_>) {
        py.detach(|| drop(self.take()));
    }

    /// The state of the file, as a dictionary.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.with(py, |file| Ok(file.info()))?;
        let told = PyDict::new(py);
        told.set_item("engine", info.engine.as_str())?;
        told.set_item("len", info.len)?;
        told.set_item("commit", info.commit)?;
        told.set_item("committed", info.committed)?;
        told.set_item("durability", info.durability.as_str())?;
        told.set_item("sidecar", info.sidecar.as_ref().map(|sidecar| sidecar.as_os_str()))?;
        Ok(told)
    }

    /// The length in bytes.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |file| Ok(file.len() as usize))
    }

    /// A file is true, however short it is.
    fn __bool__(&self) -> bool {
        true
    }

    /// The path that the file was opened by.
    #[getter]
    fn name(&self) -> &OsStr {
        self.path.as_os_str()
    }

    fn __fspath__(&self) -> &OsStr {
        self.path.as_os_str()
    }

    /// Whether the file is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.file.read().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let closed = if self.closed(py) { ", closed" } else { "" };
        format!("<untorn.File {}{closed}>", self.path.display())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (exception, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if exception.is_some() {
            self.discard(py);
            return Ok(());
        }
        self.close(py)
    }
}

fn open(options: &Options, path: &Path, how: &str, size: Option<u64>, any_engine: bool) -> untorn::Result<AtomicFile> {
    let file = match (how, size) {
        ("open", _) => options.open(path)?,
        ("create", size) => options.create(path, size.unwrap_or(0))?,
        ("truncate", size) => {
            // Under `reflection` a change of the length commits at once, and the old bytes must stay until the caller
            // commits.
            let options = if any_engine { options.clone().engine(EngineKind::HybridLog) } else { options.clone() };
            let opened = match options.open_or_create(path, size.unwrap_or(0)) {
                Err(untorn::Error::OtherEngine { .. }) if any_engine => {
                    untorn::recover(path, &Options::new())?;
                    options.open_or_create(path, size.unwrap_or(0))
                }
                opened => opened,
            };
            let file = opened?;
            file.resize(0)?;
            file.resize(size.unwrap_or(0))?;
            file
        }
        (_, size) => options.open_or_create(path, size.unwrap_or(0))?,
    };
    if let Some(size) = size.filter(|size| *size > file.len()) {
        file.resize(size)?;
    }
    Ok(file)
}

/// Offsets, and what to write there.
type Writes = Vec<(u64, Vec<u8>)>;

/// Writes that commit together.
#[pyclass(frozen, module = "untorn._untorn")]
pub(crate) struct Transaction {
    file: Py<File>,
    /// `None` once it has ended.
    writes: Mutex<Option<Writes>>,
}

fn ended() -> PyErr {
    PyValueError::new_err("the transaction has ended")
}

#[pymethods]
impl Transaction {
    /// Adds a write. Readers of the file don't see it before the commit.
    fn write_at(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes_of(data)?;
        // The range is checked now, where the caller's mistake is, and not at the commit.
        self.file.get().with(py, |file| file.transaction().write_at(&bytes, offset))?;
        lock(&self.writes).as_mut().ok_or_else(ended)?.push((offset, bytes));
        Ok(())
    }

    /// Returns `size` bytes from `offset` on, with this transaction's own writes.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = self.file.get().read_at(py, offset, size)?.as_bytes().to_vec();
        for (at, written) in lock(&self.writes).as_ref().ok_or_else(ended)? {
            let (from, to) = (offset.max(*at), (offset + size as u64).min(at + written.len() as u64));
            if from < to {
                let source = &written[(from - at) as usize..(to - at) as usize];
                bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(PyBytes::new(py, &bytes))
    }

    /// Makes the writes durable, all or none, with all that was written to the file before. Returns the commit's
    /// number.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        let writes = lock(&self.writes).take().ok_or_else(ended)?;
        self.file.get().with(py, |file| {
            let mut transaction = file.transaction();
            for (offset, bytes) in &writes {
                transaction.write_at(bytes, *offset)?;
            }
            transaction.commit()?;
            file.sync()
        })
    }

    /// Forgets the writes.
    fn rollback(&self) {
        lock(&self.writes).take();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (exception, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        // One that the block has ended itself stays as it ended.
        let open = lock(&self.writes).is_some();
        match (exception.is_some(), open) {
            (false, true) => self.commit(py).map(drop),
            _ => {
                self.rollback();
                Ok(())
            }
        }
    }
}

/// A file as it was at one commit. `File.snapshot`, `Map.snapshot` and `untorn.snapshot` make one.
#[pyclass(frozen, module = "untorn._untorn")]
pub(crate) struct Snapshot {
    pub(crate) snapshot: RwLock<Option<untorn::Snapshot>>,
}

impl Snapshot {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&untorn::Snapshot) -> untorn::Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            let snapshot = self.snapshot.read().unwrap_or_else(PoisonError::into_inner);
            snapshot.as_ref().map(act)
        });
        done.ok_or_else(|| PyValueError::new_err("the snapshot is closed"))?.map_err(|error| raise(py, error))
    }
}

#[pymethods]
impl Snapshot {
    /// Takes a snapshot of a file that another process may have open.
    #[staticmethod]
    fn _open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let snapshot = py.detach(|| untorn::Snapshot::open(&path)).map_err(|error| raise(py, error))?;
        Ok(Snapshot { snapshot: RwLock::new(Some(snapshot)) })
    }

    /// The number of the commit.
    #[getter]
    fn number(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |snapshot| Ok(snapshot.commit()))
    }

    /// Returns `size` bytes from `offset` on.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (path, len) = self.with(py, |snapshot| Ok((snapshot.path().to_owned(), snapshot.len())))?;
        within(py, &path, offset, size, len)?;
        PyBytes::new_with(py, size, |bytes| self.with(py, |snapshot| snapshot.read_at(bytes, offset)))
    }

    /// The whole file at the commit, as memory that never changes: an object with the buffer protocol, for loads.
    fn map(&self, py: Python<'_>) -> PyResult<SnapshotMap> {
        let map = self.with(py, |snapshot| {
            let map = snapshot.map()?;
            map.all()?;
            Ok(map)
        })?;
        Ok(SnapshotMap { map })
    }

    /// Copies the commit to the new file `dest`, with a manifest of checksums.
    /// With `since`, only what commits changed after that one, by the file's commit log.
    #[pyo3(signature = (dest, *, replace = false, verify = false, since = None))]
    fn backup<'py>(
        &self,
        py: Python<'py>,
        dest: PathBuf,
        replace: bool,
        verify: bool,
        since: Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = backup_options(replace, verify, since);
        let backup = self.with(py, |snapshot| untorn::backup::create(snapshot, &dest, &options))?;
        let told = PyDict::new(py);
        told.set_item("commit", backup.commit)?;
        told.set_item("len", backup.len)?;
        told.set_item("bytes", backup.bytes)?;
        told.set_item("since", backup.base)?;
        Ok(told)
    }

    /// Lets go of the commit. Closing again does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.snapshot.write().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// The length in bytes at the commit.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |snapshot| Ok(snapshot.len() as usize))
    }

    /// A snapshot is true, however short it is.
    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}
