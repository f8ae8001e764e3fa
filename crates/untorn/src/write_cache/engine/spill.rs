//! The spill file: the bytes of large staged writes, so that an epoch may be far larger than the log.
//!
//! ```text
//!  write ─► chunks of the spill file ─► one entry in the log: where each chunk is, and its checksum
//!  commit ─► flush of the spill file, and of the log
//! ```
//!
//! # Invariants
//!
//! 1. An entry has a checksum over each chunk, seeded with the log, the session and the place. So chunks and entry need
//!    no order between them. A replay takes the entry for whole if all its chunks are.
//! 2. What makes a Commit durable flushes the spill file too. Its name is durable before anything is in it.
//! 3. A chunk belongs to one change, or to one [pack](super::pack), which has those of all changes in it. It is free
//!    when the tail has durably passed the entry, however often that was staged again, or when its epoch was abandoned
//!    and nobody reads it any more: then no Commit names it.
//! 4. A session stores only to a spill file that it made itself, for its owner alone. One that is there is removed: it
//!    may be anything. A replay only reads it, and believes what the log's checksums say.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::drain::Item;
use super::names::parent;
use super::{Cache, barriers, locked};
use crate::error::{Error, Result};
use crate::format::record::ChecksumSeed;
use crate::storage::{CreateAttrs, Medium};
use crate::write_cache::backing::{BackingDir, BackingFile};

/// Marks a position of the overlay that is a chunk.
const CHUNK: u64 = 1 << 63;
/// Chunks have lower numbers than this, and are no longer.
const MOST_CHUNKS: u64 = 1 << 32;
pub(super) const LONGEST: u64 = 1 << 24;

/// The place of a write's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spilled {
    pub(super) len: u64,
    /// Bytes of a chunk; the last may have less of the write.
    chunk: u64,
    /// The number of each, and its checksum.
    chunks: Vec<(u64, u64)>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    len: U64,
    chunk: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawChunk {
    number: U64,
    check: U64,
}

const _: () = assert!(size_of::<RawHead>() == 16 && size_of::<RawChunk>() == 16);

fn check(seed: ChecksumSeed, number: u64, bytes: &[u8]) -> u64 {
    untorn_ring::sum(seed.at(number | CHUNK), bytes)
}

impl Spilled {
    /// The data of its entry.
    pub(super) fn encode(&self) -> Vec<u8> {
        let head = RawHead { len: self.len.into(), chunk: self.chunk.into() };
        let mut bytes = head.as_bytes().to_vec();
        for &(number, check) in &self.chunks {
            bytes.extend(RawChunk { number: number.into(), check: check.into() }.as_bytes());
        }
        bytes
    }

