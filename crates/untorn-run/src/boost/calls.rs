//! The calls of programs on boosted files that change bytes or lengths, and syncs. Each is one critical section of
//! its file.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno as Sys;
use untorn_wire::{PLAIN, Write};

use super::Boost;
use super::file::Boosted;
use crate::descriptor::{RWF_APPEND, RWF_DSYNC, RWF_HINTS, RWF_SYNC, fail, flags, move_to, position, writable};
use crate::files::{Key, lock};
use crate::managed::Errno;

/// No file of any file system reaches so far that a log would be in front of: the kernel knows what to say to more.
const FAR: u64 = 1 << 42;

/// What the log says to the first write of a file when it has as many files as it can have. Nothing of the file is in
/// it then.
const NO_LINE: Errno = Sys::NFILE.raw_os_error();
const NO_LINE_IN_WORDS: &str = "write: the log has reached its maximum number of files";

impl Boost {
    /// Writes, and moves the descriptor's offset where it is used.
    ///
    /// The program's other threads may read and seek meanwhile, which the kernel does without asking. An offset that
    /// somebody moved during the write stays where they moved it, as if they had done so after it.
    pub(super) fn write(&self, descriptor: &OwnedFd, request: Write, bytes: &[u8]) -> Result<u64, Errno> {
        self.with(descriptor, |file| {
            let flags = flags(descriptor)?;
            if !writable(flags) {
                return fail(Sys::BADF);
            }
            let synchronous = RWF_DSYNC | RWF_SYNC;
            if request.flags & !(RWF_HINTS | synchronous | RWF_APPEND) != 0 {
                return self.left_to_the_kernel(file, "pwritev2: unsupported flags");
            }
            // The kernel appends what is written by such a description, whatever the offset: nobody else makes the
            // file longer, so that is where the log has it. `RWF_NOAPPEND` was left to the kernel.
            let appends = request.flags & RWF_APPEND != 0 || flags.contains(OFlags::APPEND);
            if bytes.is_empty() {
                return Ok(0);
            }
            let explicit = request.position.explicit();
            if explicit.is_none() || appends {
                // Where it goes is decided with the write, and programs write by themselves, too.
                file.revoke_writers()?;
            }
            let at = match explicit {
                _ if appends => file.len()?,
                Some(offset) => offset,
                None => position(descriptor)?,
            };
            if at.checked_add(bytes.len() as u64).is_none_or(|end| end >= FAR) {
                return self.left_to_the_kernel(file, "write: ends at or beyond 4 TiB");
            }
            let mut written = file.write(bytes, at);
            if written == Err(NO_LINE) {
                // Files that nobody has open any more may have lines.
                self.look_after_resting(true);
                written = file.write(bytes, at);
            }
            let count = match written {
                Err(errno) if errno == NO_LINE => return self.left_to_the_kernel(file, NO_LINE_IN_WORDS),
                written => written?,
            };
            if explicit.is_none() && (appends || position(descriptor)? == at) {
                move_to(descriptor, at + count as u64)?;
            }
            // Not before: it is from there that a program's own next write goes on.
            file.allow_writers();
            self.ledger.of(file.path(), |report| {
                report.writes += 1;
                report.bytes_written += count as u64;
            });
            if request.flags & synchronous != 0 {
                self.synced(file)?;
            }
            Ok(count as u64)
        })
    }

    /// A call that the kernel serves better: demotes the file, and lets the layer go on to the kernel.
    fn left_to_the_kernel<T>(&self, file: &mut Boosted, why: &str) -> Result<T, Errno> {
        self.demote(file, why)?;
        Err(PLAIN)
    }

    pub(super) fn set_length(&self, descriptor: &OwnedFd, len: u64) -> Result<(), Errno> {
        self.with(descriptor, |file| {
            if !writable(flags(descriptor)?) {
                return fail(Sys::INVAL);
            }
            if len >= FAR {
                return self.left_to_the_kernel(file, "ftruncate: length of 4 TiB or more");
            }
            let mut done = file.set_len(len);
            if done == Err(NO_LINE) {
                self.look_after_resting(true);
                done = file.set_len(len);
            }
            match done {
                Err(errno) if errno == NO_LINE => self.left_to_the_kernel(file, NO_LINE_IN_WORDS),
                done => done,
            }
        })
    }

    /// `fsync` and its kin.
    pub(super) fn sync(&self, descriptor: &OwnedFd) -> Result<(), Errno> {
        self.with(descriptor, |file| self.synced(file))
    }

    fn synced(&self, file: &mut Boosted) -> Result<(), Errno> {
        file.sync()?;
        self.ledger.of(file.path(), |report| report.commits += 1);
        Ok(())
    }

    /// The kernel took less of a write than its process put into the log, and the process is told so after this.
    pub(super) fn take_back(&self, key: Key) -> Result<(), Errno> {
        match self.find(key) {
            // Nor what became plain while this waited for it: its log was settled on the way.
            Some(file) => match lock(&file).take_back() {
                Err(errno) if errno == PLAIN => Ok(()),
                done => done,
            },
            // What is plain has nothing in the log.
            None => Ok(()),
        }
    }

    /// Attributes of a file were set.
    pub(super) fn attributes_were_set(&self, key: Key) -> Result<(), Errno> {
        let Some(file) = self.find(key) else { return Ok(()) };
        let mut file = lock(&file);
        match file.attributes_were_set()? {
            Some(why) => self.demote(&mut file, &why),
            None => Ok(()),
        }
    }

    /// Demotes a file before the layer goes on to the kernel with a call.
    pub(super) fn demote_key(&self, key: Key, why: &str) -> Result<(), Errno> {
        match self.find(key) {
            Some(file) => self.demote(&mut lock(&file), why),
            None => Ok(()),
        }
    }

    /// Demotes all files. The first error, after all had their turn.
    pub(super) fn demote_all(&self, why: &str) -> Result<(), Errno> {
        let mut outcome = Ok(());
        for file in self.all() {
            outcome = outcome.and(self.demote(&mut lock(&file), why));
        }
        outcome
    }
}
