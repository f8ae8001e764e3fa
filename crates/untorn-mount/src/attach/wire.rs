//! Descriptors and short messages over a pair of sockets.
//!
//! A message is one byte, to which descriptors may be attached (SCM_RIGHTS), and for some bytes a text after it: its
//! length as four bytes, then its parts, each ended by a zero byte.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// The most descriptors of a message.
const DESCRIPTORS: usize = 2;
/// The most bytes of a text; the arguments of a program have less (`ARG_MAX`).
const TEXT: u32 = 8 << 20;

/// Sends one byte with descriptors.
pub(super) fn send(socket: impl AsFd, byte: u8, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [byte];
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives one byte with its descriptors; `None` if the other side is gone.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<(u8, Vec<OwnedFd>)>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // The other side closed its end before it had read all.
            Err(Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(Some((byte[0], descriptors)))
}

/// Sends a text.
pub(super) fn send_text<'a>(
    mut socket: &UnixStream,
    parts: impl Iterator<Item = &'a std::ffi::OsStr>,
) -> io::Result<()> {
    let mut text = Vec::new();
    for part in parts {
        text.extend_from_slice(part.as_bytes());
        text.push(0);
    }
    let len = u32::try_from(text.len()).ok().filter(|len| *len <= TEXT);
    let len = len.ok_or_else(|| io::Error::from(Errno::TOOBIG))?;
    socket.write_all(&len.to_le_bytes())?;
    socket.write_all(&text)
}

/// Receives a text.
pub(super) fn receive_text(mut socket: &UnixStream) -> io::Result<Vec<OsString>> {
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > TEXT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = Vec::new();
    socket.take(len.into()).read_to_end(&mut text)?;
    match text.pop() {
        _ if text.len() + 1 != len as usize => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(0) => Ok(text.split(|byte| *byte == 0).map(|part| OsString::from_vec(part.to_vec())).collect()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Seek;

    use super::*;

    #[test]
    fn descriptors_and_texts_arrive_as_sent() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"bytes").unwrap();
        send(&ours, b'a', &[file.as_fd(), ours.as_fd()]).unwrap();
        let parts = ["one", "", "two words"].map(OsString::from);
        send_text(&ours, parts.iter().map(OsString::as_os_str)).unwrap();
        let (byte, descriptors) = receive(&theirs).unwrap().unwrap();
        assert_eq!((byte, descriptors.len()), (b'a', 2));
        assert_eq!(receive_text(&theirs).unwrap(), parts);
        let mut received = File::from(descriptors.into_iter().next().unwrap());
        received.rewind().unwrap();
        let mut bytes = String::new();
        received.read_to_string(&mut bytes).unwrap();
        assert_eq!(bytes, "bytes");
        drop(ours);
        // The descriptor that was sent is the last one of that end, and it was dropped above.
        assert!(receive(&theirs).unwrap().is_none());
    }

    #[test]
    fn a_cut_or_forged_text_is_an_error() {
        for bytes in [&b""[..], b"\x02\0\0", b"\x02\0\0\0a", b"\x02\0\0\0ab", b"\0\0\0\0", b"\xff\xff\xff\xff"] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(bytes).unwrap();
            drop(ours);
            assert!(receive_text(&theirs).is_err(), "{bytes:?}");
        }
    }
}
