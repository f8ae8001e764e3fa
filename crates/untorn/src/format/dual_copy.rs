//! A superblock in two copies: which copy counts, and which one the next version goes over.
//!
//! The copies stand at the start of the first two pages of a file.
//!
//! 1. Version `seq` is written over copy `seq` mod 2, so the version before it stays. The writer makes a version
//!    durable before it writes the next one: a crash tears one copy at most.
//! 2. A copy is *whole* if its magic and its checksum are right. Anything else is torn, or of another kind of file.
//! 3. A whole copy is *refused* if it has another format version, a feature that this program does not know, or a field
//!    with an impossible value.
//! 4. The copy with the higher `seq` counts, among whole copies that are not refused.
//! 5. The reader reports a refused copy if no copy counts. A format may say ([`DualCopy::EITHER_REFUSES`]) that it does
//!    so beside a copy that counts too.
//! 6. If both copies are refused, the reader reports the one that it cannot understand rather than the impossible one.

use std::path::Path;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{is_sealed, seal};
use crate::error::{Error, Result};
use crate::storage::{Identity, MediumFile};

/// Bytes from one copy to the next.
const PAGE: u64 = 4096;

/// A superblock that stands in a file twice.
pub(crate) trait DualCopy: Sized {
    /// The bytes of a copy, from the magic to the checksum.
    type Raw: FromBytes + IntoBytes + Immutable;
    const MAGIC: [u8; 8];
    /// The format this code writes.
    const VERSION: u32 = 1;
    /// Features that a reader without knowledge of them may not open the file with at all.
    const KNOWN_INCOMPAT: u64 = 0;
    /// Features that a program without knowledge of them may at most read. No format has any yet, and until one does,
    /// a file with any of them is refused altogether.
    const KNOWN_RO_COMPAT: u64 = 0;
    /// The name of the file in errors.
    const FILE: &'static str;
    /// The error text if no copy is whole.
    const NEITHER: &'static str = "neither superblock is valid";
    /// Whether a refused copy refuses the file even if the other copy counts.
    const EITHER_REFUSES: bool = true;

    /// The sequence number.
    fn seq(&mut self) -> &mut u64;
    /// The abilities that a program needs to use this copy.
    fn needs(raw: &Self::Raw) -> Needs {
        let (head, _) = Head::read_from_prefix(raw.as_bytes()).expect("a copy begins with its head");
        Needs { version: head.version.get(), ro_compat: head.ro_compat.get(), incompat: head.incompat.get() }
    }
    /// The bytes of a copy; [`sealed`](Self::sealed) adds the checksum.
    fn encode(&self) -> Self::Raw;
    /// Decodes a whole copy that this program understands.
    fn decode(raw: &Self::Raw) -> std::result::Result<Self, Refusal>;

    fn sealed(&self) -> Self::Raw {
        let mut raw = self.encode();
        seal(0, raw.as_mut_bytes());
        raw
    }

    /// Reads the copy that counts.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if neither copy is whole; the errors of [`look`] by the rule of this module.
    fn read<F: MediumFile>(file: &F, path: &Path) -> Result<Self> {
        choose(read_both(file, [place(0), place(1)], |at, raw| look(at, raw, path))?, path)
    }

    /// Writes this as the newer version, over the older one. It is durable at the next fence.
    fn write<F: MediumFile>(&mut self, file: &F) -> Result<()> {
        let seq = self.seq();
        *seq += 1;
        let place = place(*seq);
        file.write(place, self.sealed().as_bytes())
    }
}

/// The abilities that a program needs to use a file.
pub(crate) struct Needs {
    pub(crate) version: u32,
    pub(crate) ro_compat: u64,
    pub(crate) incompat: u64,
}

/// Why a whole copy is refused, in a sentence.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// This program does not know something that the file uses.
    Unsupported(String),
    /// A field has a value that no program writes.
    Corrupt(String),
}

/// The byte offset of the copy that holds version `seq`.
pub(crate) fn place(seq: u64) -> u64 {
    seq % 2 * PAGE
}

