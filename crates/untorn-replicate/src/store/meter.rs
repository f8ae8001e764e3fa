//! Counts the requests to a store, which cost money.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests to a store, also repeated ones, and their bytes without headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requests {
    /// Reads of an object, also of one that is unchanged or missing.
    pub gets: u64,
    /// Creations and replacements of an object, also refused ones.
    pub puts: u64,
    /// Deletions.
    pub deletes: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Requests for credentials, and Azure's for a batch of deletions.
    pub others: u64,
    /// Bytes that were sent.
    pub sent: u64,
    /// Bytes that were received.
    pub received: u64,
}

impl Requests {
    /// All requests.
    pub fn total(&self) -> u64 {
        self.gets + self.puts + self.deletes + self.lists + self.others
    }
}

impl Sub for Requests {
    type Output = Self;

    /// The requests since an earlier count.
    fn sub(self, before: Self) -> Self {
        Requests {
            gets: self.gets - before.gets,
            puts: self.puts - before.puts,
            deletes: self.deletes - before.deletes,
            lists: self.lists - before.lists,
            others: self.others - before.others,
            sent: self.sent - before.sent,
            received: self.received - before.received,
        }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Put,
    Delete,
    List,
    #[cfg(feature = "_bucket")]
    Other,
}

/// A count that goes on.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    kinds: [AtomicU64; 5],
    sent: AtomicU64,
    received: AtomicU64,
}

impl Meter {
    /// Counts a request with a body of this many bytes.
    pub(crate) fn begin(&self, kind: Kind, sent: usize) {
        self.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }

    /// Counts bytes of an answer.
    pub(crate) fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Requests {
        let [gets, puts, deletes, lists, others] = [0, 1, 2, 3, 4].map(|at| self.kinds[at].load(Ordering::Relaxed));
        let [sent, received] = [&self.sent, &self.received].map(|count| count.load(Ordering::Relaxed));
        Requests { gets, puts, deletes, lists, others, sent, received }
    }
}
