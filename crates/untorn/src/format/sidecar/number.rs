//! The commit number of a file, and when that commit was made, beyond the life of its sidecar.
//!
//! While a file has a sidecar, the sidecar has the number. Before it goes, number and time come to an extended
//! attribute of the data file, the *note*. A new sidecar starts with the number of the note, so every engine goes on
//! above it.
//!
//! # Invariants
//! 1. A number never falls: the note is in the data file, durably, before the sidecar says that it is not needed.
//! 2. A note is a hint upwards, because whoever may write the file may forge it, and a copy carries it too. It decides
//!    nothing but the number that the next commit is above. A number beyond [`MAX_NOTED`] counts as none, so no forged
//!    one brings later numbers near those that an open refuses.
//! 3. Closing takes no space for the note: the open that makes the sidecar makes the note.
//! 4. A file whose sidecar was given up with commits in it goes on [`LEAP`] above what is known, so that none of their
//!    numbers comes again for other bytes.
//! 5. On a file system without user attributes a new sidecar starts at the microseconds since 1970. So its numbers grow
//!    too, unless the clock is set back.

use super::MAX_NUMBER;
use crate::error::Result;
use crate::format::checksum::xxh3;
use crate::storage::{CommitNote, MarkState, Medium, MediumFile};

/// The highest number that a note may have.
const MAX_NOTED: u64 = MAX_NUMBER / 4;

/// More than the commits that a sidecar ever holds which are not in the data file.
const LEAP: u64 = 1 << 32;

/// The form of a note, in the highest two bits of its first word.
const VERSION: u64 = 1;

/// Bits of the time in the second word, in milliseconds: until the year 10889.
const TIME_BITS: u32 = 48;

const MILLISECOND: u64 = 1_000_000;

/// A commit's number and the time when it was made, in nanoseconds since 1970; 0 if that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamped {
    pub(crate) number: u64,
    pub(crate) time: u64,
}

/// The checks that a crash explorer leaves out, as mutants, and one barrier.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A check: the number is in the data file before the sidecar goes.
        KEPT = "sidecar.number.kept";
        /// A check: a new sidecar starts with the number of the note.
        TAKEN = "sidecar.number.taken";
        /// The number of a sidecar that is given up is durable in the data file before the sidecar says that it is not
        /// needed: from then on no open looks for a number in it.
        GIVEN_UP = "sidecar.number.given-up";
    }
}

/// The note of a commit: 16 bytes, so that ext4 has room for it in the inode, beside the mark.
fn encode(stamped: Stamped) -> CommitNote {
    let number = VERSION << 62 | stamped.number.min(MAX_NUMBER - 1);
    let time = (stamped.time / MILLISECOND).min((1 << TIME_BITS) - 1);
    let sum = check(number, time);
    let mut note = [0; 16];
    note[..8].copy_from_slice(&number.to_le_bytes());
    note[8..].copy_from_slice(&(sum << TIME_BITS | time).to_le_bytes());
    note
}

/// Sixteen bits of a checksum: against damage, not against a forger.
fn check(number: u64, time: u64) -> u64 {
    xxh3(time, &number.to_le_bytes()) & 0xffff
}

