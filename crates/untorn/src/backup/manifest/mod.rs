//! The manifest of a backup: lines of text, with a checksum for each chunk that is not all zeros.
//!
//! ```text
//! untorn backup 2
//! source /var/lib/app/ledger
//! commit 42
//! taken 1764381234.123456789
//! length 3145728
//! mode 640
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
//! # Invariants
//!
//! 1. A manifest has the checksums of all chunks of the file at its commit, also that of an increment. A chunk without
//!    a line is all zeros. So a base needs no more than its manifest, and a chain is verified by its last one.
//! 2. Chunks are named in ascending order, each once and within the length. Where the bytes of a chunk stand in the
//!    backup follows from that order, so no two overlap.
//! 3. All numbers are bounded before anything is allocated by them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Backup, is_zero};
use crate::error::{Error, Result};

const FIRST: &str = "untorn backup 2";

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
    pub(super) base: Option<Base>,
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
        base: Option<&Manifest>,
    ) -> Result<Self> {
        let mut chunk = SMALLEST;
        while base.is_none() && len / chunk > USUAL_CHUNKS && chunk < LARGEST {
            chunk *= 2;
        }
        let chunk = base.map_or(chunk, |base| base.chunk);
        if len.div_ceil(chunk) > MOST_CHUNKS {
            let what = format!("{len} bytes are too many for the chunks of its base; make a full backup");
            return Err(Error::Invalid { path: source.to_owned(), what });
        }
        let base = base.map(|base| Base { id: base.id(), commit: base.commit, len: base.len });
        let (source, chunks) = (source.to_owned(), BTreeMap::new());
        Ok(Manifest { source, commit, taken, len, mode, base, stored: 0, chunk, chunks, packed: 0 })
    }

    /// The bytes of a chunk.
    pub(super) fn len_of(&self, chunk: u64) -> u64 {
        self.chunk.min(self.len.saturating_sub(chunk * self.chunk))
    }

    /// The length of the backup that this is the manifest of.
    pub(super) fn file_len(&self) -> u64 {
        if self.base.is_some() { self.packed } else { self.len }
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
        let at = match self.base {
            None => Some(chunk * self.chunk),
            Some(_) => has_it.then_some(self.packed),
        };
        if self.base.is_some() && has_it {
            self.packed += self.len_of(chunk);
        }
        self.chunks.insert(chunk, Chunk { sum, at });
        at
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
        let base = self.base.map(|base| base.commit);
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
        if let Some(Base { id, commit, len }) = self.base {
            let _ = writeln!(text, "base {id:016x} {commit} {len}");
        }
        let _ = writeln!(text, "stored {}\nchunk {} crc64-nvme", self.stored, self.chunk);
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
        let len = lines.next()?.strip_prefix("length ")?.parse().ok().filter(|len| *len <= i64::MAX as u64)?;
        let mode = match lines.peek()?.strip_prefix("mode ") {
            None => None,
            Some(mode) => Some(u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777)?),
        };
        if mode.is_some() {
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
        let stored = lines.next()?.strip_prefix("stored ")?.parse().ok()?;
        let chunk: u64 = lines.next()?.strip_prefix("chunk ")?.strip_suffix(" crc64-nvme")?.parse().ok()?;
        if !chunk.is_power_of_two() || !(super::BLOCK as u64..=LARGEST).contains(&chunk) {
            return None;
        }
        let chunks = BTreeMap::new();
        let mut manifest = Manifest { source, commit, taken, len, mode, base, stored, chunk, chunks, packed: 0 };
        let count = len.div_ceil(chunk);
        if count > MOST_CHUNKS {
            return None;
        }
        let mut next = 0;
        for line in lines {
            let (number, rest) = line.split_once(' ')?;
            let number = number.parse().ok().filter(|number| (next..count).contains(number))?;
            next = number + 1;
            let marked = rest.strip_suffix(" +");
            if marked.is_some() && base.is_none() {
                return None;
            }
            manifest.note(number, sum_from(marked.unwrap_or(rest))?, marked.is_some());
        }
        Some(manifest)
    }
}

