//! Names and texts in words that processes share.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names what the words are of, unlike anything else there ever was.
///
/// # Errors
/// Those of `getrandom(2)`.
pub(super) fn set_random_name(words: &[AtomicU64]) -> io::Result<()> {
    for (word, half) in words.iter().zip(crate::sys::random()?.chunks_exact(8)) {
        word.store(u64::from_le_bytes(half.try_into().unwrap_or_default()), Ordering::Relaxed);
    }
    Ok(())
}

/// That name, of two words.
pub(super) fn name(words: &[AtomicU64]) -> String {
    let word = |index: usize| words[index].load(Ordering::Relaxed);
    format!("{:016x}{:016x}", word(0), word(1))
}

/// Stores as much of a text as there is room for.
pub(super) fn set_text(words: &[AtomicU64], text: &str) {
    for (word, bytes) in words.iter().zip(text.as_bytes().chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
}

/// A text of `len` bytes, or of as many as there is room for.
pub(super) fn text(words: &[AtomicU64], len: u64) -> String {
    let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    String::from_utf8_lossy(&bytes.take(len as usize).collect::<Vec<u8>>()).into_owned()
}
