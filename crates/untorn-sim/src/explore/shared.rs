//! The data that all workers of one exploration share: the states seen, the counts, the sign to stop.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use twox_hash::XxHash3_64;

/// Keys are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Shard = Mutex<HashSet<u64, BuildHasherDefault<Identity>>>;

/// A number that tells expectations from others.
pub(crate) fn digest(expectations: &impl Hash) -> u64 {
    let mut hasher = XxHash3_64::default();
    expectations.hash(&mut hasher);
    hasher.finish()
}

/// A set of hashes that many threads add to.
pub(crate) struct Seen(Vec<Shard>);

impl Seen {
    fn new() -> Self {
        Seen((0..64).map(|_| Shard::default()).collect())
    }

    /// Adds a hash. True if it was not there.
    pub(crate) fn insert(&self, key: u64) -> bool {
        let shard = &self.0[(key >> 58) as usize];
        shard.lock().unwrap_or_else(PoisonError::into_inner).insert(key)
    }
}

/// Shared by all workers of one exploration.
pub(crate) struct Shared {
    /// Images seen.
    states: Seen,
    /// Images checked against one set of allowed states.
    checked: Seen,
    pub(crate) distinct: AtomicU64,
    pub(crate) recoveries: AtomicU64,
    /// Ends the exploration once this many distinct states were seen.
    target: u64,
    stop: AtomicBool,
    /// Whether the muted barrier was passed.
    pub(crate) reached: AtomicBool,
}

impl Shared {
    pub(crate) fn new(target: u64) -> Self {
        Shared {
            states: Seen::new(),
            checked: Seen::new(),
            distinct: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            target,
            stop: AtomicBool::new(false),
            reached: AtomicBool::new(false),
        }
    }

    /// Notes an image. True if it is still to be checked against these expectations.
    pub(crate) fn note(&self, image: u64, expectations: u64) -> bool {
        if self.states.insert(image) {
            let count = self.distinct.fetch_add(1, Ordering::Relaxed) + 1;
            if count >= self.target {
                self.stop();
            }
        }
        self.checked.insert(crate::rng::mix(image ^ expectations.rotate_left(17)))
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
