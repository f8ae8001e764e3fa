//! Copies the bytes of a snapshot into a file.
//!
//! # Invariants
//!
//! 1. Every byte of the new file is that of the snapshot: it was written from it, or compared with it. So nothing that
//!    an earlier attempt left is believed.
//! 2. Holes of the source are not read, and zeros become holes.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::manifest::Manifest;
use super::{BLOCK, BackupOptions, is_zero};
use crate::engine::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::options::Progress;
use crate::sys::file::data_from;

/// Bytes that are read at once, unless a chunk is larger.
pub(super) const STEP: u64 = 1 << 20;

/// Copies a snapshot into an empty file, or into one that an earlier attempt left. Notes the chunks in the manifest.
/// Returns how many bytes were written.
pub(super) fn full(
    of: &Snapshot,
    (file, path): (&File, &Path),
    has_left: bool,
    manifest: &mut Manifest,
    options: &BackupOptions,
) -> Result<u64> {
    file.set_len(of.len()).map_err(|error| Error::io("write", path, error))?;
    let mut place = Place { has_left, ..Place::filled(file, path) };
    let (mut done, all) = (0, 0..of.len());
    each_chunk(of, (path, &[all]), manifest.chunk, options, &mut |offset, bytes| {
        place.clear(done..offset)?;
        done = offset + bytes.len() as u64;
        manifest.add(offset, bytes, None);
        manifest.stored += place.put(offset, bytes)?;
        Ok(())
    })?;
    place.clear(done..of.len())?;
    Ok(place.written)
}

/// Writes the chunks that differ from those of a base, one after the other.
pub(super) fn increment(
    of: &Snapshot,
    (file, path): (&File, &Path),
    base: &Manifest,
    manifest: &mut Manifest,
    options: &BackupOptions,
) -> Result<u64> {
    let all = 0..of.len();
    each_chunk(of, (path, &[all]), manifest.chunk, options, &mut |offset, bytes| {
        let Some(at) = manifest.add(offset, bytes, Some(base)) else { return Ok(()) };
        manifest.stored += bytes.len() as u64;
        file.write_all_at(bytes, at).map_err(|error| Error::io("write", path, error))
    })?;
    Ok(manifest.stored)
}

/// Writes the chunks that have some of the changed bytes, one after the other.
pub(super) fn changed(
    of: &Snapshot,
    (file, path): (&File, &Path),
    changed: &[Range<u64>],
    manifest: &mut Manifest,
    options: &BackupOptions,
) -> Result<u64> {
    let (chunk, chunks) = (manifest.chunk, manifest.chunks_of(changed));
    let ranges: Vec<_> = chunks.iter().map(|run| run.start * chunk..(run.end * chunk).min(of.len())).collect();
    each_chunk(of, (path, &ranges), chunk, options, &mut |offset, bytes| {
        let Some(at) = manifest.add(offset, bytes, None) else { return Ok(()) };
        manifest.stored += bytes.len() as u64;
        file.write_all_at(bytes, at).map_err(|error| Error::io("write", path, error))
    })?;
    manifest.note_zeros(&chunks);
    Ok(manifest.stored)
}

/// Reads the chunks of a snapshot that lie in these ranges and may hold other bytes than zeros, in order.
fn each_chunk(
    of: &Snapshot,
    (path, ranges): (&Path, &[Range<u64>]),
    chunk: u64,
    options: &BackupOptions,
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let total = ranges.iter().map(|range| range.end - range.start).sum();
    let mut pace = Pace::new(options, "writing the backup", path, total);
    let step = chunk.max(STEP);
    let mut bytes = vec![0; step.min(of.len()) as usize];
    let mut before = 0;
    for range in ranges {
        let mut at = range.start;
        while let Some(data) = of.next_data(at)?.filter(|data| data.start < range.end) {
            at = (data.start / chunk * chunk).max(at);
            let end = data.end.next_multiple_of(chunk).min(range.end);
            while at < end {
                let part = &mut bytes[..step.min(end - at) as usize];
                of.read_at(part, at)?;
                for (offset, bytes) in (at..).step_by(chunk as usize).zip(part.chunks(chunk as usize)) {
                    each(offset, bytes)?;
                }
                at += part.len() as u64;
                pace.step(before + at - range.start, part.len() as u64)?;
            }
        }
        before += range.end - range.start;
    }
    pace.step(total, 0)
}

