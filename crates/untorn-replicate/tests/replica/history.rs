//! A file that has its history: a count, and for each of its last commits a random number and the digest of all numbers
//! up to it. Pages have what these numbers determine. So a mixture shows, and so does a commit that was acknowledged
//! and is missing.
//!
//! The history has room for the last commits only, so that a long test cannot fill it. A digest covers the commits
//! before it, also those without room.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use untorn::{AtomicFile, Options};
use untorn_replicate::{Error, RestoreOptions, restore};
use untorn_testing::SplitMix;

const PAGES: u64 = 32;
const PAGE: u64 = 512;
const SLOTS: u64 = 4096;
const SLOT: u64 = 12;
/// Commits that the history has room for.
const ROOM: u64 = 4096;
pub(crate) const LEN: u64 = SLOTS + PAGES * PAGE + SLOT * ROOM;

/// The place of a commit's number and digest. Commits count from 1.
fn slot_at(commit: u64) -> u64 {
    SLOTS + PAGES * PAGE + SLOT * (commit % ROOM)
}

fn page_at(number: u32) -> u64 {
    SLOTS + u64::from(number) % PAGES * PAGE
}

/// Folds a commit into the digest of those before it.
fn fold(digest: u64, number: u32) -> u64 {
    SplitMix::new(digest ^ u64::from(number)).next_u64()
}

/// A history, as it is continued.
pub(crate) struct History {
    pub(crate) file: AtomicFile,
    pub(crate) count: u64,
    pub(crate) digest: u64,
}

impl History {
    pub(crate) fn open(path: &Path) -> untorn::Result<Self> {
        let file = Options::new().commit_log(1 << 20).open(path)?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(&mut bytes, 0)?;
        let found = Digests::of(&bytes).unwrap();
        Ok(History { file, count: found.count, digest: found.last() })
    }

    /// One commit.
    pub(crate) fn go_on(&mut self, number: u32) -> untorn::Result<()> {
        let (count, digest) = (self.count + 1, fold(self.digest, number));
        let slot = [&number.to_le_bytes()[..], &digest.to_le_bytes()].concat();
        self.file.write_at(&count.to_le_bytes(), 0)?;
        self.file.write_at(&slot, slot_at(count))?;
        self.file.write_at(&number.to_le_bytes().repeat(PAGE as usize / 4), page_at(number))?;
        self.file.sync()?;
        (self.count, self.digest) = (count, digest);
        Ok(())
    }

    /// The line of an acknowledgement of this state.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.count, self.digest)
    }
}

/// The part of a history that a file has.
pub(crate) struct Digests {
    count: u64,
    /// Those of the last commits; the last one is of commit `count`.
    digests: Vec<u64>,
}

impl Digests {
    /// # Errors
    /// The evidence that the file has a mixture.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 != LEN {
            return Err(format!("it has {} bytes", bytes.len()));
        }
        let four = |at: u64| u32::from_le_bytes(bytes[at as usize..][..4].try_into().unwrap());
        let eight = |at: u64| u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap());
        let count = eight(0);
        let first = count.saturating_sub(ROOM - 1);
        // Without commits that were dropped the first digest is 0; otherwise the chain begins with what is there.
        let mut digests = vec![if first == 0 { 0 } else { eight(slot_at(first) + 4) }];
        let mut pages = vec![None; PAGES as usize];
        for commit in first + 1..=count {
            let (number, digest) = (four(slot_at(commit)), eight(slot_at(commit) + 4));
            if digest != fold(digests[digests.len() - 1], number) {
                return Err(format!("commit {commit} of {count} does not follow on the one before it"));
            }
            digests.push(digest);
            pages[(u64::from(number) % PAGES) as usize] = Some(number);
        }
        for (index, number) in pages.iter().enumerate() {
            // A page that none of these commits wrote is as it was at first, or as an older one wrote it.
            let at = SLOTS + index as u64 * PAGE;
            let number = number.unwrap_or_else(|| if first == 0 { 0 } else { four(at) });
            if let Some(word) = (0..PAGE / 4).find(|word| four(at + 4 * word) != number) {
                return Err(format!("word {word} of page {index} is not of commit {count}"));
            }
        }
        match (count + 1..ROOM).find(|commit| four(slot_at(*commit)) != 0) {
            Some(commit) => Err(format!("it has commit {commit} behind its last one, {count}")),
            None => Ok(Digests { count, digests }),
        }
    }

    fn last(&self) -> u64 {
        self.digests[self.digests.len() - 1]
    }

    /// Whether the history has this commit; `None` if it has no room for it any more.
    fn has(&self, commit: u64, digest: u64) -> Option<bool> {
        let Some(age) = self.count.checked_sub(commit) else { return Some(false) };
        let found = self.digests.iter().rev().nth(usize::try_from(age).unwrap());
        found.map(|found| *found == digest)
    }
}

/// Restores the replica, and checks that nothing that these acknowledgements name is missing. Returns how many there
/// are.
pub(crate) fn check(url: &str, copy: &Path, acknowledged: &str, what: &str) -> u64 {
    let since = Instant::now();
    while let Err(error) = restore(url, copy, &RestoreOptions::new().replace(true)) {
        let is_passing = matches!(error, Error::Store(_) | Error::NotFound { .. });
        assert!(is_passing && since.elapsed() < Duration::from_secs(60), "{what}: {error}");
        sleep(Duration::from_millis(5));
    }
    let digests = Digests::of(&fs::read(copy).unwrap()).unwrap_or_else(|error| panic!("{what}: a mixture: {error}"));
    for line in acknowledged.lines() {
        let (count, digest) = line.split_once(' ').unwrap();
        let found = digests.has(count.parse().unwrap(), digest.parse().unwrap());
        // Earlier rounds looked for those without room, and the digests cover them.
        assert_ne!(found, Some(false), "{what}: acknowledged commit {count} is not restored");
    }
    acknowledged.lines().count() as u64
}
