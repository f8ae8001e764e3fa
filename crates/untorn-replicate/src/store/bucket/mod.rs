//! A store in a bucket: S3, Azure, GCS, and servers that speak like one of them.
//!
//! # Invariants
//!
//! 1. One call makes one request, and none is repeated here. The protocol repeats requests, and it must know that a
//!    conditional write was tried before: the second try of a write that succeeded is refused.
//! 2. A refusal is an answer to the condition, and nothing else. A conflict with another request that is under way is
//!    a failure that may pass.
//! 3. A missing bucket is an error, and never an object that is missing.
//! 4. Nothing waits without a limit: a request ends when no byte has come for a while.

mod build;
mod http;
mod trouble;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error as Trouble, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutResult, UpdateVersion,
};

use self::http::{Connector, FAILURE, Failure};
use self::trouble::{Place, explain};
use super::location::{BucketUrl, Cloud};
use super::meter::{Meter, Requests};
use super::waiting::Waiting;
use super::{Answer, Fetched, Listed, Put, Read, Store, StoreError, Tag};
use crate::error::{Error, Result};

/// A store in a bucket.
pub(super) struct BucketStore {
    url: String,
    place: Place,
    prefix: String,
    remote: Arc<dyn ObjectStore>,
    meter: Arc<Meter>,
    waiting: Waiting,
}

impl std::fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The fields inside have credentials.
        f.debug_struct("BucketStore").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A request that failed: the library's error, and what the wire said.
struct Refusal {
    error: Option<Trouble>,
    failure: Option<Box<Failure>>,
}

impl Refusal {
    fn status(&self) -> u16 {
        self.failure.as_deref().map_or(0, Failure::status)
    }

    fn lacks_bucket(&self) -> bool {
        self.failure.as_deref().is_some_and(Failure::lacks_bucket)
    }
}

impl BucketStore {
    /// The store that a URL names. Makes no request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a kind of store that this build lacks, and for wrong credentials that no request is
    /// needed to see.
    pub(super) fn open(url: &str, found: &BucketUrl) -> Result<Self> {
        let meter = Arc::new(Meter::default());
        let endpoint = build::endpoint(found);
        let host = endpoint.split_once("://").map_or("", |(_, rest)| rest).split('/').next().unwrap_or_default();
        let place = Place { cloud: found.cloud, bucket: found.bucket.clone(), host: host.to_owned() };
        let connector = Connector::new(Arc::clone(&meter), host.to_owned(), endpoint.starts_with("https://"))?;
        let remote = build::build(found, connector)?;
        let failed = |source| Error::Io { operation: "start the thread of the store", path: url.into(), source };
        let (url, prefix, waiting) = (url.to_owned(), found.prefix.clone(), Waiting::new().map_err(failed)?);
        Ok(BucketStore { url, place, prefix, remote, meter, waiting })
    }

    fn path(&self, name: &str) -> Path {
        if self.prefix.is_empty() { Path::from(name) } else { Path::from(format!("{}/{name}", self.prefix)) }
    }

    /// Runs a request to its end.
    fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> std::result::Result<T, Refusal> {
        let failure = Arc::new(Mutex::new(None));
        let error = match self.waiting.run(FAILURE.scope(Arc::clone(&failure), request)) {
            Some(Ok(done)) => return Ok(done),
            Some(Err(error)) => Some(error),
            None => None,
        };
        let failure = failure.lock().unwrap_or_else(PoisonError::into_inner).take().map(Box::new);
        Err(Refusal { error, failure })
    }

    fn failed(&self, operation: &'static str, name: &str, refusal: &Refusal) -> StoreError {
        let Some(error) = &refusal.error else {
            let cause = "the request was ended before an answer came".to_owned();
            return StoreError { operation, name: name.to_owned(), is_transient: false, cause };
        };
        let fallback = error.to_string();
        let cause = explain(&self.place, refusal.failure.as_deref(), &fallback);
        StoreError { operation, name: name.to_owned(), is_transient: cause.is_transient, cause: cause.text }
    }

    /// The version as the next condition needs it.
    fn tag(&self, e_tag: Option<String>, version: Option<String>) -> Option<Tag> {
        match self.place.cloud {
            // Its conditions on writes name generations, and those on reads name entity tags.
            Cloud::Gcs => Some(Tag(format!("{} {}", version?, e_tag?))),
            Cloud::S3 | Cloud::Azure => e_tag.map(Tag),
        }
    }

    fn update_version(&self, tag: &Tag) -> UpdateVersion {
        match (self.place.cloud, tag.0.split_once(' ')) {
            (Cloud::Gcs, Some((version, e_tag))) => {
                UpdateVersion { e_tag: Some(e_tag.to_owned()), version: Some(version.to_owned()) }
            }
            _ => UpdateVersion { e_tag: Some(tag.0.clone()), version: None },
        }
    }

