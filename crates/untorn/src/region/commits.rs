//! The commits of a region, for programs: streams of them, in any process.

use std::path::Path;
use std::sync::Arc;

use crate::engine::commits::LogOf;
use crate::engine::commits::consumer::{self, Consuming};
use crate::engine::commits::position::LogPosition;
use crate::engine::commits::stream::{Changes, CommitStream, Reader};
use crate::error::{Error, Result};
use crate::region::engine::find;
use crate::region::{Region, RegionMap, SharedRegion};
use crate::storage::{PageCache, resolve};

impl CommitStream {
    /// The commits of a region of the store at `path` after the one of this number, whichever process has the store
    /// open, or none. 0 asks for all commits since the region was created with its log
    /// ([`StoreOptions::commit_log`](crate::region::StoreOptions::commit_log)).
    ///
    /// # Errors
    /// [`Error::Io`] with ENOENT if the region does not exist; otherwise as for [`open`](Self::open).
    pub fn open_region(path: impl AsRef<Path>, region: &str, from: u64) -> Result<CommitStream> {
        let path = resolve(path.as_ref())?;
        let medium = Arc::new(PageCache::reading_by_call());
        let found = find(&*medium, &path, region)?;
        // The record of a commit under way may be there already, and its commit is the next one then.
        if from > found.commit {
            return Err(Error::NoSuchCommit { path, commit: from, last: found.commit });
        }
        Ok(CommitStream::new(Box::new(Reader::open(medium, &path, LogOf::Part(found.uid), from)?)))
    }

    /// The commits of a region of the store at `path` after this position of another stream of it, as
    /// [`resume`](Self::resume) gives those of a file.
    ///
    /// # Errors
    /// As for [`open_region`](Self::open_region) and [`resume`](Self::resume).
    pub fn resume_region(path: impl AsRef<Path>, region: &str, position: &LogPosition) -> Result<CommitStream> {
        let path = resolve(path.as_ref())?;
        let medium = Arc::new(PageCache::reading_by_call());
        let found = find(&*medium, &path, region)?;
        Ok(CommitStream::new(Box::new(Reader::resume(medium, &path, LogOf::Part(found.uid), position)?)))
    }

    /// The commits of a region of the store at `path` for the registered consumer of this name, as
    /// [`consumer`](Self::consumer) gives those of a file. With `from`, after the commit of that number, which becomes
    /// the position of the consumer.
    ///
    /// # Errors
    /// As for [`consumer`](Self::consumer) and [`open_region`](Self::open_region).
    pub fn consumer_of_region(
        path: impl AsRef<Path>,
        region: &str,
        name: &str,
        from: Option<u64>,
    ) -> Result<CommitStream> {
        let path = resolve(path.as_ref())?;
        let medium = Arc::new(PageCache::reading_by_call());
        let found = find(&*medium, &path, region)?;
        if let Some(commit) = from.filter(|from| *from > found.commit) {
            return Err(Error::NoSuchCommit { path, commit, last: found.commit });
        }
        Ok(CommitStream::new(Box::new(Consuming::open(medium, &path, LogOf::Part(found.uid), name, from)?)))
    }
}

/// Removes a registered consumer of the commits of a region, as [`commits::forget`](crate::commits::forget) does it for
/// a file. Returns whether there was one.
///
/// # Errors
/// [`Error::Invalid`] for a name that no consumer can have; those of finding the region and of removing.
pub fn forget_consumer(path: impl AsRef<Path>, region: &str, name: &str) -> Result<bool> {
    let path = resolve(path.as_ref())?;
    let medium = PageCache::reading_by_call();
    let found = find(&medium, &path, region)?;
    consumer::forget(&medium, &path, LogOf::Part(found.uid), name)
}

macro_rules! calls_of {
    ($handle:ident) => {
        impl $handle {
            /// The commits of this region after the one of this number, each with the pages that it changed, allocated
            /// and freed. The region has a commit log
            /// ([`StoreOptions::commit_log`](crate::region::StoreOptions::commit_log)).
            ///
            /// # Errors
            /// [`Error::CommitsMissing`] if the region has no log or it does not reach back so far;
            /// [`Error::NoSuchCommit`] if the number is above that of the last commit; errors of opening and reading.
            pub fn commits(&self, from: u64) -> Result<CommitStream> {
                Ok(CommitStream::new(self.region.commits(from)?))
            }

            /// The commits of this region for a registered consumer, as [`CommitStream::consumer`] gives those of a
            /// file.
            ///
            /// # Errors
            /// As for [`CommitStream::consumer`].
            pub fn consumer(&self, name: &str) -> Result<CommitStream> {
                Ok(CommitStream::new(self.region.consumer(name, None)?))
            }

            /// Which bytes commits changed after the one of this number, pages that they allocated and freed included.
            ///
            /// # Errors
            /// As for [`commits`](Self::commits).
            pub fn changed_since(&self, commit: u64) -> Result<Changes> {
                self.commits(commit)?.into_changes()
            }
        }
    };
}

calls_of!(Region);
calls_of!(RegionMap);

impl SharedRegion {
    /// The commits of this region after the one of this number, whichever process made them, as
    /// [`CommitStream::open_region`] gives them.
    ///
    /// # Errors
    /// As for [`CommitStream::open_region`].
    pub fn commits(&self, from: u64) -> Result<CommitStream> {
        CommitStream::open_region(self.path(), self.name(), from)
    }

    /// The commits of this region for a registered consumer, as [`CommitStream::consumer_of_region`] gives them.
    ///
    /// # Errors
    /// As for [`CommitStream::consumer_of_region`].
    pub fn consumer(&self, name: &str) -> Result<CommitStream> {
        CommitStream::consumer_of_region(self.path(), self.name(), name, None)
    }
}
