//! The file behind the guest's memory under test.
//!
//! As an NVDIMM: [`HEAD`] bytes that tell the kernel to treat the namespace as "fsdax", then the device. The device
//! holds the file system, then [`MAILBOX`] bytes through which the host passes the reports received before the cut to
//! the guest.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::tools;
use crate::error::{Error, Result};

/// The whole image.
pub(super) const LEN: u64 = 512 << 20;
/// The offset of the device in an NVDIMM's image.
pub(super) const HEAD: u64 = 2 << 20;
/// The space for reports.
pub(super) const MAILBOX: u64 = 4 << 20;
/// The file system. xfs needs at least 300 MiB.
pub(super) const FILE_SYSTEM: u64 = LEN - HEAD - MAILBOX;

/// A file system that can live on persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// The fourth extended file system.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Its name to `mount`.
    pub fn as_str(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }

    /// Makes a file with an empty file system in it.
    pub(super) fn make(self, path: &Path) -> Result<()> {
        let file = File::create(path).map_err(Error::io_at("create", path))?;
        file.set_len(FILE_SYSTEM).map_err(Error::io_at("size", path))?;
        let (program, options): (_, &[&str]) = match self {
            FileSystem::Ext4 => ("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0"]),
            // Kernels before 6.0 don't support DAX together with reflink.
            FileSystem::Xfs => ("mkfs.xfs", &["-q", "-f", "-m", "reflink=0"]),
        };
        let path = path.to_string_lossy();
        let arguments: Vec<&str> = options.iter().copied().chain([path.as_ref()]).collect();
        tools::run(program, &arguments, Path::new("/")).map(drop)
    }
}

/// Creates the image again: a head, if there is one, and a file system after it.
pub(super) fn assemble(head: Option<&[u8]>, file_system: &Path, image: &Path) -> Result<()> {
    let from = File::open(file_system).map_err(Error::io_at("open", file_system))?;
    let to = File::create(image).map_err(Error::io_at("create", image))?;
    to.set_len(LEN).map_err(Error::io_at("size", image))?;
    let head = head.unwrap_or_default();
    (&to).write_all(head).map_err(Error::io_at("write", image))?;
    copy_data(&from, &to, head.len() as u64).map_err(Error::io_at("write", image))
}

/// Copies a file with its holes.
pub(super) fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let (from, to) = (File::open(from)?, File::create(to)?);
    to.set_len(from.metadata()?.len())?;
    copy_data(&from, &to, 0)
}

/// Copies everything except holes, shifted by `shift`.
fn copy_data(from: &File, to: &File, shift: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            found => found?,
        };
        at = start;
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?;
        while at < end {
            let len = (end - at).min(buffer.len() as u64) as usize;
            from.read_exact_at(&mut buffer[..len], at)?;
            to.write_all_at(&buffer[..len], at + shift)?;
            at += len as u64;
        }
    }
}

/// Puts bytes into the mailbox of an image whose device starts at `head`. Returns the guest's command that prints them.
pub(super) fn post(image: &Path, head: u64, bytes: &[u8]) -> Result<String> {
    if bytes.len() as u64 > MAILBOX {
        return Err(Error::failed(
            "pass the reports to the guest",
            format!("{} bytes exceed the maximum of {MAILBOX}", bytes.len()),
        ));
    }
    let file = fs::OpenOptions::new().write(true).open(image).map_err(Error::io_at("open", image))?;
    file.write_all_at(bytes, head + FILE_SYSTEM).map_err(Error::io_at("write", image))?;
    let skip = FILE_SYSTEM / 4096;
    let blocks = bytes.len().div_ceil(4096);
    Ok(format!("dd if=/dev/pmem0 bs=4096 skip={skip} count={blocks} 2>/tmp/dd | head -c {}", bytes.len()))
}

/// The head of an image.
pub(super) fn head(image: &Path) -> Result<Vec<u8>> {
    let file = File::open(image).map_err(Error::io_at("open", image))?;
    let mut head = vec![0; HEAD as usize];
    file.read_exact_at(&mut head, 0).map_err(Error::io_at("read", image))?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_head_file_system_and_mailbox_and_keeps_its_holes() {
        let place = tempfile::tempdir().unwrap();
        let (source, image) = (place.path().join("fs"), place.path().join("image"));
        let file = File::create(&source).unwrap();
        file.set_len(FILE_SYSTEM).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(b"last", FILE_SYSTEM - 4).unwrap();
        assemble(Some(&vec![7; HEAD as usize]), &source, &image).unwrap();
        let command = post(&image, HEAD, b"word").unwrap();
        assert!(command.contains("count=1 ") && command.ends_with("head -c 4"), "{command}");

        assert_eq!(head(&image).unwrap(), vec![7; HEAD as usize]);
        let file = File::open(&image).unwrap();
        let bytes = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at).unwrap();
            bytes
        };
        assert_eq!(bytes(HEAD, 5), b"first");
        assert_eq!(bytes(HEAD + FILE_SYSTEM - 4, 8), b"lastword");
        assert_eq!(file.metadata().unwrap().len(), LEN);
        assert!(post(&image, HEAD, &vec![0; MAILBOX as usize + 1]).is_err());
    }
}
