//! One connection of one process: requests in, answers out.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno as Sys;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use untorn_wire::{MOST, Operation, Reply, Request};
use zerocopy::{FromZeros, IntoBytes};

use crate::files::Files;
use crate::managed::{Errno, libc_errno};

/// Serves a connection until the process closes it, or ends. `known` is a process that had one before.
///
/// # Errors
/// Those of the socket: the process died amid a request, which is dropped then.
pub(crate) fn serve(files: &Files, mut socket: UnixStream, process: u32, known: bool) -> io::Result<()> {
    while let Some((request, descriptor)) = receive(&mut socket)? {
        // A payload is as long as a write may be; more is no request of the layer.
        if request.payload > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = Vec::new();
        (&mut socket).take(request.payload).read_to_end(&mut payload)?;
        if payload.len() as u64 != request.payload {
            return Ok(());
        }
        let call = Call { files, process, known, request, descriptor, payload };
        let (reply, bytes) = match call.answer() {
            Ok(answer) => answer,
            Err(errno) => (Reply { errno, ..Reply::default() }, Vec::new()),
        };
        // Before the answer: until then the caller's own reference is not the last one, and a lock on it lives on with ours.
        drop(call);
        socket.write_all(Reply { payload: bytes.len() as u64, ..reply }.as_bytes())?;
        socket.write_all(&bytes)?;
    }
    Ok(())
}

/// The next request, with the descriptor that came with it; `None` at the end.
fn receive(socket: &mut UnixStream) -> io::Result<Option<(Request, Option<OwnedFd>)>> {
    let mut request = Request::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let count = loop {
        let into = &mut [IoSliceMut::new(request.as_mut_bytes())];
        match recvmsg(&*socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => break message.bytes,
            Err(Sys::INTR) => {}
            Err(Sys::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    if count == 0 {
        return Ok(None);
    }
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut passed) = message {
            descriptor = passed.next();
        }
    }
    if let Some(rest) = request.as_mut_bytes().get_mut(count..) {
        socket.read_exact(rest)?;
    }
    Ok(Some((request, descriptor)))
}

struct Call<'a> {
    files: &'a Files,
    process: u32,
    known: bool,
    request: Request,
    descriptor: Option<OwnedFd>,
    payload: Vec<u8>,
}

type Answer = (Reply, Vec<u8>);

fn value(value: i64) -> Answer {
    (Reply { value, ..Reply::default() }, Vec::new())
}

impl Call<'_> {
    fn descriptor(&self) -> Result<&OwnedFd, Errno> {
        self.descriptor.as_ref().ok_or(libc_errno(Sys::BADF))
    }

    fn answer(&self) -> Result<Answer, Errno> {
        let (files, process, request) = (self.files, self.process, &self.request);
        let key = (request.device, request.inode);
        let Some(operation) = Operation::of(request.operation) else { return Err(libc_errno(Sys::NOSYS)) };
        match operation {
            Operation::Hello => {
                files.ledger.process();
                return Ok(value(self.known.into()));
            }
            Operation::Open => files.opened(self.descriptor()?, process, request.number != 0)?,
            Operation::Closed => files.let_go(key)?,
            Operation::Read => {
                let bytes = files.read(self.descriptor()?, request)?;
                return Ok((Reply { value: bytes.len() as i64, ..Reply::default() }, bytes));
            }
            Operation::Write => {
                files.write(self.descriptor()?, process, request, &self.payload)?;
                return Ok(value(self.payload.len() as i64));
            }
            Operation::Seek => return Ok(value(files.seek(self.descriptor()?, request)?)),
            Operation::SetLength => files.set_length(self.descriptor()?, process, request.number)?,
            Operation::Allocate => files.allocate(self.descriptor()?, process, request)?,
            Operation::Commit => files.commit(self.descriptor()?)?,
            Operation::CommitAll => files.commit_all()?,
            Operation::Status => {
                if let Some((len, (seconds, nanoseconds))) = files.status(key)? {
                    let reply = Reply { managed: 1, value: len as i64, seconds, nanoseconds, ..Reply::default() };
                    return Ok((reply, Vec::new()));
                }
            }
            Operation::Times => files.times_were_set(key)?,
            Operation::Refused => self.refused(),
            Operation::Exit => files.processes.exits(process),
            Operation::Managed => {
                let (managed, value) = files.is_managed(key, request.number);
                let reply = Reply { managed: managed.into(), value, ..Reply::default() };
                return Ok((reply, Vec::new()));
            }
            _ => return Err(libc_errno(Sys::NOSYS)),
        }
        Ok(value(0))
    }

    /// The payload of a refusal: the call, why, the path, each ended by a zero.
    fn refused(&self) {
        let mut words = self.payload.split(|byte| *byte == 0);
        let mut next = || words.next().unwrap_or_default();
        let (call, why, path) = (next(), next(), next());
        let path = match &self.descriptor {
            Some(descriptor) => {
                use std::os::fd::AsRawFd;
                std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap_or_default()
            }
            None => Path::new(std::ffi::OsStr::from_bytes(path)).to_owned(),
        };
        self.files.ledger.refused(&String::from_utf8_lossy(call), &String::from_utf8_lossy(why), &path);
    }
}
