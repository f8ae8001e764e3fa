//! Whether a store keeps the conditions of requests.

use std::time::Duration;

use super::{Answer, Put, Read, Store, Tag};
use crate::error::{Error, Result};
use crate::format::hex;
use crate::random;

/// Tries the store with four writes: a creation, one that must be refused, an update, and one that must be refused.
/// Reads check each of them. The object that it makes is removed afterwards.
///
/// ```
/// let dir = tempfile::tempdir().unwrap();
/// let store = untorn_replicate::store::open(&format!("file://{}", dir.path().display())).unwrap();
/// untorn_replicate::store::probe(&*store).unwrap();
/// ```
///
/// # Errors
/// [`Error::UnsafeStore`] if it ignores a condition; those of the store.
pub fn probe(store: &dyn Store) -> Result<()> {
    let random = || random::<16>().map_err(|error| Error::Invalid { what: format!("no random numbers: {error}") });
    let name = format!("probe/{}", hex(&random()?));
    let bodies = [random()?, random()?, random()?, random()?];
    let done = tried(store, &name, &bodies);
    // The first error is the one that helps.
    let removed = repeat(|| store.delete(&name));
    done?;
    removed
}

/// How often a request is tried.
const TRIES: u32 = 6;

/// Tries a request again while its failure may pass, as the protocol does.
fn repeat<T>(request: impl Fn() -> Answer<T>) -> Result<T> {
    let mut pause = Duration::from_millis(100);
    for _ in 1..TRIES {
        match request() {
            Err(error) if error.is_transient => tracing::debug!(%error, "trying the request again"),
            answer => return Ok(answer?),
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    Ok(request()?)
}

fn tried(store: &dyn Store, name: &str, [one, two, three, four]: &[[u8; 16]; 4]) -> Result<()> {
    let bad = |what: &str| Err(Error::UnsafeStore { url: store.url().to_owned(), what: what.to_owned() });
    let get = || repeat(|| store.get(name));
    let has = |bytes: &[u8]| get().map(|found| found.is_some_and(|found| found.bytes == bytes));
    let create = |bytes: &[u8]| repeat(|| store.put_if_absent(name, bytes));
    let update = |bytes: &[u8], tag: &Tag| repeat(|| store.update_if_match(name, bytes, tag));
    // A try whose answer was lost may have succeeded, and then the next one was refused.
    let version = |put: Put, bytes: &[u8]| match put {
        Put::Stored(tag) => Ok(Some(tag)),
        Put::Refused => get().map(|found| found.filter(|found| found.bytes == bytes).map(|found| found.tag)),
    };
    let Some(first) = version(create(one)?, one)? else {
        return bad("refused to create an object that it does not have");
    };
    if create(two)? != Put::Refused || !has(one)? {
        return bad("replaced an object that was to be created only if it is absent");
    }
    if repeat(|| store.get_if_changed(name, &first))? != Read::Unchanged {
        return bad("does not tell that an object is unchanged");
    }
    let Some(second) = version(update(three, &first)?, three)? else {
        return bad("refused to update an object that has the expected version");
    };
    if first == second || !has(three)? {
        return bad("does not give a new version to an object that was updated");
    }
    if update(four, &first)? != Put::Refused || !has(three)? {
        return bad("updated an object that does not have the expected version");
    }
    if !matches!(repeat(|| store.get_if_changed(name, &first))?, Read::Changed(found) if found.bytes == *three) {
        return bad("does not tell that an object has changed");
    }
    Ok(())
}