    /// The meaning of an entry's data, if a write can be so.
    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        let (head, rest) = RawHead::read_from_prefix(data).ok()?;
        let (len, chunk) = (head.len.get(), head.chunk.get());
        let raw = <[RawChunk]>::ref_from_bytes(rest).ok()?;
        let chunks: Vec<(u64, u64)> = raw.iter().map(|raw| (raw.number.get(), raw.check.get())).collect();
        let sound = len > 0
            && (1..=LONGEST).contains(&chunk)
            && len.div_ceil(chunk) == chunks.len() as u64
            && chunks.iter().all(|(number, _)| *number < MOST_CHUNKS);
        sound.then_some(Spilled { len, chunk, chunks })
    }

    /// Nothing yet, for chunks of this length.
    pub(super) fn empty(chunk: u64) -> Self {
        Spilled { len: 0, chunk, chunks: Vec::new() }
    }

    /// Adds what follows its bytes, which fill their chunks.
    pub(super) fn append(&mut self, next: Spilled) {
        self.len += next.len;
        self.chunks.extend(next.chunks);
    }

    /// The numbers of its chunks.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.iter().map(|(number, _)| *number)
    }

    /// Bytes of the data of its entry.
    pub(super) fn data_len(&self) -> u64 {
        (size_of::<RawHead>() + self.chunks.len() * size_of::<RawChunk>()) as u64
    }

    /// Bytes of the write that a chunk has.
    fn bytes(&self, index: usize) -> u64 {
        (self.len - index as u64 * self.chunk).min(self.chunk)
    }

    /// Appends bytes of the write, read by `read` at offsets of the spill file. Each chunk is verified whole. False if
    /// one is not what was written.
    pub(super) fn read(
        &self,
        seed: ChecksumSeed,
        skip: u64,
        len: u64,
        buffer: &mut Vec<u8>,
        read: impl Fn(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<bool> {
        let mut at = skip;
        let mut whole = Vec::new();
        while at < skip + len {
            let index = (at / self.chunk) as usize;
            let Some(&(number, expected)) = self.chunks.get(index) else { return Ok(false) };
            whole.resize(self.bytes(index) as usize, 0);
            if read(number * self.chunk, &mut whole)? != whole.len() || check(seed, number, &whole) != expected {
                return Ok(false);
            }
            let from = at % self.chunk;
            let bytes = (whole.len() as u64).saturating_sub(from).min(skip + len - at);
            if bytes == 0 {
                return Ok(false);
            }
            buffer.extend(&whole[from as usize..(from + bytes) as usize]);
            at += bytes;
        }
        Ok(true)
    }

    /// The position in the overlay of the chunk with this byte of the write.
    pub(super) fn position(&self, at: u64) -> u64 {
        let chunk = self.chunks.get((at / self.chunk) as usize);
        chunk.map_or(u64::MAX, |(number, _)| number | CHUNK)
    }

    /// Whether a position in the overlay is one of its chunks.
    pub(super) fn has(&self, position: u64) -> bool {
        position & CHUNK != 0 && self.chunks.iter().any(|(number, _)| number | CHUNK == position)
    }

    pub(super) fn chunk(&self) -> u64 {
        self.chunk
    }

    #[cfg(test)]
    pub(super) fn of(len: u64, chunk: u64, chunks: Vec<(u64, u64)>) -> Self {
        Spilled { len, chunk, chunks }
    }

    /// The offset in the spill file of a byte of the write.
    #[cfg(test)]
    pub(super) fn place(&self, at: u64) -> u64 {
        self.chunks[(at / self.chunk) as usize].0 * self.chunk + at % self.chunk
    }
}

/// The name of a log's spill file.
pub(super) fn path_of(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".spill");
    name.into()
}

/// Removes a spill file that an earlier session left. If that fails, it is in the way of the next one that is made.
pub(super) fn remove(place: &dyn BackingDir, path: &Path) {
    let removed = place.exists(path).and_then(|there| if there { place.remove(path) } else { Ok(()) });
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "cannot remove the spill file of an earlier session");
    }
}

/// Chunks of changes that are in their files.
#[derive(Default)]
pub(super) struct Chunks(HashSet<u64>);

impl Chunks {
    /// Whether a position in the overlay is one of them.
    pub(super) fn has(&self, position: u64) -> bool {
        position & CHUNK != 0 && self.0.contains(&(position & !CHUNK))
    }
}

/// The spill file of a session, which makes it when it needs it.
pub(super) struct Spill {
    path: PathBuf,
    chunk: u64,
    file: OnceLock<Arc<dyn BackingFile>>,
    space: Mutex<Space>,
    /// Writes to it, and how many of the first of them are durable.
    written: AtomicU64,
    synced: AtomicU64,
}

/// Which chunks are in use.
#[derive(Default)]
struct Space {
    /// Below the end.
    free: BTreeSet<u64>,
    end: u64,
    /// By the positions of their entries: chunks of changes that are in their files, which the tail has not passed.
    settled: BTreeMap<u64, Arc<Spilled>>,
    /// By the first chunk of a pack: those of the changes in it.
    inner: HashMap<u64, Vec<u64>>,
}

impl Space {
    /// The chunks of a change, with those of the changes in it, which it no longer has from now on.
    fn take(&mut self, spilled: &Spilled) -> Vec<u64> {
        let inner = spilled.numbers().next().and_then(|first| self.inner.remove(&first));
        spilled.numbers().chain(inner.into_iter().flatten()).collect()
    }
}

impl Spill {
    pub(super) fn new(log: &Path, chunk: u64) -> Self {
        Spill {
            path: path_of(log),
            chunk: chunk.clamp(64, LONGEST),
            file: OnceLock::new(),
            space: Mutex::default(),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        }
    }

