//! `untorn read`: committed bytes to standard output.

use untorn::{Error, Options};

use crate::cli::Read;
use crate::exit::{Exit, Result};
use crate::output::{self, Reader};
use crate::progress;

/// Bytes of one read and write.
const CHUNK: u64 = 1 << 20;

/// Copies a range to standard output.
pub(crate) fn run(args: &Read) -> Result<Exit> {
    // A shared open is always writable. This process joins as a writer and writes nothing.
    let shared = args.sharing.shared;
    let file = progress::attach(Options::new().read_only(!shared).shared(shared)).open(&args.file)?;
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
