//! A disk with a limited speed.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::exposed::{Exposed, Image, Serve};
use super::filesystem::FileSystem;
use super::sparse;
use crate::error::Result;

/// The burst allowance of a disk that was idle, as time at its own speed, like a small cache. It compensates for
/// oversleeping and scheduling delays if requests are small and many.
const CREDIT: Duration = Duration::from_millis(50);
/// Don't sleep for less than this: a sleep would take longer.
const LEAST: Duration = Duration::from_millis(1);

/// The speed of a disk. Reads take no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Maximum bytes written per second; 0 for no limit.
    pub bytes_per_second: u64,
    /// Additional time per flush.
    pub flush: Duration,
}

impl Speed {
    /// No limit.
    pub const FULL: Speed = Speed { bytes_per_second: 0, flush: Duration::ZERO };
}

/// The requests of a disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Bytes written, including the file system's metadata and journal.
    pub bytes: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of flushes.
    pub flushes: u64,
}

/// A file system mounted from a disk with a limited speed, which may be changed at any time.
///
/// Let other processes use it, not this one, as a [`Recorder`](super::Recorder).
///
/// Dropping it unmounts the file system, then the disk's own.
#[derive(Debug)]
pub struct SlowDisk {
    disk: Exposed,
    paced: Arc<Paced>,
}

impl SlowDisk {
    /// Mounts the file system in `image` on a disk without a speed limit at first. `dir` is an existing directory for
    /// the mount points.
    pub fn start(kind: FileSystem, image: &Path, dir: &Path) -> Result<Self> {
        let paced = Arc::new(Paced {
            image: Image::open(image)?,
            pace: Mutex::new(Pace { speed: Speed::FULL, done: Instant::now() }),
            bytes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        });
        let disk = Exposed::start(kind, paced.clone(), dir, "slow")?;
        Ok(SlowDisk { disk, paced })
    }

    /// The mount point of the file system.
    pub fn path(&self) -> &Path {
        self.disk.path()
    }

    /// Sets the disk's speed from the next request on.
    pub fn set_speed(&self, speed: Speed) {
        self.paced.pace().speed = speed;
    }

    /// Its requests so far.
    pub fn asked(&self) -> Asked {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Asked { bytes: of(&self.paced.bytes), writes: of(&self.paced.writes), flushes: of(&self.paced.flushes) }
    }
}

#[derive(Debug)]
struct Paced {
    image: Image,
    pace: Mutex<Pace>,
    bytes: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
}

#[derive(Debug)]
struct Pace {
    speed: Speed,
    /// When all requests so far are complete.
    done: Instant,
}

impl Pace {
    /// When a write of `bytes` bytes requested now is complete: after those before it.
    fn write(&mut self, now: Instant, bytes: u64) -> Instant {
        let takes = match self.speed.bytes_per_second {
            0 => return now,
            per_second => Duration::from_secs_f64(bytes as f64 / per_second as f64),
        };
        let rested = now.checked_sub(CREDIT).unwrap_or(now);
        self.done = self.done.max(rested) + takes;
        self.done
    }
}

impl Paced {
    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Serve for Paced {
    /// The queue depth of the loop device.
    const QUEUE: Option<u16> = Some(128);

    fn image(&self) -> &Image {
        &self.image
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let done = self.pace().write(now, bytes.len() as u64);
        self.image.file.write_all_at(bytes, offset)?;
        let ahead = done.saturating_duration_since(Instant::now());
        if ahead >= LEAST {
            thread::sleep(ahead);
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        // As a disk takes it: a note, no bytes.
        sparse::write_zeros(&self.image.file, offset, len)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let takes = self.pace().speed.flush;
        thread::sleep(takes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_paced_to_the_disk_and_a_rest_earns_little() {
        let start = Instant::now() + Duration::from_secs(100);
        let speed = Speed { bytes_per_second: 1000, flush: Duration::ZERO };
        let mut pace = Pace { speed, done: start };
        assert_eq!(pace.write(start, 500), start + Duration::from_millis(500));
        // Asked for while the first is under way, and just after it, as a thread that overslept does.
        assert_eq!(pace.write(start, 500), start + Duration::from_secs(1));
        assert_eq!(pace.write(start + Duration::from_millis(1030), 1000), start + Duration::from_secs(2));
        let later = start + Duration::from_secs(60);
        assert_eq!(pace.write(later, 1000), later + Duration::from_secs(1) - CREDIT);
        pace.speed = Speed::FULL;
        assert_eq!(pace.write(later, 1 << 40), later);
    }
}
