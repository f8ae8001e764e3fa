//! Whether a store keeps the conditions of requests.

use super::{Put, Read, Store};
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
    let removed = store.delete(&name);
    done?;
    Ok(removed?)
}

fn tried(store: &dyn Store, name: &str, [one, two, three, four]: &[[u8; 16]; 4]) -> Result<()> {
    let bad = |what: &str| Err(Error::UnsafeStore { url: store.url().to_owned(), what: what.to_owned() });
    let has = |bytes: &[u8]| store.get(name).map(|found| found.is_some_and(|found| found.bytes == bytes));
    let Put::Stored(first) = store.put_if_absent(name, one)? else {
        return bad("refused to create an object that it does not have");
    };
    if store.put_if_absent(name, two)? != Put::Refused || !has(one)? {
        return bad("replaced an object that was to be created only if it is absent");
    }
    if store.get_if_changed(name, &first)? != Read::Unchanged {
        return bad("does not tell that an object is unchanged");
    }
    let Put::Stored(second) = store.update_if_match(name, three, &first)? else {
        return bad("refused to update an object that has the expected version");
    };
    if first == second || !has(three)? {
        return bad("does not give a new version to an object that was updated");
    }
    if store.update_if_match(name, four, &first)? != Put::Refused || !has(three)? {
        return bad("updated an object that does not have the expected version");
    }
    if !matches!(store.get_if_changed(name, &first)?, Read::Changed(found) if found.bytes == *three) {
        return bad("does not tell that an object has changed");
    }
    Ok(())
}
