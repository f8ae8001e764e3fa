//! Backups as they are read: one by itself, and a full one with its increments.
//!
//! # Invariants
//!
//! 1. An increment with a base applies to the backup whose manifest it names by its checksum, and to no other. One by
//!    the commit log applies to a backup of the same log whose commit is one that it begins after, or a later one up to
//!    its own. So a chain that is wrong, out of order or not complete is refused before anything is written.
//! 2. The last manifest of a chain that is not one by the log has the checksums of the whole file. Every byte up to
//!    there is compared with them, whichever backup has it. An increment by the log that comes later brings those of
//!    the chunks that it has.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::copy::{Pace, Place, STEP};
use super::manifest::{Base, Known, Manifest};
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

/// What is known of a base, which is named by backups or by their manifests: one that tells all of the file, and after
/// it the increments by the commit log that follow it.
///
/// # Errors
/// [`Error::Invalid`] if they do not follow each other, or leave anything open; those of reading.
pub(super) fn base(named: &[PathBuf]) -> Result<Option<Known>> {
    let mut known: Option<Known> = None;
    let mut before: Option<(&Path, Manifest)> = None;
    for path in named {
        let manifest = manifest_at(path)?;
        let invalid = |what: &str| Error::Invalid { path: path.clone(), what: what.to_owned() };
        if known.is_none() && manifest.since.is_some() {
            return Err(invalid(
                "it was made by --since, and has the checksums of what changed only; use --since, or name the backups \
                 that it follows before it, each with a --base of its own",
            ));
        }
        if let Some((before, found)) = &before {
            follows((path, &manifest), Some((before, found)))?;
        }
        let state = match (known, manifest.since) {
            (Some(known), Some(_)) => {
                let told = manifest.clone().over(known.manifest);
                told.ok_or_else(|| invalid("its chunks have another length than its base's; make a full backup"))?
            }
            _ => manifest.clone(),
        };
        known = Some(Known { id: manifest.id(), manifest: state });
        before = Some((path, manifest));
    }
    Ok(known)
}

