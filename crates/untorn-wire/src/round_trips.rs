//! Each operation through its frames and back, and what no layer sends.

use std::collections::BTreeSet;

use untorn_testing::{SplitMix, seed};
use zerocopy::{FromBytes, IntoBytes};

use crate::*;

const FILE: FileId = FileId { device: 0x0102_0304_0506_0708, inode: u64::MAX };
const AT: Addresses = Addresses { start: 0x7fff_0000_1000, len: 4096 };

/// Where `length` lies in both kinds of frames, and where their payloads begin.
const LENGTH_AT: usize = 6;
const PAYLOAD_AT: usize = 16;

/// Looks at one operation: a request and the reply to it, with different values in all fields.
trait Visit {
    fn visit<O>(&mut self, request: O, reply: O::Reply)
    where
        O: Operation + Into<Request>,
        O::Reply: PartialEq + std::fmt::Debug;
}

#[rustfmt::skip] // One line for each operation.
fn visit_all(visitor: &mut impl Visit) {
    visitor.visit(Hello {}, HelloReply { asked_before: true });
    visitor.visit(Open { truncate: true }, OpenReply { managed: true });
    visitor.visit(Closed { file: FILE }, Done {});
    visitor.visit(Read { position: Position::at(5), count: 6, flags: -7 }, ReadReply { count: 4 });
    visitor.visit(Write { position: Position::OWN, flags: 8 }, WriteReply { count: u64::MAX });
    visitor.visit(Seek { offset: -9, whence: 2 }, SeekReply { offset: i64::MAX });
    visitor.visit(SetLength { len: 1 << 60 }, Done {});
    visitor.visit(Allocate { offset: 3, len: 4, mode: 16 }, Done {});
    visitor.visit(Commit {}, Done {});
    visitor.visit(CommitAll {}, Done {});
    visitor.visit(Status { file: FILE }, StatusReply { differs: true, len: 1, seconds: -2, nanoseconds: 3 });
    visitor.visit(AttributesSet { file: FILE }, Done {});
    visitor.visit(Refused {}, Done {});
    visitor.visit(Exit {}, Done {});
    visitor.visit(Managed { file: FILE }, ManagedReply { managed: true, has_sidecar: false });
    visitor.visit(LastName { file: FILE, directory: 12 }, LastNameReply { last: true });
    visitor.visit(Demote { file: FILE }, Done {});
    visitor.visit(DemoteDescriptor {}, Done {});
    visitor.visit(DemoteAll {}, Done {});
    visitor.visit(Leave { file: FILE }, Done {});
    visitor.visit(Reopen { file: FILE, flags: 2 }, ReopenReply { reopened: true });
    visitor.visit(Share { what: Shared::OpenedLog }, Done {});
    visitor.visit(TakeBack { file: FILE }, Done {});
    visitor.visit(Map { writable: true }, Done {});
    visitor.visit(Mapped { at: AT, watched: true, place: 8192 }, Done {});
    visitor.visit(Placed { at: AT, from: 8192, placed: true }, Done {});
    visitor.visit(Unmapped { at: AT }, Done {});
    visitor.visit(Inherited {}, InheritedReply { found: true, at: AT });
    visitor.visit(SyncMapped { at: AT }, Done {});
    visitor.visit(MapAgain { at: AT }, MapAgainReply { found: true, offset: 4, protection: 3, writable: false });
    visitor.visit(Becomes { becoming: true }, Done {});
    visitor.visit(Move { file: FILE }, MoveReply { followed: true });
    visitor.visit(Moved { file: FILE, done: true }, Done {});
    visitor.visit(SyncDirectory {}, SyncDirectoryReply { durable: false, number: 5 });
    visitor.visit(DirectorySynced { number: 5, done: true }, Done {});
    visitor.visit(MoveDirectory {}, Done {});
    visitor.visit(Unnamed { file: FILE }, Done {});
    visitor.visit(SomeUnnamed {}, Done {});
    visitor.visit(UnnamedIn { file: FILE }, Done {});
}

/// A frame as the other side reads it.
fn sent<F: IntoBytes + FromBytes + zerocopy::Immutable>(frame: &F) -> F {
    F::read_from_bytes(frame.as_bytes()).unwrap()
}

/// A frame of which some bytes are others.
fn changed<F: IntoBytes + FromBytes + zerocopy::Immutable>(frame: &F, at: usize, bytes: &[u8]) -> F {
    let mut all = frame.as_bytes().to_vec();
    all[at..at + bytes.len()].copy_from_slice(bytes);
    F::read_from_bytes(&all).unwrap()
}

#[test]
fn each_operation_survives_its_frames() {
    struct RoundTrip(BTreeSet<u16>);
    impl Visit for RoundTrip {
        fn visit<O>(&mut self, request: O, reply: O::Reply)
        where
            O: Operation + Into<Request>,
            O::Reply: PartialEq + std::fmt::Debug,
        {
            let (asked, answered) = (RequestFrame::new(&request, 77), ReplyFrame::new::<O>(&reply, 78));
            assert_eq!(sent(&asked).decode(), Ok(request.into()));
            assert_eq!(sent(&answered).decode::<O>(), Ok(Ok(reply)));
            assert_eq!((sent(&asked).data(77), sent(&answered).data()), (Ok(77), 78));
            assert_eq!(sent(&ReplyFrame::failed(5)).decode::<O>(), Ok(Err(5)));
            assert!(self.0.insert(O::NUMBER), "{} is the number of two operations", O::NUMBER);
        }
    }
    let mut visitor = RoundTrip(BTreeSet::new());
    visit_all(&mut visitor);
    assert!(visitor.0.iter().eq(operations::NUMBERS), "{:?} but not {:?}", visitor.0, operations::NUMBERS);
}

