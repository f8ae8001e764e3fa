//! `untorn read`: committed bytes to standard output.

use untorn::{AtomicFile, Error, Options, Snapshot};

use crate::cli::Read;
use crate::exit::{Exit, Result};
use crate::output::{self, Reader};
use crate::progress;

/// Bytes of one read and write.
const CHUNK: u64 = 1 << 20;

/// Copies a range to standard output.
pub(crate) fn run(args: &Read) -> Result<Exit> {
    let file = open(args)?;
    let file_len = file.len();
    let len = args.len.unwrap_or_else(|| file_len.saturating_sub(args.offset));
    // Check the whole range before the first byte goes out, so that a reader never takes a part for the whole.
    let end = match args.offset.checked_add(len) {
        Some(end) if end <= file_len => end,
        _ => return Err(Error::OutOfRange { path: args.file.clone(), offset: args.offset, len, file_len }.into()),
    };
    let mut buffer = vec![0; CHUNK.min(len) as usize];
    let mut offset = args.offset;
    while offset < end {
        let part = CHUNK.min(end - offset) as usize;
        file.read_at(&mut buffer[..part], offset)?;
        if output::bytes(&buffer[..part])? == Reader::Gone {
            break;
        }
        offset += part as u64;
    }
    Ok(Exit::Clean)
}

/// The source of the bytes.
enum Source {
    Commit(Snapshot),
    Shared(AtomicFile),
}

fn open(args: &Read) -> Result<Source> {
    Ok(if args.sharing.shared {
        // A shared open is always writable. This process joins as a writer and writes nothing.
        Source::Shared(progress::attach(Options::new().shared(true)).open(&args.file)?)
    } else {
        Source::Commit(Snapshot::open(&args.file)?)
    })
}

impl Source {
    fn len(&self) -> u64 {
        match self {
            Source::Commit(snapshot) => snapshot.len(),
            Source::Shared(file) => file.len(),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> untorn::Result<()> {
        match self {
            Source::Commit(snapshot) => snapshot.read_at(buf, offset),
            Source::Shared(file) => file.read_at(buf, offset),
        }
    }
}
