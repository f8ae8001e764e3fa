//! Requests, to the calls that serve them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::fs::OFlags;
use untorn_wire::{Operation, PLAIN, Reply};

use super::Boost;
use super::directories::Sync;
use crate::connection::{Answer, Call, value};
use crate::files::lock;
use crate::managed::{Errno, io_errno, libc_errno};
use crate::processes::Processes;
use crate::report::Ledger;
use crate::service::Service;

fn managed(managed: bool) -> Answer {
    (Reply { managed: managed.into(), ..Reply::default() }, Vec::new())
}

impl Service for Boost {
    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn answer(&self, operation: Operation, call: &Call<'_>) -> Result<Answer, Errno> {
        let request = &call.request;
        let key = (request.device, request.inode);
        match operation {
            Operation::Open => return Ok(managed(self.opened(call.descriptor()?)?)),
            Operation::Closed => self.descriptor_closed(key)?,
            Operation::Write => return Ok(value(self.write(call.descriptor()?, request, &call.payload)?)),
            Operation::SetLength => self.set_length(call.descriptor()?, request.number)?,
            Operation::Commit => self.sync(call.descriptor()?)?,
            Operation::SyncDirectory => {
                return Ok(match self.about_to_sync_directory(call.descriptor()?)? {
                    Sync::Kept => managed(true),
                    Sync::Due(number) => value(number as i64),
                });
            }
            Operation::DirectorySynced => self.directory_was_synced(request.number, request.flags == 1),
            Operation::CommitAll => self.cache.sync().map_err(|error| error.errno())?,
            Operation::Demote if request.number != 0 => self.demote_all(&call.name())?,
            Operation::Demote => {
                let key = match call.descriptor() {
                    Ok(descriptor) => {
                        let status = rustix::fs::fstat(descriptor).map_err(libc_errno)?;
                        (status.st_dev, status.st_ino)
                    }
                    Err(_) => key,
                };
                self.demote_key(key, &call.name())?;
            }
            Operation::Leave => self.leave(key)?,
            Operation::Move => return Ok(managed(self.about_to_be_moved(key, call.descriptor()?, &call.payload)?)),
            Operation::Moved => self.was_moved(key, request.number == 1)?,
            Operation::Reopen | Operation::Share if call.is_other => return Err(PLAIN),
            Operation::Reopen => {
                let flags = OFlags::from_bits_retain(request.flags as u32);
                let description = self.reopen(key, flags)?;
                let found = description.is_some();
                if let Some(description) = description {
                    call.pass(description);
                }
                return Ok(managed(found));
            }
            Operation::Share => {
                let shared = self.cache.shared().ok_or(PLAIN)?;
                let copy = |which: BorrowedFd<'_>| which.try_clone_to_owned().map_err(|error| io_errno(&error));
                call.pass(match request.number {
                    0 => copy(shared.shared_state)?,
                    1 => copy(shared.log)?,
                    _ => self.cache.open_shared().map_err(|error| error.errno())?,
                });
            }
            Operation::TakeBack => self.take_back(key)?,
            Operation::Times => self.attributes_were_set(key)?,
            Operation::Managed => return Ok(managed(self.find(key).is_some())),
            _ => return Err(PLAIN),
        }
        Ok(value(0))
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
