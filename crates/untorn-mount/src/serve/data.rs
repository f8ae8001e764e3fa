//! Bytes of files: read, write, sync, and what changes which bytes are there.

use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, retry_on_intr};

use super::Server;
use super::credentials::Caller;
use super::handles::Open;
use super::pages::Changing;

/// The most that one call copies inside of the source, so that no thread is busy for long.
const MOST_COPIED: usize = 64 << 20;
/// A thread keeps a buffer of this size at most.
const KEPT: usize = 1 << 20;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writes all of it, or as much as there is room for.
pub(super) fn write_all(file: impl AsFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(&file, &bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    if done == 0 && !bytes.is_empty() { Err(Errno::NOSPC) } else { Ok(done) }
}

/// Writes to the end of a file, as much as one call does.
fn append(file: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let bytes = [IoSlice::new(bytes)];
    retry_on_intr(|| pwritev2(&file, &bytes, 0, ReadWriteFlags::APPEND))
}

/// Fills `bytes` as far as the file goes.
pub(super) fn read_some(file: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

impl Server {
    /// Reads, and gives what was read to `answer`.
    pub(super) fn read_file(&self, open: &Open, offset: u64, size: usize, answer: impl FnOnce(Result<&[u8], Errno>)) {
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(size.max(buffer.len()), 0);
            let managed = self.managing.atomic(open.node.key);
            let read = managed.and_then(|managed| managed.read(&mut buffer[..size], offset));
            let read = read.unwrap_or_else(|| read_some(open, &mut buffer[..size], offset));
            answer(read.map(|count| &buffer[..count]));
            if buffer.len() > KEPT {
                *buffer = Vec::new();
            }
        });
    }

    /// Writes: `appends` to the end of the file, which may have grown outside. `drops_privileges`: the caller has no
    /// right to keep the set-user-id of the file.
    pub(super) fn write_file(
        &self,
        caller: Caller,
        open: &Open,
        offset: u64,
        bytes: &[u8],
        (appends, drops_privileges): (bool, bool),
        how: Changing,
    ) -> Result<usize, Errno> {
        self.changing_as(&open.node, how, || match &open.managed {
            Some(managed) if drops_privileges => {
                self.keep_privileges_off(caller, &open.node, || self.managing.write(managed, bytes, offset, appends))
            }
            Some(managed) => self.managing.write(managed, bytes, offset, appends),
            None => {
                let write = || if appends { append(open, bytes) } else { write_all(open, bytes, offset) };
                if drops_privileges { caller.act(self, write) } else { write() }
            }
        })
    }

    /// Makes a file durable.
    pub(super) fn sync_file(&self, open: &Open, only_data: bool) -> Result<(), Errno> {
        let managed = open.managed.clone().or_else(|| self.managing.find(open.node.key));
        match managed.filter(|managed| managed.is_chosen()) {
            Some(managed) => managed.sync(),
            None if only_data => rustix::fs::fdatasync(open),
            None => rustix::fs::fsync(open),
        }
    }

    pub(super) fn allocate(&self, open: &Open, mode: i32, offset: u64, len: u64) -> Result<(), Errno> {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let known = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        if !known.contains(mode) {
            return Err(Errno::OPNOTSUPP);
        }
        self.changing(&open.node, || match &open.managed {
            Some(managed) => managed
                .plainly(|| rustix::fs::fallocate(open, mode, offset, len))
                .unwrap_or_else(|| self.managing.allocate(managed, mode, offset, len)),
            None => rustix::fs::fallocate(open, mode, offset, len),
        })
    }

    /// Finds the place where data begins or ends.
    pub(super) fn seek(&self, open: &Open, offset: i64, whence: i32) -> Result<i64, Errno> {
        if self.managing.is_atomic() {
            // The source lacks the writes that the kernel caches, and those that the log holds back. The kernel takes
            // the whole file for data from now on.
            return Err(Errno::NOSYS);
        }
        let from = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        if let Some(managed) = self.managing.atomic(open.node.key) {
            // The log may hold writes back: all of the file is data.
            let len = managed.len()?;
            return match whence {
                3 | 4 if from >= len => Err(Errno::NXIO),
                3 => Ok(offset),
                4 => Ok(len as i64),
                _ => Err(Errno::INVAL),
            };
        }
        let from = match whence {
            3 => SeekFrom::Data(from),
            4 => SeekFrom::Hole(from),
            _ => return Err(Errno::INVAL),
        };
        rustix::fs::seek(open, from).map(|found| found as i64)
    }

    pub(super) fn copy_range(
        &self,
        (from, mut from_offset): (&Open, u64),
        (to, mut to_offset): (&Open, u64),
        len: u64,
    ) -> Result<u32, Errno> {
        if self.managing.atomic(from.node.key).is_some_and(|from| from.is_chosen()) {
            // The kernel copies it by READ and WRITE.
            return Err(Errno::OPNOTSUPP);
        }
        let len = usize::try_from(len).unwrap_or(MOST_COPIED).min(MOST_COPIED);
        let mut copy = || rustix::fs::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), len);
        let copied = self.changing(&to.node, || match &to.managed {
            Some(managed) => managed.plainly(copy).unwrap_or(Err(Errno::OPNOTSUPP)),
            None => copy(),
        })?;
        Ok(copied as u32)
    }
}
