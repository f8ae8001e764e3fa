//! A disk that is as slow as it is told to be.

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

/// How much a disk that has rested does at once, as time at its own speed: as one with a small cache. It makes up for what a thread
/// sleeps too long, or waits for a processor, where requests are small and many.
const CREDIT: Duration = Duration::from_millis(50);
/// For less than this nobody sleeps: it would be for longer.
const LEAST: Duration = Duration::from_millis(1);

/// How fast a disk is. Reads take no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Bytes a second that are written, at most; 0 for as many as can be.
    pub bytes_per_second: u64,
    /// What each flush takes in addition.
    pub flush: Duration,
}

impl Speed {
    /// As fast as can be.
    pub const FULL: Speed = Speed { bytes_per_second: 0, flush: Duration::ZERO };
}

/// What a disk has been asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// To write so many bytes, metadata and journal of its file system included.
    pub bytes: u64,
    /// In so many writes.
    pub writes: u64,
    /// To flush so often.
    pub flushes: u64,
}

/// A file system mounted from a disk with a speed of its own, which may be changed at any time.
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
    /// Mounts the file system in `image`, on a disk as fast as can be at first. `dir` is an existing directory for the mount points.
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

    /// Where the file system is mounted.
    pub fn path(&self) -> &Path {
        self.disk.path()
    }

    /// Makes the disk as fast as this, from the next request on.
    pub fn set_speed(&self, speed: Speed) {
        self.paced.pace().speed = speed;
    }

    /// What it has been asked so far.
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
    /// When all is done that was asked for so far.
    done: Instant,
}

impl Pace {
    /// When a write of so many bytes is done that is asked for now: after those before it.
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
    /// As many as the loop device has.
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
    fn writes_follow_each_other_at_the_speed_of_the_disk_and_little_is_free_after_a_rest() {
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
