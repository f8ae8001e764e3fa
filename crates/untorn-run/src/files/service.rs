//! Requests, to the calls that serve them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::io::Errno as Sys;
use untorn_wire::{
    InheritedReply, LastNameReply, ManagedReply, MapAgainReply, OpenReply, ReadReply, Request, SeekReply, StatusReply,
    WriteReply,
};

use super::{Files, leftovers};
use crate::connection::{Answer, Call, answer, done, with_bytes};
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

    fn answer(&self, request: Request, call: &Call<'_>) -> Result<Answer, Errno> {
        let process = call.process;
        match request {
            Request::Open(open) => {
                self.opened(call.descriptor()?, process, open.truncate)?;
                answer(open, OpenReply { managed: true })
            }
            Request::Closed(closed) => done(closed, self.let_go(closed.file.into())),
            Request::Read(read) => {
                let bytes = self.read(call.descriptor()?, process, read)?;
                with_bytes(read, ReadReply { count: bytes.len() as u64 }, bytes)
            }
            Request::Write(write) => {
                self.write(call.descriptor()?, process, write, &call.data)?;
                answer(write, WriteReply { count: call.data.len() as u64 })
            }
            Request::Seek(seek) => answer(seek, SeekReply { offset: self.seek(call.descriptor()?, process, seek)? }),
            Request::SetLength(set) => done(set, self.set_length(call.descriptor()?, process, set.len)),
            Request::Allocate(allocate) => done(allocate, self.allocate(call.descriptor()?, process, allocate)),
            Request::Commit(commit) => done(commit, self.commit(call.descriptor()?, process)),
            Request::CommitAll(commit) => done(commit, self.commit_all(process)),
            Request::Status(status) => {
                let found = self.status(status.file.into(), process)?;
                let differs = |(len, (seconds, nanoseconds))| StatusReply { differs: true, len, seconds, nanoseconds };
                answer(status, found.map(differs).unwrap_or_default())
            }
            Request::AttributesSet(set) => done(set, self.times_were_set(set.file.into())),
            Request::Exit(exit) => {
                self.processes.exits(process);
                done(exit, Ok(()))
            }
            Request::Managed(asked) => {
                let (managed, has_sidecar) = self.is_managed(asked.file.into());
                answer(asked, ManagedReply { managed, has_sidecar })
            }
            Request::LastName(asked) => {
                let last = self.has_last_name_in(asked.file.into(), asked.directory);
                answer(asked, LastNameReply { last })
            }
            Request::MoveDirectory(moved) => done(moved, self.directory_is_to_be_moved(call.descriptor()?)),
            Request::Unnamed(unnamed) => {
                self.unnamed(Some(unnamed.file.into()));
                done(unnamed, Ok(()))
            }
            Request::SomeUnnamed(unnamed) => {
                self.unnamed(None);
                done(unnamed, Ok(()))
            }
            Request::UnnamedIn(unnamed) => {
                leftovers::remove_unused(&path_of(call.descriptor()?)?, unnamed.file.into());
                done(unnamed, Ok(()))
            }
            Request::Map(map) => {
                call.pass(self.map(call.descriptor()?, process, map.writable)?);
                done(map, Ok(()))
            }
            Request::Mapped(mapped) => {
                // Without the one that belongs to it nobody would hear of its stores.
                let watch = match mapped.watched {
                    false => None,
                    true => {
                        let watch = call.descriptor().map_err(|_| libc_errno(Sys::MFILE))?;
                        Some(watch.try_clone().map_err(|error| io_errno(&error))?)
                    }
                };
                done(mapped, self.mapped(process, mapped, watch))
            }
            Request::Placed(placed) => done(placed, self.placed(process, placed)),
            Request::Unmapped(unmapped) => done(unmapped, self.unmapped(process, unmapped.at)),
            Request::Inherited(inherited) => {
                let found = self.inherited(process)?.map(|at| InheritedReply { found: true, at });
                answer(inherited, found.unwrap_or_default())
            }
            Request::SyncMapped(sync) => done(sync, self.sync_mapped(process, sync.at)),
            Request::MapAgain(again) => {
                let Some((reply, twin)) = self.map_again(process, again.at)? else {
                    return answer(again, MapAgainReply::default());
                };
                call.pass(twin);
                answer(again, reply)
            }
            _ => Err(libc_errno(Sys::NOSYS)),
        }
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
