//! The manifest of a backup: lines of text, with a checksum for each chunk that is not all zeros.
//!
//! ```text
//! untorn backup 1
//! source /var/lib/app/ledger
//! commit 42
//! taken 1764381234.123456789
//! length 3145728
//! stored 1052672
//! chunk 1048576 crc64-nvme
//! 0 8fb4d8a2b3f81c25
//! 2 1d2e3f4a5b6c7d8e
//! end 0b9c8d7e6f5a4b3c
//! ```
//!
//! The last line has the checksum of all lines before. `docs/format.md` describes the lines.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Backup, is_zero};
use crate::error::{Error, Result};

const FIRST: &str = "untorn backup 1";

pub(super) struct Manifest {
    source: PathBuf,
    commit: u64,
    taken: SystemTime,
    pub(super) len: u64,
    /// Bytes that are no hole.
    pub(super) bytes: u64,
    chunk: u64,
    /// The checksums of the chunks that are not all zeros.
    sums: BTreeMap<u64, u64>,
}

fn sum_of(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

impl Manifest {
    pub(super) fn new(source: &Path, commit: u64, taken: SystemTime, len: u64, chunk: u64) -> Self {
        Manifest { source: source.to_owned(), commit, taken, len, bytes: 0, chunk, sums: BTreeMap::new() }
    }

    /// Notes the checksum of a chunk.
    pub(super) fn add(&mut self, offset: u64, bytes: &[u8]) {
        if !is_zero(bytes) {
            self.sums.insert(offset / self.chunk, sum_of(bytes));
        }
    }

    /// # Errors
    /// [`Error::Corrupt`] if these are not the bytes of the chunk at `offset`.
    pub(super) fn check(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
        let right = match self.sums.get(&(offset / self.chunk)) {
            Some(sum) => sum_of(bytes) == *sum,
            None => is_zero(bytes),
        };
        if right {
            return Ok(());
        }
        let what = format!("{} bytes of the backup do not match its manifest", bytes.len());
        Err(Error::Corrupt { path: path.to_owned(), offset: Some(offset), what })
    }

    pub(super) fn summary(&self) -> Backup {
        Backup { commit: self.commit, taken: self.taken, len: self.len, bytes: self.bytes }
    }

    pub(super) fn to_text(&self) -> String {
        let since = self.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
        // A path may have any byte but 0.
        let source = self.source.to_string_lossy().replace(['\n', '\r'], "\u{fffd}");
        let mut text = format!(
            "{FIRST}\nsource {source}\ncommit {}\ntaken {}.{:09}\nlength {}\nstored {}\nchunk {} crc64-nvme\n",
            self.commit,
            since.as_secs(),
            since.subsec_nanos(),
            self.len,
            self.bytes,
            self.chunk
        );
        for (chunk, sum) in &self.sums {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{chunk} {sum:016x}");
        }
        let sum = sum_of(text.as_bytes());
        let _ = writeln!(text, "end {sum:016x}");
        text
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
        let end = text.strip_suffix('\n')?.rfind('\n')? + 1;
        let sum = text[end..].strip_prefix("end ")?.strip_suffix('\n')?;
        if sum.len() != 16 || u64::from_str_radix(sum, 16).ok()? != sum_of(&text.as_bytes()[..end]) {
            return None;
        }
        let mut lines = text[..end].lines();
        if lines.next()? != FIRST {
            return None;
        }
        let source = PathBuf::from(lines.next()?.strip_prefix("source ")?);
        let mut number = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
        let commit = number("commit")?.parse().ok()?;
        let taken = number("taken")?;
        let (seconds, nanoseconds) = taken.split_once('.')?;
        let nanoseconds = nanoseconds.parse().ok().filter(|count| *count < 1_000_000_000)?;
        let taken = UNIX_EPOCH.checked_add(Duration::new(seconds.parse().ok()?, nanoseconds))?;
        let len = number("length")?.parse().ok()?;
        let bytes = number("stored")?.parse().ok()?;
        let chunk = number("chunk")?.strip_suffix(" crc64-nvme")?.parse().ok()?;
        if chunk != super::CHUNK {
            return None;
        }
        let mut manifest = Manifest { source, commit, taken, len, bytes, chunk, sums: BTreeMap::new() };
        for line in lines {
            let (chunk, sum) = line.split_once(' ')?;
            manifest.sums.insert(chunk.parse().ok()?, u64::from_str_radix(sum, 16).ok()?);
        }
        Some(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_and_any_changed_byte_is_noticed() {
        let taken = UNIX_EPOCH + Duration::new(1_764_381_234, 5);
        let mut manifest = Manifest::new(Path::new("/var/lib/a\nb"), 42, taken, (2 << 20) + 7, 1 << 20);
        manifest.add(0, &[7; 1 << 20]);
        manifest.add(1 << 20, &[0; 1 << 20]);
        manifest.add(2 << 20, &[1; 7]);
        let text = manifest.to_text();
        let path = Path::new("m");
        let parsed = Manifest::parse(path, &text).unwrap();
        assert_eq!((parsed.summary(), parsed.sums.clone()), (manifest.summary(), manifest.sums.clone()));
        parsed.check(path, 0, &[7; 1 << 20]).unwrap();
        parsed.check(path, 1 << 20, &[0; 1 << 20]).unwrap();
        assert!(parsed.check(path, 0, &[0; 1 << 20]).is_err() && parsed.check(path, 1 << 20, &[1]).is_err());
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8_lossy(&changed).into_owned();
            assert!(Manifest::parse(path, &changed).is_err(), "byte {at}");
            let cut = String::from_utf8_lossy(&text.as_bytes()[..at]);
            assert!(Manifest::parse(path, &cut).is_err(), "cut at {at}");
        }
        // One that somebody made by hand, with the right checksum.
        let lines = text[..text.rfind("end ").unwrap()].replace("1764381234.", "18446744073709551615.9999999999");
        let forged = format!("{lines}end {:016x}\n", sum_of(lines.as_bytes()));
        assert!(matches!(Manifest::parse(path, &forged), Err(Error::Corrupt { .. })));
        let lines = lines.replace("9999999999000000005", "4294967295");
        let forged = format!("{lines}end {:016x}\n", sum_of(lines.as_bytes()));
        assert!(lines.contains("18446744073709551615.4294967295"));
        assert!(matches!(Manifest::parse(path, &forged), Err(Error::Corrupt { .. })));
        let newer = text.replace("backup 1", "backup 2");
        assert!(matches!(Manifest::parse(path, &newer), Err(Error::Unsupported { .. })));
    }
}
