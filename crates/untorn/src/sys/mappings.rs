//! Which file an address of this process belongs to: `/proc/self/maps`.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mapping of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MappedRange {
    pub(crate) addresses: Range<usize>,
    pub(crate) shared: bool,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    pub(crate) path: PathBuf,
}

/// The mapping of a file around an address, if there is one.
pub(crate) fn around(address: usize) -> io::Result<Option<MappedRange>> {
    for line in BufReader::new(std::fs::File::open("/proc/self/maps")?).split(b'\n') {
        if let Some(found) = parse(&line?).filter(|found| found.addresses.contains(&address)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// One line. Source: `proc_pid_maps(5)`.
fn parse(line: &[u8]) -> Option<MappedRange> {
    // The path may hold anything, blanks too; a line break is written as \012.
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut word = || words.next().and_then(|word| std::str::from_utf8(word).ok());
    let (start, end) = word()?.split_once('-')?;
    let (flags, offset, _device, inode) = (word()?, word()?, word()?, word()?);
    let path = words.next()?.trim_ascii_start();
    if !path.starts_with(b"/") {
        return None;
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(b"\\012");
        bytes.push(if escaped.is_some() { b'\n' } else { byte });
        rest = escaped.unwrap_or(after);
    }
    Some(MappedRange {
        addresses: usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?,
        shared: flags.as_bytes().get(3) == Some(&b's'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
        path: PathBuf::from(OsString::from_vec(bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_manual_has_them() {
        let found = parse(b"7f01000-7f03000 rw-s 00001000 08:02 135522                     /srv/a b\\012c").unwrap();
        assert_eq!((found.addresses, found.shared, found.offset), (0x7f0_1000..0x7f0_3000, true, 0x1000));
        assert_eq!((found.inode, found.path), (135_522, PathBuf::from("/srv/a b\nc")));
        let bytes = parse(b"7f01000-7f03000 rw-s 00000000 08:02 135522 /srv/\xff\\01\\012").unwrap().path;
        assert_eq!(bytes.into_os_string().into_vec(), b"/srv/\xff\\01\n", "no byte of a name is lost");
        assert_eq!(parse(b"7f01000-7f03000 rw-p 00000000 00:00 0                  [heap]"), None);
        assert_eq!(parse(b"7f01000-7f03000 rw-p 00000000 00:00 0 "), None);
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn this_very_code_is_a_mapping_of_a_file() {
        let here = lines_are_read_as_the_manual_has_them as fn() as usize;
        let found = around(here).unwrap().unwrap();
        assert!(!found.shared && found.path.exists(), "{found:?}");
    }
}
