//! Threads that work on one file until a time is over, and ranges that show a torn read.

use std::time::{Duration, Instant};

use untorn::{AtomicFile, Error, Result};

/// A range that its writers fill with one number.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Range {
    pub(crate) fn write(self, file: &AtomicFile, stamp: u64) -> Result<()> {
        file.write_at(&stamp.to_le_bytes().repeat(self.len / 8), self.at as u64)
    }

    /// The one number that fills the range.
    pub(crate) fn read(self, file: &AtomicFile) -> Result<u64> {
        let mut bytes = vec![0; self.len];
        file.read_at(&mut bytes, self.at as u64)?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| u64::from_le_bytes(words[n]);
        if let Some(torn) = words.iter().position(|word| word != &words[0]) {
            panic!("{} bytes at {}: torn at word {torn}: {} then {}", self.len, self.at, word(0), word(torn));
        }
        Ok(word(0))
    }
}

/// What a thread may find where the length changes.
pub(crate) fn unless_too_short<T>(outcome: Result<T>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(Error::OutOfRange { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Runs every job again and again, each in a thread of its own, until the time is up and each ran a few times. A job is
/// told which time it is, from 1. How often each ran.
pub(crate) fn together(time: Duration, jobs: &[&(dyn Fn(u64) + Sync)]) -> Vec<u64> {
    let end = Instant::now() + time;
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .iter()
            .map(|job| {
                scope.spawn(move || {
                    let mut n = 0;
                    while n < 3 || Instant::now() < end {
                        n += 1;
                        job(n);
                    }
                    n
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
