//! [`Store`]: what the protocol needs of an object store, and how a URL names one.

#[cfg(feature = "_bucket")]
mod bucket;
mod directory;
#[cfg(feature = "nats")]
mod jetstream;
mod location;
mod meter;
mod probe;
mod sealed;
#[cfg(any(feature = "_bucket", feature = "nats"))]
mod secrets;
#[cfg(any(feature = "_bucket", feature = "nats"))]
mod waiting;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use directory::DirectoryStore;
pub use meter::Requests;
pub use probe::probe;

use self::location::{Location, Parsed, shown};
use self::sealed::{Key, SealedStore};
use crate::error::{Error, Result};

/// The version of an object: two versions with different bytes have different tags.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub String);

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetched {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its version.
    pub tag: Tag,
}

/// The answer to a conditional read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// The object still has the version that the caller knows.
    Unchanged,
    /// It has another version now.
    Changed(Fetched),
    /// There is no such object.
    Missing,
}

/// The answer to a conditional write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Put {
    /// The object is durable, and has this version.
    Stored(Tag),
    /// The condition did not hold, and nothing was written.
    Refused,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
}

/// A request that failed. The store may have carried a write out or not, and may still do so later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreError {
    /// The attempted operation, as in "cannot OPERATION".
    pub operation: &'static str,
    /// The object.
    pub name: String,
    /// Whether the same request may succeed when it is repeated.
    pub is_transient: bool,
    /// The answer of the store or the network. It holds no secrets.
    pub cause: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} the object {}: {}", self.operation, self.name, self.cause)
    }
}

impl std::error::Error for StoreError {}

/// The result of a request.
pub type Answer<T> = std::result::Result<T, StoreError>;

/// An object store below a prefix, with conditional writes.
///
/// Names are relative: parts of ASCII letters, digits, `-`, `_` and `.` with `/` between them. A read that begins after
/// a write has returned sees that write. A write is durable when it returns.
pub trait Store: Send + Sync {
    /// The URL, for messages. It holds no secrets.
    fn url(&self) -> &str;

    /// Reads an object; `None` if there is none.
    ///
    /// # Errors
    /// Those of the store.
    fn get(&self, name: &str) -> Answer<Option<Fetched>>;

    /// Reads an object unless it still has this version.
    ///
    /// # Errors
    /// Those of the store.
    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read>;

    /// Writes an object if there is none of that name.
    ///
    /// # Errors
    /// Those of the store: the object may be there or not.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Answer<Put>;

    /// Replaces an object if it still has this version.
    ///
    /// # Errors
    /// Those of the store: the object may have been replaced or not.
    fn update_if_match(&self, name: &str, bytes: &[u8], tag: &Tag) -> Answer<Put>;

    /// Removes an object. One that is not there is no error.
    ///
    /// # Errors
    /// Those of the store: the object may be there or not.
    fn delete(&self, name: &str) -> Answer<()>;

    /// Lists the objects whose names begin with this. The protocol never lists; reports do.
    ///
    /// # Errors
    /// Those of the store.
    fn list(&self, prefix: &str) -> Answer<Vec<Listed>>;

    /// Ends requests that are under way, and fails later ones. A store that never waits for long need not.
    fn close(&self) {}

    /// The requests so far. A store that does not count says none.
    fn requests(&self) -> Requests {
        Requests::default()
    }
}

/// Opens the store that a URL names, without a request.
///
/// | URL | store |
/// |---|---|
/// | `file:///DIRECTORY` | a directory, which the first write creates |
/// | `s3://BUCKET/PREFIX` | S3, with the feature `s3`; options `endpoint` and `region` |
/// | `az://CONTAINER/PREFIX` | Azure, with the feature `azure`; options `account` and `endpoint` |
/// | `gs://BUCKET/PREFIX` | Google's, with the feature `gcs`; option `endpoint` |
/// | `nats://HOST:PORT/STREAM/SUBJECT` | a stream of NATS JetStream, with the feature `nats`; option `tls` |
///
/// Options are in the query of the URL, as in `?endpoint=http://127.0.0.1:9000`. [`with_key`] adds that of encryption.
/// Credentials are in environment variables, never in the URL; `docs/replication.md` has a list of them.
///
/// ```
/// let dir = tempfile::tempdir().unwrap();
/// let store = untorn_replicate::store::open(&format!("file://{}/replica", dir.path().display())).unwrap();
/// assert!(store.get("owner").unwrap().is_none());
/// ```
///
/// # Errors
/// [`crate::Error::Invalid`] for a URL that names no store of this build, and for credentials that
/// cannot be read.
pub fn open(url: &str) -> Result<Arc<dyn Store>> {
    let Parsed { location, key } = Parsed::parse(url)?;
    let key = key.as_deref().map(Key::read).transpose()?;
    let inner: Arc<dyn Store> = match location {
        Location::Directory(path) => Arc::new(DirectoryStore::new(&path)),
        #[cfg(feature = "_bucket")]
        Location::Bucket(found) => Arc::new(bucket::BucketStore::open(url, &found)?),
        #[cfg(feature = "nats")]
        Location::Stream(found) => Arc::new(jetstream::JetStreamStore::open(url, found)?),
        #[cfg(not(feature = "nats"))]
        Location::Stream(_) => {
            let what = "this build has no support for JetStream; build it with the feature nats".to_owned();
            return Err(Error::Invalid { what });
        }
        #[cfg(not(feature = "_bucket"))]
        Location::Bucket(_) => {
            let what = "this build has no support for buckets; build it with the feature s3, azure or gcs".to_owned();
            return Err(Error::Invalid { what });
        }
    };
    Ok(Arc::new(SealedStore { inner, key }))
}

