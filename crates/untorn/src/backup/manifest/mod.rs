//! The manifest of a backup: lines of text, with a checksum for each chunk that is not all zeros.
//!
//! ```text
//! untorn backup 3
//! source /var/lib/app/ledger
//! commit 42
//! taken 1764381234.123456789
//! length 3145728
//! mode 640
//! log 6f1d0c2b3a495867b8a9cadbecfd0e1f
//! base 5a0e7c6b1f2d3c4b 40 2097152
//! stored 16384
//! chunk 16384 crc64-nvme
//! 0 8fb4d8a2b3f81c25
//! 130 1d2e3f4a5b6c7d8e +
//! end 0b9c8d7e6f5a4b3c
//! ```
//!
//! The last line has the checksum of all lines before, which is also the name of this manifest: an increment names the
//! manifest of its base by it. `docs/format.md` describes the lines.
//!
//! An increment by the commit log has the line `since 40` in the place of `base`, and a line `zeros 5 100` for chunks,
//! here 5 to 104, that became all zeros.
//!
//! # Invariants
//!
//! 1. A manifest has the checksums of all chunks of the file at its commit, also that of an increment with a base. A
//!    chunk without a line is all zeros. So a base needs no more than its manifest, and a chain is verified by its last
//!    one.
//! 2. The manifest of an increment by the commit log has the chunks that may differ, and says nothing of the others.
//!    It has the last chunk of the file if that is not a whole one, for a change of the length changes it.
//! 3. Chunks are named in ascending order, each once and within the length. Where the bytes of a chunk stand in the
//!    backup follows from that order, so no two overlap.
//! 4. All numbers are bounded before anything is allocated by them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{BLOCK, Backup, is_zero};
use crate::error::{Error, Result};
use crate::sys::runs::Runs;

const FIRST: &str = "untorn backup 3";

/// Bytes of a chunk: as few as this, for a file with no more chunks than that.
const SMALLEST: u64 = 16 << 10;
const USUAL_CHUNKS: u64 = 1 << 20;

/// Bounds of what a manifest may say.
const LARGEST: u64 = 64 << 20;
const MOST_CHUNKS: u64 = 1 << 22;
const LONGEST_TEXT: u64 = 160 << 20;

/// The base of an increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// The checksum of its manifest.
    pub(super) id: u64,
    pub(super) commit: u64,
    pub(super) len: u64,
}

/// A file at the commit of a backup, as its manifest, or several together, tell it.
pub(super) struct Known {
    /// The checksum of the last manifest.
    pub(super) id: u64,
    pub(super) manifest: Manifest,
}

/// What a backup goes on from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// It has everything.
    Nothing,
    Base(&'a Known),
    /// The changes after this commit, by the commit log.
    Commit(u64),
}

/// A chunk that is not all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) sum: u64,
    /// Where its bytes are in the backup; `None` if its base has them.
    pub(super) at: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    source: PathBuf,
    pub(super) commit: u64,
    taken: SystemTime,
    /// The length of the file.
    pub(super) len: u64,
    /// The permissions of the file: nine bits.
    pub(super) mode: Option<u32>,
    /// The UUID of the file's commit log, if it has one.
    pub(super) log: Option<[u8; 16]>,
    pub(super) base: Option<Base>,
    /// The commit after which the log tells what has changed, in an increment by it.
    pub(super) since: Option<u64>,
    /// Chunks that became all zeros, in an increment by the log: numbers, ascending.
    pub(super) zeros: Vec<Range<u64>>,
    /// Bytes of the backup that are no hole.
    pub(super) stored: u64,
    /// Bytes of a chunk, a power of two.
    pub(super) chunk: u64,
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// Bytes of the pieces of an increment so far.
    packed: u64,
}

