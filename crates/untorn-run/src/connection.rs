//! One connection of one process: requests in, answers out.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno as Sys;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};
use untorn_wire::{MOST, Operation, Patience, Reply, Request};
use zerocopy::{FromZeros, IntoBytes};

use crate::managed::{Errno, libc_errno};
use crate::service::Service;

/// Room for a payload before any of it has come.
const ROOM: u64 = 1 << 20;

/// Whose a connection is.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) process: u32,
    /// The program that the process ran when it connected, or one that it has become since without a word.
    pub(crate) program: u64,
    /// The process had a connection before.
    pub(crate) known: bool,
    /// It has not the rights of the run.
    pub(crate) is_other: bool,
}

/// Serves a connection until the process closes it, or ends.
///
/// # Errors
/// Those of the socket: the process died amid a request, which is dropped then.
pub(crate) fn serve(service: &dyn Service, mut socket: UnixStream, caller: Caller) -> io::Result<()> {
    let Caller { process, known, program, is_other } = caller;
    let (mut patience, program) = (Patience::default(), Cell::new(program));
    while let Some((request, descriptor, is_short)) = receive(&mut socket, &mut patience)? {
        // A payload is as long as a write may be; more is no request of the layer.
        if request.payload > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // With room from the start, or it would grow with a system call for each step.
        let mut payload = Vec::new();
        payload.try_reserve_exact(request.payload.min(ROOM) as usize)?;
        (&mut socket).take(request.payload).read_to_end(&mut payload)?;
        if payload.len() as u64 != request.payload {
            return Ok(());
        }
        let passed = Cell::new(None);
        let call = Call {
            service,
            process,
            program: &program,
            known,
            is_other,
            request,
            descriptor,
            is_short,
            payload,
            passed,
        };
        let (reply, bytes) = match call.answer() {
            Ok(answer) => answer,
            Err(errno) => (Reply { errno, ..Reply::default() }, Vec::new()),
        };
        // Before the answer: until then the caller's own reference is not the last one, and a lock on it lives on
        // with ours.
        let passed = call.finish();
        let reply = Reply { payload: bytes.len() as u64, ..reply };
        match passed {
            Some(passed) => send_with(&socket, reply.as_bytes(), &passed)?,
            None => socket.write_all(reply.as_bytes())?,
        }
        socket.write_all(&bytes)?;
    }
    Ok(())
}

/// The next request, with the descriptor that came with it, and whether there was one that this process had no number
/// to spare for; `None` at the end.
fn receive(socket: &mut UnixStream, patience: &mut Patience) -> io::Result<Option<(Request, Option<OwnedFd>, bool)>> {
    patience.wait(|| recv(&*socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) != Err(Sys::AGAIN));
    let mut request = Request::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let (count, flags) = loop {
        let into = &mut [IoSliceMut::new(request.as_mut_bytes())];
        match recvmsg(&*socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => break (message.bytes, message.flags),
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
    Ok(Some((request, descriptor, flags.contains(ReturnFlags::CTRUNC))))
}

/// Sends bytes, and with the first of them a descriptor.
fn send_with(mut socket: &UnixStream, bytes: &[u8], passed: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [passed.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let count = loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Sys::INTR) => {}
            sent => break sent?,
        }
    };
    socket.write_all(bytes.get(count..).unwrap_or_default())
}

/// A request, with what came along.
pub(crate) struct Call<'a> {
    service: &'a dyn Service,
    /// Whose it is.
    pub(crate) process: u32,
    program: &'a Cell<u64>,
    known: bool,
    /// It is not to be given what it could not open by itself.
    pub(crate) is_other: bool,
    pub(crate) request: Request,
    descriptor: Option<OwnedFd>,
    /// One came, and was lost.
    is_short: bool,
    pub(crate) payload: Vec<u8>,
    /// The descriptor that the answer carries.
    passed: Cell<Option<OwnedFd>>,
}

/// An answer, and the bytes that go along.
pub(crate) type Answer = (Reply, Vec<u8>);

/// An answer that is a number.
pub(crate) fn value(value: i64) -> Answer {
    (Reply { value, ..Reply::default() }, Vec::new())
}

/// An answer of bytes that were read.
pub(crate) fn bytes(bytes: Vec<u8>) -> Answer {
    (Reply { value: bytes.len() as i64, ..Reply::default() }, bytes)
}

/// An answer of length and time of the last change, seconds and nanoseconds since the epoch, where they differ from
/// the kernel's.
pub(crate) fn status(found: Option<(u64, (i64, i64))>) -> Answer {
    let differs = |(len, (seconds, nanoseconds))| Reply {
        managed: 1,
        value: len as i64,
        seconds,
        nanoseconds,
        ..Reply::default()
    };
    (found.map(differs).unwrap_or_default(), Vec::new())
}

