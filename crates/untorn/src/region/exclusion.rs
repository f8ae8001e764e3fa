//! Sees to it that nobody opens a store while several processes share a region of it.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::ipc::rendezvous::who_takes_part;
use crate::options::Admission;
use crate::storage::{self, Identity};

/// Where the processes meet that share a region of a store. One place for all regions, so that nobody opens the store for one
/// of them while another one's processes look for who serves next.
pub(super) fn place_of(identity: Identity) -> String {
    sidecar::meeting_place(identity, sidecar::REGION)
}

/// Sees to it that nobody shares a region of a store, as somebody may while none of the processes has it open: between the
/// death of the one that served and the coming of the next.
///
/// # Errors
/// [`Error::InUse`] if somebody does; [`Error::Io`].
fn refuse_if_shared(store: &Path, identity: Identity) -> Result<()> {
    let who = who_takes_part(&sidecar::directory(store), &place_of(identity));
    match who.map_err(|error| Error::io("ask who shares a region of", store, error))? {
        Some(who) => {
            Err(Error::InUse { path: store.to_owned(), holder: format!("{who}, which shares a region of it") })
        }
        None => Ok(()),
    }
}

/// Lets a store be opened of which nobody shares a region.
pub(super) struct Unshared<'a> {
    pub(super) path: &'a Path,
}

impl Admission for Unshared<'_> {
    fn admit(&self) -> Result<()> {
        refuse_if_shared(self.path, storage::detect(self.path)?.identity)
    }
}
