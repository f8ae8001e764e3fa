//! Memory in which the process that serves a file publishes each commit: readers in other processes find the last
//! snapshot, and the pages that changed, without asking.
//!
//! ```text
//!  CURRENT   the number of the snapshot of the last commit, and which of two entries describes it
//!  HOME      the first snapshot that was published, and how many pages are in the data file since, but for marked ones
//!  entries   number, commit, length, time of each of the last two
//!  table     for each page (by its number modulo the length) the version that was added last
//!  headers   of each version: its page, the first snapshot that has it, the version of that page before
//!  versions  4 KiB each, reused in a ring
//! ```
//!
//! # Invariants
//!
//! 1. A version has the bytes of its page in all snapshots from its `first` on, up to the next version of that page.
//!    All versions of a page since its oldest one are linked, the newest first. So the first one in that order whose
//!    `first` is not above a snapshot's number is that snapshot's, whatever else a reader knows of the page.
//! 2. A version is taken out of its header before its bytes change, and put in after they did. A reader copies the
//!    bytes and looks at the header again.
//! 3. An entry does not change while CURRENT names it. A reader says which snapshot it uses and looks at CURRENT again;
//!    the server changes CURRENT and looks at what readers say afterwards. So either the reader finds another CURRENT,
//!    or the server finds the reader.
//! 4. HOME is stored before the first reader comes. By then the pages that the data file does not have are
//!    [marked](super::marks) as if they had changed after that snapshot.
//! 5. The server alone stores to this memory. A reader that finds nonsense finds nothing.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use super::preimages::{PAGE, Page};
use crate::sys::shared::SharedPages;

/// Versions of pages that are kept at most, and entries of the table.
const VERSIONS: u64 = 8192;
const TABLE: u64 = 1 << 16;

/// A reader gives a search up after so many versions of a page.
const LONGEST: u32 = 16;

/// Memory for versions is taken in steps of so many.
const STEP: u64 = 64;

const CURRENT: usize = 0;
const HOME: usize = 1;
const ENTRIES: usize = 8;
const ENTRY: usize = 8;
const TABLE_AT: usize = PAGE;
const HEADERS_AT: usize = TABLE_AT + 8 * TABLE as usize;
const VERSIONS_AT: usize = (HEADERS_AT + 32 * VERSIONS as usize).next_multiple_of(PAGE);
const TOTAL: usize = VERSIONS_AT + VERSIONS as usize * PAGE;

/// A published snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Current {
    pub(super) number: u64,
    pub(super) commit: u64,
    pub(super) len: u64,
    /// When it was taken, in nanoseconds since 1970.
    pub(super) since: u64,
}

/// The memory, as the server or a reader has it.
pub(crate) struct Published {
    memory: SharedPages,
    /// Versions that this process keeps.
    versions: u64,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    next: u64,
    /// Versions that there is memory for.
    allocated: u64,
}

impl Published {
    /// One whose versions take so many bytes at most.
    ///
    /// # Errors
    /// Those of making memory that others may map to load only.
    pub(super) fn create(limit: u64) -> io::Result<Published> {
        let memory = SharedPages::create("untorn-published", TOTAL as u64, TOTAL)?;
        memory.allocate(0, VERSIONS_AT as u64)?;
        memory.let_others_load_only()?;
        let versions = (limit / PAGE as u64).clamp(STEP, VERSIONS) / STEP * STEP;
        Ok(Published { memory, versions, ring: Mutex::default() })
    }