impl Call<'_> {
    /// The descriptor that the call was made with.
    pub(crate) fn descriptor(&self) -> Result<&OwnedFd, Errno> {
        self.descriptor.as_ref().ok_or(libc_errno(Sys::BADF))
    }

    /// Has the answer carry a descriptor.
    pub(crate) fn pass(&self, descriptor: OwnedFd) {
        self.passed.set(Some(descriptor));
    }

    /// Lets go of what came along; what the answer carries.
    fn finish(self) -> Option<OwnedFd> {
        self.passed.into_inner()
    }

    fn answer(&self) -> Result<Answer, Errno> {
        match Operation::of(self.request.operation) {
            None => Err(libc_errno(Sys::NOSYS)),
            Some(Operation::Hello) => {
                self.service.ledger().process();
                self.program.set(self.service.processes().begins(self.process));
                if self.known {
                    self.service.became(self.process);
                }
                Ok(value(self.known.into()))
            }
            Some(Operation::Becomes) => {
                let becoming = self.request.number != 0;
                self.service.processes().becomes(self.process, self.program.get(), becoming);
                Ok(value(0))
            }
            Some(Operation::Refused) => {
                self.refused();
                Ok(value(0))
            }
            Some(_) if self.is_short => Err(libc_errno(Sys::MFILE)),
            Some(operation) => self.service.answer(operation, self),
        }
    }

    /// Words of the payload, each ended by a zero.
    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.payload.split(|byte| *byte == 0)
    }

    /// The first word of the payload: the name of the program's call.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(self.words().next().unwrap_or_default()).into_owned()
    }

    /// The payload of a refusal: the call, why, the path.
    fn refused(&self) {
        let mut words = self.words();
        let mut next = || words.next().unwrap_or_default();
        let (call, why, path) = (next(), next(), next());
        let path = match &self.descriptor {
            Some(descriptor) => self.service.path(descriptor),
            None => Path::new(std::ffi::OsStr::from_bytes(path)).to_owned(),
        };
        self.service.ledger().refused(&String::from_utf8_lossy(call), &String::from_utf8_lossy(why), &path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::board::Board;
    use crate::files::Files;
    use crate::managed::Atomic;

    /// This process, of which nobody knows anything.
    fn stranger() -> Caller {
        Caller { process: std::process::id(), program: 0, known: false, is_other: false }
    }

    /// The errno with which a request is answered that comes with these descriptors.
    fn answer(files: &Arc<Files>, request: Request, descriptors: &[BorrowedFd<'_>]) -> i32 {
        let (server, mut client) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let bytes = [IoSlice::new(request.as_bytes())];
        assert_eq!(sendmsg(&client, &bytes, &mut control, SendFlags::empty()), Ok(size_of::<Request>()));
        thread::scope(|scope| {
            scope.spawn(|| serve(&**files, server, stranger()).unwrap());
            let mut reply = Reply::new_zeroed();
            client.read_exact(reply.as_mut_bytes()).unwrap();
            drop(client);
            reply.errno
        })
    }

    #[test]
    fn a_request_that_lost_its_descriptor_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(Box::new(Atomic), Board::create(&dir.path().join("board")).unwrap());
        // The kernel drops one for which there is no room as it does one for which there is no number. There is room
        // for a few, as it counts.
        let file = File::create(dir.path().join("f")).unwrap();
        let opened = Request { operation: Operation::Open as u32, ..Request::default() };
        assert_eq!(answer(&files, opened, &[file.as_fd(); 9]), libc_errno(Sys::MFILE));
        assert_eq!(answer(&files, opened, &[file.as_fd()]), 0);
        // Nobody would hear of the stores to such a mapping.
        let mapped = Request { operation: Operation::Mapped as u32, number: 4096, offset: 4096, ..Request::default() };
        assert_eq!(answer(&files, Request { flags: 1, ..mapped }, &[]), libc_errno(Sys::MFILE));
        assert_eq!(answer(&files, mapped, &[]), libc_errno(Sys::INVAL));
    }

    /// Makes a request that comes with nothing over a connection that is served.
    fn ask(mut client: &UnixStream, operation: Operation, number: u64) {
        let request = Request { operation: operation as u32, number, ..Request::default() };
        client.write_all(request.as_bytes()).unwrap();
        let mut reply = Reply::new_zeroed();
        client.read_exact(reply.as_mut_bytes()).unwrap();
        assert_eq!(reply.errno, 0);
    }

    #[test]
    fn a_connection_is_of_the_program_that_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(Box::new(Atomic), Board::create(&dir.path().join("board")).unwrap());
        let process = std::process::id();
        files.processes.meet(process).unwrap();
        let serving = |socket| {
            let caller = Caller { program: files.processes.program(process), known: true, ..stranger() };
            let files = &files;
            move || serve(&**files, socket, caller).unwrap()
        };
        let [(server, earlier), (other, later)] = [(); 2].map(|()| UnixStream::pair().unwrap());
        thread::scope(|scope| {
            scope.spawn(serving(server));
            ask(&earlier, Operation::Becomes, 1);
            assert!(files.processes.has_become(process));
            scope.spawn(serving(other));
            ask(&later, Operation::Hello, 0);
            assert!(!files.processes.has_become(process));
            // What a thread of the earlier program said is heard only now.
            ask(&earlier, Operation::Becomes, 1);
            assert!(!files.processes.has_become(process));
            ask(&later, Operation::Becomes, 1);
            assert!(files.processes.has_become(process));
            drop((earlier, later));
        });
    }
}
