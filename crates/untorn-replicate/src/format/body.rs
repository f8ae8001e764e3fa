//! The bodies of objects: commits, the list of a snapshot's parts, and a seal.

use super::Input;

/// A commit as an object has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) number: u64,
    /// Nanoseconds since 1970; 0 if unknown.
    pub(crate) time: u64,
    /// The length of the file after it.
    pub(crate) len: u64,
    /// The shortest that the file was in it.
    pub(crate) shortest: u64,
    /// Offsets and bytes, ascending.
    pub(crate) changes: Vec<(u64, Vec<u8>)>,
}

impl Commit {
    /// Bytes that it takes in a body.
    pub(crate) fn size(&self) -> u64 {
        40 + self.changes.iter().map(|(_, bytes)| 16 + bytes.len() as u64).sum::<u64>()
    }
}

/// The body of an object with commits.
pub(crate) fn encode_commits(commits: &[Commit]) -> Vec<u8> {
    let mut body = Vec::with_capacity(commits.iter().map(Commit::size).sum::<u64>() as usize);
    for commit in commits {
        let Commit { number, time, len, shortest, changes } = commit;
        for field in [*number, *time, *len, *shortest, changes.len() as u64] {
            body.extend(field.to_le_bytes());
        }
        for (offset, bytes) in changes {
            body.extend(offset.to_le_bytes());
            body.extend((bytes.len() as u64).to_le_bytes());
        }
        changes.iter().for_each(|(_, bytes)| body.extend(bytes));
    }
    body
}

/// The commits of a body; `None` if it is damaged. Every change is within the file.
pub(crate) fn decode_commits(body: &[u8]) -> Option<Vec<Commit>> {
    let mut input = Input(body);
    let mut commits: Vec<Commit> = Vec::new();
    while !input.0.is_empty() {
        let (number, time, len, shortest, count) =
            (input.u64()?, input.u64()?, input.u64()?, input.u64()?, input.u64()?);
        // Each range takes 16 bytes, so a false count allocates nothing.
        let mut ranges = Input(input.bytes(usize::try_from(count).ok()?.checked_mul(16)?)?);
        let mut changes = Vec::new();
        let mut end = 0;
        while !ranges.0.is_empty() {
            let (offset, size) = (ranges.u64()?, ranges.u64()?);
            let bytes = input.bytes(usize::try_from(size).ok()?)?;
            let is_ascending = offset >= end;
            end = offset.checked_add(size)?;
            if !is_ascending || end > len {
                return None;
            }
            changes.push((offset, bytes.to_vec()));
        }
        let follows = commits.last().is_none_or(|before| before.number < number);
        if !follows || shortest > len {
            return None;
        }
        commits.push(Commit { number, time, len, shortest, changes });
    }
    Some(commits)
}

/// A snapshot: which parts there are. A piece without a part is zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The length of the file.
    pub(crate) len: u64,
    /// Bytes of the file that a part stands for.
    pub(crate) part: u64,
    /// Whether the state differs from that of the object before: commits are missing in between.
    pub(crate) rebases: bool,
    /// Its number among the attempts of its epoch, which the names of its parts have.
    pub(crate) attempt: u64,
    /// The numbers of the parts, ascending: part `n` begins at `n` times the part size.
    pub(crate) parts: Vec<u64>,
}

impl Snapshot {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let start = [self.len, self.part, u64::from(self.rebases), self.attempt];
        start.iter().chain(&self.parts).flat_map(|number| number.to_le_bytes()).collect()
    }

    /// `None` if it is damaged. Every part begins within the file.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut input = Input(body);
        let (len, part, rebases, attempt) = (input.u64()?, input.u64()?, input.u64()?, input.u64()?);
        let mut parts = Vec::new();
        while !input.0.is_empty() {
            let number = input.u64()?;
            let is_ascending = parts.last().is_none_or(|last| *last < number);
            if !is_ascending || number.checked_mul(part)? >= len {
                return None;
            }
            parts.push(number);
        }
        (rebases <= 1 && part > 0).then_some(Snapshot { len, part, rebases: rebases == 1, attempt, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits() -> Vec<Commit> {
        let changes = vec![(0, vec![1, 2]), (2, vec![]), (1 << 40, vec![3; 70])];
        let one = Commit { number: 7, time: 1, len: (1 << 40) + 70, shortest: 12, changes };
        vec![one, Commit { number: 9, time: 2, len: 0, shortest: 0, changes: vec![] }]
    }

    #[test]
    fn commits_read_back_as_they_were_written() {
        let body = encode_commits(&commits());
        assert_eq!(body.len() as u64, commits().iter().map(Commit::size).sum::<u64>());
        assert_eq!(decode_commits(&body).unwrap(), commits());
    }

    #[test]
    fn damaged_commits_are_refused_without_a_panic() {
        let body = encode_commits(&commits());
        // The second commit begins behind the first one.
        let whole = commits()[0].size() as usize;
        for at in (1..body.len()).filter(|at| *at != whole) {
            assert!(decode_commits(&body[..at]).is_none(), "length {at}");
        }
        for at in 0..body.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = body.clone();
                changed[at] ^= flip;
                if let Some(found) = decode_commits(&changed) {
                    let fits = |commit: &Commit| commit.changes.iter().all(|(at, b)| at + b.len() as u64 <= commit.len);
                    assert!(found.iter().all(fits));
                }
            }
        }
    }

    #[test]
    fn a_part_outside_the_file_is_refused() {
        let sound = Snapshot { len: 10, part: 4, rebases: true, attempt: 3, parts: vec![0, 2] };
        assert_eq!(Snapshot::decode(&sound.encode()), Some(sound.clone()));
        for parts in [vec![0, 3], vec![2, 0], vec![1, 1], vec![u64::MAX]] {
            assert_eq!(Snapshot::decode(&Snapshot { parts, ..sound.clone() }.encode()), None);
        }
        assert_eq!(Snapshot::decode(&Snapshot { part: 0, ..sound }.encode()), None);
    }
}
