//! Commits as a log has them, and which staged changes they let count after a crash.
//!
//! # Invariants
//!
//! 1. A Commit covers the staged changes of its file whose places in the order are from its first one on, up to its
//!    own. It counts if all of them are whole, as many as it says, or if the durable tail is beyond the first: only a
//!    durable Commit lets the tail go there, and an epoch is whole before its Commit is durable. What the tail has
//!    passed, the file durably has.
//! 2. A Commit counts only if the one before it counts, or the tail has passed that one. So no epoch is there without
//!    those before it.
//! 3. Staged changes that no Commit covers are those of an epoch that was open, was abandoned, or was staged again.

use std::collections::{BTreeMap, HashMap, HashSet};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::Kind;
use super::scan::Operation;
use crate::error::{Error, Result};
use crate::format::sidecar::MAX_NUMBER;

/// The data of a Commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    /// Changes that its epoch has.
    pub(super) count: u64,
    /// The place of the file's Commit before, in this session.
    pub(super) before: Option<u64>,
    /// What its record is to say, if the file has a [commit log](super::stream).
    pub(super) numbered: Option<Numbered>,
}

/// The numbers of a commit, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) number: u64,
    /// The number of the file's commit before.
    pub(super) previous: u64,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
}

/// A numbered Commit that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) uid: u64,
    /// The places of its first change and of the Commit in the order.
    pub(super) first: u64,
    pub(super) order: u64,
    pub(super) numbered: Numbered,
    /// Whether the log has all changes of its epoch.
    pub(super) is_whole: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCommit {
    count: U64,
    /// The place, counted from 1; 0 without one.
    before: U64,
}

/// The numbers of a Commit, behind it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNumbered {
    number: U64,
    previous: U64,
    time: U64,
}

/// Bytes of data of a Commit, if it is not numbered.
pub(super) const COMMIT: usize = size_of::<RawCommit>();

const _: () = {
    assert!(COMMIT == 16);
    assert!(size_of::<RawNumbered>() == 24);
};

impl Commit {
    pub(super) fn encode(&self) -> Vec<u8> {
        let before = self.before.map_or(0, |position| position + 1);
        let mut data = RawCommit { count: self.count.into(), before: before.into() }.as_bytes().to_vec();
        if let Some(Numbered { number, previous, time }) = self.numbered {
            let raw = RawNumbered { number: number.into(), previous: previous.into(), time: time.into() };
            data.extend_from_slice(raw.as_bytes());
        }
        data
    }

    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        let (raw, rest) = RawCommit::read_from_prefix(data).ok()?;
        let numbered = match rest {
            [] => None,
            rest => {
                let raw = RawNumbered::read_from_bytes(rest).ok()?;
                let (number, previous) = (raw.number.get(), raw.previous.get());
                // So that a number behind it can be given, whatever the log says.
                let is_sound = previous < number && number < MAX_NUMBER;
                Some(Numbered { number, previous, time: raw.time.get() }).filter(|_| is_sound)
            }
        };
        if !rest.is_empty() && numbered.is_none() {
            return None;
        }
        Some(Commit { count: raw.count.get(), before: raw.before.get().checked_sub(1), numbered })
    }
}