/// The URL of a replica whose objects are encrypted with the key in this file: 32 random bytes, or 64 hexadecimal
/// digits. It has the option `key=FILE`, which every kind of store knows.
///
/// ```
/// use untorn_replicate::store;
/// let dir = tempfile::tempdir().unwrap();
/// let key = dir.path().join("key");
/// std::fs::write(&key, "5e".repeat(32)).unwrap();
/// let url = format!("file://{}", dir.path().display());
/// let sealed = store::open(&store::with_key(&url, &key)).unwrap();
/// sealed.put_if_absent("name", b"bytes").unwrap();
/// assert_eq!(sealed.get("name").unwrap().unwrap().bytes, b"bytes");
/// assert!(store::open(&url).unwrap().get("name").is_err());
/// ```
pub fn with_key(url: &str, key: &Path) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}key={}", location::encoded(&key.to_string_lossy()))
}

/// The URL of a place below another one, for one of several replicas in a bucket or directory.
///
/// ```
/// use untorn_replicate::store;
/// let below = store::below("s3://bucket/books?region=eu-1", "ledger").unwrap();
/// assert_eq!(below, "s3://bucket/books/ledger?region=eu-1");
/// ```
///
/// # Errors
/// [`crate::Error::Invalid`] for a wrong URL, for a name that no object may have, and for a stream: a stream is that of
/// one replica.
pub fn below(url: &str, name: &str) -> Result<String> {
    let invalid = |why: &str| Error::Invalid { what: format!("no replica of {name:?} below {}: {why}", shown(url)) };
    let part = match Parsed::parse(url)?.location {
        Location::Stream(_) => return Err(invalid("a stream has one replica; give each file a stream of its own")),
        Location::Directory(_) => location::encoded(name),
        Location::Bucket(_) => name.to_owned(),
    };
    if name.is_empty() || [".", ".."].contains(&name) || part.contains(['/', '?']) {
        return Err(invalid("the name cannot be a part of a URL"));
    }
    let (place, query) = url.split_at(url.find('?').unwrap_or(url.len()));
    let below = format!("{}/{part}{query}", place.trim_end_matches('/'));
    Parsed::parse(&below).map(|_| below)
}

/// Whether a text is a URL rather than the path of a file.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_below_another_keeps_the_query() {
        for (url, expected) in [
            ("file:///a/b", "file:///a/b/x.db"),
            ("file:///a%3Fb/?key=%2Fk", "file:///a%3Fb/x.db?key=%2Fk"),
            ("s3://bucket", "s3://bucket/x.db"),
            ("s3://bucket/?region=eu-1", "s3://bucket/x.db?region=eu-1"),
            ("az://c/p/?account=me", "az://c/p/x.db?account=me"),
        ] {
            assert_eq!(below(url, "x.db").unwrap(), expected);
        }
        assert_eq!(below("file:///a", "50% off?").unwrap(), "file:///a/50%25%20off%3F");
        for (url, name) in [
            ("nats://host/STREAM/a", "x"),
            ("s3://bucket", "a b"),
            ("s3://bucket", ".hidden"),
            ("file:///a", ".."),
            ("s3://bucket", "x?key=k"),
            ("file:///a", "x/y"),
            ("file:///a", ""),
        ] {
            assert!(matches!(below(url, name), Err(Error::Invalid { .. })), "{url} {name}");
        }
    }
}
