//! `Map`: a file as memory, with the buffer protocol.
//!
//! # Safety
//! The memory belongs to the map of the library, which moves it never and unmaps it when it is closed or dropped. Each
//! buffer holds a reference to the Python object, and closing is refused while there is a buffer. So the memory
//! outlives each buffer. The library's own slices of the memory are used by no method here; a commit beside stores
//! copies what it writes.
//!
//! `numpy.ndarray(buffer=m)` and `torch.frombuffer(m)` give their buffer back at once, and go on with the address and a
//! reference to the object. `Map.array` therefore holds the map until its array is gone. Whoever asks for a buffer in
//! another way than a memoryview does may be such a one: from then on each commit allows for stores meanwhile, and when
//! the map is closed, zeros take its addresses until the object goes too.
#![allow(unsafe_code)]

use std::ffi::{OsStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError, RwLock};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use untorn::shared::SharedMap;
use untorn::{AtomicMap, Options};

use crate::errors::raise;
use crate::file::{Snapshot, lock};

/// The library's map.
enum Memory {
    /// One that belongs to this process alone.
    Own(AtomicMap),
    /// One that several processes have.
    Shared(SharedMap),
}

impl Memory {
    fn len(&self) -> usize {
        match self {
            Memory::Own(map) => map.len(),
            Memory::Shared(map) => map.len(),
        }
    }
}

/// How the program may use the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    /// Stores stay in the memory.
    Copy,
    Write,
}

struct Buffers {
    /// Buffers that Python objects hold, and arrays.
    count: usize,
    /// The most bytes that one could have.
    longest: usize,
    /// The length of the next buffer.
    len: usize,
    /// Whether something may store that gave its buffer back.
    untracked: bool,
    closed: bool,
    /// Whether a commit runs that must not meet a store.
    paused: bool,
}

/// A file as memory. `untorn.map` makes one.
#[pyclass(frozen, subclass, weakref, module = "untorn._untorn")]
pub(crate) struct Map {
    path: PathBuf,
    /// The address of the first byte.
    address: usize,
    usage: Use,
    shared: bool,
    memory: Mutex<Option<Memory>>,
    buffers: Mutex<Buffers>,
    resumed: Condvar,
    /// Zeros at the addresses of a closed map.
    zeros: Mutex<Option<Zeros>>,
}

/// Memory of zeros.
struct Zeros {
    address: usize,
    len: usize,
}

impl Zeros {
    /// `None` if another thread has taken the addresses.
    fn at(address: usize, len: usize) -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with FIXED_NOREPLACE the kernel takes only addresses where nothing is mapped.
        let mapped = unsafe { mmap_anonymous(address as *mut c_void, len, protection, flags) };
        mapped.is_ok().then_some(Zeros { address, len })
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // SAFETY: the mapping is its own, and goes with the Python object that each array of it has a reference to.
        let _ = unsafe { munmap(self.address as *mut c_void, self.len) };
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the map is closed")
}

/// Lets buffers be made again.
struct Paused<'a>(&'a Map);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        lock(&self.0.buffers).paused = false;
        self.0.resumed.notify_all();
    }
}

impl Map {
    /// Calls `act` with the open map, without the interpreter's lock.
    fn with<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut Memory) -> untorn::Result<T> + Send) -> PyResult<T> {
        let done = py.detach(|| lock(&self.memory).as_mut().map(act));
        done.ok_or_else(closed)?.map_err(|error| raise(py, error))
    }

    fn for_stores(&self, py: Python<'_>) -> PyResult<()> {
        if self.usage == Use::Write {
            return Ok(());
        }
        Err(raise(py, untorn::Error::ReadOnly { path: self.path.clone() }))
    }

    /// Keeps buffers from being made, if there is none. The caller has locked `memory`, so one thread at a time pauses.
    ///
    /// # Errors
    /// The number of buffers that there are.
    fn pause(&self) -> Result<Paused<'_>, usize> {
        let mut buffers = lock(&self.buffers);
        if buffers.count > 0 {
            return Err(buffers.count);
        }
        buffers.paused = true;
        Ok(Paused(self))
    }

    fn commit_memory(&self, memory: &mut Memory) -> untorn::Result<u64> {
        match memory {
            Memory::Shared(map) => map.commit(),
            Memory::Own(map) => match self.pause() {
                Ok(_paused) if !lock(&self.buffers).untracked => map.commit(),
                _ => map.commit_beside_stores(),
            },
        }
    }
}

/// A snapshot as memory. `Snapshot.map` makes one. It has the buffer protocol, for loads.
#[pyclass(frozen, module = "untorn._untorn")]
pub(crate) struct SnapshotMap {
    /// Each range of it was asked for before, so it is there.
    pub(crate) map: untorn::SnapshotMap,
}

#[pymethods]
impl SnapshotMap {
    /// The length in bytes.
    fn __len__(&self) -> usize {
        self.map.len() as usize
    }

