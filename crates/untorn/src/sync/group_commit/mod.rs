//! Group commit: threads that wait for a device flush at the same time share one.

use crate::error::Result;
use crate::sync::word_lock::WordLock;
use crate::sys::sync::{AtomicU64, Ordering, Zeroed};

/// Lets one flush answer for every thread that asked before it began. All zeros is the state with nothing asked.
#[derive(Debug, Zeroed)]
#[repr(C)]
pub(crate) struct GroupFlush {
    /// Flushes asked for so far.
    asked: AtomicU64,
    /// Every request up to this number is answered.
    answered: AtomicU64,
    /// Held while flushing: the threads that wait for it are the next group.
    flushing: WordLock,
}

impl GroupFlush {
    /// Returns once a flush that began after this call has completed; runs `flush` itself if no other thread does.
    ///
    /// # Errors
    /// Those of `flush`. A failed flush answers nobody.
    pub(crate) fn flush(&self, mut relax: impl FnMut(u32), flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let mine = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut round = 0;
        let held = loop {
            if self.answered.load(Ordering::Acquire) >= mine {
                return Ok(());
            }
            if let Some(held) = self.flushing.try_lock() {
                break held;
            }
            relax(round);
            round = round.saturating_add(1);
        };
        if self.answered.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        let upto = self.asked.load(Ordering::Acquire);
        flush()?;
        self.answered.store(upto, Ordering::Release);
        drop(held);
        Ok(())
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::sys::sync::zeroed;

    fn relax(_: u32) {
        std::thread::yield_now();
    }

    #[test]
    fn a_request_made_after_a_flush_is_not_answered_by_it() {
        let group: GroupFlush = zeroed();
        let mut flushes = 0;
        for _ in 0..2 {
            group
                .flush(relax, || {
                    flushes += 1;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(flushes, 2);
    }

    #[test]
    fn eight_threads_share() {
        const ROUNDS: u64 = 20;
        let group: GroupFlush = zeroed();
        let flushes = AtomicU64::new(0);
        let together = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        let flush = || {
                            flushes.fetch_add(1, Ordering::Relaxed);
                            // It goes on until everybody has asked.
                            while group.asked.load(Ordering::Acquire) < 8 * round {
                                std::thread::yield_now();
                            }
                            Ok(())
                        };
                        group.flush(relax, flush).unwrap();
                        together.wait();
                    }
                });
            }
        });
        // The first of a round answers those who had asked when it began, the second all others.
        let flushes = flushes.load(Ordering::Relaxed);
        assert!((ROUNDS..=2 * ROUNDS).contains(&flushes), "{flushes} flushes for {ROUNDS} rounds of eight requests");
    }

    #[test]
    fn a_failed_flush_answers_nobody() {
        let group: GroupFlush = zeroed();
        let path = std::path::Path::new("f");
        let broken = || Err(crate::Error::io("flush", path, std::io::Error::from_raw_os_error(5)));
        assert!(group.flush(relax, broken).is_err());
        let mut ran = false;
        group
            .flush(relax, || {
                ran = true;
                Ok(())
            })
            .unwrap();
        assert!(ran);
    }
}
