//! Backups as they are read: one by itself, and a full one with its increments.
//!
//! # Invariants
//!
//! 1. An increment applies to the backup whose manifest it names by its checksum, and to no other. So a chain that is
//!    wrong, out of order or not complete is refused before anything is written.
//! 2. The last manifest of a chain has the checksums of the whole file. Every byte that is restored is compared with
//!    them, whichever backup has it.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::copy::{Pace, STEP};
use super::manifest::Manifest;
use super::{BLOCK, BackupOptions, is_zero, manifest_of, target};
use crate::error::{Error, Result};
use crate::sys::file::data_from;

/// A backup and its manifest.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    pub(super) manifest: Manifest,
}

impl Part {
    pub(super) fn open(backup: &Path) -> Result<Self> {
        let failed = |error| Error::io("open", backup, error);
        let file = File::open(backup).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let fits = |manifest: &Manifest| {
            len == manifest.file_len() && compare(&file, backup, manifest, &BackupOptions::new()).is_ok()
        };
        let manifest = target::manifest(backup, fits)?;
        if len != manifest.file_len() {
            let what = format!("it has {len} bytes, and {} by its manifest", manifest.file_len());
            return Err(Error::Corrupt { path: backup.to_owned(), offset: None, what });
        }
        Ok(Part { path: backup.to_owned(), file, manifest })
    }

    pub(super) fn verify(&self, options: &BackupOptions) -> Result<()> {
        compare(&self.file, &self.path, &self.manifest, options)
    }
}

/// The manifest of a base, which is named by its backup or by itself.
pub(super) fn base(named: &Path) -> Result<Manifest> {
    let is_manifest = named.as_os_str().as_encoded_bytes().ends_with(b".manifest");
    if is_manifest && !manifest_of(named).exists() {
        return Manifest::read(named);
    }
    if named.exists() { Part::open(named).map(|part| part.manifest) } else { Manifest::read(&manifest_of(named)) }
}

/// Compares a backup with its manifest.
pub(super) fn compare(file: &File, path: &Path, manifest: &Manifest, options: &BackupOptions) -> Result<()> {
    let len = manifest.file_len();
    let mut pace = Pace::new(options, "comparing the backup", path, len);
    let mut bytes = vec![0; manifest.chunk.max(STEP).min(len.max(1)) as usize];
    // Chunks that are to be there, in the order of their places.
    let mut wanted = manifest.chunks.iter().filter_map(|(chunk, noted)| Some((*chunk, noted.at?))).peekable();
    let mut read = |chunk: u64, at: u64| {
        let part = &mut bytes[..manifest.len_of(chunk) as usize];
        file.read_exact_at(part, at).map_err(|error| Error::io("read", path, error))?;
        manifest.check(path, at, chunk, part)?;
        pace.step(at + part.len() as u64, part.len() as u64)
    };
    if manifest.base.is_some() {
        return wanted.try_for_each(|(chunk, at)| read(chunk, at));
    }
    let mut next = 0;
    loop {
        // A file system that does not tell holes from data has only data.
        let from = next * manifest.chunk;
        let data = if from < len { data_from_or_all(file, from, len) } else { None };
        let chunk = data.map_or(u64::MAX, |data| (data / manifest.chunk).max(next));
        // A chunk that is to be there and is a hole is read too, and told.
        let chunk = chunk.min(wanted.peek().map_or(u64::MAX, |(chunk, _)| *chunk));
        if chunk == u64::MAX {
            return Ok(());
        }
        wanted.next_if(|(wanted, _)| *wanted == chunk);
        read(chunk, chunk * manifest.chunk)?;
        next = chunk + 1;
    }
}

/// The first byte from `from` on that is in no hole.
fn data_from_or_all(file: &File, from: u64, len: u64) -> Option<u64> {
    let data = data_from(file.as_fd(), from).unwrap_or(Some(from..len));
    data.map(|data| data.start).filter(|start| *start < len)
}

/// A full backup and increments, in order.
pub(super) struct Chain(Vec<Part>);