/// Judges the bytes of the copy at this offset: `None` if they are not whole.
///
/// # Errors
/// [`Error::Unsupported`] for a copy of another version or with unknown features, [`Error::Corrupt`] for one with
/// impossible values.
pub(crate) fn look<S: DualCopy>(at: u64, raw: &S::Raw, path: &Path) -> Option<Result<S>> {
    if !raw.as_bytes().starts_with(&S::MAGIC) || !is_sealed(0, raw.as_bytes()) {
        return None;
    }
    let (file, knows) = (S::FILE, S::VERSION);
    let Needs { version, ro_compat, incompat } = S::needs(raw);
    let unknown = incompat & !S::KNOWN_INCOMPAT | ro_compat & !S::KNOWN_RO_COMPAT;
    let decoded = if version != knows {
        let what = format!("the {file} has format version {version}; this untorn knows version {knows}");
        Err(Refusal::Unsupported(what))
    } else if unknown != 0 {
        let what = format!("the {file} uses features this untorn does not know (mask {unknown:#x})");
        Err(Refusal::Unsupported(what))
    } else {
        S::decode(raw)
    };
    Some(decoded.map_err(|refusal| match refusal {
        Refusal::Unsupported(what) => Error::Unsupported { path: path.to_owned(), what },
        Refusal::Corrupt(what) => Error::Corrupt { path: path.to_owned(), offset: Some(at), what },
    }))
}

/// The copy that counts.
fn choose<S: DualCopy>(copies: [Option<Result<S>>; 2], path: &Path) -> Result<S> {
    let (whole, refused) = sort_out(copies);
    match refused {
        Some(error) if S::EITHER_REFUSES => Err(error),
        refused => newest(whole, |copy| *copy.seq()).ok_or_else(|| refused.unwrap_or_else(|| neither::<S>(path))),
    }
}

/// The copies that may count, and the error of those that are refused.
pub(crate) fn sort_out<S>(copies: [Option<Result<S>>; 2]) -> ([Option<S>; 2], Option<Error>) {
    let mut refused: Option<Error> = None;
    let whole = copies.map(|copy| {
        let outranks = |error: &Error| match &refused {
            Some(Error::Unsupported { .. }) => false,
            Some(_) => matches!(error, Error::Unsupported { .. }),
            None => true,
        };
        match copy? {
            Ok(whole) => return Some(whole),
            Err(error) if outranks(&error) => refused = Some(error),
            Err(_) => {}
        }
        None
    });
    (whole, refused)
}

/// The error if no copy is whole.
pub(crate) fn neither<S: DualCopy>(path: &Path) -> Error {
    Error::Corrupt { path: path.to_owned(), offset: Some(0), what: S::NEITHER.to_owned() }
}

/// The copy with the higher number.
pub(crate) fn newest<T>(mut copies: [Option<T>; 2], seq: impl Fn(&mut T) -> u64) -> Option<T> {
    let [first, second] = copies.each_mut().map(|copy| copy.as_mut().map(&seq));
    copies[usize::from(second > first)].take()
}

/// Reads both copies of anything that a file has at these offsets: `None` for one that the file is too short for, or
/// that `decode` does not take for whole.
pub(crate) fn read_both<F, R, T>(
    file: &F,
    at: [u64; 2],
    mut decode: impl FnMut(u64, &R) -> Option<T>,
) -> Result<[Option<T>; 2]>
where
    F: MediumFile,
    R: FromBytes + IntoBytes,
{
    let mut found = [None, None];
    for (found, at) in found.iter_mut().zip(at) {
        let mut raw = R::new_zeroed();
        if file.len() >= at + size_of::<R>() as u64 {
            file.read(at, raw.as_mut_bytes())?;
            *found = decode(at, &raw);
        }
    }
    Ok(found)
}

/// The first fields of a superblock that fills its page.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    magic: [u8; 8],
    version: U32,
    page_size: U32,
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    pub(crate) uuid: [u8; 16],
    pub(crate) seq: U64,
}

const _: () = {
    assert!(size_of::<Head>() == 64);
    assert!(std::mem::offset_of!(Head, uuid) == 40);
    assert!(std::mem::offset_of!(Head, seq) == 56);
};

impl Head {
    pub(crate) fn new<S: DualCopy>(uuid: [u8; 16], seq: u64) -> Self {
        Head {
            magic: S::MAGIC,
            version: S::VERSION.into(),
            page_size: (PAGE as u32).into(),
            compat: 0.into(),
            ro_compat: 0.into(),
            incompat: 0.into(),
            uuid,
            seq: seq.into(),
        }
    }

