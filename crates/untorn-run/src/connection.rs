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
use untorn_wire::{Done, HelloReply, MOST, Malformed, Operation, Patience, ReplyFrame, Request, RequestFrame};
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
/// Those of the socket: the process died amid a request, which is dropped then. `InvalidData` for a layer that speaks
/// another version of the protocol.
pub(crate) fn serve(service: &dyn Service, mut socket: UnixStream, caller: Caller) -> io::Result<()> {
    let Caller { process, known, program, is_other } = caller;
    let (mut patience, program) = (Patience::default(), Cell::new(program));
    while let Some((frame, descriptor, is_short)) = receive(&mut socket, &mut patience)? {
        // As many as a write may have; more is no request of the layer.
        let count = frame.data(MOST).map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
        // With room from the start, or it would grow with a system call for each step.
        let mut data = Vec::new();
        data.try_reserve_exact(count.min(ROOM) as usize)?;
        (&mut socket).take(count).read_to_end(&mut data)?;
        if data.len() as u64 != count {
            return Ok(());
        }
        let passed = Cell::new(None);
        let call = Call { service, process, program: &program, known, is_other, descriptor, is_short, data, passed };
        let answer = frame.decode().map_err(errno_of).and_then(|request| call.answer(request));
        let Answer { frame, data } =
            answer.unwrap_or_else(|errno| Answer { frame: ReplyFrame::failed(errno), data: Vec::new() });
        // Before the answer: until then the caller's own reference is not the last one, and a lock on it lives on
        // with ours.
        let passed = call.finish();
        match passed {
            Some(passed) => send_with(&socket, frame.as_bytes(), &passed)?,
            None => socket.write_all(frame.as_bytes())?,
        }
        socket.write_all(&data)?;
    }
    Ok(())
}

/// The errno for a program whose layer sent a malformed frame.
fn errno_of(malformed: Malformed) -> Errno {
    libc_errno(if matches!(malformed, Malformed::Operation(_)) { Sys::NOSYS } else { Sys::PROTO })
}

