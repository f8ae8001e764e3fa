//! Archives that the kernel unpacks at boot: cpio in the "newc" format.
//!
//! Source: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`. Every number is eight hexadecimal
//! digits; names and contents are padded to four bytes.

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const END: &str = "TRAILER!!!";

/// An archive under construction.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: std::collections::BTreeSet<String>,
}

impl Archive {
    /// A directory and those above it, each once. The path has no leading slash.
    pub(super) fn directory(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends.filter(|&end| end > 0) {
            if self.directories.insert(path[..end].to_owned()) {
                self.entry(&path[..end], DIRECTORY, &[]);
            }
        }
    }

    /// A file that may be executed, with the directories above it.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        self.entry(path, PROGRAM, content);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(END, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let length = content.len() as u32;
        // inode, mode, uid, gid, links, mtime, size, device (2), its own device (2), length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode and content of each entry, read back by the format's own rules.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |i: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * i..14 + 8 * i]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).unwrap();
            let start = (110 + name_size).next_multiple_of(4);
            found.push((name, mode, bytes[start..start + size].to_vec()));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
        found
    }

    #[test]
    fn an_archive_has_every_file_and_each_directory_once() {
        let mut archive = Archive::default();
        archive.file("bin/sh", b"odd");
        archive.file("bin/x/y", b"");
        archive.directory("bin");
        let found = entries(&archive.finish());
        let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["bin", "bin/sh", "bin/x", "bin/x/y", END]);
        assert_eq!((found[0].1, found[1].1), (DIRECTORY, PROGRAM));
        assert_eq!(found[1].2, b"odd");
    }
}
