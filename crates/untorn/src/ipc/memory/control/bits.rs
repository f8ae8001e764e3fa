//! One bit for each page, in words that the processes share.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each page.
pub(in super::super) struct Bits<'a> {
    pub(super) words: &'a [AtomicU64],
    /// A bit for each word that may have a bit set; empty if nobody searches these.
    pub(super) summary: &'a [AtomicU64],
}

impl Bits<'_> {
    pub(in super::super) fn get(&self, page: u64) -> bool {
        let (word, bit) = split(page);
        self.words[word].load(Ordering::SeqCst) & bit != 0
    }

    /// Sets a bit; whether it was set before.
    pub(in super::super) fn set(&self, page: u64) -> bool {
        let (word, bit) = split(page);
        let before = self.words[word].fetch_or(bit, Ordering::SeqCst);
        self.summarise(word);
        before & bit != 0
    }

    pub(in super::super) fn reset(&self, page: u64) {
        let (word, bit) = split(page);
        self.words[word].fetch_and(!bit, Ordering::SeqCst);
    }

    pub(super) fn summarise(&self, word: usize) {
        if let Some(summary) = self.summary.get(word / 64)
            && summary.load(Ordering::SeqCst) & 1 << (word % 64) == 0
        {
            summary.fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }
}

fn split(page: u64) -> (usize, u64) {
    ((page / 64) as usize, 1 << (page % 64))
}

/// The pages whose bits are set in a word.
pub(super) fn pages_of(word: usize, mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(word as u64 * 64 + u64::from(bit))
    })
}