    fn versionless(operation: &'static str, name: &str) -> StoreError {
        let cause = "the store gave it no version (ETag), so no condition can name it".to_owned();
        StoreError { operation, name: name.to_owned(), is_transient: false, cause }
    }

    fn fetch(&self, name: &str, options: GetOptions) -> std::result::Result<Answer<Fetched>, Refusal> {
        let (remote, path) = (Arc::clone(&self.remote), self.path(name));
        let (meta, bytes) = self.run(async move {
            let got = remote.get_opts(&path, options).await?;
            let meta = got.meta.clone();
            Ok((meta, got.bytes().await?))
        })?;
        let tag = self.tag(meta.e_tag, meta.version).ok_or_else(|| Self::versionless("read", name));
        Ok(tag.map(|tag| Fetched { bytes: bytes.into(), tag }))
    }

    fn put(&self, operation: &'static str, name: &str, bytes: &[u8], mode: PutMode) -> Answer<Put> {
        let (remote, path, body) = (Arc::clone(&self.remote), self.path(name), bytes.to_vec());
        let options = PutOptions::from(mode);
        let done = self.run(async move { remote.put_opts(&path, body.into(), options).await });
        let refusal = match done {
            Ok(PutResult { e_tag, version, .. }) => {
                let tag = self.tag(e_tag, version).ok_or_else(|| Self::versionless(operation, name))?;
                return Ok(Put::Stored(tag));
            }
            Err(refusal) => refusal,
        };
        // Azure says 409 for a name that is taken; elsewhere that is a conflict with a request under way.
        let conflicts = refusal.status() == 409 && self.place.cloud != Cloud::Azure;
        match refusal.error {
            Some(Trouble::AlreadyExists { .. } | Trouble::Precondition { .. } | Trouble::NotModified { .. })
                if !conflicts && !refusal.lacks_bucket() =>
            {
                Ok(Put::Refused)
            }
            _ => Err(self.failed(operation, name, &refusal)),
        }
    }
}

impl Store for BucketStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn close(&self) {
        self.waiting.close();
    }

    fn requests(&self) -> Requests {
        self.meter.read()
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        match self.fetch(name, GetOptions::default()) {
            Ok(found) => found.map(Some),
            Err(Refusal { error: Some(Trouble::NotFound { .. }), failure })
                if !failure.as_deref().is_some_and(Failure::lacks_bucket) =>
            {
                Ok(None)
            }
            Err(refusal) => Err(self.failed("read", name, &refusal)),
        }
    }

    fn get_if_changed(&self, name: &str, tag: &Tag) -> Answer<Read> {
        let options = GetOptions { if_none_match: self.update_version(tag).e_tag, ..GetOptions::default() };
        match self.fetch(name, options) {
            Ok(found) => found.map(Read::Changed),
            Err(refusal) => match refusal.error {
                Some(Trouble::NotModified { .. }) => Ok(Read::Unchanged),
                Some(Trouble::NotFound { .. }) if !refusal.lacks_bucket() => Ok(Read::Missing),
                _ => Err(self.failed("read", name, &refusal)),
            },
        }
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Answer<Put> {
        self.put("create", name, bytes, PutMode::Create)
    }

    fn update_if_match(&self, name: &str, bytes: &[u8], tag: &Tag) -> Answer<Put> {
        self.put("update", name, bytes, PutMode::Update(self.update_version(tag)))
    }

    fn delete(&self, name: &str) -> Answer<()> {
        let (remote, path) = (Arc::clone(&self.remote), self.path(name));
        match self.run(async move { remote.delete(&path).await }) {
            Ok(()) => Ok(()),
            Err(refusal) => match refusal.error {
                Some(Trouble::NotFound { .. }) if !refusal.lacks_bucket() => Ok(()),
                _ => Err(self.failed("delete", name, &refusal)),
            },
        }
    }

    fn list(&self, prefix: &str) -> Answer<Vec<Listed>> {
        let (remote, above) = (Arc::clone(&self.remote), self.prefix.clone());
        let found = self.run(async move {
            let above = (!above.is_empty()).then(|| Path::from(above));
            remote.list(above.as_ref()).try_collect::<Vec<_>>().await
        });
        let found = found.map_err(|refusal| self.failed("list", prefix, &refusal))?;
        let start = if self.prefix.is_empty() { 0 } else { self.prefix.len() + 1 };
        let mut listed: Vec<Listed> = found
            .into_iter()
            .filter_map(|meta| {
                let name = meta.location.as_ref().get(start..)?.to_owned();
                name.starts_with(prefix).then_some(Listed { name, len: meta.size })
            })
            .collect();
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listed)
    }
}
