//! The simulated store, and how an actor runs up to its next call.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::scripts::{Event, Script};
use crate::format::{hex, sum_of};
use crate::protocol::access::{Access, Check};
use crate::store::{Answer, Fetched, Listed, Put, Read, Store, StoreError, Tag};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Get(String),
    GetIfChanged(String, Tag),
    Create(String, Bytes),
    Update(String, Bytes, Tag),
    Delete(String),
}

/// Bytes of an object, which many states share.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Bytes(Arc<Vec<u8>>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Call {
    pub(super) fn is_write(&self) -> bool {
        !matches!(self, Call::Get(_) | Call::GetIfChanged(..))
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    Got(Option<Fetched>),
    Checked(Read),
    Put(Put),
    Deleted,
    /// None came.
    Lost,
}

/// The objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Bucket(BTreeMap<String, Bytes>);

fn tag_of(bytes: &[u8]) -> Tag {
    Tag(hex(&sum_of(bytes)))
}

impl Bucket {
    pub(super) fn execute(&mut self, call: &Call) -> Reply {
        let found = |name: &String| self.0.get(name).map(|bytes| (bytes.clone(), tag_of(&bytes.0)));
        let fetched = |(bytes, tag): (Bytes, Tag)| Fetched { bytes: bytes.0.to_vec(), tag };
        match call {
            Call::Get(name) => Reply::Got(found(name).map(fetched)),
            Call::GetIfChanged(name, known) => Reply::Checked(match found(name) {
                None => Read::Missing,
                Some((_, tag)) if tag == *known => Read::Unchanged,
                Some(found) => Read::Changed(fetched(found)),
            }),
            Call::Create(name, _) if self.0.contains_key(name) => Reply::Put(Put::Refused),
            Call::Update(name, _, tag) if found(name).is_none_or(|(_, now)| now != *tag) => Reply::Put(Put::Refused),
            Call::Create(name, bytes) | Call::Update(name, bytes, _) => {
                self.0.insert(name.clone(), bytes.clone());
                Reply::Put(Put::Stored(tag_of(&bytes.0)))
            }
            Call::Delete(name) => {
                self.0.remove(name);
                Reply::Deleted
            }
        }
    }
}

/// The store that an actor sees: the answers that it got, and then the end of its run.
struct Replay {
    replies: Mutex<VecDeque<Arc<Reply>>>,
    next: Mutex<Option<Call>>,
}

/// Ends a run at a call without an answer.
struct Suspended;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replay {
    fn call(&self, call: Call) -> Answer<Reply> {
        let reply = lock(&self.replies).pop_front().map(|reply| (*reply).clone());
        match reply {
            Some(Reply::Lost) => {
                let (name, cause) = (format!("{call:?}"), "no answer".to_owned());
                Err(StoreError { operation: "ask for", name, is_transient: true, cause })
            }
            Some(reply) => Ok(reply),
            None => {
                *lock(&self.next) = Some(call);
                panic::resume_unwind(Box::new(Suspended))
            }
        }
    }
}

impl Store for Replay {
    fn url(&self) -> &str {
        "model:"
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        match self.call(Call::Get(name.to_owned()))? {
            Reply::Got(found) => Ok(found),
            other => panic!("{other:?} is no answer"),
        }
    }

    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read> {
        match self.call(Call::GetIfChanged(name.to_owned(), tag.clone()))? {
            Reply::Checked(read) => Ok(read),
            other => panic!("{other:?} is no answer"),
        }
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Answer<Put> {
        match self.call(Call::Create(name.to_owned(), Bytes(Arc::new(bytes.to_vec()))))? {
            Reply::Put(put) => Ok(put),
            other => panic!("{other:?} is no answer"),
        }
    }

    fn update_if_match(&self, name: &str, bytes: &[u8], tag: &Tag) -> Answer<Put> {
        match self.call(Call::Update(name.to_owned(), Bytes(Arc::new(bytes.to_vec())), tag.clone()))? {
            Reply::Put(put) => Ok(put),
            other => panic!("{other:?} is no answer"),
        }
    }

    fn delete(&self, name: &str) -> Answer<()> {
        self.call(Call::Delete(name.to_owned())).map(|_| ())
    }

    fn list(&self, _: &str) -> Answer<Vec<Listed>> {
        panic!("the protocol lists nothing")
    }
}

/// Requests to this store, with nonces that are the same in each run.
fn access(store: Arc<dyn Store>, actor: u8, muted: Option<Check>) -> Access {
    let count = AtomicU64::new(0);
    let nonce = move || {
        let mut nonce = [actor; 16];
        nonce[8..].copy_from_slice(&count.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        Ok(nonce)
    };
    let answered = Arc::default();
    Access { store, attempts: 2, pause: Duration::ZERO, answered, nonce: Arc::new(nonce), group: 2, muted }
}

/// Runs an actor with the answers that it got: its next call, unless it has ended, and what it did.
pub(super) fn run(script: Script, replies: &[Arc<Reply>], muted: Option<Check>) -> (Option<Call>, Vec<Event>) {
    let replies = Mutex::new(replies.iter().cloned().collect());
    let store = Arc::new(Replay { replies, next: Mutex::new(None) });
    let events = Mutex::new(Vec::new());
    let access = access(Arc::clone(&store) as Arc<dyn Store>, script.id(), muted);
    let ran = panic::catch_unwind(AssertUnwindSafe(|| script.play(&access, &mut |event| lock(&events).push(event))));
    if let Err(cause) = ran
        && !cause.is::<Suspended>()
    {
        panic::resume_unwind(cause);
    }
    (lock(&store.next).take(), events.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// A store that answers at once.
struct Instant(Mutex<Bucket>);

/// Requests to a copy of the store as it is now.
pub(super) fn instant(bucket: &Bucket, muted: Option<Check>) -> Access {
    access(Arc::new(Instant(Mutex::new(bucket.clone()))), 0, muted)
}

impl Store for Instant {
    fn url(&self) -> &str {
        "model:"
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        match lock(&self.0).execute(&Call::Get(name.to_owned())) {
            Reply::Got(found) => Ok(found),
            other => panic!("{other:?} is no answer"),
        }
    }

    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read> {
        match lock(&self.0).execute(&Call::GetIfChanged(name.to_owned(), tag.clone())) {
            Reply::Checked(read) => Ok(read),
            other => panic!("{other:?} is no answer"),
        }
    }

    fn put_if_absent(&self, _: &str, _: &[u8]) -> Answer<Put> {
        panic!("a restoration writes nothing")
    }

    fn update_if_match(&self, _: &str, _: &[u8], _: &Tag) -> Answer<Put> {
        panic!("a restoration writes nothing")
    }

    fn delete(&self, _: &str) -> Answer<()> {
        panic!("a restoration writes nothing")
    }

    fn list(&self, _: &str) -> Answer<Vec<Listed>> {
        panic!("the protocol lists nothing")
    }
}
