//! Frames of a fixed length, which both sides send before any bytes. All encoding and decoding is here.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::operations::{Request, VERSION};

/// Bytes of a frame. One system call sends it together with the bytes that follow, and one receives all of it. No
/// version of the protocol changes this, or each side would wait for bytes that the other one does not send.
pub const FRAME: usize = 48;

/// Bytes of a frame for the payload of an operation, which may be shorter.
pub const PAYLOAD: usize = 32;

const _: () = assert!(size_of::<RequestFrame>() == FRAME && size_of::<ReplyFrame>() == FRAME);

/// An operation: the payload of its request.
pub trait Operation: Payload {
    /// Its number in frames.
    const NUMBER: u16;

    /// The payload of the reply, if the operation succeeded.
    type Reply: Payload;
}

/// A payload: at most [`PAYLOAD`] bytes, without padding.
pub trait Payload: TryFromBytes + IntoBytes + Immutable + KnownLayout + Copy {}

/// The frame that begins a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestFrame {
    /// First in all versions: [`VERSION`] of the layer.
    version: u32,
    operation: u16,
    /// Bytes of the payload.
    length: u16,
    /// Bytes that follow the frame.
    data: u64,
    payload: [u8; PAYLOAD],
}

impl RequestFrame {
    /// Encodes a request that is followed by `data` bytes.
    #[inline]
    pub fn new<O: Operation>(request: &O, data: usize) -> Self {
        let (payload, length) = encode(request);
        RequestFrame { version: VERSION, operation: O::NUMBER, length, data: data as u64, payload }
    }

    /// The number of bytes that follow the frame, if a layer of this version sent it.
    ///
    /// # Errors
    /// [`Malformed::Version`] of another version, whose frames mean something else; [`Malformed::Data`] of more bytes
    /// than `most`.
    pub fn data(&self, most: u64) -> Result<u64, Malformed> {
        match self.data {
            _ if self.version != VERSION => Err(Malformed::Version(self.version)),
            data if data > most => Err(Malformed::Data(data)),
            data => Ok(data),
        }
    }

    /// Decodes the request.
    ///
    /// # Errors
    /// Each kind of [`Malformed`] but [`Malformed::Data`].
    pub fn decode(&self) -> Result<Request, Malformed> {
        self.data(u64::MAX)?;
        Request::decode(self.operation, self.payload.get(..self.length.into()).ok_or(Malformed::Payload)?)
    }
}

/// The frame that begins a reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplyFrame {
    /// 0, or why the operation failed; there is no payload then.
    errno: i32,
    /// The number of the operation that succeeded.
    operation: u16,
    /// Bytes of the payload.
    length: u16,
    /// Bytes that follow the frame.
    data: u64,
    payload: [u8; PAYLOAD],
}

impl ReplyFrame {
    /// Encodes the reply to an operation that succeeded, followed by `data` bytes.
    #[inline]
    pub fn new<O: Operation>(reply: &O::Reply, data: usize) -> Self {
        let (payload, length) = encode(reply);
        ReplyFrame { errno: 0, operation: O::NUMBER, length, data: data as u64, payload }
    }

    /// Encodes the reply to an operation that failed.
    #[must_use]
    pub fn failed(errno: i32) -> Self {
        ReplyFrame { errno, operation: 0, length: 0, data: 0, payload: [0; PAYLOAD] }
    }

    /// The number of bytes that follow the frame.
    #[must_use]
    pub fn data(&self) -> u64 {
        self.data
    }

    /// Decodes the reply to an operation; the inner error is the errno with which it failed.
    ///
    /// # Errors
    /// [`Malformed::Operation`] of the reply to another operation, [`Malformed::Payload`].
    #[inline]
    pub fn decode<O: Operation>(&self) -> Result<Result<O::Reply, i32>, Malformed> {
        if self.errno != 0 {
            return Ok(Err(self.errno));
        }
        if self.operation != O::NUMBER {
            return Err(Malformed::Operation(self.operation));
        }
        decode(self.payload.get(..self.length.into()).ok_or(Malformed::Payload)?).map(Ok)
    }
}

/// The reason why a frame cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The sender speaks another version of the protocol.
    Version(u32),
    /// No operation has this number, or it is not the operation that was asked for.
    Operation(u16),
    /// The payload is too short, too long, or no value of its type.
    Payload,
    /// More bytes follow than any operation carries.
    Data(u64),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Version(version) => write!(
                f,
                "the preload layer speaks version {version:08x} of the protocol and this server {VERSION:08x}; use a \
                 layer and an untorn of one build"
            ),
            Malformed::Operation(number) => write!(f, "a frame has the unexpected operation {number}"),
            Malformed::Payload => write!(f, "a frame's payload does not match its operation"),
            Malformed::Data(count) => write!(f, "a frame announces {count} bytes, more than one call moves"),
        }
    }
}

impl std::error::Error for Malformed {}

/// The bytes of a payload, and how many they are.
#[inline]
fn encode<P: Payload>(payload: &P) -> ([u8; PAYLOAD], u16) {
    let mut bytes = [0; PAYLOAD];
    if let Some(room) = bytes.get_mut(..size_of::<P>()) {
        room.copy_from_slice(payload.as_bytes());
    }
    (bytes, size_of::<P>() as u16)
}

/// The payload that is exactly these bytes.
#[inline]
pub(crate) fn decode<P: Payload>(bytes: &[u8]) -> Result<P, Malformed> {
    P::try_read_from_bytes(bytes).map_err(|_| Malformed::Payload)
}

/// A hash (FNV-1a) that tells one text of the protocol from another.
pub(crate) const fn hash(text: &str) -> u32 {
    let (bytes, mut at, mut hash) = (text.as_bytes(), 0, 0x811c_9dc5_u32);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}