/// Has the changes of committed epochs count like all others, and drops Commits and other staged changes. The
/// operations are in order. `commits` has the data of each Commit, by its position. Returns how many files had an
/// epoch that no Commit closed, and the numbered Commits that count, in order.
///
/// # Errors
/// Those of `is_whole`, which says whether a staged change has all its bytes beside the log.
pub(super) fn resolve(
    operations: &mut Vec<Operation>,
    commits: &HashMap<u64, Commit>,
    tail: u64,
    is_whole: impl Fn(&Operation) -> Result<bool>,
) -> Result<(u64, Vec<Closed>)> {
    let mut closed = Vec::new();
    let mut open: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    let mut committed: HashSet<u64> = HashSet::new();
    let mut valid: HashSet<(u64, u64)> = HashSet::new();
    for operation in &*operations {
        let staged = open.entry(operation.uid).or_default();
        if operation.kind.is_staged() {
            staged.push(operation);
        }
        let Some(commit) = commits.get(&operation.position).filter(|_| operation.kind == Kind::Commit) else {
            continue;
        };
        let (first, uid) = (operation.value, operation.uid);
        let follows = commit.before.is_none_or(|before| before < tail || valid.contains(&(uid, before)));
        let covered: Vec<&Operation> = staged.iter().copied().filter(|change| change.order >= first).collect();
        let is_there = || {
            let all =
                covered.len() as u64 == commit.count && covered.first().is_some_and(|change| change.order == first);
            covered.iter().try_fold(all, |all, change| Ok::<_, Error>(all && is_whole(change)?))
        };
        if !follows || first >= operation.order {
            continue;
        }
        let is_passed = first < tail;
        let all = if is_passed && commit.numbered.is_none() { false } else { is_there()? };
        if is_passed || all {
            closed.extend(commit.numbered.map(|numbered| Closed {
                uid,
                first,
                order: operation.order,
                numbered,
                is_whole: all,
            }));
            staged.clear();
            committed.extend(covered.iter().map(|change| change.order));
            valid.insert((uid, operation.order));
        }
    }
    let left = open.values().filter(|staged| !staged.is_empty()).count() as u64;
    operations.retain_mut(|operation| {
        operation.kind = match operation.kind {
            Kind::StagedWrite | Kind::StagedSpill | Kind::StagedPack if committed.contains(&operation.order) => {
                Kind::Write
            }
            Kind::StagedLen if committed.contains(&operation.order) => Kind::SetLen,
            kind => kind,
        };
        !operation.kind.is_of_epochs()
    });
    Ok((left, closed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(order: u64, kind: Kind, value: u64) -> Operation {
        let (position, uid, len, parts, time) = (order, 1, 0, 1, 0);
        Operation { position, order, uid, kind, value, len, parts, time, spilled: None, is_packed: false }
    }

    /// The places of the changes that count.
    fn counting(tail: u64, lost: &[u64]) -> Vec<u64> {
        use Kind::{Commit as Closed, Move, StagedLen, StagedWrite};
        let all = [
            operation(10, StagedWrite, 0),
            operation(11, StagedLen, 5),
            operation(12, Closed, 10),
            operation(13, Move, 1),
            // Staged again, from 16 on.
            operation(14, StagedWrite, 0),
            operation(16, StagedWrite, 0),
            operation(17, StagedWrite, 9),
            operation(18, Closed, 16),
            operation(19, StagedWrite, 0),
        ];
        let commit = |count, before| Commit { count, before, numbered: None };
        let commits = HashMap::from([(12, commit(2, None)), (18, commit(2, Some(12)))]);
        let mut left: Vec<Operation> =
            all.into_iter().filter(|op| op.order >= tail && !lost.contains(&op.order)).collect();
        let (open, closed) = resolve(&mut left, &commits, tail, |_| Ok(true)).unwrap();
        assert_eq!(closed, []);
        assert_eq!(open, u64::from(lost != [19]));
        assert!(left.iter().all(|op| !op.kind.is_of_epochs()));
        left.into_iter().map(|op| op.order).collect()
    }

    #[test]
    fn an_epoch_counts_whole_and_after_those_before_it() {
        assert_eq!(counting(0, &[]), [10, 11, 13, 16, 17]);
        assert_eq!(counting(0, &[19]), [10, 11, 13, 16, 17]);
        // The second lacks a change, or its Commit.
        assert_eq!(counting(0, &[16]), [10, 11, 13]);
        assert_eq!(counting(0, &[17]), [10, 11, 13]);
        assert_eq!(counting(0, &[18, 19]), [10, 11, 13]);
        // The first does: neither counts.
        assert_eq!(counting(0, &[11]), [13]);
        assert_eq!(counting(0, &[12]), [13]);
        // A copy from before counts for nothing.
        assert_eq!(counting(0, &[14]), [10, 11, 13, 16, 17]);
    }

    #[test]
    fn what_the_tail_has_passed_is_not_missed() {
        assert_eq!(counting(11, &[]), [11, 13, 16, 17]);
        assert_eq!(counting(13, &[]), [13, 16, 17]);
        assert_eq!(counting(17, &[]), [17]);
        assert_eq!(counting(18, &[]), [0_u64; 0]);
        // Beyond its first change, the rest was there once, and was moved or is damaged.
        assert_eq!(counting(17, &[17]), [0_u64; 0]);
    }

    #[test]
    fn a_commit_survives_its_bytes() {
        for before in [None, Some(0), Some(77)] {
            for numbered in [None, Some(Numbered { number: 9, previous: 7, time: u64::MAX })] {
                let commit = Commit { count: 3, before, numbered };
                let bytes = commit.encode();
                assert_eq!(bytes.len(), if numbered.is_some() { 40 } else { COMMIT });
                assert_eq!(Commit::decode(&bytes), Some(commit));
                assert_eq!(Commit::decode(&[&bytes[..], &[0]].concat()), None);
            }
        }
        assert_eq!(Commit::decode(&[0; 15]), None);
        // A number that is not above the one before it.
        let numbered = Some(Numbered { number: 7, previous: 7, time: 0 });
        assert_eq!(Commit::decode(&Commit { count: 1, before: None, numbered }.encode()), None);
    }
}