/// A file whose blocks are filled with those of a snapshot.
pub(super) struct Place<'a> {
    file: &'a File,
    path: &'a Path,
    /// Whether it may hold bytes already.
    has_left: bool,
    held: Vec<u8>,
    written: u64,
}

impl<'a> Place<'a> {
    /// One that holds something already.
    pub(super) fn filled(file: &'a File, path: &'a Path) -> Self {
        Place { file, path, has_left: true, held: Vec::new(), written: 0 }
    }

    /// Bytes that were written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    fn failed(&self) -> impl Fn(std::io::Error) -> Error + '_ {
        |error| Error::io("write", self.path, error)
    }

    /// Has the file hold these bytes. Returns how many are no hole.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<u64> {
        if self.has_left {
            self.held.resize(bytes.len(), 0);
            let read = self.file.read_exact_at(&mut self.held, offset);
            read.map_err(|error| Error::io("read", self.path, error))?;
        }
        let held = self.has_left.then_some(self.held.as_slice());
        // Of each block, whether it is to be written: as it is, as a hole, or not at all.
        let blocks: Vec<Option<bool>> = (0..bytes.len().div_ceil(BLOCK))
            .map(|block| {
                let range = block * BLOCK..((block + 1) * BLOCK).min(bytes.len());
                let is_held = match held {
                    Some(held) => held[range.clone()] == bytes[range.clone()],
                    None => is_zero(&bytes[range.clone()]),
                };
                (!is_held).then(|| is_zero(&bytes[range]))
            })
            .collect();
        let mut start = 0;
        for run in blocks.chunk_by(|one, other| one == other) {
            let range = start * BLOCK..((start + run.len()) * BLOCK).min(bytes.len());
            start += run.len();
            let at = offset + range.start as u64;
            match run[0] {
                None => {}
                Some(true) => self.punch(at..at + range.len() as u64)?,
                Some(false) => {
                    self.file.write_all_at(&bytes[range.clone()], at).map_err(self.failed())?;
                    self.written += range.len() as u64;
                }
            }
        }
        let stored = bytes.chunks(BLOCK).filter(|block| !is_zero(block)).map(<[u8]>::len);
        Ok(stored.sum::<usize>() as u64)
    }

    /// Has the file hold zeros in a range.
    pub(super) fn clear(&mut self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while self.has_left && at < range.end {
            // A file system that does not tell holes from data has only data.
            let data = data_from(self.file.as_fd(), at).unwrap_or(Some(range.clone()));
            let Some(data) = data.filter(|data| data.start < range.end) else { break };
            let end = data.end.min(range.end);
            self.punch(data.start.max(at)..end)?;
            at = end;
        }
        Ok(())
    }

    fn punch(&mut self, range: Range<u64>) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.file, flags, range.start, range.end - range.start) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(self.failed()(errno.into())),
        }
        let zeros = vec![0; (range.end - range.start).min(STEP) as usize];
        let mut at = range.start;
        while at < range.end {
            let part = &zeros[..((range.end - at) as usize).min(zeros.len())];
            self.file.write_all_at(part, at).map_err(self.failed())?;
            self.written += part.len() as u64;
            at += part.len() as u64;
        }
        Ok(())
    }
}

/// Holds the speed down, tells the progress, and ends the work if it is told to.
pub(super) struct Pace<'a> {
    options: &'a BackupOptions,
    what: &'static str,
    path: &'a Path,
    total: u64,
    /// Bytes that were read or written.
    moved: u64,
    since: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(options: &'a BackupOptions, what: &'static str, path: &'a Path, total: u64) -> Self {
        Pace { options, what, path, total, moved: 0, since: Instant::now() }
    }

    /// `done` is how far it is, and `moved` the bytes since the last step.
    ///
    /// # Errors
    /// ECANCELED.
    pub(super) fn step(&mut self, done: u64, moved: u64) -> Result<()> {
        self.moved += moved;
        if let Some(progress) = &self.options.progress {
            progress(Progress { phase: self.what, done, total: self.total });
        }
        let rate = self.options.rate.filter(|rate| *rate > 0);
        let due = Duration::from_secs_f64(rate.map_or(0.0, |rate| self.moved as f64 / rate as f64));
        loop {
            if self.options.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Acquire)) {
                return Err(Error::io("finish", self.path, Errno::CANCELED));
            }
            let left = due.saturating_sub(self.since.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}