    /// The same with features that a reader must know.
    pub(crate) fn needing(self, incompat: u64) -> Self {
        Head { incompat: incompat.into(), ..self }
    }

    /// The features that a reader must know.
    pub(crate) fn incompat(&self) -> u64 {
        self.incompat.get()
    }

    /// Refuses another page size, and a sequence number that no file reaches.
    pub(crate) fn check(&self, max_seq: u64) -> std::result::Result<(), Refusal> {
        let (page_size, seq) = (self.page_size.get(), self.seq.get());
        if u64::from(page_size) != PAGE {
            return Err(Refusal::Corrupt(format!("the superblock names pages of {page_size} bytes, not {PAGE}")));
        }
        if seq > max_seq {
            return Err(Refusal::Corrupt(format!("the superblock has the impossible sequence number {seq}")));
        }
        Ok(())
    }
}

/// An [`Identity`] as files have it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawIdentity {
    device: U64,
    inode: U64,
    generation: U64,
    birth: U64,
}

const _: () = assert!(size_of::<RawIdentity>() == 32);

impl From<Identity> for RawIdentity {
    fn from(Identity { device, inode, generation, birth }: Identity) -> Self {
        let [device, inode, generation, birth] = [device, inode, generation, birth].map(U64::new);
        RawIdentity { device, inode, generation, birth }
    }
}

impl From<RawIdentity> for Identity {
    fn from(raw: RawIdentity) -> Self {
        let [device, inode, generation, birth] = [raw.device, raw.inode, raw.generation, raw.birth].map(U64::get);
        Identity { device, inode, generation, birth }
    }
}

/// A field that has one of a few values: its name, and the number that stands for each value.
pub(crate) struct Codes<T: 'static>(pub(crate) &'static str, pub(crate) &'static [(u8, T)]);

impl<T: Copy + PartialEq> Codes<T> {
    /// The number of a value, which is in the table.
    pub(crate) fn code(&self, value: T) -> u8 {
        self.1.iter().find(|(_, other)| *other == value).map_or(0, |(code, _)| *code)
    }