    /// Makes a buffer of all of it.
    ///
    /// # Safety
    /// `view` is a buffer structure that the interpreter asks to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().map.all().map_err(|error| raise(slf.py(), error))?;
        let address = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: `view` is the interpreter's. The memory is the object's, to which the buffer has a reference; no byte
        // of it changes while the object lives, and with `readonly` nobody stores to it.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, bytes.len() as isize, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

#[pymethods]
impl Map {
    /// Opens (`"open"`), creates (`"create"`), or opens with new contents (`"truncate"`).
    #[new]
    #[pyo3(signature = (path, how, size, usage, shared, max_size))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        how: &str,
        size: Option<u64>,
        usage: &str,
        shared: bool,
        max_size: Option<u64>,
    ) -> PyResult<Self> {
        let usage = match usage {
            "read" => Use::Read,
            "copy" => Use::Copy,
            _ => Use::Write,
        };
        let mut options = Options::new().read_only(usage != Use::Write);
        if let Some(max) = max_size {
            options = options.max_len(max);
        }
        let opened = py.detach(|| open(&options, &path, how, size, shared)).map_err(|error| raise(py, error))?;
        let (memory, address, len) = opened;
        let buffers =
            Mutex::new(Buffers { count: 0, longest: len, len, untracked: false, closed: false, paused: false });
        let memory = Mutex::new(Some(memory));
        Ok(Map { path, address, usage, shared, memory, buffers, resumed: Condvar::new(), zeros: Mutex::new(None) })
    }

    /// Makes all stores since the last commit durable together, and returns the number of the commit. Other threads may
    /// store meanwhile.
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        self.for_stores(py)?;
        self.with(py, |memory| self.commit_memory(memory))
    }

    /// Discards all stores since the last commit.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.for_stores(py)?;
        self.with(py, |memory| {
            // Another thread makes its buffer before this, or after it with the length that is right then.
            let paused = self.pause();
            let done = match memory {
                Memory::Own(map) => {
                    let len = map.len();
                    map.rollback().and_then(|()| match paused {
                        // Arrays keep the memory that they see, and find zeros there.
                        Err(_) if map.len() < len => map.resize(len as u64),
                        _ => Ok(()),
                    })
                }
                Memory::Shared(map) => map.rollback(),
            };
            lock(&self.buffers).len = memory.len();
            done
        })
    }

    /// Changes the length; new bytes are zeros. The memory keeps its address, so buffers stay valid.
    fn resize(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.for_stores(py)?;
        let resized = self.with(py, |memory| {
            // No other thread makes a buffer of the bytes that go until their loss is known.
            let shrinks = matches!(memory, Memory::Own(map) if size < map.len() as u64);
            let paused = if shrinks { self.pause().map(Some) } else { Ok(None) };
            let _paused = match paused {
                Ok(paused) => paused,
                Err(held) => return Ok(Err(held)),
            };
            let done = match memory {
                Memory::Own(map) => map.resize(size),
                Memory::Shared(map) => map.grow(size).map(drop),
            };
            let len = memory.len();
            let mut buffers = lock(&self.buffers);
            (buffers.len, buffers.longest) = (len, buffers.longest.max(len));
            done.map(Ok)
        })?;
        resized.map_err(|held| {
            PyBufferError::new_err(format!(
                "cannot shrink the map: {held} arrays or memoryviews of it exist; delete them first"
            ))
        })
    }

    /// Counts an array of the map, until `_release`.
    fn _hold(&self, py: Python<'_>) -> PyResult<()> {
        self.count_buffer(py).map(drop)
    }

    fn _release(&self) {
        lock(&self.buffers).count -= 1;
    }

    /// Holds the file as it is at its last commit, for reading, while stores go on.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        let path = &self.path;
        let snapshot = self.with(py, |memory| match memory {
            Memory::Own(map) => map.snapshot(),
            Memory::Shared(_) => untorn::Snapshot::open(path),
        })?;
        Ok(Snapshot { snapshot: RwLock::new(Some(snapshot)) })
    }

    /// Commits and closes. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, true)
    }

    /// Closes without a commit: what was stored since the last one is gone.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, false)
    }

    /// The state of the file, as a dictionary.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (commit, len, tracking) = self.with(py, |memory| {
            Ok(match memory {
                Memory::Own(map) => (map.info().commit, map.len(), Some(map.dirty_tracking().as_str())),
                Memory::Shared(map) => (map.last_commit(), map.len(), None),
            })
        })?;
        let told = PyDict::new(py);
        told.set_item("len", len)?;
        told.set_item("commit", commit)?;
        told.set_item("dirty_tracking", tracking)?;
        told.set_item("buffers", lock(&self.buffers).count)?;
        Ok(told)
    }

    /// The length in bytes.
    fn __len__(&self) -> PyResult<usize> {
        let buffers = lock(&self.buffers);
        if buffers.closed { Err(closed()) } else { Ok(buffers.len) }
    }

    /// A map is true, however short it is.
    fn __bool__(&self) -> bool {
        true
    }

    /// The path that the map was opened by.
    #[getter]
    fn name(&self) -> &OsStr {
        self.path.as_os_str()
    }

    fn __fspath__(&self) -> &OsStr {
        self.path.as_os_str()
    }

    /// Whether the map is closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.buffers).closed
    }

    /// Whether other processes may have the map too.
    #[getter]
    fn shared(&self) -> bool {
        self.shared
    }

    /// Whether stores commit: not with the modes "r" and "c".
    #[getter]
    fn writable(&self) -> bool {
        self.usage == Use::Write
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Makes a buffer of all of the map.
    ///
    /// # Safety
    /// `view` is a buffer structure that the interpreter asks to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let map = slf.get();
        let len = map.count_buffer(slf.py())?;
        if flags & ffi::PyBUF_FULL_RO != ffi::PyBUF_FULL_RO {
            lock(&map.buffers).untracked = true;
        }
        let readonly = c_int::from(map.usage == Use::Read);
        let address = map.address as *mut c_void;
        // SAFETY: `view` is the interpreter's; the memory has `len` bytes, and outlives the buffer, which holds a
        // reference to the object: see the module's documentation.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, len as isize, readonly, flags) };
        if filled != 0 {
            lock(&map.buffers).count -= 1;
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    /// Notes that a buffer is gone.
    ///
    /// # Safety
    /// `view` is one that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self._release();
    }
}