    /// Bytes that one entry can have there.
    pub(super) fn capacity(&self, entry: u32) -> u64 {
        let chunks = u64::from(entry).saturating_sub(size_of::<RawHead>() as u64) / size_of::<RawChunk>() as u64;
        chunks * self.chunk
    }

    /// The same for a write; `None` for one that stays in the log.
    pub(super) fn takes(&self, len: usize, entry: u32) -> Option<u64> {
        (len as u64 >= self.chunk).then(|| self.capacity(entry))
    }

    pub(super) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// A pack has all that these changes have there.
    pub(super) fn put_into<'a>(&self, pack: &Spilled, changes: impl Iterator<Item = &'a Arc<Spilled>>) {
        let mut space = locked(&self.space);
        let mut inner = Vec::new();
        for change in changes {
            inner.extend(space.take(change));
        }
        if let Some(first) = pack.numbers().next().filter(|_| !inner.is_empty()) {
            space.inner.insert(first, inner);
        }
    }

    /// Adds the chunks of a pack to a set, with those of everything in it.
    pub(super) fn add_chunks(&self, pack: &Spilled, to: &mut Chunks) {
        let space = locked(&self.space);
        to.0.extend(pack.numbers());
        let inner = pack.numbers().next().and_then(|first| space.inner.get(&first));
        to.0.extend(inner.into_iter().flatten());
    }

    /// The length of the spill file.
    pub(super) fn len(&self) -> Result<u64> {
        self.file.get().map_or(Ok(0), |file| file.len())
    }

    fn take(&self, count: u64) -> Vec<u64> {
        let mut space = locked(&self.space);
        (0..count)
            .map(|_| {
                let end = space.end;
                space.free.pop_first().unwrap_or_else(|| {
                    space.end = end + 1;
                    end
                })
            })
            .collect()
    }

    /// Chunks are free again.
    fn free(&self, space: &mut Space, chunks: impl Iterator<Item = u64>) {
        space.free.extend(chunks);
        if space.end > 0 && space.free.len() as u64 == space.end {
            *space = Space { settled: std::mem::take(&mut space.settled), ..Space::default() };
            if let Some(Err(error)) = self.file.get().map(|file| file.set_len(0)) {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot truncate the spill file; it keeps its space");
            }
        }
    }

    /// Changes were dropped that have these chunks, and nobody reads them.
    pub(super) fn drop_chunks(&self, spilled: impl Iterator<Item = Arc<Spilled>>) {
        let mut space = locked(&self.space);
        for spilled in spilled {
            let chunks = space.take(&spilled);
            self.free(&mut space, chunks.into_iter());
        }
    }

    /// Changes are in their files: their chunks are free when the tail is beyond their entries.
    pub(super) fn settle(&self, items: &[Item]) {
        let spilled = items.iter().filter_map(|item| Some((item.position, Arc::clone(item.spilled.as_ref()?))));
        let mut spilled = spilled.peekable();
        if spilled.peek().is_some() {
            locked(&self.space).settled.extend(spilled);
        }
    }

    /// The tail is durably here.
    pub(super) fn passed(&self, tail: u64) {
        let mut space = locked(&self.space);
        if space.settled.is_empty() {
            return;
        }
        let beyond = space.settled.split_off(&tail);
        for spilled in std::mem::replace(&mut space.settled, beyond).into_values() {
            let chunks = space.take(&spilled);
            self.free(&mut space, chunks.into_iter());
        }
    }

    /// The bytes of a chunk by its position in the overlay; `None` for a position of the log.
    pub(super) fn read(&self, position: u64, skip: u64, dst: &mut [u8]) -> Option<Result<()>> {
        if position & CHUNK == 0 {
            return None;
        }
        let read = match self.file.get() {
            Some(file) => file.read((position & !CHUNK) * self.chunk + skip, dst),
            None => Ok(0),
        };
        let short = || {
            let what = "the spill file of the log was truncated while in use".to_owned();
            Error::Corrupt { path: self.path.clone(), offset: None, what }
        };
        Some(read.and_then(|count| if count == dst.len() { Ok(()) } else { Err(short()) }))
    }

    /// Reads bytes of a spilled write, verified, for its file.
    pub(super) fn read_run(
        &self,
        seed: ChecksumSeed,
        spilled: &Spilled,
        skip: u64,
        len: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let read = |at: u64, dst: &mut [u8]| self.file.get().map_or(Ok(0), |file| file.read(at, dst));
        if spilled.read(seed, skip, len, buffer, read)? { Ok(()) } else { Err(self.odd()) }
    }

    /// Bytes that are not what was written.
    #[cold]
    pub(super) fn odd(&self) -> Error {
        let what = "the spill file does not have what was written to it".to_owned();
        Error::Corrupt { path: self.path.clone(), offset: None, what }
    }
}

