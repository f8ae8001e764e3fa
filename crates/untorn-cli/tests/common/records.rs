//! A program that commits records of one number, one file after the other, and what its files may be after a kill.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Files that the program writes to in turn.
const FILES: u64 = 7;

/// Commits a record a time from a number on, and says each number once it is durable. Every fourth comes by a rename.
pub const WRITER: &str = "
import os, sys
number = int(sys.argv[1])
while True:
    number += 1
    name = f'f{number % 7}'
    fd = os.open('new' if number % 4 == 0 else name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b'%08d' % number * (1 + number % 400))
    os.ftruncate(fd, 8 * (1 + number % 400))
    os.fsync(fd)
    os.close(fd)
    if number % 4 == 0:
        os.rename('new', name)
    os.write(1, b'%d\\n' % number)
";

fn record(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes().repeat(1 + (number % 400) as usize)
}

/// The files as they were before the program was started with a number.
pub struct Before {
    number: u64,
    files: BTreeMap<u64, Vec<u8>>,
}

impl Before {
    /// Reads them.
    pub fn of(directory: &Path, number: u64) -> Self {
        let read = |file| Some((file, fs::read(directory.join(format!("f{file}"))).ok()?));
        Before { number, files: (0..FILES).filter_map(read).collect() }
    }

    /// Asserts that every acknowledged record is there. The next one is there whole, or not at all if files are
    /// `atomic`; of other files the kernel may have got a part.
    #[track_caller]
    pub fn check(&self, directory: &Path, acknowledged: u64, atomic: bool) {
        let next = acknowledged + 1;
        for file in 0..FILES {
            let last = (self.number + 1..next).rev().find(|number| number % FILES == file);
            let expected = last.map(record).or_else(|| self.files.get(&file).cloned());
            let found = fs::read(directory.join(format!("f{file}"))).ok();
            let is_next = next % FILES == file;
            let made = atomic && found.as_deref() == Some(b"") && expected.is_none();
            if found == expected || is_next && (!atomic || made || found == Some(record(next))) {
                continue;
            }
            let number = |bytes: &Option<Vec<u8>>| {
                bytes.as_ref().map(|bytes| String::from_utf8_lossy(&bytes[..8.min(bytes.len())]).into_owned())
            };
            panic!("f{file} has {:?} of {:?}, and {acknowledged} was acknowledged", number(&found), number(&expected));
        }
    }
}
