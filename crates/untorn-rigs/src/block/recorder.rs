//! A disk that records its requests.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::exposed::{Exposed, Image, Serve};
use super::filesystem::FileSystem;
use super::log::{Log, Position, Request};
use super::sparse;
use crate::error::Result;

/// A mounted file system whose disk is being recorded.
///
/// Let other processes use it, not this one. A thread that waits for a disk served by its own process can't be
/// killed: if the process were, it would wait forever.
///
/// Dropping it unmounts the file system, then the recorder's own.
#[derive(Debug)]
pub struct Recorder {
    disk: Exposed,
    record: Arc<Record>,
}

/// Reads the position of a running record.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Record>);

impl Clock {
    /// The instant after everything that has reached the disk so far. Once the log was taken, it is not an instant of
    /// it.
    pub fn now(&self) -> Position {
        self.0.log().as_ref().map_or(Position::MAX, Log::position)
    }
}

impl Recorder {
    /// Mounts the file system in `image` and records its requests to the disk, including those of the mount. The image
    /// changes as a disk does. `dir` is an existing directory for the mount points.
    pub fn start(kind: FileSystem, image: &Path, dir: &Path) -> Result<Self> {
        let record = Arc::new(Record { image: Image::open(image)?, log: Mutex::new(Some(Log::default())) });
        let disk = Exposed::start(kind, record.clone(), dir, "recorded")?;
        Ok(Recorder { disk, record })
    }

    /// The mount point of the recorded file system.
    pub fn path(&self) -> &Path {
        self.disk.path()
    }

    /// A handle for reading the current position.
    pub fn clock(&self) -> Clock {
        Clock(self.record.clone())
    }

    /// Ends the record and unmounts the file system. The log does not include the unmount.
    pub fn finish(self) -> Log {
        // Take the log before unmounting the file system, so that the unmount is not recorded.
        self.record.log().take().unwrap_or_default()
    }
}

#[derive(Debug)]
struct Record {
    image: Image,
    /// `None` once the record has ended.
    log: Mutex<Option<Log>>,
}

impl Record {
    fn log(&self) -> MutexGuard<'_, Option<Log>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request between its two events. A failed request gets no end event, because a disk with an error of
    /// its own would prove nothing; the file system receives the error.
    fn note(&self, request: Request, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let number = self.log().as_mut().map(|log| log.begin(request));
        act()?;
        if let (Some(log), Some(number)) = (self.log().as_mut(), number) {
            log.end(number);
        }
        Ok(())
    }
}

impl Serve for Record {
    fn image(&self) -> &Image {
        &self.image
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let request = Request::Write { offset, bytes: bytes.into() };
        self.note(request, || self.image.file.write_all_at(bytes, offset))
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.note(Request::Zero { offset, len }, || sparse::write_zeros(&self.image.file, offset, len))
    }

    fn flush(&self) -> io::Result<()> {
        // The image itself needs no durability; only the log matters.
        self.note(Request::Flush, || Ok(()))
    }
}