    /// # Errors
    /// A sentence that names the unknown number.
    pub(crate) fn value(&self, code: u32) -> std::result::Result<T, String> {
        let known = self.1.iter().find(|(known, _)| u32::from(*known) == code);
        known.map(|(_, value)| *value).ok_or_else(|| format!("the superblock names the unknown {} {code}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// A superblock that knows nothing but its number. `STRICT` as [`DualCopy::EITHER_REFUSES`].
    #[derive(Debug, PartialEq, Eq)]
    struct Toy<const STRICT: bool>(u64);

    #[derive(FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct RawToy {
        head: Head,
        check: U64,
    }

    impl<const STRICT: bool> DualCopy for Toy<STRICT> {
        type Raw = RawToy;
        const MAGIC: [u8; 8] = *b"toy file";
        const FILE: &'static str = "toy";
        const EITHER_REFUSES: bool = STRICT;

        fn seq(&mut self) -> &mut u64 {
            &mut self.0
        }

        fn encode(&self) -> RawToy {
            RawToy { head: Head::new::<Self>([7; 16], self.0), check: 0.into() }
        }

        fn decode(raw: &RawToy) -> std::result::Result<Self, Refusal> {
            raw.head.check(9)?;
            Ok(Toy(raw.head.seq.get()))
        }
    }

    /// The bytes in the place of a copy.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Held {
        Nothing,
        Torn,
        Foreign,
        Older,
        Newer,
        FutureVersion,
        UnknownFeature,
        OtherPageSize,
        ImpossibleNumber,
    }

    use Held::{Foreign, FutureVersion, ImpossibleNumber, Newer, Nothing, Older, OtherPageSize, Torn, UnknownFeature};

    const ALL: [Held; 9] =
        [Nothing, Torn, Foreign, Older, Newer, FutureVersion, UnknownFeature, OtherPageSize, ImpossibleNumber];

    /// The outcome of reading two copies.
    #[derive(Debug, PartialEq, Eq)]
    enum Outcome {
        Counts(u64),
        Unsupported,
        Corrupt(u64),
    }

    impl Held {
        fn raw(self) -> RawToy {
            let seq = if self == Newer { 4 } else { 3 };
            let mut raw = Toy::<true>(seq).encode();
            match self {
                Nothing => return RawToy::new_zeroed(),
                Foreign => raw.head.magic = *b"dog file",
                FutureVersion => raw.head.version = 2.into(),
                UnknownFeature => raw.head.incompat = 4.into(),
                OtherPageSize => raw.head.page_size = 512.into(),
                ImpossibleNumber => raw.head.seq = 10.into(),
                Torn | Older | Newer => {}
            }
            seal(0, raw.as_mut_bytes());
            raw.head.compat = u64::from(self == Torn).into();
            raw
        }

        /// The outcome of this copy alone, at this offset: rules 2 and 3, told once more.
        fn alone(self, at: u64) -> Option<Outcome> {
            match self {
                Nothing | Torn | Foreign => None,
                Older => Some(Outcome::Counts(3)),
                Newer => Some(Outcome::Counts(4)),
                FutureVersion | UnknownFeature => Some(Outcome::Unsupported),
                OtherPageSize | ImpossibleNumber => Some(Outcome::Corrupt(at)),
            }
        }
    }

    fn chosen<const STRICT: bool>(held: [Held; 2]) -> Outcome {
        let path = Path::new("toy");
        let [first, second] = held.map(Held::raw);
        let copies = [look::<Toy<STRICT>>(place(0), &first, path), look(place(1), &second, path)];
        match choose(copies, path) {
            Ok(Toy(seq)) => Outcome::Counts(seq),
            Err(Error::Unsupported { .. }) => Outcome::Unsupported,
            Err(Error::Corrupt { offset: Some(offset), .. }) => Outcome::Corrupt(offset),
            Err(other) => panic!("{held:?}: {other}"),
        }
    }

    #[test]
    fn every_pair_of_copies_has_one_outcome() {
        use Outcome::{Corrupt, Counts, Unsupported};
        for (one, other) in ALL.iter().flat_map(|one| ALL.map(|other| (*one, other))) {
            let held = [one, other];
            let (strict, lenient) = match [one.alone(0), other.alone(PAGE)] {
                [None, None] => (Corrupt(0), Corrupt(0)),
                [None, Some(Counts(seq))] | [Some(Counts(seq)), None] => (Counts(seq), Counts(seq)),
                [Some(Counts(one)), Some(Counts(other))] => (Counts(one.max(other)), Counts(one.max(other))),
                [Some(Counts(seq)), Some(Unsupported)] | [Some(Unsupported), Some(Counts(seq))] => {
                    (Unsupported, Counts(seq))
                }
                [Some(Counts(seq)), Some(Corrupt(at))] | [Some(Corrupt(at)), Some(Counts(seq))] => {
                    (Corrupt(at), Counts(seq))
                }
                [_, Some(Unsupported)] | [Some(Unsupported), _] => (Unsupported, Unsupported),
                [Some(Corrupt(at)), _] | [None, Some(Corrupt(at))] => (Corrupt(at), Corrupt(at)),
            };
            assert_eq!(chosen::<true>(held), strict, "{held:?}");
            assert_eq!(chosen::<false>(held), lenient, "{held:?}");
        }
    }

    #[test]
    fn every_changed_byte_makes_a_copy_torn() {
        let path = Path::new("toy");
        for byte in 0..size_of::<RawToy>() {
            let mut raw = Newer.raw();
            assert!(look::<Toy<true>>(0, &raw, path).is_some_and(|copy| copy.is_ok()));
            raw.as_mut_bytes()[byte] ^= 1 << (byte % 8);
            assert!(look::<Toy<true>>(0, &raw, path).is_none(), "byte {byte}");
        }
    }

    #[test]
    fn a_version_goes_over_the_one_before_the_last() {
        assert_eq!([0, 1, 2, 3].map(place), [0, PAGE, 0, PAGE]);
    }

    #[test]
    fn a_code_is_one_of_the_table() {
        const CODES: Codes<bool> = Codes("answer", &[(1, false), (2, true)]);
        assert_eq!([false, true].map(|value| CODES.value(CODES.code(value).into())), [Ok(false), Ok(true)]);
        assert_eq!(CODES.value(3), Err("the superblock names the unknown answer 3".to_owned()));
        assert_eq!(CODES.value(257), Err("the superblock names the unknown answer 257".to_owned()));
    }
}
