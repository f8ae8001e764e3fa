//! Requests, to the calls that serve them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::io::Errno as Sys;
use untorn_wire::{Operation, Reply};

use super::{Files, leftovers};
use crate::connection::{Answer, Call, bytes, status, value};
use crate::descriptor::path_of;
use crate::managed::{Errno, io_errno, libc_errno};
use crate::processes::Processes;
use crate::report::Ledger;
use crate::service::Service;

impl Service for Files {
    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn answer(&self, operation: Operation, call: &Call<'_>) -> Result<Answer, Errno> {
        let (process, request) = (call.process, &call.request);
        let key = (request.device, request.inode);
        match operation {
            Operation::Open => self.opened(call.descriptor()?, process, request.number != 0)?,
            Operation::Closed => self.let_go(key)?,
            Operation::Read => return Ok(bytes(self.read(call.descriptor()?, process, request)?)),
            Operation::Write => {
                self.write(call.descriptor()?, process, request, &call.payload)?;
                return Ok(value(call.payload.len() as i64));
            }
            Operation::Seek => return Ok(value(self.seek(call.descriptor()?, process, request)?)),
            Operation::SetLength => self.set_length(call.descriptor()?, process, request.number)?,
            Operation::Allocate => self.allocate(call.descriptor()?, process, request)?,
            Operation::Commit => self.commit(call.descriptor()?, process)?,
            Operation::CommitAll => self.commit_all(process)?,
            Operation::Status => return Ok(status(self.status(key, process)?)),
            Operation::Times => self.times_were_set(key)?,
            Operation::Exit => self.processes.exits(process),
            Operation::Managed => {
                let (managed, value) = self.is_managed(key, request.number);
                let reply = Reply { managed: managed.into(), value, ..Reply::default() };
                return Ok((reply, Vec::new()));
            }
            Operation::MoveDirectory => self.directory_is_to_be_moved(call.descriptor()?)?,
            Operation::Unnamed => match call.descriptor() {
                Ok(directory) => leftovers::remove_unused(&path_of(directory)?, key),
                Err(_) => self.unnamed((request.number == 0).then_some(key)),
            },
            Operation::Map => call.pass(self.map(call.descriptor()?, process, request.number != 0)?),
            Operation::Mapped => {
                // Without the one that belongs to it nobody would hear of its stores.
                let watch = match request.flags {
                    0 => None,
                    _ => {
                        let watch = call.descriptor().map_err(|_| libc_errno(Sys::MFILE))?;
                        Some(watch.try_clone().map_err(|error| io_errno(&error))?)
                    }
                };
                self.mapped(process, request, watch)?;
            }
            Operation::Placed => self.placed(process, request)?,
            Operation::Unmapped => self.unmapped(process, request)?,
            Operation::Inherited => return Ok((self.inherited(process)?, Vec::new())),
            Operation::SyncMapped => self.sync_mapped(process, request)?,
            Operation::MapAgain => {
                let (reply, twin) = self.map_again(process, request)?;
                if let Some(twin) = twin {
                    call.pass(twin);
                }
                return Ok((reply, Vec::new()));
            }
            _ => return Err(libc_errno(Sys::NOSYS)),
        }
        Ok(value(0))
    }

    fn path(&self, descriptor: &OwnedFd) -> PathBuf {
        let path = path_of(descriptor).unwrap_or_default();
        if !path.to_string_lossy().starts_with("/memfd:") {
            return path;
        }
        let twin = rustix::fs::fstat(descriptor).ok().and_then(|status| self.path_of_twin(status.st_ino));
        twin.unwrap_or(path)
    }

    fn became(&self, process: u32) {
        Files::became(self, process);
        // What the program before it had open it may have been the last to have.
        self.sweep();
    }

    fn forsaken_by(&self, process: u32) {
        self.forsake(process);
    }

    fn sweep(&self) {
        self.forget_unmapped();
        self.let_go_of_unheld();
    }

    fn close(&self) {
        self.end();
    }
}