pub(super) fn sum_of(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

impl Manifest {
    /// Of a backup of which nothing is noted yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file has outgrown its base.
    pub(super) fn new(
        source: &Path,
        (commit, taken, len): (u64, SystemTime, u64),
        mode: Option<u32>,
        log: Option<[u8; 16]>,
        from: Origin<'_>,
    ) -> Result<Self> {
        let mut chunk = SMALLEST;
        while len / chunk > USUAL_CHUNKS && chunk < LARGEST {
            chunk *= 2;
        }
        if let Origin::Base(base) = from {
            chunk = base.manifest.chunk;
        }
        if len.div_ceil(chunk) > MOST_CHUNKS {
            let what = format!("{len} bytes are too many for the chunks of its base; make a full backup");
            return Err(Error::Invalid { path: source.to_owned(), what });
        }
        let (base, since) = match from {
            Origin::Nothing => (None, None),
            Origin::Base(Known { id, manifest }) => {
                (Some(Base { id: *id, commit: manifest.commit, len: manifest.len }), None)
            }
            Origin::Commit(since) => (None, Some(since)),
        };
        let (source, chunks, zeros) = (source.to_owned(), BTreeMap::new(), Vec::new());
        let (stored, packed) = (0, 0);
        Ok(Manifest { source, commit, taken, len, mode, log, base, since, zeros, stored, chunk, chunks, packed })
    }

    /// Whether the backup has pieces, and not the whole file.
    pub(super) fn is_increment(&self) -> bool {
        self.base.is_some() || self.since.is_some()
    }

    /// The bytes of a chunk.
    pub(super) fn len_of(&self, chunk: u64) -> u64 {
        self.chunk.min(self.len.saturating_sub(chunk * self.chunk))
    }

    /// The length of the backup that this is the manifest of.
    pub(super) fn file_len(&self) -> u64 {
        if self.is_increment() { self.packed } else { self.len }
    }

    /// Notes a chunk. Returns where its bytes go in the backup, if they do.
    pub(super) fn add(&mut self, offset: u64, bytes: &[u8], base: Option<&Manifest>) -> Option<u64> {
        if is_zero(bytes) {
            return None;
        }
        let (chunk, sum) = (offset / self.chunk, sum_of(bytes));
        let is_there = base.is_some_and(|base| {
            base.len_of(chunk) == bytes.len() as u64 && base.chunks.get(&chunk).is_some_and(|chunk| chunk.sum == sum)
        });
        self.note(chunk, sum, !is_there)
    }

    /// Notes a chunk that is the next one. Returns where its bytes are in the backup, if it has them.
    fn note(&mut self, chunk: u64, sum: u64, has_it: bool) -> Option<u64> {
        let at = match self.is_increment() {
            false => Some(chunk * self.chunk),
            true => has_it.then_some(self.packed),
        };
        if self.is_increment() && has_it {
            self.packed += self.len_of(chunk);
        }
        self.chunks.insert(chunk, Chunk { sum, at });
        at
    }

    /// The chunks that an increment by the log has, if these bytes may have changed: as numbers.
    pub(super) fn chunks_of(&self, changed: &[Range<u64>]) -> Runs {
        let mut chunks = Runs::new();
        let mut add = |range: Range<u64>| {
            let mut run = Runs::new();
            let end = range.end.min(self.len).div_ceil(self.chunk);
            if range.start / self.chunk < end {
                run.push(range.start / self.chunk..end);
                chunks.add(&run);
            }
        };
        changed.iter().for_each(|range| add(range.clone()));
        // By invariant 2.
        if !self.len.is_multiple_of(self.chunk) {
            add(self.len - 1..self.len);
        }
        chunks
    }

    /// Notes those of the chunks that an increment by the log has which are all zeros: the ones not noted otherwise.
    pub(super) fn note_zeros(&mut self, chunks: &Runs) {
        let mut noted = Runs::new();
        self.chunks.keys().for_each(|chunk| noted.push(*chunk..*chunk + 1));
        self.zeros = chunks.without(&noted).into_ranges();
    }

    /// Whether an increment by the log says what this chunk holds.
    pub(super) fn tells_of(&self, chunk: u64) -> bool {
        let run = self.zeros.partition_point(|run| run.end <= chunk);
        self.chunks.contains_key(&chunk) || self.zeros.get(run).is_some_and(|run| run.contains(&chunk))
    }

    /// The file after an increment by the log, if it was `before`. `None` if their chunks have other lengths.
    pub(super) fn over(self, before: Manifest) -> Option<Manifest> {
        if self.chunk != before.chunk {
            return None;
        }
        let stays = |chunk: &u64| !self.tells_of(*chunk) && self.len_of(*chunk) == before.len_of(*chunk);
        let mut chunks: BTreeMap<u64, Chunk> =
            before.chunks.iter().filter(|(chunk, _)| stays(chunk)).map(|(chunk, noted)| (*chunk, *noted)).collect();
        chunks.extend(&self.chunks);
        Some(Manifest { chunks, since: None, base: None, zeros: Vec::new(), ..self })
    }

    /// # Errors
    /// [`Error::Corrupt`] if these are not the bytes of a chunk. `at` is where they were found in the file at `path`.
    pub(super) fn check(&self, path: &Path, at: u64, chunk: u64, bytes: &[u8]) -> Result<()> {
        let right = match self.chunks.get(&chunk) {
            Some(noted) => sum_of(bytes) == noted.sum,
            None => is_zero(bytes),
        };
        if right {
            return Ok(());
        }
        let what = format!("{} bytes of the backup do not match its manifest", bytes.len());
        Err(Error::Corrupt { path: path.to_owned(), offset: Some(at), what })
    }

    pub(super) fn summary(&self, written: u64) -> Backup {
        let base = self.base.map(|base| base.commit).or(self.since);
        Backup { commit: self.commit, taken: self.taken, len: self.len, bytes: self.stored, written, base }
    }

    /// The name by which an increment knows its base.
    pub(super) fn id(&self) -> u64 {
        sum_of(self.lines().as_bytes())
    }

    fn lines(&self) -> String {
        let since = self.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        // A path may have any byte but 0.
        let source = self.source.to_string_lossy().replace(['\n', '\r'], "\u{fffd}");
        let mut text = format!(
            "{FIRST}\nsource {source}\ncommit {}\ntaken {}.{:09}\nlength {}\n",
            self.commit,
            since.as_secs(),
            since.subsec_nanos(),
            self.len,
        );
        // Writing to a String cannot fail.
        if let Some(mode) = self.mode {
            let _ = writeln!(text, "mode {mode:o}");
        }
        if let Some(log) = self.log {
            let _ = writeln!(text, "log {:032x}", u128::from_be_bytes(log));
        }
        if let Some(Base { id, commit, len }) = self.base {
            let _ = writeln!(text, "base {id:016x} {commit} {len}");
        }
        if let Some(since) = self.since {
            let _ = writeln!(text, "since {since}");
        }
        let _ = writeln!(text, "stored {}\nchunk {} crc64-nvme", self.stored, self.chunk);
        for zeros in &self.zeros {
            let _ = writeln!(text, "zeros {} {}", zeros.start, zeros.end - zeros.start);
        }
        for (chunk, Chunk { sum, at }) in &self.chunks {
            let mark = if self.base.is_some() && at.is_some() { " +" } else { "" };
            let _ = writeln!(text, "{chunk} {sum:016x}{mark}");
        }
        text
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = self.lines();
        let sum = sum_of(text.as_bytes());
        let _ = writeln!(text, "end {sum:016x}");
        text
    }

    /// # Errors
    /// [`Error::Io`]; those of [`parse`](Self::parse).
    pub(super) fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::io("read the manifest", path, error);
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        // It ends early if it is no file but a pipe or a device.
        file.take(LONGEST_TEXT + 1).read_to_end(&mut bytes).map_err(failed)?;
        let text = String::from_utf8(bytes).unwrap_or_default();
        Self::parse(path, &text)
    }

    /// # Errors
    /// [`Error::Unsupported`] for another version; [`Error::Corrupt`] for text that is no whole manifest.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self> {
        if !text.starts_with(&format!("{FIRST}\n")) && text.starts_with("untorn backup ") {
            let what = "a manifest of a version that this library does not know".to_owned();
            return Err(Error::Unsupported { path: path.to_owned(), what });
        }
        Self::parse_lines(text).ok_or_else(|| {
            let what = "it is no whole manifest of a backup".to_owned();
            Error::Corrupt { path: path.to_owned(), offset: None, what }
        })
    }

    fn parse_lines(text: &str) -> Option<Self> {
        if text.len() as u64 > LONGEST_TEXT {
            return None;
        }
        let end = text.strip_suffix('\n')?.rfind('\n')? + 1;
        let sum = text[end..].strip_prefix("end ")?.strip_suffix('\n')?;
        if sum_from(sum)? != sum_of(&text.as_bytes()[..end]) {
            return None;
        }
        let mut lines = text[..end].lines().peekable();
        if lines.next()? != FIRST {
            return None;
        }
        let source = PathBuf::from(lines.next()?.strip_prefix("source ")?);
        let commit = lines.next()?.strip_prefix("commit ")?.parse().ok()?;
        let (seconds, nanoseconds) = lines.next()?.strip_prefix("taken ")?.split_once('.')?;
        let nanoseconds = nanoseconds.parse().ok().filter(|count| *count < 1_000_000_000)?;
        let taken = UNIX_EPOCH.checked_add(Duration::new(seconds.parse().ok()?, nanoseconds))?;
        let len: u64 = lines.next()?.strip_prefix("length ")?.parse().ok().filter(|len| *len <= i64::MAX as u64)?;
        let mode = match lines.peek()?.strip_prefix("mode ") {
            None => None,
            Some(mode) => Some(u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777)?),
        };
        if mode.is_some() {
            lines.next();
        }
        let log = match lines.peek()?.strip_prefix("log ") {
            None => None,
            Some(log) => Some(log_from(log)?),
        };
        if log.is_some() {
            lines.next();
        }
        let base = match lines.peek()?.strip_prefix("base ") {
            None => None,
            Some(words) => {
                let mut words = words.split(' ');
                let id = sum_from(words.next()?)?;
                Some(Base { id, commit: words.next()?.parse().ok()?, len: words.next()?.parse().ok()? })
            }
        };
        if base.is_some() {
            lines.next();
        }
        let since = match lines.peek()?.strip_prefix("since ") {
            None => None,
            // Without a log there is nothing that tells what changed, and with a base no need of it.
            Some(_) if log.is_none() || base.is_some() => return None,
            Some(since) => Some(since.parse().ok().filter(|since| *since <= commit)?),
        };
        if since.is_some() {
            lines.next();
        }
        let stored = lines.next()?.strip_prefix("stored ")?.parse().ok()?;
        let chunk: u64 = lines.next()?.strip_prefix("chunk ")?.strip_suffix(" crc64-nvme")?.parse().ok()?;
        if !chunk.is_power_of_two() || !(BLOCK as u64..=LARGEST).contains(&chunk) {
            return None;
        }
        let count = len.div_ceil(chunk);
        if count > MOST_CHUNKS {
            return None;
        }
        let (mut zeros, mut next) = (Vec::new(), 0);
        while let Some(words) = lines.peek().filter(|_| since.is_some()).and_then(|line| line.strip_prefix("zeros ")) {
            let (first, many) = words.split_once(' ')?;
            let first: u64 = first.parse().ok().filter(|first| *first >= next)?;
            let end = first.checked_add(many.parse().ok().filter(|many| *many > 0)?).filter(|end| *end <= count)?;
            zeros.push(first..end);
            // No two touch.
            next = end + 1;
            lines.next();
        }
        let (chunks, packed) = (BTreeMap::new(), 0);
        let mut manifest =
            Manifest { source, commit, taken, len, mode, log, base, since, zeros, stored, chunk, chunks, packed };
        let mut next = 0;
        for line in lines {
            let (number, rest) = line.split_once(' ')?;
            let number = number.parse().ok().filter(|number| (next..count).contains(number))?;
            next = number + 1;
            let marked = rest.strip_suffix(" +");
            if marked.is_some() && base.is_none() || manifest.tells_of(number) {
                return None;
            }
            manifest.note(number, sum_from(marked.unwrap_or(rest))?, marked.is_some() || since.is_some());
        }
        let is_cut = !len.is_multiple_of(chunk);
        if since.is_some() && is_cut && !manifest.tells_of(count - 1) {
            return None;
        }
        // Nothing but what is written like this: the checksum of these lines is its name.
        (manifest.to_text() == text).then_some(manifest)
    }
}

/// A checksum as it is written: sixteen lower-case digits.
fn sum_from(word: &str) -> Option<u64> {
    let right = word.len() == 16 && word.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if right { u64::from_str_radix(word, 16).ok() } else { None }
}

/// A UUID as it is written: 32 lower-case digits.
fn log_from(word: &str) -> Option<[u8; 16]> {
    let right = word.len() == 32 && word.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if right { u128::from_str_radix(word, 16).ok().map(u128::to_be_bytes) } else { None }
}

#[cfg(test)]
mod tests;