impl Chain {
    /// # Errors
    /// [`Error::Invalid`] unless each backup is an increment of the one before; those of opening them.
    pub(super) fn open<P: AsRef<Path>>(backups: &[P]) -> Result<Self> {
        let parts: Vec<Part> = backups.iter().map(|backup| Part::open(backup.as_ref())).collect::<Result<_>>()?;
        let mut before: Option<&Part> = None;
        for part in &parts {
            let refused = |what: String| Err(Error::Invalid { path: part.path.clone(), what });
            match (before, part.manifest.base) {
                (None, None) => {}
                (None, Some(base)) => {
                    let commit = base.commit;
                    let what = format!("it is an increment of a backup of commit {commit}; name that one before it");
                    return refused(what);
                }
                (Some(before), None) => {
                    let what = format!("it is a full backup, and no increment of {}", before.path.display());
                    return refused(what);
                }
                (Some(before), Some(base)) if base.id != before.manifest.id() => {
                    let (wanted, found) = (base.commit, before.manifest.commit);
                    let what = format!(
                        "it is an increment of a backup of commit {wanted}, and {}, which is named before it, is \
                         another one, of commit {found}; name the full backup first, then the increments in the \
                         order in which they were made",
                        before.path.display()
                    );
                    return refused(what);
                }
                (Some(_), Some(_)) => {}
            }
            before = Some(part);
        }
        if parts.is_empty() {
            let what = "no backup is named".to_owned();
            return Err(Error::Invalid { path: PathBuf::new(), what });
        }
        Ok(Chain(parts))
    }

    /// The manifest of the file that comes out.
    pub(super) fn last(&self) -> &Manifest {
        &self.0[self.0.len() - 1].manifest
    }

    /// The backup that has a chunk of the last one, and where it has it.
    fn find(&self, chunk: u64, sum: u64) -> Result<(usize, u64)> {
        let len = self.last().len_of(chunk);
        for (number, part) in self.0.iter().enumerate().rev() {
            let noted = part.manifest.chunks.get(&chunk);
            match noted.filter(|noted| noted.sum == sum && part.manifest.len_of(chunk) == len) {
                Some(noted) => {
                    if let Some(at) = noted.at {
                        return Ok((number, at));
                    }
                }
                None => break,
            }
        }
        let what = format!("no backup of the chain has the bytes of its chunk {chunk}");
        Err(Error::Corrupt { path: self.0[self.0.len() - 1].path.clone(), offset: None, what })
    }

    /// Writes the file at the last commit into an empty one. Returns how many bytes it wrote.
    pub(super) fn restore(&self, file: &File, path: &Path, options: &BackupOptions) -> Result<u64> {
        let last = self.last();
        let failed = |error| Error::io("write", path, error);
        file.set_len(last.len).map_err(failed)?;
        let mut pace = Pace::new(options, "restoring", path, last.len);
        let mut bytes = vec![0; last.chunk.max(STEP).min(last.len.max(1)) as usize];
        let (mut written, mut chunks) = (0, last.chunks.iter().peekable());
        while let Some((&first, noted)) = chunks.next() {
            let (part, at) = self.find(first, noted.sum)?;
            // As many as follow in the same backup are read at once.
            let (mut next, mut len) = (first + 1, last.len_of(first));
            while let Some((chunk, noted)) = chunks.peek().copied()
                && *chunk == next
                && len + last.chunk <= bytes.len() as u64
                && self.find(*chunk, noted.sum)? == (part, at + len)
            {
                (next, len) = (next + 1, len + last.len_of(next));
                chunks.next();
            }
            let (part, bytes) = (&self.0[part], &mut bytes[..len as usize]);
            part.file.read_exact_at(bytes, at).map_err(|error| Error::io("read", &part.path, error))?;
            for (number, bytes) in bytes.chunks(last.chunk as usize).enumerate() {
                let at = at + number as u64 * last.chunk;
                last.check(&part.path, at, first + number as u64, bytes)?;
            }
            let offset = first * last.chunk;
            for (number, block) in bytes.chunks(BLOCK).enumerate().filter(|(_, block)| !is_zero(block)) {
                file.write_all_at(block, offset + (number * BLOCK) as u64).map_err(failed)?;
                written += block.len() as u64;
            }
            pace.step(offset + len, len)?;
        }
        pace.step(last.len, 0)?;
        Ok(written)
    }
}
