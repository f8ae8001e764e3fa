//! Requests to the store, repeated as the protocol allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::record::Record;
use crate::format::{OWNER, part_name};
use crate::store::{Answer, Fetched, Put, Read, Store, Tag};

/// Steps that the proof needs. The explorer leaves out one at a time, and must find the harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Check {
    /// A commit is acknowledged after the ownership record was read again.
    Reread,
    /// Objects are deleted after the record says that nothing needs them.
    Publish,
    /// The record is replaced only if it is the one that was read.
    Condition,
    /// The end of an epoch is sealed before it is recorded.
    Seal,
    /// A reader believes an object after it has read the record again.
    Validate,
    /// A writer shows that its file has all commits of the chain, also after it has taken over.
    Descent,
    /// The names of parts have the epoch, so that no two snapshots have the same.
    Names,
}

/// Objects of the smallest bundles.
const GROUP: u64 = 64;

/// A store, and how requests to it are made.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) store: Arc<dyn Store>,
    /// How often a request is tried.
    pub(crate) attempts: u32,
    /// How long to wait before a second try; doubled for each further one.
    pub(crate) pause: Duration,
    /// How many requests have got their answer. The end of a replication sees by it whether the store still lives.
    pub(crate) answered: Arc<AtomicU64>,
    /// Gives another value each time.
    pub(crate) nonce: Arc<dyn Fn() -> Result<[u8; 16]> + Send + Sync>,
    /// Objects of the smallest [bundles](super::bundles); 0 for none.
    pub(crate) group: u64,
    /// A check that is left out.
    pub(crate) muted: Option<Check>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("url", &self.store.url()).finish_non_exhaustive()
    }
}

/// The outcome of creating an object.
pub(crate) enum Created {
    /// It has our bytes.
    Ours(Tag),
    /// It has others; `None` if it was deleted by now.
    Taken(Option<Fetched>),
}

impl Access {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let random = || {
            crate::random().map_err(|source| Error::Io {
                operation: "get random numbers for",
                path: "the replica".into(),
                source,
            })
        };
        let (answered, pause, nonce) = (Arc::default(), Duration::from_millis(100), Arc::new(random));
        Access { store, attempts: 6, pause, answered, nonce, group: GROUP, muted: None }
    }

    pub(crate) fn makes(&self, check: Check) -> bool {
        self.muted != Some(check)
    }

    /// The name of a part of a snapshot.
    pub(crate) fn part(&self, epoch: u64, attempt: u64, index: u64) -> String {
        part_name(if self.makes(Check::Names) { epoch } else { 0 }, attempt, index)
    }

    pub(crate) fn nonce(&self) -> Result<[u8; 16]> {
        (self.nonce)()
    }

    /// Tries a request again while its failure may pass. Each request of the protocol may be carried out twice.
    fn repeat<T>(&self, request: impl Fn() -> Answer<T>) -> Result<T> {
        let request = || {
            let answer = request();
            self.answered.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
            answer
        };
        let mut pause = self.pause;
        for _ in 1..self.attempts {
            match request() {
                Err(error) if error.is_transient => tracing::debug!(%error, "trying the request again"),
                answer => return Ok(answer?),
            }
            // Writers that wait for the same store must not come back all at once.
            let share = 128 + u32::from(self.nonce()?[0]) / 2;
            std::thread::sleep(pause.saturating_mul(share) / 256);
            pause *= 2;
        }
        Ok(request()?)
    }

    pub(crate) fn get(&self, name: &str) -> Result<Option<Fetched>> {
        self.repeat(|| self.store.get(name))
    }

    pub(crate) fn get_if_changed(&self, name: &str, tag: &Tag) -> Result<Read> {
        self.repeat(|| self.store.get_if_changed(name, tag))
    }

    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        self.repeat(|| self.store.delete(name))
    }

    /// Creates an object. An earlier try may have done so although its answer was lost, so a name that is taken is
    /// read: no two objects have the same bytes, because each has a nonce.
    pub(crate) fn create(&self, name: &str, bytes: &[u8]) -> Result<Created> {
        match self.repeat(|| self.store.put_if_absent(name, bytes))? {
            Put::Stored(tag) => Ok(Created::Ours(tag)),
            Put::Refused => match self.get(name)? {
                Some(found) if found.bytes == bytes => Ok(Created::Ours(found.tag)),
                found => Ok(Created::Taken(found)),
            },
        }
    }

    /// Replaces the record; `None` if it is another one by now.
    pub(crate) fn replace_record(&self, record: &Record, tag: &Tag) -> Result<Option<Tag>> {
        let bytes = record.encode();
        let mut tag = tag.clone();
        loop {
            match self.repeat(|| self.store.update_if_match(OWNER, &bytes, &tag))? {
                Put::Stored(tag) => return Ok(Some(tag)),
                Put::Refused => match self.get(OWNER)? {
                    Some(found) if found.bytes == bytes => return Ok(Some(found.tag)),
                    Some(found) if !self.makes(Check::Condition) => tag = found.tag,
                    _ => return Ok(None),
                },
            }
        }
    }

    /// The ownership record; `None` if there is no replica.
    pub(crate) fn record(&self) -> Result<Option<(Record, Tag)>> {
        let Some(found) = self.get(OWNER)? else { return Ok(None) };
        Ok(Some((Record::decode(&found.bytes)?, found.tag)))
    }

    pub(crate) fn url(&self) -> String {
        self.store.url().to_owned()
    }
}