impl Map {
    /// Counts a buffer, and returns the length that it has.
    fn count_buffer(&self, py: Python<'_>) -> PyResult<usize> {
        let len = py.detach(|| {
            let buffers = lock(&self.buffers);
            let mut buffers =
                self.resumed.wait_while(buffers, |buffers| buffers.paused).unwrap_or_else(PoisonError::into_inner);
            if buffers.closed {
                return None;
            }
            buffers.count += 1;
            Some(buffers.len)
        });
        len.ok_or_else(closed)
    }

    fn end(&self, py: Python<'_>, commits: bool) -> PyResult<()> {
        py.detach(|| {
            // From here on no buffer is made; one that is there keeps all as it is.
            let mut buffers = lock(&self.buffers);
            if buffers.closed {
                return Ok(Ok(()));
            }
            if buffers.count > 0 {
                return Err(buffers.count);
            }
            buffers.closed = true;
            drop(buffers);
            let mut place = lock(&self.memory);
            if commits
                && self.usage == Use::Write
                && let Some(Memory::Own(map)) = place.as_mut()
                && let Err(error) = map.commit_beside_stores()
            {
                // It may be repeated: after a full disk, for example.
                lock(&self.buffers).closed = false;
                return Ok(Err(error));
            }
            let ended = match place.take() {
                Some(Memory::Own(map)) if commits => map.close(),
                Some(Memory::Own(map)) => map.discard(),
                Some(Memory::Shared(map)) if commits => map.commit().and_then(|_| map.close()),
                Some(Memory::Shared(map)) => map.close(),
                None => Ok(()),
            };
            let len = lock(&self.buffers).longest;
            if len > 0 {
                *lock(&self.zeros) = Zeros::at(self.address, len);
            }
            Ok(ended)
        })
        .map_err(|held| {
            PyBufferError::new_err(format!(
                "cannot close the map: {held} arrays or memoryviews of it exist; delete them first, or commit and let \
                 the map close with the last of them"
            ))
        })?
        .map_err(|error| raise(py, error))
    }
}

fn open(
    options: &Options,
    path: &Path,
    how: &str,
    size: Option<u64>,
    shared: bool,
) -> untorn::Result<(Memory, usize, usize)> {
    if shared {
        let map = match (how, size) {
            ("open", None) => options.share_map(path)?,
            ("open", Some(size)) => {
                let map = options.share_map(path)?;
                if size > map.len() as u64 {
                    map.grow(size)?;
                }
                map
            }
            (_, size) => options.create_shared_map(path, size.unwrap_or(0))?,
        };
        let (address, len) = (map.as_ptr() as usize, map.len());
        return Ok((Memory::Shared(map), address, len));
    }
    let mut map = match how {
        "open" => options.map(path)?,
        "create" => options.create_map(path, size.unwrap_or(0))?,
        _ => options.open_or_create_map(path, size.unwrap_or(0))?,
    };
    match size {
        // In one commit: the old bytes are there until the first commit of the new ones.
        size if how == "truncate" => {
            map.resize(0)?;
            map.resize(size.unwrap_or(0))?;
        }
        Some(size) if size > map.len() as u64 => map.resize(size)?,
        _ => {}
    }
    let address = map.as_mut_ptr() as usize;
    let len = map.len();
    Ok((Memory::Own(map), address, len))
}
