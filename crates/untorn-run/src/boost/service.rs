//! Requests, to the calls that serve them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::fs::OFlags;
use untorn_wire::{
    ManagedReply, MoveReply, OpenReply, PLAIN, ReopenReply, Request, Shared, SyncDirectoryReply, WriteReply,
};

use super::Boost;
use super::directories::Sync;
use crate::connection::{Answer, Call, answer, done};
use crate::files::lock;
use crate::managed::{Errno, io_errno, libc_errno};
use crate::processes::Processes;
use crate::report::Ledger;
use crate::service::Service;

impl Service for Boost {
    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn answer(&self, request: Request, call: &Call<'_>) -> Result<Answer, Errno> {
        match request {
            Request::Open(open) => answer(open, OpenReply { managed: self.opened(call.descriptor()?)? }),
            Request::Closed(closed) => done(closed, self.descriptor_closed(closed.file.into())),
            Request::Write(write) => {
                answer(write, WriteReply { count: self.write(call.descriptor()?, write, &call.data)? })
            }
            Request::SetLength(set) => done(set, self.set_length(call.descriptor()?, set.len)),
            Request::Commit(commit) => done(commit, self.sync(call.descriptor()?)),
            Request::SyncDirectory(sync) => {
                let (durable, number) = match self.about_to_sync_directory(call.descriptor()?)? {
                    Sync::Kept => (true, 0),
                    Sync::Due(number) => (false, number),
                };
                answer(sync, SyncDirectoryReply { durable, number })
            }
            Request::DirectorySynced(synced) => {
                self.directory_was_synced(synced.number, synced.done);
                done(synced, Ok(()))
            }
            Request::CommitAll(commit) => done(commit, self.cache.sync().map_err(|error| error.errno())),
            Request::Demote(demote) => done(demote, self.demote_key(demote.file.into(), &call.name())),
            Request::DemoteDescriptor(demote) => {
                let status = rustix::fs::fstat(call.descriptor()?).map_err(libc_errno)?;
                done(demote, self.demote_key((status.st_dev, status.st_ino), &call.name()))
            }
            Request::DemoteAll(demote) => done(demote, self.demote_all(&call.name())),
            Request::Leave(leave) => done(leave, self.leave(leave.file.into())),
            Request::Move(moved) => {
                let followed = self.about_to_be_moved(moved.file.into(), call.descriptor()?, &call.data)?;
                answer(moved, MoveReply { followed })
            }
            Request::Moved(moved) => done(moved, self.was_moved(moved.file.into(), moved.done)),
            Request::Reopen(_) | Request::Share(_) if call.is_other => Err(PLAIN),
            Request::Reopen(reopen) => {
                let flags = OFlags::from_bits_retain(reopen.flags as u32);
                let description = self.reopen(reopen.file.into(), flags)?;
                let reopened = description.is_some();
                if let Some(description) = description {
                    call.pass(description);
                }
                answer(reopen, ReopenReply { reopened })
            }
            Request::Share(share) => {
                let shared = self.cache.shared().ok_or(PLAIN)?;
                let copy = |which: BorrowedFd<'_>| which.try_clone_to_owned().map_err(|error| io_errno(&error));
                call.pass(match share.what {
                    Shared::State => copy(shared.shared_state)?,
                    Shared::Log => copy(shared.log)?,
                    Shared::OpenedLog => self.cache.open_shared().map_err(|error| error.errno())?,
                });
                done(share, Ok(()))
            }
            Request::TakeBack(back) => done(back, self.take_back(back.file.into())),
            Request::AttributesSet(set) => done(set, self.attributes_were_set(set.file.into())),
            Request::Managed(asked) => {
                let managed = self.find(asked.file.into()).is_some();
                answer(asked, ManagedReply { managed, has_sidecar: false })
            }
            _ => Err(PLAIN),
        }
    }

    /// What it wrote stays written.
    fn forsaken_by(&self, _: u32) {}

    fn sweep(&self) {
        self.process_ended();
    }

    /// It is written already, and comes to rest when a process ends. To see to it now might be to wait for one that
    /// is stopped.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.let_go_of_unheld();
        for file in self.all() {
            self.count_beside(&lock(&file));
        }
        // What is left is of files that have no name any more, or that failed, which was reported.
        if let Err(error) = self.cache.drain() {
            tracing::warn!(%error, "the log is not empty at the end of the run");
        }
    }
}