    /// That of another process.
    ///
    /// # Errors
    /// Those of `mmap(2)`; `InvalidData` if it is not such memory.
    pub(super) fn of_another(file: OwnedFd) -> io::Result<Published> {
        let memory = SharedPages::map_to_load(file, TOTAL)?;
        if memory.file_len()? != TOTAL as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Published { memory, versions: 0, ring: Mutex::default() })
    }

    /// How many versions are kept.
    pub(super) fn versions(&self) -> u64 {
        self.versions
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.words(8 * at, 1)[0]
    }

    fn table(&self, page: u64) -> &AtomicU64 {
        &self.memory.words(TABLE_AT + 8 * (page % TABLE) as usize, 1)[0]
    }

    /// Of a version: its page plus 1 (0 for none), its first snapshot, and the version before plus 1.
    fn header(&self, version: u64) -> [&AtomicU64; 3] {
        let words = self.memory.words(HEADERS_AT + 32 * version as usize, 3);
        [&words[0], &words[1], &words[2]]
    }

    fn bytes_at(version: u64) -> usize {
        VERSIONS_AT + version as usize * PAGE
    }

    /// Publishes a snapshot, whose versions were added; `None` takes the last one back, and readers have to ask.
    pub(super) fn set_current(&self, current: Option<Current>) {
        let Some(Current { number, commit, len, since }) = current else {
            return self.word(CURRENT).store(0, Ordering::SeqCst);
        };
        let entry = 1 - (self.word(CURRENT).load(Ordering::Relaxed) & 1);
        // A reader that still finds the CURRENT before last must not find these in its entry.
        fence(Ordering::SeqCst);
        for (at, value) in [number, commit, len, since].into_iter().enumerate() {
            self.word(ENTRIES + ENTRY * entry as usize + at).store(value, Ordering::Relaxed);
        }
        self.word(CURRENT).store(number << 1 | entry, Ordering::SeqCst);
    }

    /// The snapshot of the last commit; `None` if the server has to be asked for it. The caller looks whether it
    /// [is still](Published::is_current) that after it said that it uses it.
    pub(super) fn current(&self) -> Option<Current> {
        loop {
            let current = self.word(CURRENT).load(Ordering::SeqCst);
            if current == 0 {
                return None;
            }
            let entry = ENTRIES + ENTRY * (current & 1) as usize;
            let [number, commit, len, since] = [0, 1, 2, 3].map(|at| self.word(entry + at).load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.word(CURRENT).load(Ordering::SeqCst) == current {
                return (number == current >> 1).then_some(Current { number, commit, len, since });
            }
        }
    }

    /// Whether a snapshot is the last one.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.word(CURRENT).load(Ordering::SeqCst) >> 1 == number
    }

    /// Says that the first so many pages, but for those with a mark, are in the data file since a snapshot.
    pub(super) fn set_home(&self, since: u64, pages: u64) {
        self.word(HOME).store(since, Ordering::Relaxed);
        self.word(HOME + 1).store(pages, Ordering::Release);
    }

    /// The snapshot, and the number of pages. Without any, no page is known to be there.
    pub(super) fn home(&self) -> (u64, u64) {
        let pages = self.word(HOME + 1).load(Ordering::Acquire);
        (self.word(HOME).load(Ordering::Relaxed), pages)
    }

    /// Whether a page has a version.
    pub(super) fn has(&self, page: u64) -> bool {
        let version = self.table(page).load(Ordering::Relaxed);
        version != 0 && version <= VERSIONS && self.header(version - 1)[0].load(Ordering::Relaxed) == page + 1
    }

    /// Adds the bytes that a page has from the snapshot `first` on. No other thread adds any.
    ///
    /// # Errors
    /// Those of taking memory.
    pub(super) fn add(&self, page: u64, first: u64, bytes: &Page) -> io::Result<()> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let version = ring.next % self.versions;
        if version >= ring.allocated {
            self.memory.allocate(Self::bytes_at(version) as u64, STEP * PAGE as u64)?;
            ring.allocated = version + STEP;
        }
        ring.next += 1;
        let [of, from, before] = self.header(version);
        let old = of.load(Ordering::Relaxed);
        if old != 0 {
            let newest = self.table(old - 1);
            if newest.load(Ordering::Relaxed) == version + 1 {
                newest.store(0, Ordering::Relaxed);
            }
        }
        of.store(0, Ordering::Relaxed);
        // What is stored from here on stays behind that.
        fence(Ordering::SeqCst);
        let newest = self.table(page);
        before.store(if self.has(page) { newest.load(Ordering::Relaxed) } else { 0 }, Ordering::Relaxed);
        from.store(first, Ordering::Relaxed);
        self.memory.copy_in(Self::bytes_at(version), bytes);
        fence(Ordering::SeqCst);
        of.store(page + 1, Ordering::Release);
        newest.store(version + 1, Ordering::Release);
        Ok(())
    }

    /// Takes all versions out: pages change that are not added, so that a version would count for too many snapshots.
    pub(super) fn clear(&self) {
        for word in self.memory.words(TABLE_AT, TABLE as usize) {
            word.store(0, Ordering::Relaxed);
        }
        for version in 0..self.versions {
            self.header(version)[0].store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Copies bytes from `from` of a page as a snapshot has it. False, with unspecified bytes, if that is not here.
    pub(super) fn read(&self, page: u64, snapshot: u64, from: usize, dst: &mut [u8]) -> bool {
        let mut version = self.table(page).load(Ordering::Acquire);
        let mut above = u64::MAX;
        for _ in 0..LONGEST {
            if version == 0 || version > VERSIONS {
                return false;
            }
            let [of, first, before] = self.header(version - 1);
            if of.load(Ordering::Acquire) != page + 1 {
                return false;
            }
            let (begins, earlier) = (first.load(Ordering::Relaxed), before.load(Ordering::Relaxed));
            // A header that was reused for a later version of the page is not before the one that led here.
            if begins >= above {
                return false;
            }
            if begins <= snapshot {
                self.memory.copy_out(Self::bytes_at(version - 1) + from, dst);
                fence(Ordering::Acquire);
                return of.load(Ordering::Relaxed) == page + 1 && first.load(Ordering::Relaxed) == begins;
            }
            fence(Ordering::Acquire);
            if of.load(Ordering::Relaxed) != page + 1 || first.load(Ordering::Relaxed) != begins {
                return false;
            }
            (version, above) = (earlier, begins);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: u64 = 2048;

    fn pair() -> (Published, Published) {
        let server = Published::create(8 << 20).unwrap();
        let reader = Published::of_another(server.file().try_clone_to_owned().unwrap()).unwrap();
        (server, reader)
    }

    fn byte(published: &Published, page: u64, snapshot: u64) -> Option<u8> {
        let mut byte = [0xee];
        published.read(page, snapshot, 7, &mut byte).then_some(byte[0])
    }

    #[test]
    fn each_snapshot_finds_the_version_that_counts_for_it() {
        let (server, reader) = pair();
        assert_eq!(byte(&reader, 5, 9), None);
        for first in [3, 6, 9] {
            server.add(5, first, &[first as u8; PAGE]).unwrap();
        }
        let found: Vec<_> = (2..11).map(|snapshot| byte(&reader, 5, snapshot)).collect();
        assert_eq!(found, [None, Some(3), Some(3), Some(3), Some(6), Some(6), Some(6), Some(9), Some(9)]);
        assert_eq!(byte(&reader, 6, 9), None);
        assert_eq!(byte(&reader, 5 + TABLE, 9), None, "another page with the same place in the table");
        server.add(5 + TABLE, 10, &[1; PAGE]).unwrap();
        assert_eq!((byte(&reader, 5 + TABLE, 10), byte(&reader, 5, 10)), (Some(1), None));
        server.clear();
        assert_eq!(byte(&reader, 5 + TABLE, 10), None);
    }

    #[test]
    fn a_reused_version_is_never_taken_for_an_older_one() {
        let (server, reader) = pair();
        for first in 1..=3 * KEPT {
            server.add(first % 3, first, &[(first % 251) as u8; PAGE]).unwrap();
        }
        for snapshot in 1..=3 * KEPT {
            for page in 0..3 {
                // The last number up to the snapshot's that leaves this rest.
                let Some(of) = snapshot.checked_sub((snapshot + 3 - page) % 3) else { continue };
                let found = byte(&reader, page, snapshot);
                assert!(found.is_none_or(|found| found == (of % 251) as u8), "page {page} in {snapshot}: {found:?}");
                assert!(snapshot < 3 * KEPT - 10 || found.is_some(), "page {page} in {snapshot}");
            }
        }
    }

    #[test]
    fn the_last_snapshot_comes_whole() {
        let (server, reader) = pair();
        assert_eq!(reader.current(), None);
        for number in 1..100 {
            let current = Current { number, commit: 7 * number, len: number << 12, since: number + 5 };
            server.set_current(Some(current));
            assert_eq!(reader.current(), Some(current));
            assert!(reader.is_current(number) && !reader.is_current(number - 1));
        }
        server.set_current(None);
        assert!(reader.current().is_none() && !reader.is_current(99));
    }

    /// A reader copies versions while they are reused.
    #[test]
    fn a_copy_has_the_bytes_of_one_version() {
        let (server, reader) = pair();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let mut seen = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let Some(Current { number, .. }) = reader.current() else { continue };
                    let mut bytes = [0; PAGE];
                    if reader.read(number % 2, number, 0, &mut bytes) {
                        let (words, _) = bytes.as_chunks::<8>();
                        let first = u64::from_le_bytes(words[0]);
                        assert!(words.iter().all(|word| u64::from_le_bytes(*word) == first), "torn at {number}");
                        assert!(first == number, "{first} in {number}");
                        seen += 1;
                    }
                }
                seen
            });
            for number in 1..200_000_u64 {
                let mut bytes = [0; PAGE];
                bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
                server.add(number % 2, number, &bytes).unwrap();
                server.set_current(Some(Current { number, commit: 0, len: 0, since: 0 }));
            }
            stop.store(true, Ordering::Relaxed);
            assert!(seen.join().unwrap() > 0);
        });
    }

    #[test]
    fn other_memory_is_refused() {
        let small = SharedPages::create("untorn-test", 4096, 4096).unwrap();
        assert!(Published::of_another(small.file().try_clone_to_owned().unwrap()).is_err());
        let wild = SharedPages::create("untorn-test", TOTAL as u64, TOTAL).unwrap();
        wild.words(TABLE_AT, TABLE as usize).iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        wild.words(0, 1)[0].store(9, Ordering::Relaxed);
        let reader = Published::of_another(wild.file().try_clone_to_owned().unwrap()).unwrap();
        assert!(byte(&reader, 3, 9).is_none() && reader.current().is_none());
        // Versions that lead in a circle.
        let words = |version: u64| wild.words(HEADERS_AT + 32 * version as usize, 3);
        wild.words(TABLE_AT, TABLE as usize)[3].store(1, Ordering::Relaxed);
        for (word, value) in words(0).iter().zip([4, 100, 1]) {
            word.store(value, Ordering::Relaxed);
        }
        assert_eq!(byte(&reader, 3, 9), None);
    }
}
