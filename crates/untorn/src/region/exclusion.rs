//! The check that keeps a store from being opened while several processes share a region of it.
//!
//! Processes that share *different* regions of one store at once are refused too. Four things are missing for them:
//! - A place to meet for each region, beside the one of the store, so that members find the owner of their region.
//! - An owner that serves a region which its own program does not have: it would open the memory of each region when
//!   its first member comes, and let go of it after the last one.
//! - One election for all regions. Who takes over opens the store, checks it once, and serves all of them; a member of
//!   another region must not win while the members of the first one still wait for the old owner.
//! - An eviction of one region alone, when its memory is lost or its commit poisons the store, which ends all others.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::ipc::rendezvous::find_participant;
use crate::options::ExclusionCheck;
use crate::storage::{self, Identity};

/// The name of the meeting place of the processes that share a region of a store. All regions have the same one, so
/// that no process opens the store for one region while the processes of another choose the next server.
pub(super) fn place_of(identity: Identity) -> String {
    sidecar::meeting_place(identity, sidecar::REGION)
}

/// Checks that no process shares a region of a store. Processes may share one while none of them has the store open:
/// between the death of the server and the start of the next one.
///
/// # Errors
/// [`Error::InUse`] if a process does; [`Error::Io`].
fn refuse_if_shared(store: &Path, identity: Identity) -> Result<()> {
    let who = find_participant(store, &sidecar::directory(store), &place_of(identity));
    match who.map_err(|error| Error::io("find the processes that share a region of", store, error))? {
        Some(who) => {
            Err(Error::InUse { path: store.to_owned(), holder: format!("{who}, which shares a region of it") })
        }
        None => Ok(()),
    }
}

/// Admits a store if no process shares a region of it.
pub(super) struct RegionNotShared<'a> {
    pub(super) path: &'a Path,
}

impl ExclusionCheck for RegionNotShared<'_> {
    fn check_exclusion(&self) -> Result<()> {
        refuse_if_shared(self.path, storage::detect(self.path)?.identity)
    }
}