/// A checksum as it is written: sixteen lower-case digits.
fn sum_from(word: &str) -> Option<u64> {
    let right = word.len() == 16 && word.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if right { u64::from_str_radix(word, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = (2 << 20) + 7;

    fn manifest(base: Option<&Manifest>) -> Manifest {
        let taken = UNIX_EPOCH + Duration::new(1_764_381_234, 5);
        let mut manifest = Manifest::new(Path::new("/var/lib/a\nb"), (42, taken, LEN), Some(0o640), base).unwrap();
        manifest.add(0, &[7; 16 << 10], base);
        manifest.add(1 << 20, &[0; 16 << 10], base);
        manifest.add(2 << 20, &[1; 7], base);
        manifest
    }

    /// Text with the checksum that it should have.
    fn sealed(lines: &str) -> String {
        format!("{lines}end {:016x}\n", sum_of(lines.as_bytes()))
    }

    #[test]
    fn a_manifest_comes_back_and_any_changed_byte_is_noticed() {
        let full = manifest(None);
        let mut increment = manifest(Some(&full));
        assert_eq!((increment.chunks.len(), increment.file_len()), (2, 0), "nothing differs");
        increment.add(128 << 14, &[9; 7], Some(&full));
        increment.chunks.insert(5, Chunk { sum: 1, at: None });
        let path = Path::new("m");
        for manifest in [&full, &increment] {
            let text = manifest.to_text();
            let parsed = Manifest::parse(path, &text).unwrap();
            assert_eq!(
                (parsed.to_text(), &parsed.chunks, parsed.id()),
                (text.clone(), &manifest.chunks, manifest.id())
            );
            assert_eq!(parsed.file_len(), manifest.file_len());
            for at in 0..text.len() {
                let mut changed = text.clone().into_bytes();
                changed[at] ^= 1;
                let changed = String::from_utf8_lossy(&changed).into_owned();
                assert!(Manifest::parse(path, &changed).is_err(), "byte {at}");
                let cut = String::from_utf8_lossy(&text.as_bytes()[..at]);
                assert!(Manifest::parse(path, &cut).is_err(), "cut at {at}");
            }
            let newer = text.replace("backup 2", "backup 3");
            assert!(matches!(Manifest::parse(path, &newer), Err(Error::Unsupported { .. })));
        }
        full.check(path, 0, 0, &[7; 16 << 10]).unwrap();
        full.check(path, 0, 64, &[0; 16 << 10]).unwrap();
        assert!(full.check(path, 0, 0, &[0; 16 << 10]).is_err() && full.check(path, 0, 64, &[1]).is_err());
    }

    /// Ones that somebody made by hand, with the right checksum.
    #[test]
    fn a_forged_manifest_is_refused() {
        let full = manifest(None);
        let mut increment = manifest(Some(&full));
        increment.add(2 << 20, &[9; 7], Some(&full));
        let text = increment.lines();
        let path = Path::new("m");
        Manifest::parse(path, &sealed(&text)).unwrap();
        let line = |number: u64| format!("{number} {:016x}", increment.chunks[&number].sum);
        let forged = [
            text.replace("1764381234.", "18446744073709551615."),
            text.replace(".000000005", ".4294967295"),
            text.replace(&format!("length {LEN}"), "length 18446744073709551615"),
            text.replace(&format!("length {LEN}"), "length 9223372036854775807"),
            text.replace("chunk 16384", "chunk 0"),
            text.replace("chunk 16384", "chunk 16385"),
            text.replace("chunk 16384", "chunk 9223372036854775808"),
            text.replace("mode 640", "mode 4755"),
            text.replace("base ", "base 0"),
            text.replace(&line(0), &format!("{}\n{}", line(0), line(0))),
            text.replace(&line(0), &line(0).replacen('0', "129", 1)),
            text.replace(&line(0), &line(0).replacen('0', "18446744073709551616", 1)),
            text.replace(&line(128), &line(128).replacen("128", "200", 1)),
            text.replace(&line(128), &format!("{}z", line(128))),
            text.lines().filter(|line| !line.starts_with("base ")).map(|line| format!("{line}\n")).collect(),
        ];
        for lines in forged {
            assert_ne!(lines, text);
            assert!(matches!(Manifest::parse(path, &sealed(&lines)), Err(Error::Corrupt { .. })), "{lines}");
        }
    }

    #[test]
    fn a_long_file_has_large_chunks_and_keeps_those_of_its_base() {
        let at = |len, base: Option<&Manifest>| Manifest::new(Path::new("f"), (1, UNIX_EPOCH, len), None, base);
        let chunks = [0, 16 << 30, 17 << 30, 1 << 40, 1 << 46].map(|len| at(len, None).unwrap().chunk);
        assert_eq!(chunks, [16 << 10, 16 << 10, 32 << 10, 1 << 20, 64 << 20]);
        let base = at(1 << 20, None).unwrap();
        assert_eq!(at(60 << 30, Some(&base)).unwrap().chunk, base.chunk);
        assert!(matches!(at(65 << 30, Some(&base)), Err(Error::Invalid { .. })));
    }
}
