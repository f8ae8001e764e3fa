//! Messages between processes, with descriptors: Unix sockets that keep the bounds of messages.
//!
//! # Safety
//! Two calls without a wrapper in rustix that suits: one makes an open descriptor stand for another socket, one fills a
//! structure on the stack.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::file::uninterrupted;

/// The most descriptors that come with a message.
const MOST_FDS: usize = 4;

/// A socket that listens at a name in a directory.
///
/// # Errors
/// EADDRINUSE where something of that name is; those of `bind(2)` and `listen(2)` else.
pub(crate) fn listen(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address(dir, name)?)?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// A socket connected to the one that listens at a name in a directory.
///
/// # Errors
/// ENOENT, ECONNREFUSED where nobody listens, EAGAIN where too many wait, EACCES; see `connect(2)`.
pub(crate) fn connect(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &address(dir, name)?)?;
    Ok(socket)
}

/// A socket that listens at a name that is in no file system, and that goes with it.
///
/// # Errors
/// EADDRINUSE where another one listens at it; those of `bind(2)` and `listen(2)` else. Source: `unix(7)`.
pub(crate) fn listen_abstract(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// A socket connected to the one that listens at such a name.
///
/// # Errors
/// ECONNREFUSED where nobody listens; see `connect(2)`.
pub(crate) fn connect_abstract(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Two sockets that are connected to each other.
#[cfg(test)]
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The next one that connected, if one did.
///
/// # Errors
/// Those of `accept(2)`.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ends a connection, or the listening, also for whoever inherited the descriptor: closing alone does that only when
/// the last of them is closed.
pub(crate) fn shut_down(socket: BorrowedFd<'_>) {
    // ENOTCONN, if it has ended already.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The address, however deep the directory lies: by its descriptor, for the name in an address is short.
fn address(dir: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))?)
}

/// Who made the other end, or listens there: the effective user, and the number of the process, 0 or less if it has
/// none here.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<(u32, i32)> {
    // rustix takes the number of a process for one that is not 0, which that of another namespace's is.
    // SAFETY: a structure of integers.
    let mut found: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let into = std::ptr::from_mut(&mut found).cast();
    // SAFETY: the kernel stores no more than `len` bytes, which are those of the structure.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &mut len) };
    if done == 0 { Ok((found.uid, found.pid)) } else { Err(io::Error::last_os_error()) }
}

/// Sends a message, or waits for no room. Safe in a signal handler if there are no descriptors.
///
/// # Errors
/// EAGAIN where the other end is behind with reading; EPIPE, ECONNRESET where there is none any more.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL.into());
    }
    uninterrupted(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)).map(drop)
}

/// What was found on a socket.
pub(crate) enum Received {
    /// A message of so many bytes, and its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The other end is gone.
    End,
}

/// Takes the next message. One that is longer than `into` loses its end.
///
/// # Errors
/// EMFILE if descriptors came for which this process has no room: they are gone, and with them the message. Those of
/// `recvmsg(2)`.
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let len = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags) {
        Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => return Err(Errno::MFILE.into()),
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::End),
        Err(error) => return Err(error.into()),
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    // No message of ours is empty.
    Ok(if len == 0 { Received::End } else { Received::Message(len, fds) })
}

/// A connection that can be exchanged for another one while other threads, and signal handlers, send on it: what they
/// send goes to the one or to the other.
#[derive(Debug)]
pub(crate) struct Line(OwnedFd);

impl Line {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Line(socket)
    }

    /// Makes this line stand for another connection, and closes the one it had.
    ///
    /// # Errors
    /// Those of `dup3(2)`.
    pub(crate) fn exchange(&self, with: &OwnedFd) -> io::Result<()> {
        loop {
            // SAFETY: the number stays open throughout and belongs to this value; which open file it means is exchanged
            // in one step, from one socket to another.
            if unsafe { libc::dup3(with.as_raw_fd(), self.0.as_raw_fd(), libc::O_CLOEXEC) } >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) {
                return Err(error);
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