#[test]
fn a_payload_of_another_length_is_malformed() {
    struct Lengths;
    impl Visit for Lengths {
        fn visit<O>(&mut self, request: O, reply: O::Reply)
        where
            O: Operation + Into<Request>,
            O::Reply: PartialEq + std::fmt::Debug,
        {
            let (asked, answered) = (RequestFrame::new(&request, 0), ReplyFrame::new::<O>(&reply, 0));
            for length in (0..=PAYLOAD as u16 + 9).chain([u16::MAX]) {
                let bytes = length.to_ne_bytes();
                let decoded = changed(&asked, LENGTH_AT, &bytes).decode();
                assert_eq!(decoded.is_ok(), usize::from(length) == size_of::<O>());
                assert!(matches!(decoded, Ok(_) | Err(Malformed::Payload)));
                let decoded = changed(&answered, LENGTH_AT, &bytes).decode::<O>();
                assert_eq!(decoded.is_ok(), usize::from(length) == size_of::<O::Reply>());
                assert!(matches!(decoded, Ok(_) | Err(Malformed::Payload)));
            }
        }
    }
    visit_all(&mut Lengths);
}

#[test]
fn unknown_operations_are_malformed() {
    let frame = RequestFrame::new(&Commit {}, 0);
    for number in 0..=u16::MAX {
        let decoded = changed(&frame, 4, &number.to_ne_bytes()).decode();
        let known = operations::NUMBERS.contains(&number);
        assert_eq!(decoded == Err(Malformed::Operation(number)), !known, "{number}: {decoded:?}");
    }
    // A reply is one to what was asked.
    let reply = ReplyFrame::new::<Commit>(&Done {}, 0);
    assert_eq!(reply.decode::<Exit>(), Err(Malformed::Operation(Commit::NUMBER)));
}

#[test]
fn frames_of_another_version_are_refused() {
    let frame = RequestFrame::new(&Commit {}, 0);
    for version in [0, VERSION ^ 1, !VERSION] {
        let other = changed(&frame, 0, &version.to_ne_bytes());
        assert_eq!(other.decode(), Err(Malformed::Version(version)));
        assert_eq!(other.data(MOST), Err(Malformed::Version(version)));
    }
    // Any other text of the protocol has another version.
    assert_ne!(frame::hash("1 Hello 0 {}"), frame::hash("1 Hello 0 { }"));
    assert_eq!(frame::hash(""), 0x811c_9dc5);
}

#[test]
fn more_bytes_than_a_call_moves_are_refused() {
    let frame = RequestFrame::new(&Write { position: Position::OWN, flags: 0 }, MOST as usize);
    assert_eq!(frame.data(MOST), Ok(MOST));
    assert_eq!(frame.data(MOST - 1), Err(Malformed::Data(MOST)));
}

/// Whatever bytes come: they are decoded to what has exactly these bytes, or are malformed.
#[test]
fn untrusted_bytes_never_panic() {
    struct Flips;
    impl Visit for Flips {
        fn visit<O>(&mut self, request: O, reply: O::Reply)
        where
            O: Operation + Into<Request>,
            O::Reply: PartialEq + std::fmt::Debug,
        {
            let (asked, answered) = (RequestFrame::new(&request, 0), ReplyFrame::new::<O>(&reply, 0));
            for at in 0..FRAME {
                for byte in 0..=u8::MAX {
                    let _ = changed(&asked, at, &[byte]).decode();
                    if let Ok(Ok(reply)) = changed(&answered, at, &[byte]).decode::<O>()
                        && (PAYLOAD_AT..PAYLOAD_AT + size_of::<O::Reply>()).contains(&at)
                    {
                        assert_eq!(ReplyFrame::new::<O>(&reply, 0).as_bytes()[at], byte);
                    }
                }
            }
        }
    }
    visit_all(&mut Flips);
    let mut rng = SplitMix::new(seed("untrusted_bytes_never_panic"));
    for _ in 0..200_000 {
        let mut bytes = [0; FRAME];
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_ne_bytes()));
        let _ = RequestFrame::read_from_bytes(&bytes).unwrap().decode();
        bytes[..4].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[4..6].copy_from_slice(&(rng.below(64) as u16).to_ne_bytes());
        bytes[LENGTH_AT..8].copy_from_slice(&(rng.below(40) as u16).to_ne_bytes());
        let _ = RequestFrame::read_from_bytes(&bytes).unwrap().decode();
        bytes[..4].fill(0);
        let reply = ReplyFrame::read_from_bytes(&bytes).unwrap();
        let _ = (reply.decode::<Status>(), reply.decode::<MapAgain>(), reply.decode::<Inherited>());
    }
}
