//! The operations, in one table: the number of each, the payload of its request and that of its reply, with their sizes
//! in bytes.

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::frame::{Malformed, Operation, PAYLOAD, Payload, decode, hash};

/// A payload, whose layout is proved when it is compiled: no padding (`IntoBytes`), and exactly the size that is named.
macro_rules! payload {
    ($(#[$doc:meta])* $name:ident $size:literal { $($(#[$about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C, packed)]
        pub struct $name { $($(#[$about])* pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size && size_of::<$name>() <= PAYLOAD);

        impl Payload for $name {}
    };
}

/// Each operation is `number Name size { fields } => Reply size { fields };`, or `=> Done;` if it answers nothing.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $number:literal $name:ident $size:literal { $($(#[$about:meta])* $field:ident: $type:ty,)* }
            => $reply:ident $($reply_size:literal {
                $($(#[$reply_about:meta])* $reply_field:ident: $reply_type:ty,)*
            })?;
    )*) => {
        $(
            payload! { $(#[$doc])* $name $size { $($(#[$about])* $field: $type,)* } }

            $(payload! {
                #[doc = concat!("The reply to [`", stringify!($name), "`].")]
                $reply $reply_size { $($(#[$reply_about])* $reply_field: $reply_type,)* }
            })?

            impl Operation for $name {
                const NUMBER: u16 = $number;
                type Reply = $reply;
            }

            impl From<$name> for Request {
                fn from(request: $name) -> Self {
                    Request::$name(request)
                }
            }
        )*

        /// A request that was decoded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Request {
            $($(#[$doc])* $name($name),)*
        }

        impl Request {
            /// The request with this operation and this payload.
            pub(crate) fn decode(operation: u16, payload: &[u8]) -> Result<Self, Malformed> {
                match operation {
                    $($number => decode(payload).map(Request::$name),)*
                    _ => Err(Malformed::Operation(operation)),
                }
            }
        }

        #[cfg(test)]
        pub(crate) const NUMBERS: &[u16] = &[$($number),*];
    };
}

/// The version of the protocol: a hash of the version of the program, and of the sources of all payloads and frames.
pub const VERSION: u32 =
    hash(concat!(env!("CARGO_PKG_VERSION"), include_str!("operations.rs"), include_str!("frame.rs")));

payload! {
    /// A file, as the kernel names it.
    FileId 16 {
        /// The device.
        device: u64,
        /// The inode.
        inode: u64,
    }
}

impl From<FileId> for (u64, u64) {
    fn from(file: FileId) -> Self {
        (file.device, file.inode)
    }
}

payload! {
    /// A range of a process's memory.
    Addresses 16 {
        /// Its first address.
        start: u64,
        /// Its length in bytes.
        len: u64,
    }
}

payload! {
    /// The place in the file that a call reads or writes: [`at`](Position::at) an offset, or at the descriptor's
    /// [`OWN`](Position::OWN).
    Position 9 {
        /// The next field counts.
        is_explicit: bool,
        /// An explicit offset.
        explicit: u64,
    }
}

impl Position {
    /// The offset that the kernel keeps with the descriptor, and that the call moves.
    pub const OWN: Position = Position { is_explicit: false, explicit: 0 };

    /// An explicit offset.
    #[must_use]
    pub fn at(offset: u64) -> Self {
        Position { is_explicit: true, explicit: offset }
    }

    /// The explicit offset, if there is one.
    #[must_use]
    pub fn explicit(self) -> Option<u64> {
        self.is_explicit.then_some(self.explicit)
    }
}

payload! {
    /// The reply to an operation that answers nothing but that it succeeded.
    Done 0 {}
}

/// The server shares these with a process that appends to the log by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub enum Shared {
    /// The memory with the log's shared state.
    #[default]
    State = 0,
    /// The log, to be mapped.
    Log = 1,
    /// The log, opened once more: a description of the process's own, to write to.
    OpenedLog = 2,
}

operations! {
    /// The layer is in the process that says so.
    1 Hello 0 {} => HelloReply 1 {
        /// The layer was in the program that the process ran before, and asked for something there.
        asked_before: bool,
    };

    /// The descriptor was just opened: manage its file.
    2 Open 1 {
        /// The file is to be truncated.
        truncate: bool,
    } => OpenReply 1 {
        /// The file is managed. Otherwise it is a plain one, which only a mode that boosts files answers.
        managed: bool,
    };

    /// A descriptor of the file was closed.
    3 Closed 16 {
        /// The file.
        file: FileId,
    } => Done;

    /// Read from the descriptor's file. The bytes follow the reply.
    4 Read 21 {
        /// The place in the file.
        position: Position,
        /// The number of bytes that are wanted.
        count: u64,
        /// The flags of `preadv2`.
        flags: i32,
    } => ReadReply 8 {
        /// The number of bytes that were read.
        count: u64,
    };

    /// Write the bytes that follow to the descriptor's file.
    5 Write 13 {
        /// The place in the file.
        position: Position,
        /// The flags of `pwritev2`.
        flags: i32,
    } => WriteReply 8 {
        /// The number of bytes that were written.
        count: u64,
    };

    /// Move the descriptor's offset, as `lseek` does.
    6 Seek 12 {
        /// Counted from what `whence` names.
        offset: i64,
        /// `SEEK_SET` and so on.
        whence: i32,
    } => SeekReply 8 {
        /// The new offset, from the file's start.
        offset: i64,
    };

    /// Set the length of the descriptor's file.
    7 SetLength 8 {
        /// The length in bytes.
        len: u64,
    } => Done;

    /// `fallocate` of the descriptor's file.
    8 Allocate 20 {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
        /// `FALLOC_FL_KEEP_SIZE` and so on.
        mode: i32,
    } => Done;

    /// Commit what was written to the descriptor's file.
    9 Commit 0 {} => Done;

    /// Commit what was written to any file.
    10 CommitAll 0 {} => Done;

    /// Length of the file, and the time of the last change of its bytes.
    11 Status 16 {
        /// The file.
        file: FileId,
    } => StatusReply 25 {
        /// The rest replaces what the kernel says; otherwise it means nothing.
        differs: bool,
        /// The length in bytes.
        len: u64,
        /// The time's seconds since the epoch.
        seconds: i64,
        /// The time's nanoseconds.
        nanoseconds: i64,
    };

    /// The program set the times, or other attributes, of the file; its status tells.
    12 AttributesSet 16 {
        /// The file.
        file: FileId,
    } => Done;

    /// The layer told the program no. The name of the call, the reason and the path follow, each ended by a zero; a
    /// descriptor comes instead of the path where there is one.
    13 Refused 0 {} => Done;

    /// The process ends because it wants to.
    14 Exit 0 {} => Done;

    /// Whether the file is managed.
    15 Managed 16 {
        /// The file.
        file: FileId,
    } => ManagedReply 2 {
        /// The file is managed.
        managed: bool,
        /// It is under the engine now, and its sidecar stands in its directory.
        has_sidecar: bool,
    };

    /// Whether a file with a sidecar is about to lose its last name in the directory with that sidecar.
    16 LastName 24 {
        /// The file.
        file: FileId,
        /// The inode of the directory that loses a name.
        directory: u64,
    } => LastNameReply 1 {
        /// The file's sidecar stands in that directory, which has no more than one name of the file.
        last: bool,
    };

    /// The program is about to do what cannot be served: the file is to be a plain one before. The name of the call
    /// follows, ended by a zero.
    17 Demote 16 {
        /// The file.
        file: FileId,
    } => Done;

    /// As [`Demote`], of the descriptor's file.
    18 DemoteDescriptor 0 {} => Done;

    /// As [`Demote`], of all files.
    19 DemoteAll 0 {} => Done;

    /// The file is about to lose the name that it has. It is its last one, or the file is a plain one from then on.
    20 Leave 16 {
        /// The file.
        file: FileId,
    } => Done;

    /// The file is about to be opened. If the server has the only description of it left, opened with the same flags,
    /// the reply carries that, its offset 0.
    21 Reopen 20 {
        /// The file.
        file: FileId,
        /// The flags of `open`.
        flags: i32,
    } => ReopenReply 1 {
        /// The reply carries the descriptor, and the server takes the file for open again.
        reopened: bool,
    };

    /// This process needs something to append to the log by itself. The reply carries the descriptor.
    22 Share 1 {
        /// The part of the log that it needs.
        what: Shared,
    } => Done;

    /// The kernel took less of a write to the file than this process put into the log. The log is to have nothing of
    /// the file any more.
    23 TakeBack 16 {
        /// The file.
        file: FileId,
    } => Done;

    /// The descriptor is about to be mapped shared. The reply carries the descriptor of its *twin*, the memory with the
    /// file's present bytes that is mapped in its place.
    24 Map 1 {
        /// The twin may be written to.
        writable: bool,
    } => Done;

    /// A twin was mapped; the kernel tells which, and from where on. EBUSY while another one is about to be moved to
    /// the same place.
    25 Mapped 25 {
        /// The memory.
        at: Addresses,
        /// A descriptor of userfaultfd(2) comes along: the memory is registered and protected over it, and each first
        /// store to a page waits for the server.
        watched: bool,
        /// The address to which the mapping is moved next, or 0 if it stays. Nobody knows of the mapping until then.
        place: u64,
    } => Done;

    /// The mapping that was to be moved to its place is there, or never will be.
    26 Placed 25 {
        /// Its place.
        at: Addresses,
        /// The address that it was to be moved from.
        from: u64,
        /// The mapping is there. Otherwise it is unmapped.
        placed: bool,
    } => Done;

    /// The memory is not mapped any more, or something else is: the mappings in it are to be looked at again.
    27 Unmapped 16 {
        /// The memory.
        at: Addresses,
    } => Done;

    /// A mapping of this process of which the server was not told.
    28 Inherited 0 {} => InheritedReply 17 {
        /// There is one. Otherwise the rest means nothing.
        found: bool,
        /// The memory.
        at: Addresses,
    };

    /// The memory is to be synced: commit what it maps, if anything.
    29 SyncMapped 16 {
        /// The memory.
        at: Addresses,
    } => Done;

    /// The first mapping in the memory is to be made once more. The reply carries the twin, as for [`Map`].
    30 MapAgain 16 {
        /// The memory.
        at: Addresses,
    } => MapAgainReply 14 {
        /// There is one. Otherwise the rest means nothing.
        found: bool,
        /// The offset in the file at which it begins.
        offset: u64,
        /// `PROT_READ` and so on.
        protection: i32,
        /// The twin may be written to.
        writable: bool,
    };

    /// The process is about to become another program by `exec`. That may be one without the layer, which cannot say
    /// that it ends.
    31 Becomes 1 {
        /// The `exec` comes next. Otherwise it failed, and the process is the old program still.
        becoming: bool,
    } => Done;

    /// The file is about to be renamed. The descriptor is that of the directory that it goes to; its name there
    /// follows.
    32 Move 16 {
        /// The file.
        file: FileId,
    } => MoveReply 1 {
        /// [`Moved`] has to follow. Otherwise the file is a plain one by now, and what has the name too.
        followed: bool,
    };

    /// The rename of the file ended.
    33 Moved 17 {
        /// The file.
        file: FileId,
        /// The file was renamed.
        done: bool,
    } => Done;

    /// The descriptor is that of a directory, which is to be synced.
    34 SyncDirectory 0 {} => SyncDirectoryReply 9 {
        /// The log keeps all that changed in the directory. Otherwise the program syncs it.
        durable: bool,
        /// The number with which [`DirectorySynced`] has to follow, or 0 if it need not.
        number: u64,
    };

    /// A program ended the sync of a directory.
    35 DirectorySynced 9 {
        /// The number that the server gave the sync.
        number: u64,
        /// The sync succeeded.
        done: bool,
    } => Done;

    /// The directory of the descriptor is about to get another name.
    36 MoveDirectory 0 {} => Done;

    /// The file lost its last name: what stands beside it for a recovery goes, and who has it open goes on with it.
    37 Unnamed 16 {
        /// The file.
        file: FileId,
    } => Done;

    /// As [`Unnamed`], of some files, which nobody can tell.
    38 SomeUnnamed 0 {} => Done;

    /// As [`Unnamed`], of a file that nobody of the run has open, but that left something in the directory of the
    /// descriptor, where it had its name.
    39 UnnamedIn 16 {
        /// The file.
        file: FileId,
    } => Done;
}