/// The manifest that is named by its backup or by itself.
fn manifest_at(named: &Path) -> Result<Manifest> {
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
    if manifest.is_increment() {
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

/// Whether a backup goes on from the one before it. Each comes with its path.
///
/// # Errors
/// [`Error::Invalid`] if it does not.
fn follows((path, part): (&Path, &Manifest), before: Option<(&Path, &Manifest)>) -> Result<()> {
    const ORDER: &str = "name the full backup first, then the increments in the order in which they were made";
    let refused = |what: String| Err(Error::Invalid { path: path.to_owned(), what });
    let named = before.map(|(before, manifest)| (before.display(), manifest));
    match (named, part.base, part.since) {
        (None, None, None) => Ok(()),
        (None, Some(Base { commit, .. }), _) | (None, None, Some(commit)) => {
            refused(format!("it is an increment of a backup of commit {commit}; name that one before it"))
        }
        (Some((before, _)), None, None) => refused(format!("it is a full backup, and no increment of {before}")),
        (Some((before, found)), Some(base), _) if base.id != found.id() => refused(format!(
            "it is an increment of a backup of commit {}, and {before}, which is named before it, is another one, \
             of commit {}; {ORDER}",
            base.commit, found.commit
        )),
        (Some(_), Some(_), _) => Ok(()),
        (Some((before, found)), None, Some(since)) if since > found.commit => refused(format!(
            "it has what changed after commit {since}, and {before}, which is named before it, is of commit {}: \
             the changes in between are missing; {ORDER}",
            found.commit
        )),
        (Some((before, found)), None, Some(_)) if part.commit < found.commit => refused(format!(
            "it goes up to commit {} only, and {before}, which is named before it, is of commit {} already; {ORDER}",
            part.commit, found.commit
        )),
        (Some((before, found)), None, Some(_)) if found.log.is_none() => refused(format!(
            "{before}, which is named before it, was made when the file had no commit log, so nothing tells that \
             no change is missing in between; an increment by --since needs a full backup that was made after the \
             log began"
        )),
        (Some((before, found)), None, Some(_)) if found.log != part.log => refused(format!(
            "{before}, which is named before it, is of another file, or its commit log has begun anew since; name \
             a full backup that was made after that"
        )),
        (Some(_), None, Some(_)) => Ok(()),
    }
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
            follows((&part.path, &part.manifest), before.map(|before| (&*before.path, &before.manifest)))?;
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

    /// The backups up to the last one whose manifest tells all of the file.
    fn whole(&self) -> &[Part] {
        let end = self.0.iter().rposition(|part| part.manifest.since.is_none()).map_or(0, |at| at + 1);
        &self.0[..end]
    }

    /// Writes the file at the last commit into an empty one. Returns how many bytes it wrote.
    pub(super) fn restore(&self, file: &File, path: &Path, options: &BackupOptions) -> Result<u64> {
        let whole = self.whole();
        let mut written = restore_whole(whole, file, path, options)?;
        for part in &self.0[whole.len()..] {
            written += part.apply(file, path, options)?;
        }
        Ok(written)
    }
}

impl Part {
    /// Makes the changes of an increment by the log to a file that is as it was before them. Returns how many bytes it
    /// wrote.
    fn apply(&self, file: &File, path: &Path, options: &BackupOptions) -> Result<u64> {
        let manifest = &self.manifest;
        file.set_len(manifest.len).map_err(|error| Error::io("write", path, error))?;
        let mut pace = Pace::new(options, "restoring an increment", path, manifest.file_len());
        let mut place = Place::filled(file, path);
        for zeros in &manifest.zeros {
            place.clear(zeros.start * manifest.chunk..(zeros.end * manifest.chunk).min(manifest.len))?;
        }
        let mut bytes = vec![0; manifest.chunk.min(manifest.len.max(1)) as usize];
        for (&chunk, noted) in &manifest.chunks {
            let Some(at) = noted.at else { continue };
            let bytes = &mut bytes[..manifest.len_of(chunk) as usize];
            self.file.read_exact_at(bytes, at).map_err(|error| Error::io("read", &self.path, error))?;
            manifest.check(&self.path, at, chunk, bytes)?;
            place.put(chunk * manifest.chunk, bytes)?;
            pace.step(at + bytes.len() as u64, bytes.len() as u64)?;
        }
        pace.step(manifest.file_len(), 0)?;
        Ok(place.written())
    }
}

/// The backup of a chain that has a chunk of the last one, and where it has it.
fn find(parts: &[Part], last: &Part, chunk: u64, sum: u64) -> Result<(usize, u64)> {
    let len = last.manifest.len_of(chunk);
    for (number, part) in parts.iter().enumerate().rev() {
        let manifest = &part.manifest;
        if manifest.chunk != last.manifest.chunk || manifest.len_of(chunk) != len {
            break;
        }
        match manifest.chunks.get(&chunk).filter(|noted| noted.sum == sum) {
            Some(noted) => {
                if let Some(at) = noted.at {
                    return Ok((number, at));
                }
            }
            // It did not change there.
            None if manifest.since.is_some() && !manifest.tells_of(chunk) => {}
            None => break,
        }
    }
    let what = format!("no backup of the chain has the bytes of its chunk {chunk}");
    Err(Error::Corrupt { path: last.path.clone(), offset: None, what })
}

/// Writes the file at the commit of the last of these backups, whose manifest tells all of it, into an empty one.
/// Returns how many bytes it wrote.
fn restore_whole(parts: &[Part], file: &File, path: &Path, options: &BackupOptions) -> Result<u64> {
    let Some(whole) = parts.last() else { return Ok(0) };
    let last = &whole.manifest;
    let failed = |error| Error::io("write", path, error);
    file.set_len(last.len).map_err(failed)?;
    let mut pace = Pace::new(options, "restoring", path, last.len);
    let mut bytes = vec![0; last.chunk.max(STEP).min(last.len.max(1)) as usize];
    let (mut written, mut chunks) = (0, last.chunks.iter().peekable());
    while let Some((&first, noted)) = chunks.next() {
        let (part, at) = find(parts, whole, first, noted.sum)?;
        // As many as follow in the same backup are read at once.
        let (mut next, mut len) = (first + 1, last.len_of(first));
        while let Some((chunk, noted)) = chunks.peek().copied()
            && *chunk == next
            && len + last.chunk <= bytes.len() as u64
            && find(parts, whole, *chunk, noted.sum)? == (part, at + len)
        {
            (next, len) = (next + 1, len + last.len_of(next));
            chunks.next();
        }
        let (part, bytes) = (&parts[part], &mut bytes[..len as usize]);
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