fn decode(note: &CommitNote) -> Option<Stamped> {
    let word = |at: usize| note[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let (first, second) = (word(0), word(8));
    let (number, time) = (first & (MAX_NUMBER - 1), second & ((1 << TIME_BITS) - 1));
    let is_sound = first >> 62 == VERSION && second >> TIME_BITS == check(first, time) && number <= MAX_NOTED;
    // No millisecond since 1970 that fits is beyond a word of nanoseconds by much; a forged one stops there.
    is_sound.then_some(Stamped { number, time: time.saturating_mul(MILLISECOND) })
}

/// What the note of a file says; nothing if there is none that counts.
///
/// # Errors
/// Those of reading the attribute.
pub(crate) fn noted<F: MediumFile>(data: &F) -> Result<Stamped> {
    Ok(data.commit_note()?.and_then(|note| decode(&note)).unwrap_or_default())
}

/// What a new sidecar of this file starts with.
///
/// # Errors
/// Those of reading attributes.
pub(crate) fn start<M: Medium>(medium: &M, data: &M::File) -> Result<Stamped> {
    if !medium.makes_check(barriers::TAKEN) {
        return Ok(Stamped::default());
    }
    match data.mark()? {
        MarkState::Unsupported => Ok(Stamped { number: (medium.now() / 1000).min(MAX_NOTED), time: 0 }),
        _ => noted(data),
    }
}

/// Puts a commit into the note, unless it has a later one already. Durable at the next sync of the file.
///
/// # Errors
/// Those of writing the attribute.
pub(crate) fn keep<M: Medium>(medium: &M, data: &M::File, stamped: Stamped) -> Result<()> {
    if !medium.makes_check(barriers::KEPT) || data.mark()? == MarkState::Unsupported {
        return Ok(());
    }
    let earlier = noted(data)?;
    if (stamped.number, stamped.time / MILLISECOND) <= (earlier.number, earlier.time / MILLISECOND) {
        return Ok(());
    }
    data.set_commit_note(encode(stamped))
}

/// The note of a file that has no sidecar, and whose later commits are to have higher numbers than this one.
pub(crate) fn note_of(number: u64) -> CommitNote {
    encode(Stamped { number: number.min(MAX_NOTED), time: 0 })
}

/// Makes room for the note of a file that gets a sidecar. Durable at the next sync of the file.
///
/// # Errors
/// Those of writing the attribute.
pub(super) fn make_room<F: MediumFile>(data: &F) -> Result<()> {
    if data.commit_note()?.is_some() { Ok(()) } else { data.set_commit_note(encode(Stamped::default())) }
}

/// Notes the number of a sidecar that is given up, durably: that of its checkpoint, or more if it may hold commits that
/// are lost with it.
///
/// # Errors
/// Those of writing the attribute, and of the sync.
pub(super) fn give_up<M: Medium>(
    medium: &M,
    data: &M::File,
    checkpoint: Option<Stamped>,
    has_commits: bool,
) -> Result<()> {
    let known = checkpoint.unwrap_or_default();
    let number = known.number.max(noted(data)?.number) + if has_commits { LEAP } else { 0 };
    keep(medium, data, Stamped { number: number.min(MAX_NOTED), ..known })?;
    data.sync(barriers::GIVEN_UP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_keeps_number_and_time_to_the_millisecond() {
        for (number, time) in [(0, 0), (1, 5 * MILLISECOND), (MAX_NOTED, 1_764_394_431_123 * MILLISECOND)] {
            let stamped = Stamped { number, time };
            assert_eq!(decode(&encode(stamped)), Some(stamped));
            assert_eq!(decode(&encode(Stamped { number, time: time + 999_999 })), Some(stamped));
        }
        let latest = decode(&encode(Stamped { number: 3, time: u64::MAX })).unwrap();
        assert!(latest.time > u64::MAX - 2 * MILLISECOND, "{latest:?}");
    }

    #[test]
    fn forged_and_damaged_notes_say_nothing() {
        let note = encode(Stamped { number: 7, time: 1_764_394_431_123 * MILLISECOND });
        let mut passed = 0;
        for bit in 0..128 {
            let mut bad = note;
            bad[bit / 8] ^= 1 << (bit % 8);
            passed += usize::from(decode(&bad).is_some());
        }
        assert_eq!(passed, 0);
        assert_eq!(decode(&[0; 16]), None);
        assert_eq!(decode(&[0xff; 16]), None);
        // The highest that is believed leaves room for more commits than a machine makes.
        assert_eq!(decode(&encode(Stamped { number: MAX_NOTED + 1, time: 0 })), None);
        assert_eq!(decode(&encode(Stamped { number: u64::MAX, time: 0 })), None);
    }
}
