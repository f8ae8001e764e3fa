//! `Commits` and `Commit`: the stream of the commits of a file.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use untorn::commits::{Commit as Given, CommitStream};

use crate::errors::raise;
use crate::file::lock;

/// How long a wait goes on before the interpreter may handle a signal.
const SLICE: Duration = Duration::from_millis(50);

/// One commit of a file.
#[pyclass(frozen, module = "untorn._untorn")]
pub(crate) struct Commit {
    /// Its number.
    #[pyo3(get)]
    number: u64,
    /// The number of the commit before it.
    #[pyo3(get)]
    previous: u64,
    /// When it was made, or None if that is not known.
    #[pyo3(get)]
    time: Option<SystemTime>,
    /// The length of the file after it.
    #[pyo3(get)]
    len: u64,
    /// The shortest that the file was in it.
    #[pyo3(get)]
    shortest: u64,
    /// The changes: tuples of an offset and the bytes there, ascending.
    #[pyo3(get)]
    changes: Py<PyTuple>,
}

impl Commit {
    fn of(py: Python<'_>, given: &Given) -> PyResult<Self> {
        let changes = given.changes.iter().map(|change| (change.range.start, PyBytes::new(py, &change.bytes)));
        let Given { number, previous, time, len, shortest, .. } = *given;
        let changes = PyTuple::new(py, changes.collect::<Vec<_>>())?.unbind();
        Ok(Commit { number, previous, time, len, shortest, changes })
    }
}

#[pymethods]
impl Commit {
    fn __repr__(&self, py: Python<'_>) -> String {
        let count = self.changes.bind(py).len();
        format!("<untorn.Commit {}, length {}, {count} changes>", self.number, self.len)
    }
}

/// The commits of a file, in order. `untorn.commits` makes one.
#[pyclass(frozen, module = "untorn._untorn")]
pub(crate) struct Commits {
    stream: Mutex<Option<CommitStream>>,
    /// How long to wait for a commit; `None`: without end.
    timeout: Option<Duration>,
}

impl Commits {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut CommitStream) -> untorn::Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| lock(&self.stream).as_mut().map(act));
        done.ok_or_else(|| PyValueError::new_err("the stream is closed"))?.map_err(|error| raise(py, error))
    }
}

#[pymethods]
impl Commits {
    #[new]
    #[pyo3(signature = (path, start, consumer, timeout))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        start: Option<u64>,
        consumer: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let refused = |_| PyValueError::new_err("timeout is a number of seconds, not negative, or None");
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose().map_err(refused)?;
        let opened = py.detach(|| match (consumer, start) {
            (Some(name), Some(start)) => CommitStream::consumer_from(&path, name, start),
            (Some(name), None) => CommitStream::consumer(&path, name),
            (None, Some(start)) => CommitStream::open(&path, start),
            (None, None) => whole(&path),
        });
        let stream = opened.map_err(|error| raise(py, error))?;
        Ok(Commits { stream: Mutex::new(Some(stream)), timeout })
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The next commit. The iteration ends if there is none within the timeout, and can be taken up again.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Commit>> {
        let since = Instant::now();
        loop {
            let left = self.timeout.map(|timeout| timeout.saturating_sub(since.elapsed()));
            let wait = left.unwrap_or(SLICE).min(SLICE);
            if let Some(given) = self.with(py, |stream| stream.next_within(wait))? {
                return Commit::of(py, &given).map(Some);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            py.check_signals()?;
        }
    }

    /// Notes durably that the consumer is done with the commits up to this one.
    fn acknowledge(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.with(py, |stream| stream.acknowledge(number))
    }

    /// The number of the last commit that was given, or the one that the stream started after.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |stream| Ok(stream.position()))
    }

    /// The last commit that the consumer acknowledged; None if the stream is of no consumer.
    #[getter]
    fn acknowledged(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |stream| Ok(stream.acknowledged()))
    }

    /// Lets go of the log. Closing again does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.stream).take()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

/// All commits that a log has.
fn whole(path: &std::path::Path) -> untorn::Result<CommitStream> {
    match CommitStream::open(path, 0) {
        Err(untorn::Error::CommitsMissing { oldest: Some(oldest), .. }) => CommitStream::open(path, oldest),
        opened => opened,
    }
}

/// Removes a registered consumer. Returns whether there was one.
#[pyfunction]
pub(crate) fn forget_consumer(py: Python<'_>, path: PathBuf, name: &str) -> PyResult<bool> {
    py.detach(|| untorn::commits::forget(&path, name)).map_err(|error| raise(py, error))
}
