//! Disk images as sparse files: zeros take no space and no time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::crash::Patch;
use crate::error::{Error, Result};

/// The unit of copying and of the search for zeros.
const PIECE: usize = 64 << 10;
const PAGE: usize = 4 << 10;
static ZEROS: [u8; PIECE] = [0; PIECE];

/// Makes `to` a copy of the image `from`, with holes where there are zeros. `to` may exist.
pub fn copy_image(from: &Path, to: &Path) -> Result<()> {
    copy(from, to).map(drop)
}

/// Makes `to` the image `base` with `patches` written over it in their order. `to` may exist.
pub fn write_image(base: &Path, patches: &[Patch<'_>], to: &Path) -> Result<()> {
    let image = copy(base, to)?;
    for patch in patches {
        let written = match *patch {
            Patch::Bytes(offset, bytes) => image.write_all_at(bytes, offset),
            Patch::Zeros(offset, len) => write_zeros(&image, offset, len),
        };
        written.map_err(|error| Error::io("write to", to, error))?;
    }
    Ok(())
}

/// Writes zeros.
pub(super) fn write_zeros(file: &File, mut offset: u64, len: u64) -> io::Result<()> {
    let end = offset + len;
    while offset < end {
        let n = (end - offset).min(PIECE as u64);
        file.write_all_at(&ZEROS[..n as usize], offset)?;
        offset += n;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<File> {
    let source = File::open(from).map_err(|error| Error::io("open", from, error))?;
    // Create a new file instead of truncating the old one: a loop device may still use that for a moment.
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io("replace", to, error)),
        _ => {}
    }
    let target = File::create_new(to).map_err(|error| Error::io("create", to, error))?;
    copy_data(&source, &target).map_err(|error| Error::io("copy an image to", to, error))?;
    Ok(target)
}

fn copy_data(source: &File, target: &File) -> io::Result<()> {
    let len = source.metadata()?.len();
    target.set_len(len)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        // ENXIO: only a hole up to the end.
        let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(source, SeekFrom::Hole(start))?;
        let mut offset = start;
        while offset < at {
            let n = (at - offset).min(PIECE as u64) as usize;
            source.read_exact_at(&mut piece[..n], offset)?;
            for (i, page) in piece[..n].chunks(PAGE).enumerate() {
                if page != &ZEROS[..page.len()] {
                    target.write_all_at(page, offset + (i * PAGE) as u64)?;
                }
            }
            offset += n as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_image_is_its_base_under_the_patches_and_stays_sparse() {
        let dir = tempfile::tempdir().expect("a directory");
        let (base, image) = (dir.path().join("base"), dir.path().join("image"));
        let file = File::create(&base).expect("created");
        file.set_len(64 << 20).expect("grown");
        file.write_all_at(&[7; 5000], 30 << 20).expect("written");
        file.write_all_at(&[0; 1 << 20], 40 << 20).expect("written");
        // Longer, and with other bytes, to see that nothing of it remains.
        fs::write(&image, vec![9; 100_000]).expect("written");
        let patches = [Patch::Bytes(512, &[1; 1024]), Patch::Zeros(1024, 512), Patch::Zeros(30 << 20, 512)];
        write_image(&base, &patches, &image).expect("an image");

        let bytes = fs::read(&image).expect("read");
        assert_eq!(bytes.len(), 64 << 20);
        let mut expected = vec![0; 64 << 20];
        expected[512..1024].fill(1);
        expected[(30 << 20) + 512..(30 << 20) + 5000].fill(7);
        assert!(bytes == expected, "the image differs");
        let held = fs::metadata(&image).expect("metadata").blocks() * 512;
        assert!(held < 1 << 20, "{held} bytes are held");
    }
}