/// The next request, with the descriptor that came with it, and whether there was one that this process had no number
/// to spare for; `None` at the end.
fn receive(
    socket: &mut UnixStream,
    patience: &mut Patience,
) -> io::Result<Option<(RequestFrame, Option<OwnedFd>, bool)>> {
    patience.wait(|| recv(&*socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) != Err(Sys::AGAIN));
    let mut frame = RequestFrame::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let (count, flags) = loop {
        let into = &mut [IoSliceMut::new(frame.as_mut_bytes())];
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
    if let Some(rest) = frame.as_mut_bytes().get_mut(count..) {
        socket.read_exact(rest)?;
    }
    Ok(Some((frame, descriptor, flags.contains(ReturnFlags::CTRUNC))))
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
    descriptor: Option<OwnedFd>,
    /// One came, and was lost.
    is_short: bool,
    /// The bytes that followed.
    pub(crate) data: Vec<u8>,
    /// The descriptor that the answer carries.
    passed: Cell<Option<OwnedFd>>,
}

/// An answer to an operation that succeeded, with the bytes that follow.
pub(crate) struct Answer {
    frame: ReplyFrame,
    data: Vec<u8>,
}

/// Answers an operation, followed by bytes.
pub(crate) fn with_bytes<O: Operation>(_: O, reply: O::Reply, data: Vec<u8>) -> Result<Answer, Errno> {
    Ok(Answer { frame: ReplyFrame::new::<O>(&reply, data.len()), data })
}

/// Answers an operation.
pub(crate) fn answer<O: Operation>(operation: O, reply: O::Reply) -> Result<Answer, Errno> {
    with_bytes(operation, reply, Vec::new())
}

/// Answers an operation of which there is nothing to say but how it ended.
pub(crate) fn done<O: Operation<Reply = Done>>(operation: O, outcome: Result<(), Errno>) -> Result<Answer, Errno> {
    answer(operation, outcome.map(|()| Done {})?)
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

    fn answer(&self, request: Request) -> Result<Answer, Errno> {
        match request {
            Request::Hello(hello) => {
                self.service.ledger().process();
                self.program.set(self.service.processes().begins(self.process));
                if self.known {
                    self.service.became(self.process);
                }
                answer(hello, HelloReply { asked_before: self.known })
            }
            Request::Becomes(becomes) => {
                self.service.processes().becomes(self.process, self.program.get(), becomes.becoming);
                done(becomes, Ok(()))
            }
            Request::Refused(refused) => {
                self.refused();
                done(refused, Ok(()))
            }
            _ if self.is_short => Err(libc_errno(Sys::MFILE)),
            request => self.service.answer(request, self),
        }
    }

    /// Words of what followed, each ended by a zero.
    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.data.split(|byte| *byte == 0)
    }

    /// The first word of what followed: the name of the program's call.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(self.words().next().unwrap_or_default()).into_owned()
    }

    /// Receives the bytes after a refusal: the call, why, the path.
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
    use std::net::Shutdown;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::thread;

    use untorn_wire::{Addresses, Becomes, Commit, FRAME, Hello, Mapped, Open, VERSION};

    use super::*;
    use crate::board::Board;
    use crate::files::Files;
    use crate::managed::Atomic;

    /// This process, of which nobody knows anything.
    fn stranger() -> Caller {
        Caller { process: std::process::id(), program: 0, known: false, is_other: false }
    }

    /// The errno with which a request is answered that comes with these descriptors.
    fn errno<O: Operation>(files: &Arc<Files>, request: O, descriptors: &[BorrowedFd<'_>]) -> i32 {
        let (server, client) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let frame = RequestFrame::new(&request, 0);
        assert_eq!(sendmsg(&client, &[IoSlice::new(frame.as_bytes())], &mut control, SendFlags::empty()), Ok(FRAME));
        thread::scope(|scope| {
            scope.spawn(|| serve(&**files, server, stranger()).unwrap());
            let reply = reply::<O>(&client);
            drop(client);
            reply.err().unwrap_or(0)
        })
    }

    /// The next reply, or its errno.
    fn reply<O: Operation>(mut client: &UnixStream) -> Result<O::Reply, i32> {
        let mut reply = ReplyFrame::new_zeroed();
        client.read_exact(reply.as_mut_bytes()).unwrap();
        reply.decode::<O>().unwrap()
    }

    #[test]
    fn a_request_that_lost_its_descriptor_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(Box::new(Atomic), Board::create(&dir.path().join("board")).unwrap());
        // The kernel drops one for which there is no room as it does one for which there is no number. There is room
        // for a few, as it counts.
        let file = File::create(dir.path().join("f")).unwrap();
        let opened = Open { truncate: false };
        assert_eq!(errno(&files, opened, &[file.as_fd(); 9]), libc_errno(Sys::MFILE));
        assert_eq!(errno(&files, opened, &[file.as_fd()]), 0);
        // Nobody would hear of the stores to such a mapping.
        let mapped = Mapped { at: Addresses { start: 4096, len: 4096 }, watched: false, place: 0 };
        assert_eq!(errno(&files, Mapped { watched: true, ..mapped }, &[]), libc_errno(Sys::MFILE));
        assert_eq!(errno(&files, mapped, &[]), libc_errno(Sys::INVAL));
    }

    #[test]
    fn frames_that_no_layer_of_this_build_sends_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(Box::new(Atomic), Board::create(&dir.path().join("board")).unwrap());
        // A commit whose bytes from `at` on are others: the reply's errno, or else why the connection was closed.
        let sent = |at: usize, bytes: &[u8]| {
            let (server, mut client) = UnixStream::pair().unwrap();
            let mut frame = RequestFrame::new(&Commit {}, 0);
            frame.as_mut_bytes()[at..at + bytes.len()].copy_from_slice(bytes);
            client.write_all(frame.as_bytes()).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            serve(&*files, server, stranger()).map_err(|error| error.to_string()).map(|()| reply::<Commit>(&client))
        };
        assert_eq!(sent(0, &[]), Ok(Err(libc_errno(Sys::BADF))));
        assert!(sent(0, &(VERSION ^ 1).to_ne_bytes()).unwrap_err().contains("version"));
        assert_eq!(sent(4, &u16::MAX.to_ne_bytes()), Ok(Err(libc_errno(Sys::NOSYS))));
        assert_eq!(sent(6, &1_u16.to_ne_bytes()), Ok(Err(libc_errno(Sys::PROTO))));
        assert!(sent(8, &u64::MAX.to_ne_bytes()).unwrap_err().contains("announces"));
    }

    /// Makes a request that comes with nothing over a connection that is served.
    fn ask<O: Operation>(mut client: &UnixStream, request: O) {
        client.write_all(RequestFrame::new(&request, 0).as_bytes()).unwrap();
        assert_eq!(reply::<O>(client).err(), None);
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
            ask(&earlier, Becomes { becoming: true });
            assert!(files.processes.has_become(process));
            scope.spawn(serving(other));
            ask(&later, Hello {});
            assert!(!files.processes.has_become(process));
            // What a thread of the earlier program said is heard only now.
            ask(&earlier, Becomes { becoming: true });
            assert!(!files.processes.has_become(process));
            ask(&later, Becomes { becoming: true });
            assert!(files.processes.has_become(process));
            drop((earlier, later));
        });
    }
}