impl<M: Medium> Cache<M> {
    /// Puts the bytes of a write into the spill file.
    pub(super) fn spill_out(&self, src: &[u8]) -> Result<Spilled> {
        let (spill, seed) = (&self.spill, self.ring.checksum_seed);
        let file = self.spill_file()?;
        let numbers = spill.take((src.len() as u64).div_ceil(spill.chunk));
        let pieces = || numbers.iter().copied().zip(src.chunks(spill.chunk as usize));
        // Chunks that follow one another are written at once.
        let mut written = Ok(());
        let mut done = 0;
        for run in numbers.chunk_by(|one, next| one + 1 == *next) {
            let len = (run.len() * spill.chunk as usize).min(src.len() - done);
            written = written.and_then(|()| file.write(run[0] * spill.chunk, &src[done..done + len]));
            done += len;
        }
        let chunks = pieces().map(|(number, bytes)| (number, check(seed, number, bytes))).collect();
        let spilled = Spilled { len: src.len() as u64, chunk: spill.chunk, chunks };
        spill.written.fetch_add(1, Ordering::AcqRel);
        match written {
            Ok(()) => Ok(spilled),
            Err(error) => {
                spill.drop_chunks(std::iter::once(Arc::new(spilled)));
                Err(error)
            }
        }
    }

    /// The spill file; the first time, after it was made and has its name durably.
    fn spill_file(&self) -> Result<&Arc<dyn BackingFile>> {
        let spill = &self.spill;
        if let Some(file) = spill.file.get() {
            return Ok(file);
        }
        let _space = locked(&spill.space);
        if spill.file.get().is_none() {
            remove(&*self.place, &spill.path);
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let file = self.place.make(&spill.path, &CreateAttrs { mode: 0o600, uid, gid })?;
            self.place.sync_dir(barriers::SPILL_NAME, parent(&spill.path))?;
            let _ = spill.file.set(file);
        }
        spill.file.get().ok_or_else(|| Error::io("create", &spill.path, rustix::io::Errno::IO))
    }

    /// The session ends: of what the log does not need nothing stays.
    pub(super) fn close_spill(&self) {
        if self.spill.file.get().is_some() && locked(&self.spill.space).end == 0 {
            // The rest is empty.
            remove(&*self.place, &self.spill.path);
        }
    }

    /// Makes durable what was written to the spill file so far.
    pub(super) fn flush_spill(&self) -> Result<()> {
        let spill = &self.spill;
        let written = spill.written.load(Ordering::Acquire);
        if written > spill.synced.load(Ordering::Acquire)
            && let Some(file) = spill.file.get()
        {
            file.sync(barriers::SPILL).map_err(|error| self.poison(error))?;
            spill.synced.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spilled_write_survives_its_bytes_and_nothing_else_does() {
        let spilled = Spilled { len: 300, chunk: 128, chunks: vec![(3, 7), (0, 8), (9, 9)] };
        let bytes = spilled.encode();
        assert_eq!(Spilled::decode(&bytes), Some(spilled.clone()));
        assert!((0..bytes.len()).all(|len| Spilled::decode(&bytes[..len]).is_none()));
        let wrong = |change: fn(&mut Spilled)| {
            let mut wrong = spilled.clone();
            change(&mut wrong);
            Spilled::decode(&wrong.encode())
        };
        assert_eq!(wrong(|spilled| spilled.len = 385), None);
        assert_eq!(wrong(|spilled| spilled.len = 0), None);
        assert_eq!(wrong(|spilled| spilled.chunk = 0), None);
        assert_eq!(wrong(|spilled| spilled.chunk = u64::MAX), None);
        assert_eq!(wrong(|spilled| spilled.chunks[1].0 = MOST_CHUNKS), None);
    }
}
